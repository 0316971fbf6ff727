//! The thread that makes vectors, and its queue: some texts of each request in turn.

use super::Encoder;
use candle_engine::batch::{Owner, Place, Places};
use candle_engine::embed::TextTokens;
use candle_engine::error::brief;
use candle_engine::{Error, Result};
use candle_transformers::embed::Options;
use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Requests that wait or are worked on.
const REQUESTS: usize = 64;
/// Texts and tokens that are worked on before the next request has its turn.
const TEXTS: usize = 32;
const TOKENS: usize = 2048;

/// An encoder that works on one request after the other.
pub(super) struct Vectors {
    pub(super) encoder: Arc<Encoder>,
    places: Arc<Places>,
    jobs: Mutex<Sender<Job>>,
}

/// A request. It is given up once nobody waits for the answer.
struct Job {
    owner: Owner,
    tokens: Vec<TextTokens>,
    options: Options,
    done: Vec<Vec<f32>>,
    answer: oneshot::Sender<Result<Vec<Vec<f32>>>>,
    _place: Place,
}

impl Vectors {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn new(encoder: Encoder) -> crate::Result<Self> {
        let encoder = Arc::new(encoder);
        let (jobs, orders) = channel();
        let model = encoder.clone();
        let work = move || {
            run(&orders, |texts, options| {
                let vectors = model.model.embed(texts, options);
                vectors.and_then(|vectors| vectors.to_vec2::<f32>())
            })
        };
        let thread = std::thread::Builder::new().name("candle-embed".to_string());
        thread.spawn(work).map_err(crate::Error::Thread)?;
        Ok(Self {
            encoder,
            places: Places::new(REQUESTS),
            jobs: Mutex::new(jobs),
        })
    }

    /// Requests that wait or are worked on.
    pub(super) fn open(&self) -> usize {
        self.places.taken()
    }

    /// A vector for each text. Dropped, it takes the request back.
    ///
    /// # Errors
    /// No place in the queue, or what the model says of the texts.
    pub(super) async fn of(
        &self,
        owner: Owner,
        tokens: Vec<TextTokens>,
        options: Options,
    ) -> Result<Vec<Vec<f32>>> {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            _place: self.places.take(owner)?,
            owner,
            tokens,
            options,
            done: Vec::new(),
            answer,
        };
        let stopped = || Error::Batch("the embedding thread has stopped".to_string());
        let jobs = self
            .jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        jobs.send(job).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

/// Works until nobody can ask any more.
fn run(
    orders: &Receiver<Job>,
    embed: impl Fn(&[TextTokens], &Options) -> candle_core::Result<Vec<Vec<f32>>>,
) {
    let mut waiting: Vec<Job> = Vec::new();
    // When each owner had its last turn.
    let mut turns: HashMap<Owner, u64> = HashMap::new();
    let mut turn = 0;
    loop {
        if waiting.is_empty() {
            turns.clear();
            match orders.recv() {
                Ok(job) => waiting.push(job),
                Err(_) => return,
            }
        }
        waiting.extend(orders.try_iter());
        waiting.retain(|job| !job.answer.is_closed());
        let last = |at: &usize| turns.get(&waiting[*at].owner).copied().unwrap_or(0);
        let Some(at) = (0..waiting.len()).min_by_key(last) else {
            continue;
        };
        let mut job = waiting.remove(at);
        turn += 1;
        turns.insert(job.owner, turn);
        let start = job.done.len();
        let chunk = &job.tokens[start..start + chunk(&job.tokens[start..])];
        let made = catch_unwind(AssertUnwindSafe(|| embed(chunk, &job.options)));
        match made {
            Ok(Ok(vectors)) => job.done.extend(vectors),
            Ok(Err(error)) => {
                let problem = brief(&error);
                let origin = "input".to_string();
                let _ = job.answer.send(Err(Error::Text { origin, problem }));
                continue;
            }
            Err(_) => {
                tracing::error!("the embedding model panicked");
                let why = "the embedding model panicked".to_string();
                let _ = job.answer.send(Err(Error::Batch(why)));
                continue;
            }
        }
        match job.done.len() == job.tokens.len() {
            true => drop(job.answer.send(Ok(job.done))),
            // Behind the owner's others: they are worked on in turn too.
            false => waiting.push(job),
        }
    }
}

/// How many of the texts are worked on at once: at least one.
fn chunk(texts: &[TextTokens]) -> usize {
    let mut tokens = 0;
    let fit = texts.iter().take(TEXTS).take_while(|text| {
        tokens += text.ids.len();
        tokens <= TOKENS
    });
    fit.count().max(1).min(texts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    fn job(
        places: &Arc<Places>,
        owner: u64,
        texts: usize,
    ) -> (Job, oneshot::Receiver<Result<Vec<Vec<f32>>>>) {
        let (answer, answered) = oneshot::channel();
        let text = TextTokens {
            ids: vec![owner as u32; 8],
            cut: false,
        };
        let job = Job {
            owner: Owner(owner),
            tokens: vec![text; texts],
            options: Options::default(),
            done: Vec::new(),
            answer,
            _place: places.take(Owner(owner)).unwrap(),
        };
        (job, answered)
    }

    fn works(orders: Receiver<Job>) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        std::thread::spawn(move || {
            run(&orders, |texts, _| {
                assert_ne!(texts[0].ids[0], 9, "as the test asks");
                std::thread::sleep(Duration::from_millis(5));
                counted.fetch_add(texts.len(), SeqCst);
                Ok(texts.iter().map(|text| vec![text.ids[0] as f32]).collect())
            })
        });
        count
    }

    #[test]
    fn requests_take_turns_and_end_with_their_clients() {
        let places = Places::new(4);
        let (send, orders) = channel();
        let (large, large_done) = job(&places, 1, 2048);
        let (small, small_done) = job(&places, 2, 2);
        let (broken, broken_done) = job(&places, 9, 1);
        for job in [large, small, broken] {
            send.send(job).unwrap();
        }
        let count = works(orders);
        assert_eq!(small_done.blocking_recv().unwrap().unwrap(), [[2.0], [2.0]]);
        assert!(count.load(SeqCst) <= 4 * TEXTS, "it waited for all others");
        let broken = broken_done.blocking_recv().unwrap();
        assert!(matches!(broken, Err(Error::Batch(_))), "{broken:?}");
        drop(large_done);
        let start = std::time::Instant::now();
        while places.taken() > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "nobody waits for it"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(count.load(SeqCst) < 2048, "all was made for nobody");
        let (whole, done) = job(&places, 3, 100);
        send.send(whole).unwrap();
        assert_eq!(done.blocking_recv().unwrap().unwrap().len(), 100);
    }
}
