//! What programs that serve need.

use crate::{Error, Result};

/// Logs only the source location of a panic: its message may quote a user's text.
pub fn log_places_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let backtrace = std::backtrace::Backtrace::capture();
        let place = place.unwrap_or_default();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!("panicked at {place}\n{backtrace}");
            }
            _ => tracing::error!("panicked at {place}; set RUST_BACKTRACE=1 for a backtrace"),
        }
    }));
}

/// A runtime for sockets, with a thread for each processor.
///
/// # Errors
/// The system has no threads for it.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::service)
}
