//! The program as a service and as its customer, with the embedded model.

use super::relay::TestRelay;
use crate::cli::{assert_one_line, program, run, stdout};
use crate::support::golden;
use std::path::Path;
use std::process::{Child, Stdio};

/// A running `candle-dvm serve`, killed when it is dropped.
pub struct Daemon(pub Child);

impl Daemon {
    pub fn start(relays: &[&str], dir: &Path, extra: &[&str]) -> Self {
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
        Self(
            program(&args)
                .stderr(log)
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
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
        "candle-embedded",
        "max_tokens",
        "free",
        "online, heard",
    ] {
        assert!(found.contains(part), "no {part:?} in {found}");
    }
    let wrong = ["--provider", npub.trim(), "--param", "model=other", "x"];
    assert_one_line_at_end(&[&request[..3], &wrong].concat(), "candle-embedded");
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
        &["no relay answered"],
    );
}

#[test]
fn the_sample_configuration_is_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve.example.toml");
    let mut settings = candle_dvm::service::Settings::read(&file).unwrap();
    settings.check().unwrap();
}
