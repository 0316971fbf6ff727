//! One HTTP GET: a relay's information document, or an input that is an address.

use super::allowed;
use crate::platform::timeout;
use crate::relay::Reach;
use gloo_net::http::Request;
use std::time::Duration;
use url::Url;
use web_sys::RequestRedirect;

/// Fetches a text of at most `most` bytes. Redirections are not followed: they would lead around what was allowed.
///
/// # Errors
/// In one line: no connection, a server that does not let pages of others read it, an answer other than 200, a text that is too long
/// or no UTF-8, or too slow.
pub async fn get(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> Result<String, String> {
    timeout(time, fetch(url, accept, reach, most))
        .await
        .unwrap_or_else(|| Err("no answer in time".to_string()))
}

async fn fetch(url: &Url, accept: &str, reach: Reach, most: usize) -> Result<String, String> {
    allowed(url, reach)?;
    let failed = |err: gloo_net::Error| err.to_string();
    let request = Request::get(url.as_str())
        .header("Accept", accept)
        .redirect(RequestRedirect::Error);
    let response = request.send().await.map_err(failed)?;
    if response.status() != 200 {
        return Err(format!("HTTP status {}", response.status()));
    }
    let bytes = response.binary().await.map_err(failed)?;
    if bytes.len() > most {
        return Err(format!("more than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "no UTF-8 text".to_string())
}
