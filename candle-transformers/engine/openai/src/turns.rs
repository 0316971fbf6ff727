//! A thread that works on the items of many requests, a few of each request at a time.

use candle_engine::batch::Owner;
use candle_engine::error::brief;
use candle_engine::queue::{Job, Queue};
use candle_engine::{Error, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use tokio::sync::oneshot;

/// Requests that wait or are worked on.
const REQUESTS: usize = 64;
/// Maximum number of items processed before the next request is served.
const ITEMS: usize = 32;
const TOKENS: usize = 2048;

/// An item of a request.
pub(super) trait Item: Send + 'static {
    /// The tokens that the model reads of it.
    fn tokens(&self) -> usize;
}

/// The thread's name, its model in messages, and the field of a request that has the items.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) thread: &'static str,
    pub(super) model: &'static str,
    pub(super) field: &'static str,
}

/// A model that works on one request after the other, all of whose items become a `T` each.
pub(super) struct Turns<I, O, T> {
    names: Names,
    queue: Queue<Request<I, O, T>>,
}

struct Request<I, O, T> {
    items: Vec<I>,
    options: O,
    done: Vec<T>,
    answer: oneshot::Sender<Result<Vec<T>>>,
}

impl<I: Item, O: Send + 'static, T: Send + 'static> Job for Request<I, O, T> {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }
}

impl<I: Item, O: Send + 'static, T: Send + 'static> Turns<I, O, T> {
    /// Starts the thread, which ends with this. `work` gives a result for each of some items.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start(
        names: Names,
        work: impl Fn(&[I], &O) -> candle_core::Result<Vec<T>> + Send + 'static,
    ) -> crate::Result<Self> {
        let turn = move |request| some(request, names, &work);
        let queue = Queue::start(names.thread, REQUESTS, turn);
        Ok(Self {
            names,
            queue: queue.map_err(crate::Error::Thread)?,
        })
    }

    /// Requests that wait or are worked on.
    pub(super) fn open(&self) -> usize {
        self.queue.open()
    }

    /// A result for each item. Dropping the future cancels the request.
    ///
    /// # Errors
    /// The queue is full, or the model fails on the items.
    pub(super) async fn of(&self, owner: Owner, items: Vec<I>, options: O) -> Result<Vec<T>> {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            items,
            options,
            done: Vec::new(),
            answer,
        };
        self.queue.put(owner, request)?;
        let stopped = |_| {
            Error::Batch(format!(
                "the thread of the {} has stopped",
                self.names.model
            ))
        };
        answered.await.map_err(stopped)?
    }
}

/// Processes some of a request's items; returns the request if there are more.
fn some<I: Item, O, T>(
    mut request: Request<I, O, T>,
    names: Names,
    work: impl Fn(&[I], &O) -> candle_core::Result<Vec<T>>,
) -> Option<Request<I, O, T>> {
    let left = &request.items[request.done.len()..];
    let chunk = &left[..chunk(left)];
    let made = catch_unwind(AssertUnwindSafe(|| work(chunk, &request.options)));
    let failed = match made {
        Ok(Ok(results)) => {
            request.done.extend(results);
            if request.done.len() < request.items.len() {
                return Some(request);
            }
            let _ = request.answer.send(Ok(request.done));
            return None;
        }
        Ok(Err(error)) => Error::Text {
            origin: names.field.to_string(),
            problem: brief(&error),
        },
        Err(_) => {
            tracing::error!("the {} panicked", names.model);
            Error::Batch(format!("the {} panicked", names.model))
        }
    };
    let _ = request.answer.send(Err(failed));
    None
}

/// Number of items processed at once: at least one.
fn chunk<I: Item>(items: &[I]) -> usize {
    let mut tokens = 0;
    let fit = items.iter().take(ITEMS).take_while(|item| {
        tokens += item.tokens();
        tokens <= TOKENS
    });
    fit.count().max(1).min(items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model gives each back.
    struct Tokens(u32);

    impl Item for Tokens {
        fn tokens(&self) -> usize {
            8
        }
    }

    const NAMES: Names = Names {
        thread: "candle-test",
        model: "test model",
        field: "input",
    };

    type Answered = oneshot::Receiver<Result<Vec<u32>>>;

    fn request(count: usize) -> (Request<Tokens, (), u32>, Answered) {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            items: (0..count as u32).map(Tokens).collect(),
            options: (),
            done: Vec::new(),
            answer,
        };
        (request, answered)
    }

    #[test]
    fn a_request_is_made_in_turns() {
        let (all, answered) = request(ITEMS + 3);
        let work = |items: &[Tokens], _: &()| Ok(items.iter().map(|item| item.0).collect());
        let rest = some(all, NAMES, work).expect("one turn for all of it");
        assert_eq!(rest.done.len(), ITEMS);
        assert!(some(rest, NAMES, work).is_none());
        let wanted: Vec<u32> = (0..ITEMS as u32 + 3).collect();
        assert_eq!(answered.blocking_recv().unwrap().unwrap(), wanted);
    }

    #[test]
    fn failures_are_reported() {
        let (one, answered) = request(1);
        assert!(some(one, NAMES, |_, _| candle_core::bail!("too odd")).is_none());
        let problem = answered.blocking_recv().unwrap().unwrap_err().to_string();
        assert!(problem.contains("input: too odd"), "{problem}");
        let (one, answered) = request(1);
        assert!(some(one, NAMES, |_, _| panic!("as the test asks")).is_none());
        let failed = answered.blocking_recv().unwrap();
        assert!(matches!(failed, Err(Error::Batch(_))), "{failed:?}");
    }
}
