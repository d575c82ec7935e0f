//! Making, stopping and removing pods: the work, without the decisions.

pub(crate) mod files;
mod make;
mod remove;
mod stop;

pub(crate) use make::MakePod;
pub(crate) use remove::remove;
pub(crate) use stop::{Running, stop};
