//! The relays on which customers hear of their jobs: those that they name, from the first event on, and those that they read, for which no
//! job waits.

use super::relay::{Behaviour, TestRelay};
use super::served::{error, feedback, wait_read, Customer, Served};
use super::wait::wait_until;
use candle_dvm::jobs::Invoice;
use candle_dvm::nip90::Status;
use candle_dvm::payment::Payment;
use candle_dvm::platform::Boxed;
use candle_dvm::service::now;
use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One invoice, paid when the test says so.
#[derive(Default)]
struct OneBill(AtomicBool);

impl Payment for OneBill {
    fn price_msat(&self) -> u64 {
        1000
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
        Box::pin(std::future::ready(Ok(self.0.load(SeqCst))))
    }
}

fn list(customer: &Customer, relay: &TestRelay) -> nostr::prelude::Event {
    EventBuilder::new(Kind::from_u16(10002), "")
        .tag(Tag::parse(["r", relay.url.as_str()]).unwrap())
        .finalize(&customer.0)
        .unwrap()
}

#[test]
fn bills_and_errors_come_to_the_relays_that_a_request_names() {
    let (own, named) = (TestRelay::start(), TestRelay::start());
    let dir = tempfile::tempdir().unwrap();
    let bill = Arc::new(OneBill::default());
    let served = Served::paid(
        &[&own],
        dir.path(),
        Keys::generate(),
        bill.clone(),
        |settings| settings.private_relays = true,
    );
    let customer = Customer::new();
    let ask = |prompt: &str, params: Vec<(String, String)>| {
        let job = customer.request_with(prompt, |request| {
            request.relays = vec![named.url.clone()];
            request.providers = vec![served.keys.public_key()];
            request.params = params;
        });
        own.publish(&job);
        job
    };
    let wait_told = |job, status| {
        let told = || feedback(&named, &customer, job);
        wait_until(
            || format!("no {status:?} in {:?}", told()),
            || told().iter().any(|told| told.status == status),
        );
    };
    let job = ask("a", vec![]);
    wait_told(&job, Status::PaymentRequired);
    bill.0.store(true, SeqCst);
    wait_told(&job, Status::Processing);
    named.wait_for(6050, 1);
    let wrong = ask("b", vec![("top_p".to_string(), "7".to_string())]);
    wait_told(&wrong, Status::Error);
    let empty = ask(" ", vec![]);
    wait_told(&empty, Status::Error);
}

#[test]
fn no_job_waits_for_a_relay_that_is_slow_to_look_for_its_customers_list() {
    let (own, slow, listed) = (
        TestRelay::start(),
        TestRelay::with(Behaviour {
            endless_search: true,
            ..Behaviour::default()
        }),
        TestRelay::start(),
    );
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let start = || {
        Served::with(&[&own, &slow], dir.path(), keys.clone(), |settings| {
            settings.private_relays = true;
        })
    };
    let served = start();
    let customer = Customer::new();
    own.publish(&list(&customer, &listed));
    let asked = Instant::now();
    let job = customer.request("a");
    own.publish(&job);
    own.wait_for(6050, 1);
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(listed.of_kind(6050).is_empty(), "nobody knows it yet");
    // The restarted service remembers that the answer has to go to relays that are not known yet.
    drop(served);
    let _served = start();
    let answers = listed.wait_for(6050, 1);
    assert_eq!(answers[0].id, own.of_kind(6050)[0].id);
}

#[test]
fn a_list_is_looked_for_once_for_many_jobs() {
    let (own, listed) = (TestRelay::start(), TestRelay::start());
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::with(&[&own], dir.path(), Keys::generate(), |settings| {
        settings.private_relays = true;
    });
    let customer = Customer::new();
    own.publish(&list(&customer, &listed));
    for n in 1..5 {
        own.publish(&customer.request(&format!("{n}")));
        listed.wait_for(6050, n);
    }
    let lists = |filter: &&nostr::prelude::Filter| {
        let kinds = filter.kinds.iter().flatten();
        kinds.into_iter().any(|kind| kind.as_u16() == 10002)
    };
    assert_eq!(own.asked().iter().filter(lists).count(), 1);
}

#[test]
fn a_refusal_is_sent_once_over_restarts() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let customer = Customer::new();
    let wrong = customer.request_with("a", |request| {
        request.providers = vec![keys.public_key()];
        request.params = vec![("top_p".to_string(), "7".to_string())];
    });
    for _ in 0..2 {
        let served = Served::with(&[&relay], dir.path(), keys.clone(), |_| ());
        relay.publish(&wrong);
        error(&relay, &customer, &wrong);
        wait_read(&relay);
        served.stop();
        // The same words within a second would be the same event.
        std::thread::sleep(Duration::from_millis(1100));
    }
    assert_eq!(feedback(&relay, &customer, &wrong).len(), 1);
}

#[test]
fn refusals_to_strangers_are_few_however_many_there_are() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let known = Customer::new();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.input_bytes = 10;
    });
    relay.publish(&known.request("a"));
    relay.wait_for(6050, 1);
    let started = Instant::now();
    for _ in 0..200 {
        relay.publish(&Customer::new().request("more than ten bytes"));
    }
    served.wait_refused("input_too_long", 200);
    let most = 60 + started.elapsed().as_secs() as usize + 1;
    let job = known.request("more than ten bytes");
    relay.publish(&job);
    error(&relay, &known, &job);
    let errors = relay.of_kind(7000).len();
    // And the feedback to the known customer.
    assert!((60..=most + 4).contains(&errors), "{errors}");
}
