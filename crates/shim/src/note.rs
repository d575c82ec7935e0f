//! What the shim has to say itself. It goes to standard error, which is `shim.log` in the
//! pod's directory: nobody may be connected.

use std::{
    fmt,
    io::Write,
    sync::atomic::{AtomicU8, Ordering},
    time::SystemTime,
};

use api_shim::start::LogLevel;
use shim_io::Stamp;

/// The one setting of the whole process; written once, before there are threads.
static LEVEL: AtomicU8 = AtomicU8::new(1);

pub(crate) fn set_level(level: LogLevel) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

pub(crate) fn warn(text: impl fmt::Display) {
    write(LogLevel::Warn, &text);
}

pub(crate) fn debug(text: impl fmt::Display) {
    write(LogLevel::Debug, &text);
}

fn write(level: LogLevel, text: &dyn fmt::Display) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let name = match level {
        LogLevel::Error => "ERROR",
        LogLevel::Warn => "WARN",
        LogLevel::Debug => "DEBUG",
    };
    let stamp = Stamp::new(SystemTime::now());
    // A full disk is no reason to stop.
    let _ = std::io::stderr().write_all(format!("{} {name} {text}\n", stamp.as_str()).as_bytes());
}
