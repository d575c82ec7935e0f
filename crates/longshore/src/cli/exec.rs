use std::{io::Write, process::ExitCode};

use api_admin::v1::{ExecRequest, ExecStart};
use clap::Args;

use super::{
    client::{DaemonArgs, Told},
    exit_code,
    session::{self, End, Keyboard},
    terminal::{self, RawTerminal},
};

/// Run a command in a running container.
///
/// Ends with the exit code of the command, or with 125 if it could not be run. Who ends this
/// program ends the command.
///
///     longshore exec -it web/nginx sh
///     longshore exec -e LANG=C -w /tmp 3f2a tar c . > tmp.tar
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Exec {
    /// Pass standard input on.
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal.
    #[arg(short, long)]
    tty: bool,
    /// Set a variable; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Run as this user.
    #[arg(short, long, value_name = "USER[:GROUP]", default_value = "", hide_default_value = true)]
    user: String,
    /// Run in this directory of the container.
    #[arg(short, long, value_name = "DIR", default_value = "", hide_default_value = true)]
    workdir: String,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// `pod/container`, an id or its beginning, or a pod with one container.
    container: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Exec {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(self.session(out))
    }

    async fn session(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let client = self.daemon.connect().await?;
        let objects = client.objects().await?;
        let container = objects.find_container(&self.container)?;
        let name = objects.container_name(container);
        let (requests, stream) = session::requests(ExecRequest::from(ExecStart {
            container: container.id.clone(),
            command: self.command,
            tty: self.tty,
            stdin: self.interactive,
            env: self.env,
            user: self.user,
            working_dir: self.workdir,
            size: if self.tty { terminal::size() } else { None },
        }));
        // Before the command can ask anything of the terminal.
        let _raw = (self.tty && self.interactive).then(RawTerminal::enter).transpose()?;
        let answers = client.admin().exec(stream).await.told(format_args!("exec in {name}"))?;
        let keyboard = Keyboard::new(self.interactive, self.tty)?;
        Ok(match session::run(requests, answers, keyboard, out).await? {
            End::Ended(code) => exit_code(code.unwrap_or_default()),
            End::Interrupted(code) => ExitCode::from(code),
        })
    }
}
