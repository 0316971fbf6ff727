//! Futures that need no waiting.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future whose every step is ready when it is asked for: what was written for waiting, where nothing has to be waited
/// for.
///
/// # Panics
/// If the future wants to wait, which is a mistake in this crate.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a future that was to be ready at once is not"),
    }
}
