//! Serves the metrics' page.

use super::metrics::Metrics;
use crate::platform;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Serves the page at `/metrics` until the task is dropped.
///
/// # Errors
/// An address that cannot be listened on.
pub async fn serve(address: SocketAddr, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    platform::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of file handles, most likely: they come back.
                platform::sleep(Duration::from_secs(1)).await;
                continue;
            };
            let metrics = metrics.clone();
            let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                let found = request.uri().path() == "/metrics";
                let (status, text) = if found {
                    (StatusCode::OK, metrics.page())
                } else {
                    (StatusCode::NOT_FOUND, "see /metrics\n".to_string())
                };
                let mut response = Response::new(http_body_util::Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(5))
                .serve_connection(TokioIo::new(stream), answer);
            platform::spawn(async move {
                // A reader that went away is its own affair.
                let _ = connection.await;
            });
        }
    });
    Ok(())
}
