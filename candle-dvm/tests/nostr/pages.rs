//! Stores that do not fit into one answer, played through without a relay.

use super::machine::{actions, event, say, up, START};
use candle_dvm::relay::machine::{Action, Machine};
use candle_dvm::relay::RelayLimits;
use nostr::prelude::{
    ClientMessage, Event, EventId, Filter, MatchEventOptions, RelayMessage, SubscriptionId,
};
use serde_json::{json, Value};
use std::collections::BTreeSet;

const NOW: u64 = START / 1000;

/// An event in a store: one that reads, or one that does not.
enum Stored {
    Good(Box<Event>),
    Bad(u64, Value),
}

impl Stored {
    fn good(created: u64) -> Self {
        Self::Good(Box::new(event(created)))
    }

    /// As relays let in that do not look at tags.
    fn bad(created: u64) -> Self {
        let mut value = serde_json::to_value(event(created)).unwrap();
        value["tags"] = json!([[]]);
        Self::Bad(created, value)
    }

    fn created(&self) -> u64 {
        match self {
            Self::Good(event) => event.created_at.as_secs(),
            Self::Bad(created, _) => *created,
        }
    }

    fn fits(&self, filter: &Filter) -> bool {
        let at = |time: Option<nostr::prelude::Timestamp>| time.map(|time| time.as_secs());
        let created = self.created();
        let dated = at(filter.since).is_none_or(|since| since <= created)
            && at(filter.until).is_none_or(|until| created <= until);
        match self {
            Self::Good(event) => filter.match_event(event, MatchEventOptions::default()),
            Self::Bad(..) => dated && filter.generic_tags.is_empty(),
        }
    }
}

/// Plays a relay that gives at most `most` events for a filter, the newest first, and closes requests with larger limits than `largest`.
/// Returns what was delivered, in how many requests, and the last cursor.
fn fetch(
    machine: &mut Machine,
    store: &[Stored],
    most: usize,
    largest: usize,
) -> (BTreeSet<EventId>, usize, u64) {
    machine.subscribe("jobs", Filter::new(), Some(NOW - 3600), false, START);
    let (mut delivered, mut requests, mut cursor) = (BTreeSet::new(), 0, 0);
    let mut now = START;
    loop {
        let todo = actions(machine);
        if todo.is_empty() {
            return (delivered, requests, cursor);
        }
        for action in todo {
            match action {
                Action::Deliver {
                    subscription,
                    event,
                } => {
                    assert_eq!(subscription, "jobs");
                    delivered.insert(event.id);
                }
                Action::Cursor { to, .. } => cursor = to,
                Action::StoredEnd { .. } => assert_eq!(cursor, NOW, "with the last page"),
                Action::Send(text) => {
                    let message = ClientMessage::from_json(text).unwrap();
                    let ClientMessage::Req {
                        subscription_id,
                        filters,
                    } = message
                    else {
                        continue;
                    };
                    requests += 1;
                    assert!(requests < 100, "it never ends");
                    let name: SubscriptionId = subscription_id.into_owned();
                    if filters.iter().any(|f| f.limit > Some(largest)) {
                        let closed = RelayMessage::closed(name, "invalid: limit too high");
                        say(machine, closed, now);
                        continue;
                    }
                    for filter in filters {
                        let mut fits: Vec<_> = store.iter().filter(|e| e.fits(&filter)).collect();
                        fits.sort_by_key(|stored| std::cmp::Reverse(stored.created()));
                        fits.truncate(filter.limit.unwrap_or(usize::MAX).min(most));
                        for stored in fits {
                            match stored {
                                Stored::Good(event) => {
                                    let event = (**event).clone();
                                    say(machine, RelayMessage::event(name.clone(), event), now);
                                }
                                Stored::Bad(_, value) => {
                                    let frame = json!(["EVENT", name, value]).to_string();
                                    machine.receive(&frame, now);
                                }
                            }
                        }
                    }
                    now += 1;
                    say(machine, RelayMessage::eose(name), now);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn ids(store: &[Stored]) -> BTreeSet<EventId> {
    let good = store.iter().filter_map(|stored| match stored {
        Stored::Good(event) => Some(event.id),
        Stored::Bad(..) => None,
    });
    good.collect()
}

#[test]
fn a_second_with_more_events_than_a_page_hides_nothing() {
    let mut store: Vec<Stored> = (0..600).map(|_| Stored::good(NOW - 100)).collect();
    store.extend((0..3).map(|n| Stored::good(NOW - 200 - n)));
    let (delivered, requests, cursor) = fetch(&mut up(), &store, 5000, 5000);
    assert_eq!(delivered, ids(&store));
    assert_eq!(cursor, NOW);
    assert!(requests <= 5, "{requests}");
}

#[test]
fn a_second_with_more_events_than_the_relay_gives_hides_nothing_older_and_nothing_for_us() {
    for largest in [500, 5000] {
        let mut machine = up();
        let limits = RelayLimits {
            max_limit: (largest == 500).then_some(500),
            ..RelayLimits::default()
        };
        machine.set_limits(limits);
        let mut store: Vec<Stored> = (0..1200).map(|_| Stored::good(NOW - 100)).collect();
        let older: Vec<Stored> = (0..3).map(|n| Stored::good(NOW - 101 - n)).collect();
        let expected = ids(&older);
        store.extend(older);
        let (delivered, _, cursor) = fetch(&mut machine, &store, 500, largest);
        assert!(delivered.is_superset(&expected));
        assert_eq!((delivered.len(), cursor), (503, NOW));
    }
}

#[test]
fn older_events_are_fetched_from_a_relay_that_refuses_a_large_limit() {
    let mut store: Vec<Stored> = (0..600).map(|_| Stored::good(NOW - 100)).collect();
    store.extend((0..3).map(|n| Stored::good(NOW - 200 - n)));
    let (delivered, ..) = fetch(&mut up(), &store, 500, 500);
    assert!(delivered.is_superset(&ids(&store[600..])));
}

#[test]
fn events_that_cannot_be_read_hide_nothing() {
    for same_second in [true, false] {
        let date = |n: u64| {
            if same_second {
                NOW - 100
            } else {
                NOW - 100 - n / 100
            }
        };
        let mut store: Vec<Stored> = (0..520).map(|n| Stored::bad(date(n))).collect();
        store.extend((0..3).map(|n| Stored::good(NOW - 200 - n)));
        let (delivered, ..) = fetch(&mut up(), &store, 500, 5000);
        assert_eq!(delivered, ids(&store));
    }
}

#[test]
fn a_page_that_never_ends_is_retried_and_a_second_is_skipped() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), Some(NOW - 3600), false, START);
    let asked = |machine: &mut Machine| -> Vec<Option<u64>> {
        let sent = super::machine::sent(machine);
        let until = sent.iter().filter_map(|message| match message {
            ClientMessage::Req { filters, .. } => Some(filters[0].until.map(|at| at.as_secs())),
            _ => None,
        });
        until.collect()
    };
    assert_eq!(asked(&mut machine), [None]);
    let fill = |machine: &mut Machine, name: &str, now: u64| {
        let name = SubscriptionId::new(name);
        for _ in 0..200 {
            let same = RelayMessage::event(name.clone(), event(NOW - 100));
            say(machine, same, now);
        }
        say(machine, RelayMessage::eose(name), now);
    };
    fill(&mut machine, "jobs", START);
    assert_eq!(asked(&mut machine), [Some(NOW - 100)]);
    fill(&mut machine, "jobs-older", START);
    assert_eq!(
        asked(&mut machine),
        [Some(NOW - 100)],
        "now the second alone"
    );
    machine.heard(START + 20_000);
    machine.tick(START + 20_000);
    assert_eq!(asked(&mut machine), [Some(NOW - 101)], "no answer came");
    let mut again = 0;
    for second in 21..200 {
        machine.heard(START + 1000 * second);
        machine.tick(START + 1000 * second);
        again += asked(&mut machine).len();
    }
    assert!((1..=3).contains(&again), "{again}");
    assert!(machine.is_up());
}

#[test]
fn events_of_strangers_do_not_close_the_connection_whatever_is_in_them() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), Some(NOW), false, START);
    let Stored::Bad(_, value) = Stored::bad(NOW) else {
        unreachable!("it is bad");
    };
    let unread = json!(["EVENT", "jobs", value]).to_string();
    let large = json!(["EVENT", "jobs", { "content": "x".repeat(600_000), "created_at": NOW }]);
    let large = large.to_string();
    for n in 0..1100 {
        machine.receive(&unread, START + n);
        machine.receive(&large, START + n);
    }
    assert!(machine.is_up());
    for n in 0..1100 {
        machine.receive("[\"EVENT\",\"jobs\"]", START + n);
    }
    assert!(!machine.is_up(), "an EVENT message without an event");
}
