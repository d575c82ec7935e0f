//! Reading the file: every failure is one sentence with the file, the line or key, and
//! what to do.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Config, keys};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {message}; `longshore config default` shows every key", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{}: unknown key {key:?}{}", path.display(), meant(nearest.as_deref()))]
    UnknownKey { path: PathBuf, key: String, nearest: Option<String> },
    #[error("{key}: {why}")]
    Value { key: String, why: String },
}

/// Reads `path`; `None` stands for the default file, which may be absent.
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let (path, required) = match path {
        Some(path) => (path, true),
        None => (Path::new(super::DEFAULT_FILE), false),
    };
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !required => Ok(Config::default()),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let syntax = |e: toml::de::Error| {
        let at = e.span().map_or(0, |span| span.start);
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        let message = e.message().trim().replace('\n', ", ");
        ConfigError::Syntax { path: path.to_owned(), line, message }
    };
    let table = text.parse::<toml::Table>().map_err(syntax)?;
    if let Some(key) = keys::unknown(&table) {
        let nearest = keys::nearest(&key);
        return Err(ConfigError::UnknownKey { path: path.to_owned(), key, nearest });
    }
    toml::from_str(text).map_err(syntax)
}

fn meant(nearest: Option<&str>) -> String {
    match nearest {
        Some(key) => format!("; did you mean {key:?}?"),
        None => "; `longshore config default` shows every key".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, want: &str) {
        let error = parse(Path::new("c.toml"), text).unwrap_err().to_string();
        assert_eq!(error, want);
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn failures_name_the_line_or_key_and_the_way_out() {
        refused(
            "[nri]\nsokcet = '/x'",
            "c.toml: unknown key \"nri.sokcet\"; did you mean \"nri.socket\"?",
        );
        refused("[nir]\nsocket = '/x'", "c.toml: unknown key \"nir\"; did you mean \"nri\"?");
        refused(
            "[handlers.a]\nbinray = 'x'",
            "c.toml: unknown key \"handlers.a.binray\"; did you mean \"handlers.a.binary\"?",
        );
        refused(
            "whatever_it_is = 1",
            "c.toml: unknown key \"whatever_it_is\"; `longshore config default` shows every key",
        );
        refused(
            "\nroot = 5",
            "c.toml:2: invalid type: integer `5`, expected path string; `longshore config default` shows every key",
        );
        let broken = parse(Path::new("c.toml"), "[log\n").unwrap_err().to_string();
        assert!(broken.starts_with("c.toml:1: "), "{broken}");
    }

    #[test]
    fn only_the_default_file_may_be_absent() {
        let error = load(Some(Path::new("/nonexistent/c.toml"))).unwrap_err().to_string();
        assert!(
            error.starts_with("read configuration /nonexistent/c.toml: No such file"),
            "{error}"
        );
    }
}
