use serde_json::Value;

/// What the OCI runtime understands. Runtimes drop silently what they do not know, so that a
/// request which needs more is refused here, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub user_namespaces: bool,
    pub idmapped_mounts: bool,
    pub recursive_readonly: bool,
    pub seccomp: bool,
    pub apparmor: bool,
    pub selinux: bool,
    pub intel_rdt: bool,
    pub swappiness: bool,
    pub hugepages: bool,
    pub unified: bool,
    pub net_devices: bool,
    pub io_priority: bool,
    pub scheduler: bool,
    pub memory_policy: bool,
    /// It was built with CRIU.
    pub checkpoints: bool,
    /// Not the runtime: our own shim gives processes what priorities the runtime cannot.
    pub shim_sets_priorities: bool,
}

/// All.
impl Default for Abilities {
    fn default() -> Self {
        Self {
            user_namespaces: true,
            idmapped_mounts: true,
            recursive_readonly: true,
            seccomp: true,
            apparmor: true,
            selinux: true,
            intel_rdt: true,
            swappiness: true,
            hugepages: true,
            unified: true,
            net_devices: true,
            io_priority: true,
            scheduler: true,
            memory_policy: true,
            checkpoints: true,
            shim_sets_priorities: true,
        }
    }
}

impl Abilities {
    /// Each by a name for people, and whether it is there.
    pub fn list(&self) -> [(&'static str, bool); 15] {
        [
            ("user namespaces", self.user_namespaces),
            ("mounts with mapped ids", self.idmapped_mounts),
            ("recursive read-only mounts", self.recursive_readonly),
            ("seccomp", self.seccomp),
            ("AppArmor", self.apparmor),
            ("SELinux", self.selinux),
            ("RDT", self.intel_rdt),
            ("swappiness", self.swappiness),
            ("huge pages", self.hugepages),
            ("unified", self.unified),
            ("network devices", self.net_devices),
            ("memory policy", self.memory_policy),
            ("I/O priority", self.io_priority || self.shim_sets_priorities),
            ("scheduler", self.scheduler || self.shim_sets_priorities),
            ("checkpoints", self.checkpoints),
        ]
    }

    /// From what the runtime answers to `features`. One that does not know the question is old,
    /// and gets only what every runtime has had for ever.
    ///
    /// A user namespace needs mounts with mapped ids, or the container owns none of its files. The
    /// label systems are believed to be there unless denied: an answer may leave them out, and a
    /// runtime built without one refuses the label itself.
    pub fn of_features(features: Option<&Value>) -> Self {
        let says = |path: &str| features.and_then(|f| f.pointer(path)).and_then(Value::as_bool);
        let known = |path: &str| says(path) == Some(true);
        let not_denied = |path: &str| says(path) != Some(false);
        let options = features.and_then(|f| f.pointer("/mountOptions")).and_then(Value::as_array);
        let version = features.and_then(|f| f.pointer("/ociVersionMax")).and_then(Value::as_str);
        let idmap = known("/linux/mountExtensions/idmap/enabled");
        // youki writes null for what it says nothing of.
        let lists = |path: &str| {
            features.and_then(|f| f.pointer(path)).is_some_and(|value| !value.is_null())
        };
        // A runc that was built without it says nothing of it, and fails when it is asked.
        let forgotten = lists(RUNC_VERSION) && !lists("/linux/seccomp");
        Self {
            user_namespaces: idmap,
            idmapped_mounts: idmap,
            recursive_readonly: options.is_some_and(|list| list.iter().any(|o| o == "rro")),
            seccomp: not_denied("/linux/seccomp/enabled") && !forgotten,
            apparmor: not_denied("/linux/apparmor/enabled"),
            selinux: not_denied("/linux/selinux/enabled"),
            intel_rdt: not_denied("/linux/intelRdt/enabled"),
            net_devices: known("/linux/netDevices/enabled"),
            swappiness: true,
            hugepages: true,
            unified: true,
            io_priority: version.is_some_and(|version| is_since(version, (1, 1))),
            scheduler: version.is_some_and(|version| is_since(version, (1, 1))),
            memory_policy: lists("/linux/memoryPolicy"),
            checkpoints: features.and_then(|f| f.pointer(CHECKPOINTS))
                != Some(&Value::from("false")),
            shim_sets_priorities: true,
        }
    }
}

impl Abilities {
    /// Corrected by what `--version` lists, as that of crun does: `+SYSTEMD +SECCOMP +CRIU`. One
    /// that lists nothing changes nothing.
    pub fn built_with(self, list: Option<&str>) -> Self {
        let has = |option: &str| {
            list.is_none_or(|list| list.split_whitespace().any(|word| word == option))
        };
        Self {
            seccomp: self.seccomp && has("+SECCOMP"),
            apparmor: self.apparmor && has("+APPARMOR"),
            selinux: self.selinux && has("+SELINUX"),
            checkpoints: self.checkpoints && has("+CRIU"),
            ..self
        }
    }

    /// What is left of it behind a shim that is not ours: we do not make user namespaces for those,
    /// and they give no priorities.
    pub fn behind_foreign_shim(self) -> Self {
        Self { user_namespaces: false, shim_sets_priorities: false, ..self }
    }
}

/// Where an answer of runc says that it is one.
const RUNC_VERSION: &str = "/annotations/org.opencontainers.runc.version";

/// Where runc and crun say whether they know how to checkpoint, in words.
const CHECKPOINTS: &str = "/annotations/org.opencontainers.runc.checkpoint.enabled";

/// Whether a version of the specification, `1.2.0+dev`, is this one or later. What was made
/// on the way to a version (`1.1.0-rc.1`) is not yet it.
fn is_since(version: &str, wanted: (u32, u32)) -> bool {
    let release = version.split('+').next().unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => {
            (major, minor) > wanted || ((major, minor) == wanted && !release.contains('-'))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn silence_is_old_age() {
        let old = Abilities::of_features(None);
        let new = [
            old.user_namespaces,
            old.idmapped_mounts,
            old.recursive_readonly,
            old.net_devices,
            old.io_priority,
            old.scheduler,
            old.memory_policy,
        ];
        assert_eq!(new, [false; 7]);
        assert!(old.seccomp && old.apparmor && old.selinux && old.hugepages && old.unified);
    }

    #[test]
    fn an_answer_is_believed() {
        let features = json!({
            "ociVersionMax": "1.2.0",
            "mountOptions": ["ro", "rro"],
            "linux": {
                "memoryPolicy": { "modes": [] },
                "mountExtensions": { "idmap": { "enabled": true } },
                "seccomp": { "enabled": false },
                "apparmor": { "enabled": true },
                "netDevices": { "enabled": true },
            },
        });
        let want = Abilities { seccomp: false, ..Abilities::default() };
        assert_eq!(Abilities::of_features(Some(&features)), want);
        let odd = json!({ "mountOptions": 1, "linux": [] });
        assert_eq!(Abilities::of_features(Some(&odd)), Abilities::of_features(None));
    }

    #[test]
    fn a_runc_that_does_not_speak_of_seccomp_has_none() {
        let seccomp = |linux: serde_json::Value| {
            let version = json!({ "org.opencontainers.runc.version": "1.4.3" });
            let features = json!({ "annotations": version, "linux": linux });
            Abilities::of_features(Some(&features)).seccomp
        };
        assert!(!seccomp(json!({ "cgroup": {} })));
        assert!(seccomp(json!({ "seccomp": { "enabled": true } })));
    }

    #[test]
    fn checkpoints_are_denied_by_an_answer_or_by_a_list() {
        let told = |enabled: &str| {
            let annotations = json!({ "org.opencontainers.runc.checkpoint.enabled": enabled });
            Abilities::of_features(Some(&json!({ "annotations": annotations }))).checkpoints
        };
        assert!(told("true") && !told("false"));
        let debian = Some("+SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF +YAJL");
        let want = Abilities { checkpoints: false, ..Abilities::default() };
        assert_eq!(Abilities::default().built_with(debian), want);
        assert_eq!(Abilities::default().built_with(None), Abilities::default());
        let bare = Abilities::default().built_with(Some("+CRIU"));
        assert!(bare.checkpoints && !bare.seccomp && !bare.apparmor && !bare.selinux);
    }

    #[test]
    fn null_says_nothing() {
        let linux = json!({ "memoryPolicy": null, "netDevices": null, "seccomp": null });
        let told = Abilities::of_features(Some(&json!({ "linux": linux })));
        assert_eq!(told, Abilities::of_features(None));
    }

    #[test]
    fn what_came_with_a_version_is_there_since() {
        for version in ["1.1.0", "1.2.0+dev", "1.2.1-dev", "2.0"] {
            assert!(is_since(version, (1, 1)), "{version}");
        }
        for version in ["1.0.2-dev", "1.1.0-rc.1", "1", "", "new"] {
            assert!(!is_since(version, (1, 1)), "{version}");
        }
    }
}
