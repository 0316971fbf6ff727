//! Exactly one answer to each job, however often the service and its relays are killed.

use super::client;
use super::commands::Daemon;
use super::served::Customer;
use super::stoppable::StoppableRelay;
use super::wait::wait_until;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Instants that differ from run to run; the seed is printed, so that a run can be done again with CRASH_SEED.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = match std::env::var("CRASH_SEED") {
            Ok(text) => text.parse().unwrap(),
            Err(_) => candle_dvm::service::now(),
        };
        println!("CRASH_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn sleep_below(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(self.below(millis)));
    }
}

fn number(name: &str, standard: usize) -> usize {
    std::env::var(name).map_or(standard, |text| text.parse().unwrap())
}

/// Ends the test's other threads, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// `CRASH_JOBS` and `CRASH_KILLS` make it longer, `NOSTR_RELAY_VENV` runs it over an independent relay.
#[test]
fn each_job_has_one_result_though_the_service_and_its_relays_are_killed() {
    let (jobs, kills) = (number("CRASH_JOBS", 24), number("CRASH_KILLS", 6));
    let dir = tempfile::tempdir().unwrap();
    let relays = ["a", "b"].map(|name| StoppableRelay::start(&dir.path().join(name)));
    let urls = relays.each_ref().map(StoppableRelay::url);
    let config = config(dir.path());
    let start = || Daemon::start(&urls, dir.path(), &["--config", &config]);
    let mut random = Random::new();
    let mut daemon = start();
    // Requests before the first start are not for it.
    let announced = |url| !client::stored(url, 31990).is_empty();
    let silent = || "the service does not announce itself";
    wait_until(silent, || urls.iter().all(|&url| announced(url)));

    let (over, stops) = (AtomicBool::new(false), AtomicU32::new(0));
    let asked = std::thread::scope(|scope| {
        let over = Over(&over);
        for relay in &relays {
            let mut random = Random(random.below(u64::MAX) | 1);
            let (over, stops) = (over.0, &stops);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    random.sleep_below(6000);
                    relay.stop();
                    stops.fetch_add(1, SeqCst);
                    random.sleep_below(2000);
                    relay.resume();
                }
            });
        }
        // Customers of each relay, who ask until it has their request.
        let customers = urls.map(|url| {
            let (ask, requests) = mpsc::channel();
            scope.spawn(move || requests.iter().for_each(|job| client::publish(url, &job)));
            ask
        });
        let mut asked = Vec::new();
        let a_round = jobs.div_ceil(kills);
        while asked.len() < jobs {
            for _ in 0..a_round.min(jobs - asked.len()) {
                // A customer each, on one relay or on both.
                let job = Customer::new().request(&format!("fn number_{}(", asked.len()));
                let which = random.below(3) as usize;
                for (n, customers) in customers.iter().enumerate() {
                    if which == n || which == 2 {
                        customers.send(job.clone()).unwrap();
                    }
                }
                asked.push(job.id);
                random.sleep_below(40);
            }
            random.sleep_below(600);
            daemon.0.kill().unwrap();
            daemon.0.wait().unwrap();
            let connections = connections(dir.path());
            daemon = start();
            // Now and then it is killed while it starts, and mostly while it works, if there is a relay to work for.
            if random.below(4) > 0 {
                let end = Instant::now() + Duration::from_secs(10);
                while self::connections(dir.path()) == connections && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            random.sleep_below(1500);
        }
        asked
    });
    println!("{kills} kills, relays stopped {} times", stops.load(SeqCst));
    assert!(stops.load(SeqCst) >= 2, "each relay was to be stopped");

    let results = |url: &str| {
        let mut results: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in client::stored(url, 6050) {
            event.verify().unwrap();
            let job = event.tags.event_ids().next().unwrap();
            results
                .entry(job.to_hex())
                .or_default()
                .push(event.id.to_hex());
        }
        results
    };
    let patience = 180 + 3 * jobs as u64;
    let end = Instant::now() + Duration::from_secs(patience);
    let complete = || urls.iter().all(|url| results(url).len() == asked.len());
    while !complete() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(500));
    }
    let (first, second) = (results(urls[0]), results(urls[1]));
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(
        first.len() == jobs && second.len() == jobs,
        "{} and {} of {jobs} answered\n{}",
        first.len(),
        second.len(),
        log()
    );
    assert_eq!(first, second, "the same answers everywhere");
    for job in &asked {
        assert_eq!(first[&job.to_hex()].len(), 1, "{job}");
    }
}

/// Number of the service's connections to a relay, by its log.
fn connections(dir: &Path) -> usize {
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    log.lines()
        .filter(|line| line.contains(" connected ") && !line.contains("not connected"))
        .count()
}

fn config(dir: &Path) -> String {
    let file = dir.join("serve.toml");
    std::fs::write(&file, "default-tokens = 6\nrunning = 2\nqueue = 1000\n").unwrap();
    file.to_str().unwrap().to_string()
}
