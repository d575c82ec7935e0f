//! Generates [ttrpc](https://github.com/containerd/ttrpc) clients and server traits from
//! `.proto` files, in a build script and without `protoc`.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), ttrpc_build::Error> {
//!     ttrpc_build::compile(&["proto/greeter.proto"], &["proto"])
//! }
//! ```
//!
//! The crate then includes `OUT_DIR/<package>.rs` and needs `prost` and `ttrpc`. For a
//! service `Greeter` it finds there, besides the messages:
//!
//! - `GreeterClient`, a method per method, each taking a `&ttrpc::Context`;
//! - the trait `Greeter`, to be implemented with plain `async fn`s; what is not
//!   implemented answers `UNIMPLEMENTED` with the name of the method;
//! - `GreeterServer<T: Greeter>`, which is a `ttrpc::Service`.

mod generate;

use std::{io, path::Path};

pub use generate::Generator;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("compile protobuf sources")]
    Compile(#[from] protox::Error),
    #[error("write generated code")]
    Write(#[source] io::Error),
}

/// Compiles the files with default settings into `OUT_DIR`. Imports are looked for in
/// `includes`.
pub fn compile(files: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<(), Error> {
    configure().compile(files, includes)
}

/// Settings for a compilation.
pub fn configure() -> Config {
    Config { prost: prost_build::Config::new(), generator: Generator::default() }
}

/// See [`configure`].
#[derive(Debug)]
pub struct Config {
    prost: prost_build::Config,
    generator: Generator,
}

impl Config {
    /// Changes how messages are generated.
    ///
    /// ```
    /// ttrpc_build::configure().prost(|prost| {
    ///     prost.bytes(["."]).btree_map(["."]).skip_debug(["example.Secret"]);
    /// });
    /// ```
    pub fn prost(mut self, adjust: impl FnOnce(&mut prost_build::Config)) -> Self {
        adjust(&mut self.prost);
        self
    }

    /// Generates no server traits.
    pub fn client_only(mut self) -> Self {
        self.generator = Generator::client_only();
        self
    }

    /// Generates no clients.
    pub fn server_only(mut self) -> Self {
        self.generator = Generator::server_only();
        self
    }

    /// Compiles the files, and has cargo do it again when one of them or of their imports
    /// changes.
    pub fn compile(
        mut self,
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let mut compiler = protox::Compiler::new(includes)?;
        compiler.include_source_info(true).include_imports(true).open_files(files)?;
        for source in compiler.files().filter_map(protox::file::FileMetadata::path) {
            rerun_if_changed(source);
        }
        self.prost.service_generator(Box::new(self.generator));
        self.prost.compile_fds(compiler.file_descriptor_set()).map_err(Error::Write)
    }
}

#[expect(clippy::print_stdout, reason = "this is how a build script talks to cargo")]
fn rerun_if_changed(source: &Path) {
    println!("cargo:rerun-if-changed={}", source.display());
}
