//! Ten customers at once, one with many jobs: each waits for at most one job of every other.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::Customer;
use crate::support::golden;
use candle_dvm::nip90::{Feedback, JobResult, Status};
use nostr::prelude::EventId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const CUSTOMERS: usize = 10;
/// Jobs of the first customer; the others have one.
const GREEDY: usize = 20;
/// Enough that a pause of the machine is short in comparison.
const TOKENS: usize = 48;

/// When a job's first partial and its result came.
#[derive(Default)]
struct Times {
    partial: Option<Duration>,
    result: Option<Duration>,
    /// Number of earlier results.
    place: usize,
}

#[test]
fn ten_customers_wait_no_more_than_twice_their_share() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    // The first partial is the first token.
    let settings =
        format!("default-tokens = {TOKENS}\nopen-per-key = {GREEDY}\npartial-millis = 1\n");
    std::fs::write(&config, settings).unwrap();
    let extra = ["--config", config.to_str().unwrap()];
    let _daemon = Daemon::start(&[&relay.url], dir.path(), &extra);
    relay.wait_for(31990, 1);

    let prompts = &golden().prompts;
    let customers: Vec<Customer> = (0..CUSTOMERS).map(|_| Customer::new()).collect();
    let text = |n: usize| prompts[n % prompts.len()].text.clone();
    let first = |who: usize| (who, customers[who].request(&text(who)));
    let mut jobs = vec![first(0)];
    // The same text twice within a second would be the same event.
    let more = (1..GREEDY).map(|n| (0, customers[0].request(&format!("{} {n}", text(n)))));
    jobs.extend(more);
    jobs.extend((1..CUSTOMERS).map(first));
    let started = Instant::now();
    jobs.iter().for_each(|(_, job)| relay.publish(job));
    let times = watch(&relay, &customers[0], started, jobs.len());

    let end = jobs
        .iter()
        .filter_map(|(_, job)| times[&job.id].result)
        .max();
    // All jobs took that long; with round-robin, the first job of each customer is among the first ten.
    let share = end.unwrap().mul_f64(CUSTOMERS as f64 / jobs.len() as f64);
    let mut slowest = Duration::ZERO;
    for who in 0..CUSTOMERS {
        // If jobs arrive at once, any may be admitted first.
        let own = jobs.iter().filter(|(other, _)| *other == who);
        let first = own.map(|(_, job)| &times[&job.id]);
        let times = first.min_by_key(|times| times.place).unwrap();
        let (partial, result) = (times.partial, times.result.unwrap());
        let partial = partial.expect("a partial of each job");
        // However fast the machine is.
        assert!(times.place < 2 * CUSTOMERS, "{who}: {}", times.place);
        let rate = (TOKENS - 1) as f64 / (result - partial).as_secs_f64();
        println!(
            "customer {who}: place {}, first partial after {:.2} s, result after {:.2} s, {rate:.1} tokens/s between",
            times.place,
            partial.as_secs_f64(),
            result.as_secs_f64()
        );
        slowest = slowest.max(result);
    }
    println!(
        "{} jobs in {:.2} s, {:.1} tokens/s together; a fair share is {:.2} s, the slowest of ten waited {:.2} s",
        jobs.len(),
        end.unwrap().as_secs_f64(),
        (jobs.len() * TOKENS) as f64 / end.unwrap().as_secs_f64(),
        share.as_secs_f64(),
        slowest.as_secs_f64()
    );
    assert!(slowest <= 2 * share, "{slowest:?} of {share:?}");
}

/// Notes when answers come, until there are as many results.
fn watch(
    relay: &TestRelay,
    reader: &Customer,
    started: Instant,
    results: usize,
) -> HashMap<EventId, Times> {
    let mut times: HashMap<EventId, Times> = HashMap::new();
    let (mut seen, mut done) = (0, 0);
    while done < results {
        let at = started.elapsed();
        assert!(at < Duration::from_secs(300), "{done} of {results} results");
        for event in relay.events_from(seen) {
            seen += 1;
            if let Ok(result) = JobResult::read(&event, &reader.0) {
                let times = times.entry(result.job).or_default();
                assert_eq!(times.result.replace(at), None);
                times.place = done;
                done += 1;
            }
            if let Ok(feedback) = Feedback::read(&event, &reader.0) {
                assert_ne!(feedback.status, Status::Error, "{feedback:?}");
                let times = times.entry(feedback.job).or_default();
                if feedback.status == Status::Partial {
                    times.partial.get_or_insert(at);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    times
}
