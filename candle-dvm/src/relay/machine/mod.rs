//! The protocol with one relay, without sockets and clocks: whoever drives it says what happened and when, and does what it is told.
//!
//! Times are milliseconds since 1970. After each call the driver takes the actions with [`Machine::next_action`], and calls
//! [`Machine::tick`] no later than [`Machine::deadline`].
//!
//! Each of `subscriptions`, `publications` and `authentication` has one side of it.
//!
//! What is published with [`Keep::Until`] is sent until the relay has said yes or no, over as many connections as that takes.

mod authentication;
mod publications;
mod subscriptions;

use super::limits::RelayLimits;
use nostr::prelude::{Event, EventId, Keys, RelayMessage};
use publications::{Outgoing, OutgoingState};
use std::collections::{BTreeMap, VecDeque};
use subscriptions::{Page, Subscription, SubscriptionState};

pub use subscriptions::OVERLAP;

/// Larger messages are dropped unread. Relays that were tried take events of 300 KB; nothing here needs more.
pub const LARGEST_MESSAGE: usize = 512 * 1024;

const SECOND: u64 = 1000;
const FIRST_RETRY: u64 = SECOND;
const LONGEST_RETRY: u64 = 300 * SECOND;
/// How long a connection has to last for the next retry to be a quick one.
const STABLE: u64 = 60 * SECOND;
const CONNECT_TIMEOUT: u64 = 20 * SECOND;
const QUIET_BEFORE_PING: u64 = 45 * SECOND;
const QUIET_BEFORE_CLOSE: u64 = 90 * SECOND;
/// Messages on one connection that are nothing of the protocol, before it is given up.
const NONSENSE: u32 = 1000;

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
    /// Only if it can be sent at once, or as soon as the relay knows who we are.
    Now,
}

#[derive(Debug, PartialEq)]
enum Link {
    Down { retry_at: u64 },
    Connecting { since: u64 },
    Up { since: u64 },
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
    /// The answer to a challenge that the relay has not said yes or no to, and when the latest was sent.
    auth: Option<EventId>,
    auth_sent: Option<u64>,
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
            auth_sent: None,
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

    /// Says that the connection is open.
    pub fn opened(&mut self, now: u64) {
        self.link = Link::Up { since: now };
        self.last_heard = now;
        self.pinged = false;
        self.challenges = 0;
        self.nonsense = 0;
        self.auth = None;
        self.auth_sent = None;
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
                let next = self.next_ask().into_iter().chain(self.next_send()).min();
                next.unwrap_or(u64::MAX).min(self.last_heard + quiet)
            }
        }
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
        self.ask_due(now);
        self.send_due(now);
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
