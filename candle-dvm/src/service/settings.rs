//! Everything about the service that can be configured. `serve.example.toml` shows the file.

use crate::jobs::{Customer, Limits};
use crate::relay::normal_url;
use crate::{Error, Result};
use nostr::prelude::PublicKey;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

pub(super) const DAY: u64 = 86_400;
const YEAR: u64 = 365 * DAY;

/// The settings, with their defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The relays to serve on.
    pub relays: Vec<String>,
    /// The model's path, or its name on the Hugging Face Hub; `None` is the embedded one.
    pub model: Option<PathBuf>,
    /// LoRA adapters over the model, each `PATH[:SCALE]`.
    pub lora: Vec<String>,
    /// Number of devices that share each layer.
    pub gpus: usize,
    /// Layers on the GPU: `all`, `auto` or a number. `None` is all.
    pub gpu_layers: Option<String>,
    /// Whether experts stay on the CPU.
    pub cpu_experts: bool,
    /// Bytes for the keys and values of texts, in pages that jobs share; a string such as `4GB` in a file. `None` is a cache that grows with the
    /// longest job.
    #[serde(deserialize_with = "cache_memory")]
    pub cache_memory: Option<u64>,
    /// A draft model's path, or its name on the Hugging Face Hub: see [`candle_engine::CandleBackend::with_draft`].
    pub draft: Option<PathBuf>,
    /// The most tokens that it proposes at once.
    pub draft_tokens: usize,
    /// The speech model's path, or its name on the Hugging Face Hub. Without `model`, it is served alone.
    pub speech_model: Option<PathBuf>,
    /// The device, as `--device` takes it.
    pub device: Option<String>,
    /// The file with the secret key.
    pub key_file: Option<PathBuf>,
    /// The folder for the journal.
    pub data_dir: Option<PathBuf>,
    /// Distinguishes the announcements of one key.
    pub identifier: String,
    /// A name for people.
    pub name: String,
    /// The description of the service, for people.
    pub about: String,
    /// The address of a picture.
    pub picture: Option<String>,
    /// The model's name in announcements and requests; `None` means its file's name.
    pub model_name: Option<String>,
    /// Whether prompts are continued as they are, also where the model has a chat template. A request may ask for either.
    pub raw: bool,
    /// Whether to announce the service and to send heartbeats.
    pub announce: bool,
    /// Seconds between heartbeats.
    pub heartbeat_seconds: u64,
    /// Seconds between announcements: some clients hide old ones.
    pub announce_seconds: u64,
    /// Jobs that run at the same time, natively in the same steps of the model, where it is one of attention layers on one device.
    pub running: usize,
    /// Jobs that wait.
    pub queue: usize,
    /// Seconds that a job may run.
    pub job_seconds: u64,
    /// Seconds after those after which a job that has not ended hangs, and with it the device: the service ends, see
    /// [`Service::run`](super::Service::run).
    pub hang_seconds: u64,
    /// Seconds that running jobs get to end when the service stops.
    pub drain_seconds: u64,
    /// Milliseconds between two partial results of a job, at least.
    pub partial_millis: u64,
    /// Maximum number of tokens of a job that sets none.
    pub default_tokens: usize,
    /// Tokens of a job that asks for many.
    pub max_tokens: usize,
    /// Tokens of a stranger's job, at most, while strangers fill much of the queue.
    pub busy_tokens: usize,
    /// Jobs with recordings, at most: each is held in memory.
    pub recordings: usize,
    /// Bytes of a recording.
    pub recording_bytes: usize,
    /// Seconds of a recording.
    pub recording_seconds: u64,
    /// Seconds to wait for another job's result.
    pub chain_seconds: u64,
    /// Hosts from which inputs may be fetched; `*.example.com` means every name below.
    pub url_hosts: Vec<String>,
    /// Whether requests may name relays at private addresses.
    pub private_relays: bool,
    /// The most bytes of an event, where a relay does not say.
    pub event_bytes: usize,
    /// The address for metrics: one of this machine.
    pub metrics: Option<SocketAddr>,
    /// Days for which jobs that are done are known again.
    pub remember_days: u64,
    /// At the very first start on a relay: age in seconds of the oldest requests to answer. 0 answers only requests from then on.
    pub look_back_seconds: u64,
    /// Maximum number of answers that wait for a relay, counted once per relay; beyond it the oldest are dropped.
    pub undelivered: usize,
    /// Bytes of them.
    pub undelivered_bytes: u64,
    /// Public keys that may ask; empty means everybody.
    pub allow: Vec<String>,
    /// Public keys that may not.
    pub deny: Vec<String>,
    /// Jobs of one key that wait or run.
    pub open_per_key: usize,
    /// Jobs of one key in an hour.
    pub hourly_per_key: usize,
    /// Bytes of input.
    pub input_bytes: usize,
    /// Seconds that a request may be old.
    pub max_age_seconds: u64,
    /// The least bid, in thousandths of a satoshi.
    pub min_bid_msat: u64,
    /// Bits of proof of work of a request's id.
    pub min_work: u8,
    /// The most bits that strangers have to show while they fill much of the queue; 0 asks for none.
    pub busy_work: u8,
    /// The price of a job, in thousandths of a satoshi.
    pub price_msat: u64,
    /// Mints whose Cashu tokens pay for jobs.
    pub cashu_mints: Vec<String>,
    /// A file with the wallet's `nostr+walletconnect://` address.
    pub wallet_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            relays: Vec::new(),
            model: None,
            lora: Vec::new(),
            gpus: 1,
            gpu_layers: None,
            cpu_experts: false,
            cache_memory: None,
            draft: None,
            draft_tokens: 8,
            speech_model: None,
            device: None,
            key_file: None,
            data_dir: None,
            identifier: "candle-dvm".to_string(),
            name: "candle-dvm".to_string(),
            about: "Text generation on candle".to_string(),
            picture: None,
            model_name: None,
            raw: false,
            announce: true,
            heartbeat_seconds: 300,
            announce_seconds: DAY,
            running: 4,
            queue: 64,
            job_seconds: 600,
            hang_seconds: 600,
            drain_seconds: 30,
            partial_millis: 1000,
            default_tokens: 256,
            max_tokens: 2048,
            busy_tokens: 128,
            recordings: 8,
            recording_bytes: 25 << 20,
            recording_seconds: 3600,
            chain_seconds: 600,
            url_hosts: Vec::new(),
            private_relays: false,
            event_bytes: 64 * 1024,
            metrics: None,
            remember_days: 30,
            look_back_seconds: 0,
            undelivered: 10_000,
            undelivered_bytes: 64 << 20,
            allow: Vec::new(),
            deny: Vec::new(),
            open_per_key: limits.open_per_customer,
            hourly_per_key: limits.hourly_per_customer,
            input_bytes: limits.input_bytes,
            max_age_seconds: limits.max_age,
            min_bid_msat: 0,
            min_work: 0,
            busy_work: limits.busy_work,
            price_msat: 0,
            cashu_mints: Vec::new(),
            wallet_file: None,
        }
    }
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// [`candle_engine::Error::File`] with the line: no TOML, a setting that does not exist, or a value of the wrong type.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn read(file: &std::path::Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|err| Error::file(file, err))?;
        toml::from_str(&text).map_err(|err| {
            let line = err
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            Error::file(file, format!("{place}{}", err.message()))
        })
    }

    /// Checks what can be checked without the network, and brings relays into their one form.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first that does not fit.
    pub fn check(&mut self) -> Result<()> {
        let wrong = |name: &'static str, value: String, expected: String| {
            Err(Error::Setting {
                name,
                value,
                expected,
            })
        };
        let mut relays = Vec::new();
        for relay in &self.relays {
            match normal_url(relay) {
                Ok(url) if relays.contains(&url) => {}
                Ok(url) => relays.push(url),
                Err(err) => {
                    return wrong(
                        "relay",
                        relay.clone(),
                        format!("a ws:// or wss:// address: {err}"),
                    )
                }
            }
        }
        if relays.is_empty() {
            return wrong("relay", String::new(), "at least one address".to_string());
        }
        self.relays = relays;
        for (name, value) in [
            ("running", self.running),
            ("queue", self.queue),
            ("default-tokens", self.default_tokens),
            ("max-tokens", self.max_tokens),
            ("busy-tokens", self.busy_tokens),
            ("open-per-key", self.open_per_key),
            ("undelivered", self.undelivered),
            ("recordings", self.recordings),
            ("recording-bytes", self.recording_bytes),
        ] {
            if value == 0 {
                return wrong(name, "0".to_string(), "at least 1".to_string());
            }
        }
        if !(1..=candle_engine::MAX_DEVICES).contains(&self.gpus) {
            let expected = format!("1 to {}", candle_engine::MAX_DEVICES);
            return wrong("gpus", self.gpus.to_string(), expected);
        }
        if self.event_bytes < 1024 {
            let value = self.event_bytes.to_string();
            return wrong("event-bytes", value, "at least 1024".to_string());
        }
        for (name, value, range) in self.durations() {
            if !range.contains(&value) {
                let expected = format!("{} to {}", range.start(), range.end());
                return wrong(name, value.to_string(), expected);
            }
        }
        if self.undelivered_bytes < self.event_bytes as u64 {
            let value = self.undelivered_bytes.to_string();
            let expected = format!("at least event-bytes ({})", self.event_bytes);
            return wrong("undelivered-bytes", value, expected);
        }
        if self.look_back_seconds > self.max_age_seconds {
            let value = self.look_back_seconds.to_string();
            let expected = format!("at most max-age-seconds ({})", self.max_age_seconds);
            return wrong("look-back-seconds", value, expected);
        }
        if self.remember_days.saturating_mul(DAY) < self.max_age_seconds.saturating_mul(2) {
            // A job that was forgotten and may still come would be answered twice.
            let value = self.remember_days.to_string();
            return wrong(
                "remember-days",
                value,
                format!("at least twice max-age-seconds ({})", self.max_age_seconds),
            );
        }
        if let Some(address) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            let expected = "a local address, such as 127.0.0.1:9464".to_string();
            return wrong("metrics", address.to_string(), expected);
        }
        if self.price_msat > 0 && self.wallet_file.is_none() && self.cashu_mints.is_empty() {
            let expected =
                "0, unless cashu-mints is set, or wallet-file to a wallet that can create invoices"
                    .to_string();
            return wrong("price-msat", self.price_msat.to_string(), expected);
        }
        self.limits().map(|_| ())
    }

    /// Every setting that is a time, and what it may be. Longer ones would only be mistakes, and overflow sums of times.
    fn durations(&self) -> [(&'static str, u64, RangeInclusive<u64>); 11] {
        [
            ("heartbeat-seconds", self.heartbeat_seconds, 1..=DAY),
            ("announce-seconds", self.announce_seconds, 1..=YEAR),
            ("job-seconds", self.job_seconds, 1..=30 * DAY),
            ("hang-seconds", self.hang_seconds, 1..=DAY),
            ("drain-seconds", self.drain_seconds, 0..=DAY),
            ("partial-millis", self.partial_millis, 0..=DAY * 1000),
            ("recording-seconds", self.recording_seconds, 1..=DAY),
            ("chain-seconds", self.chain_seconds, 0..=30 * DAY),
            ("remember-days", self.remember_days, 1..=3650),
            ("look-back-seconds", self.look_back_seconds, 0..=YEAR),
            ("max-age-seconds", self.max_age_seconds, 1..=YEAR),
        ]
    }

    /// The limits for admission.
    ///
    /// # Errors
    /// A key in a list that is none.
    pub fn limits(&self) -> Result<Limits> {
        Ok(Limits {
            allow: keys("allow", &self.allow)?,
            deny: keys("deny", &self.deny)?,
            open_per_customer: self.open_per_key,
            hourly_per_customer: self.hourly_per_key,
            input_bytes: self.input_bytes,
            max_age: self.max_age_seconds,
            min_bid_msat: self.min_bid_msat,
            min_work: self.min_work,
            busy_work: self.busy_work,
            ..Limits::default()
        })
    }
}

fn cache_memory<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<Option<u64>, D::Error> {
    let text = String::deserialize(value)?;
    match candle_engine::size::parse(&text) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(problem) => Err(D::Error::custom(format!(
            "cache-memory {text:?}: {problem}"
        ))),
    }
}

fn keys(name: &'static str, list: &[String]) -> Result<BTreeSet<Customer>> {
    let parse = |text: &String| {
        PublicKey::parse(text)
            .map(|key| Customer(key.to_bytes()))
            .map_err(|_| Error::Setting {
                name,
                value: text.clone(),
                expected: "public keys, as npub1… or 64 hexadecimal digits".to_string(),
            })
    };
    list.iter().map(parse).collect()
}
