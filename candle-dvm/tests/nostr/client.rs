//! A connection to a relay that may be gone: everything is tried again until it is done.

use futures_util::{SinkExt, StreamExt};
use nostr::prelude::{ClientMessage, Event, Filter, RelayMessage, SubscriptionId};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

const PATIENCE: Duration = Duration::from_secs(120);

/// Publishes an event, until the relay has it.
pub fn publish(url: &str, event: &Event) {
    let message = ClientMessage::event(event.clone()).as_json();
    again_and_again(url, &message, |reply| match reply {
        RelayMessage::Ok {
            event_id,
            status,
            message,
        } if event_id == event.id => {
            let has = status || message.starts_with("duplicate:");
            assert!(has || message.starts_with("error:"), "{url}: {message}");
            Some(has)
        }
        _ => None,
    });
}

/// The stored events of a kind.
pub fn stored(url: &str, kind: u16) -> Vec<Event> {
    let filter = Filter::new().kind(kind.into()).limit(5000);
    let message = ClientMessage::req(SubscriptionId::new("stored"), vec![filter]).as_json();
    let mut events = Vec::new();
    again_and_again(url, &message, |reply| match reply {
        RelayMessage::Event { event, .. } => {
            events.push(event.into_owned());
            None
        }
        RelayMessage::EndOfStoredEvents(_) => Some(true),
        _ => None,
    });
    // A connection that broke off has brought some twice.
    events.sort();
    events.dedup();
    events
}

/// Sends a message on a separate connection and reads until `done` returns `Some(true)`; again after `Some(false)` or the connection's end.
fn again_and_again(url: &str, message: &str, mut done: impl FnMut(RelayMessage) -> Option<bool>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let once = once(url, message, &mut done);
        let once = async { tokio::time::timeout(Duration::from_secs(10), once).await };
        if runtime.block_on(once) == Ok(Some(true)) {
            return;
        }
        assert!(Instant::now() < end, "{url} does not answer to {message}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

async fn once(
    url: &str,
    message: &str,
    done: &mut impl FnMut(RelayMessage) -> Option<bool>,
) -> Option<bool> {
    let address = url.trim_start_matches("ws://");
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.ok()?;
    socket.send(Message::text(message)).await.ok()?;
    while let Some(Ok(reply)) = socket.next().await {
        let Message::Text(text) = reply else { continue };
        let reply = RelayMessage::from_json(text.as_bytes()).ok()?;
        if let Some(done) = done(reply) {
            return Some(done);
        }
    }
    None
}
