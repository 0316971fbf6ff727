//! Subscriptions: a relay returns its stored events first, newest first, then new ones. `pages` fetches the stored events that do not fit
//! in one answer.

use super::pages::Older;
use super::{Action, Machine, LONGEST_RETRY, SECOND};
use nostr::prelude::{ClientMessage, Event, Filter, SubscriptionId, Timestamp};

/// Events of one page of the store.
const PAGE: usize = 500;
/// A page with fewer events than this was the last one, unless the relay names a smaller limit.
const FULL_PAGE: usize = 100;
/// Seconds by which a subscription starts before the cursor: clocks differ, and relays have delays.
pub const OVERLAP: u64 = 600;

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) filter: Filter,
    /// For subscriptions that continue from a cursor; in seconds.
    pub(super) cursor: Option<u64>,
    /// Whether it ends with what is stored.
    once: bool,
    state: SubscriptionState,
    refusals: u32,
    /// The stored events received so far.
    page: Page,
    /// The older stored events that are being fetched.
    pub(super) older: Option<Older>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubscriptionState {
    /// To be sent when this time has come.
    Due(u64),
    /// Refused as long as we are not authenticated. To be sent again when we are, or at this time: not every relay says that we are.
    NeedsAuth(u64),
    /// Sent; the relay reads its store, as of that date in seconds.
    Stored { asked: u64 },
    /// Everything stored is here.
    Live,
}

impl SubscriptionState {
    pub(super) fn due_at(self) -> Option<u64> {
        match self {
            Self::Due(at) | Self::NeedsAuth(at) => Some(at),
            Self::Stored { .. } | Self::Live => None,
        }
    }
}

/// Events of one answer: how many, and the oldest one's date, which is never ahead of ours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub(super) events: usize,
    pub(super) oldest: Option<u64>,
}

impl Page {
    pub(super) fn count(&mut self, created: Option<u64>) {
        self.events += 1;
        self.oldest = self.oldest.into_iter().chain(created).min();
    }
}

impl Subscription {
    /// As on a new connection.
    pub(super) fn restart(&mut self, now: u64) {
        self.state = SubscriptionState::Due(now);
        self.page = Page::default();
        self.older = None;
    }

    /// Whether the relay has to answer a request.
    pub(super) fn owes_answer(&self) -> bool {
        let asked = |state| matches!(state, SubscriptionState::Stored { .. });
        asked(self.state) || self.older.as_ref().is_some_and(|older| asked(older.state))
    }

    pub(super) fn states(&mut self) -> impl Iterator<Item = &mut SubscriptionState> {
        let older = self.older.as_mut().map(|older| &mut older.state);
        std::iter::once(&mut self.state).chain(older)
    }

    /// From which date on it asks.
    pub(super) fn since(&self) -> Option<u64> {
        self.cursor.map(|cursor| cursor.saturating_sub(OVERLAP))
    }
}

/// When something that was refused this often is tried again.
pub(super) fn refused_until(refusals: u32, now: u64) -> u64 {
    now + ((5 * SECOND) << refusals.min(6)).min(LONGEST_RETRY)
}

impl Machine {
    /// Sends the requests that are due.
    pub(super) fn ask_due(&mut self, now: u64) {
        let due = |state: SubscriptionState| state.due_at().is_some_and(|at| at <= now);
        let names: Vec<String> = self
            .subscriptions
            .iter()
            .filter(|(_, subscription)| due(subscription.state))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.ask(&name);
        }
        self.ask_older_due(now);
    }

    /// When the next of them is.
    pub(super) fn next_ask(&self) -> Option<u64> {
        let due = self.subscriptions.values().flat_map(|s| {
            let older = s.older.as_ref().map(Older::due_at);
            s.state.due_at().into_iter().chain(older)
        });
        due.min()
    }

    /// Number of events per request.
    pub(super) fn page_limit(&self) -> usize {
        self.limits.max_limit.unwrap_or(PAGE).min(PAGE)
    }

    /// Number of events of an answer that may be incomplete.
    pub(super) fn full_page(&self) -> usize {
        self.page_limit().min(FULL_PAGE)
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
        if self.gone.is_some() {
            let subscription = name.to_string();
            return self.actions.push_back(Action::StoredEnd { subscription });
        }
        self.subscriptions.insert(
            name.to_string(),
            Subscription {
                filter,
                cursor,
                once,
                state: SubscriptionState::Due(0),
                refusals: 0,
                page: Page::default(),
                older: None,
            },
        );
        self.tick(now);
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, name: &str) {
        if let Some(subscription) = self.subscriptions.remove(name) {
            self.close(name);
            if subscription.older.is_some() {
                self.close(&super::pages::name_of_older(name));
            }
        }
    }

    pub(super) fn close(&mut self, name: &str) {
        if self.is_up() {
            let close = ClientMessage::close(SubscriptionId::new(name));
            self.actions.push_back(Action::Send(close.as_json()));
        }
    }

    /// Sends a subscription's request.
    fn ask(&mut self, name: &str) {
        let most = self.page_limit();
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let mut filter = subscription.filter.clone();
        if let Some(since) = subscription.since() {
            filter = filter.since(Timestamp::from(since)).limit(most);
        }
        subscription.state = SubscriptionState::Stored { asked: self.date };
        let request = ClientMessage::req(SubscriptionId::new(name), vec![filter]);
        self.actions.push_back(Action::Send(request.as_json()));
    }

    pub(super) fn event(&mut self, name: &str, event: Event) {
        let created = event.created_at.as_secs();
        let Some(subscription) = self.count_event(name, Some(created)) else {
            return;
        };
        self.actions.push_back(Action::Deliver {
            subscription: subscription.clone(),
            event: Box::new(event),
        });
        self.advance(&subscription, created);
    }

    /// An event that cannot be read.
    pub(super) fn unread_event(&mut self, name: &str, created: Option<u64>) {
        tracing::debug!(relay = self.url, subscription = name, "unreadable event");
        self.count_event(name, created);
    }

    /// Counts an event where it belongs. Returns the subscription's name, if there is one.
    fn count_event(&mut self, name: &str, created: Option<u64>) -> Option<String> {
        // Dates are claims of their authors: a page's is never ahead of the clock.
        let date = self.date;
        let created = created.map(|created| created.min(date));
        if let Some(subscription) = self.subscriptions.get_mut(name) {
            subscription.page.count(created);
            return Some(name.to_string());
        }
        self.count_older(name, created)
    }

    /// A new event moves the cursor, unless older ones are still to come.
    fn advance(&mut self, name: &str, created: u64) {
        let created = created.min(self.date);
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let at_end = subscription.state == SubscriptionState::Live && subscription.older.is_none();
        if at_end && subscription.cursor.is_some_and(|cursor| cursor < created) {
            subscription.cursor = Some(created);
            self.actions.push_back(Action::Cursor {
                subscription: name.to_string(),
                to: created,
            });
        }
    }

    pub(super) fn stored_end(&mut self, name: &str, now: u64) {
        let full = self.full_page();
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return self.older_end(name, now);
        };
        self.has_answered = true;
        let SubscriptionState::Stored { asked } = subscription.state else {
            return;
        };
        let page = std::mem::take(&mut subscription.page);
        subscription.refusals = 0;
        subscription.state = SubscriptionState::Live;
        let since = subscription.since();
        match (page.oldest, since) {
            // The newest came first, and the relay has stopped in the middle: the rest is older.
            (Some(oldest), Some(since)) if page.events >= full && oldest >= since => {
                subscription.older = Some(Older::before(oldest, asked, now));
                self.ask_older_due(now);
            }
            _ => self.all_stored(name, asked),
        }
    }

    /// Everything that was stored at a date is here.
    pub(super) fn all_stored(&mut self, name: &str, asked: u64) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let once = subscription.once;
        if let Some(cursor) = subscription.cursor.as_mut().filter(|at| **at < asked) {
            *cursor = asked;
            self.actions.push_back(Action::Cursor {
                subscription: name.to_string(),
                to: asked,
            });
        }
        self.actions.push_back(Action::StoredEnd {
            subscription: name.to_string(),
        });
        if once {
            self.unsubscribe(name);
        }
    }

    /// The relay has ended a subscription.
    pub(super) fn refused(&mut self, name: &str, reason: &str, now: u64) {
        let brief: String = reason.chars().take(200).collect();
        tracing::debug!(
            relay = self.url,
            subscription = name,
            reason = brief,
            "closed"
        );
        let auth = reason.starts_with("auth-required:") && !self.authenticated;
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return self.older_refused(name, auth, now);
        };
        subscription.restart(now);
        subscription.refusals += 1;
        if subscription.once && subscription.refusals > 3 {
            self.subscriptions.remove(name);
            self.actions.push_back(Action::StoredEnd {
                subscription: name.to_string(),
            });
            return;
        }
        let at = refused_until(subscription.refusals, now);
        subscription.state = if auth {
            SubscriptionState::NeedsAuth(at)
        } else {
            SubscriptionState::Due(at)
        };
    }
}
