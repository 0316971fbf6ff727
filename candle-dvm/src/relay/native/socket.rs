//! A WebSocket.

use super::connect::{connect, Io};
use crate::relay::machine::LARGEST_MESSAGE;
use crate::relay::{Incoming, NoConnection, Outgoing, Reach};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::WebSocketStream;
use url::Url;

/// A message is cut off here, and the connection with it. Up to this size events can be read and dropped, so that a large one that a
/// relay has stored does not keep us from what is behind it.
const LARGEST_FRAME: usize = 8 * LARGEST_MESSAGE;

/// An open connection to a relay.
pub struct Socket(WebSocketStream<Box<dyn Io>>);

impl Socket {
    /// Connects, for as long as that takes.
    ///
    /// # Errors
    /// In one line: an address that is none or is not allowed, and failures to connect.
    pub async fn open(url: &str, reach: Reach) -> Result<Self, NoConnection> {
        let parsed = Url::parse(url).map_err(|err| NoConnection::not_allowed(err.to_string()))?;
        let stream = connect(&parsed, reach).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(LARGEST_FRAME))
            .max_frame_size(Some(LARGEST_FRAME));
        let opened = tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await;
        Ok(Self(opened?.0))
    }

    /// Sends.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send(&mut self, message: Outgoing) -> Result<(), String> {
        let message = match message {
            Outgoing::Text(text) => Message::text(text),
            Outgoing::Ping => Message::Ping(Default::default()),
        };
        self.0.send(message).await.map_err(|err| err.to_string())
    }

    /// The next message. A cancelled wait loses nothing.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn next(&mut self) -> Result<Incoming, String> {
        match self.0.next().await {
            Some(Ok(Message::Close(_))) | None => {
                Err("the relay closed the connection".to_string())
            }
            Some(Ok(Message::Text(text))) => Ok(Incoming::Text(text.to_string())),
            Some(Ok(_)) => Ok(Incoming::Other),
            Some(Err(err)) => Err(err.to_string()),
        }
    }
}
