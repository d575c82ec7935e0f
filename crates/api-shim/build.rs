//! Compiles `proto/shim` in Rust: no protoc binary is needed.

fn main() -> Result<(), ttrpc_build::Error> {
    let files = [
        "shim/bootstrap.proto",
        "shim/events.proto",
        "shim/forward.proto",
        "shim/longshore.proto",
        "shim/metrics.proto",
        "shim/pod_config.proto",
        "shim/runc_options.proto",
        "shim/runtime_options.proto",
        "shim/sandbox.proto",
        "shim/task_v2.proto",
        "shim/task_v3.proto",
    ]
    .map(|file| format!("../../proto/{file}"));
    // Ordered, so that what we print and store does not change between runs.
    ttrpc_build::configure()
        .prost(|prost| {
            prost.btree_map(["."]);
        })
        .compile(&files, &["../../proto"])
}
