//! The Go runtime, driven over its standard input.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use prost::Message;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::OnceCell,
};

pub(crate) struct GoRuntime {
    dir: TempDir,
    process: Option<Process>,
}

/// Ends with its standard input.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Builds the Go program once; `None` where there is no Go.
async fn program() -> Option<&'static Path> {
    static PROGRAM: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    PROGRAM.get_or_init(build).await.as_deref()
}

async fn build() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nri-go-runtime");
    let built = Command::new("go")
        .current_dir(root.join("tests/interop/nri-go-runtime"))
        // Plugins in WebAssembly are five megabytes of interpreter that nothing here uses.
        .args(["build", "-mod=mod", "-tags=nri_no_wasm", "-o"])
        .args([program.as_os_str(), ".".as_ref()])
        .status()
        .await
        .ok()?;
    assert!(built.success(), "go build: {built}");
    Some(program)
}

impl GoRuntime {
    /// Not started yet, so that plugins and a world can be put in place; `None`, said
    /// loudly, where there is no Go.
    pub(crate) async fn spawn(test: &str) -> Option<Self> {
        let Some(program) = program().await else {
            testkit::skip(&format!("NRI interop with Go: {test}"), "there is no go");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("plugins")).unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        let process = Some(Process::spawn(program, dir.path()));
        Some(Self { dir, process })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("run/nri.sock")
    }

    /// Where plugins go that the runtime is to start, and their configuration.
    pub(crate) fn plugins(&self) -> (PathBuf, PathBuf) {
        (self.dir.path().join("plugins"), self.dir.path().join("conf.d"))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A command with an empty answer, which must succeed.
    pub(crate) async fn tell(&mut self, command: &str, message: &impl Message) {
        let answer = self.send(command, &message.encode_to_vec()).await;
        answer.unwrap_or_else(|error| panic!("{command}: {error}"));
    }

    pub(crate) async fn ask<Q: Message, A: Message + Default>(
        &mut self,
        command: &str,
        message: &Q,
    ) -> Result<A, String> {
        let answer = self.send(command, &message.encode_to_vec()).await?;
        Ok(A::decode(answer.as_slice()).unwrap())
    }

    /// The answer, or the text of the error.
    pub(crate) async fn send(&mut self, command: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
        let process = self.process.as_mut().unwrap();
        let line = format!("{command} {}\n", BASE64_STANDARD.encode(payload));
        process.input.write_all(line.as_bytes()).await.unwrap();
        let mut answer = String::new();
        process.output.read_line(&mut answer).await.unwrap();
        match answer.trim_end().split_once(' ') {
            Some(("ok", encoded)) => Ok(BASE64_STANDARD.decode(encoded).unwrap()),
            Some((_, error)) => Err(error.to_owned()),
            None if answer.trim_end() == "ok" => Ok(Vec::new()),
            None => panic!("{command}: the runtime is gone: {}", self.log()),
        }
    }

    /// Kills the runtime, as a crash would, and begins another.
    pub(crate) async fn restart(&mut self) {
        let mut old = self.process.take().unwrap();
        old.child.kill().await.unwrap();
        self.process = Some(Process::spawn(program().await.unwrap(), self.dir.path()));
    }

    pub(crate) async fn end(mut self) {
        let Process { mut child, input, .. } = self.process.take().unwrap();
        drop(input);
        assert!(child.wait().await.unwrap().success());
    }
}

impl Process {
    fn spawn(program: &Path, dir: &Path) -> Self {
        let mut child = Command::new(program)
            .args([dir.join("run/nri.sock"), dir.join("plugins"), dir.join("conf.d")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It logs every step.
            .stderr(fs::File::create(dir.join("log")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::with_capacity(1 << 20, output) }
    }
}
