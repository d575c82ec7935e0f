//! Profiles of AppArmor: which are loaded, and loading our own.
//!
//! Others may unload ours at any time (a reload of the host's policy does), so that it is
//! looked for before each container, and loaded again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sys::process::succeed_within;

use crate::health::Health;

pub(crate) const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

/// Compiling a profile takes a fraction of a second.
const LIMIT: Duration = Duration::from_secs(20);

/// How the kernel is told of profiles; `None` without the program for it.
#[derive(Clone, Debug)]
pub(crate) struct Profiles<'a> {
    /// The kernel's list of them.
    pub(crate) loaded: &'a Path,
    pub(crate) parser: Option<&'a Path>,
    /// The name of our own.
    pub(crate) default: &'a str,
}

impl Profiles<'_> {
    /// Whether a container can be given the profile. Blocking.
    pub(crate) fn has(&self, name: &str) -> bool {
        if self.is_loaded(name) {
            return true;
        }
        if name != self.default {
            return false;
        }
        let loaded = self.load();
        if let Err(why) = &loaded {
            tracing::warn!(profile = name, why, "AppArmor profile not loaded");
        }
        loaded.is_ok()
    }

    /// At the start of the daemon, so that what is wrong shows before the first container. A
    /// profile of an earlier version is replaced. Blocking.
    pub(crate) fn prepare(&self, health: &Health) {
        if let Err(why) = self.load() {
            let default = self.default;
            health.runtime.warn(
                "NoAppArmorProfile",
                format!(
                    "AppArmor is on, but its profile {default} cannot be loaded: {why}; \
                     containers that name no profile run unconfined"
                ),
            );
        }
    }

    /// A list that cannot be read tells nothing: then the OCI runtime will know.
    fn is_loaded(&self, name: &str) -> bool {
        fs::read_to_string(self.loaded)
            .map_or(true, |list| oci::loaded_profiles(&list).any(|loaded| loaded == name))
    }

    fn load(&self) -> Result<(), String> {
        let parser = self.parser.ok_or("apparmor_parser is not installed")?;
        run(parser, &oci::default_apparmor_profile(self.default))
    }
}

fn run(parser: &Path, profile: &str) -> Result<(), String> {
    // Nothing is kept outside our own directories.
    let mut command = Command::new(parser);
    command.args(["--replace", "--skip-cache", "--quiet"]).env_clear();
    succeed_within(command, profile.as_bytes(), LIMIT)
}

/// Where it is on all distributions; services often have no such directory in their path.
pub fn find_parser() -> Option<PathBuf> {
    let dirs = ["/usr/sbin", "/sbin", "/usr/bin"];
    dirs.iter().map(|dir| Path::new(dir).join("apparmor_parser")).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parser(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("apparmor_parser");
        testkit::program(&path, &format!("#!/bin/sh\n{script}\n"));
        path
    }

    #[test]
    fn the_profile_goes_to_the_parser() {
        let dir = tempfile::tempdir().unwrap();
        let heard = dir.path().join("heard");
        let script = format!("/bin/cat > {}; echo \"$@\" >> {0}", heard.display());
        let parser = parser(dir.path(), &script);
        let loaded = dir.path().join("profiles");
        fs::write(&loaded, "others (enforce)\n").unwrap();
        let profiles = Profiles { loaded: &loaded, parser: Some(&parser), default: "ours" };
        let health = Health::default();
        profiles.prepare(&health);
        let text = fs::read_to_string(&heard).unwrap();
        assert!(text.starts_with("profile \"ours\" ") && text.contains("--replace"), "{text}");
        assert_eq!(health.runtime.told().reason, "");

        fs::remove_file(&heard).unwrap();
        assert!(profiles.has("others") && !profiles.has("nobodys"));
        assert!(!heard.exists());
        assert!(profiles.has("ours"), "somebody unloaded it: it is loaded again");
        assert!(heard.exists());
    }

    #[test]
    fn a_profile_that_cannot_be_loaded_shows_in_the_condition() {
        let dir = tempfile::tempdir().unwrap();
        let parser = parser(dir.path(), "echo no such feature >&2; exit 1");
        for (parser, why) in [
            (Some(parser.as_path()), "no such feature"),
            (None, "apparmor_parser is not installed"),
        ] {
            let health = Health::default();
            let loaded = Path::new("/nowhere");
            Profiles { loaded, parser, default: "ours" }.prepare(&health);
            let told = health.runtime.told();
            assert!(told.holds && told.reason == "NoAppArmorProfile", "{told:?}");
            assert!(told.message.contains(why), "{told:?}");
        }
    }
}
