//! Fetches the inputs of a job that are not text.
//!
//! Errors name an input by its index and never quote it: it may have been hidden.

use super::lookup::Lookup;
use super::offers::Recording;
use super::settings::Settings;
use crate::nip90::crypto::decrypt;
use crate::nip90::{self, Input, InputKind, JobRequest};
use crate::platform::timeout;
use crate::relay::{http, normal_url, Reach};
use nostr::prelude::{Event, EventId, Filter, Keys, Kind, PublicKey};
use std::time::Duration;
use url::Url;
use web_time::Instant;

const STORED: Duration = Duration::from_secs(10);
const FETCH: Duration = Duration::from_secs(20);
const FETCH_RECORDING: Duration = Duration::from_secs(120);
/// The kinds of results that others give: of jobs on texts and recordings.
const RESULTS: std::ops::Range<u16> = 6000..6100;
/// Maximum number of input relays that are searched.
const MOST_HINTS: usize = 5;

/// The inputs' texts, in order.
///
/// # Errors
/// The first input that cannot be had, in a line for the customer.
pub async fn texts(
    request: &JobRequest,
    customer: &PublicKey,
    keys: &Keys,
    lookup: &Lookup,
    settings: &Settings,
) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    let mut hints = 0;
    let mut bytes = 0;
    // One timeout for all inputs: otherwise 64 missing ones would each take the full time.
    let started = Instant::now();
    let left = || Duration::from_secs(settings.chain_seconds).saturating_sub(started.elapsed());
    for (number, input) in request.inputs.iter().enumerate() {
        let hint = input.relay.as_deref().and_then(|url| normal_url(url).ok());
        let hint = hint.filter(|_| hints < MOST_HINTS);
        hints += usize::from(hint.is_some());
        let text = match input.kind {
            InputKind::Text => Ok(input.data.clone()),
            InputKind::Url => {
                let fetched = fetch(&input.data, settings, FETCH.min(left())).await;
                fetched.map_err(|problem| fetch_problem(problem, request))
            }
            InputKind::Event => event(input, hint, lookup, STORED.min(left())).await,
            InputKind::Job => match job(input, hint, lookup, left()).await {
                Ok(result) => text_of(&result, request, customer, keys),
                Err(Absent::NoId) => Err("not an event id".to_string()),
                Err(Absent::NoResult) => {
                    let seconds = settings.chain_seconds;
                    Err(format!("no result for this job within {seconds} s"))
                }
            },
        };
        let place = |problem| format!("input {} ({}): {problem}", number + 1, name(input.kind));
        let text = text.map_err(place)?;
        bytes += text.len() + 1;
        // Not only at the end: many inputs of many jobs are held meanwhile.
        if bytes > settings.input_bytes + 1 {
            let limit = settings.input_bytes;
            return Err(format!("the inputs exceed the limit of {limit} bytes"));
        }
        texts.push(text);
    }
    Ok(texts)
}

/// The recording that is a job's one input.
///
/// # Errors
/// Why it cannot be had, in a line for the customer.
pub async fn recording(request: &JobRequest, settings: &Settings) -> Result<Recording, String> {
    let address = request.inputs.first().map_or("", |input| &input.data);
    let fetched = async {
        let url = allowed_url(address, &settings.url_hosts)?;
        let ending = url.path().rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_ending = ending.len() <= 5 && ending.bytes().all(|b| b.is_ascii_alphanumeric());
        let name = if is_ending && !ending.is_empty() {
            format!("recording.{ending}")
        } else {
            "recording".to_string()
        };
        let most = settings.recording_bytes;
        // The operator has named the host, so it may be one inside.
        let bytes = http::get(&url, "audio/*", Reach::Anywhere, most, FETCH_RECORDING).await?;
        Ok(Recording { name, bytes })
    };
    let problem = |problem| format!("input 1 (url): {}", fetch_problem(problem, request));
    fetched.await.map_err(problem)
}

/// The message to a customer whose address could not be fetched.
fn fetch_problem(problem: String, request: &JobRequest) -> String {
    match request.encryption {
        None => problem,
        // The error may contain the URL.
        Some(_) => "cannot fetch the URL".to_string(),
    }
}

fn name(kind: InputKind) -> &'static str {
    match kind {
        InputKind::Text => "text",
        InputKind::Url => "url",
        InputKind::Event => "event",
        InputKind::Job => "job",
    }
}

/// Whether an address may be fetched: its host is on the list.
///
/// # Errors
/// Why not, in a line for the customer.
pub fn allowed_url(text: &str, hosts: &[String]) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|err| err.to_string())?;
    let host = url.host_str().unwrap_or_default();
    let allowed = hosts.iter().any(|entry| match entry.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(parent)
            .is_some_and(|below| below.ends_with('.')),
        None => entry == host,
    });
    let web = matches!(url.scheme(), "http" | "https");
    if allowed && web {
        Ok(url)
    } else {
        Err("this service does not fetch URLs from this host".to_string())
    }
}

async fn fetch(text: &str, settings: &Settings, timeout: Duration) -> Result<String, String> {
    let url = allowed_url(text, &settings.url_hosts)?;
    // The operator has named the host, so it may be one inside.
    http::get_text(
        &url,
        "text/*",
        Reach::Anywhere,
        settings.input_bytes,
        timeout,
    )
    .await
}

async fn event(
    input: &Input,
    hint: Option<String>,
    lookup: &Lookup,
    wait: Duration,
) -> Result<String, String> {
    let id = EventId::parse(&input.data).map_err(|_| "not an event id".to_string())?;
    let found = lookup
        .stored(Filter::new().id(id).limit(1), hint, wait, 1)
        .await;
    match found.into_iter().next() {
        Some(event) => Ok(event.content),
        None => {
            Err("event not found on this service's relays or on the relay in the input".to_string())
        }
    }
}

/// The reason why a job has no result.
enum Absent {
    /// The name is not the id of an event.
    NoId,
    /// None came in time.
    NoResult,
}

/// The result of the job that an input names, when it is there.
async fn job(
    input: &Input,
    hint: Option<String>,
    lookup: &Lookup,
    wait: Duration,
) -> Result<Event, Absent> {
    let id = EventId::parse(&input.data).map_err(|_| Absent::NoId)?;
    let result = timeout(wait, async {
        let mut providers = providers(id, hint.clone(), lookup).await;
        loop {
            let filter = Filter::new().kinds(RESULTS.map(Kind::from_u16)).event(id);
            let filter = if providers.is_empty() {
                filter
            } else {
                filter.authors(providers.clone())
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
    result.await.flatten().ok_or(Absent::NoResult)
}

/// The providers that may answer a job: those that its request names. Empty, which means any, if it names none or is not found.
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
        return Err("the result is encrypted by or for another key".to_string());
    }
    if request.encryption.is_none() {
        let problem = "the result is encrypted but this request is not: encrypt the request to keep the result private";
        return Err(problem.to_string());
    }
    // Both sides have the same secret with each other.
    let opened = decrypt(keys, customer, &result.content);
    opened.map(|(text, _)| text).map_err(|err| err.to_string())
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
