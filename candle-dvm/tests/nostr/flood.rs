//! What relays that never stop sending make the service hold in memory.

use super::commands::Daemon;
use super::hostile::{event_message, request_at};
use super::relay::{Behaviour, TestRelay};
use super::served::Customer;
use super::soak::memory;
use candle_dvm::service::now;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

const MIB: f64 = 1024.0 * 1024.0;
/// Maximum growth of the process's memory during the flood.
const BOUND: f64 = 64.0;
/// The duration, and the minimum number of events that the service has to read in that time for the test to be meaningful.
const SECONDS: u64 = 12;
const LEAST: f64 = 32.0;

fn forged(mut event: Value) -> String {
    event["sig"] = json!("0".repeat(128));
    event_message(event)
}

/// Relays that send, each of its sort, as long as a client reads.
fn floods() -> Vec<TestRelay> {
    let request = |bytes: usize| request_at(now(), &"x".repeat(bytes));
    // Larger than the read limit; smaller, so that each has to be verified; valid ones that are not jobs for us.
    let large = vec![
        event_message(request(1_000_000)),
        forged(request(1_000_000)),
    ];
    let forgeries = (0..8).map(|n| forged(request(400_000 + n))).collect();
    let real = (0..8)
        .map(|n| event_message(request(300_000 + n)))
        .collect();
    let small = (0..64).map(|n| forged(request(100 + n))).collect();
    let twice = vec![event_message(request(200_000))];
    let challenges = vec![json!(["AUTH", "c".repeat(500)]).to_string()];
    let nonsense = vec![
        "[".repeat(100_000),
        "[\"EVENT\",\"jobs\",{\"id\":".to_string(),
    ];
    let endless = |noise| Behaviour {
        noise,
        endless: true,
        ..Behaviour::default()
    };
    // Frames that promise 16 MB and 3 MB, and end after a byte.
    let half = [16_u64 << 20, 3 << 20].map(|promised| Behaviour {
        garbage: Some([&[0x81, 127], &promised.to_be_bytes()[..], b"x"].concat()),
        ..Behaviour::default()
    });
    let all = [large, forgeries, real, small, twice, challenges, nonsense].map(endless);
    all.into_iter().chain(half).map(TestRelay::with).collect()
}

#[test]
fn memory_stays_bounded_while_relays_never_stop_sending() {
    let honest = TestRelay::start();
    let floods = floods();
    let mut urls = vec![honest.url.as_str()];
    urls.extend(floods.iter().map(|relay| relay.url.as_str()));
    // They are quiet until it is known what the service needs without them.
    floods.iter().for_each(TestRelay::stop);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, "default-tokens = 6\n").unwrap();
    let extra = ["--config", config.to_str().unwrap()];
    let daemon = Daemon::start(&urls, dir.path(), &extra);
    honest.wait_for(31990, 1);
    honest.publish(&Customer::new().request("fn before("));
    honest.wait_for(6050, 1);
    let before = memory(&daemon, "VmRSS");

    floods.iter().for_each(TestRelay::resume);
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut jobs = 1;
    while Instant::now() < end {
        honest.publish(&Customer::new().request(&format!("fn during_{jobs}(")));
        jobs += 1;
        std::thread::sleep(Duration::from_millis(1000));
    }
    honest.wait_for(6050, jobs);
    let taken = floods.iter().map(TestRelay::noise_bytes).sum::<u64>() as f64 / MIB;
    let (during, peak) = (memory(&daemon, "VmRSS"), memory(&daemon, "VmHWM"));
    floods.iter().for_each(TestRelay::stop);
    std::thread::sleep(Duration::from_secs(1));
    let after = memory(&daemon, "VmRSS");
    println!(
        "{taken:.0} MiB of noise in {SECONDS} s and {jobs} jobs; the service held {before:.0} MiB before, {peak:.0} MiB at most, \
         {during:.0} MiB at the end and {after:.0} MiB after"
    );
    for relay in &floods {
        assert!(relay.connections() > 0, "each has had its chance");
    }
    assert!(taken > LEAST, "only {taken:.0} MiB of noise were taken");
    assert!(
        peak < before + BOUND,
        "{before:.0} MiB before, {peak:.0} MiB at most: more than {BOUND} MiB are the flood's"
    );
}

/// Hundredths of a second of CPU that the process has used.
fn cpu(daemon: &Daemon) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.0.id())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split_whitespace();
    fields
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn relays_that_never_stop_sending_use_a_part_of_a_core() {
    let id = "0".repeat(64);
    let noises = [
        (0..64)
            .map(|n| forged(request_at(now(), &format!("{n}"))))
            .collect(),
        vec![json!(["OK", id, true, ""]).to_string()],
        vec![json!(["NOTICE", "too much"]).to_string()],
    ];
    let floods = noises.map(|noise| {
        TestRelay::with(Behaviour {
            noise,
            endless: true,
            ..Behaviour::default()
        })
    });
    let honest = TestRelay::start();
    let mut urls = vec![honest.url.as_str()];
    urls.extend(floods.iter().map(|relay| relay.url.as_str()));
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&urls, dir.path(), &[]);
    honest.wait_for(31990, 1);
    // What each may send at once is behind us when little more is taken.
    let taken = || floods.iter().map(TestRelay::noise_bytes).sum::<u64>();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let before = taken();
        std::thread::sleep(Duration::from_millis(500));
        // In a second 1,000 events of 450 bytes, and 10,000 each of the others' messages of 90 and 22 bytes.
        if before > 0 && taken() - before < 1_200_000 {
            break;
        }
        assert!(
            Instant::now() < end,
            "{} bytes in half a second",
            taken() - before
        );
    }
    std::thread::sleep(Duration::from_secs(2));
    let (used, started) = (cpu(&daemon), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let share = (cpu(&daemon) - used) as f64 / 100.0 / started.elapsed().as_secs_f64();
    println!("three floods use {share:.2} of a core");
    // 0.2 on an idle machine; twice that where other tests share its caches and its cores' threads. Without limits it is more than a core.
    assert!(share < 0.6, "{share:.2} of a core");
}
