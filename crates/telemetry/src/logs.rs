//! Log lines on standard error, as text for people or JSON for machines.

use std::{fmt, io::IsTerminal, str::FromStr};

use tracing_subscriber::{
    EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// A checked filter: a level, or `target=level` pairs, comma-separated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level(String);

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(
        "{0:?} is not a log level (error, warn, info, debug, trace, or target=level pairs, \
         comma-separated)"
    )]
    Level(String),
    #[error("this process has a log already")]
    Installed,
}

/// The handle by which a reload changes the level of the running daemon.
#[derive(Clone)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl FromStr for Level {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        // A bare word that is no level would be taken for a target and log nothing.
        let words = text.split(',').all(|part| {
            part.contains('=') || part.parse::<tracing::level_filters::LevelFilter>().is_ok()
        });
        match EnvFilter::try_new(text) {
            Ok(_) if words && !text.trim().is_empty() => Ok(Self(text.to_owned())),
            _ => Err(LogError::Level(text.to_owned())),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Level {
    fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl Logs {
    /// Starts logging for the whole process; may be called once.
    pub fn install(level: &Level, format: Format) -> Result<Self, LogError> {
        let (filter, handle) = reload::Layer::new(level.filter());
        let registry = tracing_subscriber::registry().with(filter);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        match format {
            Format::Text => {
                let colour = std::io::stderr().is_terminal();
                registry.with(lines.with_ansi(colour)).try_init()
            }
            Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        }
        .map_err(|_| LogError::Installed)?;
        Ok(Self { filter: handle })
    }

    pub fn set_level(&self, level: &Level) {
        // Fails only when the subscriber is gone, and with it every reader.
        let _ = self.filter.reload(level.filter());
    }
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, good: bool) {
        assert_eq!(text.parse::<Level>().is_ok(), good, "{text:?}");
    }

    #[test]
    fn levels() {
        check("info", true);
        check("off", true);
        check("info,engine=debug", true);
        check("engine=trace", true);
        check("", false);
        check("loud", false);
        check("info,loud", false);
        check("engine=loud", false);
    }
}
