//! The program; all of it is in the library, see [`wasi_gpu::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    wasi_gpu::cli::run(std::env::args_os())
}
