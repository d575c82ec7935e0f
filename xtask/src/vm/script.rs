//! The script that the machine runs, and what it says about itself.
//!
//! Lines of its own begin with [`MARK`]; all others come from the tests. Each run is announced
//! and its exit code told, so that one that never came to its end is missed.

use std::{fmt::Write as _, path::PathBuf};

use super::payload::Programs;

pub(crate) const MARK: &str = "vm: ";
/// What tests must reckon with where processors are emulated.
const SLOWNESS: u32 = 5;
/// Of one test program.
const LIMIT_SECONDS: u32 = 2400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) env: Vec<(String, String)>,
    /// A program that is not there meanwhile.
    pub(crate) without: Option<PathBuf>,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
}

/// What a line of the machine means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    Begun(&'a str),
    Ended {
        name: &'a str,
        code: i32,
    },
    Skipped(&'a str),
    Finished,
    /// Of a test.
    Other,
}

impl<'a> Said<'a> {
    pub(crate) fn read(line: &'a str) -> Self {
        let Some(own) = line.strip_prefix(MARK) else { return Self::Other };
        match own.split_once(' ') {
            Some(("run", name)) => Self::Begun(name),
            Some(("end", rest)) => match rest.split_once(' ') {
                Some((code, name)) => {
                    code.parse().map_or(Self::Other, |code| Self::Ended { name, code })
                }
                None => Self::Other,
            },
            Some(("skip", line)) => Self::Skipped(line),
            _ if own == "finished" => Self::Finished,
            _ => Self::Other,
        }
    }
}

pub(crate) fn write(runs: &[Run], programs: &Programs) -> String {
    let mut script = format!(
        "#!/bin/sh\n# Paths are as outside.\nexport LONGSHORE_TOOLS={}\n\
         export LONGSHORE_SKIP_LOG=/run/skipped\nexport RUST_BACKTRACE=1\n\
         export LONGSHORE_TEST_SLOWNESS={SLOWNESS}\n",
        quote(&programs.tools.display().to_string())
    );
    for run in runs {
        let name = quote(&run.name);
        let env = run.env.iter().map(|(key, value)| format!("{key}={} ", quote(value)));
        let args = run.args.iter().map(|arg| format!(" {}", quote(arg)));
        let program = quote(&run.program.display().to_string());
        let (env, args) = (env.collect::<String>(), args.collect::<String>());
        let without = run.without.as_ref().map(|path| quote(&path.display().to_string()));
        let (hide, show) = match without {
            Some(path) => {
                (format!("mv {path} {path}.hidden\n"), format!("mv {path}.hidden {path}\n"))
            }
            None => (String::new(), String::new()),
        };
        let _ = write!(
            script,
            ": > $LONGSHORE_SKIP_LOG\necho '{MARK}run' {name}\n{hide}\
             {env}timeout --kill-after=30 {LIMIT_SECONDS} {program}{args} </dev/null\n\
             code=$?\n{show}sed 's/^/{MARK}skip /' $LONGSHORE_SKIP_LOG\necho '{MARK}end' $code {name}\n"
        );
    }
    script + &format!("echo '{MARK}finished'\n")
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[track_caller]
    fn check(line: &str, want: Said<'_>) {
        assert_eq!(Said::read(line), want, "{line:?}");
    }

    #[test]
    fn lines_of_the_machine_are_told_from_those_of_tests() {
        check("vm: run longshore/spec systemd runc", Said::Begun("longshore/spec systemd runc"));
        check("vm: end 101 a b c", Said::Ended { name: "a b c", code: 101 });
        check("vm: skip SKIPPED: x: no Go", Said::Skipped("SKIPPED: x: no Go"));
        check("vm: finished", Said::Finished);
        check("vm: end x y", Said::Other);
        check("test result: ok. 1 passed", Said::Other);
    }

    #[test]
    fn the_script_runs_and_tells_codes_and_skips() {
        let dir = std::env::temp_dir().join(format!("xtask-script-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let sh = |name: &str, script: &str| Run {
            name: name.to_owned(),
            env: vec![("WORD".to_owned(), "it's".to_owned())],
            without: (name == "bad").then(|| dir.join("other")),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
        };
        let runs = [
            sh("good", "echo \"$WORD\""),
            sh("bad", "echo no >> $LONGSHORE_SKIP_LOG; ls other*; exit 3"),
        ];
        std::fs::write(dir.join("other"), "").unwrap();
        let programs = Programs::default();
        let log = dir.join("skipped");
        let script = write(&runs, &programs).replace("/run/skipped", log.to_str().unwrap());
        let output = Command::new("sh").args(["-c", &script]).current_dir(&dir).output().unwrap();
        assert!(dir.join("other").exists(), "it is back");
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "vm: run good\nit's\nvm: end 0 good\nvm: run bad\nother.hidden\nvm: skip no\nvm: end 3 bad\nvm: finished\n"
        );
    }
}
