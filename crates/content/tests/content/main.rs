//! Pulls against a registry that misbehaves on demand.

mod archive;
mod auth;
mod faults;
mod kill;
mod mirrors;
mod pulls;
mod real;
mod records;
mod shared;
mod support;
mod upkeep;
