//! Searches for events on the service's relays.

use super::actor::{Message, Service, CANCELLATIONS};
use super::now;
use crate::platform::timeout;
use futures_channel::mpsc;
use futures_util::StreamExt;
use nostr::prelude::{Event, EventId, Filter, Kind};
use std::collections::BTreeSet;
use std::time::Duration;
use web_time::Instant;

/// The least time between two requests for cancellations.
const CANCELLATIONS_EVERY: Duration = Duration::from_secs(1);

/// A handle with which tasks search for events through the service.
#[derive(Clone)]
pub struct Lookup {
    pub(super) service: mpsc::UnboundedSender<Message>,
}

/// A search request to the service.
pub struct Search {
    pub(super) filter: Filter,
    /// A relay to search in addition to our own.
    pub(super) hint: Option<String>,
    /// Whether to continue after relays have sent their stored events.
    pub(super) waits: bool,
    pub(super) found: mpsc::Sender<Event>,
}

impl Lookup {
    /// The matching events that the relays return in time. Their signatures are verified.
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

    /// The first event that fits, be it stored or new, however long that takes.
    pub async fn first(&self, filter: Filter, hint: Option<String>) -> Option<Event> {
        self.search(filter, hint, true).next().await
    }

    fn search(&self, filter: Filter, hint: Option<String>, waits: bool) -> mpsc::Receiver<Event> {
        let (found, results) = mpsc::channel(64);
        let search = Search {
            filter,
            hint,
            waits,
            found,
        };
        // Without a service, no caller waits for the results either.
        let _ = self.service.unbounded_send(Message::Search(search));
        results
    }
}

/// A running search.
pub(super) struct Searching {
    pub(super) search: Search,
    /// Relays that have not sent all that they stored.
    pub(super) waiting: BTreeSet<String>,
}

impl Service {
    pub(super) fn lookup(&self) -> Lookup {
        Lookup {
            service: self.messages.clone(),
        }
    }

    pub(super) fn search(&mut self, search: Search) {
        self.next_search += 1;
        let name = format!("search-{}", self.next_search);
        let mut waiting = self.relays.up();
        if waiting.is_empty() {
            // As after a start: the relay that connects first may have the event. The caller decides how long to wait.
            waiting = self.relays.own().iter().cloned().collect();
        }
        self.relays.subscribe(&name, &search.filter, !search.waits);
        if let Some(hint) = &search.hint {
            let once = !search.waits;
            let asked = self
                .relays
                .subscribe_guest(hint, &name, &search.filter, once);
            waiting.extend(asked.then(|| hint.clone()));
        }
        self.searches.insert(name, Searching { search, waiting });
    }

    /// A relay has no more stored events for a search.
    pub(super) fn search_ended(&mut self, url: &str, name: &str) {
        let relays = &mut self.relays;
        self.searches.retain(|other, searching| {
            if name == other {
                searching.waiting.remove(url);
            }
            let goes_on = searching.search.waits || !searching.waiting.is_empty();
            if !goes_on {
                relays.unsubscribe(other);
            }
            goes_on
        });
    }

    /// Handles an event that may match a search. A customer's relay that sends many that do not match, or the same one without end, is
    /// disconnected.
    pub(super) fn found(&mut self, url: &str, name: &str, event: Event) {
        let Some(searching) = self.searches.get_mut(name) else {
            return;
        };
        let fits = searching
            .search
            .filter
            .match_event(&event, nostr::filter::MatchEventOptions::default());
        if !fits || event.verify().is_err() {
            self.admission.count("forged");
            return self.useless(url);
        }
        match searching.search.found.try_send(event) {
            Ok(()) => {}
            Err(err) if err.is_full() => self.useless(url),
            Err(_) => tracing::debug!(relay = self.relays.shown(url), "search complete"),
        }
    }

    fn useless(&mut self, url: &str) {
        if !self.relays.count_forgery(url, now()) {
            return;
        }
        // Nothing more will come from there.
        let names: Vec<String> = self.searches.keys().cloned().collect();
        for name in names {
            self.search_ended(url, &name);
        }
    }

    /// Ends searches whose callers have gone.
    pub(super) fn drop_searches(&mut self) {
        self.searches.retain(|name, searching| {
            let open = !searching.search.found.is_closed();
            if !open {
                self.relays.unsubscribe(name);
            }
            open
        });
    }

    /// Asks relays for cancellations of the jobs that are open, and of no others: relays hold many deletions. At once if that was not done
    /// lately, else when a second has passed: many short jobs would be many requests. Jobs that have ended are left out with the next.
    pub(super) fn watch_cancellations(&mut self) {
        let open: BTreeSet<EventId> = self.live.values().map(|live| live.event.id).collect();
        let watch = &mut self.relays.watch;
        if open.is_subset(&watch.ids) && !open.is_empty() {
            self.cancellations_changed = false;
            return;
        }
        let waits = |at: Instant| at.elapsed() < CANCELLATIONS_EVERY;
        if watch.asked.is_some_and(waits) {
            return;
        }
        self.cancellations_changed = false;
        if open.is_empty() && watch.ids.is_empty() {
            return;
        }
        watch.asked = Some(Instant::now());
        watch.ids.clone_from(&open);
        if open.is_empty() {
            return self.relays.unsubscribe(CANCELLATIONS);
        }
        let filter = Filter::new()
            .kind(Kind::from_u16(crate::nip90::DELETION))
            .events(open);
        self.relays.subscribe(CANCELLATIONS, &filter, false);
    }
}

/// The jobs for whose cancellations the service is subscribed, and since when.
#[derive(Default)]
pub(super) struct Watch {
    ids: BTreeSet<EventId>,
    asked: Option<Instant>,
}
