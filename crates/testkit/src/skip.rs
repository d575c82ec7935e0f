//! Tests that cannot run here say so loudly, and are counted.

use std::{fs::OpenOptions, io::Write};

/// Says why a test did not run. `cargo xtask test` collects these lines.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED: {test}: {why}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("LONGSHORE_SKIP_LOG") {
        let opened = OpenOptions::new().create(true).append(true).open(log);
        opened
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("append to the skip log");
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
