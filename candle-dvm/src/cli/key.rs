//! `candle-dvm key`.

use super::print;
use crate::key_file::{create, KeySource};
use crate::{Error, Result};
use nostr::nips::nip19::ToBech32;
use nostr::prelude::Keys;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Generate a key, save it to a new file with mode 600 and print its public key
    New {
        /// File to create; it must not exist
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
    },
    /// Print the public key of a secret key
    ShowPublic {
        /// File with the secret key; `-` reads standard input [default: the environment variable CANDLE_DVM_KEY]
        #[arg(long, value_name = "FILE")]
        key_file: Option<PathBuf>,
        /// Print 64 hexadecimal digits instead of npub1…
        #[arg(long)]
        hex: bool,
    },
}

pub(super) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::New { key_file } => show(&create(&key_file)?, false),
        Command::ShowPublic { key_file, hex } => show(&KeySource::named(key_file).read()?, hex),
    }
}

fn show(keys: &Keys, hex: bool) -> Result<()> {
    let public = keys.public_key();
    let text = if hex {
        public.to_hex()
    } else {
        public.to_bech32().map_err(Error::service)?
    };
    print(&format!("{text}\n"))
}
