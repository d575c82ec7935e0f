//! OCI runtimes: which are here, what they say of themselves, and whether a
//! container really runs with them.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{
    cgroup::Hierarchies,
    host::{HostPaths, Settings, is_program},
    parallel,
    program::{Deadline, RunError, run},
    report::Row,
};

mod bundle;
mod sweep;
mod trial;

const GROUP: &str = "OCI runtimes";

/// In the order of our preference: crun starts containers several times faster than runc.
const KNOWN: [&str; 3] = ["crun", "runc", "youki"];

/// What every runtime takes; old crun takes nothing newer than 1.0.
const PLAIN_SPEC: (u32, u32, u32) = (1, 0, 2);
/// The newest runtime-spec we know how to write.
const NEWEST_SPEC: (u32, u32, u32) = (1, 2, 1);

/// One OCI runtime of this host.
#[derive(Debug, Serialize)]
pub struct Runtime {
    pub name: String,
    pub path: PathBuf,
    /// As it says by `--version`.
    pub version: Option<String>,
    /// What it was built with, where `--version` lists it: `+SYSTEMD +SECCOMP +CRIU`.
    pub built_with: Option<String>,
    /// The `ociVersion` to write into its bundles.
    pub spec_version: String,
    /// What it answers to `features`; old ones do not know that command.
    pub features: Option<Value>,
    /// How long a container took from `create` to the end of `delete`, or why none ran.
    #[serde(serialize_with = "works_or_not")]
    pub works: Result<Duration, Broken>,
}

/// Why a runtime is of no use here.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("{} is not an executable file", .0.display())]
    Absent(PathBuf),
    #[error("cannot execute {}: {source}", .path.display())]
    Spawn { path: PathBuf, source: io::Error },
    #[error("cannot prepare a bundle: {0}")]
    Prepare(#[source] io::Error),
    #[error("`{step}` failed: {said}")]
    Refused { step: &'static str, said: String },
    #[error("`{step}` did not end within {limit:?}")]
    Hung { step: &'static str, limit: Duration },
    #[error("the container did not end within {0:?}")]
    ContainerHung(Duration),
    #[error("it claims success, but the container said {0:?}")]
    WrongOutput(String),
    #[error("cannot watch the container: {0}")]
    Watch(#[source] io::Error),
    #[error("it left behind what cannot be removed: {0}")]
    Litter(String),
}

/// Tries every configured runtime, or every known one on the path, each with a container.
///
/// Blocks for as long as the slowest takes, at most a few times
/// [`Settings::limit`]; leaves no process, cgroup, mount or file.
pub fn runtimes(host: &HostPaths, settings: &Settings) -> Vec<Runtime> {
    try_runtimes(host, settings, &candidates(host, settings))
}

/// Tries these, each with a container; the results are in their order. As [`runtimes`].
pub fn try_runtimes(
    host: &HostPaths,
    settings: &Settings,
    candidates: &[(String, PathBuf)],
) -> Vec<Runtime> {
    let found = Hierarchies::find(host);
    parallel(candidates.iter().map(|(name, path)| {
        let found = &found;
        move || probe(host, settings, found, name, path)
    }))
}

/// crun if it works, else runc, else whichever works.
pub fn choose_runtime(runtimes: &[Runtime]) -> Option<&Runtime> {
    let rank = |runtime: &&Runtime| KNOWN.iter().position(|known| runtime.name == *known);
    let working = runtimes.iter().filter(|runtime| runtime.works.is_ok());
    working.min_by_key(|runtime| rank(runtime).unwrap_or(KNOWN.len()))
}

/// What [`runtimes`] would try: names and paths, the first choice first.
pub fn candidates(host: &HostPaths, settings: &Settings) -> Vec<(String, PathBuf)> {
    if settings.runtimes.is_empty() {
        let on_path = |name: &&str| Some(((*name).to_owned(), host.program(name)?));
        return KNOWN.iter().filter_map(on_path).collect();
    }
    let resolve = |(name, path): &(String, PathBuf)| {
        let bare = path.to_str().filter(|text| !text.contains('/'));
        let found = bare.and_then(|text| host.program(text));
        (name.clone(), found.unwrap_or_else(|| path.clone()))
    };
    settings.runtimes.iter().map(resolve).collect()
}

fn probe(
    host: &HostPaths,
    settings: &Settings,
    found: &Hierarchies,
    name: &str,
    path: &Path,
) -> Runtime {
    let mut runtime = Runtime {
        name: name.to_owned(),
        path: path.to_owned(),
        version: None,
        built_with: None,
        spec_version: dotted(PLAIN_SPEC),
        features: None,
        works: Err(Broken::Absent(path.to_owned())),
    };
    if !is_program(path) {
        return runtime;
    }
    match ask(path, "--version", settings.limit) {
        Ok(text) => {
            runtime.version = Some(version(&text));
            runtime.built_with = built_with(&text);
        }
        Err(broken @ (Broken::Hung { .. } | Broken::Spawn { .. })) => {
            runtime.works = Err(broken);
            return runtime;
        }
        // Odd, but not what decides.
        Err(_) => {}
    }
    let features = ask(path, "features", settings.limit).ok();
    runtime.features = features
        .and_then(|text| serde_json::from_str(&text).ok())
        .filter(|value: &Value| value.is_object());
    runtime.spec_version = dotted(spec_version(runtime.features.as_ref()));
    runtime.works = trial::container(host, settings, found, path, &runtime.spec_version);
    runtime
}

/// The output of a runtime's informational command.
fn ask(path: &Path, what: &'static str, limit: Duration) -> Result<String, Broken> {
    let ended = run(Command::new(path).arg(what), Deadline::after(limit))
        .map_err(|error| Broken::by(what, error))?;
    if !ended.status.success() {
        return Err(Broken::Refused { step: what, said: ended.complaint() });
    }
    Ok(ended.stdout.text())
}

/// `crun version 1.8.1` → `1.8.1`.
fn version(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    line.split_once("version")
        .map_or(line, |(_, after)| after.trim_start_matches([':', ' ']))
        .to_owned()
}

/// The line of crun that says what it was built with.
fn built_with(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| line.starts_with('+')).map(str::to_owned)
}

fn dotted((major, minor, patch): (u32, u32, u32)) -> String {
    format!("{major}.{minor}.{patch}")
}

/// The newest both sides know; pre-release marks are dropped, runtimes take the release for them.
fn spec_version(features: Option<&Value>) -> (u32, u32, u32) {
    let parse = |text: &str| {
        let mut numbers = text.split(['.', '-', '+']).map_while(|part| part.parse().ok());
        Some((numbers.next()?, numbers.next()?, numbers.next()?))
    };
    let newest = features.and_then(|value| parse(value.get("ociVersionMax")?.as_str()?));
    newest.map_or(PLAIN_SPEC, |newest| newest.clamp(PLAIN_SPEC, NEWEST_SPEC))
}

fn works_or_not<S: Serializer>(works: &Result<Duration, Broken>, s: S) -> Result<S::Ok, S::Error> {
    match works {
        Ok(took) => serde_json::json!({ "ran_ms": took.as_secs_f64() * 1e3 }),
        Err(broken) => serde_json::json!({ "broken": broken.to_string() }),
    }
    .serialize(s)
}

// === impl Broken ===

impl Broken {
    fn by(step: &'static str, error: RunError) -> Self {
        match error {
            RunError::Spawn { path, source } => Self::Spawn { path, source },
            RunError::Limit { limit } => Self::Hung { step, limit },
            RunError::Watch(source) => Self::Watch(source),
        }
    }
}

// === rows ===

pub(crate) fn rows(settings: &Settings, found: &Hierarchies, runtimes: &[Runtime]) -> Vec<Row> {
    let chosen = if settings.runtimes.is_empty() {
        choose_runtime(runtimes)
    } else {
        runtimes.first().filter(|first| first.works.is_ok())
    };
    // A runtime nobody asked for may be broken as long as another works.
    let spare = settings.runtimes.is_empty() && chosen.is_some();
    let mut rows: Vec<_> = runtimes.iter().map(|runtime| row(runtime, found, spare)).collect();
    rows.push(default(chosen, runtimes));
    rows
}

fn row(runtime: &Runtime, found: &Hierarchies, spare: bool) -> Row {
    let version = runtime.version.as_deref().unwrap_or("of unknown version");
    let about = format!("{version} ({})", runtime.path.display());
    let row = Row::ok(GROUP, &runtime.name, about);
    let broken = match &runtime.works {
        Ok(took) => {
            let (about, spec) = (&row.found, &runtime.spec_version);
            let found = format!("{about} ran a container in {took:.0?}, spec {spec}");
            return Row { found, ..row };
        }
        Err(broken) => broken,
    };
    let (reason, remedy) = explain(runtime, broken, found);
    if spare { row.warn(reason) } else { row.fail(reason) }.remedy(remedy)
}

fn explain(runtime: &Runtime, broken: &Broken, found: &Hierarchies) -> (String, String) {
    let plain = broken.to_string();
    if !rustix::process::geteuid().is_root() {
        return (plain, "run as root".into());
    }
    // crun gives up before it looks at anything else, so this is the cause whatever it said.
    if let (Broken::Refused { step: "create", .. }, true, Some(stray), Some(remedy)) =
        (broken, runtime.path.ends_with("crun"), found.stray(), found.stray_remedy())
    {
        let stray = stray.join(", ");
        let why = format!(
            "crun refuses a hybrid cgroup host whose v2 side has controllers ({stray}): {plain}"
        );
        return (why, format!("use runc; or {remedy}"));
    }
    let remedy = match broken {
        Broken::Absent(_) | Broken::Spawn { .. } => "install it, or correct its path",
        Broken::Prepare(_) => "choose a root that can be written",
        Broken::Hung { .. } | Broken::ContainerHung(_) => "update it, or use another runtime",
        Broken::Refused { .. } | Broken::WrongOutput(_) | Broken::Watch(_) | Broken::Litter(_) => {
            "correct what it names, update it, or use another runtime"
        }
    };
    (plain, remedy.to_owned())
}

fn default(chosen: Option<&Runtime>, runtimes: &[Runtime]) -> Row {
    let row = Row::ok(GROUP, "default", "none");
    let Some(chosen) = chosen else {
        return match runtimes.first() {
            None => {
                row.fail("no OCI runtime is installed").remedy("install the package crun, or runc")
            }
            Some(first) => row
                .fail(format!("no container runs with {}", first.name))
                .remedy("see the rows above, or install the package runc"),
        };
    };
    let row = Row { found: chosen.name.clone(), ..row };
    match runtimes.iter().find(|other| other.name == KNOWN[0] && other.works.is_err()) {
        Some(_) if chosen.name != KNOWN[0] => {
            row.because("crun would be faster, but does not work here")
        }
        _ => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::Verdict,
        testing::{FakeHost, expect, is_root, misbehaving, real_host},
    };

    fn runtime(name: &str, works: bool) -> Runtime {
        let said = "on purpose".to_owned();
        Runtime {
            name: name.into(),
            path: format!("/x/{name}").into(),
            version: Some("1.2".into()),
            built_with: None,
            spec_version: dotted(PLAIN_SPEC),
            features: None,
            works: if works {
                Ok(Duration::from_millis(7))
            } else {
                Err(Broken::Refused { step: "create", said })
            },
        }
    }

    #[test]
    fn crun_is_preferred_then_runc_then_any() {
        let choice = |list: &[(&str, bool)]| {
            let list: Vec<_> = list.iter().map(|(name, works)| runtime(name, *works)).collect();
            choose_runtime(&list).map(|runtime| runtime.name.clone())
        };
        assert_eq!(choice(&[("runc", true), ("crun", true)]).as_deref(), Some("crun"));
        assert_eq!(
            choice(&[("crun", false), ("youki", true), ("runc", true)]).as_deref(),
            Some("runc")
        );
        assert_eq!(choice(&[("mine", true), ("runc", false)]).as_deref(), Some("mine"));
        assert_eq!(choice(&[("crun", false)]), None);
        assert_eq!(choice(&[]), None);
    }

    #[test]
    fn versions_of_real_runtimes() {
        assert_eq!(version("crun version 1.8.1\ncommit: f8a\n"), "1.8.1");
        assert_eq!(version("runc version 1.1.5+ds1\ncommit: x\n"), "1.1.5+ds1");
        assert_eq!(version("youki version: 0.5.4\n"), "0.5.4");
        assert_eq!(version("strange 3\n"), "strange 3");
        let crun = "crun version 1.8.1\nspec: 1.0.0\n+SYSTEMD +CAP\n";
        assert_eq!(built_with(crun).as_deref(), Some("+SYSTEMD +CAP"));
        assert_eq!(built_with("runc version 1.1.5+ds1\n"), None);
    }

    #[test]
    fn spec_version_is_the_newest_both_know() {
        let check = |max: &str, want: &str| {
            let features = serde_json::json!({ "ociVersionMax": max });
            assert_eq!(dotted(spec_version(Some(&features))), want, "{max}");
        };
        check("1.0.2-dev", "1.0.2");
        check("1.1.0+dev", "1.1.0");
        check("1.9.0", "1.2.1");
        check("1.0.0", "1.0.2");
        check("what", "1.0.2");
        assert_eq!(spec_version(None), PLAIN_SPEC);
    }

    #[track_caller]
    fn check(host: &HostPaths, settings: &Settings, name: &str, want: Verdict, text: &str) {
        let found = Hierarchies::find(host);
        let rows = rows(settings, &found, &runtimes(host, settings));
        expect(&rows, name, want, text);
    }

    fn asking(fake: &FakeHost, name: &str, path: PathBuf) -> Settings {
        std::fs::create_dir_all(fake.at("root")).unwrap();
        let limit = Duration::from_millis(1500);
        Settings { runtimes: vec![(name.into(), path)], limit, ..fake.settings() }
    }

    #[test]
    fn a_host_without_runtimes_fails() {
        let fake = FakeHost::good();
        check(
            &fake.paths,
            &fake.settings(),
            "default",
            Verdict::Fail,
            "no OCI runtime is installed",
        );
    }

    #[test]
    fn a_misbehaving_runtime_fails() {
        let cases = [
            ("absent", "is not an executable file"),
            ("hangs", "`--version` did not end within"),
            ("refuses", "`create` failed: refused on purpose"),
            ("lies", "the container said \"\""),
            ("hangs-in-create", "`create` did not end within"),
        ];
        parallel(cases.into_iter().map(|(program, text)| {
            move || {
                let fake = FakeHost::good();
                let settings = asking(&fake, "mine", misbehaving(program));
                check(&real_host(), &settings, "mine", Verdict::Fail, text);
                assert_eq!(std::fs::read_dir(fake.at("root")).unwrap().count(), 0, "{program}");
            }
        }));
    }

    #[test]
    fn the_default_fails_with_the_first_configured_runtime() {
        let fake = FakeHost::good();
        let mut settings = asking(&fake, "mine", misbehaving("refuses"));
        settings.runtimes.push(("other".into(), "runc".into()));
        check(&real_host(), &settings, "default", Verdict::Fail, "no container runs with mine");
    }

    #[test]
    fn a_broken_spare_only_warns() {
        let fake = FakeHost::good();
        let found = Hierarchies::find(&fake.paths);
        let list = [runtime("crun", false), runtime("runc", true)];
        let rows = || rows(&fake.settings(), &found, &list);
        expect(&rows(), "crun", Verdict::Warn, "on purpose");
        expect(&rows(), "runc", Verdict::Ok, "ran a container in 7ms");
        expect(&rows(), "default", Verdict::Ok, "crun would be faster");
    }

    #[test]
    fn crun_on_a_hybrid_host_is_explained_both_ways() {
        if !is_root("crun_on_a_hybrid_host_is_explained_both_ways") {
            return;
        }
        let fake = FakeHost::good();
        fake.mounts(&[
            "/sys/fs/cgroup/cpu cgroup rw rw,cpu",
            "/sys/fs/cgroup/unified cgroup2 rw rw",
        ]);
        fake.write("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb");
        let found = Hierarchies::find(&fake.paths);
        let rows =
            || rows(&fake.settings(), &found, &[runtime("crun", false), runtime("runc", true)]);
        expect(&rows(), "crun", Verdict::Warn, "v2 side has controllers (hugetlb)");
        expect(&rows(), "crun", Verdict::Warn, "use runc; or");
        expect(&rows(), "crun", Verdict::Warn, "mount -t cgroup -o hugetlb none");
    }

    #[test]
    fn json_says_works_or_broken() {
        let json = serde_json::to_value([runtime("a", true), runtime("b", false)]).unwrap();
        assert_eq!(json[0]["works"]["ran_ms"], 7.0);
        assert_eq!(json[1]["works"]["broken"], "`create` failed: on purpose");
    }
}
