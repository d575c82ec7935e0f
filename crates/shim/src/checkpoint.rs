//! The memory of a container, written to files by criu, which the OCI runtime runs.
//!
//! ```text
//!   shim ──> runc checkpoint ──> criu: halts the container, reads it, lets it run on
//! ```
//!
//! **Invariant:** the container runs on. When time is over the runtime is killed first: criu then
//! finds nobody to report to, gives up and puts the container in order, for which it has a while.

use std::{ffi::OsString, fs, path::Path, time::Duration};

use api_shim::{name, runc::CheckpointOptions, task::v3::CheckpointTaskRequest};
use prost::Message;
use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
};
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    runtime::{Call, Helper},
    stdio::Pipes,
    task::Phase,
    tasks::Tasks,
};

/// For criu to put the container in order.
const REPAIR: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    args: Vec<OsString>,
}

impl Checkpoint {
    pub(crate) fn from_wire(request: &CheckpointTaskRequest) -> Result<Self> {
        let invalid = |field, why: String| Error::Invalid { field, why };
        let options = match &request.options {
            None => CheckpointOptions::default(),
            Some(any) if any.type_url == name::CHECKPOINT_OPTIONS => {
                let decoded = CheckpointOptions::decode(&*any.value);
                decoded.map_err(|e| invalid("options", e.to_string()))?
            }
            Some(any) => return Err(invalid("options", format!("{} is unknown", any.type_url))),
        };
        if options.exit {
            return Err(Error::Unimplemented("a checkpoint that ends the container"));
        }
        let images =
            if options.image_path.is_empty() { &request.path } else { &options.image_path };
        if images.is_empty() {
            return Err(invalid("path", "is empty".to_owned()));
        }
        let mut args: Vec<OsString> = vec!["--leave-running".into()];
        let mut pair = |flag: &str, value: &str| {
            if !value.is_empty() {
                args.extend([flag.into(), value.into()]);
            }
        };
        pair("--image-path", images);
        pair("--work-path", &options.work_path);
        pair("--parent-path", &options.parent_path);
        pair("--manage-cgroups-mode", &options.cgroups_mode);
        for namespace in &options.empty_namespaces {
            pair("--empty-ns", namespace);
        }
        let flags = [
            (options.open_tcp, "--tcp-established"),
            (options.external_unix_sockets, "--ext-unix-sk"),
            (options.terminal, "--shell-job"),
            (options.file_locks, "--file-locks"),
        ];
        args.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.into()));
        Ok(Self { args })
    }
}

impl Tasks {
    /// Not cancel safe: to be awaited in a task of its own.
    pub(crate) async fn checkpoint(
        &self,
        id: &str,
        wanted: &Checkpoint,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let task = self.get(id)?;
        let _turn = task.turn.lock().await;
        task.require("checkpoint", &[Phase::Running, Phase::Paused])?;
        let mut args = wanted.args.clone();
        if task.tty {
            args.push("--shell-job".into());
        }
        args.push(id.into());
        let config = task.bundle.join("criu.conf");
        fs::write(&config, of_others(&task.bundle)?).map_err(Error::on("write", &config))?;
        let mut call = Call::silent("checkpoint", &task.bundle, args, deadline);
        call.helper = Some(Helper { env: ("CRIU_CONFIG_FILE", config.clone()), grace: REPAIR });
        let done = self.runtime.run(call).await;
        let _ = fs::remove_file(&config);
        done
    }
}

/// Tells criu that the container's stdio is not its own: it is on a mount that the container does
/// not see. Who restores it brings another.
fn of_others(bundle: &Path) -> Result<String> {
    let mut config = String::new();
    for pipe in Pipes::names(bundle) {
        match statx(CWD, &pipe, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO | StatxFlags::MNT_ID) {
            Ok(stat) => {
                config += &format!("external file[{:x}:{:x}]\n", stat.stx_mnt_id, stat.stx_ino);
            }
            Err(Errno::NOENT) => {}
            Err(e) => return Err(Error::on("look at", &pipe)(e)),
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(options: &CheckpointOptions) -> CheckpointTaskRequest {
        let value = options.encode_to_vec();
        let options = prost_types::Any { type_url: name::CHECKPOINT_OPTIONS.to_owned(), value };
        CheckpointTaskRequest { id: "c".into(), path: "/images".into(), options: Some(options) }
    }

    #[track_caller]
    fn check(options: &CheckpointOptions, want: &str) {
        let got = match Checkpoint::from_wire(&request(options)) {
            Ok(checkpoint) => checkpoint.args.join(" ".as_ref()).into_string().unwrap(),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{options:?}");
    }

    #[test]
    fn options_become_flags() {
        check(&CheckpointOptions::default(), "--leave-running --image-path /images");
        let all = CheckpointOptions {
            open_tcp: true,
            file_locks: true,
            image_path: "/other".into(),
            work_path: "/work".into(),
            empty_namespaces: vec!["network".into()],
            ..CheckpointOptions::default()
        };
        let flags = "--leave-running --image-path /other --work-path /work --empty-ns network \
                     --tcp-established --file-locks";
        check(&all, flags);
    }

    #[test]
    fn pipes_are_named_as_criu_names_them() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_others(dir.path()).unwrap(), "");
        let file = fs::File::create(dir.path().join("stdout")).unwrap();
        let info = format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let info = fs::read_to_string(info).unwrap();
        let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap();
        let mount: u64 = mount.trim().parse().unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let want = format!("external file[{mount:x}:{inode:x}]\n");
        assert_eq!(of_others(dir.path()).unwrap(), want);
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        let exit = CheckpointOptions { exit: true, ..CheckpointOptions::default() };
        check(&exit, "a checkpoint that ends the container is not implemented");
        let nowhere = CheckpointTaskRequest { id: "c".into(), ..CheckpointTaskRequest::default() };
        let refused = Checkpoint::from_wire(&nowhere).unwrap_err();
        assert_eq!(refused.to_string(), "path: is empty");
        let mut odd = request(&CheckpointOptions::default());
        odd.options.as_mut().unwrap().type_url = "x.Y".into();
        let refused = Checkpoint::from_wire(&odd).unwrap_err();
        assert_eq!(refused.to_string(), "options: x.Y is unknown");
    }
}
