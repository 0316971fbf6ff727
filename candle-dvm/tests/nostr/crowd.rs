//! Crowds of fresh keys, which cost nothing: customers who had results before are served all the same, and strangers soon after.

use super::relay::TestRelay;
use super::served::{error, feedback, Customer, Served, HELD};
use super::wait::wait_until;
use candle_dvm::nip90::{Input, JobRequest, JobResult, Status};
use candle_dvm::service::now;
use nostr::prelude::{Event, Keys};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A job of a fresh key that asks for much.
fn greedy(n: usize) -> Event {
    Customer::new().request_with(&format!("stranger {n}"), |request| {
        request.params = vec![("max_tokens".to_string(), "400".to_string())];
    })
}

/// Whether a job has its result.
fn has_result(relay: &TestRelay, customer: &Customer, job: &Event) -> bool {
    let results = relay.of_kind(6050).into_iter();
    let mut read = results.filter_map(|event| JobResult::read(&event, &customer.0).ok());
    read.any(|result| result.job == job.id)
}

/// The bits that a refusal asks for, if it asks for work.
fn bits_asked(relay: &TestRelay, customer: &Customer, job: &Event) -> Option<u8> {
    let told = feedback(relay, customer, job).into_iter();
    let mut reasons = told.filter(|told| told.status == Status::Error);
    let reason = reasons.find_map(|told| told.extra)?;
    let before = reason.split(" bits").next()?;
    before.rsplit(' ').next()?.parse().ok()
}

fn with_work(customer: &Customer, prompt: &str, bits: u8) -> Event {
    let request = JobRequest {
        inputs: vec![Input::text(prompt)],
        ..JobRequest::default()
    };
    request.write_with_work(&customer.0, now(), bits).unwrap()
}

#[test]
fn a_crowd_of_fresh_keys_shuts_nobody_out() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 2;
        settings.queue = 16;
    });
    let known = Customer::new();
    relay.publish(&known.request("before"));
    relay.wait_for(6050, 1);
    // A job of the crowd would take two seconds, so two run in that time; ten come in each.
    served.echo.pause.store(5, SeqCst);
    for n in 0..40 {
        relay.publish(&greedy(n));
    }
    let mut asked: Vec<Event> = Vec::new();
    for n in 40..100 {
        relay.publish(&greedy(n));
        if n % 10 == 0 {
            let job = known.request(&format!("during {n}"));
            relay.publish(&job);
            asked.push(job);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = Instant::now();
    let stranger = Customer::new();
    let mut jobs: Vec<Event> = Vec::new();
    let waited = loop {
        let waited = ended.elapsed();
        if jobs.iter().any(|job| has_result(&relay, &stranger, job)) {
            break waited;
        }
        assert!(waited < Duration::from_secs(10), "no result for a stranger");
        // A person who asks again every second, and does the work once it is known.
        if waited >= Duration::from_secs(jobs.len() as u64) {
            let mut told = jobs.iter().rev();
            let bits = told.find_map(|job| bits_asked(&relay, &stranger, job));
            let job = with_work(
                &stranger,
                &format!("after {}", jobs.len()),
                bits.unwrap_or(0),
            );
            relay.publish(&job);
            jobs.push(job);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    println!(
        "a stranger has a result {waited:.1?} after the crowd's end, asked {} times",
        jobs.len()
    );
    // Known customers get every other turn, after the crowd's jobs of two seconds.
    let answers = || {
        let answered = asked.iter().filter(|job| has_result(&relay, &known, job));
        answered.count()
    };
    while answers() < asked.len() && ended.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let answered = answers();
    println!(
        "{answered} of {} jobs of a known customer were answered {:.1?} after the crowd's end",
        asked.len(),
        ended.elapsed()
    );
    assert_eq!(answered, asked.len());
    let refused = served.metrics.refused.lock().unwrap().clone();
    assert!(refused.contains_key("busy"), "{refused:?}");
}

#[test]
fn a_known_customer_gets_the_place_of_the_newest_stranger() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
        settings.queue = 4;
        settings.busy_work = 0;
    });
    let known = Customer::new();
    relay.publish(&known.request("before"));
    relay.wait_for(6050, 1);
    served.echo.pause.store(HELD, SeqCst);
    let strangers: Vec<Customer> = (0..5).map(|_| Customer::new()).collect();
    let jobs: Vec<Event> = strangers.iter().map(|who| who.request("a")).collect();
    jobs.iter().for_each(|job| relay.publish(job));
    let told = |n: usize| error(&relay, &strangers[n], &jobs[n]);
    assert!(told(4).contains("the queue is full"), "{}", told(4));
    // The slot that is kept for known customers, then that of the fourth stranger.
    let theirs = ["b", "c"].map(|prompt| known.request(prompt));
    theirs.iter().for_each(|job| relay.publish(job));
    assert!(told(3).contains("took this job's place"), "{}", told(3));
    // A job has its place before it is prepared, and its turn after.
    wait_until(
        || "not all of them wait",
        || served.metrics.queued.load(SeqCst) == 4,
    );
    served.echo.pause.store(0, SeqCst);
    let results = relay.wait_for(6050, 6);
    let place = |job: &Event| {
        let mut jobs = results
            .iter()
            .map(|event| JobResult::read(event, &known.0).unwrap().job);
        jobs.position(|id| id == job.id).unwrap()
    };
    // Their first job is next, before all others; the second waits for its own turn.
    assert_eq!(theirs.each_ref().map(place), [2, 5]);
}

#[test]
fn who_had_a_result_is_known_after_a_restart() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let start = || {
        Served::with(&[&relay], dir.path(), keys.clone(), |settings| {
            settings.running = 1;
            settings.queue = 4;
            settings.busy_work = 0;
        })
    };
    let served = start();
    let known = Customer::new();
    relay.publish(&known.request("before"));
    relay.wait_for(6050, 1);
    served.stop();
    let served = start();
    served.echo.pause.store(HELD, SeqCst);
    for n in 0..5 {
        relay.publish(&greedy(n));
    }
    served.wait_refused("queue_full", 1);
    relay.publish(&known.request("after"));
    wait_until(
        || "the place for known customers is not theirs",
        || served.metrics.accepted.load(SeqCst) == 5,
    );
}

#[test]
fn strangers_who_are_many_show_work_and_get_less() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
        settings.queue = 8;
        settings.busy_tokens = 2;
    });
    served.echo.pause.store(HELD, SeqCst);
    // One runs, four are half of the queue, and one is more.
    let strangers: Vec<Customer> = (0..7).map(|_| Customer::new()).collect();
    let jobs: Vec<Event> = strangers.iter().map(|who| who.request("a")).collect();
    relay.publish(&jobs[0]);
    wait_until(
        || "it does not run",
        || served.echo.started.load(SeqCst) == 1,
    );
    jobs[1..6].iter().for_each(|job| relay.publish(job));
    wait_until(
        || "not all of them wait",
        || served.metrics.queued.load(SeqCst) == 5,
    );
    relay.publish(&jobs[6]);
    let reason = error(&relay, &strangers[6], &jobs[6]);
    assert!(
        reason.contains("needs 12 bits of proof of work"),
        "{reason}"
    );
    relay.publish(&with_work(&strangers[6], "a", 12));
    wait_until(
        || "work is not enough",
        || served.metrics.queued.load(SeqCst) == 6,
    );
    served.echo.pause.store(0, SeqCst);
    let results = relay.wait_for(6050, 7);
    let texts = results.iter().map(|event| strangers[0].read(event).text);
    let texts: Vec<String> = texts.collect();
    assert_eq!(texts[0], "a a a ", "nobody waited when it began");
    assert_eq!(texts[1], "a a ");
    let said = feedback(&relay, &strangers[1], &jobs[1]).into_iter();
    let said: Vec<String> = said.filter_map(|told| told.extra).collect();
    assert_eq!(said, ["busy: this result ends after 2 tokens"]);
    // Nobody waits any more, so the toll ends soon.
    let last = Customer::new();
    let mut asked = 0;
    wait_until(
        || "the toll does not end",
        || {
            asked += 1;
            // Each key hears of 30 refusals in an hour.
            std::thread::sleep(Duration::from_millis(250));
            let job = last.request(&format!("again {asked}"));
            relay.publish(&job);
            wait_until(
                || "no answer",
                || has_result(&relay, &last, &job) || bits_asked(&relay, &last, &job).is_some(),
            );
            has_result(&relay, &last, &job)
        },
    );
}

#[test]
fn a_refused_stranger_hears_it_in_spite_of_a_crowd() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.running = 1;
        settings.queue = 1;
        settings.busy_work = 0;
    });
    served.echo.pause.store(HELD, SeqCst);
    for n in 0..150 {
        relay.publish(&greedy(n));
    }
    let stranger = Customer::new();
    let job = stranger.request("after");
    relay.publish(&job);
    let asked = Instant::now();
    assert!(error(&relay, &stranger, &job).contains("the queue is full"));
    println!("told {:.1?} after the crowd", asked.elapsed());
    // While the crowd arrives, a stranger who asks again gets an answer: no key is the newest for long.
    let stranger = Customer::new();
    let mut jobs: Vec<Event> = Vec::new();
    let has_error = |job: &Event| {
        let mut told = feedback(&relay, &stranger, job).into_iter();
        told.any(|told| told.status == Status::Error)
    };
    let asked = Instant::now();
    let mut n = 150;
    while !jobs.iter().any(has_error) {
        assert!(asked.elapsed() < Duration::from_secs(15), "not told");
        if asked.elapsed() >= Duration::from_millis(1500 * jobs.len() as u64) {
            let job = stranger.request(&format!("again {}", jobs.len()));
            relay.publish(&job);
            jobs.push(job);
        }
        relay.publish(&greedy(n));
        n += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    println!(
        "told {:.1?} after the first of {} questions, while {} fresh keys asked",
        asked.elapsed(),
        jobs.len(),
        n - 150
    );
    // The last of the crowd may not have arrived.
    let refused = || served.metrics.refused.lock().unwrap()["queue_full"];
    wait_until(|| "the crowd was not refused", || refused() > 150);
}
