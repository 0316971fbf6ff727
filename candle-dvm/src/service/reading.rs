//! Reading requests: from where on each relay, and what that says about our clock.

use super::actor::{Service, JOBS};
use super::inbox::customer;
use super::now;
use crate::relay::driver::Command;
use crate::Result;
use nostr::prelude::{Event, Filter, Kind};
use std::sync::atomic::Ordering::Relaxed;
use web_time::Instant;

/// The state of reading the requests of a relay.
pub(super) struct Reading {
    /// Requests dated earlier were made before our first start.
    since: u64,
    /// Whether everything stored is here.
    is_live: bool,
}

impl Service {
    /// Subscribes to requests on the configured relays. `at` is the earliest possible time by the right clock; on a relay that is new, only
    /// requests of `since` and after are for us.
    pub(super) fn read_relays(&mut self, at: u64, since: u64) -> Result<()> {
        let jobs = Filter::new().kinds(
            self.offers
                .kinds()
                .iter()
                .map(|kind| Kind::from_u16(kind.request())),
        );
        for url in self.settings.relays.clone() {
            let found = self.journal.begin(&url, at, since)?;
            if found.ahead > 0 {
                tracing::warn!(
                    relay = url,
                    seconds = found.ahead,
                    "the saved read position is in the future: this machine's clock was ahead; requests from that interval may be lost"
                );
            }
            let reading = Reading {
                since: found.since,
                is_live: false,
            };
            self.readings.insert(url.clone(), reading);
            self.relays.send(
                &url,
                Command::Subscribe {
                    name: JOBS.to_string(),
                    filter: Box::new(jobs.clone()),
                    cursor: Some(found.cursor),
                    once: false,
                },
            );
        }
        Ok(())
    }

    /// A relay has sent all requests that it had stored, or the connection has ended.
    pub(super) fn set_live(&mut self, url: &str, is_live: bool) {
        if let Some(reading) = self.readings.get_mut(url) {
            reading.is_live = is_live;
        }
    }

    /// Whether a request was made after the first start here: subscriptions begin a while before it, because clocks differ. A request that
    /// arrives while we listen is new whatever its date, which is compared with our clock.
    pub(super) fn is_for_us_to_read(&mut self, url: &str, event: &Event) -> bool {
        let Some(reading) = self.readings.get(url) else {
            return true;
        };
        let created = event.created_at.as_secs();
        if reading.is_live {
            self.clock.request(customer(event), created, now());
        }
        reading.is_live || created >= reading.since
    }

    /// Says what is wrong with the clock and the relays, when it comes up and when it is over.
    pub(super) fn look_around(&mut self) -> Result<()> {
        let at = Instant::now();
        if let Some(set) = self.clock.set(now(), at) {
            tracing::warn!(
                seconds = set.by,
                "the clock was set back: querying relays again"
            );
            self.read_relays(set.since, set.since)?;
        }
        match self.clock.news() {
            Some(0) => tracing::info!("this machine's clock is correct again"),
            Some(ahead) => tracing::warn!(
                seconds = ahead.unsigned_abs(),
                "this machine's clock is {} the clocks of relays and customers: requests are missed or refused until it is corrected",
                if ahead > 0 { "ahead of" } else { "behind" }
            ),
            None => {}
        }
        self.metrics.clock_ahead.store(self.clock.ahead(), Relaxed);
        let none = self.reachable.none(self.relays.own());
        self.metrics.unreachable.store(none, Relaxed);
        if let Some(reasons) = self.reachable.news(self.relays.own(), at) {
            tracing::warn!(reasons, "no relay is reachable; retrying");
        }
        Ok(())
    }
}
