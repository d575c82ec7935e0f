//! The store as its users see it: behaviour, laws, kills, faults and system calls.
//!
//! Tests that need a process of their own (to be killed, traced, limited or given another
//! mount namespace) start this same program again; see `child`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is all test code")]

mod behaviour;
mod child;
mod faults;
mod kill;
mod model;
mod records;
mod refusals;
mod trace;
