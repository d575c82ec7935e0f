//! What a container finds mounted, both ways.

use api_cri::v1::{self, MountPropagation};
use oci::{IdMappings, MountRequest, MountSource, Propagation};

use crate::{
    field::{Invalid, Result, known, not_empty, path, set},
    namespace,
};

pub(crate) fn request(mount: v1::Mount) -> Result<MountRequest> {
    let v1::Mount {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        recursive_read_only,
        image,
        image_sub_path,
        mount_options,
    } = mount;
    let propagation = match known("propagation", propagation)? {
        MountPropagation::PropagationPrivate => Propagation::Private,
        MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
        MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
    };
    if recursive_read_only && !(readonly && propagation == Propagation::Private) {
        let why = "needs readonly and PROPAGATION_PRIVATE";
        return Err(Invalid::new("recursive_read_only", why));
    }
    let mapping =
        namespace::mappings(("uidMappings", uid_mappings), ("gidMappings", gid_mappings))?;
    Ok(MountRequest {
        source: source(host_path, image, image_sub_path, readonly)?,
        container_path: not_empty("container_path", container_path)?.into(),
        readonly,
        recursive_readonly: recursive_read_only,
        propagation,
        selinux_relabel,
        mapping: set(mapping),
        options: mount_options,
    })
}

pub(crate) fn wire(mount: &MountRequest) -> v1::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => MountPropagation::PropagationBidirectional,
    };
    let (host_path, image, image_sub_path) = match &mount.source {
        MountSource::Host(path) => (Some(path), None, None),
        MountSource::Image { reference, sub_path } => (None, Some(reference), sub_path.as_ref()),
        MountSource::Tmpfs => (None, None, None),
    };
    let text = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let IdMappings { uids, gids } = mount.mapping.clone().unwrap_or_default();
    v1::Mount {
        container_path: text(&mount.container_path),
        host_path: host_path.map(text).unwrap_or_default(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: namespace::mappings_wire(&uids),
        gid_mappings: namespace::mappings_wire(&gids),
        recursive_read_only: mount.recursive_readonly,
        image: image.map(|image| v1::ImageSpec { image: image.clone(), ..Default::default() }),
        image_sub_path: image_sub_path.map(text).unwrap_or_default(),
        mount_options: mount.options.clone(),
    }
}

fn source(
    host_path: String,
    image: Option<v1::ImageSpec>,
    sub_path: String,
    readonly: bool,
) -> Result<MountSource> {
    // Once a pod has an image volume, the kubelet sets image_sub_path on every mount with a
    // subPath. For a path of the host it has joined the two itself.
    let Some(image) = image else {
        return Ok(MountSource::Host(not_empty("host_path", host_path)?.into()));
    };
    if !host_path.is_empty() {
        return Err(Invalid::new("host_path", "must be empty beside image"));
    }
    if !readonly {
        return Err(Invalid::new("readonly", "must be true of an image"));
    }
    let reference = not_empty("image.image", image.image)?;
    Ok(MountSource::Image { reference, sub_path: path(sub_path) })
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn ids() -> impl Strategy<Value = Vec<v1::IdMapping>> {
        let one = (0..u32::MAX / 2, 0..u32::MAX / 2, 1..u32::MAX / 2).prop_map(
            |(host_id, container_id, length)| v1::IdMapping { host_id, container_id, length },
        );
        collection::vec(one, 0..3)
    }

    /// Every mount that is valid: of a path or of an image.
    fn any_mount() -> impl Strategy<Value = v1::Mount> {
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        let options = collection::vec("no(exec|dev|suid)", 0..3);
        (flags, "/[a-z/]{0,9}", "/[a-z/]{0,9}", "[a-z/]{0,9}", 0..3, ids(), ids(), options)
            .prop_map(|(flags, place, source, sub_path, propagation, uids, gids, options)| {
                let (of_image, readonly, relabel, recursive) = flags;
                let image = v1::ImageSpec { image: source.clone(), ..Default::default() };
                v1::Mount {
                    container_path: place,
                    host_path: if of_image { String::new() } else { source },
                    readonly: readonly || of_image,
                    selinux_relabel: relabel,
                    propagation,
                    uid_mappings: uids,
                    gid_mappings: gids,
                    recursive_read_only: recursive && readonly && propagation == 0,
                    image: of_image.then_some(image),
                    image_sub_path: if of_image { sub_path } else { String::new() },
                    mount_options: options,
                }
            })
    }

    proptest! {
        #[test]
        fn what_is_valid_comes_back_as_it_was(mount in any_mount()) {
            prop_assert_eq!(wire(&request(mount.clone()).unwrap()), mount);
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut v1::Mount), want: &str) {
        let mut mount = v1::Mount {
            container_path: "/in".into(),
            host_path: "/out".into(),
            ..Default::default()
        };
        change(&mut mount);
        assert_eq!(request(mount).unwrap_err().to_string(), want);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let image = |name: &str| v1::ImageSpec { image: name.into(), ..Default::default() };
        refused(|m| m.container_path.clear(), "container_path: must not be empty");
        refused(|m| m.host_path.clear(), "host_path: must not be empty");
        refused(|m| m.propagation = 3, "propagation: unknown value 3");
        refused(|m| m.image = Some(image("i")), "host_path: must be empty beside image");
        refused(
            |m| {
                m.image = Some(image("i"));
                m.host_path.clear();
            },
            "readonly: must be true of an image",
        );
        refused(
            |m| {
                m.image = Some(image(""));
                m.host_path.clear();
                m.readonly = true;
            },
            "image.image: must not be empty",
        );
        refused(
            |m| m.gid_mappings = vec![v1::IdMapping::default()],
            "gidMappings[0].length: 0 is out of range",
        );
    }

    #[test]
    fn image_sub_path_is_ignored_without_an_image() {
        let mount = v1::Mount {
            container_path: "/in".into(),
            host_path: "/out/part".into(),
            image_sub_path: "part".into(),
            ..Default::default()
        };
        assert_eq!(request(mount).unwrap().source, MountSource::Host("/out/part".into()));
    }

    #[test]
    fn recursively_read_only_is_read_only_and_private() {
        let want = "recursive_read_only: needs readonly and PROPAGATION_PRIVATE";
        refused(|m| m.recursive_read_only = true, want);
        refused(
            |m| {
                m.recursive_read_only = true;
                m.readonly = true;
                m.propagation = 1;
            },
            want,
        );
    }
}
