//! The one place where engine errors become gRPC; the Docker front end has its twin.

use tonic::Status;

/// An RPC of the contract that this version does not serve, by name.
pub(crate) fn unimplemented(rpc: &'static str) -> Status {
    Status::unimplemented(format!("{rpc} is not implemented"))
}
