//! Prepares a job to run: fetches its inputs, then waits for its payment. One task per job, concurrent with the service's own.

use super::actor::Message;
use super::lookup::Lookup;
use super::offers::{Offers, Ready};
use super::prompt::prompt;
use super::settings::Settings;
use super::work::told;
use super::{inputs, now};
use crate::jobs::{Invoice, JobId};
use crate::nip90::{JobRequest, Task};
use crate::payment::Payment;
use crate::platform::{self, timeout};
use futures_channel::{mpsc, oneshot};
use futures_util::future::{select, Either};
use nostr::prelude::{Keys, PublicKey};
use std::sync::Arc;
use std::time::Duration;

/// Seconds for which the wallet may take to answer.
const WALLET: u64 = 30;
/// Seconds between questions to the wallet about an invoice: at first, and when it is old.
const POLL: (u64, u64) = (3, 20);
/// Seconds beyond an invoice's end: for the last question to be answered, and for the wallet to be reached after a restart.
const LAST_ANSWER: u64 = 10;
const AFTER_RESTART: u64 = 60;

/// The message to customers whose slot was given to another job.
pub(super) const GAVE_WAY: &str =
    "the job waited too long for inputs or payment and a newer one replaced it; submit it again, and do not pay its invoice";

/// The answer to a stranger's job whose slot in the queue went to a known customer.
pub(super) const MADE_ROOM: &str =
    "the queue is full and a customer who had results before took this job's place; try again later";

/// The inputs of a job's preparation.
pub(super) struct Preparation {
    pub(super) id: JobId,
    pub(super) customer: PublicKey,
    pub(super) request: JobRequest,
    pub(super) task: Task,
    pub(super) keys: Arc<Keys>,
    pub(super) lookup: Lookup,
    pub(super) settings: Arc<Settings>,
    pub(super) offers: Arc<Offers>,
    pub(super) payment: Arc<dyn Payment>,
    pub(super) messages: mpsc::UnboundedSender<Message>,
    /// The invoice that the job had before a restart.
    pub(super) invoice: Option<Invoice>,
    /// Tells it why it cannot wait any longer: it is paid by now, or not at all.
    pub(super) hurry: oneshot::Receiver<String>,
}

/// Fetches the inputs of a job, then waits for its payment: a customer must not pay for inputs that cannot be fetched.
pub(super) async fn prepare(mut job: Preparation) {
    let done: Result<Ready, String> = async {
        // What became of a token that was about to be taken before a restart has to be known before the job can fail.
        let is_begun = job.payment.cash().is_some_and(|cash| cash.has(job.id));
        if is_begun {
            pay(&mut job).await?;
        }
        let ready = inputs(&job).await?;
        if !is_begun {
            pay(&mut job).await?;
        }
        Ok(ready)
    }
    .await;
    // The service may be gone; then the journal has the job.
    let _ = job.messages.unbounded_send(Message::Prepared(job.id, done));
}

/// Fetches the inputs, and asks the model whether it takes them.
async fn inputs(job: &Preparation) -> Result<Ready, String> {
    let is_hidden = job.request.encryption.is_some();
    match (&job.task, &job.offers.text, &job.offers.speech) {
        (Task::Text(params), Some(text), _) => {
            let texts = inputs::texts(
                &job.request,
                &job.customer,
                &job.keys,
                &job.lookup,
                &job.settings,
            )
            .await?;
            let template = text.template.as_ref();
            let prompt = prompt(&job.request, params, texts, template, job.settings.raw)?;
            let checked = text.generator.check(&prompt);
            checked.map_err(|err| told(&err, is_hidden))?;
            Ok(Ready::Text(text.generator.clone(), prompt))
        }
        (Task::Speech(params), _, Some(speech)) => {
            let recording = inputs::recording(&job.request, &job.settings).await?;
            let listener = speech.listener.clone();
            let (told, checked) = oneshot::channel();
            let work = move || async move {
                let checked = listener.check(&recording);
                // The service may be gone.
                let _ = told.send(checked.map(|()| recording));
            };
            let failed = || "the recording cannot be decoded".to_string();
            platform::spawn_work(work).await.map_err(|_| failed())?;
            let checked = checked.await.map_err(|_| failed())?;
            let recording = checked.map_err(|err| err.one_line())?;
            Ok(Ready::Speech(
                speech.listener.clone(),
                recording,
                params.clone(),
            ))
        }
        // It did when the job came, before a restart.
        _ => Err("this service does not do such jobs any more".to_string()),
    }
}

async fn pay(job: &mut Preparation) -> Result<(), String> {
    let price = job.payment.price_msat();
    if let (Some(token), Some(cash)) = (&job.request.cashu, job.payment.cash()) {
        if price > 0 || cash.has(job.id) {
            let (go_on, told) = oneshot::channel();
            let redeems = Message::Redeems(job.id, go_on);
            let _ = job.messages.unbounded_send(redeems);
            // Without an answer the service is gone.
            told.await.map_err(|_| String::new())?;
            cash.redeem(job.id, token).await?;
            let _ = job.messages.unbounded_send(Message::Redeemed(job.id));
            return Ok(());
        }
    }
    let (invoice, last) = match job.invoice.take() {
        Some(invoice) if invoice.paid => return Ok(()),
        Some(invoice) => {
            // It may have been paid while the service was away.
            let last = invoice.expires.max(now() + AFTER_RESTART);
            (invoice, last)
        }
        None if price == 0 => return Ok(()),
        None => {
            let invoice = bill(job, price).await?;
            let last = invoice.expires;
            (invoice, last)
        }
    };
    let started = now();
    let mut warned = false;
    let mut over = None;
    loop {
        // The slot is not held longer, even if the wallet does not answer.
        let patience = (last.saturating_sub(now()) + LAST_ANSWER).min(WALLET);
        let asked = job.payment.is_paid(&invoice);
        match timeout(Duration::from_secs(patience), asked).await {
            Some(Ok(true)) => {
                let _ = job.messages.unbounded_send(Message::Paid(job.id));
                return Ok(());
            }
            Some(Ok(false)) if now() >= invoice.expires => {
                return Err("the invoice was not paid in time".to_string())
            }
            Some(Ok(false)) => {}
            silent if !warned => {
                warned = true;
                let error = silent.and_then(Result::err);
                tracing::warn!(job = %job.id, error, "cannot get an invoice's status from the wallet");
            }
            _ => {}
        }
        if let Some(problem) = over {
            return Err(problem);
        }
        if now() >= last {
            let problem = "the invoice expired, and the wallet does not report whether it was paid";
            return Err(problem.to_string());
        }
        let poll = (now().saturating_sub(started) / 6).clamp(POLL.0, POLL.1);
        let wait = poll.min(last.saturating_sub(now())).max(1);
        let rest = Box::pin(platform::sleep(Duration::from_secs(wait)));
        if let Either::Left((hurried, _)) = select(&mut job.hurry, rest).await {
            // If no sender is left to give the reason, the service is gone.
            over = Some(hurried.unwrap_or_default());
        }
    }
}

async fn bill(job: &Preparation, price: u64) -> Result<Invoice, String> {
    let memo = format!("{}, job {}", job.request.kind.name(), job.id);
    let asked = timeout(
        Duration::from_secs(WALLET),
        job.payment.invoice(price, &memo),
    );
    let invoice = asked.await.unwrap_or_else(|| Err("no answer".to_string()));
    let invoice = invoice.map_err(|err| {
        tracing::error!(job = %job.id, error = err, "no invoice");
        "the wallet cannot create an invoice now; try again later".to_string()
    })?;
    let billed = Message::Billed(job.id, invoice.clone());
    let _ = job.messages.unbounded_send(billed);
    Ok(invoice)
}
