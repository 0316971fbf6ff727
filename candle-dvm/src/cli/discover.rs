//! `candle-dvm discover`: who generates text on some relays, those that give signs of life first.

use super::customer::{plain, Relays};
use super::{print, print_json};
use crate::nip90::{self, Announcement, Heartbeat, JobKind};
use crate::relay::driver::Report;
use crate::relay::normal_url;
use crate::service::now;
use crate::{Error, Result};
use nostr::nips::nip19::ToBech32;
use nostr::prelude::{Event, Filter, Keys, Kind, PublicKey, SingleLetterTag};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Relay to query; may be given several times
    #[arg(long, value_name = "URL", required = true)]
    relay: Vec<String>,
    /// Seconds to wait for relays
    #[arg(long, value_name = "S", default_value_t = 10)]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whether a provider is there. The order is the one in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Its heartbeat holds.
    Alive,
    /// It sends none, which proves nothing.
    Unknown,
    /// Its last heartbeat does not hold any more, or says that it has gone.
    Dead,
}

/// One provider.
#[derive(Serialize)]
struct Provider {
    npub: String,
    identifier: String,
    name: String,
    about: String,
    picture: Option<String>,
    topics: Vec<String>,
    /// The kinds of its jobs.
    kinds: Vec<u16>,
    model: Option<nip90::announcement::ServedModel>,
    speech_model: Option<String>,
    params: BTreeMap<String, nip90::announcement::ParamInfo>,
    encryption: bool,
    /// Mints whose Cashu tokens pay.
    mints: Vec<String>,
    /// 0 means free, and `None` that no price is announced.
    amount_msat: Option<u64>,
    announced: u64,
    state: State,
    last_heartbeat: Option<u64>,
    heartbeat_expires: Option<u64>,
    status: Option<String>,
}

/// Seconds for which a heartbeat holds that does not say so.
const HEARTBEAT_HOLDS: u64 = 900;

fn state(beat: Option<&(u64, Heartbeat)>, now: u64) -> State {
    match beat {
        None => State::Unknown,
        Some((at, beat)) => {
            let expires = beat
                .expiration
                .unwrap_or(at.saturating_add(HEARTBEAT_HOLDS));
            if expires > now && beat.status != "offline" {
                State::Alive
            } else {
                State::Dead
            }
        }
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    let runtime = candle_cli::runtime()?;
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
        text.push_str("no provider of kind 5050 or 5000 found\n");
    }
    print(&text)
}

async fn find(args: &Args) -> Result<Vec<Provider>> {
    let keys = Keys::generate();
    let mut relays = Relays::connect(&args.relay, &keys)?;
    let announcements = Filter::new()
        .kind(Kind::from_u16(nip90::ANNOUNCEMENT))
        .custom_tags(
            SingleLetterTag::LOWERCASE_K,
            JobKind::ALL.map(|kind| kind.request().to_string()),
        );
    relays.subscribe("announcements", &announcements, true);
    let heartbeats = Filter::new()
        .kind(Kind::from_u16(nip90::HEARTBEAT))
        .limit(500);
    relays.subscribe("heartbeats", &heartbeats, true);
    let mut open = 2 * relays.count();
    let mut reached = false;
    let mut down: BTreeMap<String, String> = BTreeMap::new();
    let mut announced: BTreeMap<(PublicKey, String), Event> = BTreeMap::new();
    let mut beats: BTreeMap<(PublicKey, String), (u64, Heartbeat)> = BTreeMap::new();
    let collect = async {
        while open > 0 {
            match relays.next().await {
                (_, Report::StoredEnd(_)) => {
                    open -= 1;
                    reached = true;
                }
                (url, Report::Down(reason)) => {
                    down.insert(url, plain(&reason));
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
        let seconds = args.timeout;
        let reason = |relay: &String| match normal_url(relay).ok().and_then(|url| down.get(&url)) {
            Some(reason) => format!("{relay} ({reason})"),
            None => format!("{relay} (no answer within {seconds} s)"),
        };
        let relays: Vec<String> = args.relay.iter().map(reason).collect();
        let relays = relays.join(", ");
        return Err(Error::service(format!("no relay answered: {relays}")));
    }
    let now = now();
    let provider = |(key, event): ((PublicKey, String), Event)| {
        let read = Announcement::read(&event).ok()?;
        let beat = beats.get(&key);
        Some(Provider {
            npub: event.pubkey.to_bech32().ok()?,
            identifier: read.identifier,
            name: read.name,
            about: read.about,
            picture: read.picture,
            topics: read.topics,
            kinds: read.kinds.iter().map(|kind| kind.request()).collect(),
            model: read.model,
            speech_model: read.speech_model,
            params: read.params,
            encryption: read.encryption,
            mints: read.mints,
            amount_msat: read.amount_msat,
            announced: event.created_at.as_secs(),
            state: state(beat, now),
            last_heartbeat: beat.map(|(at, _)| *at),
            heartbeat_expires: beat.and_then(|(_, beat)| beat.expiration),
            status: beat.map(|(_, beat)| beat.status.clone()),
        })
    };
    let mut providers: Vec<Provider> = announced.into_iter().filter_map(provider).collect();
    // Within a state, the most recently seen comes first.
    providers.sort_by_key(|provider| {
        let heard = provider.last_heartbeat.unwrap_or(provider.announced);
        (provider.state, Reverse(heard), provider.name.clone())
    });
    Ok(providers)
}

fn write_provider(text: &mut String, provider: &Provider) -> std::fmt::Result {
    let dead = match provider.state {
        State::Dead => "dead: ",
        State::Alive | State::Unknown => "",
    };
    writeln!(text, "{dead}{}  {}", plain(&provider.name), provider.npub)?;
    if !provider.about.is_empty() {
        writeln!(text, "  {}", plain(&provider.about))?;
    }
    let now = now();
    let announced = age(now, provider.announced);
    match (provider.last_heartbeat, &provider.status) {
        (Some(at), Some(status)) => {
            let status = match provider.state {
                State::Dead => "gone",
                State::Alive | State::Unknown => status,
            };
            let heard = age(now, at);
            writeln!(text, "  {}, heard {heard} ago", plain(status))?;
        }
        _ => writeln!(text, "  no heartbeat, announced {announced} ago")?,
    }
    let price = match provider.amount_msat {
        None => "price unknown".to_string(),
        Some(0) => "free".to_string(),
        Some(amount) => format!("{amount} msat per job"),
    };
    let encryption = if provider.encryption {
        "accepts encrypted jobs"
    } else {
        "unencrypted jobs only"
    };
    writeln!(text, "  {price}, {encryption}")?;
    for mint in &provider.mints {
        writeln!(text, "  takes Cashu tokens of {}", plain(mint))?;
    }
    if let Some(model) = &provider.model {
        let (name, prompt) = (plain(&model.name), plain(&model.prompt));
        match model.context {
            Some(context) => writeln!(text, "  {name}: {prompt}, {context} tokens of context")?,
            None => writeln!(text, "  {name}: {prompt}")?,
        }
    }
    if let Some(model) = &provider.speech_model {
        writeln!(text, "  {}: speech to text (kind 5000)", plain(model))?;
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
        if values.is_empty() {
            writeln!(text, "  {}", plain(name))?
        } else {
            writeln!(text, "  {}: {}", plain(name), values.join(", "))?
        }
    }
    Ok(())
}

/// The time since `then`, in the largest unit that is at least two.
fn age(now: u64, then: u64) -> String {
    match now.saturating_sub(then) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
