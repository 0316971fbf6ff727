//! Fetches the events that are older than a relay's first answer: page by page, each older than the last, while the subscription continues
//! with new events.
//!
//! A page begins with the second that ended the last one, since the relay may have stopped within it. A second that fills a whole page is
//! requested separately, up to the relay's limit, and once more for events addressed to us; then older events follow. Unreadable events
//! count like others: the relay accepted them.

use super::subscriptions::{refused_until, Page, SubscriptionState};
use super::{Action, Machine, SECOND};
use nostr::prelude::{ClientMessage, Filter, SubscriptionId, Timestamp};

/// Events of one second per request, if a relay publishes no limit.
const SECOND_PAGE: usize = 5000;
/// Time without an answer to a page, or to a second, after which it is requested again or skipped.
const PAGE_TIMEOUT: u64 = 60 * SECOND;
const SECOND_TIMEOUT: u64 = 20 * SECOND;

#[derive(Debug)]
pub(super) struct Older {
    pub(super) state: SubscriptionState,
    /// The page goes up to here, in seconds, and this one belongs to it.
    until: u64,
    /// Number of events of the page before, if this one is of the second `until` alone.
    within: Option<usize>,
    page: Page,
    refusals: u32,
    sent: u64,
    /// The date up to which the subscription is complete when these pages are.
    asked: u64,
}

impl Older {
    pub(super) fn before(until: u64, asked: u64, now: u64) -> Self {
        Self {
            state: SubscriptionState::Due(now),
            until,
            within: None,
            page: Page::default(),
            refusals: 0,
            sent: now,
            asked,
        }
    }

    pub(super) fn due_at(&self) -> u64 {
        let timeout = match self.within {
            Some(_) => SECOND_TIMEOUT,
            None => PAGE_TIMEOUT,
        };
        self.state.due_at().unwrap_or(self.sent + timeout)
    }
}

const SUFFIX: &str = "-older";

/// The subscription id of the pages of subscription `name`.
pub(super) fn name_of_older(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

impl Machine {
    /// The pages that the relay knows by a name, and the subscription's name.
    fn older<'a>(&mut self, name: &'a str) -> Option<(&'a str, &mut Older)> {
        let base = name.strip_suffix(SUFFIX)?;
        let subscription = self.subscriptions.get_mut(base)?;
        Some((base, subscription.older.as_mut()?))
    }

    /// Sends the requests that are due, and continues where the relay does not answer.
    pub(super) fn ask_older_due(&mut self, now: u64) {
        let due = |older: &Older| older.due_at() <= now;
        let names: Vec<String> = self
            .subscriptions
            .iter()
            .filter(|(_, s)| s.older.as_ref().is_some_and(due))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let of_older = name_of_older(&name);
            let asked = |s: SubscriptionState| matches!(s, SubscriptionState::Stored { .. });
            match self.older(&of_older) {
                Some((_, older)) if asked(older.state) => self.older_refused(&of_older, false, now),
                _ => self.ask_older(&name, now),
            }
        }
    }

    fn ask_older(&mut self, name: &str, now: u64) {
        let us = self.keys.public_key();
        let most = self.limits.max_limit.unwrap_or(SECOND_PAGE);
        let page = self.page_limit();
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return;
        };
        let since = subscription.since().unwrap_or(0);
        let filter = subscription.filter.clone();
        let Some(older) = &mut subscription.older else {
            return;
        };
        older.state = SubscriptionState::Stored { asked: self.date };
        older.sent = now;
        older.page = Page::default();
        let until = Timestamp::from(older.until);
        let filters: Vec<Filter> = match older.within {
            Some(_) => {
                let second = filter.since(until).until(until).limit(most);
                vec![second.clone(), second.pubkey(us)]
            }
            None => vec![filter
                .since(Timestamp::from(since))
                .until(until)
                .limit(page)],
        };
        let request = ClientMessage::req(SubscriptionId::new(name_of_older(name)), filters);
        self.actions.push_back(Action::Send(request.as_json()));
    }

    /// Counts an event of a page. Returns the subscription's name, if there is one.
    pub(super) fn count_older(&mut self, name: &str, created: Option<u64>) -> Option<String> {
        let (name, older) = self.older(name)?;
        // Newer events were not requested.
        if created.is_none_or(|created| created <= older.until) {
            older.page.count(created);
        }
        Some(name.to_string())
    }

    /// The relay has sent a page.
    pub(super) fn older_end(&mut self, name: &str, now: u64) {
        let full = self.full_page();
        let given = self.page_limit();
        let url = self.url.clone();
        let Some((_, older)) = self.older(name) else {
            return;
        };
        older.refusals = 0;
        let (page, until) = (older.page, older.until);
        let next = match (older.within, page.oldest) {
            (Some(before), _) => {
                if before >= given && page.events <= before {
                    tracing::warn!(
                        relay = url,
                        second = until,
                        events = page.events,
                        "the relay may hold more requests for one second than it returns at once"
                    );
                }
                Some((until.checked_sub(1), None))
            }
            (None, Some(oldest)) if page.events >= full && oldest < until => {
                Some((Some(oldest), None))
            }
            (None, Some(_)) if page.events >= full => Some((Some(until), Some(page.events))),
            _ => None,
        };
        self.go_on(name, next, now);
    }

    /// Asks for the next page, given by its end and what [`Older::within`] says, or is done.
    fn go_on(&mut self, name: &str, next: Option<(Option<u64>, Option<usize>)>, now: u64) {
        let Some((base, _)) = self.older(name) else {
            return;
        };
        let base = base.to_string();
        let Some(subscription) = self.subscriptions.get_mut(&base) else {
            return;
        };
        let since = subscription.since().unwrap_or(0);
        let Some(older) = &mut subscription.older else {
            return;
        };
        match next {
            Some((Some(until), within)) if until >= since => {
                older.until = until;
                older.within = within;
                older.state = SubscriptionState::Due(now);
                self.ask_older(&base, now);
            }
            _ => {
                let asked = older.asked;
                subscription.older = None;
                self.close(name);
                self.all_stored(&base, asked);
            }
        }
    }

    /// The relay refuses a page, or says nothing.
    pub(super) fn older_refused(&mut self, name: &str, auth: bool, now: u64) {
        let Some((_, older)) = self.older(name) else {
            return;
        };
        if older.within.is_some() && !auth {
            // It may not like so large a limit. What is older is to be had all the same.
            let next = older.until.checked_sub(1);
            return self.go_on(name, Some((next, None)), now);
        }
        older.refusals += 1;
        let at = refused_until(older.refusals, now);
        older.state = if auth {
            SubscriptionState::NeedsAuth(at)
        } else {
            SubscriptionState::Due(at)
        };
    }
}
