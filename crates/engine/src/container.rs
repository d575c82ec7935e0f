//! Making, starting, updating and removing containers: the work, without the decisions.

mod facts;
mod images;
mod make;
pub(crate) mod remove;
pub(crate) mod start;
mod update;
mod volumes;

pub(crate) use make::MakeContainer;
pub(crate) use remove::release;
pub(crate) use start::Started;
pub(crate) use update::update;
