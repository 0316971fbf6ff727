//! Events become jobs: verified, read, let in or refused, and in the journal before anything is done for them.
//!
//! Whether a request is encrypted, and how, is decided before anything else about it: whatever is said of it afterwards is encrypted in
//! the same way, and quotes nothing of it.

use super::actor::{Bill, Live, LiveState, Place, Service, CANCELLATIONS, JOBS};
use super::money::CANCELLED;
use super::now;
use super::prepare::{prepare, Preparation, GAVE_WAY, MADE_ROOM};
use super::work::StopReason;
use crate::jobs::{Customer, Entry, JobId, Offer, Places, Refusal, Seat, Stage};
use crate::nip90::{self, cancellation, InputKind, JobKind, JobRequest, ReadError, Scheme, Task};
use crate::{platform, Result};
use futures_channel::oneshot;
use nostr::prelude::{Event, EventId};
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn job_id(event: &Event) -> JobId {
    JobId(event.id.to_bytes())
}

pub(super) fn event_id(id: JobId) -> EventId {
    EventId::from_byte_array(id.0)
}

pub(super) fn customer(event: &Event) -> Customer {
    Customer(event.pubkey.to_bytes())
}

/// The encryption scheme of a request, if any. Answers use the same scheme, even if the content cannot be decrypted.
fn scheme(event: &Event) -> Option<Scheme> {
    let is_encrypted = event.tags.iter().any(|tag| tag.kind() == "encrypted");
    // Only NIP-04 has this separator, whose `?` no base64 holds.
    let scheme = if event.content.contains("?iv=") {
        Scheme::Nip04
    } else {
        Scheme::Nip44
    };
    is_encrypted.then_some(scheme)
}

/// The problem with a request, in a line for its customer: without any value of it if that was hidden.
fn problem(err: &ReadError, hidden: Option<Scheme>) -> String {
    match (err, hidden) {
        (ReadError::Value { name, expected, .. }, Some(_)) => {
            format!("`{name}`: expected {expected}")
        }
        (err, _) => err.to_string(),
    }
}

/// Whether a job has to wait for something before it can run.
fn waits(request: &JobRequest, price_msat: u64) -> bool {
    let fetched = |input: &nip90::Input| input.kind != InputKind::Text;
    price_msat > 0 || request.inputs.iter().any(fetched)
}

/// The outcome for a request that is not admitted.
enum Verdict {
    /// It is counted under this name, without a report.
    Pass(&'static str),
    /// The customer gets the refusal.
    Refuse(Refusal),
}

impl Service {
    pub(super) fn event(&mut self, url: &str, subscription: &str, event: Event) -> Result<()> {
        if self.searches.contains_key(subscription) {
            self.found(url, subscription, event);
            return Ok(());
        }
        let kind = event.kind.as_u16();
        let wanted = match subscription {
            JOBS => {
                let asked = JobKind::asked_by(kind);
                asked.is_some_and(|kind| self.offers.model(kind).is_some())
            }
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
        if self.stopping
            || self.live.contains_key(&id)
            || self.journal.get(id)?.is_some()
            || self.journal.refused(id)?
        {
            return Ok(());
        }
        let hidden = scheme(&event);
        let (request, task) = match self.read(&event, hidden) {
            Ok(read) => read,
            Err(Verdict::Pass(reason)) => {
                self.admission.count(reason);
                return Ok(());
            }
            Err(Verdict::Refuse(refusal)) => return self.refuse(url, &event, hidden, &refusal),
        };
        let system = match &task {
            Task::Text(params) => params.system.as_deref(),
            Task::Speech(_) => None,
        };
        let offer = Offer {
            customer: customer(&event),
            created: event.created_at.as_secs(),
            expiration: request.expiration,
            bid_msat: request.bid_msat,
            work: nip90::work(&event),
            input_bytes: request
                .inputs
                .iter()
                .map(|input| input.data.len())
                .sum::<usize>()
                + system.map_or(0, str::len),
        };
        self.note_load();
        let (place, free) = self.place(&offer, &request);
        let (free, leaves) = match free {
            Ok(leaves) => (Ok(()), leaves),
            Err(refusal) => (Err(refusal), None),
        };
        if let Err(refusal) = self.admission.admit(&offer, free, now()) {
            return self.refuse(url, &event, hidden, &refusal);
        }
        let entry = Entry::new(event.as_json(), url.to_string(), now());
        if !self.journal.receive(id, &entry)? {
            self.admission.close(offer.customer);
            return Ok(());
        }
        if let Some(leaves) = leaves {
            let reason = match place {
                Place::Queue => MADE_ROOM,
                Place::Waiting | Place::Leaving => GAVE_WAY,
            };
            self.end_wait(leaves, reason)?;
        }
        self.metrics.accepted.fetch_add(1, Relaxed);
        tracing::info!(job = %id, customer = %offer.customer, relay = url, "accepted");
        self.take_up(id, event, request, task, entry, place);
        Ok(())
    }

    /// Reads a request that may be for us.
    fn read(
        &self,
        event: &Event,
        hidden: Option<Scheme>,
    ) -> std::result::Result<(JobRequest, Task), Verdict> {
        let us = self.keys.public_key();
        // Before anything is read: what is wrong with a job of others is for them to say.
        let named: Vec<&str> = event
            .tags
            .iter()
            .filter(|tag| tag.kind() == "p")
            .filter_map(|tag| tag.content())
            .collect();
        let addressed = named.contains(&us.to_hex().as_str());
        if !addressed && (!named.is_empty() || hidden.is_some()) {
            return Err(Verdict::Pass("for_others"));
        }
        let read = JobRequest::read(event, &self.keys);
        let read = read.and_then(|request| Ok((request.task()?, request)));
        let (task, request) = match read {
            Ok(read) => read,
            Err(ReadError::NotForUs) => return Err(Verdict::Pass("for_others")),
            // Whoever does such jobs answers it.
            Err(err) if !addressed && err.is_other_job() => {
                return Err(Verdict::Pass("other_job"));
            }
            Err(err) => {
                let refusal = Refusal::BadRequest(problem(&err, hidden));
                return Err(Verdict::Refuse(refusal));
            }
        };
        let ours = self.offers.model(request.kind).unwrap_or_default();
        if let Some(model) = task.model().filter(|model| *model != ours) {
            if !addressed {
                // Somebody else may have it; everybody saying no would be noise.
                return Err(Verdict::Pass("other_model"));
            }
            let found: String = match hidden {
                None => format!(" {:?}", model.chars().take(80).collect::<String>()),
                Some(_) => String::new(),
            };
            let text = format!("`model`{found}: expected {ours:?}");
            return Err(Verdict::Refuse(Refusal::NotOffered(text)));
        }
        if let Some(problem) = self.offers.problem(&task) {
            return Err(Verdict::Refuse(Refusal::NotOffered(problem)));
        }
        let least = self.payment.price_msat();
        if let Some(found) = request.bid_msat.filter(|bid| *bid < least) {
            return Err(Verdict::Refuse(Refusal::BidTooLow { found, least }));
        }
        if least > 0 {
            self.pays(&request, least)
                .map_err(|problem| Verdict::Refuse(Refusal::NotOffered(problem)))?;
        }
        Ok((request, task))
    }

    /// The kind of slot that a job would take, and whether there is one; a waiting job may have to leave for it.
    fn place(
        &self,
        offer: &Offer,
        request: &JobRequest,
    ) -> (Place, std::result::Result<Option<JobId>, Refusal>) {
        let is_known = self.admission.is_known(offer.customer);
        if request.kind == JobKind::Speech && self.has_recordings(is_known) {
            return (Place::Waiting, Err(Refusal::QueueFull));
        }
        if waits(request, self.payment.price_msat()) {
            let free = self.waiting.admit(offer.customer, is_known, now());
            return (Place::Waiting, free);
        }
        let places = Places::new(self.settings.queue, self.settings.running);
        (Place::Queue, places.admit(is_known, self.seats()))
    }

    /// Whether there are as many jobs with recordings as may be: each is held in memory. A quarter of them is for known customers.
    fn has_recordings(&self, is_known: bool) -> bool {
        let most = self.settings.recordings;
        let most = if is_known { most } else { most - most / 4 };
        let open = self.live.values();
        let open = open.filter(|live| live.request.kind == JobKind::Speech);
        open.count() >= most
    }

    /// The jobs that hold a slot of the queue. Those whose prompts are still being prepared count too.
    fn seats(&self) -> impl Iterator<Item = Seat> + '_ {
        let seated = |(_, live): &(&JobId, &Live)| live.place == Place::Queue;
        self.live.iter().filter(seated).map(|(id, live)| Seat {
            id: *id,
            number: live.number,
            is_known: self.admission.is_known(customer(&live.event)),
            can_leave: live.bill == Bill::None && !matches!(live.state, LiveState::Running(_)),
        })
    }

    /// Counts the strangers who wait, which decides the toll for others.
    pub(super) fn note_load(&mut self) {
        let strangers = |seat: &Seat| !seat.is_known && seat.can_leave;
        let waiting = self.seats().filter(strangers).count();
        self.admission
            .note_load(waiting, self.settings.queue, now());
    }

    /// Resumes a job that is in the journal.
    pub(super) fn resume(&mut self, id: JobId, entry: Entry) -> Result<()> {
        if entry.stage == Stage::Answered {
            self.deliver_again(id, &entry);
            return Ok(());
        }
        let read = Event::from_json(entry.request.as_bytes())
            .map_err(|err| err.to_string())
            .and_then(|event| {
                let text = |err: ReadError| problem(&err, scheme(&event));
                let request = JobRequest::read(&event, &self.keys).map_err(text)?;
                let task = request.task().map_err(text)?;
                Ok((event, request, task))
            });
        match read {
            Ok((event, request, task)) => {
                tracing::info!(job = %id, stage = ?entry.stage, "resumed");
                self.seen.insert(event.id);
                self.admission.reopen(customer(&event));
                let is_paid = entry.invoice.as_ref().is_some_and(|invoice| invoice.paid);
                let price = if is_paid {
                    0
                } else {
                    self.payment.price_msat()
                };
                let place = if waits(&request, price) {
                    Place::Waiting
                } else {
                    Place::Queue
                };
                self.take_up(id, event, request, task, entry, place);
            }
            Err(problem) => {
                // It was readable once; with another key it is not.
                tracing::error!(job = %id, problem, "dropped: cannot read a request from the journal");
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
        task: Task,
        entry: Entry,
        place: Place,
    ) {
        let customer = customer(&event);
        if place == Place::Waiting {
            let is_known = self.admission.is_known(customer);
            self.waiting.enter(id, customer, is_known, now());
        }
        let (hurry, hurried) = oneshot::channel();
        let preparing = platform::spawn(prepare(Preparation {
            id,
            customer: event.pubkey,
            request: request.clone(),
            task: task.clone(),
            keys: self.keys.clone(),
            lookup: self.lookup(),
            settings: self.settings.clone(),
            offers: self.offers.clone(),
            payment: self.payment.clone(),
            messages: self.messages.clone(),
            invoice: entry.invoice.clone(),
            hurry: hurried,
        }));
        let has_cash = self.payment.cash().is_some_and(|cash| cash.has(id));
        let bill = match &entry.invoice {
            None if has_cash => Bill::Paid,
            None => Bill::None,
            Some(invoice) if invoice.paid => Bill::Paid,
            Some(_) => Bill::Open,
        };
        // Before the first message, so that the guests get it too.
        let guests = self.guests(id, event.pubkey, &request.relays);
        let live = Live {
            event,
            request,
            task,
            found_on: entry.found_on,
            guests,
            told: None,
            number: self.next_job,
            place,
            bill,
            is_unwanted: false,
            state: LiveState::Preparing(preparing, Some(hurry)),
        };
        self.live.insert(id, live);
        self.next_job += 1;
        self.cancellations_changed = true;
        match (entry.invoice, bill) {
            (Some(invoice), Bill::Open) => self.ask_payment(id, invoice),
            _ if self.payment.price_msat() == 0 => self.processing(id),
            _ => {}
        }
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
        let has_cash = self.payment.cash().is_some_and(|cash| cash.has(id));
        if let Some(live) = self.live.get_mut(&id) {
            tracing::info!(job = %id, "cancelled by its customer");
            let redeems = live.bill == Bill::Paid && live.request.cashu.is_some();
            match &live.state {
                LiveState::Running(stop) => {
                    // The rest follows when it has stopped.
                    stop.stop(StopReason::Cancelled);
                    return Ok(());
                }
                LiveState::Preparing(..) if redeems => {
                    // When it is certain what has become of the token, it goes back.
                    live.is_unwanted = true;
                    return Ok(());
                }
                LiveState::Preparing(task, _) => task.abort(),
                LiveState::Queued => {
                    let customer = customer(&live.event);
                    self.lanes.remove(live.request.kind, customer, id);
                    if has_cash {
                        return self.answer(id, Err(CANCELLED.to_string()));
                    }
                }
            }
            self.cancelled(id)?;
        }
        Ok(())
    }

    pub(super) fn cancelled(&mut self, id: JobId) -> Result<()> {
        self.journal.change(id, &mut Entry::cancel)?;
        // It ran, at least for a while.
        self.settle_money(id, true)?;
        self.metrics.cancelled.fetch_add(1, Relaxed);
        self.close(id);
        Ok(())
    }

    /// A job has its answer, or needs none.
    pub(super) fn close(&mut self, id: JobId) -> Option<Live> {
        let live = self.live.remove(&id)?;
        self.waiting.leave(id);
        self.admission.close(customer(&live.event));
        self.cancellations_changed = true;
        Some(live)
    }
}
