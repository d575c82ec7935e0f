use std::{fs, os::fd::AsRawFd, time::Duration};

use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::fake;

struct Fixture {
    dir: TempDir,
    host: Host,
}

impl Fixture {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fake::program(dir.path(), "fake", script);
        let host = Host {
            bin_dirs: vec!["/nowhere".into(), dir.path().into()],
            path: "/usr/bin:/bin".into(),
            namespace: own_namespace().unwrap(),
            limit: Duration::from_secs(20),
            max_output: 1 << 20,
        };
        Self { dir, host }
    }

    fn limit(mut self, millis: u64) -> Self {
        self.host.limit = Duration::from_millis(millis);
        self
    }

    fn call(&self) -> Call<'_> {
        let dir = self.dir.path().as_os_str().to_owned();
        Call { program: "fake", verb: Verb::Add, env: vec![("DIR", dir)], stdin: b"{}".to_vec() }
    }

    async fn run(&self) -> Result<Vec<u8>, ProgramError> {
        run(&self.host, self.call(), Duration::MAX, &CancellationToken::new()).await
    }

    async fn says(&self) -> String {
        match self.run().await {
            Ok(stdout) => String::from_utf8(stdout).unwrap(),
            Err(error) => base::Chain(&error).to_string(),
        }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }
}

#[track_caller]
fn check(got: &str, want: &str) {
    assert_eq!(got, want);
}

#[tokio::test]
async fn input_goes_in_and_output_comes_out() {
    check(&Fixture::new("cat").says().await, "{}");
    // One that does not read.
    let mut fixture = Fixture::new("echo yes");
    fixture.host.max_output = 4;
    let call = Call { stdin: vec![b' '; 1 << 20], ..fixture.call() };
    let stop = CancellationToken::new();
    let out = run(&fixture.host, call, Duration::MAX, &stop).await.unwrap();
    assert_eq!(out, b"yes\n");
}

#[tokio::test]
async fn the_environment_is_ours_alone() {
    let fixture = Fixture::new("env | sort; pwd");
    let dir = fixture.dir.path().display();
    let want = format!(
        "CNI_COMMAND=ADD\nCNI_PATH=/nowhere:{dir}\nDIR={dir}\nPATH=/usr/bin:/bin\nPWD=/\n/\n"
    );
    check(&fixture.says().await, &want);
}

#[tokio::test]
async fn no_descriptor_is_inherited() {
    let file = fs::File::open("/dev/null").unwrap();
    // As if the daemon had been started with it.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    // Beside the pipes the shell shows the script, which it opened itself.
    let fixture = Fixture::new("for fd in /proc/$$/fd/*; do readlink $fd; done; true");
    let seen = fixture.says().await;
    assert!(!seen.contains("/dev/null"), "{} leaked: {seen}", file.as_raw_fd());
    assert_eq!(seen.lines().filter(|line| line.starts_with("pipe:")).count(), 3, "{seen}");
}

#[tokio::test]
async fn complaints_are_read() {
    let says = async |script: &str| Fixture::new(script).says().await;
    check(
        &says(r#"echo '{"cniVersion":"1.0.0","code":7,"msg":"bad","details":"very"}'; exit 1"#)
            .await,
        "bad; very (code 7)",
    );
    check(&says(r#"echo '{"code":11,"msg":"later"}'; exit 1"#).await, "later (code 11)");
    check(&says("echo oops >&2; exit 1").await, "it ended with exit status: 1: oops");
    check(&says("echo 'not json'; exit 2").await, "it ended with exit status: 2: not json");
    check(&says("kill -9 $$").await, "it ended with signal: 9 (SIGKILL): ");
}

#[tokio::test]
async fn a_missing_program_is_named_by_its_directories() {
    let mut fixture = Fixture::new("true");
    fixture.host.bin_dirs = vec!["/nowhere".into(), "/nothing".into()];
    check(&fixture.says().await, "there is no such program in /nowhere, /nothing");
    // A directory is no program.
    fixture.host.bin_dirs = vec!["/".into()];
    let call = Call { program: "usr", ..fixture.call() };
    let missing = run(&fixture.host, call, Duration::MAX, &CancellationToken::new()).await;
    assert!(matches!(missing, Err(ProgramError::Missing { .. })));
}

#[tokio::test]
async fn what_hangs_is_killed_with_its_children() {
    let fixture = Fixture::new(
        "echo why >&2; sleep 300 & echo $! > $DIR/child; echo $$ > $DIR/leader; sleep 300",
    )
    .limit(500);
    let begun = Instant::now();
    let error = fixture.run().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert!(matches!(&error, ProgramError::Timeout { stderr, .. } if stderr == "why"), "{error:?}");
    assert_eq!(error.kind(), base::Kind::Deadline);
    assert!(error.to_string().ends_with("was killed; it had said: why"), "{error}");
    assert!(!fake::is_running(&fixture.file("leader")));
    fake::wait_until_gone(&fixture.file("child"));
}

#[tokio::test]
async fn stopping_kills() {
    let fixture = Fixture::new("echo $$ > $DIR/leader; sleep 300");
    let stop = CancellationToken::new();
    let running = run(&fixture.host, fixture.call(), Duration::MAX, &stop);
    let stopping = async {
        while fs::read_to_string(fixture.dir.path().join("leader")).unwrap_or_default().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(running, stopping);
    assert!(matches!(ended, Err(ProgramError::Stopped)));
    assert!(!fake::is_running(&fixture.file("leader")));
}

#[tokio::test]
async fn output_is_bounded_and_stderr_is_not_a_trap() {
    let mut fixture =
        Fixture::new("echo $$ > $DIR/leader; trap '' PIPE; while :; do echo 0123456789; done");
    fixture.host.max_output = 1000;
    check(&fixture.says().await, "it printed more than 1000 bytes and was killed");
    assert!(!fake::is_running(&fixture.file("leader")));
    // Far more than a pipe holds.
    let noisy = Fixture::new("head -c 1000000 /dev/zero >&2; echo done");
    check(&noisy.says().await, "done\n");
}

#[tokio::test]
async fn a_child_that_holds_the_pipes_holds_up_nobody() {
    let fixture = Fixture::new("sleep 300 & echo $! > $DIR/child; echo '{}'");
    let begun = Instant::now();
    check(&fixture.says().await, "{}\n");
    assert!(begun.elapsed() < Duration::from_secs(15));
    let pid = fixture.file("child").trim().parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_wrong_namespace_is_refused() {
    let mut fixture = Fixture::new("echo ran");
    fixture.host.namespace = (0, 0);
    check(&fixture.says().await, "this thread is in another network namespace than the daemon");
}

#[test]
fn excerpts_keep_the_end() {
    let long = format!("{}end", "ä".repeat(3000));
    let short = excerpt(long.as_bytes());
    assert!(short.starts_with("… ä") && short.ends_with("end") && short.len() < 2100);
    assert_eq!(excerpt(b" x\xff \n"), "x\u{fffd}");
}
