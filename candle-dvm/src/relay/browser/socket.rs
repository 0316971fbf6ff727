//! A WebSocket.

use super::allowed;
use crate::platform::sleep;
use crate::relay::{Incoming, NoConnection, Outgoing, Reach};
use futures_util::{SinkExt, StreamExt};
use gloo_net::websocket::futures::WebSocket;
use gloo_net::websocket::{Message, State, WebSocketError};
use std::time::Duration;
use url::Url;

/// Interval of the checks whether a connection is open.
const LOOK: Duration = Duration::from_millis(20);

/// Scripts cannot send pings. A question that no event answers has an answer all the same: that there is no event.
const QUESTION: &str = r#"["REQ","ping",{"ids":["0000000000000000000000000000000000000000000000000000000000000000"],"limit":1}]"#;
const QUESTION_ENDS: &str = r#"["CLOSE","ping"]"#;

/// An open connection to a relay.
pub struct Socket(WebSocket);

impl Socket {
    /// Connects, without a timeout.
    ///
    /// # Errors
    /// In one line: an address that is malformed or not allowed, and connection failures, whose reason browsers do not reveal.
    pub async fn open(url: &str, reach: Reach) -> Result<Self, NoConnection> {
        let parsed = Url::parse(url).map_err(|err| NoConnection::not_allowed(err.to_string()))?;
        allowed(&parsed, reach).map_err(NoConnection::not_allowed)?;
        let socket = WebSocket::open(url)?;
        loop {
            match socket.state() {
                State::Connecting => sleep(LOOK).await,
                State::Open => return Ok(Self(socket)),
                _ => return Err("cannot reach the relay".into()),
            }
        }
    }

    /// Sends.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send(&mut self, message: Outgoing) -> Result<(), String> {
        let texts = match message {
            Outgoing::Text(text) => vec![text],
            Outgoing::Ping => vec![QUESTION.to_string(), QUESTION_ENDS.to_string()],
        };
        for text in texts {
            let sent = self.0.send(Message::Text(text)).await;
            sent.map_err(|err| err.to_string())?;
        }
        Ok(())
    }

    /// The next message. A cancelled wait loses nothing.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn next(&mut self) -> Result<Incoming, String> {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => Ok(Incoming::Text(text)),
            Some(Ok(Message::Bytes(_))) => Ok(Incoming::Other),
            Some(Err(WebSocketError::ConnectionClose(_))) | None => {
                Err("the relay closed the connection".to_string())
            }
            Some(Err(err)) => Err(err.to_string()),
        }
    }
}
