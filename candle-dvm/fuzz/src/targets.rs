//! What each target does with an input.

use std::sync::LazyLock;

use nostr::prelude::{Event, EventId, Filter, Keys, Kind};
use serde_json::json;

use super::nip90::announcement::withdraw;
use super::nip90::{
    cancellation, expiration, has_work, Announcement, Feedback, Heartbeat, JobKind, JobRequest,
    JobResult, Scheme,
};
use super::relay::{Keep, Machine, RelayLimits};

/// The customer. The keys are the same in each run, so that an input has the same meaning.
static CUSTOMER: LazyLock<Keys> = LazyLock::new(|| keys('1'));
/// The key that requests are addressed to.
static PROVIDER: LazyLock<Keys> = LazyLock::new(|| keys('2'));
/// When everything happens, in seconds.
const NOW: u64 = 1_800_000_000;

fn keys(digit: char) -> Keys {
    let secret = digit.to_string().repeat(64);
    Keys::parse(&secret).expect("a secret key")
}

/// Anything that a relay sends, a message a line, while a subscription and a publication are open. `!` closes the connection and opens
/// it again, `+` lets a minute pass.
pub fn relay(text: &str) {
    let mut now = NOW * 1000;
    let mut machine = Machine::new("ws://relay".to_string(), PROVIDER.clone(), 1);
    machine.set_date(NOW);
    machine.set_limits(RelayLimits::read(text));
    let jobs = Filter::new().kind(Kind::from_u16(5050));
    machine.subscribe("jobs", jobs.clone(), Some(NOW), false, now);
    machine.subscribe("once", jobs, None, true, now);
    let id = EventId::from_byte_array([0; 32]);
    let event = cancellation::write(&PROVIDER, NOW, JobKind::Text, &id).expect("an event");
    machine.publish(&event, Keep::Until, now);
    machine.opened(now);
    for line in text.lines() {
        match line {
            "!" => {
                machine.closed(now);
                machine.opened(now);
            }
            "+" => {
                now += 60_000;
                machine.set_date(now / 1000);
                machine.tick(now);
            }
            line => machine.receive(line, now),
        }
        // What is to be done after one message is no more than it asked for: two requests, an event, an answer to AUTH.
        let actions = std::iter::from_fn(|| machine.next_action()).count();
        assert!(actions <= 8, "{actions} actions");
        assert!(machine.unsettled() <= 1);
        assert!(machine.deadline() > 0);
    }
}

/// Any event, read as everything that there is. What could be read is written, and has to read back as the same.
///
/// The input is text. Its first line is the kind and how it is hidden (`5050`, `6050 nip44`, `7000 nip04`), then comes a tag a line, its
/// values parted by `|`, and after an empty line the content.
pub fn event(text: &str) {
    let Some(event) = read(text) else { return };
    request(&event);
    result(&event);
    feedback(&event);
    provider(&event);
    let _ = cancellation::read(&event);
    let _ = has_work(&event, 8);
    let _ = expiration(&event);
}

/// Customers write requests, providers write everything else.
fn read(text: &str) -> Option<Event> {
    let (head, content) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let kind: u16 = first.next()?.parse().ok()?;
    let scheme = match first.next() {
        Some("nip04") => Some(Scheme::Nip04),
        Some("nip44") => Some(Scheme::Nip44),
        _ => None,
    };
    let (writer, reader): (&Keys, &Keys) = match kind {
        5000 | 5050 => (&CUSTOMER, &PROVIDER),
        _ => (&PROVIDER, &CUSTOMER),
    };
    let mut tags: Vec<Vec<&str>> = lines.map(|line| line.split('|').collect()).collect();
    let mut content = content.to_string();
    let to = reader.public_key().to_hex();
    if let Some(scheme) = scheme {
        // A result's text is hidden as it is, tags as a list.
        let hidden = if content.is_empty() {
            serde_json::to_string(&tags).ok()?
        } else {
            content
        };
        content = scheme.encrypt(writer, &reader.public_key(), &hidden).ok()?;
        tags.retain(|tag| matches!(tag[0], "e" | "status" | "amount" | "relays"));
        tags.extend([vec!["encrypted"], vec!["p", &to]]);
    }
    let json = json!({
        "id": "0".repeat(64),
        "pubkey": writer.public_key().to_hex(),
        "created_at": NOW,
        "kind": kind,
        "tags": tags,
        "content": content,
        "sig": "0".repeat(128),
    });
    Event::from_json(json.to_string().as_bytes()).ok()
}

fn request(event: &Event) {
    let Ok(read) = JobRequest::read(event, &PROVIDER) else {
        return;
    };
    let _ = read.task();
    if let Ok(written) = read.write(&CUSTOMER, NOW) {
        assert_eq!(JobRequest::read(&written, &PROVIDER), Ok(read));
    }
}

fn result(event: &Event) {
    let Ok(mut read) = JobResult::read(event, &CUSTOMER) else {
        return;
    };
    if read.amount_msat.is_none() {
        // An invoice over nothing is nothing that is written.
        read.invoice = None;
    }
    let Ok(request) = cancellation::write(&CUSTOMER, NOW, JobKind::Text, &read.job) else {
        return;
    };
    if let Ok(written) = read.write(&PROVIDER, NOW, &request, None, usize::MAX) {
        assert_eq!(JobResult::read(&written, &CUSTOMER), Ok(read));
    }
}

fn feedback(event: &Event) {
    let Ok(mut read) = Feedback::read(event, &CUSTOMER) else {
        return;
    };
    if read.amount_msat.is_none() {
        read.invoice = None;
    }
    if let Ok(written) = read.write(&PROVIDER, NOW, &CUSTOMER.public_key()) {
        assert_eq!(Feedback::read(&written, &CUSTOMER), Ok(read));
    }
}

fn provider(event: &Event) {
    if let Ok(read) = Announcement::read(event) {
        let written = read.write(&PROVIDER, NOW).expect("an announcement");
        assert_eq!(Announcement::read(&written), Ok(read));
        let gone = withdraw(&PROVIDER, NOW, "a", Some(written.id)).expect("a deletion");
        assert_eq!(cancellation::read(&gone), Ok(vec![written.id]));
    }
    if let Ok(read) = Heartbeat::read(event) {
        let written = read.write(&PROVIDER, NOW).expect("a heartbeat");
        assert_eq!(Heartbeat::read(&written), Ok(read));
    }
}
