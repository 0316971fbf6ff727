//! The service's own task: its state, its loop, how it starts and stops.

use super::clock::{Clock, Reachable};
use super::deliveries::Deliveries;
use super::guests::RelayLists;
use super::lanes::Lanes;
use super::lookup::{Search, Searching};
use super::metrics::Metrics;
use super::now;
use super::offers::{Offers, Product, Ready};
use super::reading::Reading;
use super::recent::Recent;
use super::refusals::Untold;
use super::relays::Relays;
use super::settings::{Settings, DAY};
use super::work::Stop;
use crate::jobs::{Admission, Invoice, JobId, Journal, Stage, Telling, Waiting, WaitingLimits};
use crate::nip90::announcement::withdraw;
use crate::nip90::{JobRequest, Task as Asked};
use crate::payment::Payment;
use crate::platform::{sleep, Every, Task};
use crate::relay::driver::Report;
use crate::relay::Keep;
use crate::Result;
use futures_channel::{mpsc, oneshot};
use futures_util::{select, FutureExt, StreamExt};
use nostr::prelude::{Event, EventId, Keys, PublicKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;
use web_time::Instant;

/// The subscription to requests, and the one to cancellations of jobs that are open.
pub(super) const JOBS: &str = "jobs";
pub(super) const CANCELLATIONS: &str = "cancellations";

/// A message from a task to the service.
pub enum Message {
    /// A job is ready to run, or the reason why it cannot.
    Prepared(JobId, std::result::Result<Ready, String>),
    /// The relays that customers read; none where there is no list.
    RelayLists(Vec<(PublicKey, Vec<String>)>),
    /// A wallet made an invoice for a job.
    Billed(JobId, Invoice),
    /// A job's invoice was paid.
    Paid(JobId),
    /// A job's token is about to be redeemed. After the answer to this message, the job is not given up.
    Redeems(JobId, oneshot::Sender<()>),
    /// A job's token was redeemed.
    Redeemed(JobId),
    /// All text of a job so far.
    Partial(JobId, String),
    /// A job has ended.
    Finished(JobId, std::result::Result<Product, String>),
    /// The thread of a job panicked.
    Panicked(JobId),
    /// Somebody looks for events.
    Search(Search),
}

/// Consecutive panics after which the process exits to be restarted.
const MOST_PANICS: usize = 3;

/// A job that is open and has no answer yet.
pub(super) struct Live {
    pub(super) event: Event,
    pub(super) request: JobRequest,
    pub(super) task: Asked,
    pub(super) found_on: String,
    /// Relays other than our own that get the answers.
    pub(super) guests: BTreeSet<String>,
    /// The last feedback, other than partial results.
    pub(super) told: Option<Event>,
    /// Later jobs have higher numbers.
    pub(super) number: u64,
    pub(super) place: Place,
    pub(super) bill: Bill,
    /// Whether its customer cancelled it while its token was being redeemed.
    pub(super) is_unwanted: bool,
    pub(super) state: LiveState,
}

/// The slot that a job uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One of the queue, or it runs.
    Queue,
    /// One of those that wait for inputs or payment.
    Waiting,
    /// No slot: the wallet is polled once more.
    Leaving,
}

/// The state of a job's payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bill {
    None,
    Open,
    Paid,
}

pub(super) enum LiveState {
    /// Its inputs or payment are waited for, in this task, which can be told that it is time to end.
    Preparing(Task, Option<oneshot::Sender<String>>),
    /// It is in the queue.
    Queued,
    /// It runs.
    Running(Arc<Stop>),
}

/// The event that ended the service's wait.
enum Next {
    Report(String, Report),
    Message(Box<Message>),
    Heartbeat,
    Tick,
}

/// The service.
pub struct Service {
    pub(super) settings: Arc<Settings>,
    pub(super) offers: Arc<Offers>,
    pub(super) keys: Arc<Keys>,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) payment: Arc<dyn Payment>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) relays: Relays,
    pub(super) admission: Admission,
    /// Refusals that strangers have not heard yet.
    pub(super) telling: Telling<Untold>,
    pub(super) lanes: Lanes,
    pub(super) waiting: Waiting,
    pub(super) relay_lists: RelayLists,
    pub(super) live: HashMap<JobId, Live>,
    /// The number of the next job.
    pub(super) next_job: u64,
    /// Jobs that panicked since one was done.
    pub(super) panics: usize,
    /// The error for a job that hangs.
    hang: Option<String>,
    /// Answers that relays have to get yet.
    pub(super) answers: Deliveries,
    pub(super) shed_said: Option<Instant>,
    /// The cursors of the configured relays.
    pub(super) readings: BTreeMap<String, Reading>,
    pub(super) clock: Clock,
    pub(super) reachable: Reachable,
    pub(super) seen: Recent<EventId>,
    pub(super) searches: HashMap<String, Searching>,
    pub(super) next_search: u64,
    pub(super) messages: mpsc::UnboundedSender<Message>,
    pub(super) stopping: bool,
    pub(super) cancellations_changed: bool,
    ticks: u64,
    pub(super) announcement: Option<Event>,
    /// The time of the announcement.
    pub(super) announced: Instant,
    inbox: mpsc::UnboundedReceiver<Message>,
    reports: mpsc::Receiver<(String, Report)>,
}

impl Service {
    /// Puts a service together; nothing runs yet. `settings` have been checked.
    ///
    /// # Errors
    /// Keys in a list that are none.
    pub fn new(
        settings: Settings,
        offers: Offers,
        keys: impl Into<Arc<Keys>>,
        journal: Arc<dyn Journal>,
        payment: Arc<dyn Payment>,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let keys = keys.into();
        let (messages, inbox) = mpsc::unbounded();
        // Each may hold an event of half a megabyte, and hostile relays fill it.
        let (report, reports) = mpsc::channel(32);
        Ok(Self {
            relays: Relays::new(keys.clone(), &settings, report),
            admission: Admission::new(settings.limits()?),
            telling: Telling::default(),
            lanes: Lanes::new(settings.running),
            waiting: Waiting::new(WaitingLimits::default()),
            relay_lists: RelayLists::default(),
            live: HashMap::new(),
            next_job: 0,
            panics: 0,
            hang: None,
            answers: Deliveries::default(),
            shed_said: None,
            readings: BTreeMap::new(),
            clock: Clock::new(now(), Instant::now()),
            reachable: Reachable::default(),
            seen: Recent::new(50_000),
            searches: HashMap::new(),
            next_search: 0,
            stopping: false,
            cancellations_changed: false,
            ticks: 0,
            announcement: None,
            announced: Instant::now(),
            settings: Arc::new(settings),
            offers: Arc::new(offers),
            keys,
            journal,
            payment,
            metrics,
            messages,
            inbox,
            reports,
        })
    }

    /// Serves until `stop` is done, or the generator has failed: then running jobs get a while to end, the announcement is withdrawn, and what
    /// is left is done at the next start.
    ///
    /// # Errors
    /// A journal that cannot be written: continuing would lose jobs. A generator that has failed, see [`super::Generator::failure`], at
    /// which three consecutive jobs panicked, or which does not return from a job. Its thread still runs then, so the process has to exit.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<()> {
        self.start()?;
        let mut stop = std::pin::pin!(stop.fuse());
        let mut ticks = Every::new(Duration::from_secs(1));
        let mut heartbeats =
            Every::new(Duration::from_secs(self.settings.heartbeat_seconds.max(1)));
        let mut failure = None;
        while failure.is_none() {
            let next = select! {
                () = stop => break,
                (url, report) = self.reports.select_next_some() => Next::Report(url, report),
                message = self.inbox.select_next_some() => Next::Message(Box::new(message)),
                () = std::pin::pin!(heartbeats.next().fuse()) => Next::Heartbeat,
                () = std::pin::pin!(ticks.next().fuse()) => Next::Tick,
            };
            match next {
                Next::Report(url, report) => self.report(&url, report)?,
                Next::Message(message) => self.message(*message)?,
                Next::Heartbeat => self.heartbeat(),
                Next::Tick => self.tick()?,
            }
            self.after_step();
            failure = self.failure();
        }
        self.stop().await?;
        failure.map_or(Ok(()), |why| Err(candle_engine::Error::Batch(why).into()))
    }

    /// The reason why no further job will succeed, if there is one.
    fn failure(&self) -> Option<String> {
        let panics = || format!("{} jobs in a row panicked", self.panics);
        let failure = self.offers.failure().or_else(|| self.hang.clone());
        failure.or_else(|| (self.panics >= MOST_PANICS).then(panics))
    }

    /// Searches for a job that does not end although its time is over: each checks between two tokens whether to continue.
    fn look_for_hangs(&mut self) {
        let grace = Duration::from_secs(self.settings.hang_seconds);
        let hangs =
            |live: &Live| matches!(&live.state, LiveState::Running(stop) if stop.is_overdue(grace));
        let found = self.live.iter().find(|(_, live)| hangs(live));
        self.hang = found.map(|(id, _)| {
            let seconds = self.settings.job_seconds + self.settings.hang_seconds;
            format!("job {id} did not finish within {seconds} s: the device hangs or is too slow for the model")
        });
    }

    fn start(&mut self) -> Result<()> {
        let started = now();
        self.journal.tidy()?;
        if self.settings.announce {
            self.make_announcement()?;
        }
        for (customer, at) in self.journal.served()? {
            self.admission.serve(customer, at);
        }
        let mut open = Vec::new();
        let journal = self.journal.clone();
        // Answers that wait are many where a relay is dead. The journal has them, so memory need not.
        journal.each_open(&mut |id, entry| match entry.stage {
            Stage::Answered => self.deliver_again(id, &entry),
            _ => open.push((id, entry)),
        })?;
        self.settle_answered()?;
        open.sort_by_key(|(_, entry)| entry.received);
        for (id, entry) in open {
            self.resume(id, entry)?;
        }
        self.shed_deliveries()?;
        // At the first start, older requests are not for us.
        let since = started.saturating_sub(self.settings.look_back_seconds);
        self.read_relays(started, since)
    }

    fn report(&mut self, url: &str, report: Report) -> Result<()> {
        match report {
            Report::Up => {
                tracing::info!(relay = self.relays.shown(url), "connected");
                self.relays.set_up(url, true);
                self.reachable.up(url);
                if self.relays.is_own(url) && !self.stopping {
                    if let Some(announcement) = self.announcement.clone() {
                        self.relays.publish_to(url, &announcement, Keep::Until);
                        self.heartbeat_to(Some(url));
                    }
                    self.hand_over(url, None)?;
                }
            }
            Report::Down(reason) => {
                let reason: String = reason.chars().take(200).collect();
                if self.relays.is_own(url) {
                    tracing::info!(relay = url, reason, "not connected");
                    self.reachable.down(url, &reason);
                } else {
                    // The reason may name it.
                    tracing::info!(relay = self.relays.shown(url), "not connected")
                }
                self.relays.set_up(url, false);
                self.set_live(url, false);
            }
            // The clocks of strangers' relays are not requested.
            Report::RelayClock(theirs) if self.relays.is_own(url) => {
                self.clock.relay(url, theirs, now());
            }
            Report::RelayClock(_) => {}
            Report::Limits(limits) => self.relays.set_limits(url, limits),
            Report::Event(subscription, event) => {
                if subscription == JOBS && !self.is_for_us_to_read(url, &event) {
                    self.admission.count("before_start");
                } else {
                    self.event(url, &subscription, *event)?;
                }
            }
            Report::StoredEnd(name) if name == JOBS => self.set_live(url, true),
            Report::StoredEnd(subscription) => self.search_ended(url, &subscription),
            // Advancing the cursor now would skip requests that are no longer accepted.
            Report::Cursor(name, to) if name == JOBS && !self.stopping => {
                self.journal.advance_cursor(url, to.min(now()))?;
            }
            Report::Cursor(..) => {}
            Report::Settled(id, outcome) => self.settled(url, id, &outcome)?,
        }
        let up = self.relays.own_up() as u64;
        self.metrics.relays_up.store(up, Relaxed);
        Ok(())
    }

    fn message(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Prepared(id, prepared) => self.prepared(id, prepared),
            Message::RelayLists(lists) => self.relay_lists(lists),
            Message::Billed(id, invoice) => self.billed(id, invoice),
            Message::Paid(id) => self.paid(id),
            Message::Redeems(id, go_on) => {
                self.keep(id);
                // It may have been cancelled before.
                let _ = go_on.send(());
                Ok(())
            }
            Message::Redeemed(id) => {
                tracing::info!(job = %id, "paid with a token");
                self.processing(id);
                Ok(())
            }
            Message::Partial(id, text) => {
                self.partial(id, text);
                Ok(())
            }
            Message::Finished(id, result) => self.finished(id, result),
            Message::Panicked(id) => self.panicked(id),
            Message::Search(search) => {
                self.search(search);
                Ok(())
            }
        }
    }

    /// Work that follows any change.
    fn after_step(&mut self) {
        // After a failure of the generator they would be answered with an error each; the next start does them.
        if !self.stopping && self.failure().is_none() {
            self.start_jobs();
        }
        self.ask_relay_lists();
        if self.cancellations_changed {
            self.watch_cancellations();
        }
        self.metrics.queued.store(self.lanes.len() as u64, Relaxed);
        self.metrics
            .running
            .store(self.lanes.running() as u64, Relaxed);
        let undelivered = self.answers.len() as u64;
        self.metrics.undelivered.store(undelivered, Relaxed);
        #[cfg(not(target_arch = "wasm32"))]
        if let Ok(mut cache) = self.metrics.cache.lock() {
            *cache = self.offers.cache_memory();
        }
    }

    fn tick(&mut self) -> Result<()> {
        let at = now();
        if self.ticks.is_multiple_of(30) {
            self.give_up_deliveries(at)?;
        }
        self.tick_relays(at)?;
        self.drop_expired(at)?;
        self.note_load();
        self.tell_strangers()?;
        self.drop_searches();
        self.look_for_hangs();
        self.look_around()?;
        self.journal.flush()?;
        self.renew_announcement()?;
        self.ticks += 1;
        if self.ticks.is_multiple_of(600) {
            self.journal.tidy()?;
        }
        if self.ticks % 3600 == 1 {
            let before = at.saturating_sub(self.settings.remember_days.saturating_mul(DAY));
            let forgotten = self.journal.forget(before)?;
            tracing::debug!(forgotten, "removed old jobs from the journal");
        }
        if let Ok(mut refused) = self.metrics.refused.lock() {
            refused.clone_from(self.admission.refused());
        }
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        self.stopping = true;
        tracing::info!(running = self.lanes.running(), "stopping");
        self.relays.unsubscribe(JOBS);
        let mut farewell = None;
        if let Some(announcement) = &self.announcement {
            let id = Some(announcement.id);
            match withdraw(&self.keys, now(), &self.settings.identifier, id) {
                Ok(event) => farewell = Some(event),
                Err(err) => tracing::warn!(error = %err, "cannot withdraw the announcement"),
            }
        }
        let mut unheard: BTreeSet<String> = BTreeSet::new();
        if let Some(event) = &farewell {
            unheard = self.relays.up();
            self.relays.publish_own(event, Keep::Until);
        }
        let drain = Instant::now() + Duration::from_secs(self.settings.drain_seconds);
        let mut told = false;
        let farewell_until = Instant::now() + Duration::from_secs(3);
        let mut idle_until = None;
        loop {
            let at = Instant::now();
            if self.lanes.running() > 0 && at >= drain && !told {
                // Their journal entries say that they have started: the next start runs them again.
                told = true;
                for live in self.live.values() {
                    if let LiveState::Running(stop) = &live.state {
                        stop.stop(super::work::StopReason::Leaving);
                    }
                }
            }
            let farewell_done = unheard.is_empty() || at >= farewell_until;
            if self.lanes.running() == 0 && idle_until.is_none() {
                idle_until = Some(at + Duration::from_secs(3));
            }
            let undelivered = !self.answers.is_empty() && idle_until.is_some_and(|end| at < end);
            if (self.lanes.running() == 0 && farewell_done && !undelivered)
                || at >= drain + Duration::from_secs(5)
            {
                break;
            }
            let next = select! {
                (url, report) = self.reports.select_next_some() => Next::Report(url, report),
                message = self.inbox.select_next_some() => Next::Message(Box::new(message)),
                () = std::pin::pin!(sleep(Duration::from_millis(100)).fuse()) => Next::Tick,
            };
            match next {
                Next::Report(url, report) => {
                    if let (Report::Settled(id, _), Some(farewell)) = (&report, &farewell) {
                        if *id == farewell.id {
                            unheard.remove(&url);
                        }
                    }
                    if !matches!(report, Report::Event(..)) {
                        self.report(&url, report)?;
                    }
                }
                Next::Message(message) => self.message(*message)?,
                Next::Heartbeat | Next::Tick => {}
            }
            self.after_step();
        }
        self.journal.flush()?;
        tracing::info!("stopped");
        Ok(())
    }
}
