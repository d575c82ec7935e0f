use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// A program made of text. Another process writes it: a file that this one has open for writing
/// cannot be run as long as a child, forked by a test beside, holds it too.
pub fn program(path: &Path, text: &str) {
    let mut writer = Command::new("/bin/sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut pipe = writer.stdin.take().expect("its input");
    pipe.write_all(text.as_bytes()).expect("a shell that listens");
    drop(pipe);
    let status = writer.wait().expect("the end of the shell");
    assert!(status.success(), "write {}: {status}", path.display());
}

/// The bytes of a static program, compiled from C. Needs `cc`.
pub fn compiled(source: &str) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("program");
    let mut cc = Command::new("cc")
        .args(["-Os", "-static", "-s", "-x", "c", "-o"])
        .arg(&out)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .context("run cc")?;
    cc.stdin.take().context("its input")?.write_all(source.as_bytes())?;
    ensure!(cc.wait()?.success(), "cc refused the source");
    Ok(fs::read(out)?)
}
