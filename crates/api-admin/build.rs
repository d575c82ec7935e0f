//! Compiles `proto/admin` in Rust: no protoc binary is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../proto";
    let files = protox::compile(["admin/v1.proto"], [proto])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    println!("cargo::rerun-if-changed={proto}/admin");
    Ok(())
}
