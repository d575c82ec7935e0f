//! What to run inside: which tests, on which cgroup driver and OCI runtime.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use super::{payload::Programs, script::Run};

pub(crate) const USAGE: &str = "\
usage: make test-vm ARGS=\"…\"

  --lsm NAME        apparmor or selinux; without --test or --critest, both
  --driver NAME     systemd or cgroupfs; both unless given
  --runtime NAME    runc or crun; both unless given
  --test NAME       a test target of longshore, or PACKAGE/TARGET; may be repeated
  --critest REGEX   specs of critest; without --test, nothing else
  --threads N       tests at the same time
  -- FILTER…        only tests with such a name, and flags of the test programs";

const DRIVERS: [&str; 2] = ["systemd", "cgroupfs"];
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// On every driver with every runtime.
const EVERYWHERE: [&str; 1] = ["crictl"];
/// On every driver and with every runtime, but not each with each: what depends on both is in
/// the walk, and an emulated machine takes its time.
const PAIRED: [&str; 4] = ["pods", "spec", "stats", "engine/crash"];
/// These look at the kernel, or at what neither driver nor runtime changes.
const ONCE: [&str; 4] = ["sys/root", "shim/pod", "network", "checkpoint"];
/// On the machine with SELinux, which differs from the other by that alone.
const LABELS: (&str, &str) = ("spec", "confined");
/// What critest skips on machines without AppArmor.
const CRITEST: &str = "AppArmor";

/// The security module of the kernel: a machine has one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lsm {
    AppArmor,
    Selinux,
}

impl Lsm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AppArmor => "apparmor",
            Self::Selinux => "selinux",
        }
    }
}

/// What one machine is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) lsm: Lsm,
    drivers: Vec<String>,
    runtimes: Vec<String>,
    /// Targets for every combination, for some that have every driver and runtime, and for the
    /// first one alone.
    everywhere: Vec<Target>,
    paired: Vec<Target>,
    once: Vec<Target>,
    critest: Option<String>,
    threads: u32,
    /// For the test programs.
    rest: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) package: String,
    pub(crate) name: String,
}

impl Target {
    fn parse(text: &str) -> Self {
        let (package, name) = text.split_once('/').unwrap_or(("longshore", text));
        Self { package: package.to_owned(), name: name.to_owned() }
    }
}

impl Chosen {
    /// One for each machine.
    pub(crate) fn parse(args: &[&str]) -> Result<Vec<Self>> {
        let mut lsm = None;
        let (mut drivers, mut runtimes, mut tests) = (Vec::new(), Vec::new(), Vec::new());
        let (mut critest, mut threads, mut rest) = (None, 2, Vec::new());
        let mut args = args.iter().copied();
        while let Some(flag) = args.next() {
            if flag == "--" {
                rest = args.map(str::to_owned).collect();
                break;
            }
            let mut value = || args.next().with_context(|| format!("{flag} needs a value"));
            match flag {
                "--lsm" => lsm = Some(one_of(flag, value()?, &["apparmor", "selinux"])?),
                "--driver" => drivers.push(one_of(flag, value()?, &DRIVERS)?),
                "--runtime" => runtimes.push(one_of(flag, value()?, &RUNTIMES)?),
                "--test" => tests.push(Target::parse(value()?)),
                "--critest" => critest = Some(value()?.to_owned()),
                "--threads" => threads = value()?.parse().context("--threads")?,
                _ => bail!("unknown flag {flag:?}\n\n{USAGE}"),
            }
        }
        let all = |list: &[&str]| list.iter().map(|text| Target::parse(text)).collect();
        let nothing_named = tests.is_empty() && critest.is_none();
        let chosen = Self {
            lsm: if lsm.as_deref() == Some("selinux") { Lsm::Selinux } else { Lsm::AppArmor },
            drivers: or_all(drivers, &DRIVERS),
            runtimes: or_all(runtimes, &RUNTIMES),
            everywhere: if nothing_named { all(&EVERYWHERE) } else { tests },
            paired: if nothing_named { all(&PAIRED) } else { Vec::new() },
            once: if nothing_named { all(&ONCE) } else { Vec::new() },
            critest: if nothing_named { Some(CRITEST.to_owned()) } else { critest },
            threads,
            rest,
        };
        let labels = chosen.labels();
        Ok(match (nothing_named, lsm.is_some()) {
            (true, false) => vec![chosen, labels],
            (true, true) if chosen.lsm == Lsm::Selinux => vec![labels],
            _ => vec![chosen],
        })
    }

    fn labels(&self) -> Self {
        Self {
            lsm: Lsm::Selinux,
            everywhere: vec![Target::parse(LABELS.0)],
            paired: Vec::new(),
            once: Vec::new(),
            critest: None,
            rest: [vec![LABELS.1.to_owned()], self.rest.clone()].concat(),
            ..self.clone()
        }
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.everywhere.iter().chain(&self.paired).chain(&self.once)
    }

    /// In the order in which they run.
    pub(crate) fn runs(&self, programs: &Programs) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for target in &self.once {
            runs.push(self.tests(programs, target, &self.drivers[0], &self.runtimes[0])?);
        }
        for (row, driver) in self.drivers.iter().enumerate() {
            for (column, runtime) in self.runtimes.iter().enumerate() {
                let paired = if row == column { &self.paired[..] } else { &[] };
                for target in self.everywhere.iter().chain(paired) {
                    runs.push(self.tests(programs, target, driver, runtime)?);
                }
                if let Some(focus) = &self.critest {
                    runs.push(self.critest(programs, focus, driver, runtime));
                }
            }
        }
        ensure!(!runs.is_empty(), "nothing is chosen");
        Ok(runs)
    }

    fn tests(
        &self,
        programs: &Programs,
        target: &Target,
        driver: &str,
        runtime: &str,
    ) -> Result<Run> {
        let Target { package, name } = target;
        let program = programs.tests.get(target);
        let program = program.with_context(|| format!("there is no test {package}/{name}"))?;
        let threads = format!("--test-threads={}", self.threads);
        let args = std::iter::once(threads).chain(self.rest.iter().cloned());
        Ok(Run {
            name: format!("{package}/{name} {} {driver} {runtime}", self.lsm.name()),
            env: on(driver, runtime),
            without: hidden(runtime),
            program: program.clone(),
            args: args.collect(),
        })
    }

    fn critest(&self, programs: &Programs, focus: &str, driver: &str, runtime: &str) -> Run {
        let flags = ["--longshore", &programs.daemon.display().to_string(), "--handler"];
        let mut args: Vec<String> = flags.map(str::to_owned).to_vec();
        args.extend([format!("{runtime}={runtime}"), "--focus".to_owned(), focus.to_owned()]);
        args.extend(["--strict".to_owned(), "--expected".to_owned()]);
        let list = programs.expected.join(format!("{runtime}.txt"));
        args.push(list.display().to_string());
        Run {
            name: format!("critest {} {driver} {runtime}", self.lsm.name()),
            env: on(driver, runtime),
            without: hidden(runtime),
            program: programs.conformance.clone(),
            args,
        }
    }
}

/// The daemon takes the driver from the environment, through whichever test starts it; its handler
/// is the first that it finds. Tests without a daemon are told which that would be.
fn on(driver: &str, runtime: &str) -> Vec<(String, String)> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    vec![pair("LONGSHORE_CGROUP_DRIVER", driver), pair("LONGSHORE_TEST_RUNTIME", runtime)]
}

/// What a daemon would take before `runtime`, were it there.
fn hidden(runtime: &str) -> Option<PathBuf> {
    (runtime == "runc").then(|| "/usr/bin/crun".into())
}

fn one_of(flag: &str, value: &str, known: &[&str]) -> Result<String> {
    ensure!(known.contains(&value), "{flag}: {value:?} is none of {}", known.join(", "));
    Ok(value.to_owned())
}

fn or_all(given: Vec<String>, all: &[&str]) -> Vec<String> {
    if given.is_empty() { all.iter().map(|&one| one.to_owned()).collect() } else { given }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn programs(targets: &[&str]) -> Programs {
        let tests = targets.iter().map(|text| (Target::parse(text), format!("/t/{text}").into()));
        Programs {
            tests: tests.collect::<BTreeMap<_, _>>(),
            daemon: "/t/longshore".into(),
            conformance: "/t/conformance".into(),
            others: Vec::new(),
            tools: "/t/tools".into(),
            expected: "/t/expected".into(),
            places: Vec::new(),
        }
    }

    #[track_caller]
    fn check(args: &[&str], want: &[&str]) {
        let all: Vec<_> = EVERYWHERE.iter().chain(&PAIRED).chain(&ONCE).copied().collect();
        let programs = programs(&all);
        let machines = Chosen::parse(args).unwrap();
        let runs = machines.iter().flat_map(|chosen| chosen.runs(&programs).unwrap());
        assert_eq!(runs.map(|run| run.name).collect::<Vec<_>>(), want, "{args:?}");
    }

    #[test]
    fn every_driver_meets_every_runtime() {
        check(
            &["--test", "spec"],
            &[
                "longshore/spec apparmor systemd runc",
                "longshore/spec apparmor systemd crun",
                "longshore/spec apparmor cgroupfs runc",
                "longshore/spec apparmor cgroupfs crun",
            ],
        );
        let both = ["--driver", "cgroupfs", "--runtime", "crun"];
        check(&[&both[..], &["--critest", "x"]].concat(), &["critest apparmor cgroupfs crun"]);
        let narrow = [&both[..], &["--test", "shim/pod", "--critest", "x"]].concat();
        check(&narrow, &["shim/pod apparmor cgroupfs crun", "critest apparmor cgroupfs crun"]);
    }

    #[test]
    fn without_a_choice_all_of_the_lists_run() {
        let machines = Chosen::parse(&[]).unwrap();
        let [chosen, labels] = &machines[..] else { panic!("two machines: {machines:?}") };
        assert_eq!(chosen.targets().count(), EVERYWHERE.len() + PAIRED.len() + ONCE.len());
        let all: Vec<_> = EVERYWHERE.iter().chain(&PAIRED).chain(&ONCE).copied().collect();
        let runs = chosen.runs(&programs(&all)).unwrap();
        assert_eq!(runs.len(), ONCE.len() + 4 * (EVERYWHERE.len() + 1) + 2 * PAIRED.len());
        let spec: Vec<_> = runs.iter().filter(|run| run.name.contains("/spec")).collect();
        assert_eq!(spec.len(), 2);
        assert!(spec[0].name.ends_with("systemd runc") && spec[1].name.ends_with("cgroupfs crun"));
        let runs = labels.runs(&programs(&all)).unwrap();
        assert_eq!((labels.lsm, runs.len()), (Lsm::Selinux, 4));
        assert_eq!(runs[0].args, ["--test-threads=2", "confined"]);
        assert_eq!(Chosen::parse(&["--lsm", "selinux"]).unwrap(), std::slice::from_ref(labels));
        assert_eq!(Chosen::parse(&["--lsm", "apparmor"]).unwrap(), std::slice::from_ref(chosen));
    }

    #[test]
    fn a_run_says_driver_runtime_and_filter() {
        let chosen = Chosen::parse(&["--test", "pods", "--threads", "3", "--", "oom", "--exact"]);
        let run = chosen.unwrap()[0].runs(&programs(&["pods"])).unwrap().remove(1);
        assert_eq!(run.args, ["--test-threads=3", "oom", "--exact"]);
        assert_eq!(run.env, on("systemd", "crun"));
        assert_eq!(run.without, None);
        assert_eq!(run.program.to_str(), Some("/t/pods"));
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |args: &[&str]| Chosen::parse(args).unwrap_err().to_string();
        assert!(refused(&["--driver", "openrc"]).contains("none of systemd, cgroupfs"));
        assert!(refused(&["--test"]).contains("--test needs a value"));
        assert!(refused(&["spec"]).contains("usage: make test-vm"));
        let unknown = Chosen::parse(&["--test", "nothing"]).unwrap()[0].runs(&programs(&[]));
        assert!(unknown.unwrap_err().to_string().contains("no test longshore/nothing"));
    }
}
