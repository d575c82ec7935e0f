use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};
use api_cri::v1::ContainerState;
use clap::Args;
use tonic::Code;

use super::{
    client::{Client, DaemonArgs, Refusal},
    log_format::{Piece, Skip, Stream},
    tail::Tail,
};

/// Show what a container wrote.
///
///     longshore logs -f web/nginx
///     longshore logs --tail 20 --timestamps 3f2a
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Logs {
    /// Go on as more is written, until the container ends.
    #[arg(short, long)]
    follow: bool,
    /// Begin with the last so many lines.
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Begin each line with the time it was written.
    #[arg(short, long)]
    timestamps: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// `pod/container`, an id or its beginning, or a pod with one container.
    container: String,
}

impl Logs {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(self.show(out))
    }

    async fn show(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let client = self.daemon.connect().await?;
        let objects = client.objects().await?;
        let container = objects.find_container(&self.container)?;
        let name = objects.container_name(container);
        let status = client.status(&container.id).await.map_err(Refusal)?;
        if status.log_path.is_empty() {
            bail!("{name} has no log: its pod was made without a log directory");
        }
        let path = Path::new(&status.log_path);
        let reading = || format!("read the log of {name}, {}", path.display());
        let mut tail = Tail::open(path).with_context(reading)?;
        let mut skip = match self.tail {
            Some(lines) => Skip::lines(tail.count().with_context(reading)?.saturating_sub(lines)),
            None => Skip::default(),
        };
        // A follower's lines are to be seen at once, a whole log is to be read fast.
        let out: Box<dyn Write> =
            if self.follow { Box::new(out) } else { Box::new(io::BufWriter::new(out)) };
        let mut printer = Printer { timestamps: self.timestamps, out, err: io::stderr() };
        let mut each = |piece: Piece<'_>| match skip.shows(&piece) {
            true => printer.print(&piece),
            false => Ok(()),
        };
        if self.follow {
            tail.follow(|| has_ended(&client, &container.id), &mut each).await?;
        } else {
            tail.read(&mut each)?;
        }
        printer.out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn has_ended(client: &Client, id: &str) -> anyhow::Result<bool> {
    match client.status(id).await {
        Ok(status) => Ok(!matches!(
            status.state(),
            ContainerState::ContainerCreated | ContainerState::ContainerRunning
        )),
        // Removed: nothing more will come.
        Err(status) if status.code() == Code::NotFound => Ok(true),
        Err(status) => Err(Refusal(status).into()),
    }
}

/// Puts the container's lines together again, each on the stream it was written to.
#[derive(Debug)]
pub(super) struct Printer<O, E> {
    pub(super) timestamps: bool,
    pub(super) out: O,
    pub(super) err: E,
}

impl<O: Write, E: Write> Printer<O, E> {
    pub(super) fn print(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        match piece.stream {
            Stream::Stdout => write_piece(&mut self.out, piece, self.timestamps),
            Stream::Stderr => {
                // In the order in which they were written, where both go to one place.
                self.out.flush()?;
                write_piece(&mut self.err, piece, self.timestamps)
            }
        }
    }
}

fn write_piece(to: &mut impl Write, piece: &Piece<'_>, timestamps: bool) -> io::Result<()> {
    if timestamps && piece.begins {
        write!(to, "{} ", piece.at)?;
    }
    to.write_all(piece.text)?;
    if piece.ends {
        to.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(timestamps: bool) -> (String, String) {
        let piece = |stream, begins, ends, text: &'static str| Piece {
            stream,
            at: "T",
            begins,
            ends,
            text: text.as_bytes(),
        };
        let mut printer = Printer { timestamps, out: Vec::new(), err: Vec::new() };
        for piece in [
            piece(Stream::Stdout, true, false, "a"),
            piece(Stream::Stderr, true, true, "oops"),
            piece(Stream::Stdout, false, true, "b"),
            piece(Stream::Stdout, true, false, "no end"),
        ] {
            printer.print(&piece).unwrap();
        }
        (String::from_utf8(printer.out).unwrap(), String::from_utf8(printer.err).unwrap())
    }

    #[test]
    fn lines_are_whole_again_on_their_streams() {
        assert_eq!(printed(false), ("ab\nno end".into(), "oops\n".into()));
        assert_eq!(printed(true), ("T ab\nT no end".into(), "T oops\n".into()));
    }
}
