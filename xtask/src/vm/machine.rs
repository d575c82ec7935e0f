//! Running the machine and judging what it says.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::RecvTimeoutError,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use super::{chosen::Lsm, image::Image, script::Said};
use crate::{output::lines, stages::Stopwatch, tally::Tally};

/// Without a word for so long, it hangs. The slowest tests take minutes here.
const SILENCE: Duration = Duration::from_secs(1200);

#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) image: &'a Image,
    pub(crate) payload: &'a Path,
    pub(crate) lsm: Lsm,
}

/// No KVM: where it does not work it hangs, and where it does the machine would be another one.
fn qemu(machine: &Machine<'_>, console: &Path) -> Command {
    let Machine { image, payload, lsm } = machine;
    // A machine nobody listens to has no reason to go on.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(["-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max"]);
    command.args(["-smp", "2", "-m", "3072", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
    // Debian's policy is not made to be enforced on everything that runs here.
    let security = match lsm {
        Lsm::AppArmor => "apparmor=1 security=apparmor",
        Lsm::Selinux => "selinux=1 security=selinux enforcing=0",
    };
    // Nobody attacks it: what protects against that only costs time, as does a fifth level of
    // page tables.
    let kernel = "root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off no5lvl";
    let kernel = format!("{kernel} {security}");
    command.args(["-append", &kernel]);
    let drive = |path: &Path, more: &str| {
        format!("file={},if=virtio,format=raw,cache=unsafe,{more}", path.display())
    };
    command.args(["-drive", &drive(&image.disk, "snapshot=on")]);
    command.args(["-drive", &drive(payload, "readonly=on")]);
    command.args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio"]);
    command.stdin(Stdio::null());
    command
}

/// What came of `runs`, counted; fails only if the machine did.
pub(crate) fn run(machine: &Machine<'_>, runs: &[String], console: &Path) -> Result<Tally> {
    let lsm = machine.lsm.name();
    println!("test-vm: starting the machine with {lsm}; its console is {}", console.display());
    let clock = Stopwatch::start();
    let mut command = qemu(machine, console);
    let mut child = command.stdout(Stdio::piped()).spawn().context("run qemu-system-x86_64")?;
    let mut outcome = Outcome::default();
    let heard = listen(&mut child, SILENCE, |line| {
        if outcome.hear(line) {
            println!("{line}");
        }
    });
    if heard.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().context("wait for qemu")?;
    heard?;
    ensure!(status.success(), "qemu: {status}");
    print!("\n{}", outcome.table(runs));
    println!("{:<48} {:>7.1} s", "total", clock.elapsed().as_secs_f64());
    Ok(outcome.count(runs))
}

fn listen(child: &mut Child, silence: Duration, mut each: impl FnMut(&str)) -> Result<()> {
    let stdout = child.stdout.take().context("the output of qemu is not a pipe")?;
    let lines = lines(stdout);
    loop {
        match lines.recv_timeout(silence) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => bail!("the machine said nothing for {silence:?}"),
        }
    }
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Outcome {
    rows: Vec<Row>,
    now: Tally,
    finished: bool,
    skips: Vec<String>,
}

#[derive(Debug)]
struct Row {
    name: String,
    code: i32,
    tally: Tally,
}

impl Outcome {
    /// Whether people want to see the line.
    fn hear(&mut self, line: &str) -> bool {
        match Said::read(line) {
            Said::Begun(_) => self.now = Tally::default(),
            Said::Ended { name, code } => {
                let tally = std::mem::take(&mut self.now);
                self.rows.push(Row { name: name.to_owned(), code, tally });
            }
            Said::Skipped(skip) => {
                self.now.skip(1);
                self.skips.push(skip.to_owned());
                return false;
            }
            Said::Finished => self.finished = true,
            Said::Other => self.now.read(line),
        }
        true
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn table(&self, runs: &[String]) -> String {
        let mut skips = self.skips.clone();
        skips.sort();
        skips.dedup();
        let skips = skips.into_iter().map(|skip| format!("{skip}\n"));
        let rows = runs.iter().map(|name| match self.row(name) {
            None => format!("{name:<48} RED: did not come to an end\n"),
            Some(row) if row.is_good() => format!("{name:<48} {}\n", row.tally),
            Some(row) => format!("{name:<48} {} RED: exit code {}\n", row.tally, row.code),
        });
        skips.chain(rows).collect()
    }

    /// A run without an end, and one that failed without a failed test, count as one failure.
    fn count(&self, runs: &[String]) -> Tally {
        let mut sum = Tally::default();
        for name in runs {
            let tally = match self.row(name) {
                Some(row) if row.is_good() => row.tally,
                Some(row) => Tally { failed: row.tally.failed.max(1), ..row.tally },
                None => Tally { failed: 1, ..Tally::default() },
            };
            sum += tally;
        }
        sum.failed += u64::from(!self.finished && sum.failed == 0);
        sum
    }
}

impl Row {
    fn is_good(&self) -> bool {
        self.code == 0 && self.tally.failed == 0
    }
}

// === commands ===

/// What it prints is shown only if it fails.
pub(crate) fn run_quietly(mut command: Command) -> Result<()> {
    let program = PathBuf::from(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {program}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let tail: Vec<_> = said.lines().rev().take(20).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    ensure!(output.status.success(), "{program}: {}\n{tail}", output.status);
    Ok(())
}

pub(crate) fn show(doing: &str, path: &Path) -> impl FnOnce() -> String {
    let shown = format!("{doing} {}", path.display());
    move || shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(runs: &[&str]) -> Vec<String> {
        runs.iter().map(|&run| run.to_owned()).collect()
    }

    fn heard(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for line in text.lines() {
            outcome.hear(line);
        }
        outcome
    }

    const GOOD: &str = "vm: run a\ntest result: ok. 3 passed; 0 failed; 0 ignored\n\
                        vm: skip SKIPPED: x: no Go\nvm: end 0 a\n";

    #[test]
    fn a_skipped_test_is_counted_as_one() {
        let outcome = heard(&format!("{GOOD}vm: finished\n"));
        assert_eq!(outcome.count(&names(&["a"])).to_string(), "2 passed, 0 failed, 1 skipped");
        assert!(outcome.table(&names(&["a"])).starts_with("SKIPPED: x: no Go\na "));
    }

    #[test]
    fn what_did_not_end_well_is_red() {
        let count = |text: &str, runs: &[&str]| heard(text).count(&names(runs)).failed;
        assert_eq!(count(GOOD, &["a"]), 1, "no last line");
        assert_eq!(count(&format!("{GOOD}vm: run b\n"), &["a", "b"]), 1, "b had no end");
        let killed = format!("{GOOD}vm: run b\nvm: end 124 b\nvm: finished\n");
        assert_eq!(count(&killed, &["a", "b"]), 1, "b took too long");
        let failed = "vm: run b\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n\
                      vm: end 101 b\nvm: finished\n";
        assert_eq!(count(failed, &["b"]), 2);
        assert!(heard(failed).table(&names(&["b"])).contains("RED: exit code 101"));
    }

    #[test]
    fn silence_is_an_error() {
        let mut sh = Command::new("sh");
        sh.args(["-c", "echo word; exec sleep 60"]).stdout(Stdio::piped());
        let mut child = sh.spawn().unwrap();
        let mut heard = Vec::new();
        let end =
            listen(&mut child, Duration::from_millis(300), |line| heard.push(line.to_owned()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(heard, ["word"]);
        assert!(end.unwrap_err().to_string().contains("said nothing"));
    }
}
