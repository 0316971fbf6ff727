//! Several completions at once: one thread has the model, and each text a slot in its cache.
//!
//! A step of the thread reads some tokens of prompts, and then makes one of every text that is being written: a long prompt holds nobody up,
//! also not other prompts, which are read in turn, and a text comes and goes between two steps. Owners of texts take turns (`turns.rs`). Whole pieces that a slot holds of an earlier text are not read again where a new one begins
//! alike, such as with the same system prompt.
//!
//! A greedy text does not depend on the others: its prompt is cut where its length says, and what is read again is what would be read. On the
//! devices a row of a step is computed as if it were alone, where a product's kernel does not depend on the number of rows.
//!
//! On a GPU the host does not hold the device up: where all texts are greedy, the next step is queued before the tokens of the last are known
//! (`writing.rs`), and kernels can be compiled before the first text comes (`compile.rs`).
//!
//! With [`BatchSettings::cache_memory`] a text has pages of a pool and not a part of a cache (`memory.rs`, `usage.rs`).
//!
//! Tokens are proposed to a text that is alone (`alone.rs`), by a draft model for one.
//!
//! A step that panics ends the texts that run, and the next ones find an empty cache. After three such steps with no text finished between
//! them the engine has failed, and so it has where a step does not end: [`BatchEngine::failure`] says so, and whoever serves with it has to
//! make another.

mod alone;
mod client;
mod compile;
mod memory;
mod pictures;
mod places;
mod scheduler;
mod supervisor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod turns;
mod usage;
mod waited;
mod watch;
mod writing;

use crate::backend::{Completion, CompletionRequest};
use crate::engine::CandleBackend;
use crate::generation::Mask;
use crate::{Error, Result};
use client::Client;
use memory::Memory;
pub use places::{Place, Places};
use scheduler::Scheduler;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
pub use turns::Owner;
use usage::Counts;
pub use usage::{CacheMemory, Measure};
use watch::Watch;

/// How many texts run and wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// Texts that run at once, at least 1. Each takes memory for as many positions as the longest of them has, unless there is a
    /// `cache_memory`.
    pub slots: usize,
    /// Tokens of a prompt that are read at once, and of all prompts about as many in a step, at least 1. `None` is 128 on the CPU and on
    /// software adapters, and 512 on GPUs, which read few tokens at once at a fraction of their rate.
    pub piece: Option<usize>,
    /// Texts that may wait for a slot.
    pub waiting: usize,
    /// A step that has not ended after this time is taken for one that never will, and so is what is compiled ahead.
    pub longest_step: Duration,
    /// Whether a GPU's kernels are compiled before the first text is begun, which takes seconds where none of them is known from an earlier
    /// process, and not while the first texts run.
    pub compile_ahead: bool,
    /// Bytes for keys and values in pages of 16 or 32 positions, allocated at the start. A text takes pages for the positions that it has, and shares
    /// those of a beginning in common. When there are none left, the youngest text waits. Without it each slot has a part of a cache that
    /// grows.
    pub cache_memory: Option<u64>,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self {
            slots: 8,
            piece: None,
            waiting: 256,
            longest_step: Duration::from_secs(600),
            compile_ahead: false,
            cache_memory: None,
        }
    }
}

impl BatchSettings {
    /// With the default for this device where nothing else is set.
    fn on(self, device: &candle_core::Device) -> Self {
        let is_slow = device.is_cpu() || device.is_software_gpu();
        let default = if is_slow { SMALL_PIECE } else { LARGE_PIECE };
        Self {
            piece: self.piece.or(Some(default)),
            ..self
        }
    }

    fn piece_len(&self) -> usize {
        self.piece.unwrap_or(SMALL_PIECE)
    }
}

/// Tokens of a piece where a step of many takes about as long a token as one of few.
const SMALL_PIECE: usize = 128;
/// Tokens of a piece where it does not, and the most that a prompt takes at once.
pub const LARGE_PIECE: usize = 512;

/// What becomes of a completion.
pub enum Heard<'a> {
    /// The next piece of its text, or none, to ask whether to go on.
    Piece(&'a str),
    /// The next token, if probabilities were asked for; its text follows, as soon as it is whole characters.
    Token(Likely),
    /// Its end. Nothing follows.
    Done(Result<Completion>),
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// The token.
    pub id: u32,
    /// The logarithm of its probability, before anything changed it.
    pub logprob: f32,
    /// The likeliest tokens with theirs, of the number that the order asks for.
    pub top: Vec<(u32, f32)>,
}

/// Who hears of it; `Break` ends it, and so does a panic.
pub type Listener = Box<dyn FnMut(Heard<'_>) -> ControlFlow<()> + Send>;

/// A completion to begin.
pub struct Order {
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// How to go on from them; its prompt is not used. Its images are those of which the tokens have the places.
    pub request: CompletionRequest,
    /// With it, each token comes with its probability, and with those of this number of the likeliest tokens.
    pub logprobs: Option<usize>,
    /// Whose it is: owners take turns.
    pub owner: Owner,
    /// A constraint on the text.
    pub mask: Option<Box<dyn Mask>>,
}

/// A completion that runs or waits.
struct Job {
    tokens: Vec<u32>,
    request: CompletionRequest,
    logprobs: Option<usize>,
    owner: Owner,
    mask: Option<Box<dyn Mask>>,
    client: Client,
}

/// A model whose completions run together.
pub struct BatchEngine {
    backend: Arc<CandleBackend>,
    jobs: Mutex<Option<Sender<Job>>>,
    /// Completions that have not ended.
    places: Arc<Places>,
    running: Arc<AtomicUsize>,
    /// How the memory of a cache in pages is used.
    memory: Option<Arc<Counts>>,
    /// Tokens of the longest text.
    positions: usize,
    /// Why the thread ended before its time.
    failure: Arc<OnceLock<String>>,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl BatchEngine {
    /// Starts the thread.
    ///
    /// # Errors
    /// A setting that is 0. With a cache in pages, memory for less than two pages, a model with layers that are not attention over keys and
    /// values, or a device without attention over pages.
    pub fn new(backend: Arc<CandleBackend>, settings: BatchSettings) -> Result<Self> {
        Self::with_step(backend, settings, |scheduler| scheduler.step())
    }

    /// As [`BatchEngine::new`], with something else for a step.
    fn with_step(
        backend: Arc<CandleBackend>,
        settings: BatchSettings,
        step: impl FnMut(&mut Scheduler<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let settings = settings.on(backend.device());
        for (name, value) in [("slots", settings.slots), ("piece", settings.piece_len())] {
            if value == 0 {
                return Err(Error::Parameter {
                    name,
                    value: value.to_string(),
                    expected: "at least 1",
                });
            }
        }
        let memory = settings.cache_memory;
        let memory = memory.map(|bytes| Memory::new(&backend, settings, bytes));
        let memory = memory.transpose()?;
        let state = match &memory {
            Some(memory) => memory.new_state(&backend)?,
            None => backend.new_slots(settings.slots)?,
        };
        let counts = memory.as_ref().map(|memory| memory.counts.clone());
        let most = memory.as_ref().map_or(usize::MAX, Memory::positions);
        let positions = backend.slot_positions().min(most);
        let (jobs, orders) = channel();
        let failure = Arc::new(OnceLock::new());
        let watch = Arc::new(Watch::new(settings.longest_step));
        let (model, failed, watched) = (backend.clone(), failure.clone(), watch.clone());
        let running = Arc::new(AtomicUsize::new(0));
        let runs = running.clone();
        let work = move || {
            if settings.compile_ahead {
                let compiled =
                    supervisor::caught(|| watched.during(|| compile::ahead(&model, settings)));
                if let Some(Err(error)) = compiled {
                    tracing::warn!(%error, "cannot compile kernels ahead of time");
                }
            }
            let scheduler = Scheduler::new(&model, state, settings);
            let mut scheduler = scheduler.with_memory(memory);
            scheduler.running = runs;
            let run = || supervisor::run(scheduler, &orders, &failed, &watched, step);
            if supervisor::caught(run).is_none() {
                let _ = failed.set("the engine thread panicked".to_string());
            }
        };
        let thread = std::thread::Builder::new().name("candle-batch".to_string());
        let thread = thread
            .spawn(work)
            .map_err(|err| Error::Batch(err.to_string()))?;
        Ok(Self {
            backend,
            jobs: Mutex::new(Some(jobs)),
            places: Places::new(settings.slots + settings.waiting),
            running,
            memory: counts,
            positions,
            failure,
            watch,
            thread: Some(thread),
        })
    }

    /// The model.
    pub fn backend(&self) -> &CandleBackend {
        &self.backend
    }

    /// The largest number of tokens of a text with its prompt: the model's positions, or those of all pages.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Checks the length of a prompt, as [`BatchEngine::begin`] does.
    ///
    /// # Errors
    /// No tokens, or more than [`BatchEngine::positions`].
    pub fn check_tokens(&self, tokens: usize) -> Result<()> {
        let limit = self.backend.slot_positions();
        match tokens {
            0 => Err(Error::EmptyPrompt),
            _ if tokens > limit => Err(Error::PromptTooLong { tokens, limit }),
            _ if tokens > self.positions => {
                let limit = self.positions;
                Err(Error::CacheTooSmall { tokens, limit })
            }
            _ => Ok(()),
        }
    }

    /// How many completions run or wait.
    pub fn open(&self) -> usize {
        self.places.taken()
    }

    /// How many completions run: the others of [`BatchEngine::open`] wait.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How the memory of [`BatchSettings::cache_memory`] is used; `None` without it.
    pub fn cache_memory(&self) -> Option<CacheMemory> {
        self.memory.as_ref().map(|counts| counts.read())
    }

    /// Why the engine takes no completions any more, if it has failed: steps that panicked, or after which the device failed, three in a row
    /// with no text finished between them; or a step that did not end within [`BatchSettings::longest_step`]. Another engine over the same
    /// model may go on, or the whole process has to be started anew.
    pub fn failure(&self) -> Option<String> {
        match self.watch.hangs() {
            // It stays said, even if the step comes back.
            Some(why) => Some(self.failure.get_or_init(|| why).clone()),
            None => self.failure.get().cloned(),
        }
    }

    /// Begins a completion of the prompt `tokens` for the owner 0; see [`BatchEngine::begin`].
    ///
    /// # Errors
    /// As [`BatchEngine::begin`].
    pub fn submit(
        &self,
        tokens: Vec<u32>,
        request: CompletionRequest,
        logprobs: Option<usize>,
        listener: Listener,
    ) -> Result<()> {
        let order = Order {
            tokens,
            request,
            logprobs,
            owner: Owner::default(),
            mask: None,
        };
        self.begin(order, listener)
    }

    /// Begins a completion. `listener` is called on the engine's thread, and must not block it.
    ///
    /// # Errors
    /// Parameters out of range, no tokens or more than the model has positions, no place to wait, or an engine that has failed.
    pub fn begin(&self, order: Order, listener: Listener) -> Result<()> {
        order.request.validate()?;
        self.check_tokens(order.tokens.len())?;
        self.backend
            .check_pictures(&order.tokens, &order.request.pictures)?;
        // Its thread may still be telling those that it had, and takes nobody on.
        if let Some(why) = self.failure() {
            return Err(Error::Batch(why));
        }
        let job = Job {
            client: Client::new(self.places.take(order.owner)?, listener),
            tokens: order.tokens,
            request: order.request,
            logprobs: order.logprobs,
            owner: order.owner,
            mask: order.mask,
        };
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match jobs.as_ref() {
            Some(jobs) => jobs.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        match refused {
            None => Ok(()),
            Some(job) => {
                job.client.refuse();
                Err(self.ended())
            }
        }
    }

    /// What a completion is told that the thread does not end.
    fn ended(&self) -> Error {
        let why = self.failure();
        Error::Batch(why.unwrap_or_else(|| "the engine has stopped".to_string()))
    }
}

/// Ends the thread once what runs has ended; one that hangs is left behind, and ends with the process.
impl Drop for BatchEngine {
    fn drop(&mut self) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A listener can be the last that has the engine, and is dropped by that thread.
        let is_this = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|it| !is_this(it) && self.watch.hangs().is_none()) {
            let _ = thread.join();
        }
    }
}
