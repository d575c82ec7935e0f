//! Hook definitions: what is run, when, and for which containers.
//!
//! The files are those of oci-hooks(5), version 1.0.0:
//!
//! ```json
//! {
//!   "version": "1.0.0",
//!   "hook": {"path": "/usr/libexec/hook", "args": ["hook", "start"], "timeout": 5},
//!   "when": {"annotations": {"^run-hook$": "^true$"}, "commands": ["/nginx$"]},
//!   "stages": ["prestart", "poststop"]
//! }
//! ```

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use nri_sdk::{
    Container,
    api::{Hook, Hooks, OptionalInt},
};
use regex::Regex;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: String,
    hook: HookFile,
    when: WhenFile,
    stages: Vec<Stage>,
}

#[derive(Deserialize)]
struct HookFile {
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    timeout: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WhenFile {
    always: Option<bool>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    commands: Vec<String>,
    has_bind_mounts: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
enum Stage {
    #[serde(rename = "prestart")]
    Prestart,
    #[serde(rename = "createRuntime")]
    CreateRuntime,
    #[serde(rename = "createContainer")]
    CreateContainer,
    #[serde(rename = "startContainer")]
    StartContainer,
    #[serde(rename = "poststart")]
    Poststart,
    #[serde(rename = "poststop")]
    Poststop,
}

/// A file that was read and found right.
#[derive(Debug)]
pub(crate) struct Definition {
    hook: Hook,
    when: When,
    stages: Vec<Stage>,
}

/// All conditions there are must hold.
#[derive(Debug)]
struct When {
    always: Option<bool>,
    /// Each pair must match some annotation.
    annotations: Vec<(Regex, Regex)>,
    /// One must match the program.
    commands: Vec<Regex>,
    has_bind_mounts: Option<bool>,
}

/// Definitions by lower-case file name: that is the order in which they are added.
pub(crate) type Definitions = BTreeMap<String, Definition>;

/// Reads all definitions. A file in a later directory replaces one of its name in an earlier
/// one. A directory that is not there is empty; a file that is wrong is left out, with a
/// complaint.
pub(crate) fn read(directories: &[PathBuf]) -> io::Result<Definitions> {
    let mut definitions = Definitions::new();
    for directory in directories {
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if !name.ends_with(".json") {
                continue;
            }
            match Definition::read(&path) {
                Ok(definition) => drop(definitions.insert(name, definition)),
                Err(error) => tracing::error!("{}: {error:#}", path.display()),
            }
        }
    }
    Ok(definitions)
}

/// The hooks of all definitions that want this container.
pub(crate) fn hooks_for(definitions: &Definitions, container: &Container) -> Hooks {
    let mut hooks = Hooks::default();
    for definition in definitions.values().filter(|d| d.when.holds_for(container)) {
        for stage in &definition.stages {
            stage.of(&mut hooks).push(definition.hook.clone());
        }
    }
    hooks
}

impl Definition {
    fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let File { version, hook, when, stages } = serde_json::from_str(text)?;
        ensure!(version == "1.0.0", "version {version:?} is not known");
        ensure!(hook.path.starts_with('/'), "path {:?} is not absolute", hook.path);
        ensure!(!stages.is_empty(), "no stages");
        let HookFile { path, args, env, timeout } = hook;
        let timeout = timeout.map(|value| OptionalInt { value });
        let hook = Hook { path, args, env, timeout };
        Ok(Self { hook, when: when.check()?, stages })
    }
}

impl WhenFile {
    fn check(self) -> anyhow::Result<When> {
        let Self { always, annotations, commands, has_bind_mounts } = self;
        let conditions = annotations.len() + commands.len();
        let any = always.is_some() || has_bind_mounts.is_some() || conditions > 0;
        ensure!(any, "no condition in \"when\"");
        let regex = |text: &String| Regex::new(text).with_context(|| format!("pattern {text:?}"));
        let pair = |(key, value): (String, String)| Ok((regex(&key)?, regex(&value)?));
        Ok(When {
            always,
            annotations: annotations.into_iter().map(pair).collect::<anyhow::Result<_>>()?,
            commands: commands.iter().map(regex).collect::<anyhow::Result<_>>()?,
            has_bind_mounts,
        })
    }
}

impl When {
    fn holds_for(&self, container: &Container) -> bool {
        let annotated = |(key, value): &(Regex, Regex)| {
            container.annotations.iter().any(|(k, v)| key.is_match(k) && value.is_match(v))
        };
        let command = container.args.first().map_or("", String::as_str);
        self.always.unwrap_or(true)
            && self.annotations.iter().all(annotated)
            && (self.commands.is_empty() || self.commands.iter().any(|c| c.is_match(command)))
            && self.has_bind_mounts.is_none_or(|wanted| wanted == has_bind_mounts(container))
    }
}

fn has_bind_mounts(container: &Container) -> bool {
    let bind = |option: &String| option == "bind" || option == "rbind";
    container.mounts.iter().any(|mount| mount.r#type == "bind" || mount.options.iter().any(bind))
}

impl Stage {
    fn of(self, hooks: &mut Hooks) -> &mut Vec<Hook> {
        match self {
            Self::Prestart => &mut hooks.prestart,
            Self::CreateRuntime => &mut hooks.create_runtime,
            Self::CreateContainer => &mut hooks.create_container,
            Self::StartContainer => &mut hooks.start_container,
            Self::Poststart => &mut hooks.poststart,
            Self::Poststop => &mut hooks.poststop,
        }
    }
}

#[cfg(test)]
mod tests {
    use nri_sdk::api::Mount;

    use super::*;

    fn definition(when: &str) -> anyhow::Result<Definition> {
        Definition::parse(&format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/hook"}}, "when": {when}, "stages": ["prestart"]}}"#
        ))
    }

    #[test]
    fn conditions_hold_together() {
        let mut container = Container {
            args: vec!["/usr/sbin/nginx".into(), "-g".into()],
            mounts: vec![Mount { r#type: "bind".into(), ..Default::default() }],
            ..Default::default()
        };
        container.annotations.insert("com.example.hook".into(), "yes".into());
        container.annotations.insert("other".into(), "no".into());
        let check = |when: &str, want: bool| {
            assert_eq!(definition(when).unwrap().when.holds_for(&container), want, "{when}");
        };
        check(r#"{"always": true}"#, true);
        check(r#"{"always": false}"#, false);
        check(r#"{"commands": ["/nginx$"]}"#, true);
        check(r#"{"commands": ["^nginx$", "sbin"]}"#, true);
        check(r#"{"commands": ["-g"]}"#, false);
        check(r#"{"annotations": {"hook$": "^yes$"}}"#, true);
        check(r#"{"annotations": {"hook$": "^no$"}}"#, false);
        check(r#"{"annotations": {"hook$": "yes", "other": "no"}}"#, true);
        check(r#"{"annotations": {"hook$": "yes", "third": ""}}"#, false);
        check(r#"{"hasBindMounts": true}"#, true);
        check(r#"{"hasBindMounts": false}"#, false);
        check(r#"{"always": true, "commands": ["sh$"]}"#, false);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let check = |text: &str, want: &str| {
            let error = format!("{:#}", Definition::parse(text).unwrap_err());
            assert!(error.contains(want), "{error}");
        };
        let file = |version: &str, path: &str, when: &str, stages: &str| {
            format!(
                r#"{{"version": "{version}", "hook": {{"path": "{path}"}}, "when": {when}, "stages": {stages}}}"#
            )
        };
        let always = r#"{"always": true}"#;
        check(&file("0.1.0", "/h", always, r#"["prestart"]"#), "version \"0.1.0\"");
        check(&file("1.0.0", "h", always, r#"["prestart"]"#), "not absolute");
        check(&file("1.0.0", "/h", "{}", r#"["prestart"]"#), "no condition");
        check(&file("1.0.0", "/h", always, "[]"), "no stages");
        check(&file("1.0.0", "/h", always, r#"["prestop"]"#), "prestop");
        check(&file("1.0.0", "/h", r#"{"commands": ["("]}"#, r#"["prestart"]"#), "pattern \"(\"");
        check(&file("1.0.0", "/h", r#"{"command": []}"#, r#"["prestart"]"#), "command");
    }
}
