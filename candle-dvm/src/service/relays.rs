//! The connections: those to the configured relays, and for a while those to relays that customers name ("guests").
//!
//! A guest stays while it has answers to take or is searched, and a minute longer. When all slots are in use, waiting relays rotate in:
//! idle guests leave at once; unreachable ones leave after some seconds and return later. A guest that sends forged or useless events is
//! barred for an hour.

use super::lookup::Watch;
use super::now;
use super::settings::Settings;
use crate::relay::driver::{Command, Driver, Report};
use crate::relay::limits::MARGIN;
use crate::relay::{Budget, Keep, Reach, RelayLimits};
use futures_channel::mpsc;
use nostr::prelude::{Event, Filter, Keys};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Relays of customers that are connected at the same time, at most.
pub(super) const GUESTS: usize = 32;
/// Maximum number of them that are searched: the others are for answers.
const HINTED: usize = 16;
/// Seconds after which an idle one is disconnected; and while others wait.
const GUEST_IDLE: u64 = 60;
const GUEST_IDLE_CROWDED: u64 = 2;
/// Seconds for which an unreachable relay keeps its slot while others wait.
const GUEST_TRY: u64 = 10;
/// Forged or useless events after which a relay is warned of, and a guest barred; and for how many seconds.
const FORGERIES: u32 = 20;
const BARRED: u64 = 3600;
/// Relays that are barred at the same time, at most.
const MOST_BARRED: usize = 1024;
/// Maximum number of events that wait for a relay's slot, not counting answers, which the journal has.
const MOST_HELD: usize = 256;

struct Relay {
    driver: Driver,
    is_own: bool,
    is_up: bool,
    limits: RelayLimits,
    started: u64,
    last_used: u64,
    /// The running searches on a customer's relay.
    searches: BTreeSet<String>,
    forgeries: u32,
}

pub(super) struct Relays {
    keys: Arc<Keys>,
    guest_reach: Reach,
    event_bytes: usize,
    reports: mpsc::Sender<(String, Report)>,
    relays: BTreeMap<String, Relay>,
    own: Vec<String>,
    barred: BTreeMap<String, u64>,
    held: VecDeque<(String, Event)>,
    pub(super) watch: Watch,
}

impl Relays {
    pub(super) fn new(
        keys: Arc<Keys>,
        settings: &Settings,
        reports: mpsc::Sender<(String, Report)>,
    ) -> Self {
        let guest_reach = if settings.private_relays {
            Reach::Anywhere
        } else {
            Reach::Public
        };
        Self {
            keys,
            guest_reach,
            event_bytes: settings.event_bytes,
            reports,
            relays: BTreeMap::new(),
            own: settings.relays.clone(),
            barred: BTreeMap::new(),
            held: VecDeque::new(),
            watch: Watch::default(),
        }
    }

    pub(super) fn is_own(&self, url: &str) -> bool {
        self.own.iter().any(|own| own == url)
    }

    /// The name of a relay in the log. Those that customers name may have been hidden.
    pub(super) fn shown<'a>(&self, url: &'a str) -> &'a str {
        if self.is_own(url) {
            url
        } else {
            "a customer's"
        }
    }

    pub(super) fn own(&self) -> &[String] {
        &self.own
    }

    pub(super) fn is_barred(&self, url: &str) -> bool {
        self.barred.contains_key(url)
    }

    /// The relay, which is connected if there is a free slot.
    fn relay(&mut self, url: &str) -> Option<&mut Relay> {
        if !self.relays.contains_key(url) {
            let is_own = self.is_own(url);
            if !is_own && (self.guests() >= GUESTS || self.is_barred(url)) {
                return None;
            }
            let (reach, budget) = if is_own {
                (Reach::Anywhere, Budget::OWN)
            } else {
                (self.guest_reach, Budget::GUEST)
            };
            let (keys, reports) = (self.keys.clone(), self.reports.clone());
            let relay = Relay {
                driver: Driver::with_budget(url, keys, reach, budget, reports),
                is_own,
                is_up: false,
                limits: RelayLimits::default(),
                started: now(),
                last_used: now(),
                searches: BTreeSet::new(),
                forgeries: 0,
            };
            self.relays.insert(url.to_string(), relay);
        }
        self.relays.get_mut(url)
    }

    fn guests(&self) -> usize {
        self.relays.values().filter(|relay| !relay.is_own).count()
    }

    /// Whether the relay is connected to, or can be: if need be, by parting with a guest that has nothing to do or cannot be reached. With
    /// it comes the guest that had to go, whose answers wait again.
    pub(super) fn place(
        &mut self,
        url: &str,
        owes: impl Fn(&str) -> bool,
        at: u64,
    ) -> (bool, Option<String>) {
        if self.relays.contains_key(url) || self.is_own(url) {
            return (true, None);
        }
        if self.guests() < GUESTS {
            return (true, None);
        }
        let guests = || self.relays.iter().filter(|(_, relay)| !relay.is_own);
        let free = |relay: &Relay| relay.searches.is_empty();
        let idle = guests().find(|(url, relay)| {
            free(relay) && !owes(url) && relay.last_used + GUEST_IDLE_CROWDED <= at
        });
        let dead = || {
            guests()
                .filter(|(_, relay)| free(relay) && !relay.is_up && relay.started + GUEST_TRY <= at)
                .min_by_key(|(_, relay)| relay.started)
        };
        let Some(gone) = idle.or_else(dead).map(|(url, _)| url.clone()) else {
            return (false, None);
        };
        self.relays.remove(&gone);
        (true, Some(gone))
    }

    /// Sends a command. `false` if there is no slot for the relay.
    pub(super) fn send(&mut self, url: &str, command: Command) -> bool {
        let Some(relay) = self.relay(url) else {
            return false;
        };
        relay.last_used = now();
        relay.driver.send(command);
        true
    }

    /// Subscribes on the configured relays.
    pub(super) fn subscribe(&mut self, name: &str, filter: &Filter, once: bool) {
        for url in self.own.clone() {
            self.send(&url, subscription(name, filter, once));
        }
    }

    /// Subscribes on a customer's relay, until it is unsubscribed. `false` if there is no slot, or nothing to gain.
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

    /// Publishes on one relay. Short-lived events are dropped if they do not fit, or if there is no slot; the others wait for a slot.
    pub(super) fn publish_to(&mut self, url: &str, event: &Event, keep: Keep) {
        if keep == Keep::Now && self.check(url, event).is_err() {
            return;
        }
        let publish = Command::Publish(Box::new(event.clone()), keep);
        if !self.send(url, publish) && keep == Keep::Until && !self.is_barred(url) {
            if self.held.len() >= MOST_HELD {
                self.held.pop_front();
            }
            self.held.push_back((url.to_string(), event.clone()));
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

    pub(super) fn set_limits(&mut self, url: &str, mut limits: RelayLimits) {
        let shown = self.shown(url);
        if let Some(relay) = self.relays.get_mut(url) {
            for (name, value) in limits.remove_absurd() {
                tracing::warn!(
                    relay = shown,
                    "the relay reports {name} = {value}, which no answer could satisfy; ignoring it"
                );
            }
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

    pub(super) fn is_own_and_down(&self, url: &str) -> bool {
        self.is_own(url) && !self.relays.get(url).is_some_and(|relay| relay.is_up)
    }

    pub(super) fn own_up(&self) -> usize {
        self.up().len()
    }

    /// Whether a relay takes an event, by the limits that it publishes.
    ///
    /// # Errors
    /// The reason for a refusal, in a line.
    pub(super) fn check(&self, url: &str, event: &Event) -> Result<(), String> {
        let limits = self.relays.get(url).map(|relay| &relay.limits);
        let default = RelayLimits::default();
        limits.unwrap_or(&default).check(event, self.event_bytes)
    }

    /// The most bytes of an event that any configured relay takes: what is too large for one may fit another.
    pub(super) fn event_bytes(&self) -> usize {
        let limit = |relay: &Relay| relay.limits.event_bytes().unwrap_or(self.event_bytes);
        let own = self.relays.values().filter(|relay| relay.is_own);
        let most = own.map(limit).max().unwrap_or(self.event_bytes);
        most.min(crate::relay::machine::LARGEST_MESSAGE)
            .saturating_sub(MARGIN)
    }

    /// Counts a forged or useless event. `true` if the relay is barred for it.
    pub(super) fn count_forgery(&mut self, url: &str, at: u64) -> bool {
        let shown = self.shown(url);
        let Some(relay) = self.relays.get_mut(url) else {
            return false;
        };
        relay.forgeries += 1;
        if relay.forgeries < FORGERIES || (relay.is_own && relay.forgeries > FORGERIES) {
            return false;
        }
        tracing::warn!(
            relay = shown,
            events = relay.forgeries,
            "the relay sends forged or unrequested events"
        );
        if relay.is_own {
            return false;
        }
        self.relays.remove(url);
        if self.barred.len() >= MOST_BARRED {
            let first = self.barred.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(url, _)| url.clone()) {
                self.barred.remove(&first);
            }
        }
        self.barred.insert(url.to_string(), at + BARRED);
        true
    }

    /// Relays with events that wait for a slot.
    pub(super) fn held(&self) -> Vec<String> {
        let mut urls: Vec<String> = self.held.iter().map(|(url, _)| url.clone()).collect();
        urls.dedup();
        urls
    }

    /// Disconnects guests that owe no answer and have been idle for a while, and sends the events that waited for a slot.
    pub(super) fn tick(&mut self, at: u64, owes: impl Fn(&str) -> bool) {
        self.barred.retain(|_, until| *until > at);
        self.relays.retain(|url, relay| {
            relay.is_own
                || !relay.searches.is_empty()
                || owes(url)
                || relay.last_used + GUEST_IDLE > at
        });
        for (url, event) in std::mem::take(&mut self.held) {
            self.publish_to(&url, &event, Keep::Until);
        }
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

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    fn relays() -> Relays {
        let settings = Settings {
            relays: vec!["ws://127.0.0.1:1".to_string()],
            ..Settings::default()
        };
        let (reports, _) = mpsc::channel(32);
        Relays::new(Arc::new(Keys::generate()), &settings, reports)
    }

    fn guest(n: usize) -> String {
        format!("ws://127.0.0.1:{}", 2 + n)
    }

    fn end() -> Command {
        Command::Unsubscribe("nothing".to_string())
    }

    #[test]
    fn a_guest_stays_as_long_as_it_has_answers_to_take() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut relays = relays();
        assert!(relays.send(&guest(0), end()));
        relays.tick(now() + 599, |_| true);
        assert_eq!(relays.guests(), 1);
        relays.tick(now() + 59, |_| false);
        assert_eq!(relays.guests(), 1);
        relays.tick(now() + 62, |_| false);
        assert_eq!(relays.guests(), 0);
    }

    #[test]
    fn where_all_places_are_taken_guests_come_in_rotation() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut relays = relays();
        for n in 0..GUESTS {
            assert!(relays.send(&guest(n), end()));
        }
        let next = guest(GUESTS);
        assert!(!relays.send(&next, end()));
        // All have answers to take; unreachable ones give up their slots after a while, connected ones do not.
        for n in 1..GUESTS {
            relays.set_up(&guest(n), true);
        }
        assert_eq!(relays.place(&next, |_| true, now()), (false, None));
        let later = now() + GUEST_TRY + 1;
        let (place, gone) = relays.place(&next, |_| true, later);
        assert_eq!((place, gone), (true, Some(guest(0))));
        assert!(relays.send(&next, end()));
        relays.set_up(&next, true);
        assert_eq!(relays.place(&guest(0), |_| true, later), (false, None));
        let others = |url: &str| url != guest(7);
        let (place, gone) = relays.place(&guest(0), others, later);
        assert_eq!((place, gone), (true, Some(guest(7))), "idle");
    }

    #[test]
    fn a_guest_is_barred_at_its_twentieth_forgery_and_one_of_ours_is_not() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let mut relays = relays();
        let own = relays.own[0].clone();
        for url in [guest(0), own.clone()] {
            relays.send(&url, end());
            for _ in 0..19 {
                assert!(!relays.count_forgery(&url, now()));
            }
        }
        assert!(relays.count_forgery(&guest(0), now()));
        assert!(!relays.count_forgery(&own, now()));
        assert!(!relays.send(&guest(0), end()));
        assert!(relays.send(&own, end()));
        relays.tick(now() + BARRED + 1, |_| false);
        assert!(relays.send(&guest(0), end()));
    }
}
