//! HTTP by the browser's `fetch`.

use super::allowed;
use crate::relay::Reach;
use gloo_net::http::Request;
use url::Url;
use web_sys::RequestRedirect;

/// As `relay::http::get_dated`, without its limit on time. Browsers do not show other servers' `Date`.
pub async fn fetch(
    url: &Url,
    accept: &str,
    reach: Reach,
    most: usize,
    _date: &mut Option<u64>,
) -> Result<Vec<u8>, String> {
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
    Ok(bytes)
}
