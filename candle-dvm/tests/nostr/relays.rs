//! What one relay refuses, says or does, and what the others have of it.

use super::hostile::{event_message, request_at};
use super::relay::{Behaviour, Notices, TestRelay};
use super::served::{Customer, Served};
use super::wait::wait_until;
use candle_dvm::nip90::{Input, InputKind};
use candle_dvm::relay::driver::{Command, Driver, Report};
use candle_dvm::relay::{Keep, Outcome, Reach};
use candle_dvm::service::now;
use futures_util::StreamExt;
use nostr::prelude::{Event, Keys};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn repeats(result: &Event) -> bool {
    let kinds = ["i", "request"];
    result.tags.iter().any(|tag| kinds.contains(&tag.kind()))
}

#[test]
fn an_answer_to_which_a_relay_says_notice_is_sent_without_what_it_repeats() {
    let strict = TestRelay::with(Behaviour {
        notices: Notices::LongTags,
        ..Behaviour::default()
    });
    let other = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&strict, &other], dir.path());
    let customer = Customer::new();
    other.publish(&customer.request(&"word ".repeat(300)));
    let complete = &other.wait_for(6050, 1)[0];
    let small = &strict.wait_for(6050, 1)[0];
    assert!(repeats(complete) && !repeats(small));
    assert_eq!(customer.read(small).text, customer.read(complete).text);
    let started = Instant::now();
    strict.publish(&customer.request("short"));
    assert!(strict.wait_for(6050, 2).iter().any(repeats));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(strict.connections(), 1, "it was never left");
    drop(served);
    assert_eq!(strict.of_kind(6050).len(), 2);
}

#[test]
fn a_relay_that_says_notice_to_everything_or_is_dead_harms_no_other() {
    let notices = TestRelay::with(Behaviour {
        notices: Notices::Always,
        ..Behaviour::default()
    });
    let dead = TestRelay::start();
    dead.stop();
    let good = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&good], dir.path(), Keys::generate(), |settings| {
        settings.relays.push(notices.url.clone());
        settings.relays.push(dead.url.clone());
        settings.hourly_per_key = 1000;
    });
    let customer = Customer::new();
    for n in 0..30 {
        let started = Instant::now();
        good.publish(&customer.request(&format!("job {n}")));
        good.wait_for(6050, n + 1);
        assert!(started.elapsed() < Duration::from_secs(3));
    }
    wait_until(
        || "it has nothing else to do",
        || served.metrics.delivered.load(SeqCst) == 30,
    );
    assert_eq!(notices.connections(), 1, "it was never left");
}

fn informed(limitation: &str) -> TestRelay {
    TestRelay::with(Behaviour {
        information: Some(format!(r#"{{"limitation":{{{limitation}}}}}"#)),
        ..Behaviour::default()
    })
}

#[test]
fn the_limits_of_one_relay_are_not_those_of_the_others() {
    let plain = TestRelay::start();
    let absurd = informed(r#""max_message_length":300"#);
    let small = informed(r#""max_message_length":2000"#);
    let short = informed(r#""max_content_length":64"#);
    let relays = [&plain, &absurd, &small, &short];
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&relays, dir.path());
    // Their documents are read beside the connection.
    std::thread::sleep(Duration::from_millis(500));
    let customer = Customer::new();
    plain.publish(&customer.request(&"word ".repeat(300)));
    assert!(repeats(&plain.wait_for(6050, 1)[0]));
    assert!(repeats(&absurd.wait_for(6050, 1)[0]));
    assert!(!repeats(&small.wait_for(6050, 1)[0]));
    assert!(repeats(&short.wait_for(6050, 1)[0]));
    let long = customer.request_with("some words", |request| {
        request.params = vec![("max_tokens".to_string(), "40".to_string())];
    });
    plain.publish(&long);
    for relay in [&plain, &absurd, &small] {
        relay.wait_for(6050, 2);
    }
    let all = served.metrics.results.load(SeqCst);
    assert_eq!((all, served.metrics.errors.load(SeqCst)), (2, 0));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(short.of_kind(6050).len(), 1, "it takes 64 characters");
}

#[test]
fn customers_whose_relays_find_no_place_at_first_get_their_answers_later() {
    let own = TestRelay::start();
    let live = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::with(&[&own], dir.path(), Keys::generate(), |settings| {
        settings.private_relays = true;
    });
    // Nothing listens at these.
    let dead = |n: usize| format!("ws://127.0.0.1:{}", 1 + n);
    for n in 0..7 {
        let job = Customer::new().request_with("a", |request| {
            request.relays = (0..5).map(|m| dead(5 * n + m)).collect();
        });
        own.publish(&job);
    }
    own.wait_for(6050, 7);
    let customer = Customer::new();
    own.publish(&customer.request_with("b", |r| r.relays = vec![live.url.clone()]));
    live.wait_for(6050, 1);
}

#[test]
fn a_relay_that_an_input_names_and_that_forges_without_end_is_left() {
    let mut forged = request_at(now(), "forged");
    forged["sig"] = serde_json::json!("0".repeat(128));
    let noise = (1..9).map(|n| {
        let message = event_message(forged.clone());
        message.replacen("jobs", &format!("search-{n}"), 1)
    });
    let attacker = TestRelay::with(Behaviour {
        noise: noise.collect(),
        endless: true,
        ..Behaviour::default()
    });
    let own = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&own], dir.path(), Keys::generate(), |settings| {
        settings.private_relays = true;
    });
    let customer = Customer::new();
    let job = customer.request_with("a", |request| {
        request.inputs = vec![Input {
            relay: Some(attacker.url.clone()),
            kind: InputKind::Job,
            ..Input::text("ab".repeat(32))
        }];
    });
    own.publish(&job);
    served.wait_refused("forged", 20);
    std::thread::sleep(Duration::from_millis(1500));
    let counted = served.metrics.refused.lock().unwrap()["forged"];
    assert!(counted < 100, "{counted}");
    assert_eq!(attacker.connections(), 1);
    own.publish(&customer.request("b"));
    own.wait_for(6050, 1);
}

#[test]
fn an_address_that_is_not_allowed_is_tried_once() {
    let relay = TestRelay::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let event = Customer::new().request("a");
    let said = runtime.block_on(async {
        let (report, reports) = futures_channel::mpsc::channel(32);
        let driver = Driver::start(&relay.url, Keys::generate(), Reach::Public, report);
        driver.send(Command::Publish(Box::new(event.clone()), Keep::Until));
        let until = tokio::time::sleep(Duration::from_secs(3));
        let said = reports.map(|(_, report)| report).take_until(until);
        said.collect::<Vec<Report>>().await
    });
    let [Report::Down(reason), Report::Settled(id, Outcome::Rejected(_))] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert!(reason.contains("no public address"), "{reason}");
    assert_eq!((*id, relay.connections()), (event.id, 0));
}
