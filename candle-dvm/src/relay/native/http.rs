//! HTTP by hyper.

use super::connect::connect;
use crate::platform;
use crate::relay::Reach;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderValue, ACCEPT, CONTENT_TYPE, DATE, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use url::Url;

/// As `relay::http::get_dated`, without its limit on time.
pub async fn fetch(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    date: &mut Option<u64>,
) -> Result<Vec<u8>, String> {
    match send(url, accept, None, reach, most, date).await? {
        (200, bytes) => Ok(bytes),
        (status, _) => Err(format!("HTTP status {status}")),
    }
}

/// Sends a GET, or a POST of JSON, and returns the status and what follows.
pub async fn send(
    url: &Url,
    accept: &str,
    json: Option<String>,
    reach: Reach,
    most: usize,
    date: &mut Option<u64>,
) -> Result<(u16, Vec<u8>), String> {
    let text = |err: hyper::Error| err.to_string();
    let stream = connect(url, reach).await.map_err(|err| err.reason)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(text)?;
    let connection = platform::spawn(async move {
        // The reader of the answer gets the error.
        let _ = connection.await;
    });
    let _ends_with_us = AbortOnDrop(connection);
    let host = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_string(),
        (None, _) => return Err("the address has no host".to_string()),
    };
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_string(),
    };
    let method = match json {
        Some(_) => Method::POST,
        None => Method::GET,
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, accept)
        .header(
            USER_AGENT,
            concat!("candle-dvm/", env!("CARGO_PKG_VERSION")),
        );
    if json.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = Full::new(Bytes::from(json.unwrap_or_default()));
    let request = request.body(body).map_err(|err| err.to_string())?;
    let response = sender.send_request(request).await.map_err(text)?;
    *date = self::date(response.headers().get(DATE));
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(text)?.into_data() {
            if read.len() + data.len() > most {
                return Err(format!("more than {most} bytes"));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok((status, read))
}

/// Seconds since 1970 of a `Date`.
fn date(header: Option<&HeaderValue>) -> Option<u64> {
    let date = httpdate::parse_http_date(header?.to_str().ok()?).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// Stops a task when it goes out of scope.
struct AbortOnDrop(platform::Task);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
