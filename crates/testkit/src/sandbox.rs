//! Where the shim with the Sandbox service is.

use std::path::{Path, PathBuf};

/// Beside the programs or in the directory of tests that `built` is one of.
pub fn sandbox_shim(built: impl AsRef<Path>) -> PathBuf {
    let dirs = built.as_ref().ancestors().skip(1).take(2);
    let shim = dirs.map(|dir| dir.join("sandbox-shim")).find(|path| path.exists());
    shim.unwrap_or_else(|| panic!("sandbox-shim is missing: cargo build -p testkit"))
}
