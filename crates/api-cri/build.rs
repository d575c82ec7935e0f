//! Compiles `proto/cri` in Rust: no protoc binary is needed.

use std::{env, fs, path::Path};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../proto";
    let files = protox::compile(["cri/v1.proto"], [proto])?;
    let rpcs: Vec<_> = files
        .file
        .iter()
        .flat_map(|file| &file.service)
        .flat_map(|service| service.method.iter().map(|method| (service.name(), method.name())))
        .collect();
    let out = Path::new(&env::var("OUT_DIR")?).join("rpcs.rs");
    fs::write(out, format!("&{rpcs:?}"))?;

    tonic_prost_build::configure()
        .bytes(".")
        // Ordered, so that what we print and store does not change between runs.
        .btree_map(".")
        // Written by hand in lib.rs: prost does not read `debug_redact`.
        .skip_debug(["runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    println!("cargo::rerun-if-changed={proto}/cri");
    Ok(())
}
