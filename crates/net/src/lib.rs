//! Pod networks by CNI: which networks there are, and pods on and off them.
//!
//! | module | holds |
//! |---|---|
//! | [`conf`], [`result`], [`template`] | what files and programs say, as pure parsers |
//! | `dir`, `watch`, `source` | a configuration directory, followed |
//! | `program`, `chain` | one call of a program; the calls of one network |
//! | `record`, `networks` | what is remembered of a pod; the live thing |
//!
//! **Invariants:** nothing here knows who asks (CRI, Docker) or keeps a thread in another
//! namespace than the host's. An address a program gave is behind a record until a DEL
//! succeeded, whatever dies in between.

mod chain;
mod cidr;
pub mod conf;
mod dir;
mod error;
#[cfg(test)]
mod fake;
mod loopback;
mod networks;
mod pod;
mod ports;
mod program;
mod record;
pub mod result;
mod source;
mod survivors;
pub mod template;
mod version;
mod watch;

pub use cidr::{Cidr, CidrError};
pub use error::{NetError, ProgramError};
pub use networks::{Leftover, Limits, NetConfig, Networks};
pub use pod::{Bandwidth, Dns, PodNet};
pub use ports::{PortMapping, Protocol};
pub use program::{Complaint, Verb};
pub use record::{NetResult, PodInterface};
pub use result::IpPreference;
pub use source::{Readiness, SourceConfig};
pub use version::{SpecVersion, UnknownVersion};
