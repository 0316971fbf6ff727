//! Anything that a relay sends, a message a line, while a subscription and a publication are open. `!` closes the connection and opens
//! it again, `+` lets a minute pass.

#![no_main]

use candle_dvm_fuzz::nip90::cancellation;
use candle_dvm_fuzz::relay::{Keep, Machine, RelayLimits};
use candle_dvm_fuzz::{NOW, PROVIDER};
use libfuzzer_sys::fuzz_target;
use nostr::prelude::{EventId, Filter, Kind};

fuzz_target!(|text: &str| {
    let mut now = NOW * 1000;
    let mut machine = Machine::new("ws://relay".to_string(), PROVIDER.clone(), 1);
    machine.set_date(NOW);
    machine.set_limits(RelayLimits::read(text));
    let jobs = Filter::new().kind(Kind::from_u16(5050));
    machine.subscribe("jobs", jobs.clone(), Some(NOW), false, now);
    machine.subscribe("once", jobs, None, true, now);
    let id = EventId::from_byte_array([0; 32]);
    let event = cancellation::write(&PROVIDER, NOW, &id).expect("an event");
    machine.publish(&event, Keep::Until, now);
    machine.opened(now);
    for line in text.lines() {
        match line {
            "!" => {
                machine.closed(now);
                machine.opened(now);
            }
            "+" => {
                now += 60_000;
                machine.set_date(now / 1000);
                machine.tick(now);
            }
            line => machine.receive(line, now),
        }
        // What is to be done after one message is no more than it asked for: two requests, an event, an answer to AUTH.
        let actions = std::iter::from_fn(|| machine.next_action()).count();
        assert!(actions <= 8, "{actions} actions");
        assert!(machine.unsettled() <= 1);
        assert!(machine.deadline() > 0);
    }
});
