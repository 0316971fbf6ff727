//! Exactly one answer to each job, however often the service is killed.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::Customer;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Instants that differ from run to run; the seed is printed, so that a run can be done again with CRASH_SEED.
fn seed() -> u64 {
    let seed = match std::env::var("CRASH_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => candle_dvm::service::now(),
    };
    println!("CRASH_SEED={seed}");
    seed | 1
}

fn number(name: &str, standard: usize) -> usize {
    std::env::var(name).map_or(standard, |text| text.parse().unwrap())
}

/// `CRASH_JOBS` and `CRASH_KILLS` make it longer.
#[test]
fn each_job_has_one_result_though_the_service_is_killed() {
    let (jobs, kills) = (number("CRASH_JOBS", 24), number("CRASH_KILLS", 6));
    let relays = [TestRelay::start(), TestRelay::start()];
    let both = [&relays[0], &relays[1]];
    let dir = tempfile::tempdir().unwrap();
    let extra = ["--config", &config(dir.path())].map(str::to_string);
    let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
    let mut random = seed();
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut daemon = Daemon::start(&both, dir.path(), &extra);
    relays[0].wait_for(31990, 1);
    relays[1].wait_for(31990, 1);
    let mut asked = Vec::new();
    let a_round = jobs.div_ceil(kills);
    while asked.len() < jobs {
        for _ in 0..a_round.min(jobs - asked.len()) {
            // A customer each, on one relay or on both.
            let job = Customer::new().request(&format!("fn number_{}(", asked.len()));
            match next(3) {
                0 => both.iter().for_each(|relay| relay.publish(&job)),
                which => both[which as usize - 1].publish(&job),
            }
            asked.push(job.id);
            std::thread::sleep(Duration::from_millis(next(40)));
        }
        std::thread::sleep(Duration::from_millis(next(600)));
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let connections = relays[0].connections();
        daemon = Daemon::start(&both, dir.path(), &extra);
        // Now and then it is killed while it starts, and mostly while it works. (Not its announcement is waited for: two within one
        // second are one event.)
        if next(4) > 0 {
            let end = Instant::now() + Duration::from_secs(60);
            while relays[0].connections() == connections {
                assert!(Instant::now() < end, "the service does not connect");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        std::thread::sleep(Duration::from_millis(next(1500)));
    }
    let end = Instant::now() + Duration::from_secs(180 + 3 * jobs as u64);
    let results = |relay: &TestRelay| {
        let mut results: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in relay.of_kind(6050) {
            event.verify().unwrap();
            let job = event.tags.event_ids().next().unwrap();
            results
                .entry(job.to_hex())
                .or_default()
                .push(event.id.to_hex());
        }
        results
    };
    let complete = || both.iter().all(|relay| results(relay).len() == asked.len());
    while !complete() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(
        complete(),
        "{} of {jobs} answered\n{}",
        results(both[0]).len(),
        log()
    );
    let (first, second) = (results(both[0]), results(both[1]));
    assert_eq!(first, second, "the same answers everywhere");
    for job in &asked {
        assert_eq!(first[&job.to_hex()].len(), 1, "{job}");
    }
    drop(daemon);
}

fn config(dir: &std::path::Path) -> String {
    let file = dir.join("serve.toml");
    std::fs::write(&file, "default-tokens = 6\nrunning = 2\nqueue = 1000\n").unwrap();
    file.to_str().unwrap().to_string()
}
