//! Events that are looked for on the service's relays.

use super::actor::Message;
use crate::platform::timeout;
use futures_channel::mpsc;
use futures_util::StreamExt;
use nostr::prelude::{Event, Filter};
use std::time::Duration;

/// A way to look for events, for tasks beside the service's own.
#[derive(Clone)]
pub struct Lookup {
    pub(super) service: mpsc::UnboundedSender<Message>,
}

/// What the service is asked for.
pub struct Search {
    pub(super) filter: Filter,
    /// A relay to look on beside our own.
    pub(super) hint: Option<String>,
    /// Whether to go on when relays have sent what they stored.
    pub(super) waits: bool,
    pub(super) found: mpsc::Sender<Event>,
}

impl Lookup {
    /// The events that the relays have stored, as far as they come in time. Their signatures are verified.
    pub async fn stored(
        &self,
        filter: Filter,
        hint: Option<String>,
        wait: Duration,
        most: usize,
    ) -> Vec<Event> {
        let mut found = self.search(filter, hint, false);
        let mut events = Vec::new();
        let collect = async {
            while let Some(event) = found.next().await {
                events.push(event);
                if events.len() >= most {
                    break;
                }
            }
        };
        // What came until then is still an answer.
        let _ = timeout(wait, collect).await;
        events
    }

    /// The first event that fits, be it stored or new.
    pub async fn first(
        &self,
        filter: Filter,
        hint: Option<String>,
        wait: Duration,
    ) -> Option<Event> {
        let mut found = self.search(filter, hint, true);
        timeout(wait, found.next()).await.flatten()
    }

    fn search(&self, filter: Filter, hint: Option<String>, waits: bool) -> mpsc::Receiver<Event> {
        let (found, results) = mpsc::channel(64);
        let search = Search {
            filter,
            hint,
            waits,
            found,
        };
        // Without a service there is nobody to wait for the results either.
        let _ = self.service.unbounded_send(Message::Search(search));
        results
    }
}
