//! What a container is asked to be, it is: looked at from inside, over CRI, on a real runtime.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod confined;
mod devices;
mod handlers;
mod limits;
mod mounts;
mod process;
mod status;
mod users;
mod world;
