//! One HTTP GET: a relay's information document, or an input that is an address.

use super::here::fetch;
use super::Reach;
use crate::platform::timeout;
use std::time::Duration;
use url::Url;

/// Fetches a text of at most `most` bytes. Redirections are not followed: they would lead around what was allowed.
///
/// # Errors
/// In one line: no connection, an answer other than 200, a text that is too long or no UTF-8, or too slow; in a browser, also a server that
/// does not let pages of others read it.
pub async fn get(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> Result<String, String> {
    get_dated(url, accept, reach, most, time).await.0
}

/// The same, and the server's time in seconds since 1970, where it is known: it may be without the text.
pub async fn get_dated(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> (Result<String, String>, Option<u64>) {
    let mut date = None;
    let text = timeout(time, fetch(url, accept, reach, most, &mut date)).await;
    let text = text.unwrap_or_else(|| Err("no answer in time".to_string()));
    (text, date)
}
