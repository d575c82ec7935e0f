//! What a daemon and a shim say to each other.
//!
//! | module | holds |
//! |---|---|
//! | [`start`] | the description of a pod our shim reads, and what it answers |
//! | [`attach`] | the frames of an attached client |
//! | the others | generated from `proto/shim`, one module per protobuf package |
//!
//! **Invariant:** types and their encoding, no behaviour.

pub mod attach;
pub mod start;

/// The modules nest like the packages, because generated code refers to its neighbours by
/// relative paths.
#[allow(unreachable_pub, reason = "only what is named below is shown")]
#[allow(clippy::let_and_return, reason = "generated")]
mod generated {
    pub mod containerd {
        pub mod types {
            include!(concat!(env!("OUT_DIR"), "/containerd.types.rs"));
        }
        pub mod v1 {
            pub mod types {
                include!(concat!(env!("OUT_DIR"), "/containerd.v1.types.rs"));
            }
        }
        pub mod events {
            include!(concat!(env!("OUT_DIR"), "/containerd.events.rs"));
        }
        pub mod task {
            pub mod v2 {
                include!(concat!(env!("OUT_DIR"), "/containerd.task.v2.rs"));
            }
            pub mod v3 {
                include!(concat!(env!("OUT_DIR"), "/containerd.task.v3.rs"));
            }
        }
        pub mod runc {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/containerd.runc.v1.rs"));
            }
        }
        pub mod runtime {
            pub mod bootstrap {
                pub mod v1 {
                    include!(concat!(env!("OUT_DIR"), "/containerd.runtime.bootstrap.v1.rs"));
                }
            }
            pub mod sandbox {
                pub mod v1 {
                    include!(concat!(env!("OUT_DIR"), "/containerd.runtime.sandbox.v1.rs"));
                }
            }
        }
        pub mod services {
            pub mod events {
                pub mod ttrpc {
                    pub mod v1 {
                        include!(concat!(
                            env!("OUT_DIR"),
                            "/containerd.services.events.ttrpc.v1.rs"
                        ));
                    }
                }
            }
        }
    }
    pub mod io {
        pub mod containerd {
            pub mod cgroups {
                pub mod v2 {
                    include!(concat!(env!("OUT_DIR"), "/io.containerd.cgroups.v2.rs"));
                }
            }
        }
    }
    pub mod runtime {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
        }
    }
    pub mod runtimeoptions {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/runtimeoptions.v1.rs"));
        }
    }
    pub mod longshore {
        pub mod shim {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/longshore.shim.v1.rs"));
            }
        }
    }
}

pub use generated::{
    containerd::{
        events,
        runc::v1 as runc,
        runtime::{bootstrap::v1 as bootstrap, sandbox::v1 as sandbox},
        services::events::ttrpc::v1 as forward,
        task, types,
        v1::types as process,
    },
    io::containerd::cgroups::v2 as metrics,
    longshore::shim::v1 as longshore,
    runtime::v1 as pod_config,
    runtimeoptions::v1 as runtime_options,
};

/// Names of services and of types in an `Any`.
pub mod name {
    pub const TASK_V2: &str = "containerd.task.v2.Task";
    pub const TASK_V3: &str = "containerd.task.v3.Task";
    pub const IO: &str = "longshore.shim.v1.Io";
    pub const METRICS_V2: &str = "io.containerd.cgroups.v2.Metrics";
    pub const CREATE_OPTIONS: &str = "longshore.shim.v1.CreateOptions";
    pub const CREATE_PRIORITIZED: &str = "longshore.shim.v1.CreatePrioritized";
    pub const RUNC_OPTIONS: &str = "containerd.runc.v1.Options";
    pub const CHECKPOINT_OPTIONS: &str = "containerd.runc.v1.CheckpointOptions";
    pub const POD_CONFIG: &str = "runtime.v1.PodSandboxConfig";
    /// JSON of an OCI `Process` and of OCI `LinuxResources`, as containerd names them.
    pub const OCI_PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
    pub const OCI_RESOURCES: &str =
        "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";
}
