//! A disk that is full.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::Customer;
use nostr::prelude::EventId;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The most that a file of the service may have, in blocks of 512 bytes: 4 MiB. To a journal that is what a full disk is.
const BLOCKS: u32 = 8192;

#[test]
fn a_full_disk_ends_the_service_and_every_job_is_done_once_there_is_space() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    // Jobs that take longer to do than to send: the journal shortens what is done, and must not keep up.
    std::fs::write(&config, "default-tokens = 24\nqueue = 1000\n").unwrap();
    let extra = ["--config", config.to_str().unwrap()];
    let service = Daemon::command(&[&relay.url], dir.path(), &extra);
    let limit = format!("trap '' XFSZ; ulimit -f {BLOCKS}; exec \"$@\"");
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let child = Command::new("sh")
        .args(["-c", &limit, "sh"])
        .arg(service.get_program())
        .args(service.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let mut daemon = Daemon(child.unwrap());
    relay.wait_for(31990, 1);

    // Unknown parameters are ignored, but they are part of the request.
    let filler = || ("note".to_string(), "x".repeat(1000));
    let mut jobs = Vec::new();
    let status = loop {
        if let Some(status) = daemon.0.try_wait().unwrap() {
            break status;
        }
        if jobs.len() == 1000 {
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
            panic!("the service goes on after {} jobs:\n{log}", jobs.len());
        }
        let job = Customer::new().request_with(&format!("fn number_{}(", jobs.len()), |job| {
            job.params = (0..40).map(|_| filler()).collect();
        });
        relay.publish(&job);
        jobs.push(job.id);
        std::thread::sleep(Duration::from_millis(20));
    };
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.contains("File too large"), "{last}");
    assert!(!log.contains("panic"), "{log}");
    println!("ended after {} jobs: {last}", jobs.len());

    let _daemon = Daemon::start(&[&relay.url], dir.path(), &extra);
    let mut results: BTreeMap<EventId, usize> = BTreeMap::new();
    for result in relay.wait_for(6050, jobs.len()) {
        *results
            .entry(result.tags.event_ids().next().unwrap())
            .or_default() += 1;
    }
    for job in &jobs {
        assert_eq!(results.get(job), Some(&1), "{job}");
    }
}
