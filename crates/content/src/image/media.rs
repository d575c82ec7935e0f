//! The media types of images, in OCI's and in Docker's spelling.

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

const DOCKER_LAYER_PREFIX: &str = "application/vnd.docker.image.rootfs.";
const OCI_LAYER_PREFIX: &str = "application/vnd.oci.image.layer.";

/// What we ask a registry for.
pub const ACCEPT_MANIFESTS: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];

pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_INDEX)
}

pub fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

pub fn is_config(media_type: &str) -> bool {
    matches!(media_type, OCI_CONFIG | DOCKER_CONFIG)
}

pub fn is_layer(media_type: &str) -> bool {
    media_type.starts_with(OCI_LAYER_PREFIX) || media_type.starts_with(DOCKER_LAYER_PREFIX)
}

pub fn is_encrypted(media_type: &str) -> bool {
    media_type.ends_with("+encrypted")
}

/// The type without its parameters: `text/json; charset=utf-8` is `text/json`.
pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}
