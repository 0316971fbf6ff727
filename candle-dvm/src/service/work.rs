//! Runs jobs: each on a separate thread if the platform has threads, up to the limit, and until it is stopped.

use super::actor::{Bill, LiveState, Message, Place, Service};
use super::inbox::{customer, event_id};
use super::money::CANCELLED;
use super::now;
use super::offers::{Product, Ready};
use crate::jobs::{Entry, JobId};
use crate::nip90::params::Params;
use crate::nip90::{Feedback, Status, Task};
use crate::relay::Keep;
use crate::{platform, Result};
#[cfg(not(target_arch = "wasm32"))]
use candle_engine::backend::InferenceBackend;
use candle_engine::backend::{Completion, CompletionRequest};
#[cfg(not(target_arch = "wasm32"))]
use candle_engine::batch::CacheMemory;
use candle_engine::engine::CandleBackend;
use candle_engine::generation::Wait;
use candle_engine::{Error, Result as EngineResult};
use futures_channel::mpsc;
use futures_util::future::LocalBoxFuture;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use web_time::Instant;

/// The message to customers whose job was not done within the time that they set.
const EXPIRED: &str = "the request expired while it waited";

/// An error for the customer, without any value of the request if that was hidden.
pub(super) fn told(err: &Error, is_hidden: bool) -> String {
    match err {
        Error::Parameter { name, expected, .. } if is_hidden => {
            format!("`{name}`: expected {expected}")
        }
        // The memory is the operator's choice.
        Error::CacheTooSmall { tokens, limit } => {
            format!("prompt has {tokens} tokens, more than the {limit} that this service has memory for; shorten the prompt")
        }
        Error::Tokenizer(_) if is_hidden => "the tokenizer cannot encode the prompt".to_string(),
        other => other.one_line(),
    }
}

/// Generates text. Natively it is called from several threads, and may block its thread; in a browser it yields.
pub trait Generator: Send + Sync + 'static {
    /// Whether a request's prompt can be worked on at all.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, request: &CompletionRequest) -> EngineResult<()>;

    /// The tokens of a prompt and its text together, at most. `None` if unknown.
    fn context(&self) -> Option<usize> {
        None
    }

    /// Completes a prompt, and calls back after each piece of text to learn whether to continue.
    ///
    /// # Errors
    /// Parameters that do not fit, and failures of the device.
    fn generate<'a>(
        &'a self,
        request: &'a CompletionRequest,
        on_piece: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> LocalBoxFuture<'a, EngineResult<Completion>>;

    /// The reason why it will fail at every job from now on, if it will: the service starts no more jobs and ends.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The use of its memory for keys and values in pages; `None` without pages.
    #[cfg(not(target_arch = "wasm32"))]
    fn cache_memory(&self) -> Option<CacheMemory> {
        None
    }
}

impl Generator for CandleBackend {
    fn check(&self, request: &CompletionRequest) -> EngineResult<()> {
        self.tokens_of(request).map(|_| ())
    }

    fn context(&self) -> Option<usize> {
        Some(self.max_positions())
    }

    fn generate<'a>(
        &'a self,
        request: &'a CompletionRequest,
        on_piece: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> LocalBoxFuture<'a, EngineResult<Completion>> {
        Box::pin(self.complete_steps(request, Wait::HERE, on_piece))
    }
}

/// Jobs that run at the same time share the model's steps.
#[cfg(not(target_arch = "wasm32"))]
impl Generator for candle_engine::batch::BatchEngine {
    fn check(&self, request: &CompletionRequest) -> EngineResult<()> {
        self.check_tokens(self.backend().tokens_of(request)?.len())
    }

    fn context(&self) -> Option<usize> {
        Some(self.positions())
    }

    fn generate<'a>(
        &'a self,
        request: &'a CompletionRequest,
        on_piece: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> LocalBoxFuture<'a, EngineResult<Completion>> {
        Box::pin(async move { self.complete_stream(request, on_piece) })
    }

    fn failure(&self) -> Option<String> {
        self.failure()
    }

    fn cache_memory(&self) -> Option<CacheMemory> {
        self.cache_memory()
    }
}

/// The reason for stopping a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Its customer does not want it any more.
    Cancelled = 1,
    /// It took too long.
    TimedOut = 2,
    /// The service ends.
    Leaving = 3,
}

/// Tells a running job to stop.
pub(super) struct Stop {
    reason: AtomicU8,
    /// `None` is beyond what the clock can name, which is never.
    deadline: Option<Instant>,
}

impl Stop {
    fn new(time: Duration) -> Self {
        Self {
            reason: AtomicU8::new(0),
            deadline: Instant::now().checked_add(time),
        }
    }

    /// The first reason counts.
    pub(super) fn stop(&self, reason: StopReason) {
        let _ = self
            .reason
            .compare_exchange(0, reason as u8, Relaxed, Relaxed);
    }

    fn reason(&self) -> Option<StopReason> {
        match self.reason.load(Relaxed) {
            0 => None,
            1 => Some(StopReason::Cancelled),
            2 => Some(StopReason::TimedOut),
            _ => Some(StopReason::Leaving),
        }
    }

    /// Whether it should have ended more than `grace` ago.
    pub(super) fn is_overdue(&self, grace: Duration) -> bool {
        let end = self.deadline.and_then(|end| end.checked_add(grace));
        end.is_some_and(|end| Instant::now() >= end)
    }

    fn go_on(&self) -> ControlFlow<()> {
        if self.deadline.is_some_and(|end| Instant::now() >= end) {
            self.stop(StopReason::TimedOut);
        }
        match self.reason() {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}

impl Service {
    pub(super) fn prepared(
        &mut self,
        id: JobId,
        prepared: std::result::Result<Ready, String>,
    ) -> Result<()> {
        self.waiting.leave(id);
        let Some(live) = self.live.get_mut(&id) else {
            return Ok(());
        };
        let prepared = if live.is_unwanted {
            prepared.and(Err(CANCELLED.to_string()))
        } else {
            prepared
        };
        match prepared {
            Ok(ready) => {
                live.state = LiveState::Queued;
                // It waited for an input or payment that is there now, so the lack of a slot is not a reason to refuse it.
                live.place = Place::Queue;
                let customer = customer(&live.event);
                let is_known = self.admission.is_known(customer);
                self.lanes.push(customer, is_known, id, ready);
                Ok(())
            }
            Err(problem) => self.answer(id, Err(problem)),
        }
    }

    /// Gives up the jobs whose customers set an earlier end. Paid jobs are done.
    pub(super) fn drop_expired(&mut self, at: u64) -> Result<()> {
        let expired = |(_, live): &(&JobId, &super::actor::Live)| {
            let waits = matches!(live.state, LiveState::Preparing(..) | LiveState::Queued);
            waits && live.bill != Bill::Paid && live.request.expiration.is_some_and(|end| end <= at)
        };
        let expired: Vec<JobId> = self
            .live
            .iter()
            .filter(expired)
            .map(|(id, _)| *id)
            .collect();
        for id in expired {
            self.end_wait(id, EXPIRED)?;
        }
        Ok(())
    }

    /// Ends a waiting job, unless its invoice has been paid after all.
    pub(super) fn end_wait(&mut self, id: JobId, problem: &str) -> Result<()> {
        let Some(live) = self.live.get_mut(&id) else {
            return Ok(());
        };
        match (&mut live.state, live.bill) {
            (LiveState::Preparing(_, hurry), Bill::Open) => {
                // Its task asks the wallet once more; the rest follows from what it says.
                if let Some(hurry) = hurry.take() {
                    let _ = hurry.send(problem.to_string());
                }
                live.place = Place::Leaving;
                self.waiting.leave(id);
                Ok(())
            }
            (LiveState::Preparing(task, _), Bill::None) => {
                task.abort();
                self.answer(id, Err(problem.to_string()))
            }
            (LiveState::Queued, _) => {
                self.lanes
                    .remove(live.request.kind, customer(&live.event), id);
                self.answer(id, Err(problem.to_string()))
            }
            (LiveState::Preparing(..), Bill::Paid) | (LiveState::Running(_), _) => Ok(()),
        }
    }

    /// Starts jobs in the free slots.
    pub(super) fn start_jobs(&mut self) {
        while let Some((id, ready)) = self.lanes.pop() {
            let live = self.live.get(&id);
            let end = live.and_then(|live| live.request.expiration);
            if end.is_some_and(|end| end <= now()) && live.is_some_and(|l| l.bill != Bill::Paid) {
                // Answered as what could not be prepared is.
                let expired = Message::Prepared(id, Err(EXPIRED.to_string()));
                let _ = self.messages.unbounded_send(expired);
                continue;
            }
            self.start_job(id, ready);
        }
    }

    /// The most tokens of a job, where others wait: less than asked for is better than none. `None` where nothing else than usual holds.
    fn busy_tokens(&self, id: JobId) -> Option<usize> {
        let live = self.live.get(&id)?;
        let is_stranger =
            live.bill == Bill::None && !self.admission.is_known(customer(&live.event));
        let is_capped = is_stranger && self.admission.is_busy();
        is_capped.then_some(self.settings.busy_tokens)
    }

    fn start_job(&mut self, id: JobId, mut ready: Ready) {
        let busy_tokens = self.busy_tokens(id);
        let kind = ready.kind();
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        match self.journal.change(id, &mut Entry::start) {
            Ok(Some(_)) => {}
            Ok(None) => {
                tracing::error!(job = %id, "cannot start the job: the journal refused");
                self.close(id);
                return;
            }
            Err(err) => {
                // The next write will say so again, where it ends the service.
                tracing::error!(job = %id, error = %err, "cannot record the start");
            }
        }
        let stop = Arc::new(Stop::new(Duration::from_secs(self.settings.job_seconds)));
        live.state = LiveState::Running(stop.clone());
        self.lanes.started(kind);
        let is_hidden = live.request.encryption.is_some();
        let mut capped = None;
        if let (Ready::Text(_, request), Task::Text(params)) = (&mut ready, &live.task) {
            *request = self
                .settings
                .completion(id, std::mem::take(request), params);
            capped = busy_tokens.filter(|most| *most < request.max_tokens);
            request.max_tokens = capped.unwrap_or(request.max_tokens);
            // Otherwise nothing might be left for the answer.
            let thoughts = Some(request.max_tokens / 2);
            let thinking = request.thinking.take();
            request.thinking = thinking.map(|thinking| thinking.limited(thoughts));
        }
        let work = Work {
            id,
            ready,
            is_hidden,
            stop,
            every: Duration::from_millis(self.settings.partial_millis),
            messages: self.messages.clone(),
        };
        let messages = self.messages.clone();
        platform::spawn(async move {
            if platform::spawn_work(move || work.run()).await.is_err() {
                // Not what it says: that may quote the request.
                tracing::error!(job = %id, "a running job panicked");
                let _ = messages.unbounded_send(Message::Panicked(id));
            }
        });
        if let Some(most) = capped {
            let feedback = Feedback {
                extra: Some(format!("busy: this result ends after {most} tokens")),
                ..Feedback::new(event_id(id), Status::Processing)
            };
            self.feedback(id, feedback);
        }
    }

    pub(super) fn partial(&mut self, id: JobId, text: String) {
        let feedback = Feedback {
            text,
            expiration: Some(now() + 3600),
            ..Feedback::new(event_id(id), Status::Partial)
        };
        self.feedback(id, feedback);
    }

    pub(super) fn finished(
        &mut self,
        id: JobId,
        result: std::result::Result<Product, String>,
    ) -> Result<()> {
        let Some(live) = self.live.get(&id) else {
            return Ok(());
        };
        let LiveState::Running(stop) = &live.state else {
            return Ok(());
        };
        let stopped = stop.reason();
        self.lanes.ended(live.request.kind);
        if let Ok(product) = &result {
            self.panics = 0;
            self.metrics
                .tokens
                .fetch_add(product.tokens as u64, Relaxed);
            self.metrics
                .busy_millis
                .fetch_add((product.seconds * 1000.0) as u64, Relaxed);
            let customer = customer(&live.event);
            self.admission.serve(customer, now());
            self.journal.note_served(customer, now())?;
            tracing::info!(
                job = %id,
                prompt_tokens = product.prompt_tokens,
                tokens = product.tokens,
                seconds = product.seconds,
                "done"
            );
        }
        match stopped {
            Some(StopReason::Cancelled) => self.cancelled(id),
            Some(StopReason::Leaving) => {
                self.live.remove(&id);
                Ok(())
            }
            Some(StopReason::TimedOut) => {
                let seconds = self.settings.job_seconds;
                self.answer(id, Err(format!("the job took longer than {seconds} s")))
            }
            None => self.answer(id, result),
        }
    }

    pub(super) fn panicked(&mut self, id: JobId) -> Result<()> {
        self.panics += 1;
        self.finished(id, Err("the model failed".to_string()))
    }

    /// Sends feedback about a job that is open, if it can be sent at once.
    pub(super) fn feedback(&mut self, id: JobId, feedback: Feedback) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        let feedback = Feedback {
            encryption: live.request.encryption,
            ..feedback
        };
        // What has to be paid is waited for; everything else tells of a moment. Relays of customers are only just connected to when the
        // job is accepted, so there that waits as well.
        let (keep, keep_guests) = match feedback.status {
            Status::PaymentRequired => (Keep::Until, Keep::Until),
            Status::Processing => (Keep::Now, Keep::Until),
            _ => (Keep::Now, Keep::Now),
        };
        match feedback.write(&self.keys, now(), &live.event.pubkey) {
            Ok(event) if event.as_json().len() <= self.relays.event_bytes() => {
                let guests = live.guests.clone();
                if feedback.status != Status::Partial {
                    live.told = Some(event.clone());
                }
                self.relays.publish_own(&event, keep);
                self.publish_guests(&guests, &event, keep_guests);
            }
            Ok(_) => tracing::debug!("feedback is too large for the relays; not sent"),
            Err(err) => tracing::debug!(error = %err, "feedback not sent"),
        }
    }
}

struct Work {
    id: JobId,
    ready: Ready,
    is_hidden: bool,
    stop: Arc<Stop>,
    every: Duration,
    messages: mpsc::UnboundedSender<Message>,
}

impl Work {
    async fn run(self) {
        let mut text = String::new();
        // What is done before that needs no partial: relays count what they are sent, and the result is what matters.
        let mut last = Instant::now();
        let mut on_piece = |piece: &str| {
            text.push_str(piece);
            if !piece.is_empty() && last.elapsed() >= self.every {
                last = Instant::now();
                let partial = Message::Partial(self.id, text.clone());
                let _ = self.messages.unbounded_send(partial);
            }
            self.stop.go_on()
        };
        let result = self.ready.run(&mut on_piece).await;
        let result = result.map_err(|err| told(&err, self.is_hidden));
        let finished = Message::Finished(self.id, result);
        let _ = self.messages.unbounded_send(finished);
    }
}

impl super::settings::Settings {
    /// Converts a request's parameters. `max_tokens` is a ceiling, so our lower limit keeps the promise. Without a seed, the job's id gives
    /// one: it differs between jobs, and is the same when a job runs again after a restart.
    fn completion(
        &self,
        id: JobId,
        prompt: CompletionRequest,
        params: &Params,
    ) -> CompletionRequest {
        CompletionRequest {
            max_tokens: params
                .max_tokens
                .unwrap_or(self.default_tokens)
                .min(self.max_tokens),
            temperature: params.temperature.unwrap_or(prompt.temperature),
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            seed: params.seed.unwrap_or_else(|| {
                let [a, b, c, d, e, f, g, h, ..] = id.0;
                u64::from_be_bytes([a, b, c, d, e, f, g, h])
            }),
            stop: params.stop.clone(),
            repeat_penalty: params.frequency_penalty.unwrap_or(prompt.repeat_penalty),
            ..prompt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;
    use std::time::Duration;

    #[test]
    fn a_time_beyond_the_clock_does_not_limit() {
        for seconds in [i64::MAX as u64, u64::MAX] {
            let stop = Stop::new(Duration::from_secs(seconds));
            assert!(stop.go_on().is_continue());
        }
        assert!(Stop::new(Duration::ZERO).go_on().is_break());
    }
}
