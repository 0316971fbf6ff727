//! A service whose cache has pages: the same results, and its metrics say how the memory is used.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::{error, Customer};
use super::wait::wait_until;
use crate::cli::{assert_one_line, run};
use crate::support::{embedded, golden};
use candle_engine::{CompletionRequest, DeviceKind, InferenceBackend};
use nostr::prelude::Event;
use std::collections::HashMap;
use std::net::TcpListener;

/// More than one piece of a prompt that is read at once.
const LINES: usize = 12;

/// The numbers of a page of metrics; none before the service listens.
fn numbers(address: &str) -> HashMap<String, u64> {
    let page = ureq::get(format!("http://{address}/metrics")).call();
    let page = page.map(|page| page.into_body().read_to_string().unwrap());
    let page = page.unwrap_or_default();
    let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?)))
        .collect()
}

#[test]
fn jobs_share_pages_and_have_the_same_results() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let config = dir.path().join("serve.toml");
    let settings = format!(
        "cache-memory = \"8MiB\"\nrunning = 3\ndefault-tokens = 48\nmetrics = \"{address}\"\n"
    );
    std::fs::write(&config, settings).unwrap();
    let extra = ["--config", config.to_str().unwrap()];
    let _daemon = Daemon::start(&[&relay.url], dir.path(), &extra);
    relay.wait_for(31990, 1);

    let customer = Customer::new();
    let beginning = "pub fn push(&mut self, value: T) -> Option<usize> {\n".repeat(LINES);
    let backend = embedded(DeviceKind::Cpu);
    let alone = |prompt: &str| {
        let request = CompletionRequest {
            prompt: prompt.to_string(),
            max_tokens: 48,
            ..CompletionRequest::default()
        };
        backend.complete(&request).unwrap().text
    };
    let mut texts: Vec<(String, String)> = golden()
        .prompts
        .iter()
        .take(4)
        .map(|prompt| (prompt.text.clone(), prompt.greedy_text.clone()))
        .collect();
    for end in ["self.len += 1;", "None"] {
        let prompt = format!("{beginning}{end}");
        texts.push((prompt.clone(), alone(&prompt)));
    }
    let jobs: Vec<(Event, &str)> = texts
        .iter()
        .map(|(prompt, text)| (customer.request(prompt), text.as_str()))
        .collect();
    jobs.iter().for_each(|(job, _)| relay.publish(job));
    let results = relay.wait_for(6050, jobs.len());
    for (job, text) in &jobs {
        let mut read = results.iter().map(|result| customer.read(result));
        let result = read.find(|result| result.job == job.id).unwrap();
        assert_eq!(result.text, *text);
    }
    let memory = |name: &str| {
        numbers(&address)
            .get(&format!("candle_dvm_{name}"))
            .copied()
    };
    wait_until(
        || "jobs still hold pages",
        || memory("cache_held_bytes") == Some(0),
    );
    let all = memory("cache_bytes").unwrap();
    let kept = memory("cache_kept_bytes").unwrap();
    assert!(kept > 0 && kept < all && all <= 8 << 20, "{kept} of {all}");
    assert_eq!(memory("jobs_preempted"), Some(0));
    assert!(memory("preemptions_total").is_some());
}

/// A job whose prompt the memory cannot hold is refused before it is paid or runs, and its customer hears nothing of flags.
#[test]
fn prompts_that_the_memory_cannot_hold_are_refused() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let extra = ["--cache-memory", "1MiB"];
    let _daemon = Daemon::start(&[&relay.url], dir.path(), &extra);
    relay.wait_for(31990, 1);
    let customer = Customer::new();
    let job = customer.request(&"fn main() {} ".repeat(80));
    relay.publish(&job);
    let reason = error(&relay, &customer, &job);
    assert!(reason.contains("this service has memory for"), "{reason}");
    assert!(!reason.contains("--"), "{reason}");
}

#[test]
fn wrong_memory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    candle_dvm::key_file::create(&key).unwrap();
    let config = dir.path().join("serve.toml");
    let data = dir.path().join("data");
    let [key, file, data] = [&key, &config, &data].map(|path| path.to_str().unwrap());
    let serve = |settings: &str, more: &[&str]| -> Vec<String> {
        let relay = "relays = [\"ws://127.0.0.1:1\"]\n";
        std::fs::write(file, format!("{relay}{settings}")).unwrap();
        let all = [
            "serve",
            "--device",
            "cpu",
            "--config",
            file,
            "--key-file",
            key,
            "--data-dir",
            data,
        ];
        all.iter().chain(more).map(|arg| arg.to_string()).collect()
    };
    let fails = |settings: &str, more: &[&str], parts: &[&str]| {
        let args = serve(settings, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert_one_line(&args, parts);
    };
    let wrong = ["line 2", "cache-memory", "lots", "such as 8GB"];
    fails("cache-memory = \"lots\"", &[], &wrong);
    fails(
        "",
        &["--cache-memory", "lots"],
        &["--cache-memory", "lots", "such as 8GB"],
    );
    let speech = "speech-model = \"none\"\ncache-memory = \"1MiB\"";
    fails(speech, &[], &["cache-memory", "1048576", "--model"]);
    // The flag is what counts, and one job at a time has pages too.
    let args = serve(
        "running = 1\ncache-memory = \"1MiB\"",
        &["--cache-memory", "1000"],
    );
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: --cache-memory 1000: expected memory for two pages"),
        "{stderr}"
    );
}
