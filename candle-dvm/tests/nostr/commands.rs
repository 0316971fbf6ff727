//! The program as a service and as its customer, with the embedded model.

use super::relay::TestRelay;
use super::served::Customer;
use super::wait::wait_until;
use crate::cli::{assert_one_line, program, run, stdout};
use crate::support::golden;
#[cfg(unix)]
use crate::terminal::{assert_no_control, Terminal};
use candle_dvm::nip90::{Announcement, Feedback, Heartbeat, JobResult, Status};
use candle_dvm::service::now;
use nostr::prelude::{Event, Keys};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A running `candle-dvm serve`, killed when it is dropped.
pub struct Daemon(pub Child);

impl Daemon {
    pub fn start(relays: &[&str], dir: &Path, extra: &[&str]) -> Self {
        Self(Self::command(relays, dir, extra).spawn().unwrap())
    }

    /// The command of a service.
    pub fn command(relays: &[&str], dir: &Path, extra: &[&str]) -> Command {
        let key = dir.join("key");
        if !key.exists() {
            candle_dvm::key_file::create(&key).unwrap();
        }
        let data = dir.join("data");
        let mut args = vec!["serve", "--device", "cpu"];
        args.extend(["--key-file", key.to_str().unwrap()]);
        args.extend(["--data-dir", data.to_str().unwrap()]);
        for relay in relays {
            args.extend(["--relay", relay]);
        }
        args.extend(extra);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))
            .unwrap();
        let mut command = program(&args);
        command.stderr(log).stdout(Stdio::null());
        command
    }

    #[cfg(unix)]
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let id = self.0.id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(sent.unwrap().success());
        self.0.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(unix)]
fn a_request_is_served_by_the_program_itself() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(&[&relay.url], dir.path(), &["--log-json"]);
    relay.wait_for(31990, 1);
    let prompt = &golden().prompts[0];
    let key = dir.path().join("key");
    let npub = stdout(&run(&[
        "key",
        "show-public",
        "--key-file",
        key.to_str().unwrap(),
    ]));
    let expected = format!("{}\n", prompt.greedy_text);
    let request = ["request", "--relay", &relay.url, "--param", "max_tokens=48"];
    let open = run(&[&request[..], &[&prompt.text]].concat());
    assert_eq!(stdout(&open), expected);
    let shown = relay.of_kind(5050);
    assert!(!candle_dvm::nip90::has_work(&shown[0], 1));
    let hidden = ["--provider", npub.trim(), "--encrypt", "--pow", "8"];
    let hidden = [&hidden[..], &[&prompt.text]].concat();
    assert_eq!(stdout(&run(&[&request[..], &hidden].concat())), expected);
    let shown = relay.of_kind(5050);
    assert!(candle_dvm::nip90::has_work(shown.last().unwrap(), 8));
    let found = stdout(&run(&["discover", "--relay", &relay.url]));
    for part in [
        npub.trim(),
        "embedded",
        "max_tokens",
        "free",
        "online, heard",
    ] {
        assert!(found.contains(part), "no {part:?} in {found}");
    }
    let wrong = ["--provider", npub.trim(), "--param", "model=other", "x"];
    assert_one_line_at_end(&[&request[..3], &wrong].concat(), "embedded");
    assert!(daemon.terminate().success());
    assert!(
        !relay.of_kind(5).is_empty(),
        "the announcement is withdrawn"
    );
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    let secret = std::fs::read_to_string(key).unwrap();
    assert!(!log.contains(secret.trim()));
    assert!(
        !log.contains(&prompt.text),
        "what customers ask is not logged"
    );
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let accepted = lines.filter(|line| line["fields"]["message"] == "accepted");
    assert_eq!(accepted.count(), 2);
}

/// The output of `candle-dvm request` once a provider has answered it.
fn asked(relay: &TestRelay, args: &[&str], answer: impl FnOnce(&Event)) -> Output {
    // Long past what any of these tests waits for, so that a failure takes no ten minutes.
    let request = ["request", "--timeout", "20", "--relay", &relay.url];
    let args = [&request[..], args, &["hello"]].concat();
    let child = program(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let [request] = relay.wait_for(5050, 1).try_into().unwrap();
    answer(&request);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn assert_ends(output: &Output, part: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: ") && last.contains(part),
        "{stderr}"
    );
    assert!(!stderr.contains('\u{1b}'), "{stderr}");
}

fn say(relay: &TestRelay, keys: &Keys, job: &Event, status: Status) {
    let feedback = Feedback {
        extra: Some("the cat\nis\u{1b}[2J away".to_string()),
        ..Feedback::new(job.id, status)
    };
    relay.publish(&feedback.write(keys, now(), &job.pubkey).unwrap());
}

#[test]
fn a_request_ends_when_nobody_is_left_who_could_answer() {
    let provider = Keys::generate();
    let npub = provider.public_key().to_hex();
    // The one that was named refuses.
    let relay = TestRelay::start();
    let output = asked(&relay, &["--provider", &npub], |job| {
        say(&relay, &provider, job, Status::Processing);
        say(&relay, &Keys::generate(), job, Status::Error);
        say(&relay, &provider, job, Status::Error);
    });
    assert_ends(&output, "the provider says: the cat is[2J away");
    // Nobody was named, and the only one that speaks refuses.
    let relay = TestRelay::start();
    let output = asked(&relay, &["--silence", "1"], |job| {
        say(&relay, &provider, job, Status::Processing);
        say(&relay, &provider, job, Status::Error);
    });
    assert_ends(
        &output,
        "every provider that answered refused the job: the cat is",
    );
    // The one that was named is not there.
    let relay = TestRelay::start();
    let silent = ["--provider", &npub, "--silence", "1"];
    let output = asked(&relay, &silent, |_| ());
    assert_ends(&output, "--silence 1: the provider did not respond");
    assert_eq!(relay.of_kind(5).len(), 1, "the job is cancelled");
    // Nor is the relay.
    let nobody = [
        "request",
        "--relay",
        "ws://127.0.0.1:1",
        "--silence",
        "1",
        "a",
    ];
    assert_ends(
        &run(&nobody),
        "no relay accepted the request in time (ws://127.0.0.1:1: ",
    );
}

#[test]
fn a_request_waits_for_whoever_works_on_it() {
    let relay = TestRelay::start();
    let provider = Keys::generate();
    let output = asked(&relay, &["--silence", "1"], |job| {
        say(&relay, &Keys::generate(), job, Status::Error);
        say(&relay, &provider, job, Status::Processing);
        std::thread::sleep(Duration::from_millis(1_500));
        let result = JobResult {
            job: job.id,
            text: "at last".to_string(),
            amount_msat: None,
            invoice: None,
            cashu: None,
            encryption: None,
            usage: None,
        };
        relay.publish(&result.write(&provider, now(), job, None, 65_536).unwrap());
    });
    assert_eq!(stdout(&output), "at last\n");
}

/// A stranger's answer that would take over the terminal of who reads it.
#[test]
#[cfg(unix)]
fn an_answer_does_not_control_the_terminal() {
    let relay = TestRelay::start();
    let hostile = "\u{1b}]52;c;cm0=\u{7}\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[Hroot# \rx";
    let answer = |relay: &TestRelay, job: &Event| {
        let result = JobResult {
            job: job.id,
            text: hostile.to_string(),
            amount_msat: None,
            invoice: None,
            cashu: None,
            encryption: None,
            usage: None,
        };
        let provider = Keys::generate();
        relay.publish(&result.write(&provider, now(), job, None, 65_536).unwrap());
    };
    // A pipe gets every byte.
    let piped = asked(&relay, &[], |job| answer(&relay, job));
    assert_eq!(stdout(&piped), format!("{hostile}\n"));
    let relay = TestRelay::start();
    let args = ["request", "--timeout", "20", "--relay", &relay.url, "hello"];
    let terminal = Terminal::start(&mut program(&args));
    let [job] = relay.wait_for(5050, 1).try_into().unwrap();
    answer(&relay, &job);
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown:?}");
    assert!(
        shown.contains("]52;c;cm0=]0;owned[2J[Hroot# x\n"),
        "{shown:?}"
    );
    assert_no_control(&shown);
}

#[test]
fn discover_lists_the_living_first() {
    let relay = TestRelay::start();
    let announce = |name: &str, ago: u64, amount_msat, heartbeat: Option<(u64, u64)>| {
        let keys = Keys::generate();
        let announcement = Announcement {
            identifier: "a".to_string(),
            name: name.to_string(),
            amount_msat,
            encryption: amount_msat.is_some(),
            topics: vec!["llm".to_string()],
            ..Announcement::default()
        };
        relay.publish(&announcement.write(&keys, now() - ago).unwrap());
        if let Some((heard, holds)) = heartbeat {
            let beat = Heartbeat {
                identifier: "a".to_string(),
                status: "online".to_string(),
                expiration: Some(now() - heard + holds),
            };
            relay.publish(&beat.write(&keys, now() - heard).unwrap());
        }
    };
    announce("the-dead", 10, Some(0), Some((7_300, 900)));
    announce("the-quiet", 260_000, None, None);
    announce("the-older", 900_000, Some(21_000), Some((300, 900)));
    announce("the-living", 900_000, Some(0), Some((5, 900)));
    let text = stdout(&run(&["discover", "--relay", &relay.url]));
    let order: Vec<_> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    let expected = ["the-living ", "the-older ", "the-quiet ", "dead: the-dead "];
    assert_eq!(order.len(), expected.len(), "{text}");
    for (line, name) in order.iter().zip(expected) {
        assert!(line.starts_with(name), "{text}");
    }
    for part in [
        "online, heard 5 min ago",
        "no heartbeat, announced 3 days ago",
        "gone, heard 2 h ago",
        "free, accepts encrypted jobs",
        "21000 msat per job, accepts encrypted jobs",
        "price unknown, unencrypted jobs only",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let json = stdout(&run(&["discover", "--relay", &relay.url, "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let states: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["state"])
        .collect();
    assert_eq!(states, ["alive", "alive", "unknown", "dead"]);
    assert_eq!(json[1]["amount_msat"], 21_000);
    assert_eq!(json[2]["amount_msat"], serde_json::Value::Null);
    assert_eq!(json[3]["topics"][0], "llm");
    assert!(json[3]["heartbeat_expires"].as_u64().unwrap() < now());
}

#[test]
fn draws_differ_unless_a_seed_is_given() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _daemon = Daemon::start(&[&relay.url], dir.path(), &[]);
    relay.wait_for(31990, 1);
    let prompt = &golden().prompts[0];
    let ask = |params: &[&str]| {
        let mut args = vec!["request", "--relay", &relay.url, "--param", "max_tokens=24"];
        for param in params {
            args.extend(["--param", param]);
        }
        args.push(&prompt.text);
        stdout(&run(&args))
    };
    assert_ne!(ask(&["temperature=1"]), ask(&["temperature=1"]));
    let seeded = ["temperature=1", "seed=7"];
    assert_eq!(ask(&seeded), ask(&seeded));
    assert_ne!(ask(&seeded), ask(&["temperature=1", "seed=8"]));
    let whole = ask(&["temperature=0"]);
    assert_eq!(whole, ask(&["temperature=0"]));
    let word = whole.split_whitespace().nth(2).unwrap();
    let stop = format!("stop={word}");
    assert_eq!(
        ask(&[&stop]).strip_suffix('\n').unwrap(),
        whole.split_once(word).unwrap().0
    );
}

#[track_caller]
fn assert_one_line_at_end(args: &[&str], part: &str) {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: ") && last.contains(part),
        "{stderr}"
    );
}

#[test]
fn mistakes_are_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    candle_dvm::key_file::create(&key).unwrap();
    let key = key.to_str().unwrap();
    let config = dir.path().join("serve.toml");
    let file = config.to_str().unwrap();
    let serve = |text: &str, parts: &[&str]| {
        std::fs::write(&config, text).unwrap();
        assert_one_line(&["serve", "--config", file, "--key-file", key], parts);
    };
    assert_one_line(&["serve", "--key-file", key], &["relay", "at least one"]);
    serve("relays = [\"http://a\"]", &["relay", "http://a", "ws://"]);
    serve("relays = 7", &[file, "line 1"]);
    serve("\ncolour = \"red\"", &[file, "line 2", "colour"]);
    let relay = "relays = [\"ws://127.0.0.1:1\"]\n";
    serve(&format!("{relay}running = 0"), &["running", "at least 1"]);
    serve(
        &format!("{relay}deny = [\"bob\"]"),
        &["deny", "bob", "npub1"],
    );
    serve(
        &format!("{relay}metrics = \"0.0.0.0:9464\""),
        &["metrics", "127.0.0.1"],
    );
    serve(
        &format!("{relay}price-msat = 5"),
        &["price-msat", "wallet-file"],
    );
    serve(
        &format!("{relay}remember-days = 1"),
        &["remember-days", "max-age-seconds"],
    );
    serve(
        &format!("{relay}device = \"tpu\""),
        &["device", "tpu", "webgpu"],
    );
    let request = ["request", "--relay", "ws://127.0.0.1:1", "a"];
    let with = |extra: &[&'static str]| [&request[..], extra].concat();
    assert_one_line(&with(&["--param", "max_tokens"]), &["param", "KEY=VALUE"]);
    assert_one_line(&with(&["--param", "top_p=9"]), &["top_p", "9"]);
    assert_one_line(&with(&["--provider", "bob"]), &["provider", "bob"]);
    assert_one_line(&with(&["--encrypt"]), &["--provider"]);
    assert_one_line(
        &["discover", "--relay", "ws://127.0.0.1:1", "--timeout", "1"],
        &["no relay answered", "ws://127.0.0.1:1 (", "refused"],
    );
}

#[test]
fn the_sample_configuration_is_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve.example.toml");
    let mut settings = candle_dvm::service::Settings::read(&file).unwrap();
    settings.check().unwrap();
}

#[test]
#[cfg(unix)]
fn a_second_sigterm_does_not_wait_for_jobs() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, "drain-seconds = 300\npartial-millis = 1\n").unwrap();
    let extra = ["--config", config.to_str().unwrap()];
    let mut daemon = Daemon::start(&[&relay.url], dir.path(), &extra);
    relay.wait_for(31990, 1);
    for n in 0..4 {
        relay.publish(
            &Customer::new().request_with(&format!("fn a{n}("), |request| {
                request.params = vec![("max_tokens".to_string(), "1000".to_string())];
            }),
        );
    }
    // Each is accepted, and one at least runs.
    relay.wait_for(7000, 5);
    let id = daemon.0.id().to_string();
    let terminate = || {
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status();
        assert!(sent.unwrap().success());
    };
    terminate();
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    wait_until(|| "it does not stop", || log().contains("stopping"));
    assert!(daemon.0.try_wait().unwrap().is_none(), "jobs end first");
    terminate();
    assert_eq!(daemon.0.wait().unwrap().code(), Some(1), "{}", log());
}
