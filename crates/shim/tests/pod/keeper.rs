//! The shim of these tests: ours.

use std::path::PathBuf;

use shim_client::{Shim, StartPod};

use crate::world::{LIMIT, Pod, World};

/// What a failed creation may leave in the bundle.
pub(crate) const LEAVINGS: [&str; 1] = ["config.json"];
/// Of the shim, beside containers.
pub(crate) const CHILDREN: usize = 0;
/// How the deletion of what runs is refused.
pub(crate) const BUSY: base::Kind = base::Kind::FailedPrecondition;

pub(crate) fn missing() -> Option<&'static str> {
    None
}

pub(crate) async fn start(_: &World, spec: &StartPod) -> Shim {
    shim_client::start(spec, LIMIT).await.expect("a shim")
}

pub(crate) async fn end(pod: &Pod) {
    pod.shim.shutdown().await.expect("shutdown");
}

/// The one just built, or another to be measured.
pub(crate) fn binary() -> PathBuf {
    let named = std::env::var_os("LONGSHORE_SHIM").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore-shim").into())
}
