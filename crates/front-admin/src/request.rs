//! What a client wants run, in the engine's words.

use api_admin::v1::{ExecStart, Size};
use engine::ExecStdio;
use oci::{ConsoleSize, ExecRequest, GroupRef, UserRef, UserRequest};
use tonic::Status;

/// A command, where it runs and which of its streams are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exec {
    pub(crate) container: String,
    pub(crate) request: ExecRequest,
    pub(crate) stdio: ExecStdio,
}

pub(crate) fn exec(start: ExecStart) -> Result<Exec, Status> {
    let ExecStart { container, command, tty, stdin, env, user, working_dir, size } = start;
    if command.is_empty() {
        return Err(Status::invalid_argument("command: must not be empty"));
    }
    let request = ExecRequest {
        command,
        env: env.iter().map(|text| variable(text)).collect::<Result<_, _>>()?,
        working_dir: (!working_dir.is_empty()).then(|| working_dir.into()),
        tty,
        console_size: size.map(console_size).transpose()?,
        user: user_request(&user)?,
        ..ExecRequest::default()
    };
    let stdio = ExecStdio { stdin, stdout: true, stderr: !tty };
    Ok(Exec { container: named(container)?, request, stdio })
}

/// The engine takes a prefix of an id, but not the empty one.
pub(crate) fn named(container: String) -> Result<String, Status> {
    if container.is_empty() {
        return Err(Status::invalid_argument("container: must not be empty"));
    }
    Ok(container)
}

fn variable(text: &str) -> Result<(String, Option<String>), Status> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), Some(value.to_owned()))),
        _ => Err(Status::invalid_argument(format!("env: {text:?} is not KEY=value"))),
    }
}

fn user_request(text: &str) -> Result<UserRequest, Status> {
    if text.is_empty() {
        return Ok(UserRequest::default());
    }
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    if user.is_empty() || group == Some("") {
        return Err(Status::invalid_argument(format!("user: {text:?} is not user[:group]")));
    }
    let user = user.parse().map_or_else(|_| UserRef::Name(user.to_owned()), UserRef::Id);
    let group = group
        .map(|group| group.parse().map_or_else(|_| GroupRef::Name(group.to_owned()), GroupRef::Id));
    Ok(UserRequest { user: Some(user), group })
}

pub(crate) fn console_size(size: Size) -> Result<ConsoleSize, Status> {
    let side = |name, value| {
        u16::try_from(value)
            .map_err(|_| Status::invalid_argument(format!("size.{name}: {value} is too much")))
    };
    Ok(ConsoleSize { height: side("height", size.height)?, width: side("width", size.width)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> ExecStart {
        ExecStart { container: "ab".into(), command: vec!["ls".into()], ..Default::default() }
    }

    #[track_caller]
    fn refused(start: ExecStart, want: &str) {
        let status = exec(start).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, want));
    }

    #[test]
    fn every_field_reaches_the_engine() {
        let got = exec(ExecStart {
            tty: true,
            stdin: true,
            env: vec!["A=1=2".into(), "B=".into()],
            user: "ann:7".into(),
            working_dir: "/tmp".into(),
            size: Some(Size { width: 80, height: 24 }),
            ..start()
        })
        .unwrap();
        let request = ExecRequest {
            command: vec!["ls".into()],
            env: vec![("A".into(), Some("1=2".into())), ("B".into(), Some(String::new()))],
            working_dir: Some("/tmp".into()),
            tty: true,
            console_size: Some(ConsoleSize { height: 24, width: 80 }),
            user: UserRequest {
                user: Some(UserRef::Name("ann".into())),
                group: Some(GroupRef::Id(7)),
            },
            privileged: false,
        };
        // A terminal mixes both streams into one.
        let stdio = ExecStdio { stdin: true, stdout: true, stderr: false };
        assert_eq!(got, Exec { container: "ab".into(), request, stdio });
    }

    #[test]
    fn without_a_terminal_both_streams_are_apart() {
        let stdio = ExecStdio { stdin: false, stdout: true, stderr: true };
        assert_eq!(exec(start()).unwrap().stdio, stdio);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        refused(ExecStart { container: String::new(), ..start() }, "container: must not be empty");
        refused(ExecStart { command: vec![], ..start() }, "command: must not be empty");
        refused(ExecStart { env: vec!["=x".into()], ..start() }, "env: \"=x\" is not KEY=value");
        refused(ExecStart { user: ":7".into(), ..start() }, "user: \":7\" is not user[:group]");
        refused(ExecStart { user: "a:".into(), ..start() }, "user: \"a:\" is not user[:group]");
        let size = Some(Size { width: 70_000, height: 1 });
        refused(ExecStart { size, ..start() }, "size.width: 70000 is too much");
    }
}
