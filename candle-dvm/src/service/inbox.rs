//! Events become jobs: verified, read, let in or refused, and in the journal before anything is done for them.

use super::actor::{Live, LiveState, Message, Service, CANCELLATIONS, JOBS};
use super::work::StopReason;
use super::{inputs, now};
use crate::jobs::{Customer, Entry, Invoice, JobId, Offer, Refusal, Stage};
use crate::nip90::{self, cancellation, params, Feedback, JobRequest, ReadError, Status};
use crate::relay::Keep;
use crate::{platform, Result};
use nostr::prelude::{Event, EventId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Seconds between questions to the wallet about an invoice.
const PAYMENT_POLL: Duration = Duration::from_secs(5);

pub(super) fn job_id(event: &Event) -> JobId {
    JobId(event.id.to_bytes())
}

pub(super) fn event_id(id: JobId) -> EventId {
    EventId::from_byte_array(id.0)
}

pub(super) fn customer(event: &Event) -> Customer {
    Customer(event.pubkey.to_bytes())
}

impl Service {
    pub(super) fn event(&mut self, url: &str, subscription: &str, event: Event) -> Result<()> {
        if self.searches.contains_key(subscription) {
            self.found(url, subscription, event);
            return Ok(());
        }
        let kind = event.kind.as_u16();
        let wanted = match subscription {
            JOBS => kind == nip90::REQUEST,
            CANCELLATIONS => kind == nip90::DELETION,
            _ => false,
        };
        if !wanted {
            self.admission.count("unasked");
            return Ok(());
        }
        if self.seen.contains(&event.id) {
            return Ok(());
        }
        // Before it is noted as seen: a forgery must not keep the real one out.
        if event.verify().is_err() {
            self.admission.count("forged");
            return Ok(());
        }
        self.seen.insert(event.id);
        if kind == nip90::DELETION {
            return self.cancellation(&event);
        }
        self.request(url, event)
    }

    fn request(&mut self, url: &str, event: Event) -> Result<()> {
        let id = job_id(&event);
        if self.stopping || self.live.contains_key(&id) || self.journal.get(id)?.is_some() {
            return Ok(());
        }
        let us = self.keys.public_key();
        // Before anything is read: what is wrong with a job of others is for them to say.
        let named: Vec<&str> = event
            .tags
            .iter()
            .filter(|tag| tag.kind() == "p")
            .filter_map(|tag| tag.content())
            .collect();
        let addressed = named.contains(&us.to_hex().as_str());
        if !named.is_empty() && !addressed {
            self.admission.count("for_others");
            return Ok(());
        }
        let read = JobRequest::read(&event, &self.keys);
        let (request, params) = match read.and_then(|r| Ok((params::read(&r.params)?, r))) {
            Ok((params, request)) => (request, params),
            Err(ReadError::NotForUs) => {
                self.admission.count("for_others");
                return Ok(());
            }
            Err(err) => {
                let refusal = Refusal::BadRequest(err.to_string());
                return self.refuse(url, &event, None, &refusal);
            }
        };
        if let Some(model) = params.model.as_ref().filter(|model| **model != self.model) {
            if !addressed {
                // Somebody else may have it; everybody saying no would be noise.
                self.admission.count("other_model");
                return Ok(());
            }
            let model: String = model.chars().take(80).collect();
            let text = format!("`model` {model:?}: expected {:?}", self.model);
            return self.refuse(url, &event, Some(&request), &Refusal::NotOffered(text));
        }
        let price = self.payment.price_msat();
        if let Some(bid) = request.bid_msat.filter(|bid| *bid < price) {
            let refusal = Refusal::BidTooLow {
                found: bid,
                least: price,
            };
            return self.refuse(url, &event, Some(&request), &refusal);
        }
        if request.inputs.is_empty() {
            let refusal = Refusal::BadRequest("`i` is missing".to_string());
            return self.refuse(url, &event, Some(&request), &refusal);
        }
        let offer = Offer {
            customer: customer(&event),
            created: event.created_at.as_secs(),
            expiration: request.expiration,
            bid_msat: request.bid_msat,
            has_work: nip90::has_work(&event, self.settings.min_work),
            input_bytes: request.inputs.iter().map(|input| input.data.len()).sum(),
        };
        // Jobs that are being prepared will come into the queue as well.
        let room = self.live.len() < self.settings.queue + self.settings.running;
        if let Err(refusal) = self.admission.admit(&offer, room, now()) {
            return self.refuse(url, &event, Some(&request), &refusal);
        }
        let entry = Entry::new(event.as_json(), url.to_string(), now());
        if !self.journal.receive(id, &entry)? {
            self.admission.close(offer.customer);
            return Ok(());
        }
        self.metrics.accepted.fetch_add(1, Relaxed);
        tracing::info!(job = %id, customer = %offer.customer, relay = url, "accepted");
        self.take_up(id, event, request, params, url.to_string(), None);
        Ok(())
    }

    /// A job that is in the journal goes on from where it was.
    pub(super) fn resume(&mut self, id: JobId, entry: Entry) -> Result<()> {
        if entry.stage == Stage::Answered {
            return self.deliver_again(id, &entry);
        }
        let read = Event::from_json(entry.request.as_bytes())
            .map_err(|err| err.to_string())
            .and_then(|event| {
                let text = |err: ReadError| err.to_string();
                let request = JobRequest::read(&event, &self.keys).map_err(text)?;
                let params = params::read(&request.params).map_err(text)?;
                Ok((event, request, params))
            });
        match read {
            Ok((event, request, params)) => {
                tracing::info!(job = %id, stage = ?entry.stage, "taken up again");
                self.seen.insert(event.id);
                self.admission.reopen(customer(&event));
                self.take_up(id, event, request, params, entry.found_on, entry.invoice);
            }
            Err(problem) => {
                // It was readable once; with another key it is not.
                tracing::error!(job = %id, problem, "given up: the journal's request cannot be read");
                self.journal.change(id, &mut Entry::cancel)?;
            }
        }
        Ok(())
    }

    fn take_up(
        &mut self,
        id: JobId,
        event: Event,
        request: JobRequest,
        params: params::Params,
        found_on: String,
        invoice: Option<Invoice>,
    ) {
        let unpaid = invoice.clone().filter(|invoice| !invoice.paid);
        let task = platform::spawn(prepare(
            self.preparation(id, event.clone(), request.clone()),
            invoice,
        ));
        let live = Live {
            event,
            request,
            params,
            found_on,
            guests: BTreeSet::new(),
            state: LiveState::Preparing(task),
        };
        self.live.insert(id, live);
        self.cancellations_changed = true;
        match unpaid {
            Some(invoice) => self.ask_payment(id, invoice),
            None if self.payment.price_msat() == 0 => self.processing(id),
            None => {}
        }
    }

    fn preparation(&self, id: JobId, event: Event, request: JobRequest) -> Preparation {
        Preparation {
            id,
            event,
            request,
            keys: self.keys.clone(),
            lookup: self.lookup(),
            settings: self.settings.clone(),
            generator: self.generator.clone(),
            payment: self.payment.clone(),
            messages: self.messages.clone(),
        }
    }

    /// Counts a refusal, and tells the customer on our relays.
    fn refuse(
        &mut self,
        url: &str,
        event: &Event,
        request: Option<&JobRequest>,
        refusal: &Refusal,
    ) -> Result<()> {
        let customer = customer(event);
        tracing::info!(job = %event.id, %customer, relay = url, reason = refusal.reason(), "refused");
        if self.admission.refuse(customer, refusal, now()) {
            let feedback = Feedback {
                extra: Some(refusal.to_string()),
                encryption: request.and_then(|request| request.encryption),
                ..Feedback::new(event.id, Status::Error)
            };
            match feedback.write(&self.keys, now(), &event.pubkey) {
                Ok(feedback) => self.relays.publish_own(&feedback, Keep::Now),
                Err(err) => tracing::warn!(error = %err, "cannot tell a refusal"),
            }
        }
        Ok(())
    }

    fn cancellation(&mut self, event: &Event) -> Result<()> {
        for job in cancellation::read(event).unwrap_or_default() {
            let id = JobId(job.to_bytes());
            // Only its author may.
            if self
                .live
                .get(&id)
                .is_some_and(|live| live.event.pubkey == event.pubkey)
            {
                self.cancel(id)?;
            }
        }
        Ok(())
    }

    fn cancel(&mut self, id: JobId) -> Result<()> {
        if let Some(live) = self.live.get(&id) {
            tracing::info!(job = %id, "cancelled by its customer");
            match &live.state {
                LiveState::Running(stop) => {
                    // The rest follows when it has stopped.
                    stop.stop(StopReason::Cancelled);
                    return Ok(());
                }
                LiveState::Preparing(task) => task.abort(),
                LiveState::Queued => {
                    self.queue.remove(customer(&live.event), id);
                }
            }
            self.cancelled(id)?;
        }
        Ok(())
    }

    pub(super) fn cancelled(&mut self, id: JobId) -> Result<()> {
        self.journal.change(id, &mut Entry::cancel)?;
        self.metrics.cancelled.fetch_add(1, Relaxed);
        self.close(id);
        Ok(())
    }

    /// A job has its answer, or needs none.
    pub(super) fn close(&mut self, id: JobId) -> Option<Live> {
        let live = self.live.remove(&id)?;
        self.admission.close(customer(&live.event));
        self.cancellations_changed = true;
        Some(live)
    }

    pub(super) fn billed(&mut self, id: JobId, invoice: Invoice) -> Result<()> {
        let kept = self
            .journal
            .change(id, &mut |entry| entry.bill(invoice.clone()))?;
        if kept.is_some() {
            self.ask_payment(id, invoice);
        }
        Ok(())
    }

    fn ask_payment(&mut self, id: JobId, invoice: Invoice) {
        let feedback = Feedback {
            amount_msat: Some(invoice.amount_msat),
            invoice: Some(invoice.bolt11),
            ..Feedback::new(event_id(id), Status::PaymentRequired)
        };
        self.feedback(id, feedback);
    }

    fn processing(&mut self, id: JobId) {
        self.feedback(id, Feedback::new(event_id(id), Status::Processing));
    }

    pub(super) fn paid(&mut self, id: JobId) -> Result<()> {
        if self.journal.change(id, &mut Entry::paid)?.is_some() {
            tracing::info!(job = %id, "paid");
            self.processing(id);
        }
        Ok(())
    }
}

/// What a job's preparation needs.
struct Preparation {
    id: JobId,
    event: Event,
    request: JobRequest,
    keys: nostr::prelude::Keys,
    lookup: super::lookup::Lookup,
    settings: std::sync::Arc<super::settings::Settings>,
    generator: std::sync::Arc<dyn super::work::Generator>,
    payment: std::sync::Arc<dyn crate::payment::Payment>,
    messages: futures_channel::mpsc::UnboundedSender<Message>,
}

/// Fetches what a job needs, then waits for its payment: nobody pays for inputs that cannot be had.
async fn prepare(job: Preparation, invoice: Option<Invoice>) {
    let done = async {
        let prompt = inputs::prompt(
            &job.request,
            &job.event.pubkey,
            &job.keys,
            &job.lookup,
            &job.settings,
        )
        .await?;
        job.generator.check(&prompt).map_err(|err| err.one_line())?;
        let relays =
            inputs::customer_relays(&job.request, &job.event, &job.lookup, &job.settings).await;
        pay(&job, invoice).await?;
        Ok((prompt, relays))
    };
    let done: std::result::Result<_, String> = done.await;
    // The service may be gone; then the journal has the job.
    let _ = job.messages.unbounded_send(Message::Prepared(job.id, done));
}

async fn pay(job: &Preparation, invoice: Option<Invoice>) -> std::result::Result<(), String> {
    let price = job.payment.price_msat();
    let invoice = match invoice {
        Some(invoice) if invoice.paid => return Ok(()),
        Some(invoice) => invoice,
        None if price == 0 => return Ok(()),
        None => {
            let memo = format!("text generation, job {}", job.id);
            let invoice = job.payment.invoice(price, &memo).await.map_err(|err| {
                tracing::error!(job = %job.id, error = err, "no invoice");
                "the wallet makes no invoice now; try again later".to_string()
            })?;
            let _ = job
                .messages
                .unbounded_send(Message::Billed(job.id, invoice.clone()));
            invoice
        }
    };
    loop {
        match job.payment.is_paid(&invoice).await {
            Ok(true) => {
                let _ = job.messages.unbounded_send(Message::Paid(job.id));
                return Ok(());
            }
            Ok(false) if now() >= invoice.expires => {
                return Err("the invoice was not paid in time".to_string())
            }
            Ok(false) => {}
            Err(err) => tracing::warn!(job = %job.id, error = err, "the wallet does not answer"),
        }
        platform::sleep(PAYMENT_POLL).await;
    }
}
