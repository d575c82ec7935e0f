//! Compiles `proto/cri` in Rust: no protoc binary is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../proto";
    let files = protox::compile(["cri/v1.proto"], [proto])?;
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
