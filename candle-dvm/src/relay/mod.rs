//! Relays: one state machine that does no I/O, and what drives it over sockets.
//!
//! - [`machine`]: when to connect, what to send, what an answer means. The same for every platform.
//! - [`limits`]: what a relay says about itself (NIP-11).
//! - With the feature `serve`, `driver`: the machine over a socket; `native` and `browser`: sockets and HTTP there.
//! - `reach`: which addresses strangers may have us connect to.

pub mod limits;
pub mod machine;

#[cfg(all(feature = "serve", target_arch = "wasm32"))]
mod browser;
#[cfg(feature = "serve")]
mod commands;
#[cfg(feature = "serve")]
pub mod driver;
#[cfg(feature = "serve")]
pub(crate) mod http;
#[cfg(all(feature = "serve", not(target_arch = "wasm32")))]
mod native;
#[cfg(feature = "serve")]
mod reach;

#[cfg(all(feature = "serve", target_arch = "wasm32"))]
use browser as here;
#[cfg(all(feature = "serve", not(target_arch = "wasm32")))]
use native as here;

#[cfg(feature = "serve")]
pub(crate) use here::Socket;
#[cfg(feature = "serve")]
pub use reach::Reach;

pub use limits::RelayLimits;
pub use machine::{Action, Budget, Keep, Machine, Outcome};

use nostr::prelude::RelayUrl;

/// The reason why there is no connection.
#[cfg(feature = "serve")]
pub(crate) struct NoConnection {
    pub(crate) reason: String,
    /// Trying again would change nothing: the address is not allowed.
    pub(crate) forever: bool,
}

#[cfg(feature = "serve")]
impl NoConnection {
    pub(crate) fn not_allowed(reason: String) -> Self {
        Self {
            reason,
            forever: true,
        }
    }
}

#[cfg(feature = "serve")]
impl<E: std::fmt::Display> From<E> for NoConnection {
    fn from(err: E) -> Self {
        Self {
            reason: err.to_string(),
            forever: false,
        }
    }
}

/// A message to a relay.
#[cfg(feature = "serve")]
pub(crate) enum Outgoing {
    Text(String),
    /// A check whether the peer is alive.
    Ping,
}

/// A message from a relay.
#[cfg(feature = "serve")]
pub(crate) enum Incoming {
    Text(String),
    /// A sign of life.
    Other,
}

/// The canonical form of a relay's address: an empty path has no `/`.
///
/// # Errors
/// A text that is not a `ws://` or `wss://` address.
pub fn normal_url(text: &str) -> Result<String, String> {
    let url = RelayUrl::parse(text.trim()).map_err(|err| err.to_string())?;
    Ok(url.to_string().trim_end_matches('/').to_string())
}
