//! The relays for answers in addition to our own: those that a request names, or else those that its customer reads (NIP-65).
//!
//! The customer's list is looked up concurrently with the job, which never waits for it. When the relays are known, they get all earlier
//! messages, an answer too: until then [`LATER`] represents them in the journal.

use super::actor::{Message, Service};
use super::now;
use super::recent::Cache;
use super::settings::Settings;
use crate::jobs::{Entry, JobId, Stage};
use crate::nip90::RELAY_LIST;
use crate::platform;
use crate::relay::{normal_url, Keep};
use crate::Result;
use nostr::prelude::{Event, Filter, Kind, PublicKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of relays used from a request or a relay list.
pub(super) const MOST_RELAYS: usize = 5;
/// Represents relays that are not known yet, instead of an address.
pub(super) const LATER: &str = "later";
/// Timeout of the search for a list.
const PATIENCE: Duration = Duration::from_secs(3);
/// Number of relay lists requested at the same time, in one subscription.
const BATCH: usize = 64;
/// Lists that may be wanted; beyond it answers go to our relays alone.
const WANTED: usize = 1024;
/// Lists that are remembered, and for how many seconds: one that was found, and that there is none.
const REMEMBERED: usize = 4096;
const FOUND: u64 = 600;
const ABSENT: u64 = 60;

/// Relay lists of customers: known ones, and those being looked up.
pub(super) struct RelayLists {
    known: Cache<PublicKey, Vec<String>>,
    wanted: BTreeMap<PublicKey, Vec<JobId>>,
    is_asking: bool,
}

impl Default for RelayLists {
    fn default() -> Self {
        Self {
            known: Cache::new(REMEMBERED),
            wanted: BTreeMap::new(),
            is_asking: false,
        }
    }
}

/// The usable part of a list of relays: the first few addresses that are not our own relays.
pub(super) fn usable(named: &[String], settings: &Settings) -> BTreeSet<String> {
    let mut relays = BTreeSet::new();
    for url in named.iter().filter_map(|url| normal_url(url).ok()) {
        if relays.len() < MOST_RELAYS && !settings.relays.contains(&url) {
            relays.insert(url);
        }
    }
    relays
}

/// The relays of an answer that are known.
pub(super) fn known(relays: &BTreeSet<String>) -> BTreeSet<String> {
    let known = relays.iter().filter(|relay| *relay != LATER);
    known.cloned().collect()
}

impl Service {
    /// The relays on which a job's customer wants the answers, of those known so far.
    pub(super) fn guests(
        &mut self,
        id: JobId,
        customer: PublicKey,
        named: &[String],
    ) -> BTreeSet<String> {
        if !named.is_empty() {
            return usable(named, &self.settings);
        }
        if let Some(list) = self.relay_lists.known.get(&customer, now()) {
            return usable(list, &self.settings);
        }
        if self.relay_lists.wanted.len() >= WANTED {
            return BTreeSet::new();
        }
        self.want_relays(id, customer);
        [LATER.to_string()].into()
    }

    fn want_relays(&mut self, id: JobId, customer: PublicKey) {
        let jobs = self.relay_lists.wanted.entry(customer).or_default();
        jobs.push(id);
    }

    /// An answer that was signed before a restart, and whose customer's relays were not known yet.
    pub(super) fn want_relays_again(&mut self, id: JobId, entry: &Entry) {
        let answer = entry.answer.as_ref();
        if answer.is_some_and(|answer| answer.pending.contains(LATER)) {
            if let Ok(request) = Event::from_json(entry.request.as_bytes()) {
                self.want_relays(id, request.pubkey);
            }
        }
    }

    /// Looks for the lists that are wanted, unless it does already: one question for all of them.
    pub(super) fn ask_relay_lists(&mut self) {
        let lists = &mut self.relay_lists;
        if lists.is_asking || lists.wanted.is_empty() {
            return;
        }
        lists.is_asking = true;
        let customers: Vec<PublicKey> = lists.wanted.keys().take(BATCH).copied().collect();
        let filter = Filter::new()
            .kind(Kind::from_u16(RELAY_LIST))
            .authors(customers.clone())
            .limit(2 * customers.len());
        let lookup = self.lookup();
        let messages = self.messages.clone();
        platform::spawn(async move {
            let most = 4 * customers.len();
            let found = lookup.stored(filter, None, PATIENCE, most).await;
            let list = |customer: PublicKey| {
                let theirs = found.iter().filter(|list| list.pubkey == customer);
                let newest = theirs.max_by_key(|list| list.created_at);
                (customer, newest.map_or(Vec::new(), read_relays))
            };
            let lists = customers.into_iter().map(list).collect();
            // The service may be gone.
            let _ = messages.unbounded_send(Message::RelayLists(lists));
        });
    }

    /// Lists were found; one that is empty is not there.
    pub(super) fn relay_lists(&mut self, found: Vec<(PublicKey, Vec<String>)>) -> Result<()> {
        self.relay_lists.is_asking = false;
        for (customer, list) in found {
            let holds = if list.is_empty() { ABSENT } else { FOUND };
            let relays = usable(&list, &self.settings);
            self.relay_lists.known.insert(customer, list, now() + holds);
            for id in self
                .relay_lists
                .wanted
                .remove(&customer)
                .into_iter()
                .flatten()
            {
                self.guests_found(id, &relays)?;
            }
        }
        Ok(())
    }

    /// A job's customer reads these relays: they get the earlier messages.
    fn guests_found(&mut self, id: JobId, relays: &BTreeSet<String>) -> Result<()> {
        if let Some(live) = self.live.get_mut(&id) {
            if live.guests.remove(LATER) {
                live.guests.extend(relays.iter().cloned());
                if let Some(event) = live.told.clone() {
                    self.publish_guests(relays, &event, Keep::Until);
                }
            }
            return Ok(());
        }
        let entry = self.journal.change(id, &mut |entry| {
            let Some(answer) = &mut entry.answer else {
                return false;
            };
            let waits = answer.pending.remove(LATER);
            if waits {
                answer.pending.extend(relays.iter().cloned());
                if answer.pending.is_empty() {
                    entry.stage = Stage::Done;
                }
            }
            waits
        })?;
        let Some(answer) = entry.and_then(|entry| entry.answer) else {
            return Ok(());
        };
        match Event::from_json(answer.body.as_bytes()) {
            Ok(event) => return self.deliver_to_guests(id, &event, relays),
            Err(err) => {
                tracing::error!(job = %id, error = %err, "cannot read an answer from the journal")
            }
        }
        Ok(())
    }

    pub(super) fn publish_guests(&mut self, relays: &BTreeSet<String>, event: &Event, keep: Keep) {
        for relay in &known(relays) {
            self.relays.publish_to(relay, event, keep);
        }
    }
}

fn read_relays(list: &Event) -> Vec<String> {
    list.tags
        .iter()
        .map(|tag| tag.as_slice())
        .filter(|tag| tag[0] == "r" && tag.get(2).is_none_or(|marker| marker == "read"))
        .filter_map(|tag| tag.get(1).cloned())
        .collect()
}
