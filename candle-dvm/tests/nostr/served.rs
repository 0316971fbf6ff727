//! A service in the test's own process, with a scripted model.

use super::relay::TestRelay;
use super::wait::wait_until;
use candle_dvm::journal::RedbJournal;
use candle_dvm::nip90::{Feedback, Input, JobRequest, JobResult, Status};
use candle_dvm::payment::{Free, Payment};
use candle_dvm::service::{now, Generator, Listener, Metrics, Offers, Service, Settings};
use candle_engine::{ChatTemplate, Completion, CompletionRequest, Result, StopReason, Timings};
use futures_util::future::LocalBoxFuture;
use nostr::prelude::{Event, Keys};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Says each word of the prompt, `max_tokens` of them at most, over and over, with a pause between two.
#[derive(Default)]
pub struct Echo {
    pub pause: AtomicU64,
    pub pieces: AtomicU64,
    pub started: AtomicU64,
    /// Whether it has had a prompt with `broken`, and is.
    pub broken: AtomicBool,
}

impl Generator for Echo {
    fn check(&self, request: &CompletionRequest) -> Result<()> {
        if request.prompt.trim().is_empty() {
            Err(candle_engine::Error::EmptyPrompt)
        } else {
            Ok(())
        }
    }

    fn generate<'a>(
        &'a self,
        request: &'a CompletionRequest,
        on_piece: &'a mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> LocalBoxFuture<'a, Result<Completion>> {
        Box::pin(async move { self.echo(request, on_piece) })
    }

    fn failure(&self) -> Option<String> {
        self.broken.load(SeqCst).then(|| "it is broken".to_string())
    }
}

impl Echo {
    /// As long as `pause` says, which may change meanwhile.
    fn rest(&self) {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(self.pause.load(SeqCst)) {
            std::thread::sleep(Duration::from_millis(self.pause.load(SeqCst).min(5)));
        }
    }

    fn echo(
        &self,
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.started.fetch_add(1, SeqCst);
        assert!(!request.prompt.contains("panic"), "as the test asks");
        let mut text = String::new();
        let words = request.prompt.split_whitespace().cycle();
        for word in words.take(request.max_tokens) {
            self.rest();
            self.pieces.fetch_add(1, SeqCst);
            let piece = format!("{word} ");
            text.push_str(&piece);
            if on_piece(&piece).is_break() {
                break;
            }
        }
        if request.prompt.contains("broken") {
            self.broken.store(true, SeqCst);
        }
        if let Some(why) = self.failure() {
            return Err(candle_engine::Error::Batch(why));
        }
        Ok(Completion {
            guesses: None,
            text,
            token_ids: vec![0; 3],
            thought_tokens: 0,
            prompt_tokens: 3,
            cached_tokens: 0,
            stop_reason: StopReason::Length,
            timings: Timings {
                prompt_seconds: 0.0,
                prompt_tokens_per_second: 0.0,
                generation_seconds: 0.0,
                generation_tokens_per_second: 0.0,
            },
        })
    }
}

/// A pause that ends when another is set.
pub const HELD: u64 = u64::MAX;

/// A running service. Dropped, it ends as if the process were killed.
pub struct Served {
    pub keys: Keys,
    pub echo: Arc<Echo>,
    pub metrics: Arc<Metrics>,
    stop: Option<oneshot::Sender<()>>,
    done: Option<tokio::task::JoinHandle<candle_dvm::Result<()>>>,
    runtime: Option<Runtime>,
}

impl Served {
    pub fn on(relays: &[&TestRelay], data: &Path) -> Self {
        Self::with(relays, data, Keys::generate(), |_| ())
    }

    pub fn with(
        relays: &[&TestRelay],
        data: &Path,
        keys: Keys,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::paid(relays, data, keys, Arc::new(Free), change)
    }

    pub fn paid(
        relays: &[&TestRelay],
        data: &Path,
        keys: Keys,
        payment: Arc<dyn Payment>,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::start(relays, data, keys, payment, (None, None), change)
    }

    /// With a chat template.
    pub fn templated(
        relays: &[&TestRelay],
        data: &Path,
        template: Option<ChatTemplate>,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let keys = Keys::generate();
        let models = (template, None);
        Self::start(relays, data, keys, Arc::new(Free), models, change)
    }

    /// With a speech model, `ears`.
    pub fn hearing(
        relays: &[&TestRelay],
        data: &Path,
        ears: Arc<dyn Listener>,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let keys = Keys::generate();
        let models = (None, Some(ears));
        Self::start(relays, data, keys, Arc::new(Free), models, change)
    }

    fn start(
        relays: &[&TestRelay],
        data: &Path,
        keys: Keys,
        payment: Arc<dyn Payment>,
        (template, ears): (Option<ChatTemplate>, Option<Arc<dyn Listener>>),
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings {
            relays: relays.iter().map(|relay| relay.url.clone()).collect(),
            partial_millis: 50,
            default_tokens: 3,
            drain_seconds: 5,
            ..Settings::default()
        };
        change(&mut settings);
        settings.check().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let echo = Arc::new(Echo::default());
        let metrics = Arc::new(Metrics::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let journal = Arc::new(RedbJournal::open(&data.join("journal.redb")).unwrap());
        let service = runtime.block_on(async {
            let mut offers = Offers::default().text("echo".to_string(), echo.clone(), template);
            if let Some(ears) = ears {
                offers = offers.speech("ears".to_string(), ears);
            }
            let metrics = metrics.clone();
            Service::new(settings, offers, keys.clone(), journal, payment, metrics).unwrap()
        });
        let done = runtime.spawn(service.run(async {
            let _ = stopped.await;
        }));
        for relay in relays {
            // Requests that were made before the first start are not for it.
            relay.wait_for(31990, 1);
        }
        Self {
            keys,
            echo,
            metrics,
            stop: Some(stop),
            done: Some(done),
            runtime: Some(runtime),
        }
    }

    /// Ends it as SIGTERM does.
    pub fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended().unwrap();
    }

    /// Waits until it has ended.
    pub fn ended(self) -> candle_dvm::Result<()> {
        self.end().1
    }

    /// The same for a service one of whose threads hangs and keeps running.
    pub fn ended_but_for_its_threads(self) -> candle_dvm::Result<()> {
        let (runtime, result) = self.end();
        runtime.shutdown_background();
        result
    }

    fn end(mut self) -> (Runtime, candle_dvm::Result<()>) {
        let runtime = self.runtime.take().unwrap();
        let done = self.done.take().unwrap();
        let limit = Duration::from_secs(60);
        let done = runtime.block_on(async { tokio::time::timeout(limit, done).await });
        (runtime, done.expect("the service goes on").unwrap())
    }

    /// Waits until what is refused or dropped for a reason has been counted as often.
    #[track_caller]
    pub fn wait_refused(&self, reason: &str, count: u64) {
        let all = || self.metrics.refused.lock().unwrap().clone();
        wait_until(
            || format!("{reason} was not counted {count} times: {:?}", all()),
            || all().get(reason).copied().unwrap_or(0) >= count,
        );
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// A customer with a separate key.
pub struct Customer(pub Keys);

impl Customer {
    pub fn new() -> Self {
        Self(Keys::generate())
    }

    pub fn request(&self, prompt: &str) -> Event {
        self.request_with(prompt, |_| ())
    }

    pub fn request_with(&self, prompt: &str, change: impl FnOnce(&mut JobRequest)) -> Event {
        let mut request = JobRequest {
            inputs: vec![Input::text(prompt)],
            ..JobRequest::default()
        };
        change(&mut request);
        request.write(&self.0, now()).unwrap()
    }

    pub fn read(&self, result: &Event) -> JobResult {
        result.verify().unwrap();
        JobResult::read(result, &self.0).unwrap()
    }
}

/// The feedback to a customer about a job.
pub fn feedback(relay: &TestRelay, customer: &Customer, job: &Event) -> Vec<Feedback> {
    let events = relay.of_kind(7000).into_iter();
    events
        .filter_map(|event| Feedback::read(&event, &customer.0).ok())
        .filter(|feedback| feedback.job == job.id)
        .collect()
}

/// Waits for the error that answers a job, and returns its reason.
#[track_caller]
pub fn error(relay: &TestRelay, customer: &Customer, job: &Event) -> String {
    let found = || {
        let mut all = feedback(relay, customer, job).into_iter();
        all.find(|feedback| feedback.status == Status::Error)
    };
    wait_until(|| format!("no error for {}", job.id), || found().is_some());
    found().unwrap().extra.unwrap()
}

/// Waits until a service has read all events of a relay. Relays forward events in order, so the last one, which is refused at once, has its
/// answer then.
#[track_caller]
pub fn wait_read(relay: &TestRelay) {
    let last = Customer::new();
    let job = last.request("");
    relay.publish(&job);
    error(relay, &last, &job);
}
