use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

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
