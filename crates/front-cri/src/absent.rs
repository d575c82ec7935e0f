//! RPCs that the contract has and this version does not: each answers by its name.

/// Fills a tonic service trait with methods that answer UNIMPLEMENTED.
///
/// It writes what `async_trait` would make of an `async fn`, because that macro does not
/// look into the output of others.
macro_rules! unimplemented_rpcs {
    (unary { $( $method:ident($request:ident) -> $response:ident = $name:literal; )* }
     stream { $( $stream:ident($srequest:ident) -> $sresponse:ident as $assoc:ident = $sname:literal; )* }) => {
        $( $crate::absent::unimplemented_rpc! {
            $method(api_cri::v1::$request) -> api_cri::v1::$response = $name
        } )*
        $(
            type $assoc = tokio_stream::Empty<Result<api_cri::v1::$sresponse, tonic::Status>>;

            $crate::absent::unimplemented_rpc! {
                $stream(api_cri::v1::$srequest) -> Self::$assoc = $sname
            }
        )*
    };
}

macro_rules! unimplemented_rpc {
    ($method:ident($request:ty) -> $response:ty = $name:literal) => {
        fn $method<'a, 'async_trait>(
            &'a self,
            _: tonic::Request<$request>,
        ) -> std::pin::Pin<
            Box<
                dyn Future<Output = Result<tonic::Response<$response>, tonic::Status>>
                    + Send
                    + 'async_trait,
            >,
        >
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(std::future::ready(Err($crate::status::unimplemented($name))))
        }
    };
}

pub(crate) use {unimplemented_rpc, unimplemented_rpcs};
