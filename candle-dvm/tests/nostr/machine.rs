//! The protocol with one relay, played through without one.

use candle_dvm::relay::machine::{Action, Keep, Machine, Outcome, LARGEST_MESSAGE};
use candle_dvm::relay::RelayLimits;
use nostr::prelude::{
    ClientMessage, Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, RelayMessage,
    SubscriptionId, Timestamp,
};

pub const START: u64 = 1_800_000_000_000;

fn machine() -> Machine {
    let mut machine = Machine::new("ws://127.0.0.1:1".to_string(), Keys::generate(), 7);
    machine.set_date(START / 1000);
    machine
}

pub fn actions(machine: &mut Machine) -> Vec<Action> {
    std::iter::from_fn(|| machine.next_action()).collect()
}

pub fn sent(machine: &mut Machine) -> Vec<ClientMessage<'static>> {
    let texts = actions(machine)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send(text) => Some(text),
            _ => None,
        });
    texts
        .map(|text| ClientMessage::from_json(text).unwrap())
        .collect()
}

pub fn up() -> Machine {
    let mut machine = machine();
    machine.tick(START);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    machine.opened(START);
    machine
}

pub fn event(created: u64) -> Event {
    EventBuilder::new(Kind::from_u16(5050), created.to_string())
        .custom_created_at(Timestamp::from(created))
        .finalize(&Keys::generate())
        .unwrap()
}

pub fn say(machine: &mut Machine, message: RelayMessage, now: u64) {
    machine.set_date(now / 1000);
    machine.receive(&message.as_json(), now);
}

#[test]
fn reconnections_take_longer_each_time_and_are_spread() {
    let waits = |seed| -> Vec<u64> {
        let mut machine = Machine::new("ws://a".to_string(), Keys::generate(), seed);
        let mut now = START;
        let mut waits = Vec::new();
        for _ in 0..12 {
            machine.tick(now);
            assert_eq!(actions(&mut machine), [Action::Connect]);
            machine.closed(now);
            waits.push(machine.deadline() - now);
            machine.tick(machine.deadline() - 1);
            assert!(actions(&mut machine).is_empty(), "not before its time");
            now = machine.deadline();
        }
        waits
    };
    let first = waits(1);
    assert!((500..=1000).contains(&first[0]), "{first:?}");
    assert!((150_000..=300_000).contains(&first[11]), "{first:?}");
    assert!(first[5] > first[1], "{first:?}");
    assert_ne!(first, waits(99));
}

#[test]
fn what_must_arrive_is_sent_until_it_is_answered() {
    let mut machine = up();
    let event = event(1);
    machine.publish(&event, Keep::Until, START);
    machine.publish(&event, Keep::Until, START);
    assert_eq!(sent(&mut machine).len(), 1, "once");
    machine.tick(START + 20_000);
    assert_eq!(sent(&mut machine).len(), 1, "again, after no answer");
    machine.closed(START + 21_000);
    let again = machine.deadline();
    machine.tick(again);
    machine.opened(again);
    assert_eq!(sent(&mut machine).len(), 1, "and on the next connection");
    say(
        &mut machine,
        RelayMessage::ok(event.id, false, "rate-limited: slow down"),
        again,
    );
    assert!(actions(&mut machine).is_empty());
    machine.tick(again + 60_000);
    assert_eq!(sent(&mut machine).len(), 1, "after a while");
    say(
        &mut machine,
        RelayMessage::ok(event.id, false, "duplicate: have it"),
        again + 60_000,
    );
    let settled = Action::Settled {
        id: event.id,
        outcome: Outcome::Accepted,
    };
    assert_eq!(actions(&mut machine), [settled]);
    assert_eq!(machine.unsettled(), 0);
}

#[test]
fn what_is_blocked_is_not_sent_again_and_what_is_late_is_dropped() {
    let mut machine = up();
    let event = event(1);
    machine.publish(&event, Keep::Until, START);
    actions(&mut machine);
    say(
        &mut machine,
        RelayMessage::ok(event.id, false, "blocked: go away"),
        START,
    );
    let outcome = Outcome::Rejected("blocked: go away".to_string());
    let settled = Action::Settled {
        id: event.id,
        outcome,
    };
    assert_eq!(actions(&mut machine), [settled]);
    machine.closed(START);
    machine.publish(&event, Keep::Now, START);
    assert_eq!(machine.unsettled(), 0);
}

#[test]
fn few_events_are_under_way_at_once() {
    let mut machine = up();
    let events: Vec<Event> = (0..100).map(event).collect();
    for event in &events {
        machine.publish(event, Keep::Until, START);
    }
    assert_eq!(sent(&mut machine).len(), 32);
    say(
        &mut machine,
        RelayMessage::ok(events[0].id, true, ""),
        START,
    );
    assert_eq!(sent(&mut machine).len(), 1);
}

#[test]
fn a_challenge_is_answered_and_what_waited_for_it_goes_on() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), None, false, START);
    let event = event(1);
    machine.publish(&event, Keep::Until, START);
    assert_eq!(sent(&mut machine).len(), 2);
    let id = SubscriptionId::new("jobs");
    say(
        &mut machine,
        RelayMessage::closed(id, "auth-required: who"),
        START,
    );
    say(
        &mut machine,
        RelayMessage::ok(event.id, false, "auth-required: who"),
        START,
    );
    assert!(sent(&mut machine).is_empty());
    say(&mut machine, RelayMessage::auth("challenge"), START);
    let messages = sent(&mut machine);
    let [ClientMessage::Auth(auth)] = messages.as_slice() else {
        panic!("{messages:?}");
    };
    auth.verify().unwrap();
    let content: Vec<_> = auth.tags.iter().filter_map(|tag| tag.content()).collect();
    assert_eq!(content, ["ws://127.0.0.1:1", "challenge"]);
    say(&mut machine, RelayMessage::ok(auth.id, true, ""), START);
    assert_eq!(sent(&mut machine).len(), 2);
}

#[test]
fn a_sign_of_life_that_was_refused_before_the_relay_knew_us_is_sent_again() {
    let mut machine = up();
    let event = event(1);
    machine.publish(&event, Keep::Now, START);
    assert_eq!(sent(&mut machine).len(), 1);
    let refused = || RelayMessage::ok(event.id, false, "auth-required: who");
    say(&mut machine, refused(), START);
    say(&mut machine, RelayMessage::auth("challenge"), START);
    let messages = sent(&mut machine);
    let [ClientMessage::Auth(auth)] = messages.as_slice() else {
        panic!("{messages:?}");
    };
    let later = START + 100;
    say(&mut machine, RelayMessage::ok(auth.id, true, ""), later);
    assert_eq!(sent(&mut machine).len(), 1, "now that it knows us");
    say(&mut machine, refused(), later);
    assert_eq!(machine.unsettled(), 0, "it knows us and does not take it");
}

#[test]
fn a_relay_that_wants_authentication_and_never_asks_for_it_gets_no_heap_of_signs_of_life() {
    let mut machine = up();
    let event = event(1);
    machine.publish(&event, Keep::Now, START);
    let mut count = 0;
    for second in 0..600 {
        let now = START + 1000 * second;
        machine.tick(now);
        for _ in sent(&mut machine) {
            count += 1;
            let no = RelayMessage::ok(event.id, false, "auth-required: who");
            say(&mut machine, no, now);
        }
        machine.heard(now);
    }
    assert_eq!((count, machine.unsettled()), (3, 0));
}

/// A relay that refuses a subscription and an event, asks who we are and never says whether it knows now.
fn refused_and_asked(event: &Event) -> Machine {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), None, false, START);
    machine.publish(event, Keep::Until, START);
    assert_eq!(sent(&mut machine).len(), 2);
    refuse(&mut machine, event, START);
    say(&mut machine, RelayMessage::auth("challenge"), START);
    let messages = sent(&mut machine);
    assert!(
        matches!(messages.as_slice(), [ClientMessage::Auth(_)]),
        "{messages:?}"
    );
    machine
}

fn refuse(machine: &mut Machine, event: &Event, now: u64) {
    let id = SubscriptionId::new("jobs");
    say(machine, RelayMessage::closed(id, "auth-required: who"), now);
    let no = RelayMessage::ok(event.id, false, "auth-required: who");
    say(machine, no, now);
}

#[test]
fn what_waits_for_authentication_goes_on_where_the_relay_does_not_confirm_it() {
    let event = event(1);
    let mut machine = refused_and_asked(&event);
    machine.tick(START + 4_000);
    assert!(sent(&mut machine).is_empty(), "the relay may still say it");
    assert_eq!(machine.deadline(), START + 5_000);
    machine.tick(START + 5_000);
    let messages = sent(&mut machine);
    let [ClientMessage::Req { .. }, ClientMessage::Event(again)] = messages.as_slice() else {
        panic!("{messages:?}");
    };
    assert_eq!(again.id, event.id);
    say(
        &mut machine,
        RelayMessage::ok(event.id, true, ""),
        START + 5_000,
    );
    assert_eq!(machine.unsettled(), 0);
}

#[test]
fn what_was_blocked_before_we_were_known_is_sent_once_more() {
    let event = event(1);
    let mut machine = up();
    machine.publish(&event, Keep::Until, START);
    say(&mut machine, RelayMessage::auth("challenge"), START + 10);
    assert_eq!(sent(&mut machine).len(), 2, "the event, and the answer");
    let blocked = || RelayMessage::ok(event.id, false, "blocked: not known");
    say(&mut machine, blocked(), START + 20);
    assert!(actions(&mut machine).is_empty(), "it is not settled");
    let again = machine.deadline();
    machine.tick(again);
    assert_eq!(sent(&mut machine).len(), 1);
    say(&mut machine, blocked(), again + 10);
    let settled = actions(&mut machine);
    assert!(
        matches!(settled[..], [Action::Settled { .. }]),
        "{settled:?}"
    );
}

#[test]
fn a_relay_that_refuses_whatever_we_answer_is_tried_less_and_less() {
    let event = event(1);
    let mut machine = refused_and_asked(&event);
    let mut now = START;
    let (mut tries, mut answers) = (0, 0);
    while now < START + 3_600_000 {
        now = machine.deadline();
        machine.tick(now);
        let messages = sent(&mut machine);
        let asked = |message: &&ClientMessage| !matches!(message, ClientMessage::Auth(_));
        let again = messages.iter().filter(asked).count();
        tries += again;
        answers += messages.len() - again;
        if again > 0 {
            refuse(&mut machine, &event, now);
            say(&mut machine, RelayMessage::auth(tries.to_string()), now);
        } else {
            machine.heard(now);
        }
    }
    assert!(machine.is_up());
    // Three answers with five seconds after each, then 40 s, 80 s and so on up to every five minutes, for each of the two.
    assert_eq!(answers, 2, "the first was before");
    assert!((20..=40).contains(&tries), "{tries}");
}

#[test]
fn endless_challenges_are_answered_a_few_times_and_then_left() {
    let mut machine = up();
    let mut answers = 0;
    let mut closed = false;
    for n in 0..100 {
        say(&mut machine, RelayMessage::auth(n.to_string()), START);
        for action in actions(&mut machine) {
            answers += usize::from(matches!(action, Action::Send(_)));
            closed |= matches!(action, Action::Close(_));
        }
        if closed {
            break;
        }
    }
    assert!(closed);
    assert_eq!(answers, 3);
    assert!(!machine.is_up());
}

#[test]
fn nonsense_is_passed_over_and_too_much_of_it_ends_the_connection() {
    let mut machine = up();
    for text in [
        "",
        "{",
        "[]",
        "[\"EVENT\"]",
        "[\"EVENT\",\"a\",{}]",
        "null",
        "[1,2,3]",
        "\u{0}",
    ] {
        machine.receive(text, START);
    }
    machine.receive(&"x".repeat(LARGEST_MESSAGE + 1), START);
    assert!(machine.is_up());
    assert!(actions(&mut machine).is_empty());
    for _ in 0..1001 {
        machine.receive("{", START);
    }
    assert!(!machine.is_up());
}

#[test]
fn a_gap_is_filled_page_by_page_and_the_cursor_moves_after_it() {
    let seconds = START / 1000;
    let cursor = seconds - 100_000;
    let mut machine = up();
    machine.set_limits(RelayLimits {
        max_limit: Some(2),
        ..RelayLimits::default()
    });
    machine.subscribe("jobs", Filter::new(), Some(cursor), false, START);
    let name = || SubscriptionId::new("jobs");
    let filters = |machine: &mut Machine| match sent(machine).as_slice() {
        [ClientMessage::Req { filters, .. }] => {
            let owned = filters.iter().map(|filter| filter.clone().into_owned());
            owned.collect::<Vec<Filter>>()
        }
        other => panic!("{other:?}"),
    };
    let first = filters(&mut machine);
    assert_eq!(first[0].since, Some(Timestamp::from(cursor - 600)));
    assert_eq!(first[0].until, None);
    for created in [seconds - 10, seconds - 20] {
        say(
            &mut machine,
            RelayMessage::event(name(), event(created)),
            START,
        );
    }
    let delivered = actions(&mut machine);
    assert!(
        delivered
            .iter()
            .all(|a| matches!(a, Action::Deliver { .. })),
        "{delivered:?}"
    );
    say(&mut machine, RelayMessage::eose(name()), START);
    let second = filters(&mut machine);
    assert_eq!(second[0].until, Some(Timestamp::from(seconds - 20)));
    // New ones go on coming, and do not move the cursor past those that are missing.
    let new = RelayMessage::event(name(), event(seconds - 1));
    say(&mut machine, new, START);
    let older = || SubscriptionId::new("jobs-older");
    let old = RelayMessage::event(older(), event(seconds - 30));
    say(&mut machine, old, START);
    let delivered = actions(&mut machine);
    let to_jobs = |action: &Action| matches!(action, Action::Deliver { subscription, .. } if subscription == "jobs");
    assert_eq!(delivered.len(), 2);
    assert!(delivered.iter().all(to_jobs), "{delivered:?}");
    say(&mut machine, RelayMessage::eose(older()), START);
    let end = actions(&mut machine);
    let moved = Action::Cursor {
        subscription: "jobs".to_string(),
        to: seconds,
    };
    assert!(end.contains(&moved), "{end:?}");
    // Later events move it; one from the future does not move it past the clock.
    say(
        &mut machine,
        RelayMessage::event(name(), event(seconds + 90_000)),
        START + 5000,
    );
    let to = actions(&mut machine)
        .into_iter()
        .find_map(|action| match action {
            Action::Cursor { to, .. } => Some(to),
            _ => None,
        });
    assert_eq!(to, Some(seconds + 5));
}

#[test]
fn a_silent_relay_is_pinged_and_then_left() {
    let mut machine = up();
    machine.tick(START + 44_000);
    assert!(actions(&mut machine).is_empty());
    machine.tick(START + 46_000);
    assert_eq!(actions(&mut machine), [Action::Ping]);
    machine.heard(START + 46_100);
    machine.tick(START + 92_000);
    assert_eq!(actions(&mut machine), [Action::Ping]);
    machine.tick(START + 137_000);
    assert!(matches!(actions(&mut machine)[..], [Action::Close(_)]));
    assert!(!machine.is_up());
}

#[test]
fn a_refused_subscription_is_retried_later() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), Some(START / 1000), false, START);
    assert_eq!(sent(&mut machine).len(), 1);
    let id = || SubscriptionId::new("jobs");
    say(
        &mut machine,
        RelayMessage::closed(id(), "rate-limited: slow down"),
        START,
    );
    assert!(sent(&mut machine).is_empty());
    machine.tick(machine.deadline());
    assert_eq!(sent(&mut machine).len(), 1);
}
