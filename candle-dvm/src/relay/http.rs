//! One HTTP request: a relay's information document, an input that is an address, a question to a mint.

use super::here::fetch;
#[cfg(all(feature = "cashu", not(target_arch = "wasm32")))]
use super::here::send;
use super::Reach;
use crate::platform::timeout;
use std::time::Duration;
use url::Url;

/// Fetches at most `most` bytes. Redirections are not followed: they would lead around what was allowed.
///
/// # Errors
/// In one line: no connection, an answer other than 200, one that is too long or too slow; in a browser, also a server that
/// does not let pages of others read it.
pub async fn get(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> Result<Vec<u8>, String> {
    get_dated(url, accept, reach, most, time).await.0
}

/// The same, of a text.
///
/// # Errors
/// As for [`get`], and bytes other than UTF-8.
pub async fn get_text(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> Result<String, String> {
    text(get(url, accept, reach, most, time).await?)
}

/// Bytes as text.
///
/// # Errors
/// They are not UTF-8.
pub fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_string())
}

/// Posts JSON to an address that the configuration names, and returns the status with at most `most` bytes.
///
/// # Errors
/// In one line: no connection, an answer that is too long or too slow.
#[cfg(all(feature = "cashu", not(target_arch = "wasm32")))]
pub async fn post(
    url: &Url,
    json: String,
    most: usize,
    time: Duration,
) -> Result<(u16, Vec<u8>), String> {
    let mut date = None;
    let sent = send(
        url,
        "application/json",
        Some(json),
        Reach::Anywhere,
        most,
        &mut date,
    );
    let answer = timeout(time, sent).await;
    answer.unwrap_or_else(|| Err("no answer in time".to_string()))
}

/// As [`get`], and the server's time in seconds since 1970, where it is known: it may be without the bytes.
pub async fn get_dated(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    time: Duration,
) -> (Result<Vec<u8>, String>, Option<u64>) {
    let mut date = None;
    let bytes = timeout(time, fetch(url, accept, reach, most, &mut date)).await;
    let bytes = bytes.unwrap_or_else(|| Err("no answer in time".to_string()));
    (bytes, date)
}
