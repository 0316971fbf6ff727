//! A tab's worker: one thread, the browser's event loop.

use super::Task;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future in a box.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs a future concurrently with the caller's.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> Task {
    let (future, task) = Task::of(future);
    wasm_bindgen_futures::spawn_local(future);
    task
}

/// Runs long work. It has to yield by itself; a panic ends the whole module.
///
/// # Errors
/// None, here.
pub async fn spawn_work<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + 'static,
) -> Result<(), String> {
    work().await;
    Ok(())
}

/// Waits.
pub async fn sleep(time: Duration) {
    gloo_timers::future::sleep(time).await;
}

/// The clock that `nostr` asks.
struct Clock;

impl universal_time::WallClock for Clock {
    fn system_time(&self) -> universal_time::SystemTime {
        universal_time::SystemTime::from_unix_duration(super::since_1970())
    }
}

impl universal_time::MonotonicClock for Clock {
    fn instant(&self) -> universal_time::Instant {
        use std::sync::OnceLock;
        static START: OnceLock<web_time::Instant> = OnceLock::new();
        let start = START.get_or_init(web_time::Instant::now);
        universal_time::Instant::from_ticks(start.elapsed())
    }
}

universal_time::define_time_provider!(Clock);
