//! What one relay refuses, says or does, and what the others have of it.

use super::hostile::{event_message, request_at};
use super::relay::{Behaviour, Notices, TestRelay};
use super::served::{Customer, Served};
use super::wait::wait_until;
use candle_dvm::nip90::{Input, InputKind, JobKind};
use candle_dvm::relay::driver::{Command, Driver, Report};
use candle_dvm::relay::{normal_url, Keep, Outcome, Reach};
use candle_dvm::service::now;
use futures_util::StreamExt;
use nostr::prelude::{Event, Keys};
use std::collections::BTreeSet;
use std::net::TcpListener;
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
    let started = Instant::now();
    other.publish(&customer.request(&"word ".repeat(300)));
    let complete = &other.wait_for(6050, 1)[0];
    let small = &strict.wait_for(6050, 1)[0];
    assert!(started.elapsed() < Duration::from_secs(10));
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
    // The service reads their documents concurrently with the connection.
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
fn one_subscription_covers_the_cancellations_of_many_jobs() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let last = customer.request("last");
    for n in 0..40 {
        let done = served.metrics.results.load(SeqCst);
        relay.publish(&Customer::new().request(&format!("job {n}")));
        let problem = || format!("job {n} has no result");
        wait_until(problem, || served.metrics.results.load(SeqCst) > done);
    }
    served.echo.pause.store(super::served::HELD, SeqCst);
    relay.publish(&last);
    wait_until(
        || "it does not run",
        || served.echo.started.load(SeqCst) == 41,
    );
    let cancelled =
        candle_dvm::nip90::cancellation::write(&customer.0, now(), JobKind::Text, &last.id)
            .unwrap();
    relay.publish(&cancelled);
    // The service subscribes within a second; then the model may continue, and is stopped.
    std::thread::sleep(Duration::from_millis(2500));
    served.echo.pause.store(0, SeqCst);
    wait_until(
        || "it was not cancelled",
        || served.metrics.cancelled.load(SeqCst) == 1,
    );
    let asked = u64::from(relay.requests("cancellations"));
    let most = started.elapsed().as_secs() + 2;
    assert!((1..=most).contains(&asked), "{asked} in {most} s");
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
    assert!(reason.contains("not a public address"), "{reason}");
    assert_eq!((*id, relay.connections()), (event.id, 0));
}

/// Ways to write an address of this machine.
const HERE: [&str; 25] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.255.255.254",
    "127.1",
    "127.0.1",
    "0.0.0.0",
    "0",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "%31%32%37.0.0.1",
    "１２７.0.0.1",
    "localhost",
    "LOCALHOST",
    "user@127.0.0.1",
    "user:word@127.0.0.1",
    "example.com@127.0.0.1",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::127.0.0.1]",
];

/// Number of them, equivalent ones counted once, to which the service connects.
fn knocks(reach: Reach) -> usize {
    let v4 = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = v4.local_addr().unwrap().port();
    // Not every machine has it.
    let v6 = TcpListener::bind(("::1", port)).ok();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (report, reports) = futures_channel::mpsc::channel(256);
        let urls = HERE.map(|host| format!("ws://{host}:{port}"));
        let urls = urls.iter().filter_map(|url| normal_url(url).ok());
        let urls: BTreeSet<String> = urls.collect();
        let event = Customer::new().request("a");
        let start = |url: &String| {
            let driver = Driver::start(url, Keys::generate(), reach, report.clone());
            driver.send(Command::Publish(Box::new(event.clone()), Keep::Until));
            driver
        };
        let drivers: Vec<Driver> = urls.iter().map(start).collect();
        // Nobody answers those that are let through.
        let until = tokio::time::sleep(Duration::from_secs(3));
        let down = |(url, report)| async move { matches!(report, Report::Down(_)).then_some(url) };
        let down = reports.filter_map(down).take_until(until);
        let down: BTreeSet<String> = down.collect().await;
        assert!(reach == Reach::Anywhere || down == urls, "{down:?}");
        drop(drivers);
    });
    let mut knocks = 0;
    for listener in [Some(v4), v6].into_iter().flatten() {
        listener.set_nonblocking(true).unwrap();
        while listener.accept().is_ok() {
            knocks += 1;
        }
    }
    knocks
}

#[test]
fn no_spelling_of_an_address_leads_inside() {
    assert_eq!(knocks(Reach::Public), 0);
    let spelled = knocks(Reach::Anywhere);
    assert!(
        spelled >= 8,
        "only {spelled} differ and are addresses at all"
    );
}
