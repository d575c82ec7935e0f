//! Making, starting, updating and removing containers: the work, without the decisions.

pub(crate) mod checkpoint;
pub(crate) mod classes;
mod facts;
mod images;
pub(crate) mod labels;
pub(crate) mod limits;
pub(crate) mod make;
mod priorities;
pub(crate) mod remove;
pub(crate) mod root;
pub(crate) mod start;
mod volumes;

pub(crate) use facts::device_nodes;
pub(crate) use make::{MakeContainer, mapping, pod_facts};
pub(crate) use remove::release;
pub(crate) use start::Started;
