//! The thread that makes vectors, some texts of each request in turn.

use super::Encoder;
use candle_engine::batch::Owner;
use candle_engine::embed::TextTokens;
use candle_engine::error::brief;
use candle_engine::queue::{Job, Queue};
use candle_engine::{Error, Result};
use candle_transformers::embed::Options;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Requests that wait or are worked on.
const REQUESTS: usize = 64;
/// Texts and tokens that are worked on before the next request has its turn.
const TEXTS: usize = 32;
const TOKENS: usize = 2048;

/// An encoder that works on one request after the other.
pub(super) struct Vectors {
    pub(super) encoder: Arc<Encoder>,
    queue: Queue<Texts>,
}

/// A request.
struct Texts {
    tokens: Vec<TextTokens>,
    options: Options,
    done: Vec<Vec<f32>>,
    answer: oneshot::Sender<Result<Vec<Vec<f32>>>>,
}

impl Job for Texts {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }
}

impl Vectors {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn new(encoder: Encoder) -> crate::Result<Self> {
        let encoder = Arc::new(encoder);
        let model = encoder.clone();
        let embed = move |texts: &[TextTokens], options: &Options| {
            let vectors = model.model.embed(texts, options);
            vectors.and_then(|vectors| vectors.to_vec2::<f32>())
        };
        let queue = Queue::start("candle-embed", REQUESTS, move |texts| some(texts, &embed));
        Ok(Self {
            encoder,
            queue: queue.map_err(crate::Error::Thread)?,
        })
    }

    /// Requests that wait or are worked on.
    pub(super) fn open(&self) -> usize {
        self.queue.open()
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
        let texts = Texts {
            tokens,
            options,
            done: Vec::new(),
            answer,
        };
        self.queue.put(owner, texts)?;
        let stopped = |_| Error::Batch("the embedding thread has stopped".to_string());
        answered.await.map_err(stopped)?
    }
}

/// Makes some of a request's vectors; the request is given back if there are more.
fn some(
    mut texts: Texts,
    embed: impl Fn(&[TextTokens], &Options) -> candle_core::Result<Vec<Vec<f32>>>,
) -> Option<Texts> {
    let left = &texts.tokens[texts.done.len()..];
    let chunk = &left[..chunk(left)];
    let made = catch_unwind(AssertUnwindSafe(|| embed(chunk, &texts.options)));
    let failed = match made {
        Ok(Ok(vectors)) => {
            texts.done.extend(vectors);
            if texts.done.len() < texts.tokens.len() {
                return Some(texts);
            }
            let _ = texts.answer.send(Ok(texts.done));
            return None;
        }
        Ok(Err(error)) => Error::Text {
            origin: "input".to_string(),
            problem: brief(&error),
        },
        Err(_) => {
            tracing::error!("the embedding model panicked");
            Error::Batch("the embedding model panicked".to_string())
        }
    };
    let _ = texts.answer.send(Err(failed));
    None
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

    fn texts(count: usize) -> (Texts, oneshot::Receiver<Result<Vec<Vec<f32>>>>) {
        let (answer, answered) = oneshot::channel();
        let text = TextTokens {
            ids: vec![7; 8],
            cut: false,
        };
        let texts = Texts {
            tokens: vec![text; count],
            options: Options::default(),
            done: Vec::new(),
            answer,
        };
        (texts, answered)
    }

    #[test]
    fn a_request_is_made_in_turns() {
        let (all, answered) = texts(TEXTS + 3);
        let embed = |texts: &[TextTokens], _: &Options| {
            Ok(texts.iter().map(|text| vec![text.ids[0] as f32]).collect())
        };
        let rest = some(all, embed).expect("one turn for all of it");
        assert_eq!(rest.done.len(), TEXTS);
        assert!(some(rest, embed).is_none());
        assert_eq!(
            answered.blocking_recv().unwrap().unwrap(),
            vec![[7.0]; TEXTS + 3]
        );
    }

    #[test]
    fn what_goes_wrong_is_told() {
        let (one, answered) = texts(1);
        assert!(some(one, |_, _| candle_core::bail!("too odd")).is_none());
        let problem = answered.blocking_recv().unwrap().unwrap_err().to_string();
        assert!(problem.contains("input: too odd"), "{problem}");
        let (one, answered) = texts(1);
        assert!(some(one, |_, _| panic!("as the test asks")).is_none());
        let failed = answered.blocking_recv().unwrap();
        assert!(matches!(failed, Err(Error::Batch(_))), "{failed:?}");
    }
}
