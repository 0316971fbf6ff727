//! Sockets in a browser: its own.

mod http;
mod socket;

pub use http::fetch;
pub use socket::Socket;

use super::reach::{is_public, Reach};
use url::{Host, Url};

/// Whether the service may connect to an address, checked before its name is resolved.
fn allowed(url: &Url, reach: Reach) -> Result<(), String> {
    let public = match url.host() {
        Some(Host::Ipv4(address)) => is_public(address.into()),
        Some(Host::Ipv6(address)) => is_public(address.into()),
        Some(Host::Domain(name)) => name != "localhost" && !name.ends_with(".localhost"),
        None => return Err("the address has no host".to_string()),
    };
    if public || reach == Reach::Anywhere {
        Ok(())
    } else {
        Err(format!(
            "{} is not a public address",
            url.host_str().unwrap_or_default()
        ))
    }
}
