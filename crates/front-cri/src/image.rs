//! ImageService.

use api_cri::v1::image_service_server::ImageService;

use crate::absent::unimplemented_rpcs;

#[derive(Debug)]
pub(crate) struct Image;

#[tonic::async_trait]
impl ImageService for Image {
    unimplemented_rpcs! {
        unary {
            list_images(ListImagesRequest) -> ListImagesResponse = "ListImages";
            image_status(ImageStatusRequest) -> ImageStatusResponse = "ImageStatus";
            pull_image(PullImageRequest) -> PullImageResponse = "PullImage";
            remove_image(RemoveImageRequest) -> RemoveImageResponse = "RemoveImage";
            image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse = "ImageFsInfo";
        }
        stream {
            stream_images(StreamImagesRequest) -> StreamImagesResponse as StreamImagesStream = "StreamImages";
        }
    }
}
