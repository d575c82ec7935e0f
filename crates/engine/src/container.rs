//! Making, starting, updating and removing containers: the work, without the decisions.

pub(crate) mod classes;
mod facts;
mod images;
pub(crate) mod limits;
mod make;
pub(crate) mod remove;
pub(crate) mod start;
mod volumes;

pub(crate) use make::{MakeContainer, mapping, pod_facts};
pub(crate) use remove::release;
pub(crate) use start::Started;
