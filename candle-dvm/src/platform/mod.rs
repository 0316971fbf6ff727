//! Platform services apart from sockets (`relay`): tasks and timers. tokio natively, the browser's own in a tab.
//! Channels are those of `futures-channel` on both.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;

#[cfg(target_arch = "wasm32")]
use browser as here;
#[cfg(not(target_arch = "wasm32"))]
use native as here;

pub use here::{sleep, spawn, spawn_work, Boxed};

use futures_util::future::{abortable, select, AbortHandle, Either};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use web_time::{SystemTime, UNIX_EPOCH};

/// A handle to a task, by which it can be aborted. The task continues when the handle is dropped.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    /// A future that ends early when the task is ended, and the task.
    fn of<F: Future>(future: F) -> (impl Future<Output = ()>, Self) {
        let (future, handle) = abortable(future);
        let ended = async move {
            // It ran to its end, or was aborted.
            let _ = future.await;
        };
        (ended, Self(handle))
    }

    /// Ends it: it is dropped where it waits.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// The output of a future, or `None` if it takes longer than `time`.
pub async fn timeout<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), pin!(sleep(time))).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

/// Something that happens at once, and then again and again.
pub struct Every {
    period: Duration,
    next: Boxed<'static, ()>,
}

impl Every {
    /// Every so often.
    pub fn new(period: Duration) -> Self {
        let next = Box::pin(std::future::ready(()));
        Self { period, next }
    }

    /// Waits for the next tick. A cancelled wait continues with the next call.
    pub async fn next(&mut self) {
        (&mut self.next).await;
        self.next = Box::pin(sleep(self.period));
    }
}

/// Since 1970.
fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    since_1970().as_secs()
}
