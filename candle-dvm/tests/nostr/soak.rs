//! Honest customers of a service that strangers pester and whose other relays are of no use, and what many jobs cost it.

use super::commands::Daemon;
use super::relay::{Behaviour, Notices, TestRelay};
use super::served::Customer;
use super::wait::wait_until;
use candle_dvm::nip90::{Input, InputKind};
use candle_dvm::service::now;
use nostr::prelude::{Event, EventId, Keys};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A line of `/proc/PID/status`, in MiB: `VmRSS` is what the process holds, `VmHWM` the most that it ever held.
pub fn memory(daemon: &Daemon, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

fn number(name: &str, standard: u64) -> u64 {
    std::env::var(name).map_or(standard, |text| text.parse().unwrap())
}

/// An address at which nothing listens.
fn dead() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("ws://{}", free.local_addr().unwrap())
}

fn start(relays: &[&str], dir: &Path, settings: &str) -> Daemon {
    let config = dir.join("serve.toml");
    std::fs::write(&config, settings).unwrap();
    Daemon::start(relays, dir, &["--config", config.to_str().unwrap()])
}

/// The strangers' events, of seven sorts; `greedy` is one who asks again and again.
fn spam(n: u64, greedy: &Customer, dead: &[String]) -> Event {
    let stranger = Customer::new();
    let prompt = format!("spam {n}");
    match n % 7 {
        // Waits for what never comes.
        0 => stranger.request_with("", |request| {
            request.inputs = vec![Input {
                data: format!("{:064x}", u128::MAX - u128::from(n)),
                kind: InputKind::Job,
                relay: None,
                marker: None,
            }];
        }),
        // Refused, and told so.
        1 => stranger.request_with(&prompt, |request| {
            request.params = vec![("max_tokens".to_string(), "many".to_string())];
        }),
        // As good as any other.
        2 => stranger.request(&prompt),
        3 => greedy.request(&prompt),
        // For another provider.
        4 => stranger.request_with(&prompt, |request| {
            request.providers = vec![Keys::generate().public_key()];
        }),
        // Names relays that are dead.
        5 => stranger.request_with(&prompt, |request| request.relays = dead.to_vec()),
        // Too old.
        _ => {
            let old = candle_dvm::nip90::JobRequest {
                inputs: vec![Input::text(prompt)],
                ..Default::default()
            };
            old.write(&stranger.0, now() - 200_000).unwrap()
        }
    }
}

/// The value below which are this many hundredths of the sorted ones.
fn percentile(sorted: &[Duration], hundredths: usize) -> Duration {
    sorted[(sorted.len() * hundredths).div_ceil(100).max(1) - 1]
}

/// `SOAK_SECONDS` and `SOAK_SPAM` make it longer: the service has to withstand 600 and 5000.
#[test]
fn honest_jobs_are_answered_beside_a_dead_relay_one_that_says_notice_and_spam() {
    let seconds = number("SOAK_SECONDS", 6);
    let spams = number("SOAK_SPAM", seconds * 9);
    let jobs = 2 * seconds;
    let honest = TestRelay::start();
    let noticing = TestRelay::with(Behaviour {
        notices: Notices::Everything,
        ..Behaviour::default()
    });
    let nobody: Vec<String> = (0..6).map(|_| dead()).collect();
    let dir = tempfile::tempdir().unwrap();
    // `private-relays`: else the dead ones that strangers name, at 127.0.0.1, would not even be tried.
    let settings = "default-tokens = 6\nprivate-relays = true\n";
    let urls = [&nobody[0], &noticing.url, &honest.url].map(String::as_str);
    let daemon = start(&urls, dir.path(), settings);
    honest.wait_for(31990, 1);
    let before = memory(&daemon, "VmRSS");

    let asked: Mutex<HashMap<EventId, Instant>> = Mutex::default();
    let answered: Mutex<HashMap<EventId, Instant>> = Mutex::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Watches, as customers do, as things come.
        scope.spawn(|| {
            let mut seen = 0;
            while !over.load(SeqCst) {
                let news = honest.events_from(seen);
                seen += news.len();
                let results = news.iter().filter(|event| event.kind.as_u16() == 6050);
                for job in results.filter_map(|event| event.tags.event_ids().next()) {
                    answered
                        .lock()
                        .unwrap()
                        .entry(job)
                        .or_insert(Instant::now());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let over = Over(&over);
        let greedy = Customer::new();
        let (started, mut sent) = (Instant::now(), 0);
        for n in 0..jobs {
            let job = Customer::new().request(&format!("fn number_{n}("));
            asked.lock().unwrap().insert(job.id, Instant::now());
            honest.publish(&job);
            while sent < spams * (n + 1) / jobs {
                honest.publish(&spam(sent, &greedy, &nobody[1..]));
                sent += 1;
            }
            let next = started + Duration::from_millis(500 * (n + 1));
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        assert_eq!(sent, spams);
        let open = || {
            let answered = answered.lock().unwrap();
            let asked = asked.lock().unwrap();
            asked
                .keys()
                .filter(|job| !answered.contains_key(*job))
                .count()
        };
        wait_until(
            || {
                let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
                format!("{} of {jobs} honest jobs are not answered\n{log}", open())
            },
            || open() == 0,
        );
        drop(over);
    });
    let (asked, answered) = (asked.into_inner().unwrap(), answered.into_inner().unwrap());
    let mut waits: Vec<Duration> = asked.iter().map(|(job, at)| answered[job] - *at).collect();
    waits.sort();
    let (p50, p99) = (percentile(&waits, 50), percentile(&waits, 99));
    println!(
        "{jobs} honest jobs in {seconds} s beside {spams} spam events: p50 {p50:.0?}, p99 {p99:.0?}, longest {:.0?}; \
         {before:.0} MiB before, {:.0} MiB after",
        waits.last().unwrap(),
        memory(&daemon, "VmRSS"),
    );
    assert!(noticing.connections() > 0, "it has had its chance");
    assert!(noticing.refused() > 0, "it has said NOTICE");
    // With few jobs the longest wait is the 99th percentile, and one pause of a busy machine would be it.
    let most = if seconds < 60 { 10 } else { 3 };
    assert!(p99 < Duration::from_secs(most), "p99 {p99:.0?}");
}

/// Ends the test's other thread, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn descriptors(daemon: &Daemon) -> usize {
    let folder = format!("/proc/{}/fd", daemon.0.id());
    std::fs::read_dir(folder).unwrap().count()
}

fn journal_kib(dir: &Path) -> u64 {
    let journal = dir.join("data/journal.redb");
    std::fs::metadata(journal).unwrap().len() / 1024
}

/// Has jobs done, of a customer each and few at a time, until there are as many results.
fn work(relay: &TestRelay, prompt: &str, done: u64, upto: u64) {
    let (mut asked, mut seen, mut results) = (done, relay.events().len(), done);
    let mut last = Instant::now();
    while results < upto {
        while asked < upto.min(results + 16) {
            let job = Customer::new().request(&format!("fn number_{asked}({prompt}"));
            relay.publish(&job);
            asked += 1;
        }
        std::thread::sleep(Duration::from_millis(10));
        let news = relay.events_from(seen);
        seen += news.len();
        let found = news.iter().filter(|event| event.kind.as_u16() == 6050);
        let found = found.count() as u64;
        if found > 0 {
            (results, last) = (results + found, Instant::now());
        }
        let silent = last.elapsed() > Duration::from_secs(60);
        assert!(!silent, "{results} of {asked} results");
    }
}

/// `SOAK_JOBS` makes it longer.
#[test]
fn many_jobs_cost_neither_memory_nor_descriptors() {
    let jobs = number("SOAK_JOBS", 60);
    let relays = [TestRelay::start(), TestRelay::start()];
    let urls = relays.each_ref().map(|relay| relay.url.as_str());
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(&urls, dir.path(), "default-tokens = 6\n");
    relays.iter().for_each(|relay| {
        relay.wait_for(31990, 1);
    });
    // What the first ones need stays.
    work(&relays[0], "", 0, jobs / 5);
    let (before, open) = (memory(&daemon, "VmRSS"), descriptors(&daemon));
    work(&relays[0], "", jobs / 5, jobs);
    relays[1].wait_for(6050, jobs as usize);
    let (after, open_after) = (memory(&daemon, "VmRSS"), descriptors(&daemon));
    println!(
        "{jobs} jobs: {before:.1} MiB and {open} descriptors after a fifth of them, {after:.1} MiB and {open_after} at the end; \
         the journal has {} KiB",
        journal_kib(dir.path())
    );
    assert!(open_after <= open, "{open} and {open_after} descriptors");
    assert!(after < before + 24.0, "{before:.1} and {after:.1} MiB");
}

/// `SOAK_JOBS` makes it longer.
#[test]
fn what_a_dead_relay_has_not_got_is_small_and_goes_when_it_comes_back() {
    let jobs = number("SOAK_JOBS", 60);
    let (honest, away) = (TestRelay::start(), TestRelay::start());
    let dir = tempfile::tempdir().unwrap();
    let urls = [honest.url.as_str(), away.url.as_str()];
    let daemon = start(&urls, dir.path(), "default-tokens = 6\n");
    away.wait_for(31990, 1);
    away.stop();
    let line = "    let value = self.inner.next();\n";
    let prompt = line.repeat(2048 / line.len());
    work(&honest, &prompt, 0, jobs / 5);
    let before = memory(&daemon, "VmRSS");
    work(&honest, &prompt, jobs / 5, jobs);
    let (after, size) = (memory(&daemon, "VmRSS"), journal_kib(dir.path()));
    away.resume();
    let got = || away.of_kind(6050).len() as u64;
    wait_until(|| format!("{} of {jobs}", got()), || got() == jobs);
    let smaller = || journal_kib(dir.path()) <= size.min(8192);
    let problem = || format!("{size} KiB, later {}", journal_kib(dir.path()));
    wait_until(problem, smaller);
    println!(
        "{jobs} jobs of 2 KB beside a dead relay: {before:.1} MiB after a fifth of them, {after:.1} MiB at the end, {:.1} MiB after \
         it came back; the journal has {size} KiB, then {}",
        memory(&daemon, "VmRSS"),
        journal_kib(dir.path())
    );
    // In memory, an answer is a few KiB for as long as it waits.
    let most = 16.0 + 32.0 * jobs as f64 / 1024.0;
    assert!(after < before + most, "{before:.1} and {after:.1} MiB");
}
