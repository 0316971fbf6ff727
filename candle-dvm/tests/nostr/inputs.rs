//! Inputs that are not text: events and results, on the service's relays and on those that the customer names, in the open and hidden.

use super::relay::TestRelay;
use super::served::{error, Customer, Served};
use candle_dvm::nip90::{Input, InputKind, JobResult, Scheme};
use candle_dvm::service::now;
use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

#[test]
fn inputs_are_events_and_results_of_other_jobs() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let note = EventBuilder::new(Kind::TextNote, "from-an-event")
        .finalize(&customer.0)
        .unwrap();
    relay.publish(&note);
    let with = |kind, data: String| {
        customer.request_with("", |request| {
            request.inputs = vec![Input {
                kind,
                ..Input::text(data)
            }];
        })
    };
    let first = with(InputKind::Event, note.id.to_hex());
    relay.publish(&with(InputKind::Job, first.id.to_hex()));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(served.echo.started.load(SeqCst), 0, "it waits");
    relay.publish(&first);
    let results = relay.wait_for(6050, 2);
    for result in &results {
        assert!(customer.read(result).text.starts_with("from-an-event "));
    }
    for (kind, data, part) in [
        (
            InputKind::Event,
            "0".repeat(64),
            "not found on this service's relays",
        ),
        (InputKind::Event, "x".to_string(), "not an event id"),
        (
            InputKind::Url,
            "http://127.0.0.1:1/".to_string(),
            "does not fetch URLs",
        ),
        (InputKind::Text, " ".to_string(), "no tokens"),
    ] {
        let job = with(kind, data);
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn inputs_are_looked_for_where_the_customer_says_too() {
    let own = TestRelay::start();
    let other = TestRelay::start();
    let customer = Customer::new();
    let note = EventBuilder::new(Kind::from_u16(1), "from-elsewhere")
        .finalize(&customer.0)
        .unwrap();
    other.publish(&note);
    let job = |kind, data: String| {
        customer.request_with("", |request| {
            request.inputs = vec![Input {
                kind,
                relay: Some(other.url.clone()),
                ..Input::text(data)
            }];
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&own], dir.path());
    let private = job(InputKind::Event, note.id.to_hex());
    own.publish(&private);
    let reason = error(&own, &customer, &private);
    assert!(reason.contains("input 1 (event)"), "{reason}");
    assert_eq!(other.connections(), 0, "127.0.0.1 is private");
    drop(served);

    let own = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::with(&[&own], dir.path(), Keys::generate(), |settings| {
        settings.private_relays = true;
    });
    own.publish(&job(InputKind::Event, note.id.to_hex()));
    let result = customer.read(&own.wait_for(6050, 1)[0]);
    assert!(result.text.starts_with("from-elsewhere "));
    // A result of another provider, which is not there yet.
    let first = customer.request("x");
    own.publish(&job(InputKind::Job, first.id.to_hex()));
    std::thread::sleep(Duration::from_millis(300));
    let result = JobResult {
        job: first.id,
        text: "from-a-job".to_string(),
        amount_msat: None,
        invoice: None,
        cashu: None,
        encryption: None,
        usage: None,
    };
    let somebody = Keys::generate();
    let result = result.write(&somebody, now(), &first, None, 64 * 1024);
    other.publish(&result.unwrap());
    let results = own.wait_for(6050, 2);
    assert!(customer.read(&results[1]).text.starts_with("from-a-job "));
}

#[test]
fn a_result_counts_if_its_author_is_a_named_provider() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let (asked, forger) = (Keys::generate(), Keys::generate());
    let first = customer.request_with("x", |request| {
        request.providers = vec![asked.public_key()];
    });
    let answer = |keys: &Keys, text: &str| {
        let result = JobResult {
            job: first.id,
            text: text.to_string(),
            amount_msat: None,
            invoice: None,
            cashu: None,
            encryption: None,
            usage: None,
        };
        let result = result.write(keys, now(), &first, None, 64 * 1024);
        relay.publish(&result.unwrap());
    };
    // Two that are alike would be one event.
    let next = |word: &str| {
        relay.publish(&customer.request_with("", |request| {
            let result = Input {
                kind: InputKind::Job,
                ..Input::text(first.id.to_hex())
            };
            request.inputs = vec![result, Input::text(word)];
        }));
    };
    // One looks before the request is there, and one when it is.
    next("early");
    std::thread::sleep(Duration::from_millis(300));
    relay.publish(&first);
    answer(&forger, "forged");
    next("late");
    std::thread::sleep(Duration::from_millis(300));
    answer(&asked, "genuine");
    let results = relay.wait_for(6050, 4);
    let ours = results
        .iter()
        .filter(|result| ![asked.public_key(), forger.public_key()].contains(&result.pubkey));
    for result in ours {
        let text = customer.read(result).text;
        assert!(text.starts_with("genuine "), "{text}");
    }
}

#[test]
fn a_hidden_result_is_an_input_of_its_customers_hidden_jobs_alone() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let job = |customer: &Customer, input: Input, scheme| {
        let job = customer.request_with("", |request| {
            request.inputs = vec![input];
            request.providers = vec![served.keys.public_key()];
            request.encryption = scheme;
        });
        relay.publish(&job);
        job
    };
    let first = job(&customer, Input::text("secretword"), Some(Scheme::Nip04));
    relay.wait_for(6050, 1);
    let named = || Input {
        kind: InputKind::Job,
        ..Input::text(first.id.to_hex())
    };
    let open = job(&customer, named(), None);
    let reason = error(&relay, &customer, &open);
    assert!(reason.contains("keep the result private"), "{reason}");
    let stranger = Customer::new();
    let theirs = job(&stranger, named(), Some(Scheme::Nip44));
    let reason = error(&relay, &stranger, &theirs);
    assert!(reason.contains("another key"), "{reason}");
    job(&customer, named(), Some(Scheme::Nip44));
    let results = relay.wait_for(6050, 2);
    assert_eq!(
        customer.read(&results[1]).text,
        "secretword secretword secretword "
    );
    for event in relay.events() {
        let json = event.as_json();
        assert!(!json.contains("secretword"), "{json}");
    }
}
