use std::{
    fs::File,
    io::{self, IsTerminal, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use api_admin::v1::{
    LoadImageRequest, LoadImageStart, LoadedImage, PruneImagesRequest, PullImageRequest,
    SaveImagesRequest, load_image_request,
};
use api_cri::v1::{self, ImageSpec};
use bytes::Bytes;
use clap::{Args, Subcommand};

use super::{
    client::{Client, DaemonArgs, Told},
    pull,
    rootfs_image::RootfsImage,
    size::Size,
    table::Table,
};

/// Pull, list, load and remove images.
#[derive(Debug, Args)]
pub(super) struct Image {
    #[command(flatten)]
    daemon: DaemonArgs,
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Fetch an image from a registry, e.g. `longshore image pull docker.io/library/busybox:1`.
    Pull {
        name: String,
        /// Credentials as USER:PASSWORD.
        #[arg(long, env = "LONGSHORE_REGISTRY_AUTH", hide_env_values = true)]
        auth: Option<String>,
    },
    /// List images.
    Ls,
    /// Show an image's configuration, as JSON.
    Inspect { image: String },
    /// Remove images, each with all its names.
    Rm {
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Take in images from a tar: an OCI layout or a Docker archive.
    Load {
        /// The archive; standard input if it is not given.
        #[arg(short, long, value_name = "FILE")]
        input: Option<PathBuf>,
        /// For an image that the archive gives no name.
        #[arg(long, default_value = "")]
        name: String,
    },
    /// Write images to a tar that `load`, Docker and skopeo read.
    Save {
        #[arg(required = true)]
        images: Vec<String>,
        /// The archive; standard output if it is not given.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Make an image of a folder, e.g. `longshore image build-rootfs ./root demo:1 -- /bin/sh`.
    BuildRootfs {
        folder: PathBuf,
        name: String,
        /// What its containers run.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Delete what no image, pull or container needs any more.
    Prune {
        /// Only tell.
        #[arg(long)]
        dry_run: bool,
    },
}

/// What one message carries.
const CHUNK: usize = 64 << 10;

impl Image {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let mut client = self.daemon.connect().await?;
            self.command.run(&mut client, out).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl ImageCommand {
    async fn run(self, client: &mut Client, out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Self::Pull { name, auth } => pull_image(client, out, &name, auth).await,
            Self::Ls => list(client, out).await,
            Self::Inspect { image } => inspect(client, out, &image).await,
            Self::Rm { images } => remove(client, out, &images).await,
            Self::Load { input: Some(path), name } => {
                let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
                load(client, out, file, name).await
            }
            Self::Load { input: None, name } => load(client, out, io::stdin(), name).await,
            Self::Save { images, output: Some(path) } => save_to(client, images, &path).await,
            Self::Save { images, output: None } => {
                let terminal = "standard output is a terminal: name a file with -o";
                anyhow::ensure!(!io::stdout().is_terminal(), terminal);
                save(client, images, out).await
            }
            Self::BuildRootfs { folder, name, command } => {
                let image = RootfsImage::build(&folder, &name, &command)?;
                load(client, out, image.into_archive()?, String::new()).await
            }
            Self::Prune { dry_run } => prune(client, out, dry_run).await,
        }
    }
}

async fn pull_image(
    client: &mut Client,
    out: &mut impl Write,
    name: &str,
    auth: Option<String>,
) -> anyhow::Result<()> {
    let pair = auth.unwrap_or_else(|| ":".to_owned());
    let (username, password) = pair.split_once(':').context("--auth is not USER:PASSWORD")?;
    let (username, password) = (username.to_owned(), password.to_owned());
    let request = PullImageRequest { image: name.to_owned(), username, password };
    writeln!(out, "{}", pull::pull(client, request).await?)?;
    Ok(())
}

async fn list(client: &mut Client, out: &mut impl Write) -> anyhow::Result<()> {
    let listed = client.images.list_images(v1::ListImagesRequest::default());
    let images = listed.await.told("list images")?.images;
    let mut table = Table::new(["NAME", "ID", "SIZE"]);
    for image in &images {
        let id = image.id.trim_start_matches("sha256:").get(..12).unwrap_or(&image.id);
        let size = Size(image.size).to_string();
        let names = image.repo_tags.iter().chain(&image.repo_digests).take(1);
        for name in names.cloned().chain(image.repo_tags.iter().skip(1).cloned()) {
            table.row([name, id.to_owned(), size.clone()]);
        }
        if image.repo_tags.is_empty() && image.repo_digests.is_empty() {
            table.row(["-".to_owned(), id.to_owned(), size.clone()]);
        }
    }
    write!(out, "{table}")?;
    Ok(())
}

async fn inspect(client: &mut Client, out: &mut impl Write, image: &str) -> anyhow::Result<()> {
    let request = v1::ImageStatusRequest { image: Some(spec(image)), verbose: true };
    let answer = client.images.image_status(request).await.told(format!("inspect {image}"))?;
    anyhow::ensure!(answer.image.is_some(), "no image {image:?}: see `longshore image ls`");
    let info = answer.info.get("info").map_or("{}", String::as_str);
    let info: serde_json::Value = serde_json::from_str(info)?;
    serde_json::to_writer_pretty(&mut *out, &info)?;
    writeln!(out)?;
    Ok(())
}

async fn remove(
    client: &mut Client,
    out: &mut impl Write,
    images: &[String],
) -> anyhow::Result<()> {
    for image in images {
        let request = v1::RemoveImageRequest { image: Some(spec(image)) };
        client.images.remove_image(request).await.told(format!("remove {image}"))?;
        writeln!(out, "{image}")?;
    }
    Ok(())
}

async fn load(
    client: &mut Client,
    out: &mut impl Write,
    archive: impl Read + Send + 'static,
    name: String,
) -> anyhow::Result<()> {
    let (sender, requests) = tokio::sync::mpsc::channel(4);
    // Reading may block; the queue keeps it from running ahead of the daemon.
    let reading = tokio::task::spawn_blocking(move || send_archive(archive, name, &sender));
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let loaded = client.admin.load_image(requests).await.told("load images")?;
    reading.await?.context("read the archive")?;
    for LoadedImage { id, names } in loaded.images {
        let name = names.first().unwrap_or(&id);
        writeln!(out, "{name}")?;
    }
    Ok(())
}

fn send_archive(
    mut archive: impl Read,
    name: String,
    sender: &tokio::sync::mpsc::Sender<LoadImageRequest>,
) -> io::Result<()> {
    use load_image_request::Message;
    let mut message = Message::Start(LoadImageStart { name });
    // A daemon that takes no more has said why in its answer.
    while sender.blocking_send(LoadImageRequest { message: Some(message) }).is_ok() {
        let mut chunk = Vec::with_capacity(CHUNK);
        if archive.by_ref().take(CHUNK as u64).read_to_end(&mut chunk)? == 0 {
            break;
        }
        message = Message::Archive(Bytes::from(chunk));
    }
    Ok(())
}

/// A file of that name is whole, or as it was before.
async fn save_to(client: &mut Client, images: Vec<String>, path: &Path) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let made = tempfile::NamedTempFile::new_in(dir.unwrap_or(Path::new(".")));
    let mut file = made.with_context(|| format!("write beside {}", path.display()))?;
    save(client, images, file.as_file_mut()).await?;
    file.persist(path).with_context(|| format!("write {}", path.display()))?;
    Ok(())
}

async fn save(
    client: &mut Client,
    images: Vec<String>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let what = format!("save {}", images.join(" "));
    let mut pieces = client.admin.save_images(SaveImagesRequest { images }).await.told(&what)?;
    while let Some(piece) = pieces.message().await.map(tonic::Response::new).told(&what)? {
        out.write_all(&piece.archive).with_context(|| what.clone())?;
    }
    Ok(())
}

async fn prune(client: &mut Client, out: &mut impl Write, dry_run: bool) -> anyhow::Result<()> {
    let pruned = client.admin.prune_images(PruneImagesRequest { dry_run }).await;
    let pruned = pruned.told("prune images")?;
    let (verb, size) = (if dry_run { "would free" } else { "freed" }, Size(pruned.bytes));
    writeln!(out, "{verb} {size} in {} blobs", pruned.blobs)?;
    Ok(())
}

fn spec(name: &str) -> ImageSpec {
    ImageSpec { image: name.to_owned(), ..Default::default() }
}
