//! `candle-dvm devices`.

use crate::Result;
use crate::{print, print_json};
use candle_engine::devices::{report, BackendReport};
use candle_engine::registry::BackendRegistry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<()> {
    let report = report(&BackendRegistry::detect());
    if args.json {
        return print_json(&report);
    }
    let text: Vec<String> = report.iter().map(BackendReport::text).collect();
    print(&text.concat())
}
