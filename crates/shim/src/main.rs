//! See the library.

fn main() -> std::process::ExitCode {
    shim::main()
}
