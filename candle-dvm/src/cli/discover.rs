//! `candle-dvm discover`: who generates text on some relays.

use super::customer::Relays;
use super::{print, print_json};
use crate::nip90::{self, Announcement, Heartbeat};
use crate::relay::driver::Report;
use crate::service::now;
use crate::{Error, Result};
use nostr::nips::nip19::ToBech32;
use nostr::prelude::{Event, Filter, Keys, Kind, PublicKey, SingleLetterTag};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A relay to look on; may come several times
    #[arg(long, value_name = "URL", required = true)]
    relay: Vec<String>,
    /// Seconds to wait for the relays
    #[arg(long, value_name = "S", default_value_t = 10)]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One provider.
#[derive(Serialize)]
struct Provider {
    npub: String,
    identifier: String,
    name: String,
    about: String,
    params: BTreeMap<String, nip90::announcement::ParamInfo>,
    encryption: bool,
    amount_msat: Option<u64>,
    announced: u64,
    last_heartbeat: Option<u64>,
    status: Option<String>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let runtime = super::runtime()?;
    let providers = runtime.block_on(find(&args))?;
    if args.json {
        return print_json(&providers);
    }
    let mut text = String::new();
    for provider in &providers {
        // Writing to a string does not fail.
        let _ = write_provider(&mut text, provider);
    }
    if providers.is_empty() {
        text.push_str("no provider of kind 5050 is announced there\n");
    }
    print(&text)
}

async fn find(args: &Args) -> Result<Vec<Provider>> {
    let keys = Keys::generate();
    let mut relays = Relays::connect(&args.relay, &keys)?;
    let announcements = Filter::new()
        .kind(Kind::from_u16(nip90::ANNOUNCEMENT))
        .custom_tag(SingleLetterTag::LOWERCASE_K, nip90::REQUEST.to_string());
    relays.subscribe("announcements", &announcements, true);
    let heartbeats = Filter::new()
        .kind(Kind::from_u16(nip90::HEARTBEAT))
        .limit(500);
    relays.subscribe("heartbeats", &heartbeats, true);
    let mut open = 2 * relays.count();
    let mut reached = false;
    let mut announced: BTreeMap<(PublicKey, String), Event> = BTreeMap::new();
    let mut beats: BTreeMap<(PublicKey, String), (u64, Heartbeat)> = BTreeMap::new();
    let collect = async {
        while open > 0 {
            match relays.next().await {
                (_, Report::StoredEnd(_)) => {
                    open -= 1;
                    reached = true;
                }
                (_, Report::Event(_, event)) if event.verify().is_ok() => {
                    let at = event.created_at.as_secs();
                    if let Ok(beat) = Heartbeat::read(&event) {
                        let key = (event.pubkey, beat.identifier.clone());
                        if beats.get(&key).is_none_or(|(other, _)| *other < at) {
                            beats.insert(key, (at, beat));
                        }
                    } else if let Ok(read) = Announcement::read(&event) {
                        let key = (event.pubkey, read.identifier);
                        let newer = announced
                            .get(&key)
                            .is_none_or(|other| other.created_at < event.created_at);
                        if newer {
                            announced.insert(key, *event);
                        }
                    }
                }
                _ => {}
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(args.timeout), collect).await;
    if !reached {
        let relays = args.relay.join(", ");
        return Err(Error::service(format!("no relay answered: {relays}")));
    }
    let provider = |(key, event): ((PublicKey, String), Event)| {
        let read = Announcement::read(&event).ok()?;
        let beat = beats.get(&key);
        Some(Provider {
            npub: event.pubkey.to_bech32().ok()?,
            identifier: read.identifier,
            name: read.name,
            about: read.about,
            params: read.params,
            encryption: read.encryption,
            amount_msat: read.amount_msat,
            announced: event.created_at.as_secs(),
            last_heartbeat: beat.map(|(at, _)| *at),
            status: beat.map(|(_, beat)| beat.status.clone()),
        })
    };
    Ok(announced.into_iter().filter_map(provider).collect())
}

fn write_provider(text: &mut String, provider: &Provider) -> std::fmt::Result {
    // Strangers wrote these: nothing of them may move the cursor.
    let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    writeln!(text, "{}  {}", plain(&provider.name), provider.npub)?;
    if !provider.about.is_empty() {
        writeln!(text, "  {}", plain(&provider.about))?;
    }
    for (name, info) in &provider.params {
        let mut values: Vec<String> = info.values.iter().map(|value| plain(value)).collect();
        values.extend(info.min.iter().map(|min| format!("from {}", plain(min))));
        values.extend(info.max.iter().map(|max| format!("to {}", plain(max))));
        values.extend(
            info.default
                .iter()
                .map(|value| format!("default {}", plain(value))),
        );
        writeln!(text, "  {}: {}", plain(name), values.join(", "))?;
    }
    match provider.amount_msat {
        None => writeln!(text, "  free")?,
        Some(amount) => writeln!(text, "  {amount} msat a job")?,
    }
    match (provider.last_heartbeat, &provider.status) {
        (Some(at), Some(status)) => {
            let ago = now().saturating_sub(at);
            writeln!(text, "  {}, heard {ago} s ago", plain(status))
        }
        _ => writeln!(text, "  no heartbeat"),
    }
}
