//! Access control: API keys, the server's names, and the origins of browsers' pages.
//!
//! A web page can point its own name at this machine and then ask as if from its own site, so a `Host` has to be an address, `localhost` or a
//! name that was given. Pages of other sites are refused unless their origin was given.

use super::server::Peer;
use super::{ApiError, Served};
use crate::{Error, Result};
use axum::extract::{Request, State};
use axum::http::header::{
    HeaderName, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use candle_engine::batch::Owner;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a file of keys, and the fewest of a key.
const FILE_BYTES: usize = 64 << 10;
const KEY_BYTES: usize = 16;
/// Answered without a key, for supervisors.
const OPEN: &str = "/health";

/// The clients that have access. By default all, under an address or `localhost`, and no page of another site.
#[derive(Default)]
pub struct Access {
    /// Accepted API keys; a request needs one of them. Empty if no key is required.
    keys: Vec<Zeroizing<String>>,
    /// Names that the server goes by, in lower case.
    hosts: Vec<String>,
    /// Origins of pages that may ask; `*` is all.
    origins: Vec<String>,
}

impl Access {
    /// Requires a key of a file, which has one in each line; lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// A file that cannot be read or that others can read, without a key, or with one that is too short or not ASCII. No key is part of
    /// the message.
    pub fn with_keys(mut self, file: &Path) -> Result<Self> {
        let wrong = |problem: String| Error::Key {
            place: file.display().to_string(),
            problem,
        };
        let text = candle_engine::secret_file::read(file, FILE_BYTES, 0o077).map_err(wrong)?;
        for (at, line) in text.lines().enumerate() {
            let key = line.trim();
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if key.len() < KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong(format!(
                    "line {}: expected a key of at least {KEY_BYTES} ASCII characters without blanks",
                    at + 1
                )));
            }
            self.keys.push(Zeroizing::new(key.to_string()));
        }
        if self.keys.is_empty() {
            Err(wrong("has no key; expected one in each line".to_string()))
        } else {
            Ok(self)
        }
    }

    /// Takes requests for this host name too.
    pub fn with_host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_ascii_lowercase());
        self
    }

    /// Takes requests of pages of this origin, such as `https://example.com`; `*` is all.
    pub fn with_origin(mut self, origin: &str) -> Self {
        let origin = origin.trim_end_matches('/').to_ascii_lowercase();
        self.origins.push(origin);
        self
    }

    /// Whether requests need a key.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether the server has this host name, which may be followed by a port.
    fn knows_host(&self, host: &str) -> bool {
        let name = name_of(host).to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost"
            || address.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known == name)
    }

    /// The `Access-Control-Allow-Origin` of a page's request; none for a page of this server.
    fn origin(&self, origin: &HeaderValue, host: Option<&str>) -> Option<Option<HeaderValue>> {
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        if self.origins.iter().any(|known| known == "*") {
            return Some(Some(HeaderValue::from_static("*")));
        }
        if self.origins.contains(&text) {
            return Some(Some(origin.clone()));
        }
        let is_ours = text
            .split_once("://")
            .is_some_and(|(_, of)| host.is_some_and(|host| host.eq_ignore_ascii_case(of)));
        is_ours.then_some(None)
    }

    /// The owner of a request, by its key or else by its address.
    fn owner(&self, request: &Request) -> std::result::Result<Owner, ApiError> {
        if self.keys.is_empty() || request.uri().path() == OPEN {
            let peer = request.extensions().get::<Peer>();
            return Ok(peer.map_or_else(Owner::default, |peer| of_address(peer.0.ip())));
        }
        let given = request.headers().get(AUTHORIZATION);
        let given = given.map_or(&b""[..], HeaderValue::as_bytes);
        let given = match given.split_first_chunk::<7>() {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key,
            _ => {
                return Err(ApiError::key(
                    "an API key is required; pass Authorization: Bearer KEY",
                ))
            }
        };
        // All are compared, in the same time whichever it is.
        let keys = self.keys.iter().zip(1..);
        let found = keys.fold(0, |found, (key, number)| {
            if bool::from(key.as_bytes().ct_eq(given)) {
                number
            } else {
                found
            }
        });
        match found {
            0 => Err(ApiError::key("the API key is not known to this server")),
            number => Ok(Owner(number)),
        }
    }
}

/// The host without the port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// An owner for each address; of IPv6, for each network of 64 bits, which one client may have all of.
fn of_address(address: IpAddr) -> Owner {
    let mut hasher = DefaultHasher::new();
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.hash(&mut hasher),
        IpAddr::V6(v6) => v6.segments()[..4].hash(&mut hasher),
    }
    Owner(hasher.finish())
}

/// Refuses who may not ask; the others' requests have their [`Owner`] as an extension.
pub(super) async fn check(
    State(served): State<Arc<Served>>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &served.access;
    let host = request.headers().get(HOST);
    let host = host.map(|host| host.to_str().unwrap_or_default().to_string());
    let target = request.uri().authority().map(|it| it.as_str().to_string());
    for host in host.iter().chain(&target) {
        if !access.knows_host(host) {
            return ApiError::host(name_of(host)).into_response();
        }
    }
    let origin = request.headers().get(ORIGIN);
    let allowed = match origin.map(|origin| access.origin(origin, host.as_deref())) {
        None => None,
        Some(Some(allowed)) => allowed,
        Some(None) => return ApiError::origin().into_response(),
    };
    let is_preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match access.owner(&request) {
        _ if is_preflight && allowed.is_some() => preflight(&request),
        Err(error) => error.into_response(),
        Ok(owner) => {
            request.extensions_mut().insert(owner);
            next.run(request).await
        }
    };
    if let Some(allowed) = allowed {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// The answer to a browser that asks before a page's request.
fn preflight(request: &Request) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(asked) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    // A public page's request to a private address, in Chrome.
    let private = HeaderName::from_static("access-control-allow-private-network");
    headers.insert(private, HeaderValue::from_static("true"));
    response
}

/// The owner of a request, as found by [`check`].
pub(super) fn owner(request: &Request) -> Owner {
    let owner = request.extensions().get::<Owner>();
    owner.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Access;

    #[test]
    fn hosts_are_addresses_or_names_that_were_given() {
        let access = Access::default().with_host("Example.com");
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "example.COM:443",
        ] {
            assert!(access.knows_host(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            ":80",
            "example.com.evil",
            "xlocalhost",
        ] {
            assert!(!access.knows_host(host), "{host}");
        }
    }
}
