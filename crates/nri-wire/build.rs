//! Compiles `proto/nri` in Rust: no protoc binary is needed.

fn main() -> Result<(), ttrpc_build::Error> {
    let proto = "../../proto";
    ttrpc_build::configure()
        .prost(|prost| {
            // Ordered, so that what is applied, printed and compared does not change between runs.
            prost.btree_map(["."]);
            let serde =
                "cfg_attr(feature = \"serde\", derive(serde::Serialize, serde::Deserialize))";
            prost.type_attribute(".", format!("#[{serde}]"));
            prost.message_attribute(".", "#[cfg_attr(feature = \"serde\", serde(default))]");
        })
        .compile(&[format!("{proto}/nri/api.proto")], &[proto])
}
