//! Making, stopping and removing pods: the work, without the decisions.

pub(crate) mod check;
pub(crate) mod files;
mod make;
pub(crate) mod remove;
pub(crate) mod spec;
pub(crate) mod stop;
pub(crate) mod update;

pub(crate) use make::MakePod;
pub(crate) use stop::Running;
