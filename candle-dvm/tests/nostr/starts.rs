//! The start of a service: wrong clocks, absent relays, and answers that no relay takes.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::{Customer, Served};
use super::wait::wait_until;
use crate::cli::assert_one_line;
use candle_dvm::jobs::Journal;
use candle_dvm::journal::RedbJournal;
use candle_dvm::nip90::{Input, JobRequest};
use candle_dvm::service::{now, Settings};
use nostr::prelude::{Event, Keys};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

/// A request that was made a while ago, by a new customer.
fn old(seconds: u64) -> Event {
    let request = JobRequest {
        inputs: vec![Input::text("late")],
        ..JobRequest::default()
    };
    request.write(&Keys::generate(), now() - seconds).unwrap()
}

#[test]
fn the_first_start_answers_only_later_requests() {
    let relay = TestRelay::start();
    for seconds in [5, 60, 300, 590] {
        relay.publish(&old(seconds));
    }
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    // The relay gives them at every start.
    for start in 0..2 {
        let served = Served::with(&[&relay], dir.path(), keys.clone(), |_| ());
        served.wait_refused("before_start", 4);
        relay.publish(&Customer::new().request("new"));
        relay.wait_for(6050, 2 * start + 1);
        // From a customer whose clock is slow, but new.
        relay.publish(&old(400));
        relay.wait_for(6050, 2 * start + 2);
        served.stop();
    }
    assert_eq!(relay.of_kind(6050).len(), 4);
}

#[test]
fn the_first_start_looks_back_with_the_option() {
    let relay = TestRelay::start();
    for seconds in [5, 60, 300, 590] {
        relay.publish(&old(seconds));
    }
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.look_back_seconds = 100;
    });
    served.wait_refused("before_start", 2);
    relay.wait_for(6050, 2);
    served.stop();
    assert_eq!(relay.of_kind(6050).len(), 2);
}

#[test]
fn a_service_hears_again_after_its_clock_was_a_day_ahead() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let journal = RedbJournal::open(&dir.path().join("journal.redb")).unwrap();
    let ahead = now() + 86_400;
    journal.begin(&relay.url, ahead, ahead).unwrap();
    journal.advance_cursor(&relay.url, ahead + 8).unwrap();
    drop(journal);
    let served = Served::on(&[&relay], dir.path());
    relay.publish(&Customer::new().request("heard"));
    relay.wait_for(6050, 1);
    served.stop();
    let journal = RedbJournal::open(&dir.path().join("journal.redb")).unwrap();
    let cursor = journal.cursor(&relay.url).unwrap().unwrap();
    assert!(cursor <= now(), "{cursor}");
}

/// A relay that shows its time to those who ask what it is, and is none otherwise.
fn show_time(time: SystemTime) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let date = httpdate::fmt_http_date(time);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            );
        }
    });
    url
}

#[test]
fn a_clock_that_disagrees_with_the_relays_is_said() {
    let hour = Duration::from_secs(3600);
    for (theirs, expected, said) in [
        (SystemTime::now() - hour, 3600, "ahead"),
        (SystemTime::now() + hour, -3600, "behind"),
    ] {
        let relay = TestRelay::start();
        let dir = tempfile::tempdir().unwrap();
        let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
            settings.relays.push(show_time(theirs));
        });
        let ahead = || served.metrics.clock_ahead.load(SeqCst);
        wait_until(
            || format!("ahead by {}", ahead()),
            || (ahead() - expected).abs() < 60,
        );
        let line = served.metrics.line(2);
        assert!(line.contains(said), "{line}");
        let page = served.metrics.page();
        let gauge = format!("candle_dvm_clock_ahead_seconds {}", ahead());
        assert!(page.contains(&gauge), "{page}");
    }
}

#[test]
fn customers_from_the_future_make_the_clock_suspect() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let ahead = || served.metrics.clock_ahead.load(SeqCst);
    // Those that are stored say nothing about now, so the service has to listen first.
    relay.publish(&Customer::new().request("a"));
    relay.wait_for(6050, 1);
    for _ in 0..16 {
        let request = JobRequest {
            inputs: vec![Input::text("ahead")],
            ..JobRequest::default()
        };
        relay.publish(&request.write(&Keys::generate(), now() + 1000).unwrap());
    }
    served.wait_refused("in_future", 16);
    wait_until(
        || format!("ahead by {}", ahead()),
        || (-1010..-900).contains(&ahead()),
    );
}

#[test]
fn that_no_relay_can_be_reached_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let gone = ["ws://127.0.0.1:1", "ws://127.0.0.1:2"];
    let config = dir.path().join("serve.toml");
    let settings = "name = \"Somebody's\"\nrunning = 3\n";
    std::fs::write(&config, settings).unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    #[cfg(unix)]
    let mode = {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o755)).unwrap();
        || std::fs::metadata(&data).unwrap().permissions().mode() & 0o777
    };
    let config = ["--config", config.to_str().unwrap()];
    let daemon = Daemon::start(&gone, dir.path(), &config);
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    wait_until(log, || log().contains("no relay is reachable"));
    let log = log();
    let line = log
        .lines()
        .find(|line| line.contains("no relay is reachable"))
        .unwrap();
    assert!(line.contains("WARN"), "{line}");
    assert!(gone.iter().all(|url| line.contains(url)), "{line}");
    for part in ["\"Somebody's\"", "free", "3 running", "64 queued"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    drop(daemon);
    #[cfg(unix)]
    assert_eq!(mode(), 0o700);
}

#[test]
fn a_relay_that_comes_back_ends_the_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let relay = TestRelay::start();
    let served = Served::on(&[&relay], dir.path());
    let line = || served.metrics.line(1);
    assert!(!line().contains("none reachable"), "{}", line());
    relay.stop();
    wait_until(line, || line().contains("relays 0/1 (none reachable)"));
    relay.resume();
    wait_until(line, || line().contains("relays 1/1 ·"));
}

#[test]
fn the_announcement_is_renewed() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&relay], dir.path(), Keys::generate(), |settings| {
        settings.announce_seconds = 1;
    });
    let found = relay.wait_for(31990, 2);
    assert!(found[1].created_at > found[0].created_at);
    assert_eq!(found[1].pubkey, served.keys.public_key());
    served.stop();
}

#[test]
fn of_too_many_answers_the_oldest_for_the_dead_relay_are_given_up() {
    let relays = [TestRelay::start(), TestRelay::start()];
    let [live, dead] = &relays;
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[live, dead], dir.path(), Keys::generate(), |settings| {
        settings.undelivered = 5;
    });
    dead.stop();
    let line = || served.metrics.line(2);
    wait_until(line, || line().contains("relays 1/2"));
    for count in 1..9 {
        live.publish(&Customer::new().request(&format!("job {count}")));
        live.wait_for(6050, count);
        let delivered = || served.metrics.delivered.load(SeqCst);
        wait_until(line, || delivered() == count as u64);
    }
    let undelivered = || served.metrics.undelivered.load(SeqCst);
    wait_until(line, || undelivered() <= 5);
    let given_up = served.metrics.given_up.load(SeqCst);
    // One more for each that was under way to the other relay while five waited.
    assert!((3..=4).contains(&given_up), "{given_up}");
    dead.resume();
    wait_until(line, || undelivered() == 0);
    let all: Vec<_> = live.of_kind(6050).iter().map(|event| event.id).collect();
    let mut got: Vec<_> = dead.of_kind(6050).iter().map(|event| event.id).collect();
    // The newest come first.
    got.reverse();
    assert_eq!(got, all[given_up as usize..], "the latest of {all:?}");
    drop(served);
    let journal = RedbJournal::open(&dir.path().join("journal.redb")).unwrap();
    assert!(journal.open_jobs().unwrap().is_empty());
}

#[test]
fn a_relay_that_was_dead_gets_all_that_waited_for_it_also_after_a_restart() {
    let relays = [TestRelay::start(), TestRelay::start()];
    let [live, dead] = &relays;
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::generate();
    let served = Served::with(&[live, dead], dir.path(), keys.clone(), |_| ());
    dead.stop();
    let line = || served.metrics.line(2);
    wait_until(line, || line().contains("relays 1/2"));
    // More than a relay's driver has at a time.
    let count = 180;
    for n in 0..count {
        live.publish(&Customer::new().request(&format!("job {n}")));
        if n % 30 == 29 {
            live.wait_for(6050, n + 1);
        }
    }
    let waiting = || served.metrics.undelivered.load(SeqCst);
    wait_until(line, || waiting() == count as u64);
    drop(served);
    dead.resume();
    let served = Served::with(&[live, dead], dir.path(), keys, |_| ());
    dead.wait_for(6050, count);
    let line = || served.metrics.line(2);
    wait_until(line, || served.metrics.undelivered.load(SeqCst) == 0);
    assert_eq!(served.echo.started.load(SeqCst), 0, "nothing ran again");
    let ids = |relay: &TestRelay| {
        let ids = relay.of_kind(6050).into_iter().map(|event| event.id);
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids(live), ids(dead));
}

#[test]
fn times_out_of_range_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("serve.toml");
    let names = [
        "heartbeat-seconds",
        "announce-seconds",
        "job-seconds",
        "hang-seconds",
        "drain-seconds",
        "partial-millis",
        "chain-seconds",
        "remember-days",
        "look-back-seconds",
        "max-age-seconds",
    ];
    for name in names {
        let text = format!("relays = [\"ws://127.0.0.1:1\"]\n{name} = {}\n", i64::MAX);
        std::fs::write(&file, text).unwrap();
        let problem = Settings::read(&file).unwrap().check().unwrap_err();
        let problem = problem.to_string();
        assert!(problem.contains(&format!("setting {name} ")), "{problem}");
    }
    Settings {
        relays: vec!["ws://127.0.0.1:1".to_string()],
        ..Settings::default()
    }
    .check()
    .unwrap();
    std::fs::write(&file, "job-seconds = 9223372036854775807").unwrap();
    let serve = ["serve", "--relay", "ws://a", "--config"];
    assert_one_line(
        &[&serve[..], &[file.to_str().unwrap()]].concat(),
        &["job-seconds", "2592000"],
    );
}
