//! Making, starting, updating and removing containers: the work, without the decisions.

mod facts;
mod make;
mod remove;
mod start;
mod update;

pub(crate) use make::MakeContainer;
pub(crate) use remove::{release, remove};
pub(crate) use start::{Started, start};
pub(crate) use update::update;
