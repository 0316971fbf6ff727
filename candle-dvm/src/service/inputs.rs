//! What has to be fetched before a job can run: inputs that are no text, and the customer's relays.

use super::lookup::Lookup;
use super::settings::Settings;
use crate::nip90::{Input, InputKind, JobRequest, RELAY_LIST, RESULT};
use crate::relay::{http, normal_url, Reach};
use nostr::prelude::{Event, EventId, Filter, Keys, Kind};
use std::time::Duration;
use url::Url;

const STORED: Duration = Duration::from_secs(10);
const RELAYS: Duration = Duration::from_secs(3);
/// The most relays that are taken from a request or a relay list.
pub const MOST_RELAYS: usize = 5;

/// The prompt: the inputs' texts, in order, with a line break between them.
///
/// # Errors
/// The first input that cannot be had, in a line for the customer.
pub async fn prompt(
    request: &JobRequest,
    keys: &Keys,
    lookup: &Lookup,
    settings: &Settings,
) -> Result<String, String> {
    let mut texts = Vec::new();
    for input in &request.inputs {
        texts.push(match input.kind {
            InputKind::Text => input.data.clone(),
            InputKind::Url => fetch(&input.data, settings).await?,
            InputKind::Event => event(input, lookup).await?,
            InputKind::Job => job(input, keys, lookup, settings).await?,
        });
    }
    let prompt = texts.join("\n");
    if prompt.len() > settings.input_bytes {
        return Err(format!(
            "the inputs have {} bytes, the limit is {}",
            prompt.len(),
            settings.input_bytes
        ));
    }
    Ok(prompt)
}

/// Whether an address may be fetched: its host is on the list.
///
/// # Errors
/// Why not, in a line for the customer.
pub fn allowed_url(text: &str, hosts: &[String]) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|err| format!("input url: {err}"))?;
    let host = url.host_str().unwrap_or_default();
    let allowed = hosts.iter().any(|entry| match entry.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(parent)
            .is_some_and(|below| below.ends_with('.')),
        None => entry == host,
    });
    let web = matches!(url.scheme(), "http" | "https");
    match allowed && web {
        true => Ok(url),
        false => Err("input url: addresses of this host are not fetched here".to_string()),
    }
}

async fn fetch(text: &str, settings: &Settings) -> Result<String, String> {
    let url = allowed_url(text, &settings.url_hosts)?;
    // The operator has named the host, so it may be one inside.
    let timeout = Duration::from_secs(20);
    http::get(
        &url,
        "text/*",
        Reach::Anywhere,
        settings.input_bytes,
        timeout,
    )
    .await
    .map_err(|err| format!("input url: {err}"))
}

async fn event(input: &Input, lookup: &Lookup) -> Result<String, String> {
    let id = EventId::parse(&input.data).map_err(|_| "input event: no event id".to_string())?;
    let found = lookup
        .stored(Filter::new().id(id).limit(1), STORED, 1)
        .await;
    match found.into_iter().next() {
        Some(event) => Ok(event.content),
        None => Err(format!("input event: {id} is not on this service's relays")),
    }
}

async fn job(
    input: &Input,
    keys: &Keys,
    lookup: &Lookup,
    settings: &Settings,
) -> Result<String, String> {
    let id = EventId::parse(&input.data).map_err(|_| "input job: no event id".to_string())?;
    let wait = Duration::from_secs(settings.chain_seconds);
    let filter = Filter::new()
        .kinds((RESULT - 50..RESULT + 50).map(Kind::from_u16))
        .event(id);
    match lookup.first(filter, wait).await {
        Some(event) if event.tags.iter().any(|tag| tag.kind() == "encrypted") => {
            // Only its customer can read it; or we, who wrote it for somebody else and must not show it.
            Err(format!("input job: the result of {id} is encrypted"))
        }
        Some(event) => {
            tracing::debug!(job = %id, ours = event.pubkey == keys.public_key(), "input found");
            Ok(event.content)
        }
        None => Err(format!(
            "input job: no result of {id} within {} s",
            settings.chain_seconds
        )),
    }
}

/// The relays beside our own where the customer wants the answers: those that the request names, or else those that the customer reads
/// (NIP-65).
pub async fn customer_relays(
    request: &JobRequest,
    event: &Event,
    lookup: &Lookup,
    settings: &Settings,
) -> Vec<String> {
    let named = if request.relays.is_empty() {
        let filter = Filter::new()
            .kind(Kind::from_u16(RELAY_LIST))
            .author(event.pubkey)
            .limit(1);
        let lists = lookup.stored(filter, RELAYS, 4).await;
        let newest = lists.into_iter().max_by_key(|list| list.created_at);
        newest.map_or(Vec::new(), |list| read_relays(&list))
    } else {
        request.relays.clone()
    };
    let mut relays = Vec::new();
    for url in named.iter().filter_map(|url| normal_url(url).ok()) {
        if !settings.relays.contains(&url) && !relays.contains(&url) {
            relays.push(url);
        }
    }
    relays.truncate(MOST_RELAYS);
    relays
}

fn read_relays(list: &Event) -> Vec<String> {
    list.tags
        .iter()
        .map(|tag| tag.as_slice())
        .filter(|tag| tag[0] == "r" && tag.get(2).is_none_or(|marker| marker == "read"))
        .filter_map(|tag| tag.get(1).cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::allowed_url;

    #[test]
    fn only_listed_hosts_are_fetched() {
        let hosts = ["example.com".to_string(), "*.example.org".to_string()];
        for good in ["https://example.com/a?b", "http://a.b.example.org:8080/"] {
            assert!(allowed_url(good, &hosts).is_ok(), "{good}");
        }
        for bad in [
            "https://www.example.com/",
            "https://example.org/",
            "https://evilexample.org/",
            "https://example.com.evil.net/",
            "https://example.com@evil.net/",
            "file:///etc/passwd",
            "ftp://example.com/",
            "http://127.0.0.1/",
            "no address",
        ] {
            assert!(allowed_url(bad, &hosts).is_err(), "{bad}");
        }
        assert!(allowed_url("https://example.com/", &[]).is_err());
    }
}
