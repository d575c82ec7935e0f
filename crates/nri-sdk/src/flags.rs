//! Command line flags that every plugin has.

use std::path::PathBuf;

use crate::{Builder, Plugin};

/// To be flattened into the arguments of a plugin.
///
/// ```
/// # use clap::Parser;
/// #[derive(clap::Parser)]
/// struct Args {
///     #[command(flatten)]
///     nri: nri_sdk::Flags,
///     /// The plugin's own.
///     #[arg(long)]
///     verbose: bool,
/// }
/// let args = Args::parse_from(["plugin", "--idx", "10", "--verbose"]);
/// assert_eq!(args.nri.idx.as_deref(), Some("10"));
/// ```
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
// Else clap would show this documentation as that of the plugin.
#[command(about = None::<&str>, long_about = None::<&str>)]
#[non_exhaustive]
pub struct Flags {
    /// Name of the plugin
    #[arg(long)]
    pub name: Option<String>,
    /// Place among all plugins, two digits
    #[arg(long, visible_alias = "index")]
    pub idx: Option<String>,
    /// Socket of the runtime
    #[arg(long, visible_alias = "socket-path")]
    pub socket: Option<PathBuf>,
    /// End with the first connection
    #[arg(long)]
    pub no_reconnect: bool,
}

impl Flags {
    /// Gives what is set to a builder.
    pub fn apply<P: Plugin>(self, mut builder: Builder<P>) -> Builder<P> {
        if let Some(name) = self.name {
            builder = builder.name(name);
        }
        if let Some(idx) = self.idx {
            builder = builder.index(idx);
        }
        if let Some(socket) = self.socket {
            builder = builder.socket(socket);
        }
        if self.no_reconnect { builder.no_reconnect() } else { builder }
    }
}
