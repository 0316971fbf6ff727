//! What has to be fetched before a job can run: inputs that are no text, and the customer's relays.

use super::lookup::Lookup;
use super::settings::Settings;
use crate::nip90::crypto::decrypt;
use crate::nip90::{self, Input, InputKind, JobRequest, RELAY_LIST, RESULT};
use crate::platform::timeout;
use crate::relay::{http, normal_url, Reach};
use nostr::prelude::{Event, EventId, Filter, Keys, Kind, PublicKey};
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
    customer: &PublicKey,
    keys: &Keys,
    lookup: &Lookup,
    settings: &Settings,
) -> Result<String, String> {
    let mut texts = Vec::new();
    let mut hints = 0;
    for input in &request.inputs {
        let hint = input.relay.as_deref().and_then(|url| normal_url(url).ok());
        let hint = hint.filter(|_| hints < MOST_RELAYS);
        hints += usize::from(hint.is_some());
        texts.push(match input.kind {
            InputKind::Text => input.data.clone(),
            InputKind::Url => fetch(&input.data, settings).await?,
            InputKind::Event => event(input, hint, lookup).await?,
            InputKind::Job => {
                let result = job(input, hint, lookup, settings).await?;
                text_of(&result, request, customer, keys)?
            }
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

async fn event(input: &Input, hint: Option<String>, lookup: &Lookup) -> Result<String, String> {
    let id = EventId::parse(&input.data).map_err(|_| "input event: no event id".to_string())?;
    let found = lookup
        .stored(Filter::new().id(id).limit(1), hint, STORED, 1)
        .await;
    match found.into_iter().next() {
        Some(event) => Ok(event.content),
        None => Err(format!(
            "input event: {id} is not on this service's relays, nor where the input says"
        )),
    }
}

/// The result of the job that an input names, when it is there.
async fn job(
    input: &Input,
    hint: Option<String>,
    lookup: &Lookup,
    settings: &Settings,
) -> Result<Event, String> {
    let id = EventId::parse(&input.data).map_err(|_| "input job: no event id".to_string())?;
    let wait = Duration::from_secs(settings.chain_seconds);
    let result = timeout(wait, async {
        let mut providers = providers(id, hint.clone(), lookup).await;
        loop {
            let filter = Filter::new()
                .kinds((RESULT - 50..RESULT + 50).map(Kind::from_u16))
                .event(id);
            let filter = match providers.is_empty() {
                true => filter,
                false => filter.authors(providers.clone()),
            };
            let event = lookup.first(filter, hint.clone()).await?;
            if providers.is_empty() {
                // The request may have come after this one.
                providers = self::providers(id, hint.clone(), lookup).await;
                if !providers.is_empty() && !providers.contains(&event.pubkey) {
                    continue;
                }
            }
            break Some(event);
        }
    });
    result.await.flatten().ok_or_else(|| {
        let seconds = settings.chain_seconds;
        format!("input job: no result of {id} within {seconds} s")
    })
}

/// Who may answer a job: those whom its request names. Nobody where it names nobody, or is not found: then anybody may.
async fn providers(id: EventId, hint: Option<String>, lookup: &Lookup) -> Vec<PublicKey> {
    let filter = Filter::new().id(id).limit(1);
    let found = lookup.stored(filter, hint, STORED, 1).await;
    let request = found.first();
    request.map_or(Vec::new(), |request| {
        let tags = nip90::tags(request);
        nip90::all(&tags, "p")
            .filter_map(|p| PublicKey::from_hex(p.first()?).ok())
            .collect()
    })
}

/// The text of a result. Of encrypted ones we can open those that we wrote for the customer who asks now, and do that for an answer that is
/// hidden as well.
fn text_of(
    result: &Event,
    request: &JobRequest,
    customer: &PublicKey,
    keys: &Keys,
) -> Result<String, String> {
    let tags = nip90::tags(result);
    if nip90::first(&tags, "encrypted").is_none() {
        return Ok(result.content.clone());
    }
    let theirs = nip90::all(&tags, "p").any(|p| p.first() == Some(&customer.to_hex()));
    if result.pubkey != keys.public_key() || !theirs {
        return Err("input job: the result is encrypted, by or for somebody else".to_string());
    }
    if request.encryption.is_none() {
        let problem =
            "input job: the result is encrypted, and this request is not: it would not stay hidden";
        return Err(problem.to_string());
    }
    // Both sides have the same secret with each other.
    let opened = decrypt(keys, customer, &result.content);
    opened
        .map(|(text, _)| text)
        .map_err(|err| format!("input job: {err}"))
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
        let lists = lookup.stored(filter, None, RELAYS, 4).await;
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
