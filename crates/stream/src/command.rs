//! Exec and attach, on whatever transport.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Attach, Backend, BoxError, Client, Exec, Sizes, Wanted},
    lanes::{Input, Output},
};

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Exec(Exec),
    Attach(Attach),
}

/// How the error stream tells the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing, or a sentence: protocols up to version 3.
    Text,
    /// A Kubernetes Status: from version 4.
    Status,
}

/// The streams of a client.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
    pub(crate) resize: Option<Input>,
    pub(crate) error: Output,
}

impl Command {
    pub(crate) fn wanted(&self) -> Wanted {
        match self {
            Self::Exec(exec) => exec.wanted,
            Self::Attach(attach) => attach.wanted,
        }
    }

    /// Does the work, and tells the client how it ended.
    pub(crate) async fn run<B: Backend>(
        self,
        backend: &Arc<B>,
        lines: Lines,
        verdict: Verdict,
        gone: CancellationToken,
    ) {
        let Lines { stdin, stdout, stderr, resize, error } = lines;
        let outputs = [stdout.clone(), stderr.clone()];
        let client = Client { stdin, stdout, stderr, sizes: Sizes::new(resize), gone };
        let ended = match self {
            Self::Exec(exec) => backend.exec(exec, client).await,
            Self::Attach(attach) => backend.attach(attach, client).await.map(|()| 0),
        };
        for output in outputs.into_iter().flatten() {
            output.finish().await;
        }
        // A client that is gone does not hear it.
        let _ = error.send(verdict.tell(&ended)).await;
        error.finish().await;
    }
}

impl Verdict {
    fn tell(self, ended: &Result<i32, BoxError>) -> Bytes {
        let status = match ended {
            Ok(0) if self == Self::Text => return Bytes::new(),
            Ok(0) => json!({ "metadata": {}, "status": "Success" }),
            Ok(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with exit code {code}"),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Err(error) => json!({
                "metadata": {},
                "status": "Failure",
                "message": error.to_string(),
                "reason": "InternalError",
                "code": 500,
            }),
        };
        match self {
            Self::Status => status.to_string().into(),
            Self::Text => status["message"].as_str().unwrap_or_default().to_owned().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(verdict: Verdict, ended: Result<i32, &str>, want: &str) {
        let got = verdict.tell(&ended.map_err(Into::into));
        assert_eq!(got, want, "{verdict:?}");
    }

    #[test]
    fn the_end_is_told_as_the_protocol_has_it() {
        check(Verdict::Text, Ok(0), "");
        check(Verdict::Text, Ok(3), "command terminated with exit code 3");
        check(Verdict::Text, Err("no container"), "no container");
        check(Verdict::Status, Ok(0), r#"{"metadata":{},"status":"Success"}"#);
        check(
            Verdict::Status,
            Ok(3),
            r#"{"details":{"causes":[{"message":"3","reason":"ExitCode"}]},"message":"command terminated with exit code 3","metadata":{},"reason":"NonZeroExitCode","status":"Failure"}"#,
        );
        check(
            Verdict::Status,
            Err("no container"),
            r#"{"code":500,"message":"no container","metadata":{},"reason":"InternalError","status":"Failure"}"#,
        );
    }
}
