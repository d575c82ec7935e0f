//! What the surroundings say about a plugin: its name, its place and its connection.
//!
//! A runtime that starts a plugin itself says all three in the environment; one that is
//! started by hand says them by flags, or in the name of its executable.

use std::{ffi::OsString, path::Path};

use nri_wire::{IdentityError, PluginId, defaults};

/// Variables and command of a process, as far as they concern a plugin. An empty variable
/// counts as none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NRI_PLUGIN_NAME`
    pub name: Option<String>,
    /// `NRI_PLUGIN_IDX`
    pub index: Option<String>,
    /// `NRI_PLUGIN_SOCKET`: the number of an open descriptor.
    pub socket: Option<String>,
    /// The path the process was started by.
    pub command: Option<OsString>,
}

/// Why a plugin has no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownIdentity {
    #[error("the environment gives index {environment:?}, the plugin {given:?}")]
    TwoIndices { environment: String, given: String },
    #[error(transparent)]
    Invalid(#[from] IdentityError),
    #[error(
        "no index is given, and the name of the executable has none: give two digits, or call the executable NN-name"
    )]
    NoIndex(#[source] IdentityError),
}

impl Environment {
    /// Of this process.
    pub fn of_process() -> Self {
        let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            name: var(defaults::NAME_ENV),
            index: var(defaults::INDEX_ENV),
            socket: var(defaults::SOCKET_ENV),
            command: std::env::args_os().next(),
        }
    }

    /// The identity, from what the program gives and what the environment says.
    ///
    /// A name that is given wins over that of the environment. An index may be given in one
    /// place only: it decides the order, and the runtime has chosen it already. What is
    /// missing comes from the name of the executable: `NN-name` without an index, all of it
    /// without a name.
    pub fn identify(
        &self,
        name: Option<&str>,
        index: Option<&str>,
    ) -> Result<PluginId, UnknownIdentity> {
        let index = match (self.index.as_deref(), index) {
            (Some(environment), Some(given)) => {
                let (environment, given) = (environment.to_owned(), given.to_owned());
                return Err(UnknownIdentity::TwoIndices { environment, given });
            }
            (environment, given) => environment.or(given),
        };
        let name = name.or(self.name.as_deref());
        match (index, name) {
            (Some(index), Some(name)) => Ok(PluginId::new(index, name)?),
            (Some(index), None) => Ok(PluginId::new(index, &self.executable())?),
            (None, name) => {
                let id: PluginId = self.executable().parse().map_err(UnknownIdentity::NoIndex)?;
                Ok(name.map_or(Ok(id.clone()), |name| PluginId::new(id.index(), name))?)
            }
        }
    }

    fn executable(&self) -> String {
        let name = self.command.as_deref().and_then(|command| Path::new(command).file_name());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environment as (name, index, command), then name and index as given by the program.
    #[track_caller]
    fn check(
        (name, index, command): (&str, &str, &str),
        given_name: Option<&str>,
        given_index: Option<&str>,
        want: &str,
    ) {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let environment = Environment {
            name: some(name),
            index: some(index),
            socket: None,
            command: Some(command.into()),
        };
        let id = environment.identify(given_name, given_index);
        let text = id.map_or_else(|error| error.to_string(), |id| id.to_string());
        assert_eq!(text, want);
    }

    #[test]
    fn identity_comes_from_the_environment_the_program_or_the_executable() {
        check(("a", "05", "x"), None, None, "05-a");
        check(("a", "05", "x"), Some("b"), None, "05-b");
        check(("", "05", "/opt/nri/x"), None, None, "05-x");
        check(("", "", "/opt/x"), Some("b"), Some("07"), "07-b");
        check(("", "", "/opt/x"), None, Some("07"), "07-x");
        check(("", "", "/opt/nri/10-x"), None, None, "10-x");
        check(("", "", "/opt/nri/10-x"), Some("b"), None, "10-b");
        check(("", "", "10-x"), Some("b"), Some("20"), "20-b");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let two = "the environment gives index \"05\", the plugin \"07\"";
        check(("a", "05", "x"), None, Some("07"), two);
        let none = "no index is given, and the name of the executable has none: give two \
                    digits, or call the executable NN-name";
        check(("", "", "/opt/x"), Some("b"), None, none);
        let bad = "invalid plugin index \"7\": it must be two digits";
        check(("", "", "x"), None, Some("7"), bad);
        check(
            ("", "07", "x"),
            Some("a b"),
            None,
            "invalid plugin name \"a b\": it must be letters, digits and any of '_', '.', '+', '-'",
        );
    }
}
