//! A container in the foreground: its output here, our input there, until it ends.
//!
//! With a terminal it is attached to. Without one its log is followed: the log has all there
//! is from the first byte on, waits for a reader that is slow, and is written on while the
//! daemon restarts.

use std::{
    cell::Cell,
    io::{self, Write},
    time::Duration,
};

use anyhow::{Context, bail};
use api_admin::v1::{AttachRequest, AttachStart, SessionOutput};
use api_cri::v1::ContainerState;
use tokio::time::Instant;
use tonic::Streaming;

use super::{Made, Plan, Run, start, undone};
use crate::cli::{
    client::{Client, Refusal, Told, is_silence},
    log_format::Piece,
    logs::Printer,
    session::{self, Keyboard, Requests},
    stop::stop_container,
    tail::Tail,
    terminal::Interrupts,
};

/// Between Ctrl-C and SIGKILL.
const GRACE_SECONDS: u32 = 10;
/// A daemon that restarts is back by then.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// What is in the foreground.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreground<'a> {
    pub(super) client: &'a Client,
    pub(super) run: &'a Run,
    pub(super) plan: &'a Plan,
    pub(super) made: &'a Made,
}

impl Foreground<'_> {
    /// Starts it, and returns its exit code. Not cancel safe: the container runs on.
    pub(super) async fn run(self, out: &mut impl Write) -> anyhow::Result<i32> {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            code = self.show(out) => code,
            error = self.stop_when_told(&mut interrupts) => Err(error),
        }
    }

    async fn show(self, out: &mut impl Write) -> anyhow::Result<i32> {
        let Self { client, run, plan, made } = self;
        if !run.tty && !run.interactive {
            undone(client, plan, made, start(client, plan, made)).await?;
            return self.follow_log(out).await;
        }
        let (requests, mut answers) = self.start_attached().await?;
        let keyboard = Keyboard::new(run.interactive, run.tty)?;
        let output = async {
            if !run.tty {
                return self.follow_log(out).await;
            }
            session::print(&mut answers, out, &mut io::stderr()).await?;
            self.exit_code().await
        };
        tokio::select! {
            code = output => code,
            () = requests.forward(keyboard) => bail!("input ended the session"),
        }
    }

    async fn start_attached(
        self,
    ) -> anyhow::Result<(Requests<AttachRequest>, Streaming<SessionOutput>)> {
        let Self { client, run, plan, made } = self;
        let (requests, stream) = session::requests(AttachRequest::from(AttachStart {
            container: made.container.clone(),
            stdin: run.interactive,
            // Without a terminal the log brings the output.
            stdout: run.tty,
            stderr: false,
            await_start: true,
        }));
        let both = async {
            // Once it is answered, nothing of what follows is missed.
            let attached = client.admin().attach(stream).await;
            let answers = attached.told(format_args!("attach to {}", plan.full_name()))?;
            start(client, plan, made).await?;
            Ok(answers)
        };
        let answers = undone(client, plan, made, both).await?;
        Ok((requests, answers))
    }

    async fn follow_log(self, out: &mut impl Write) -> anyhow::Result<i32> {
        let log = self.plan.log();
        let mut tail = Tail::open(&log).with_context(|| format!("read {}", log.display()))?;
        let mut printer = Printer { timestamps: false, out, err: io::stderr() };
        let code = Cell::new(None);
        let has_ended = async || {
            code.set(self.ended().await?);
            Ok(code.get().is_some())
        };
        let mut each = |piece: Piece<'_>| printer.print(&piece);
        tail.follow(has_ended, &mut each).await?;
        printer.out.flush()?;
        code.get().context("the container ended without an exit code")
    }

    /// Of one that is about to end.
    async fn exit_code(self) -> anyhow::Result<i32> {
        loop {
            if let Some(code) = self.ended().await? {
                return Ok(code);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Its exit code, once it has one. A daemon that is away is waited for.
    async fn ended(self) -> anyhow::Result<Option<i32>> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.client.status(&self.made.container).await {
                Ok(status) if status.state() == ContainerState::ContainerExited => {
                    return Ok(Some(status.exit_code));
                }
                Ok(_) => return Ok(None),
                Err(status) if is_silence(&status) && Instant::now() < give_up => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(status) => {
                    let doing = format!("ask how {} is", self.plan.full_name());
                    return Err(anyhow::Error::new(Refusal(status)).context(doing));
                }
            }
        }
    }

    /// Stops the container at the first signal, and kills it at the second. Returns only when
    /// that fails.
    async fn stop_when_told(self, interrupts: &mut Interrupts) -> anyhow::Error {
        let (id, name) = (&self.made.container, self.plan.full_name());
        interrupts.next().await;
        let politely = stop_container(self.client, id, &name, GRACE_SECONDS);
        let stopped = tokio::select! {
            stopped = politely => stopped,
            _ = interrupts.next() => stop_container(self.client, id, &name, 0).await,
        };
        match stopped {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    }
}
