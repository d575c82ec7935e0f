//! The OOM score of a process, where the OCI runtime does not give it.
//!
//! crun takes a score of 0 for none, and then the process has that of its maker, which is the
//! daemon's: a container would be spared as the daemon is.

use std::{fs, path::Path};

use rustix::io::Errno;
use serde::Deserialize;
use sys::process::{oom_score_adj, set_oom_score_adj};

use crate::{
    error::{Error, Result},
    process::Live,
};

#[derive(Deserialize)]
struct Spec {
    process: Option<Process>,
}

#[derive(Deserialize)]
struct Process {
    #[serde(rename = "oomScoreAdj")]
    oom_score_adj: Option<i32>,
}

/// Returns what the spec of a container asks for. One that cannot be read is the runtime's to refuse.
pub(crate) fn of_bundle(bundle: &Path) -> Option<i32> {
    let json = fs::read(bundle.join("config.json")).ok()?;
    serde_json::from_slice::<Spec>(&json).ok()?.process?.oom_score_adj
}

/// Returns what an OCI process in JSON asks for.
pub(crate) fn of_process(json: &[u8]) -> Option<i32> {
    serde_json::from_slice::<Process>(json).ok()?.oom_score_adj
}

/// Gives the process a score, unless it has that already.
///
/// To be called before anything is awaited: until the process is reaped, which only this thread
/// does, the number is its own.
pub(crate) fn give(live: &Live, score: Option<i32>) -> Result<()> {
    let (Some(score), Live { pid, pidfd: Some(_) }) = (score, live) else { return Ok(()) };
    let given = match oom_score_adj(*pid) {
        Ok(now) if now == score => Ok(()),
        Ok(_) => set_oom_score_adj(*pid, score),
        Err(error) => Err(error),
    };
    match given {
        Err(error) if !error.is(Errno::SRCH) && !error.is(Errno::NOENT) => {
            Err(Error::io("set the OOM score")(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_found_in_specs() {
        let dir = tempfile::tempdir().unwrap();
        let spec = |text: &str| fs::write(dir.path().join("config.json"), text).unwrap();
        assert_eq!(of_bundle(dir.path()), None);
        spec(r#"{"ociVersion": "1", "process": {"args": ["x"], "oomScoreAdj": 0}}"#);
        assert_eq!(of_bundle(dir.path()), Some(0));
        spec(r#"{"process": {"args": []}}"#);
        assert_eq!(of_bundle(dir.path()), None);
        spec("{}");
        assert_eq!(of_bundle(dir.path()), None);
        assert_eq!(of_process(br#"{"oomScoreAdj": -998, "args": []}"#), Some(-998));
        assert_eq!(of_process(b"no"), None);
    }
}
