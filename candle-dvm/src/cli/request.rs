//! `candle-dvm request`: a job for whoever serves it.

use super::customer::Relays;
use super::print;
use crate::key_file::KeySource;
use crate::nip90::{
    self, cancellation, Feedback, Input, InputKind, JobRequest, JobResult, Scheme, Status,
};
use crate::progress::note;
use crate::relay::driver::Report;
use crate::relay::Outcome;
use crate::service::now;
use crate::{Error, Result};
use nostr::prelude::{Event, Filter, Keys, Kind, PublicKey};
use std::path::PathBuf;
use std::time::Duration;

/// Minutes, on one thread. Providers refuse requests that are much older than that.
const MOST_WORK: i64 = 28;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The text to go on from
    prompt: String,
    /// A relay to ask on; may come several times
    #[arg(long, value_name = "URL", required = true)]
    relay: Vec<String>,
    /// A parameter, such as max_tokens=64; may come several times
    #[arg(long, value_name = "KEY=VALUE")]
    param: Vec<String>,
    /// The result of another job comes before the text: its request's id; may come several times
    #[arg(long, value_name = "EVENT ID")]
    after: Vec<String>,
    /// Ask this provider alone
    #[arg(long, value_name = "NPUB")]
    provider: Option<String>,
    /// Hide the request from everybody but the provider (NIP-44)
    #[arg(long, requires = "provider")]
    encrypt: bool,
    /// The most to pay, in thousandths of a satoshi
    #[arg(long, value_name = "MSAT")]
    bid: Option<u64>,
    /// Bits of proof of work in the request's id (NIP-13), for providers that ask for it; each doubles the time that it takes
    #[arg(long, value_name = "BITS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=MOST_WORK))]
    pow: u8,
    /// Seconds to wait for the result; the job is cancelled then
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
    /// The file with your secret key; `-` reads standard input [default: a new key, for this job alone]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<()> {
    let keys = match &args.key_file {
        None => Keys::generate(),
        Some(file) => KeySource::named(Some(file.clone())).read()?,
    };
    let request = request(&args)?;
    if args.pow > 0 {
        note(&format!("mining {} bits of work", args.pow));
    }
    let event = request
        .write_with_work(&keys, now(), args.pow)
        .map_err(Error::service)?;
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let relays = Relays::connect(&args.relay, &keys)?;
        let mut customer = Customer {
            relays,
            keys,
            event,
            providers: request.providers,
            printed: String::new(),
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
            Ok(result) => result,
            Err(_) => {
                customer.cancel().await;
                Err(Error::service(format!(
                    "--timeout {}: no result by then",
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
    nip90::params::read(&params).map_err(|err| Error::service(format!("--param: {err}")))?;
    let provider = args.provider.iter().map(|text| {
        PublicKey::parse(text)
            .map_err(|_| wrong("provider", text, "npub1… or 64 hexadecimal digits"))
    });
    let after = args.after.iter().map(|id| Input {
        kind: InputKind::Job,
        ..Input::text(id)
    });
    Ok(JobRequest {
        inputs: after.chain([Input::text(&args.prompt)]).collect(),
        params,
        output: Some("text/plain".to_string()),
        bid_msat: args.bid,
        providers: provider.collect::<Result<_>>()?,
        encryption: args.encrypt.then_some(Scheme::Nip44),
        ..JobRequest::default()
    })
}

struct Customer {
    relays: Relays,
    keys: Keys,
    event: Event,
    providers: Vec<PublicKey>,
    printed: String,
}

impl Customer {
    /// Asks, shows what comes, and returns with the result.
    async fn wait(&mut self) -> Result<()> {
        let filter = Filter::new()
            .kinds([nip90::RESULT, nip90::FEEDBACK].map(Kind::from_u16))
            .event(self.event.id);
        self.relays.subscribe("answers", &filter, false);
        let event = self.event.clone();
        self.relays.publish(&event);
        note(&format!("job {}", event.id));
        let mut refusals = 0;
        loop {
            let (url, report) = self.relays.next().await;
            match report {
                Report::Settled(id, Outcome::Rejected(reason)) if id == self.event.id => {
                    note(&format!("{url} does not take the request: {reason}"));
                    refusals += 1;
                    if refusals == self.relays.count() {
                        return Err(Error::service(format!(
                            "no relay takes the request: {reason}"
                        )));
                    }
                }
                Report::Down(reason) => note(&format!("{url}: {reason}; will try again")),
                Report::Event(_, event) if self.shows(&event)? => return Ok(()),
                _ => {}
            }
        }
    }

    /// Shows an answer, and says whether it was the result.
    fn shows(&mut self, event: &Event) -> Result<bool> {
        let asked = self.providers.is_empty() || self.providers.contains(&event.pubkey);
        if !asked || event.verify().is_err() {
            return Ok(false);
        }
        if event.kind.as_u16() == nip90::RESULT {
            let Ok(result) = JobResult::read(event, &self.keys) else {
                return Ok(false);
            };
            if result.job != self.event.id {
                return Ok(false);
            }
            match result.text.strip_prefix(&self.printed) {
                Some(rest) => print(&format!("{rest}\n"))?,
                // Somebody else's partials, or a model that has thought again.
                None => print(&format!("\n{}\n", result.text))?,
            }
            return Ok(true);
        }
        let feedback = match Feedback::read(event, &self.keys) {
            Ok(feedback) if feedback.job == self.event.id => feedback,
            _ => return Ok(false),
        };
        let extra = feedback.extra.unwrap_or_default();
        match feedback.status {
            Status::Partial => {
                if let Some(more) = feedback.text.strip_prefix(&self.printed) {
                    print(more)?;
                    self.printed = feedback.text;
                }
            }
            Status::Error if !self.providers.is_empty() => {
                return Err(Error::service(format!("the provider says: {extra}")));
            }
            // Another provider may still answer.
            Status::Error => note(&format!("{}: error: {extra}", event.pubkey)),
            Status::PaymentRequired => note(&format!(
                "to pay: {} msat {}",
                feedback.amount_msat.unwrap_or(0),
                feedback.invoice.unwrap_or_default()
            )),
            Status::Processing | Status::Success => {
                note(&format!("{} {extra}", feedback.status.name()))
            }
        }
        Ok(false)
    }

    async fn cancel(&mut self) {
        if let Ok(event) = cancellation::write(&self.keys, now(), &self.event.id) {
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
