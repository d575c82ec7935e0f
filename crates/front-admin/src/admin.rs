//! The service: each method translates, calls and translates back.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use api_admin::v1::{
    AttachRequest, AttachStart, ExecRequest, ExecStart, ExplainContainerRequest,
    ExplainContainerResponse, GetPathsRequest, GetPathsResponse, ListPluginsRequest,
    ListPluginsResponse, ListStagesRequest, ListStagesResponse, LoadImageRequest,
    LoadImageResponse, LoadImageStart, LoadedImage, PluginNotice, PruneImagesRequest,
    PruneImagesResponse, PullImageRequest, PullImageResponse, RestartPluginRequest,
    RestartPluginResponse, SaveImagesRequest, SaveImagesResponse, SessionInput, SessionOutput,
    WatchPluginsRequest, admin_server, attach_request, exec_request, load_image_request,
};
use engine::{AttachIo, Engine, ExecStdio, PrunedImages};
use tokio_stream::StreamExt;
use tokio_util::io::{StreamReader, SyncIoBridge};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    images, plugins,
    request::{self, Exec, named},
    session, stages,
    status::status,
    streams::{Stream, Streams},
};

/// Where the engine will be: the socket is served before there is one.
pub type EngineCell = Arc<OnceLock<Arc<Engine>>>;

/// Where the daemon keeps its files, for clients on the same host.
#[derive(Clone, Debug)]
pub struct Paths {
    pub root: PathBuf,
    pub state: PathBuf,
}

#[derive(Debug)]
pub struct Admin {
    engine: EngineCell,
    paths: Paths,
    streams: Streams,
}

/// The streams of a container, now or at its start.
type Attached = Pin<Box<dyn Future<Output = engine::Result<AttachIo>> + Send>>;

type Answer<T> = Result<Response<T>, Status>;

impl Admin {
    /// To be mounted beside the services of CRI.
    pub fn service(
        engine: EngineCell,
        paths: Paths,
        streams: Streams,
    ) -> admin_server::AdminServer<Self> {
        admin_server::AdminServer::new(Self { engine, paths, streams })
    }

    fn engine(&self) -> Result<&Arc<Engine>, Status> {
        self.engine.get().ok_or_else(|| Status::unavailable("server is not initialized yet"))
    }
}

#[tonic::async_trait]
impl admin_server::Admin for Admin {
    async fn get_paths(&self, _: Request<GetPathsRequest>) -> Answer<GetPathsResponse> {
        let Paths { root, state } = &self.paths;
        Ok(Response::new(GetPathsResponse {
            root: root.to_string_lossy().into_owned(),
            state: state.to_string_lossy().into_owned(),
        }))
    }

    async fn list_stages(&self, _: Request<ListStagesRequest>) -> Answer<ListStagesResponse> {
        Ok(Response::new(stages::list(self.engine()?)))
    }

    type WatchStagesStream = Stream<ListStagesResponse>;

    async fn watch_stages(&self, _: Request<ListStagesRequest>) -> Answer<Self::WatchStagesStream> {
        let engine = Arc::clone(self.engine()?);
        let watch = |out| stages::watch(move || stages::list(&engine), out);
        Ok(Response::new(self.streams.feed(watch)))
    }

    type ExecStream = Stream<SessionOutput>;

    async fn exec(&self, request: Request<Streaming<ExecRequest>>) -> Answer<Self::ExecStream> {
        let engine = self.engine()?;
        let mut requests = request.into_inner();
        let begin = async {
            let Exec { container, request, stdio } =
                request::exec(first_exec(&mut requests).await?)?;
            engine.exec(&container, request, stdio).await.map_err(status)
        };
        let session = self.streams.unless_stopped(begin).await?;
        let inputs = requests.map(|request| request.and_then(exec_input));
        Ok(Response::new(self.streams.feed(|out| session::exec(session, inputs, out))))
    }

    type AttachStream = Stream<SessionOutput>;

    async fn attach(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Answer<Self::AttachStream> {
        let engine = Arc::clone(self.engine()?);
        let mut requests = request.into_inner();
        let begin = async {
            let AttachStart { container, stdin, stdout, stderr, await_start } =
                first_attach(&mut requests).await?;
            let id = named(container)?;
            let stdio = ExecStdio { stdin, stdout, stderr };
            let attached: Attached = if await_start {
                let attaching = engine.attach_from_start(&id, stdio).await.map_err(status)?;
                Box::pin(attaching.attached())
            } else {
                let io = engine.attach(&id, stdio).await.map_err(status)?;
                Box::pin(std::future::ready(Ok(io)))
            };
            Ok((id, attached))
        };
        let (id, attached) = self.streams.unless_stopped(begin).await?;
        let inputs = requests.map(|request| request.and_then(attach_input));
        // Answered before there are streams: only then does the client start the container.
        Ok(Response::new(self.streams.feed(|out| async move {
            let io = attached.await.map_err(status)?;
            session::attach(io, engine, id, inputs, out).await
        })))
    }

    type PullImageStream = Stream<PullImageResponse>;

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Answer<Self::PullImageStream> {
        let (engine, request) = (Arc::clone(self.engine()?), request.into_inner());
        Ok(Response::new(self.streams.feed(|out| images::pull(engine, request, out))))
    }

    type SaveImagesStream = Stream<SaveImagesResponse>;

    async fn save_images(
        &self,
        request: Request<SaveImagesRequest>,
    ) -> Answer<Self::SaveImagesStream> {
        let (engine, names) = (Arc::clone(self.engine()?), request.into_inner().images);
        Ok(Response::new(self.streams.feed(|out| images::save(engine, names, out))))
    }

    async fn load_image(
        &self,
        request: Request<Streaming<LoadImageRequest>>,
    ) -> Answer<LoadImageResponse> {
        let engine = Arc::clone(self.engine()?);
        let mut requests = request.into_inner();
        let load = async {
            let start = first_load(&mut requests).await?;
            let bytes = requests.map(|request| request.map_err(io::Error::other).and_then(archive));
            let reader = SyncIoBridge::new(StreamReader::new(bytes));
            let images = engine.images().map_err(status)?;
            images.load(reader, &start.name).await.map_err(status)
        };
        let loaded = self.streams.unless_stopped(load).await?;
        let images = loaded.into_iter().map(|image| LoadedImage {
            id: image.id.to_string(),
            names: image.names.iter().map(ToString::to_string).collect(),
        });
        Ok(Response::new(LoadImageResponse { images: images.collect() }))
    }

    async fn prune_images(
        &self,
        request: Request<PruneImagesRequest>,
    ) -> Answer<PruneImagesResponse> {
        let images = self.engine()?.images().map_err(status)?;
        let pruned = images.prune(request.into_inner().dry_run).await.map_err(status)?;
        let PrunedImages { blobs, bytes } = pruned;
        Ok(Response::new(PruneImagesResponse { blobs, bytes }))
    }

    async fn list_plugins(&self, _: Request<ListPluginsRequest>) -> Answer<ListPluginsResponse> {
        let engine = self.engine()?;
        let (here, absent) = (engine.plugins(), engine.absent_plugins());
        let plugins = here.iter().map(plugins::status).chain(absent.iter().map(plugins::absent));
        let plugins = plugins.collect();
        Ok(Response::new(ListPluginsResponse { plugins }))
    }

    type WatchPluginsStream = Stream<PluginNotice>;

    async fn watch_plugins(
        &self,
        _: Request<WatchPluginsRequest>,
    ) -> Answer<Self::WatchPluginsStream> {
        let watch = self.engine()?.watch_plugins();
        Ok(Response::new(self.streams.feed(|out| plugins::watch(watch, out))))
    }

    async fn restart_plugin(
        &self,
        request: Request<RestartPluginRequest>,
    ) -> Answer<RestartPluginResponse> {
        let restart = async {
            self.engine()?.restart_plugin(&request.into_inner().plugin).await.map_err(status)
        };
        let done = self.streams.unless_stopped(restart).await?;
        Ok(Response::new(plugins::restarted(&done)))
    }

    async fn explain_container(
        &self,
        request: Request<ExplainContainerRequest>,
    ) -> Answer<ExplainContainerResponse> {
        let container = named(request.into_inner().container)?;
        let story = self.engine()?.explain(&container).map_err(status)?;
        Ok(Response::new(plugins::story(story)))
    }
}

async fn first_load(requests: &mut Streaming<LoadImageRequest>) -> Result<LoadImageStart, Status> {
    match requests.message().await?.and_then(|request| request.message) {
        Some(load_image_request::Message::Start(start)) => Ok(start),
        _ => Err(no_start()),
    }
}

fn archive(request: LoadImageRequest) -> io::Result<bytes::Bytes> {
    match request.message {
        Some(load_image_request::Message::Archive(bytes)) => Ok(bytes),
        Some(load_image_request::Message::Start(_)) => Err(io::Error::other(second_start())),
        None => Ok(bytes::Bytes::new()),
    }
}

async fn first_exec(requests: &mut Streaming<ExecRequest>) -> Result<ExecStart, Status> {
    match requests.message().await?.and_then(|request| request.message) {
        Some(exec_request::Message::Start(start)) => Ok(start),
        _ => Err(no_start()),
    }
}

async fn first_attach(requests: &mut Streaming<AttachRequest>) -> Result<AttachStart, Status> {
    match requests.message().await?.and_then(|request| request.message) {
        Some(attach_request::Message::Start(start)) => Ok(start),
        _ => Err(no_start()),
    }
}

fn no_start() -> Status {
    Status::invalid_argument("start: must be the first message")
}

fn exec_input(request: ExecRequest) -> Result<SessionInput, Status> {
    match request.message {
        Some(exec_request::Message::Start(_)) => Err(second_start()),
        Some(exec_request::Message::Input(input)) => Ok(input),
        None => Ok(SessionInput::default()),
    }
}

fn attach_input(request: AttachRequest) -> Result<SessionInput, Status> {
    match request.message {
        Some(attach_request::Message::Start(_)) => Err(second_start()),
        Some(attach_request::Message::Input(input)) => Ok(input),
        None => Ok(SessionInput::default()),
    }
}

fn second_start() -> Status {
    Status::invalid_argument("start: was given already")
}
