//! What the command line itself is answered with.

use candle_engine::error::one_line;
use candle_engine::progress::note;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Help and version as clap prints them; a mistake as one line like every other error.
pub fn usage(err: &clap::Error) -> ExitCode {
    match err.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = err.print();
            if err.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
        _ => {
            // The usage that follows after an empty line is what `--help` says better; a suggestion may precede it.
            let text = err.to_string();
            let parts = text.split("\n\n");
            let of_use = |part: &&str| {
                !["Usage:", "For more information"]
                    .iter()
                    .any(|start| part.starts_with(start))
            };
            let parts: Vec<String> = parts.take_while(of_use).map(one_line).collect();
            note(&parts.join("; "));
            ExitCode::FAILURE
        }
    }
}
