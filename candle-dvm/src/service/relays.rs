//! The connections: those to the configured relays, and for a while those to relays that customers name.

use super::now;
use super::settings::Settings;
use crate::relay::driver::{Command, Driver, Report};
use crate::relay::{Keep, Reach, RelayLimits};
use futures_channel::mpsc;
use nostr::prelude::{Event, EventId, Filter, Keys};
use std::collections::{BTreeMap, BTreeSet};

/// Relays of customers that are connected at the same time, at most.
const GUESTS: usize = 32;
/// Those of them where something is looked for, at most: the others are for answers.
const HINTED: usize = 16;
/// Seconds after which one that got nothing to do is left.
const GUEST_IDLE: u64 = 60;
/// `["EVENT",…]`, and room for what relays count differently.
const MARGIN: usize = 256;

struct Relay {
    driver: Driver,
    is_own: bool,
    is_up: bool,
    limits: RelayLimits,
    last_used: u64,
    /// What is looked for on a customer's relay.
    searches: BTreeSet<String>,
}

pub(super) struct Relays {
    keys: Keys,
    guest_reach: Reach,
    event_bytes: usize,
    reports: mpsc::Sender<(String, Report)>,
    relays: BTreeMap<String, Relay>,
    own: Vec<String>,
}

impl Relays {
    pub(super) fn new(
        keys: Keys,
        settings: &Settings,
        reports: mpsc::Sender<(String, Report)>,
    ) -> Self {
        let guest_reach = match settings.private_relays {
            true => Reach::Anywhere,
            false => Reach::Public,
        };
        Self {
            keys,
            guest_reach,
            event_bytes: settings.event_bytes,
            reports,
            relays: BTreeMap::new(),
            own: settings.relays.clone(),
        }
    }

    pub(super) fn is_own(&self, url: &str) -> bool {
        self.own.iter().any(|own| own == url)
    }

    /// How a relay is called in the log. Those that customers name may have been hidden.
    pub(super) fn shown<'a>(&self, url: &'a str) -> &'a str {
        match self.is_own(url) {
            true => url,
            false => "a customer's",
        }
    }

    pub(super) fn own(&self) -> &[String] {
        &self.own
    }

    /// The relay, connected to if there is room.
    fn relay(&mut self, url: &str) -> Option<&mut Relay> {
        if !self.relays.contains_key(url) {
            let is_own = self.is_own(url);
            let guests = self.relays.values().filter(|relay| !relay.is_own).count();
            if !is_own && guests >= GUESTS {
                return None;
            }
            let reach = match is_own {
                true => Reach::Anywhere,
                false => self.guest_reach,
            };
            let relay = Relay {
                driver: Driver::start(url, self.keys.clone(), reach, self.reports.clone()),
                is_own,
                is_up: false,
                limits: RelayLimits::default(),
                last_used: now(),
                searches: BTreeSet::new(),
            };
            self.relays.insert(url.to_string(), relay);
        }
        self.relays.get_mut(url)
    }

    pub(super) fn send(&mut self, url: &str, command: Command) {
        if let Some(relay) = self.relay(url) {
            relay.last_used = now();
            relay.driver.send(command);
        }
    }

    /// Subscribes on the configured relays.
    pub(super) fn subscribe(&mut self, name: &str, filter: &Filter, once: bool) {
        for url in self.own.clone() {
            self.send(&url, subscription(name, filter, once));
        }
    }

    /// Subscribes on a customer's relay, until it is unsubscribed. `false` if there is no room, or nothing to gain.
    pub(super) fn subscribe_guest(
        &mut self,
        url: &str,
        name: &str,
        filter: &Filter,
        once: bool,
    ) -> bool {
        let searched = |relay: &&Relay| !relay.searches.is_empty();
        if self.is_own(url) || self.relays.values().filter(searched).count() >= HINTED {
            return false;
        }
        let Some(relay) = self.relay(url) else {
            return false;
        };
        relay.searches.insert(name.to_string());
        relay.driver.send(subscription(name, filter, once));
        true
    }

    pub(super) fn unsubscribe(&mut self, name: &str) {
        for relay in self.relays.values_mut() {
            if relay.searches.remove(name) || relay.is_own {
                relay.driver.send(Command::Unsubscribe(name.to_string()));
            }
        }
    }

    pub(super) fn publish_to(&mut self, url: &str, event: &Event, keep: Keep) {
        self.send(url, Command::Publish(Box::new(event.clone()), keep));
    }

    /// Whether a relay gets answers now: one of ours if it is connected, one of a customer always, because that is what connects to it.
    pub(super) fn takes(&self, url: &str) -> bool {
        !self.is_own(url) || self.relays.get(url).is_some_and(|relay| relay.is_up)
    }

    /// Stops to try to publish an event.
    pub(super) fn forget(&mut self, url: &str, event: EventId) {
        if let Some(relay) = self.relays.get(url) {
            relay.driver.send(Command::Forget(event));
        }
    }

    pub(super) fn publish_own(&mut self, event: &Event, keep: Keep) {
        for url in self.own.clone() {
            self.publish_to(&url, event, keep);
        }
    }

    pub(super) fn set_up(&mut self, url: &str, up: bool) {
        if let Some(relay) = self.relays.get_mut(url) {
            relay.is_up = up;
        }
    }

    pub(super) fn set_limits(&mut self, url: &str, limits: RelayLimits) {
        let shown = self.shown(url);
        if let Some(relay) = self.relays.get_mut(url) {
            tracing::debug!(relay = shown, ?limits, "limits");
            relay.limits = limits;
        }
    }

    /// The configured relays that are connected.
    pub(super) fn up(&self) -> BTreeSet<String> {
        let up = |(_, relay): &(&String, &Relay)| relay.is_own && relay.is_up;
        let up = self.relays.iter().filter(up);
        up.map(|(url, _)| url.clone()).collect()
    }

    pub(super) fn own_up(&self) -> usize {
        self.up().len()
    }

    /// The most bytes of an event that every configured relay takes.
    pub(super) fn event_bytes(&self) -> usize {
        let own = self.relays.values().filter(|relay| relay.is_own);
        let limit = |relay: &Relay| {
            let bytes = relay.limits.event_bytes().unwrap_or(self.event_bytes);
            // A content of that many characters has at least as many bytes, and the tags come on top.
            let content = relay.limits.max_content_length.unwrap_or(usize::MAX);
            bytes.min(content)
        };
        own.map(limit)
            .min()
            .unwrap_or(self.event_bytes)
            .saturating_sub(MARGIN)
    }

    /// Leaves relays of customers that have had nothing to do for a while.
    pub(super) fn tick(&mut self, now: u64) {
        self.relays.retain(|_, relay| {
            relay.is_own || !relay.searches.is_empty() || relay.last_used + GUEST_IDLE > now
        });
    }
}

fn subscription(name: &str, filter: &Filter, once: bool) -> Command {
    Command::Subscribe {
        name: name.to_string(),
        filter: Box::new(filter.clone()),
        cursor: None,
        once,
    }
}
