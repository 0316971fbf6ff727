//! The program; all of it is in the library, see [`candle_dvm::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    candle_dvm::cli::run(std::env::args_os())
}
