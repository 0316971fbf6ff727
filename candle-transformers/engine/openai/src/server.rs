//! Connections: how many there may be, how long each may take, and how they end.

use super::idle::Idle;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper::Request;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{watch, Semaphore};
use tokio::task::JoinSet;

/// Maximum time for which a client may not read its answer.
const STALLED: Duration = Duration::from_secs(60);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Until file handles are free again, most likely.
const RETRY: Duration = Duration::from_millis(500);

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that may be open at once, at least 1; others wait.
    pub connections: usize,
    /// Maximum time for the head of a request, for the next bytes of its body, and for a connection without a request.
    pub idle: Duration,
    /// Maximum time for answers after the signal to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            idle: Duration::from_secs(12),
            drain: Duration::from_secs(8),
        }
    }
}

/// The address of the client, as an extension of each request.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Answers until `stop` is ready, and then until all answers are out or `drain` is over.
pub(super) async fn run(
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    stop: impl std::future::Future<Output = ()>,
) {
    let routes = TowerToHyperService::new(routes);
    let places = Arc::new(Semaphore::new(limits.connections));
    let (stopped, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        // The permit comes first: without one, a connection stays in the system's queue.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        // Tokens are small, and late ones are of no use.
        let _ = stream.set_nodelay(true);
        let routes = routes.clone();
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            routes.call(request)
        });
        let mut stopping = stopping.clone();
        connections.spawn(async move {
            let _place = place;
            let mut connection = pin!(http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.idle)
                .max_header_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(Idle::new(stream, STALLED)), answer));
            // A client that went away is its own affair.
            tokio::select! {
                _ = &mut connection => return,
                _ = stopping.changed() => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        });
    }
    drop(listener);
    drop(stopped);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain, drained).await.is_err() {
        tracing::warn!("connections were cut: they had not ended in time");
    }
}
