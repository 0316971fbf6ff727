//! `candle-dvm cashu`: what `serve` earned in Cashu tokens.

use super::print;
use crate::payment::cashu::purse::Purse;
use crate::payment::cashu::send;
use crate::{Error, Result};
use candle_engine::progress::note;
use std::path::{Path, PathBuf};

/// The folder of coins, in that of the journal.
pub(super) const FOLDER: &str = "cashu";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The folder that `serve` has as --data-dir
    #[arg(
        long,
        value_name = "DIR",
        default_value = "candle-dvm-data",
        global = true
    )]
    data_dir: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print what was earned, by mint
    Balance,
    /// Print a token, which is yours to receive with a wallet: the coins leave the balance
    Send {
        /// Satoshis, or `all` for everything, a token of each mint
        #[arg(value_name = "AMOUNT", value_parser = amount)]
        amount: Amount,
    },
}

/// The amount to send; `None` means everything.
#[derive(Clone, Debug)]
struct Amount(Option<u64>);

fn amount(text: &str) -> std::result::Result<Amount, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".to_string()),
        Ok(sat) => Ok(Amount(Some(sat))),
        Err(_) if text == "all" => Ok(Amount(None)),
        Err(_) => Err("expected a number of satoshis, or all".to_string()),
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    let purse = open(&args.data_dir)?;
    let _alone = purse.lock().map_err(Error::service)?;
    let runtime = candle_cli::runtime()?;
    if let Err(err) = runtime.block_on(send::resume(&purse)) {
        note(&format!(
            "warning: what an interrupted `send` took is missing until its mint answers: {err}"
        ));
    }
    let text = match args.command {
        Command::Balance => {
            let balance = send::balance(&purse).map_err(Error::service)?;
            let lines = balance
                .iter()
                .map(|(mint, sat)| format!("{sat} sat {mint}\n"));
            if balance.is_empty() {
                "0 sat\n".to_string()
            } else {
                lines.collect()
            }
        }
        Command::Send {
            amount: Amount(Some(sat)),
        } => {
            let token = runtime.block_on(send::some(&purse, sat));
            token.map_err(Error::service)? + "\n"
        }
        Command::Send {
            amount: Amount(None),
        } => {
            let tokens = send::all(&purse).map_err(Error::service)?;
            if tokens.is_empty() {
                return Err(Error::service("nothing was earned yet"));
            }
            tokens.join("\n") + "\n"
        }
    };
    print(&text)
}

fn open(data_dir: &Path) -> Result<Purse> {
    let folder = data_dir.join(FOLDER);
    if !folder.is_dir() {
        let problem = "does not exist; expected the --data-dir of a `serve` with cashu-mints";
        return Err(Error::file(&folder, problem));
    }
    Purse::open(&folder).map_err(Error::service)
}
