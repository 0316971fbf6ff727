//! Relays: one state machine that does no I/O, and what drives it over sockets.
//!
//! - [`machine`]: when to connect, what to send, what an answer means. The same for every platform.
//! - [`limits`]: what a relay says about itself (NIP-11).
//! - `connect`, `driver`: the machine over tokio and tungstenite, with the feature `serve`.

pub mod limits;
pub mod machine;

#[cfg(feature = "serve")]
pub mod connect;
#[cfg(feature = "serve")]
pub mod driver;
#[cfg(feature = "serve")]
pub mod http;

pub use limits::RelayLimits;
pub use machine::{Action, Keep, Machine, Outcome};

use nostr::prelude::RelayUrl;

/// A relay's address in the one form under which it is known here: an empty path has no `/`.
///
/// # Errors
/// Something that is no `ws://` or `wss://` address.
pub fn normal_url(text: &str) -> Result<String, String> {
    let url = RelayUrl::parse(text.trim()).map_err(|err| err.to_string())?;
    Ok(url.to_string().trim_end_matches('/').to_string())
}
