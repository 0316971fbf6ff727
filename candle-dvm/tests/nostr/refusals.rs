//! The machine against relays that refuse events in different ways, and relays that send without end, without a socket.

use super::machine::{actions, event, say, sent, up, START};
use candle_dvm::relay::machine::{Action, Keep, Machine, Outcome};
use candle_dvm::relay::Budget;
use nostr::prelude::{ClientMessage, Event, EventId, Filter, RelayMessage, SubscriptionId};
use std::collections::BTreeMap;

/// The response of a relay to events.
enum Refuses {
    /// Says NOTICE, and nothing else.
    Notices,
    /// Says nothing.
    Silent,
    /// Closes the connection.
    Closes,
}

/// A relay that takes all events but one sort, those with an odd date, and what became of what was published.
struct Played {
    machine: Machine,
    refuses: Refuses,
    now: u64,
    closed: usize,
    sends: BTreeMap<EventId, usize>,
    outcomes: BTreeMap<EventId, (Outcome, u64)>,
}

impl Played {
    fn new(refuses: Refuses) -> Self {
        Self {
            machine: up(),
            refuses,
            now: START,
            closed: 0,
            sends: BTreeMap::new(),
            outcomes: BTreeMap::new(),
        }
    }

    fn publish(&mut self, event: &Event, keep: Keep) {
        self.machine.publish(event, keep, self.now);
        self.answer();
    }

    /// Answers to what was sent.
    fn answer(&mut self) {
        while let Some(action) = self.machine.next_action() {
            match action {
                Action::Connect => self.machine.opened(self.now),
                Action::Close(reason) => panic!("closed: {reason}"),
                Action::Settled { id, outcome } => {
                    self.outcomes.insert(id, (outcome, self.now));
                }
                // Nothing is open.
                Action::Send(_) if !self.machine.is_up() => {}
                Action::Send(text) => {
                    let ClientMessage::Event(event) = ClientMessage::from_json(text).unwrap()
                    else {
                        continue;
                    };
                    *self.sends.entry(event.id).or_default() += 1;
                    let poison = event.created_at.as_secs() % 2 == 1;
                    let reply = match (poison, &self.refuses) {
                        (false, _) => RelayMessage::ok(event.id, true, ""),
                        (true, Refuses::Notices) => RelayMessage::notice("ERROR: bad event"),
                        (true, Refuses::Silent) => continue,
                        (true, Refuses::Closes) => {
                            self.closed += 1;
                            self.machine.closed(self.now);
                            continue;
                        }
                    };
                    say(&mut self.machine, reply, self.now);
                }
                _ => {}
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.machine.deadline() <= end {
            self.now = self.now.max(self.machine.deadline());
            self.machine.tick(self.now);
            self.answer();
            // It does answer to pings.
            self.machine.heard(self.now);
        }
        self.now = end;
        self.machine.tick(end);
        self.answer();
    }
}

fn poisons(count: u64) -> Vec<Event> {
    (0..count).map(|n| event(2 * n + 1)).collect()
}

#[test]
fn an_answer_that_a_relay_says_notice_or_nothing_to_is_given_up_and_the_connection_stays() {
    for refuses in [Refuses::Notices, Refuses::Silent] {
        let mut relay = Played::new(refuses);
        let poison = poisons(1);
        relay.publish(&poison[0], Keep::Until);
        relay.pass(70_000);
        let outcome = relay.outcomes.get(&poison[0].id);
        assert!(
            matches!(outcome, Some((Outcome::Rejected(_), _))),
            "{outcome:?}"
        );
        assert!(relay.machine.is_up());
        let took = outcome.unwrap().1 - START;
        let soon = matches!(relay.refuses, Refuses::Notices);
        assert!(!soon || took <= 2_000, "{took} ms");
        let sends = relay.sends[&poison[0].id];
        assert!((2..=3).contains(&sends), "{sends}");
    }
}

#[test]
fn tries_outlive_the_connection() {
    let mut relay = Played::new(Refuses::Silent);
    let poison = poisons(1);
    relay.publish(&poison[0], Keep::Until);
    for _ in 0..3 {
        relay.pass(21_000);
        relay.machine.closed(relay.now);
        relay.pass(1_000);
    }
    assert!(relay.outcomes.contains_key(&poison[0].id));
    assert!(relay.sends[&poison[0].id] <= 6);
}

#[test]
fn a_relay_that_refuses_many_answers_takes_the_others_at_once() {
    for refuses in [Refuses::Notices, Refuses::Silent, Refuses::Closes] {
        let mut relay = Played::new(refuses);
        let closes = matches!(relay.refuses, Refuses::Closes);
        let poison = poisons(if closes { 20 } else { 100 });
        for event in &poison {
            relay.publish(event, Keep::Until);
        }
        // Each of them has been tried then.
        relay.pass(20_000);
        let mut waited = 0;
        for n in 0..60 {
            relay.pass(10_000);
            let good = event(2 * n + 1000);
            relay.publish(&good, Keep::Until);
            let published = relay.now;
            // A relay that ends connections is away for a while each time.
            relay.pass(1_000);
            relay.pass(300_000 * u64::from(closes));
            let (outcome, at) = relay.outcomes[&good.id].clone();
            assert_eq!(outcome, Outcome::Accepted);
            waited = waited.max(at - published);
        }
        assert!(closes || waited <= 1_000, "{waited} ms");
        let given_up = poison.iter().filter(|e| relay.outcomes.contains_key(&e.id));
        assert_eq!(given_up.count(), poison.len());
    }
}

#[test]
fn an_event_on_which_the_connection_ends_is_found_out_and_given_up() {
    let mut relay = Played::new(Refuses::Closes);
    let poison = poisons(1);
    let good: Vec<Event> = (0..5).map(|n| event(2 * n + 1000)).collect();
    relay.publish(&poison[0], Keep::Until);
    for event in &good {
        relay.publish(event, Keep::Until);
    }
    relay.pass(3_600_000);
    for event in &good {
        assert_eq!(relay.outcomes[&event.id].0, Outcome::Accepted);
    }
    assert!(matches!(
        relay.outcomes[&poison[0].id].0,
        Outcome::Rejected(_)
    ));
    assert!(relay.closed <= 10, "{}", relay.closed);
}

#[test]
fn a_relay_that_is_killed_again_and_again_gets_everything() {
    let mut machine = up();
    for n in 0..40 {
        machine.publish(&event(n), Keep::Until, START);
    }
    let mut now = START;
    let (mut kills, mut accepted) = (0, 0);
    while machine.unsettled() > 0 {
        // The relay has answered to two events of a connection when it is killed.
        let mut answered = 0;
        while let Some(action) = machine.next_action() {
            match action {
                Action::Connect => machine.opened(now),
                Action::Settled { outcome, .. } => {
                    assert_eq!(outcome, Outcome::Accepted);
                    accepted += 1;
                }
                Action::Send(_) if !machine.is_up() => {}
                Action::Send(text) => match ClientMessage::from_json(text).unwrap() {
                    ClientMessage::Event(event) if answered < 2 => {
                        answered += 1;
                        say(&mut machine, RelayMessage::ok(event.id, true, ""), now);
                    }
                    _ => {
                        kills += 1;
                        machine.closed(now);
                    }
                },
                other => panic!("{other:?}"),
            }
        }
        now = now.max(machine.deadline().min(now + 300_000));
        machine.tick(now);
    }
    assert_eq!(accepted, 40);
    assert!(kills > 15, "{kills}");
}

#[test]
fn a_notice_at_the_start_refuses_nothing() {
    let mut machine = up();
    let event = event(2);
    machine.publish(&event, Keep::Until, START);
    let hello = RelayMessage::notice("welcome");
    say(&mut machine, hello, START + 10);
    say(
        &mut machine,
        RelayMessage::ok(event.id, true, ""),
        START + 20,
    );
    let accepted = Action::Settled {
        id: event.id,
        outcome: Outcome::Accepted,
    };
    assert!(actions(&mut machine).contains(&accepted));
}

#[test]
fn a_notice_during_another_request_does_not_count_against_an_event() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), None, false, START);
    let event = event(2);
    machine.publish(&event, Keep::Until, START);
    for n in 0..10 {
        let late = RelayMessage::notice("this query is slow");
        say(&mut machine, late, START + n);
    }
    assert_eq!(machine.unsettled(), 1);
    let id = SubscriptionId::new("jobs");
    say(&mut machine, RelayMessage::eose(id), START + 20);
    say(
        &mut machine,
        RelayMessage::ok(event.id, true, ""),
        START + 20,
    );
    assert_eq!(machine.unsettled(), 0);
}

fn ids(messages: &[ClientMessage]) -> Vec<EventId> {
    let id = |message: &ClientMessage| match message {
        ClientMessage::Event(event) => event.id,
        other => panic!("{other:?}"),
    };
    messages.iter().map(id).collect()
}

#[test]
fn answers_go_before_what_only_matters_now() {
    let mut machine = up();
    let events: Vec<Event> = (0..36).map(event).collect();
    for event in &events[..34] {
        machine.publish(event, Keep::Now, START);
    }
    assert_eq!(sent(&mut machine).len(), 32, "as many as may be under way");
    machine.publish(&events[34], Keep::Now, START);
    machine.publish(&events[35], Keep::Until, START);
    say(
        &mut machine,
        RelayMessage::ok(events[0].id, true, ""),
        START,
    );
    assert_eq!(ids(&sent(&mut machine)), [events[35].id]);
}

#[test]
fn a_relay_that_complains_of_too_many_events_gets_answers_alone_for_a_while() {
    let limited = [
        |id| RelayMessage::ok(id, false, "rate-limited: slow down"),
        |_| RelayMessage::notice("rate-limited: you are noting too much"),
    ];
    for limited in limited {
        let mut machine = up();
        let (answer, partial, later) = (event(1), event(2), event(3));
        machine.publish(&answer, Keep::Until, START);
        assert_eq!(sent(&mut machine).len(), 1);
        say(&mut machine, limited(answer.id), START);
        machine.publish(&partial, Keep::Now, START + 1);
        assert!(sent(&mut machine).is_empty());
        machine.tick(START + 12_000);
        assert_eq!(ids(&sent(&mut machine)), [answer.id]);
        let taken = RelayMessage::ok(answer.id, true, "");
        say(&mut machine, taken, START + 12_100);
        machine.heard(START + 40_000);
        machine.publish(&later, Keep::Now, START + 40_000);
        assert!(ids(&sent(&mut machine)).contains(&later.id));
    }
}

#[test]
fn what_waits_for_a_relay_is_bounded() {
    let mut machine = up();
    machine.closed(START);
    let events: Vec<Event> = (0..1100).map(event).collect();
    for event in &events {
        machine.publish(event, Keep::Until, START);
    }
    assert_eq!(machine.unsettled(), 1024);
    let given_up: Vec<EventId> = actions(&mut machine)
        .into_iter()
        .filter_map(|action| match action {
            Action::Settled {
                id,
                outcome: Outcome::Rejected(_),
            } => Some(id),
            _ => None,
        })
        .collect();
    let oldest: Vec<EventId> = events[..76].iter().map(|event| event.id).collect();
    assert_eq!(given_up, oldest);
}

#[test]
fn what_only_matters_now_waits_for_a_connection_that_is_being_opened() {
    let mut machine = up();
    machine.closed(START);
    let now = machine.deadline();
    machine.tick(now);
    assert_eq!(actions(&mut machine), [Action::Connect]);
    let event = event(1);
    machine.publish(&event, Keep::Now, now);
    machine.opened(now);
    assert_eq!(ids(&sent(&mut machine)), [event.id]);
}

#[test]
fn a_relay_that_is_out_of_reach_is_not_tried_again() {
    let mut machine = up();
    machine.closed(START);
    machine.publish(&event(1), Keep::Until, START);
    machine.subscribe("once", Filter::new(), None, true, START);
    machine.unreachable("127.0.0.1 is not a public address");
    machine.publish(&event(2), Keep::Until, START);
    machine.subscribe("search", Filter::new(), None, true, START);
    let done = actions(&mut machine);
    let settled = done.iter().filter(|a| matches!(a, Action::Settled { .. }));
    let ended = done
        .iter()
        .filter(|a| matches!(a, Action::StoredEnd { .. }));
    assert_eq!((settled.count(), ended.count(), done.len()), (2, 2, 4));
    machine.tick(START + 86_400_000);
    assert!(actions(&mut machine).is_empty());
}

/// Number of messages read in ten seconds from a relay that repeats this message without end.
fn read_in_ten_seconds(machine: &mut Machine, message: Option<&str>) -> u64 {
    let mut now = START;
    let mut read = 0;
    // Without pauses there is no end.
    while now < START + 10_000 && read < 1_000_000 {
        match message {
            Some(text) => machine.receive(text, now),
            None => machine.heard(now),
        }
        read += 1;
        actions(machine);
        now = now.max(machine.reads_from());
    }
    read
}

#[test]
fn what_a_relay_can_have_us_do_in_a_second_is_bounded_and_nothing_is_closed_for_it() {
    let jobs = SubscriptionId::new("jobs");
    let id = event(1).id;
    let messages = [
        Some(RelayMessage::event(jobs, event(1)).as_json()),
        Some(RelayMessage::ok(id, true, "").as_json()),
        Some(RelayMessage::notice("flood").as_json()),
        None,
    ];
    for (message, most) in messages.iter().zip([20_100, 201_000, 201_000, 201_000]) {
        let mut machine = up();
        machine.subscribe("jobs", Filter::new(), None, false, START);
        let read = read_in_ten_seconds(&mut machine, message.as_deref());
        assert!((most * 9 / 10..=most).contains(&read), "{read}");
        assert!(machine.is_up());
    }
    // Large ones cost their size: ten MiB a second.
    let large = format!(
        r#"["EVENT","jobs",{{"content":"{}"}}]"#,
        "x".repeat(400 << 10)
    );
    let mut machine = up();
    let read = read_in_ten_seconds(&mut machine, Some(&large));
    assert!(read < 520, "{read}");
    let mut machine = up().with_budget(Budget::GUEST);
    machine.subscribe("jobs", Filter::new(), None, false, START);
    let read = read_in_ten_seconds(&mut machine, messages[0].as_deref());
    assert!(read <= 2_010, "a guest may less: {read}");
}

#[test]
fn a_clock_that_is_set_neither_closes_nor_freezes_a_connection() {
    let mut machine = up();
    machine.subscribe("jobs", Filter::new(), Some(START / 1000), false, START);
    assert_eq!(sent(&mut machine).len(), 1);
    for date in [START / 1000 + 86_400, 0, START / 1000 - 86_400] {
        machine.set_date(date);
        machine.tick(START + 1_000);
        assert!(actions(&mut machine).is_empty());
        assert!(machine.is_up());
        assert_eq!(machine.deadline(), START + 45_000);
    }
}
