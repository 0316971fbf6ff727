//! Nothing of an encrypted request is seen by others, whatever is wrong with it: not in an event, not in the log.

use super::relay::TestRelay;
use super::served::{wait_read, Customer, Served};
use super::wait::wait_until;
use candle_dvm::jobs::Invoice;
use candle_dvm::nip90::{Feedback, JobResult, Scheme, Status};
use candle_dvm::payment::Payment;
use candle_dvm::platform::Boxed;
use candle_dvm::service::now;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, PublicKey, Tag};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// In every hidden text; neither hexadecimal nor likely in base64.
const MARK: &str = "q7zhushed";
/// The first digits of all hidden bids, which are below the price.
const BID: &str = "739055";
const PRICE: u64 = 9_000_000_000_000;
const CASES: u32 = 24;

/// Log lines, of all tests of the process, that show a hidden text.
static SHOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if line.contains(MARK) {
            SHOWN.lock().unwrap().push(line.into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn capture_log() {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(|| Log);
    log.try_init().unwrap();
    tracing::trace!("{MARK}, so that the test can fail");
    let shown = std::mem::take(&mut *SHOWN.lock().unwrap());
    assert_eq!(shown.len(), 1, "{shown:?}");
}

/// Each invoice is paid at once.
struct Paid;

impl Payment for Paid {
    fn price_msat(&self) -> u64 {
        PRICE
    }

    fn invoice<'a>(&'a self, amount_msat: u64, _: &'a str) -> Boxed<'a, Result<Invoice, String>> {
        Box::pin(std::future::ready(Ok(Invoice {
            bolt11: "lnbc1".to_string(),
            payment_hash: "1".to_string(),
            amount_msat,
            expires: now() + 600,
            paid: false,
        })))
    }

    fn is_paid<'a>(&'a self, _: &'a Invoice) -> Boxed<'a, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(true)))
    }
}

/// The encrypted content.
#[derive(Clone, Debug)]
enum Inside {
    Tags(Vec<Vec<String>>),
    Text(String),
    /// Tags whose ciphertext was cut.
    Cut(Vec<Vec<String>>),
}

impl Inside {
    fn write(&self, scheme: Scheme, keys: &Keys, provider: &PublicKey) -> String {
        let encrypt = |text: &str| scheme.encrypt(keys, provider, text).unwrap();
        match self {
            Self::Tags(tags) => encrypt(&serde_json::to_string(tags).unwrap()),
            Self::Text(text) => encrypt(text),
            Self::Cut(tags) => {
                let mut cut = encrypt(&serde_json::to_string(tags).unwrap());
                cut.replace_range(4..8, "");
                cut
            }
        }
    }
}

/// A hidden tag, right or wrong; `%` is replaced by the address of a relay.
fn hidden_tag() -> impl Strategy<Value = Vec<String>> {
    let forms: Vec<Vec<&'static str>> = vec![
        vec!["i", "$"],
        vec!["i", "$", "text"],
        vec!["i", "text", "$"],
        vec!["i", "$", "$"],
        vec!["i", "$", "event"],
        vec!["i", "$", "job"],
        vec!["i", "$", "url"],
        vec!["i", "http://127.0.0.1:1/$", "url"],
        vec!["i", "#", "event", "%/$"],
        vec!["i", "", "text", "%/$", "$"],
        vec!["param", "model", "$"],
        vec!["param", "max_tokens", "$"],
        vec!["param", "temperature", "$"],
        vec!["param", "top_p", "$"],
        vec!["param", "$", "1"],
        vec!["param", "prompt", "$"],
        vec!["output", "$"],
        vec!["bid", "$"],
        vec!["bid", "+"],
        vec!["relays", "%/$", "$"],
        vec!["$", "$"],
    ];
    let word = "[a-z0-9]{6}".prop_map(|word| format!("{MARK}{word}"));
    let bid = "[0-9]{6}".prop_map(|digits| format!("{BID}{digits}"));
    let form = proptest::sample::select(forms);
    (form, word, bid, "[0-9a-f]{64}").prop_map(|(form, word, bid, id)| {
        let fill = |part: &str| match part {
            "+" => bid.clone(),
            "#" => id.clone(),
            part => part.replace('$', &word),
        };
        form.into_iter().map(fill).collect()
    })
}

fn inside() -> impl Strategy<Value = Inside> {
    let tags = || vec(hidden_tag(), 1..4);
    prop_oneof![
        8 => tags().prop_map(Inside::Tags),
        1 => "[a-z{]{0,8}".prop_map(|text| Inside::Text(format!("{text}{MARK}"))),
        1 => tags().prop_map(Inside::Cut),
    ]
}

fn case() -> impl Strategy<Value = (Inside, Scheme)> {
    let scheme = prop_oneof![Just(Scheme::Nip04), Just(Scheme::Nip44)];
    (inside(), scheme)
}

struct World {
    relay: TestRelay,
    other: TestRelay,
    served: Served,
    _dir: tempfile::TempDir,
    asked: RefCell<Vec<(Customer, Event)>>,
}

impl World {
    fn new() -> Self {
        let (relay, other) = (TestRelay::start(), TestRelay::start());
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::generate();
        let served = Served::paid(&[&relay], dir.path(), keys, Arc::new(Paid), |settings| {
            settings.private_relays = true;
            settings.url_hosts = vec!["127.0.0.1".to_string()];
        });
        Self {
            relay,
            other,
            served,
            _dir: dir,
            asked: RefCell::default(),
        }
    }

    /// Asks, and waits until the service has read it.
    fn ask(&self, inside: &Inside, scheme: Scheme) {
        let place = |tag: &Vec<String>| {
            let parts = tag.iter().map(|part| part.replace('%', &self.other.url));
            parts.collect::<Vec<_>>()
        };
        let inside = match inside {
            Inside::Tags(tags) => Inside::Tags(tags.iter().map(place).collect()),
            Inside::Cut(tags) => Inside::Cut(tags.iter().map(place).collect()),
            other => other.clone(),
        };
        let customer = Customer::new();
        let provider = self.served.keys.public_key();
        let content = inside.write(scheme, &customer.0, &provider);
        let tags =
            [vec!["encrypted"], vec!["p", &provider.to_hex()]].map(|tag| Tag::parse(tag).unwrap());
        let job = EventBuilder::new(Kind::from_u16(5050), content)
            .tags(tags)
            .finalize(&customer.0)
            .unwrap();
        self.relay.publish(&job);
        wait_read(&self.relay);
        self.asked.borrow_mut().push((customer, job));
    }

    /// The feedback on the requests.
    fn said(&self) -> Vec<Event> {
        let mut events = self.relay.events();
        events.extend(self.other.events());
        events.retain(|event| event.pubkey == self.served.keys.public_key());
        events
    }

    fn check(&self) -> Result<(), String> {
        for event in self.said() {
            let json = event.as_json();
            if json.contains(MARK) || json.contains(&format!("\"{BID}")) {
                return Err(format!("an event shows it: {json}"));
            }
            for words in json.split(|c: char| !c.is_ascii_digit()) {
                if words.len() == 12 && words.starts_with(BID) {
                    return Err(format!("an event shows the bid: {json}"));
                }
            }
        }
        match SHOWN.lock().unwrap().first() {
            None => Ok(()),
            Some(line) => Err(format!("the log shows it: {line}")),
        }
    }
}

fn tags(tags: &[&[&str]]) -> Inside {
    let tag = |tag: &&[&str]| tag.iter().map(|part| part.replace('$', MARK)).collect();
    Inside::Tags(tags.iter().map(tag).collect())
}

#[test]
fn whatever_is_wrong_with_an_encrypted_request_nothing_of_it_is_shown() {
    capture_log();
    let world = World::new();
    let known = [
        tags(&[&["i", "text", "$"]]),
        tags(&[&["i", "a $"], &["param", "max_tokens", "$"]]),
        tags(&[&["i", "a $"], &["param", "model", "$"]]),
        tags(&[&["i", "a $"], &["bid", "$"]]),
        tags(&[&["i", "$", "job"]]),
        tags(&[&["i", "a $"], &["relays", "%/$"]]),
        tags(&[&["param", "top_k", "$"]]),
        Inside::Text(format!("{{{MARK}")),
    ];
    for inside in &known {
        for scheme in [Scheme::Nip04, Scheme::Nip44] {
            world.ask(inside, scheme);
            world.check().unwrap();
        }
    }
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 40,
        ..ProptestConfig::default()
    };
    let asked = TestRunner::new(config).run(&case(), |(inside, scheme)| {
        world.ask(&inside, scheme);
        world.check().map_err(TestCaseError::fail)
    });
    asked.unwrap();

    // All that they were told came to them, and is for their eyes.
    let said = world.said();
    let (mut errors, mut results) = (0, 0);
    for (customer, job) in world.asked.borrow().iter() {
        let about = |event: &&Event| {
            let tag = |tag: &Tag| tag.kind() == "e" && tag.content() == Some(&job.id.to_hex());
            event.tags.iter().any(tag)
        };
        let told = || said.iter().filter(about);
        wait_until(
            || format!("nothing was said of {}", job.as_json()),
            || world.said().iter().filter(about).count() > 0,
        );
        for event in told() {
            let hidden = event.tags.iter().any(|tag| tag.kind() == "encrypted");
            assert!(hidden && !event.content.is_empty(), "{}", event.as_json());
            if event.kind.as_u16() == 6050 {
                let result = JobResult::read(event, &customer.0).unwrap();
                results += usize::from(result.text.contains(MARK));
                continue;
            }
            let feedback = Feedback::read(event, &customer.0).unwrap();
            if feedback.status == Status::Error {
                let reason = feedback.extra.unwrap();
                assert!(!reason.contains(MARK) && !reason.contains(BID), "{reason}");
                errors += 1;
            }
        }
    }
    println!("{errors} errors, {results} results");
    assert!(errors >= 12 && results >= 2, "{errors}, {results}");
    world.check().unwrap();
}
