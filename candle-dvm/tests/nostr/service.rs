//! The service over a relay, with a scripted model.

use super::relay::{Behaviour, TestRelay};
use super::served::{error, feedback, wait_read, Customer, Served, HELD};
use super::wait::wait_until;
use candle_dvm::nip90::{
    cancellation, Announcement, Heartbeat, Input, JobKind, JobRequest, Scheme, Status,
};
use candle_dvm::service::now;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, Tag};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[test]
fn a_job_is_answered_on_every_relay() {
    let relays = [TestRelay::start(), TestRelay::start()];
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relays[0], &relays[1]], dir.path());
    // Longer than the time to the first partial.
    served.echo.pause.store(60, SeqCst);
    let customer = Customer::new();
    let job = customer.request_with("one two", |request| {
        request.params = vec![("max_tokens".to_string(), "4".to_string())];
    });
    relays[0].publish(&job);
    relays[1].publish(&job);
    let mut ids = Vec::new();
    for relay in &relays {
        let [event] = relay.wait_for(6050, 1).try_into().unwrap();
        assert_eq!(event.pubkey, served.keys.public_key());
        let result = customer.read(&event);
        assert_eq!(result.job, job.id);
        assert_eq!(result.text, "one two one two ");
        assert_eq!(result.amount_msat, None, "it is free");
        ids.push(event.id);
    }
    assert_eq!(ids[0], ids[1]);
    let statuses: Vec<Status> = feedback(&relays[0], &customer, &job)
        .iter()
        .map(|f| f.status)
        .collect();
    assert!(statuses.contains(&Status::Processing), "{statuses:?}");
    assert!(statuses.contains(&Status::Partial), "{statuses:?}");
    served.stop();
}

#[test]
fn requests_below_min_pow_are_refused() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.min_work = 8;
    });
    let customer = Customer::new();
    let idle = customer.request("idle");
    relay.publish(&idle);
    let reason = error(&relay, &customer, &idle);
    assert!(reason.contains("8 bits"), "{reason}");
    served.wait_refused("no_work", 1);
    let request = JobRequest {
        inputs: vec![Input::text("busy")],
        ..JobRequest::default()
    };
    let busy = request.write_with_work(&customer.0, now(), 8).unwrap();
    relay.publish(&busy);
    let results = relay.wait_for(6050, 1);
    assert_eq!(customer.read(&results[0]).job, busy.id);
}

#[test]
fn partial_results_are_cumulative_and_throttled() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.partial_millis = 200;
    });
    served.echo.pause.store(10, SeqCst);
    let customer = Customer::new();
    let job = customer.request_with("a b", |request| {
        request.params = vec![("max_tokens".to_string(), "60".to_string())];
    });
    let started = Instant::now();
    relay.publish(&job);
    let text = customer.read(&relay.wait_for(6050, 1)[0]).text;
    let most = 1 + started.elapsed().as_millis() as usize / 200;
    let mut partials = feedback(&relay, &customer, &job);
    partials.retain(|feedback| feedback.status == Status::Partial);
    // 600 ms and more of generation at one in 200 ms at most.
    assert!((2..=most).contains(&partials.len()), "{}", partials.len());
    let mut last = 0;
    for partial in partials {
        assert!(text.starts_with(&partial.text) && partial.text.len() > last);
        assert!(partial.expiration.unwrap() > now());
        last = partial.text.len();
    }
}

#[test]
fn what_is_done_at_once_has_a_result_and_no_partial() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.partial_millis = 60_000;
    });
    let customer = Customer::new();
    let job = customer.request("a b c");
    relay.publish(&job);
    relay.wait_for(6050, 1);
    let told = feedback(&relay, &customer, &job);
    let told: Vec<Status> = told.iter().map(|feedback| feedback.status).collect();
    assert_eq!(told, [Status::Processing]);
}

#[test]
fn encrypted_jobs_are_answered_in_their_scheme_and_show_nothing() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    for (count, scheme) in [Scheme::Nip04, Scheme::Nip44].into_iter().enumerate() {
        let customer = Customer::new();
        let job = customer.request_with("secretword", |request| {
            request.providers = vec![served.keys.public_key()];
            request.encryption = Some(scheme);
        });
        relay.publish(&job);
        let results = relay.wait_for(6050, count + 1);
        let result = customer.read(results.last().unwrap());
        assert_eq!(result.encryption, Some(scheme));
        assert_eq!(result.text, "secretword secretword secretword ");
    }
    for event in relay.events() {
        assert!(
            !event.as_json().contains("secretword"),
            "{}",
            event.as_json()
        );
    }
}

#[test]
fn jobs_for_others_are_left_alone() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let other = Keys::generate().public_key();
    relay.publish(&customer.request_with("a", |request| request.providers = vec![other]));
    relay.publish(&customer.request_with("a", |request| {
        request.params = vec![("model".to_string(), "another".to_string())];
    }));
    served.wait_refused("for_others", 1);
    served.wait_refused("other_model", 1);
    assert!(relay.of_kind(6050).is_empty() && relay.of_kind(7000).is_empty());
}

#[test]
fn refusals_give_their_reason() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let denied = Customer::new();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.deny = vec![denied.0.public_key().to_hex()];
        settings.min_bid_msat = 10;
        settings.input_bytes = 100;
    });
    let us = served.keys.public_key();
    let customer = Customer::new();
    let bid = |bid| move |request: &mut candle_dvm::nip90::JobRequest| request.bid_msat = Some(bid);
    let param = |key: &str, value: &str| {
        customer.request_with("a", |request| {
            request.bid_msat = Some(10);
            request.providers = vec![us];
            request.params = vec![(key.to_string(), value.to_string())];
        })
    };
    let cases = [
        (denied.request_with("a", bid(10)), "not allowed"),
        (customer.request_with("a", bid(9)), "the minimum is 10"),
        (
            customer.request_with(&"x".repeat(101), bid(10)),
            "limit is 100",
        ),
        (param("top_p", "7"), "top_p"),
        (param("model", "another"), "echo"),
    ];
    for (job, part) in cases {
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part), "{reason}");
    }
    assert!(relay.of_kind(6050).is_empty());
}

#[test]
fn quotas_and_a_full_queue_are_refused() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.open_per_key = 2;
        settings.running = 1;
        settings.queue = 2;
        // More than half of it is one job.
        settings.busy_work = 0;
    });
    served.echo.pause.store(HELD, SeqCst);
    let customers = [Customer::new(), Customer::new()];
    for (customer, prompt) in [(0, "a"), (0, "b"), (1, "c")] {
        relay.publish(&customers[customer].request(prompt));
    }
    let third = customers[0].request("d");
    relay.publish(&third);
    assert!(error(&relay, &customers[0], &third).contains("already has"));
    let fourth = customers[1].request("e");
    relay.publish(&fourth);
    assert!(error(&relay, &customers[1], &fourth).contains("queue is full"));
    served.echo.pause.store(0, SeqCst);
    relay.wait_for(6050, 3);
    let fifth = customers[0].request("f");
    relay.publish(&fifth);
    relay.wait_for(6050, 4);
}

#[test]
fn only_the_author_cancels_and_it_takes_a_token() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    served.echo.pause.store(20, SeqCst);
    let customer = Customer::new();
    let job = customer.request_with("a", |request| {
        request.params = vec![("max_tokens".to_string(), "2000".to_string())];
    });
    relay.publish(&job);
    relay.wait_for(7000, 2);
    let stranger = cancellation::write(&Keys::generate(), now(), JobKind::Text, &job.id).unwrap();
    relay.publish(&stranger);
    wait_read(&relay);
    let pieces = || served.echo.pieces.load(SeqCst);
    let before = pieces();
    wait_until(|| "it does not run any more", || pieces() > before + 2);
    assert_eq!(served.metrics.cancelled.load(SeqCst), 0);
    relay.publish(&cancellation::write(&customer.0, now(), JobKind::Text, &job.id).unwrap());
    wait_until(
        || "it was not cancelled",
        || served.metrics.cancelled.load(SeqCst) == 1,
    );
    let stopped = served.echo.pieces.load(SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(served.echo.pieces.load(SeqCst), stopped);
    assert!(relay.of_kind(6050).is_empty());
    assert_eq!(served.metrics.running.load(SeqCst), 0);
}

/// A restarted process does better than one that answers each job with an error.
#[test]
fn a_model_that_has_failed_ends_the_service_and_what_waits_is_done_at_the_next_start() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let start = || {
        Served::with(&[&relay], dir.path(), keys.clone(), |settings| {
            settings.running = 1;
        })
    };
    let served = start();
    served.echo.pause.store(HELD, SeqCst);
    let customer = Customer::new();
    let breaks = customer.request("broken");
    relay.publish(&breaks);
    let started = || served.echo.started.load(SeqCst);
    wait_until(|| "the job does not run".to_string(), || started() == 1);
    let waits = customer.request("later");
    relay.publish(&waits);
    wait_read(&relay);
    served.echo.pause.store(0, SeqCst);
    assert!(error(&relay, &customer, &breaks).contains("it is broken"));
    let echo = served.echo.clone();
    let end = served.ended().unwrap_err().to_string();
    assert!(end.contains("it is broken"), "{end}");
    assert_eq!(echo.started.load(SeqCst), 1, "another job was begun");
    assert!(relay.of_kind(6050).is_empty());

    let served = start();
    let results = relay.wait_for(6050, 1);
    assert_eq!(customer.read(&results[0]).job, waits.id);
    served.stop();
}

#[test]
fn a_job_that_takes_too_long_or_panics_is_an_error_and_the_next_one_runs() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.job_seconds = 1;
        settings.running = 1;
    });
    served.echo.pause.store(50, SeqCst);
    let customer = Customer::new();
    let long = customer.request_with("a", |request| {
        request.params = vec![("max_tokens".to_string(), "2000".to_string())];
    });
    relay.publish(&long);
    assert!(error(&relay, &customer, &long).contains("longer than 1 s"));
    served.echo.pause.store(0, SeqCst);
    let panics = customer.request("panic");
    relay.publish(&panics);
    assert!(error(&relay, &customer, &panics).contains("the model failed"));
    relay.publish(&customer.request("b"));
    relay.wait_for(6050, 1);
}

#[test]
fn jobs_in_a_row_that_panic_end_the_service() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
    });
    let customer = Customer::new();
    let panic = |prompt: &str| {
        let job = customer.request(prompt);
        relay.publish(&job);
        assert!(error(&relay, &customer, &job).contains("the model failed"));
    };
    panic("panic 1");
    panic("panic 2");
    // One that is done makes good what was before.
    relay.publish(&customer.request("b"));
    relay.wait_for(6050, 1);
    panic("panic 3");
    panic("panic 4");
    panic("panic 5");
    let end = served.ended().unwrap_err().to_string();
    assert!(end.contains("3 jobs in a row panicked"), "{end}");
}

#[test]
fn a_job_that_hangs_ends_the_service() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
        settings.job_seconds = 1;
        settings.hang_seconds = 1;
        settings.drain_seconds = 0;
    });
    let echo = served.echo.clone();
    echo.pause.store(HELD, SeqCst);
    let customer = Customer::new();
    relay.publish(&customer.request("a"));
    let end = served.ended_but_for_its_threads();
    let end = end.unwrap_err().to_string();
    echo.pause.store(0, SeqCst);
    assert!(end.contains("did not finish within 2 s"), "{end}");
    // The next start does what was not done.
    let _again = Served::with(&[&relay], dir.path(), Keys::generate(), |_| ());
    relay.wait_for(6050, 1);
}

#[test]
fn answers_go_to_the_customers_relays_if_they_are_public_or_allowed() {
    let own = TestRelay::start();
    let named = TestRelay::start();
    let listed = TestRelay::start();
    let customer = Customer::new();
    let job = || customer.request_with("a", |r| r.relays = vec![named.url.clone()]);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&own], dir.path());
    own.publish(&job());
    own.wait_for(6050, 1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(named.connections(), 0, "127.0.0.1 is private");
    drop(served);

    let dir = tempfile::tempdir().unwrap();
    let list = EventBuilder::new(Kind::from_u16(10002), "")
        .tag(Tag::parse(["r", listed.url.as_str()]).unwrap())
        .tag(Tag::parse(["r", "ws://127.0.0.1:1", "write"]).unwrap())
        .finalize(&customer.0)
        .unwrap();
    own.publish(&list);
    let served = Served::with(&[&own], dir.path(), Keys::generate(), |settings| {
        settings.private_relays = true;
    });
    // Not the same as the one before, whose id is known.
    let job = customer.request_with("b", |r| r.relays = vec![named.url.clone()]);
    own.publish(&job);
    named.wait_for(6050, 1);
    own.publish(&customer.request("c"));
    listed.wait_for(6050, 1);
    drop(served);
}

#[test]
fn a_service_shows_itself_and_leaves() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.max_tokens = 77;
    });
    let announcement = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    assert_eq!(announcement.params["max_tokens"].max.as_deref(), Some("77"));
    assert_eq!(announcement.params["model"].values, ["echo"]);
    assert!(announcement.encryption);
    let beat = Heartbeat::read(&relay.wait_for(11998, 1)[0]).unwrap();
    assert_eq!(beat.identifier, announcement.identifier);
    assert_eq!(beat.status, "online");
    served.stop();
    let gone = relay.wait_for(5, 1);
    let ids = cancellation::read(&gone[0]).unwrap();
    assert_eq!(ids, [relay.of_kind(31990)[0].id]);
}

#[test]
fn the_service_authenticates_to_a_relay() {
    let relay = TestRelay::with(Behaviour {
        auth: true,
        ..Behaviour::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    relay.publish(&customer.request("a"));
    relay.wait_for(6050, 1);
}

#[test]
fn an_answer_that_was_not_acknowledged_is_sent_again_as_it_was() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let served = Served::with(&[&relay], dir.path(), keys.clone(), |_| ());
    relay.set_deaf(true);
    let customer = Customer::new();
    let job = customer.request("a");
    relay.publish(&job);
    wait_until(
        || "no result was counted",
        || served.metrics.results.load(SeqCst) == 1,
    );
    drop(served);
    let journal = candle_dvm::journal::RedbJournal::open(&dir.path().join("journal.redb")).unwrap();
    let open = candle_dvm::jobs::Journal::open_jobs(&journal).unwrap();
    let signed = open[0].1.answer.as_ref().unwrap().id.clone();
    drop(journal);
    relay.set_deaf(false);
    let served = Served::with(&[&relay], dir.path(), keys, |_| ());
    let results = relay.wait_for(6050, 1);
    assert_eq!(results[0].id.to_hex(), signed);
    assert_eq!(served.echo.started.load(SeqCst), 0, "nothing ran again");
    // The relay replays the request at every start; it stays at one answer.
    relay.publish(&customer.request("b"));
    assert_eq!(relay.wait_for(6050, 2).len(), 2);
}

#[test]
fn who_sends_many_waits_for_itself() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
    });
    served.echo.pause.store(HELD, SeqCst);
    let greedy = Customer::new();
    for n in 0..8 {
        relay.publish(&greedy.request(&format!("greedy {n}")));
    }
    let others: Vec<Customer> = (0..9).map(|_| Customer::new()).collect();
    for other in &others {
        relay.publish(&other.request("modest"));
    }
    wait_until(
        || "not all of them wait",
        || served.metrics.queued.load(SeqCst) == 16,
    );
    served.echo.pause.store(0, SeqCst);
    let results = relay.wait_for(6050, 17);
    let greedy = greedy.0.public_key().to_hex();
    let place = |n: usize| {
        let mine = |event: &&Event| event.tags.iter().any(|tag| tag.content() == Some(&greedy));
        let nth = results.iter().filter(mine).nth(n).unwrap();
        results.iter().position(|event| event.id == nth.id).unwrap()
    };
    // It gets one turn in ten until the others have no jobs left, and one earlier if it was the first.
    assert_eq!([2, 7].map(place), [11, 16]);
}
