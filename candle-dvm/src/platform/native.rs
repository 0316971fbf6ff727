//! tokio.

use super::Task;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future in a box, which any thread may run.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs a future concurrently with the caller's.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Task {
    let (future, task) = Task::of(future);
    tokio::spawn(future);
    task
}

/// Runs what is long and may block its thread. `Err` if it panicked.
///
/// # Errors
/// What is known of the panic.
pub async fn spawn_work<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(), String> {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work()))
        .await
        .map_err(|err| err.to_string())
}

/// Waits.
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
