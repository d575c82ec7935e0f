//! ImageService: translate, call the engine, translate back.

use api_cri::v1::{self, image_service_server::ImageService};
use content::{AuthConfig, ImageUser, PullOptions};
use engine::Images;
use tonic::{Request, Response, Status};

use crate::{
    field::Invalid,
    service::Slot,
    stats,
    status::status,
    stream::{Messages, messages},
};

#[derive(Debug)]
pub(crate) struct Image {
    slot: Slot,
}

impl Image {
    pub(crate) fn new(slot: Slot) -> Self {
        Self { slot }
    }

    fn images(&self) -> Result<&Images, Status> {
        self.slot.engine()?.images().map_err(status)
    }

    /// A filter, where it names an image, leaves that one.
    fn list(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, Status> {
        let wanted = filter.and_then(|filter| filter.image).map(|image| image.image);
        let images = match wanted.filter(|image| !image.is_empty()) {
            Some(query) => self.images()?.find(&query).map_err(status)?.into_iter().collect(),
            None => self.images()?.list(),
        };
        Ok(images.iter().map(to_wire).collect())
    }
}

#[tonic::async_trait]
impl ImageService for Image {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.list(request.into_inner().filter)?;
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    type StreamImagesStream = Messages<v1::StreamImagesResponse>;

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let images = self.list(request.into_inner().filter)?;
        Ok(Response::new(messages(images.into_iter(), |images| v1::StreamImagesResponse {
            images,
        })))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let v1::ImageStatusRequest { image, verbose } = request.into_inner();
        let found = self.images()?.find(&name(image)?).map_err(status)?;
        let Some(image) = found else {
            // CRI: an image that is not there is an answer, not an error.
            return Ok(Response::new(v1::ImageStatusResponse::default()));
        };
        let mut answer =
            v1::ImageStatusResponse { image: Some(to_wire(&image)), ..Default::default() };
        if verbose {
            let details = self.images()?.details(&image).await.map_err(status)?;
            answer.info.insert("info".to_owned(), details.to_string());
        }
        Ok(Response::new(answer))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let v1::PullImageRequest { image, auth, .. } = request.into_inner();
        let options =
            PullOptions { auth: auth.map(auth_config).unwrap_or_default(), ..Default::default() };
        let pulled = self.images()?.pull(&name(image)?, options).await.map_err(status)?;
        Ok(Response::new(v1::PullImageResponse { image_ref: pulled.id.to_string() }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        self.images()?.remove(&name(request.into_inner().image)?).await.map_err(status)?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let image_filesystems = self.images()?.file_systems().into_iter().map(|info| {
            let timestamp = base::time::to_unix_nanos(info.at);
            let used = info.usage;
            stats::file_system(timestamp, &info.mountpoint, used.bytes, used.inodes)
        });
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: image_filesystems.collect(),
            container_filesystems: Vec::new(),
        }))
    }
}

fn name(image: Option<v1::ImageSpec>) -> Result<String, Invalid> {
    let name = image.unwrap_or_default().image;
    if name.is_empty() { Err(Invalid::new("image", "is empty")) } else { Ok(name) }
}

fn auth_config(auth: v1::AuthConfig) -> AuthConfig {
    let v1::AuthConfig { username, password, auth, server_address, identity_token, registry_token } =
        auth;
    AuthConfig { username, password, auth, server_address, identity_token, registry_token }
}

fn to_wire(image: &content::Image) -> v1::Image {
    let record = &image.record;
    let (uid, username) = match record.image_user() {
        Some(ImageUser::Uid(value)) => (Some(v1::Int64Value { value }), String::new()),
        Some(ImageUser::Name(name)) => (None, name),
        // CRI wants one of the two: without a word about it, it is root.
        None => (Some(v1::Int64Value { value: 0 }), String::new()),
    };
    v1::Image {
        id: record.id.to_string(),
        repo_tags: record.repo_tags().map(ToString::to_string).collect(),
        repo_digests: record.repo_digests().map(ToString::to_string).collect(),
        size: record.size(),
        uid,
        username,
        spec: None,
        pinned: image.pinned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_credentials_are_kept() {
        let wire = v1::AuthConfig {
            username: "u".into(),
            password: "p".into(),
            auth: "a".into(),
            server_address: "s".into(),
            identity_token: "i".into(),
            registry_token: "r".into(),
        };
        let AuthConfig { username, password, auth, server_address, identity_token, registry_token } =
            auth_config(wire);
        let all = [username, password, auth, server_address, identity_token, registry_token];
        assert_eq!(all, ["u", "p", "a", "s", "i", "r"]);
    }

    #[test]
    fn an_image_without_a_name_is_refused() {
        assert!(name(None).is_err());
        let named = v1::ImageSpec { image: "busybox".into(), ..Default::default() };
        assert_eq!(name(Some(named)).unwrap(), "busybox");
    }
}
