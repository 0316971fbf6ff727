//! Turns a request's bytes into tokens, within limits of size and time, on threads that do not answer other requests.
//!
//! Small and large requests have separate lanes: megabytes of text take seconds to tokenise, and small requests must not wait for them.

use super::ApiError;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The most bytes of a request of JSON.
const BODY_BYTES: usize = 4 << 20;
/// The most bytes of one with a file, as at OpenAI.
const FILE_BYTES: usize = 25 << 20;
/// More is large.
const SMALL: usize = 64 << 10;
/// Large requests in memory; others are not read yet.
const LARGE_BODIES: usize = 8;
/// Requests of each size that are worked on at once.
const SMALL_AT_ONCE: usize = 4;
const LARGE_AT_ONCE: usize = 1;
/// Maximum time for a whole body, as a multiple of the time for its next bytes.
const WHOLE_BODY: u32 = 2;

/// Admits requests.
pub(super) struct Gate {
    bodies: Arc<Semaphore>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Maximum time for the next bytes of a body.
    idle: Duration,
}

/// A request in memory, and its permit if it is large.
pub(super) struct Read {
    bytes: Vec<u8>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Gate {
    /// With a limit of time for the next bytes of a body.
    pub(super) fn new(idle: Duration) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            bodies: places(LARGE_BODIES),
            small: places(SMALL_AT_ONCE),
            large: places(LARGE_AT_ONCE),
            idle,
        }
    }

    /// Reads a request of JSON.
    ///
    /// # Errors
    /// No JSON by its type, too large or too slow.
    pub(super) async fn read(&self, request: Request) -> Result<Read, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE);
        if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
            return Err(ApiError::content_type());
        }
        let (bytes, place) = self.body(request.into_body(), BODY_BYTES).await?;
        Ok(Read {
            bytes,
            _place: place,
        })
    }

    /// Runs `work` on a request on a thread that blocks no other request.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        read: Arc<Read>,
        work: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let is_large = read.bytes.len() > SMALL;
        let lane = if is_large { &self.large } else { &self.small };
        let turn = lane.clone().acquire_owned().await.ok();
        // The permits are held until the work is done, even if the client has disconnected.
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&read.bytes);
            drop((read, turn));
            done
        });
        done.await.map_err(|_| ApiError::panicked())?
    }

    /// Reads a form with a file.
    ///
    /// # Errors
    /// No form by its type, too large or too slow.
    pub(super) async fn form(&self, request: Request) -> Result<Multipart, ApiError> {
        let (head, body) = request.into_parts();
        let (bytes, _place) = self.body(body, FILE_BYTES).await?;
        let mut request = Request::from_parts(head, Body::from(bytes));
        // It is within ours.
        DefaultBodyLimit::disable().apply(&mut request);
        let form = Multipart::from_request(request, &()).await;
        form.map_err(|_| ApiError::form())
    }

    /// The bytes of a request, and a permit for them if they are many.
    async fn body(
        &self,
        body: Body,
        most: usize,
    ) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
        if body.size_hint().lower() > most as u64 {
            return Err(ApiError::too_large(most));
        }
        let place = if is_large(&body) {
            self.bodies.clone().acquire_owned().await.ok()
        } else {
            None
        };
        let bytes = timeout(WHOLE_BODY * self.idle, collect(body, self.idle, most));
        let bytes = bytes.await.map_err(|_| ApiError::too_slow())??;
        Ok((bytes, place))
    }
}

fn is_large(body: &Body) -> bool {
    let most = body.size_hint().upper();
    most.is_none_or(|most| most > SMALL as u64)
}

fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let kind = kind.trim_ascii().to_ascii_lowercase();
    kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"))
}

async fn collect(mut body: Body, idle: Duration, most: usize) -> Result<Vec<u8>, ApiError> {
    let size = body.size_hint().lower() as usize;
    let mut bytes = Vec::with_capacity(size.min(most));
    loop {
        let next = timeout(idle, body.frame());
        match next.await.map_err(|_| ApiError::too_slow())? {
            None => return Ok(bytes),
            Some(Err(_)) => return Err(ApiError::cut_off()),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    if bytes.len() + data.len() > most {
                        return Err(ApiError::too_large(most));
                    }
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
}
