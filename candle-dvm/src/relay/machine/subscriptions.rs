//! What the relay is asked for: one page of its store after the other, then what is new.

use super::{Action, Machine, LONGEST_RETRY, SECOND};
use nostr::prelude::{ClientMessage, Event, Filter, SubscriptionId, Timestamp};

/// Events of one page of the store.
const PAGE: usize = 500;
/// A page with fewer events than this was the last one, unless the relay names a smaller limit.
const FULL_PAGE: usize = 100;
/// How far before the cursor a subscription starts, in seconds: clocks differ, and relays take their time.
pub const OVERLAP: u64 = 600;

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) filter: Filter,
    /// For subscriptions that go on where they were; in seconds.
    pub(super) cursor: Option<u64>,
    /// Whether it ends with what is stored.
    pub(super) once: bool,
    pub(super) state: SubscriptionState,
    pub(super) refusals: u32,
    /// What the current page of the store has brought.
    pub(super) page: Page,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubscriptionState {
    /// To be sent when this time has come.
    Due(u64),
    /// Refused as long as we are not authenticated. To be sent again when we are, or at this time: not every relay says that we are.
    NeedsAuth(u64),
    /// Sent; the relay reads its store, as of that time in seconds.
    Stored { asked: u64 },
    /// Everything stored is here.
    Live,
}

impl SubscriptionState {
    fn due_at(self) -> Option<u64> {
        match self {
            Self::Due(at) | Self::NeedsAuth(at) => Some(at),
            Self::Stored { .. } | Self::Live => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub(super) events: usize,
    pub(super) oldest: Option<u64>,
    pub(super) newest: u64,
    /// The `until` with which it was asked for.
    pub(super) until: Option<u64>,
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
            self.ask(&name, now);
        }
    }

    /// When the next of them is.
    pub(super) fn next_ask(&self) -> Option<u64> {
        let due = self.subscriptions.values().map(|s| s.state.due_at());
        due.flatten().min()
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

    /// Sends a subscription's request for the page that it is at.
    pub(super) fn ask(&mut self, name: &str, now: u64) {
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

    pub(super) fn event(&mut self, name: &str, event: Event, now: u64) {
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

    pub(super) fn stored_end(&mut self, name: &str, now: u64) {
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
    pub(super) fn refused(&mut self, name: &str, reason: &str, now: u64) {
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
        let wait = (5 * SECOND) << subscription.refusals.min(6);
        let at = now + wait.min(LONGEST_RETRY);
        subscription.state = match reason.starts_with("auth-required:") && !authenticated {
            true => SubscriptionState::NeedsAuth(at),
            false => SubscriptionState::Due(at),
        };
    }
}
