//! `candle-dvm request`: publishes a job for any provider.
//!
//! It ends with the result; with the refusal of the provider that it names; when all providers that answered have refused and no other
//! answers; and when no provider answers at all.

use super::customer::{plain, Relays};
use super::print;
use crate::key_file::KeySource;
use crate::nip90::{
    self, cancellation, Feedback, Input, InputKind, JobKind, JobRequest, JobResult, ReadError,
    Scheme, Status,
};
use crate::relay::driver::Report;
use crate::relay::Outcome;
use crate::service::now;
use crate::{Error, Result};
use candle_engine::progress::note;
use nostr::prelude::{Event, Filter, Keys, Kind, PublicKey};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Minutes, on one thread. Providers refuse requests that are much older than that.
const MOST_WORK: i64 = 28;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Text to complete
    #[arg(required_unless_present = "url")]
    prompt: Option<String>,
    /// Address of a text to put before it; of kind 5000, of the recording
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Kind of the job: 5050 for text generation, 5000 for speech to text
    #[arg(long, default_value = "5050", value_parser = kind)]
    kind: JobKind,
    /// Relay to submit the job to; may be given several times
    #[arg(long, value_name = "URL", required = true)]
    relay: Vec<String>,
    /// Job parameter, such as max_tokens=64; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    param: Vec<String>,
    /// Request id of another job whose result to put before the text; may be given several times
    #[arg(long, value_name = "EVENT ID")]
    after: Vec<String>,
    /// Send the job to this provider only
    #[arg(long, value_name = "NPUB")]
    provider: Option<String>,
    /// Encrypt the request for the provider (NIP-44)
    #[arg(long, requires = "provider")]
    encrypt: bool,
    /// Maximum price in millisatoshi
    #[arg(long, value_name = "MSAT")]
    bid: Option<u64>,
    /// Cashu token to pay with, of a mint that the provider takes; `-` reads standard input. Change comes back with the answer
    #[arg(long, value_name = "TOKEN", requires = "encrypt")]
    cashu: Option<String>,
    /// Bits of proof of work for the request (NIP-13), if the provider requires it; each bit doubles the time
    #[arg(long, value_name = "BITS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=MOST_WORK))]
    pow: u8,
    /// Seconds to wait for the result before cancelling the job
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
    /// Seconds to wait for a provider's first response before cancelling the job; at most 10 after a refusal
    #[arg(long, value_name = "S", default_value_t = 60)]
    silence: u64,
    /// File with your secret key; `-` reads standard input [default: a new key for this job]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

fn kind(text: &str) -> std::result::Result<JobKind, String> {
    let kind = text.parse().ok().and_then(JobKind::asked_by);
    kind.ok_or_else(|| "expected 5050 or 5000".to_string())
}

pub(super) fn run(args: Args) -> Result<()> {
    let keys = match &args.key_file {
        None => Keys::generate(),
        Some(file) => KeySource::named(Some(file.clone())).read()?,
    };
    let request = request(&args)?;
    if args.pow > 0 {
        note(&format!("mining {} bits of proof of work", args.pow));
    }
    let event = request
        .write_with_work(&keys, now(), args.pow)
        .map_err(Error::service)?;
    let runtime = candle_cli::runtime()?;
    runtime.block_on(async {
        let relays = Relays::connect(&args.relay, &keys)?;
        let mut customer = Customer {
            relays,
            keys,
            event,
            kind: request.kind,
            providers: request.providers,
            printed: String::new(),
            silence: Duration::from_secs(args.silence),
            at_work: BTreeSet::new(),
            down: String::new(),
            refused: BTreeSet::new(),
            refusal: String::new(),
        };
        let wait = Duration::from_secs(args.timeout);
        let ended = tokio::select! {
            ended = tokio::time::timeout(wait, customer.wait()) => ended,
            _ = tokio::signal::ctrl_c() => {
                customer.cancel().await;
                return Err(Error::service("cancelled"));
            }
        };
        match ended {
            Ok(Ok(Ended::Result)) => Ok(()),
            Ok(Ok(Ended::Refused(reason))) => Err(Error::Service(reason)),
            Ok(Err(err)) => Err(err),
            Ok(Ok(Ended::Silence(reason))) => {
                customer.cancel().await;
                Err(Error::Service(reason))
            }
            Err(_) => {
                customer.cancel().await;
                Err(Error::service(format!(
                    "no result within {} s; raise --timeout to wait longer",
                    args.timeout
                )))
            }
        }
    })
}

fn request(args: &Args) -> Result<JobRequest> {
    let wrong = |name, value: &str, expected: &str| Error::Setting {
        name,
        value: value.to_string(),
        expected: expected.to_string(),
    };
    let mut params = Vec::new();
    for param in &args.param {
        let (key, value) = param
            .split_once('=')
            .ok_or_else(|| wrong("param", param, "KEY=VALUE, such as max_tokens=64"))?;
        params.push((key.to_string(), value.to_string()));
    }
    let provider = args.provider.iter().map(|text| {
        PublicKey::parse(text)
            .map_err(|_| wrong("provider", text, "npub1… or 64 hexadecimal digits"))
    });
    let input = |kind| {
        move |data: &String| Input {
            kind,
            ..Input::text(data)
        }
    };
    let after = args.after.iter().map(input(InputKind::Job));
    let url = args.url.iter().map(input(InputKind::Url));
    let prompt = args.prompt.iter().map(Input::text);
    let request = JobRequest {
        kind: args.kind,
        inputs: after.chain(url).chain(prompt).collect(),
        params,
        output: Some("text/plain".to_string()),
        bid_msat: args.bid,
        cashu: match args.cashu.as_deref() {
            Some("-") => {
                let text =
                    std::io::read_to_string(std::io::stdin()).map_err(candle_cli::Error::Stdin)?;
                Some(text.trim().to_string())
            }
            token => token.map(str::to_string),
        },
        providers: provider.collect::<Result<_>>()?,
        encryption: args.encrypt.then_some(Scheme::Nip44),
        ..JobRequest::default()
    };
    match request.task() {
        Ok(_) => Ok(request),
        Err(ReadError::Value { name, .. }) if name == "i" => Err(wrong(
            "url",
            args.url.as_deref().unwrap_or_default(),
            "the address of one recording, and no text, with --kind 5000",
        )),
        Err(err) => Err(Error::service(format!("--param: {err}"))),
    }
}

/// Time for other providers to answer after one has refused.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// The end of a request.
enum Ended {
    /// With the result, which is printed.
    Result,
    /// Nobody works on it any more, for this reason.
    Refused(String),
    /// Nobody has said anything for too long.
    Silence(String),
}

/// Shows a token that came with an answer.
fn comes_back(token: Option<&str>) {
    if let Some(token) = token {
        note(&format!("comes back: {}", plain(token)));
    }
}

struct Customer {
    relays: Relays,
    keys: Keys,
    event: Event,
    kind: JobKind,
    providers: Vec<PublicKey>,
    printed: String,
    /// Maximum time until a provider's first event.
    silence: Duration,
    /// Providers that have spoken and have not refused.
    at_work: BTreeSet<PublicKey>,
    /// The reason of the last connection failure, as the end of a sentence.
    down: String,
    /// Those that have refused, and what the last one said.
    refused: BTreeSet<PublicKey>,
    refusal: String,
}

impl Customer {
    /// Asks, shows what comes, and returns with the result.
    async fn wait(&mut self) -> Result<Ended> {
        let filter = Filter::new()
            .kinds([self.kind.result(), nip90::FEEDBACK].map(Kind::from_u16))
            .event(self.event.id);
        self.relays.subscribe("answers", &filter, false);
        let event = self.event.clone();
        self.relays.publish(&event);
        note(&format!("job {}", event.id));
        let mut rejections = 0;
        let mut taken = false;
        let mut patience = Box::pin(tokio::time::sleep(self.silence));
        loop {
            let next = tokio::select! {
                next = self.relays.next() => next,
                () = &mut patience, if self.at_work.is_empty() => {
                    return Ok(Ended::Silence(self.nobody(taken)));
                }
            };
            match next {
                (_, Report::Settled(id, Outcome::Accepted)) if id == self.event.id => taken = true,
                (url, Report::Settled(id, Outcome::Rejected(reason))) if id == self.event.id => {
                    let reason = plain(&reason);
                    note(&format!("{url} rejected the request: {reason}"));
                    rejections += 1;
                    if rejections == self.relays.count() {
                        return Ok(Ended::Refused(format!(
                            "no relay accepted the request: {reason}"
                        )));
                    }
                }
                (url, Report::Down(reason)) => {
                    let reason = plain(&reason);
                    note(&format!("{url}: {reason}; retrying"));
                    self.down = format!(" ({url}: {reason})");
                }
                (_, Report::Event(_, event)) => {
                    let refused = self.refused.len();
                    if let Some(ended) = self.shows(&event)? {
                        return Ok(ended);
                    }
                    if self.refused.len() > refused {
                        let left = AFTER_REFUSAL.min(self.silence);
                        patience.as_mut().reset(Instant::now() + left);
                    }
                }
                _ => {}
            }
        }
    }

    /// The error when no provider answers.
    fn nobody(&self, taken: bool) -> String {
        if !self.refused.is_empty() {
            return format!(
                "every provider that answered refused the job: {}",
                self.refusal
            );
        }
        let problem = match (taken, self.providers.is_empty()) {
            (false, _) => &format!("no relay accepted the request in time{}", self.down),
            (true, true) => {
                "no provider responded in time; `candle-dvm discover` lists providers"
            }
            (true, false) => {
                "the provider did not respond in time; `candle-dvm discover` shows whether it is online"
            }
        };
        format!("--silence {}: {problem}", self.silence.as_secs())
    }

    /// Shows an answer, and says whether that was the end.
    fn shows(&mut self, event: &Event) -> Result<Option<Ended>> {
        let asked = self.providers.is_empty() || self.providers.contains(&event.pubkey);
        if !asked || event.verify().is_err() {
            return Ok(None);
        }
        if event.kind.as_u16() == self.kind.result() {
            let Ok(result) = JobResult::read(event, &self.keys) else {
                return Ok(None);
            };
            if result.job != self.event.id {
                return Ok(None);
            }
            comes_back(result.cashu.as_deref());
            match result.text.strip_prefix(&self.printed) {
                Some(rest) => print(&format!("{rest}\n"))?,
                // Somebody else's partials, or a model that has thought again.
                None => print(&format!("\n{}\n", result.text))?,
            }
            if let Some(usage) = result.usage {
                note(&format!(
                    "{}: {} prompt tokens, {} generated",
                    plain(&usage.model),
                    usage.prompt_tokens,
                    usage.completion_tokens
                ));
            }
            return Ok(Some(Ended::Result));
        }
        let feedback = match Feedback::read(event, &self.keys) {
            Ok(feedback) if feedback.job == self.event.id => feedback,
            _ => return Ok(None),
        };
        comes_back(feedback.cashu.as_deref());
        let extra = plain(&feedback.extra.unwrap_or_default());
        if feedback.status == Status::Error {
            self.at_work.remove(&event.pubkey);
            if !self.providers.is_empty() {
                let reason = format!("the provider says: {extra}");
                return Ok(Some(Ended::Refused(reason)));
            }
            // Another provider may still answer.
            note(&format!("{}: error: {extra}", event.pubkey));
            self.refused.insert(event.pubkey);
            self.refusal = extra;
            return Ok(None);
        }
        // What one relay brings late may be older than the refusal from another.
        if !self.refused.contains(&event.pubkey) {
            self.at_work.insert(event.pubkey);
        }
        match feedback.status {
            Status::Partial => {
                if let Some(more) = feedback.text.strip_prefix(&self.printed) {
                    print(more)?;
                    self.printed = feedback.text;
                }
            }
            Status::PaymentRequired => note(&format!(
                "payment required: {} msat {}",
                feedback.amount_msat.unwrap_or(0),
                plain(&feedback.invoice.unwrap_or_default())
            )),
            _ => note(&format!("{} {extra}", feedback.status.name())),
        }
        Ok(None)
    }

    async fn cancel(&mut self) {
        if let Ok(event) = cancellation::write(&self.keys, now(), self.kind, &self.event.id) {
            self.relays.publish(&event);
            // As long as it takes one relay to say that it has it.
            let told = async {
                loop {
                    if let (_, Report::Settled(id, _)) = self.relays.next().await {
                        if id == event.id {
                            return;
                        }
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(2), told).await;
        }
    }
}
