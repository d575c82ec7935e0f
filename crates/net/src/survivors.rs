//! Programs that an earlier daemon started and did not see the end of.
//!
//! A daemon that is killed leaves its CNI programs running. An ADD that goes on while the new
//! daemon does DEL would attach what was just detached, and nobody would ever know.

use std::{collections::BTreeSet, fs, io, time::Duration};

use base::Id;
use sys::pidfd::Pidfd;

/// One that the kernel does not let go of is left behind; it does nothing any more.
const LIMIT: Duration = Duration::from_secs(2);
/// A program may start another while we look.
const ROUNDS: usize = 8;
const SIGKILL: i32 = 9;

/// Kills every program that works for one of `pods`, with its children. Blocks.
pub(crate) fn kill(pods: &BTreeSet<Id>) -> io::Result<usize> {
    let mut killed = 0;
    if pods.is_empty() {
        return Ok(killed);
    }
    for _ in 0..ROUNDS {
        let found = round(pods)?;
        killed += found;
        if found == 0 {
            break;
        }
    }
    Ok(killed)
}

fn round(pods: &BTreeSet<Id>) -> io::Result<usize> {
    let mut killed = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // Held first and looked at then, so that the number cannot change its owner between.
        let Ok(process) = Pidfd::open(pid) else { continue };
        if works_for(pid, pods) && process.signal(SIGKILL).unwrap_or(false) {
            killed.push(process);
        }
    }
    for process in &killed {
        let _ = process.wait_end(Some(LIMIT));
    }
    Ok(killed.len())
}

/// What it starts inherits the variable, too.
fn works_for(pid: u32, pods: &BTreeSet<Id>) -> bool {
    // Empty for kernel threads and zombies.
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mut variables = environment.split(|byte| *byte == 0);
    let id = variables.find_map(|variable| variable.strip_prefix(b"CNI_CONTAINERID="));
    id.and_then(|id| std::str::from_utf8(id).ok()).is_some_and(|id| pods.contains(id))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper(id: &Id) -> Child {
        let command = "sleep 300 & sleep 300";
        Command::new("sh")
            .args(["-c", command])
            .env("CNI_CONTAINERID", id.as_str())
            .spawn()
            .unwrap()
    }

    #[test]
    fn only_programs_of_these_pods_are_killed() {
        let (ours, theirs) = (Id::random(), Id::random());
        let (mut one, mut other) = (sleeper(&ours), sleeper(&theirs));
        // Until the shell has started its own.
        std::thread::sleep(Duration::from_millis(200));
        assert!(kill(&BTreeSet::from([ours])).unwrap() >= 2);
        assert!(!one.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        assert_eq!(kill(&BTreeSet::from([ours])).unwrap(), 0);
        assert!(kill(&BTreeSet::from([theirs])).unwrap() >= 2);
        other.wait().unwrap();
        assert_eq!(kill(&BTreeSet::new()).unwrap(), 0);
    }
}
