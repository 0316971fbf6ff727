//! Futures that need no waiting, and those that wait for others.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The result of a future that never waits: code written for asynchronous reads, run on data that is already present.
///
/// # Panics
/// If the future wants to wait, which is a mistake in this crate.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a future that must be ready immediately is pending"),
    }
}

/// Yields to other tasks on this thread, such as a page's messages or a click on `Stop`.
pub async fn give_way() {
    #[cfg(target_arch = "wasm32")]
    let _ = wasm_bindgen_futures::JsFuture::from(next_turn()).await;
    #[cfg(not(target_arch = "wasm32"))]
    {
        let mut given = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut given, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

// A message rather than a timer: browsers stretch timers that follow each other to 4 ms.
#[cfg(target_arch = "wasm32")]
#[wasm_bindgen::prelude::wasm_bindgen(inline_js = "
const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();
export function next_turn() {
    return new Promise(done => {
        waiting.push(done);
        channel.port2.postMessage(0);
    });
}
")]
extern "C" {
    fn next_turn() -> js_sys::Promise;
}
