//! The protocol with one relay, without sockets and clocks: the driver reports events and their times, and executes the machine's actions.
//!
//! Times are milliseconds of a monotonic clock with any origin; the date is set separately, by [`Machine::set_date`]. So setting the
//! system's clock does not end or freeze connections. After each call the driver takes the actions with [`Machine::next_action`], calls
//! [`Machine::tick`] no later than [`Machine::deadline`], and reads nothing before [`Machine::reads_from`].
//!
//! Each of `subscriptions` (with `pages`), `publications` and `authentication` has one side of it; `budget` bounds what a relay may have us
//! do.
//!
//! What is published with [`Keep::Until`] is sent until the relay has said yes or no, over as many connections as that takes, or until it
//! is clear that it never will: see `publications`.

mod authentication;
mod budget;
mod frame;
mod pages;
mod publications;
mod subscriptions;

use super::limits::RelayLimits;
use budget::Bucket;
use nostr::prelude::{Event, EventId, Keys, RelayMessage};
use publications::Outgoing;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use subscriptions::Subscription;

pub use budget::Budget;
pub use subscriptions::OVERLAP;

/// Larger messages are dropped unread. Relays that were tried take events of 300 KB; nothing here needs more.
pub const LARGEST_MESSAGE: usize = 512 * 1024;

const SECOND: u64 = 1000;
const FIRST_RETRY: u64 = SECOND;
const LONGEST_RETRY: u64 = 300 * SECOND;
/// Minimum duration of a connection after which the next retry is a quick one.
const STABLE: u64 = 60 * SECOND;
const CONNECT_TIMEOUT: u64 = 20 * SECOND;
const QUIET_BEFORE_PING: u64 = 45 * SECOND;
const QUIET_BEFORE_CLOSE: u64 = 90 * SECOND;
/// Number of messages on one connection that are not part of the protocol, before it is closed. Events never count, whatever they contain:
/// anyone can publish them, and the relay is not to blame.
const NONSENSE: u32 = 1000;

/// An action for the driver.
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
        /// The relay's response.
        outcome: Outcome,
    },
}

/// The outcome of publishing an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The relay has it.
    Accepted,
    /// It does not take it, for this reason.
    Rejected(String),
}

/// The importance of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the relay has answered.
    Until,
    /// Only if it can be sent at once: on the connection that is open or being opened, or as soon as the relay knows who we are.
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    Down { retry_at: u64 },
    Connecting { since: u64 },
    Up { since: u64 },
}

/// The protocol with one relay.
pub struct Machine {
    url: String,
    keys: Arc<Keys>,
    random: u64,
    /// The latest time that the driver reported, and the date, in seconds since 1970.
    now: u64,
    date: u64,
    link: Link,
    /// The reason why the relay can never be reached.
    gone: Option<String>,
    bucket: Bucket,
    failures: u32,
    last_heard: u64,
    pinged: bool,
    challenges: u32,
    /// The answer to a challenge that the relay has not said yes or no to, and when the latest was sent.
    auth: Option<EventId>,
    auth_sent: Option<u64>,
    authenticated: bool,
    nonsense: u32,
    /// Whether the relay has said yes or no to something on this connection.
    has_answered: bool,
    subscriptions: BTreeMap<String, Subscription>,
    outgoing: BTreeMap<EventId, Outgoing>,
    published: u64,
    singly_until: u64,
    restraint_until: u64,
    limits: RelayLimits,
    actions: VecDeque<Action>,
}

impl Machine {
    /// For the relay at `url`. `keys` answer its AUTH challenges; `seed` spreads reconnections.
    pub fn new(url: String, keys: impl Into<Arc<Keys>>, seed: u64) -> Self {
        Self {
            url,
            keys: keys.into(),
            random: seed | 1,
            now: 0,
            date: 0,
            gone: None,
            bucket: Bucket::new(Budget::OWN),
            link: Link::Down { retry_at: 0 },
            failures: 0,
            last_heard: 0,
            pinged: false,
            challenges: 0,
            auth: None,
            auth_sent: None,
            authenticated: false,
            nonsense: 0,
            has_answered: false,
            subscriptions: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            published: 0,
            singly_until: 0,
            restraint_until: 0,
            limits: RelayLimits::default(),
            actions: VecDeque::new(),
        }
    }

    /// With another budget than [`Budget::OWN`].
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.bucket = Bucket::new(budget);
        self
    }

    /// Says which date it is, in seconds since 1970. To be called before anything else, and again whenever time has passed.
    pub fn set_date(&mut self, seconds: u64) {
        self.date = seconds;
    }

    /// When the next message may be read: the relay has used up its budget.
    pub fn reads_from(&self) -> u64 {
        self.bucket.pause()
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a connection is open.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Number of publications without an answer.
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
        self.has_answered = false;
        self.bucket.connected();
        for subscription in self.subscriptions.values_mut() {
            subscription.restart(now);
        }
        self.due_again(now);
        self.tick(now);
    }

    /// Says that the relay can never be reached, for this reason. What waits for it is settled, and what comes later as well.
    pub fn unreachable(&mut self, reason: &str) {
        self.gone = Some(reason.chars().take(200).collect());
        self.link = Link::Down { retry_at: u64::MAX };
        self.reject_all(reason);
        for subscription in std::mem::take(&mut self.subscriptions).into_keys() {
            self.actions.push_back(Action::StoredEnd { subscription });
        }
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
        self.lost_in_flight();
    }

    /// Says that a pong or any other sign of life came.
    pub fn heard(&mut self, now: u64) {
        self.alive(now);
        self.pay(budget::OTHER, 0, now);
    }

    fn alive(&mut self, now: u64) {
        self.last_heard = now;
        self.pinged = false;
    }

    fn pay(&mut self, units: u64, bytes: usize, now: u64) {
        if self.bucket.pay(units, bytes, now) {
            tracing::warn!(
                relay = self.url,
                "the relay floods this client; reading it slowly"
            );
        }
    }

    /// Takes a message of the relay, whatever it is.
    pub fn receive(&mut self, text: &str, now: u64) {
        self.alive(now);
        let message = if text.len() <= LARGEST_MESSAGE {
            RelayMessage::from_json(text.as_bytes()).ok()
        } else {
            None
        };
        let Some(message) = message else {
            return self.unread(text, now);
        };
        let cost = match message {
            RelayMessage::Event { .. } => budget::EVENT,
            _ => budget::OTHER,
        };
        self.pay(cost, text.len(), now);
        match message {
            RelayMessage::Event {
                subscription_id,
                event,
            } => self.event(subscription_id.as_str(), event.into_owned()),
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
            RelayMessage::Notice(text) => self.notice(&text, now),
            _ => {}
        }
        self.tick(now);
    }

    /// A message that is too large, or that is none: it may be an event all the same, which counts where events are counted.
    fn unread(&mut self, text: &str, now: u64) {
        self.pay(budget::EVENT, text.len(), now);
        match frame::event_frame(text) {
            Some(event) => self.unread_event(&event.subscription, event.created),
            None => self.count_nonsense("invalid messages", now),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64) {
        self.now = now;
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
                let quiet = if self.pinged {
                    QUIET_BEFORE_CLOSE
                } else {
                    QUIET_BEFORE_PING
                };
                let next = self.next_ask().into_iter().chain(self.next_send()).min();
                next.unwrap_or(u64::MAX).min(self.last_heard + quiet)
            }
        }
    }

    fn tick_up(&mut self, now: u64) {
        let quiet = now.saturating_sub(self.last_heard);
        if quiet >= QUIET_BEFORE_CLOSE {
            return self.give_up("no message for too long", now);
        }
        if quiet >= QUIET_BEFORE_PING && !self.pinged {
            self.pinged = true;
            self.actions.push_back(Action::Ping);
        }
        self.ask_due(now);
        self.send_due(now);
    }

    fn count_nonsense(&mut self, reason: &'static str, now: u64) {
        self.nonsense += 1;
        if self.nonsense > NONSENSE {
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
