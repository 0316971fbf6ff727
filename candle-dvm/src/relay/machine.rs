//! The protocol with one relay, without sockets and clocks: whoever drives it says what happened and when, and does what it is told.
//!
//! Times are milliseconds since 1970. After each call the driver takes the actions with [`Machine::next_action`], and calls
//! [`Machine::tick`] no later than [`Machine::deadline`].
//!
//! What is published with [`Keep::Until`] is sent until the relay has said yes or no, over as many connections as that takes.

use super::limits::RelayLimits;
use nostr::prelude::{
    ClientMessage, Event, EventBuilder, EventId, Filter, FinalizeEvent, Keys, Kind, RelayMessage,
    SubscriptionId, Tag, Timestamp,
};
use std::collections::{BTreeMap, VecDeque};

/// Larger messages are dropped unread. Relays that were tried take events of 300 KB; nothing here needs more.
pub const LARGEST_MESSAGE: usize = 512 * 1024;

const SECOND: u64 = 1000;
const FIRST_RETRY: u64 = SECOND;
const LONGEST_RETRY: u64 = 300 * SECOND;
/// How long a connection has to last for the next retry to be a quick one.
const STABLE: u64 = 60 * SECOND;
const CONNECT_TIMEOUT: u64 = 20 * SECOND;
const OK_TIMEOUT: u64 = 20 * SECOND;
const QUIET_BEFORE_PING: u64 = 45 * SECOND;
const QUIET_BEFORE_CLOSE: u64 = 90 * SECOND;
/// Events that are sent and have no answer, at most.
const IN_FLIGHT: usize = 32;
/// Answers to AUTH challenges on one connection, and challenges before it is given up.
const AUTH_ANSWERS: u32 = 3;
const AUTH_CHALLENGES: u32 = 50;
/// Messages on one connection that are nothing of the protocol, before it is given up.
const NONSENSE: u32 = 1000;
/// Events of one page of the store.
const PAGE: usize = 500;
/// A page with fewer events than this was the last one, unless the relay names a smaller limit.
const FULL_PAGE: usize = 100;
/// How far before the cursor a subscription starts, in seconds: clocks differ, and relays take their time.
pub const OVERLAP: u64 = 600;

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a connection.
    Connect,
    /// Send a text.
    Send(String),
    /// Send a ping, where the platform can.
    Ping,
    /// Close the connection, for this reason.
    Close(&'static str),
    /// Hand over an event that a subscription brought. Nothing about it is verified.
    Deliver {
        /// The subscription.
        subscription: String,
        /// The event.
        event: Box<Event>,
    },
    /// The subscription has brought all that the relay had stored; later events are new.
    StoredEnd {
        /// The subscription.
        subscription: String,
    },
    /// Remember that the subscription with a cursor has been read up to here, in seconds.
    Cursor {
        /// The subscription.
        subscription: String,
        /// The new cursor.
        to: u64,
    },
    /// The relay has answered to an event, or never will.
    Settled {
        /// The event.
        id: EventId,
        /// What it said.
        outcome: Outcome,
    },
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The relay has it.
    Accepted,
    /// It does not take it, for this reason.
    Rejected(String),
}

/// How much a publication matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the relay has answered.
    Until,
    /// Only if it can be sent at once.
    Now,
}

#[derive(Debug, PartialEq)]
enum Link {
    Down { retry_at: u64 },
    Connecting { since: u64 },
    Up { since: u64 },
}

#[derive(Debug)]
struct Subscription {
    filter: Filter,
    /// For subscriptions that go on where they were; in seconds.
    cursor: Option<u64>,
    /// Whether it ends with what is stored.
    once: bool,
    state: SubscriptionState,
    refusals: u32,
    /// What the current page of the store has brought.
    page: Page,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SubscriptionState {
    /// To be sent when this time has come.
    Due(u64),
    /// Waits until we are authenticated.
    NeedsAuth,
    /// Sent; the relay reads its store, as of that time in seconds.
    Stored { asked: u64 },
    /// Everything stored is here.
    Live,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    events: usize,
    oldest: Option<u64>,
    newest: u64,
    /// The `until` with which it was asked for.
    until: Option<u64>,
}

#[derive(Debug)]
struct Outgoing {
    json: String,
    keep: Keep,
    tries: u32,
    state: OutgoingState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OutgoingState {
    Due(u64),
    NeedsAuth,
    Sent(u64),
}

/// The protocol with one relay.
pub struct Machine {
    url: String,
    keys: Keys,
    random: u64,
    link: Link,
    failures: u32,
    last_heard: u64,
    pinged: bool,
    challenges: u32,
    auth: Option<EventId>,
    authenticated: bool,
    nonsense: u32,
    subscriptions: BTreeMap<String, Subscription>,
    outgoing: BTreeMap<EventId, Outgoing>,
    order: VecDeque<EventId>,
    limits: RelayLimits,
    actions: VecDeque<Action>,
}

impl Machine {
    /// For the relay at `url`. `keys` answer its AUTH challenges; `seed` spreads reconnections.
    pub fn new(url: String, keys: Keys, seed: u64) -> Self {
        Self {
            url,
            keys,
            random: seed | 1,
            link: Link::Down { retry_at: 0 },
            failures: 0,
            last_heard: 0,
            pinged: false,
            challenges: 0,
            auth: None,
            authenticated: false,
            nonsense: 0,
            subscriptions: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            order: VecDeque::new(),
            limits: RelayLimits::default(),
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a connection is open.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// How many publications have no answer yet.
    pub fn unsettled(&self) -> usize {
        self.outgoing.len()
    }

    /// Takes what the relay says about itself.
    pub fn set_limits(&mut self, limits: RelayLimits) {
        self.limits = limits;
    }

    /// Asks for events. With a `cursor`, from a while before it on, page by page; with `once`, only for those that are stored.
    /// One of the same name is replaced.
    pub fn subscribe(
        &mut self,
        name: &str,
        filter: Filter,
        cursor: Option<u64>,
        once: bool,
        now: u64,
    ) {
        self.subscriptions.insert(
            name.to_string(),
            Subscription {
                filter,
                cursor,
                once,
                state: SubscriptionState::Due(0),
                refusals: 0,
                page: Page::default(),
            },
        );
        self.tick(now);
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, name: &str) {
        if self.subscriptions.remove(name).is_some() && self.is_up() {
            let close = ClientMessage::close(SubscriptionId::new(name));
            self.actions.push_back(Action::Send(close.as_json()));
        }
    }

    /// Publishes an event.
    pub fn publish(&mut self, event: &Event, keep: Keep, now: u64) {
        if self.outgoing.contains_key(&event.id) || (keep == Keep::Now && !self.is_up()) {
            return;
        }
        let outgoing = Outgoing {
            json: ClientMessage::event(event.clone()).as_json(),
            keep,
            tries: 0,
            state: OutgoingState::Due(0),
        };
        self.outgoing.insert(event.id, outgoing);
        self.order.push_back(event.id);
        self.tick(now);
    }

    /// Says that the connection is open.
    pub fn opened(&mut self, now: u64) {
        self.link = Link::Up { since: now };
        self.last_heard = now;
        self.pinged = false;
        self.challenges = 0;
        self.nonsense = 0;
        self.auth = None;
        self.authenticated = false;
        for subscription in self.subscriptions.values_mut() {
            subscription.state = SubscriptionState::Due(now);
            subscription.page = Page::default();
        }
        for outgoing in self.outgoing.values_mut() {
            outgoing.state = OutgoingState::Due(now);
        }
        self.tick(now);
    }

    /// Says that the connection has ended or could not be opened.
    pub fn closed(&mut self, now: u64) {
        if let Link::Up { since } = self.link {
            if now.saturating_sub(since) >= STABLE {
                self.failures = 0;
            }
        }
        let longest = (FIRST_RETRY << self.failures.min(16)).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        // Between half and all of it, so that a relay that comes back does not meet everybody at once.
        let wait = longest / 2 + self.next_random() % (longest / 2 + 1);
        self.link = Link::Down {
            retry_at: now + wait,
        };
        // What was only worth sending at once is not worth keeping.
        self.outgoing
            .retain(|_, outgoing| outgoing.keep == Keep::Until);
        let outgoing = &self.outgoing;
        self.order.retain(|id| outgoing.contains_key(id));
    }

    /// Says that a pong or any other sign of life came.
    pub fn heard(&mut self, now: u64) {
        self.last_heard = now;
        self.pinged = false;
    }

    /// Takes a message of the relay, whatever it is.
    pub fn receive(&mut self, text: &str, now: u64) {
        self.heard(now);
        if text.len() > LARGEST_MESSAGE {
            return self.count_nonsense("oversized messages");
        }
        let Ok(message) = RelayMessage::from_json(text.as_bytes()) else {
            return self.count_nonsense("messages that are no protocol");
        };
        match message {
            RelayMessage::Event {
                subscription_id,
                event,
            } => self.event(subscription_id.as_str(), event.into_owned(), now),
            RelayMessage::Ok {
                event_id,
                status,
                message,
            } => self.ok(event_id, status, &message, now),
            RelayMessage::EndOfStoredEvents(subscription) => {
                self.stored_end(subscription.as_str(), now)
            }
            RelayMessage::Closed {
                subscription_id,
                message,
            } => self.refused(subscription_id.as_str(), &message, now),
            RelayMessage::Auth { challenge } => self.challenge(&challenge, now),
            RelayMessage::Notice(text) => {
                let text: String = text.chars().take(200).collect();
                tracing::debug!(relay = self.url, text, "notice");
            }
            _ => {}
        }
        self.tick(now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64) {
        match self.link {
            Link::Down { retry_at } if retry_at <= now => {
                self.link = Link::Connecting { since: now };
                self.actions.push_back(Action::Connect);
            }
            Link::Connecting { since } if since + CONNECT_TIMEOUT <= now => {
                self.actions
                    .push_back(Action::Close("no connection in time"));
                self.closed(now);
            }
            Link::Up { .. } => self.tick_up(now),
            _ => {}
        }
    }

    /// When to call [`Machine::tick`] again, if nothing happens before.
    pub fn deadline(&self) -> u64 {
        match self.link {
            Link::Down { retry_at } => retry_at,
            Link::Connecting { since } => since + CONNECT_TIMEOUT,
            Link::Up { .. } => {
                let quiet = match self.pinged {
                    false => QUIET_BEFORE_PING,
                    true => QUIET_BEFORE_CLOSE,
                };
                let full = self.sent() >= IN_FLIGHT;
                let outgoing = self.outgoing.values().filter_map(|o| match o.state {
                    OutgoingState::Due(at) if !full => Some(at),
                    OutgoingState::Sent(at) => Some(at + OK_TIMEOUT),
                    _ => None,
                });
                let subscriptions = self.subscriptions.values().filter_map(|s| match s.state {
                    SubscriptionState::Due(at) => Some(at),
                    _ => None,
                });
                let next = outgoing.chain(subscriptions).min();
                next.unwrap_or(u64::MAX).min(self.last_heard + quiet)
            }
        }
    }

    fn sent(&self) -> usize {
        let sent = |outgoing: &&Outgoing| matches!(outgoing.state, OutgoingState::Sent(_));
        self.outgoing.values().filter(sent).count()
    }

    fn tick_up(&mut self, now: u64) {
        let quiet = now.saturating_sub(self.last_heard);
        if quiet >= QUIET_BEFORE_CLOSE {
            return self.give_up("nothing heard for too long", now);
        }
        if quiet >= QUIET_BEFORE_PING && !self.pinged {
            self.pinged = true;
            self.actions.push_back(Action::Ping);
        }
        let due = |state| matches!(state, SubscriptionState::Due(at) if at <= now);
        let names: Vec<String> = self
            .subscriptions
            .iter()
            .filter(|(_, subscription)| due(subscription.state))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.ask(&name, now);
        }
        let late =
            |o: &Outgoing| matches!(o.state, OutgoingState::Sent(at) if at + OK_TIMEOUT <= now);
        if self.outgoing.values().any(|o| late(o) && o.tries >= 3) {
            return self.give_up("it does not answer to events", now);
        }
        let mut room = IN_FLIGHT.saturating_sub(self.sent());
        for id in &self.order {
            let Some(outgoing) = self.outgoing.get_mut(id) else {
                continue;
            };
            let again = late(outgoing);
            let due = matches!(outgoing.state, OutgoingState::Due(at) if at <= now);
            if again || (due && room > 0) {
                room -= usize::from(due);
                outgoing.tries += 1;
                outgoing.state = OutgoingState::Sent(now);
                self.actions.push_back(Action::Send(outgoing.json.clone()));
            }
        }
    }

    /// Sends a subscription's request for the page that it is at.
    fn ask(&mut self, name: &str, now: u64) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let mut filter = subscription.filter.clone();
        if let Some(cursor) = subscription.cursor {
            let since = cursor.saturating_sub(OVERLAP);
            filter = filter.since(Timestamp::from(since)).limit(PAGE);
        }
        let filters = match subscription.page.until {
            // Older ones beside the new ones, which go on coming.
            Some(until) => vec![
                filter.clone().until(Timestamp::from(until)),
                filter.since(Timestamp::from(now / SECOND)),
            ],
            None => vec![filter],
        };
        subscription.state = SubscriptionState::Stored {
            asked: now / SECOND,
        };
        let request = ClientMessage::req(SubscriptionId::new(name), filters);
        self.actions.push_back(Action::Send(request.as_json()));
    }

    fn event(&mut self, name: &str, event: Event, now: u64) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        // Dates are what somebody claims: a cursor never gets ahead of the clock.
        let created = event.created_at.as_secs().min(now / SECOND);
        let page = &mut subscription.page;
        page.events += 1;
        page.newest = page.newest.max(created);
        page.oldest = Some(page.oldest.map_or(created, |oldest| oldest.min(created)));
        self.actions.push_back(Action::Deliver {
            subscription: name.to_string(),
            event: Box::new(event),
        });
        if subscription.state == SubscriptionState::Live {
            if let Some(cursor) = subscription.cursor.filter(|cursor| created > *cursor) {
                let to = created.max(cursor);
                subscription.cursor = Some(to);
                self.actions.push_back(Action::Cursor {
                    subscription: name.to_string(),
                    to,
                });
            }
        }
    }

    fn stored_end(&mut self, name: &str, now: u64) {
        let full = self.limits.max_limit.unwrap_or(PAGE).min(FULL_PAGE);
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let SubscriptionState::Stored { asked } = subscription.state else {
            return;
        };
        let page = subscription.page;
        subscription.page = Page::default();
        subscription.refusals = 0;
        let older = page
            .oldest
            .filter(|oldest| page.until.is_none_or(|until| *oldest < until));
        if let (Some(_), Some(oldest), true) = (subscription.cursor, older, page.events >= full) {
            // The newest came first, and the relay has stopped in the middle: the rest is older.
            subscription.page.until = Some(oldest);
            self.ask(name, now);
            return;
        }
        subscription.state = SubscriptionState::Live;
        if subscription.cursor.is_some_and(|cursor| cursor < asked) {
            subscription.cursor = Some(asked);
            self.actions.push_back(Action::Cursor {
                subscription: name.to_string(),
                to: asked,
            });
        }
        let once = subscription.once;
        self.actions.push_back(Action::StoredEnd {
            subscription: name.to_string(),
        });
        if once {
            self.unsubscribe(name);
        }
    }

    /// The relay has ended a subscription.
    fn refused(&mut self, name: &str, reason: &str, now: u64) {
        let authenticated = self.authenticated;
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        subscription.page = Page::default();
        subscription.refusals += 1;
        let brief: String = reason.chars().take(200).collect();
        tracing::debug!(
            relay = self.url,
            subscription = name,
            reason = brief,
            "closed"
        );
        if subscription.once && subscription.refusals > 3 {
            self.subscriptions.remove(name);
            self.actions.push_back(Action::StoredEnd {
                subscription: name.to_string(),
            });
            return;
        }
        subscription.state = if reason.starts_with("auth-required:") && !authenticated {
            SubscriptionState::NeedsAuth
        } else {
            let wait = (5 * SECOND) << subscription.refusals.min(6);
            SubscriptionState::Due(now + wait.min(LONGEST_RETRY))
        };
    }

    fn ok(&mut self, id: EventId, accepted: bool, message: &str, now: u64) {
        if self.auth == Some(id) {
            return self.auth_answered(accepted, message, now);
        }
        let authenticated = self.authenticated;
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let retry = |wait: u64, tries: u32| {
            let wait = (wait << tries.min(6)).min(LONGEST_RETRY);
            OutgoingState::Due(now + wait)
        };
        let tries = outgoing.tries;
        let again = match message {
            _ if accepted || message.starts_with("duplicate:") => None,
            _ if message.starts_with("auth-required:") && !authenticated => {
                Some(OutgoingState::NeedsAuth)
            }
            _ if message.starts_with("rate-limited:") && tries < 20 => {
                Some(retry(5 * SECOND, tries))
            }
            _ if message.starts_with("error:") && tries < 5 => Some(retry(5 * SECOND, tries)),
            _ => None,
        };
        match again {
            Some(state) if outgoing.keep == Keep::Until => outgoing.state = state,
            _ => {
                let accepted = accepted || message.starts_with("duplicate:");
                self.outgoing.remove(&id);
                self.order.retain(|other| *other != id);
                let outcome = match accepted {
                    true => Outcome::Accepted,
                    false => Outcome::Rejected(message.chars().take(200).collect()),
                };
                self.actions.push_back(Action::Settled { id, outcome });
            }
        }
    }

    fn challenge(&mut self, challenge: &str, now: u64) {
        self.challenges += 1;
        if self.challenges > AUTH_CHALLENGES {
            return self.give_up("endless AUTH challenges", now);
        }
        if self.challenges > AUTH_ANSWERS || challenge.len() > 1024 {
            return;
        }
        // Kind 22242 of NIP-42.
        let event = EventBuilder::new(Kind::from_u16(22242), "")
            .tags([
                Tag::custom("relay", [self.url.as_str()]),
                Tag::custom("challenge", [challenge]),
            ])
            .custom_created_at(Timestamp::from(now / SECOND))
            .finalize(&self.keys);
        match event {
            Ok(event) => {
                self.auth = Some(event.id);
                let answer = ClientMessage::auth(event).as_json();
                self.actions.push_back(Action::Send(answer));
            }
            Err(err) => tracing::warn!(relay = self.url, error = %err, "cannot sign for AUTH"),
        }
    }

    fn auth_answered(&mut self, accepted: bool, message: &str, now: u64) {
        self.auth = None;
        self.authenticated = accepted;
        let wait = if accepted { 0 } else { 60 * SECOND };
        if !accepted {
            let reason: String = message.chars().take(200).collect();
            tracing::warn!(
                relay = self.url,
                reason,
                "the relay does not authenticate us"
            );
        }
        for subscription in self.subscriptions.values_mut() {
            if subscription.state == SubscriptionState::NeedsAuth {
                subscription.state = SubscriptionState::Due(now + wait);
            }
        }
        for outgoing in self.outgoing.values_mut() {
            if outgoing.state == OutgoingState::NeedsAuth {
                outgoing.state = OutgoingState::Due(now + wait);
            }
        }
    }

    fn count_nonsense(&mut self, reason: &'static str) {
        self.nonsense += 1;
        if self.nonsense > NONSENSE {
            let now = self.last_heard;
            self.give_up(reason, now);
        }
    }

    fn give_up(&mut self, reason: &'static str, now: u64) {
        self.actions.push_back(Action::Close(reason));
        self.closed(now);
    }

    fn next_random(&mut self) -> u64 {
        // xorshift64: spreading reconnections needs no more.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
