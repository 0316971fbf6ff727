//! A relay that does everything a relay should not, together with an honest one.

use super::relay::{Behaviour, TestRelay};
use super::served::{Customer, Served};
use super::wait::wait_until;
use candle_dvm::service::now;
use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{json, Value};

pub fn event_message(event: Value) -> String {
    json!(["EVENT", "jobs", event]).to_string()
}

pub fn request_at(created: u64, text: &str) -> Value {
    let event = EventBuilder::new(Kind::from_u16(5050), "")
        .tag(Tag::parse(["i", text, "text"]).unwrap())
        .custom_created_at(Timestamp::from(created))
        .finalize(&Keys::generate())
        .unwrap();
    serde_json::to_value(event).unwrap()
}

fn noise(real: &Value) -> Vec<String> {
    let good = || request_at(now(), "a job of the hostile relay");
    let change = |change: &dyn Fn(&mut Value)| {
        let mut event = good();
        change(&mut event);
        event_message(event)
    };
    let mut forged = real.clone();
    forged["content"] = json!("something else under a real id");
    let mut noise = vec![
        event_message(forged),
        change(&|e| e["sig"] = json!("0".repeat(128))),
        change(&|e| e["tags"] = json!([["i", "changed", "text"]])),
        change(&|e| e["pubkey"] = json!(Keys::generate().public_key().to_hex())),
        change(&|e| e["tags"] = json!([[]])),
        change(&|e| e["tags"] = json!([[1, null, {}]])),
        change(&|e| e["kind"] = json!(70_000)),
        change(&|e| e["kind"] = json!(-1)),
        change(&|e| e["created_at"] = json!(-5)),
        change(&|e| e["created_at"] = json!(1e300)),
        event_message(request_at(978_307_200, "from 2001")),
        event_message(request_at(2_524_608_000, "from 2050")),
        event_message(request_at(now(), &"x".repeat(1_000_000))),
        event_message(request_at(now(), &"x".repeat(100_000))),
        "[\"EVENT\",\"jobs\",{\"id\":".to_string(),
        "[\"OK\",\"no id\",true,\"\"]".to_string(),
        "[\"EOSE\"]".to_string(),
        "[\"CLOSED\",\"nothing of ours\",\"\"]".to_string(),
        "\u{feff}[]".to_string(),
        "[".repeat(100_000),
    ];
    // The same one, often.
    let twice = event_message(good());
    noise.extend(std::iter::repeat_n(twice, 20));
    noise.extend((0..200).map(|n| json!(["AUTH", n.to_string()]).to_string()));
    noise
}

#[test]
fn honest_jobs_are_answered_while_another_relay_is_hostile() {
    let customer = Customer::new();
    let real = customer.request("honest");
    let json = serde_json::to_value(&real).unwrap();
    let honest = TestRelay::start();
    let noisy = TestRelay::with(Behaviour {
        noise: noise(&json),
        ..Behaviour::default()
    });
    // A frame that promises 16 MB; half of one; bits that no frame has.
    let huge = vec![0x81, 127, 0, 0, 0, 0, 1, 0, 0, 0, b'x'];
    let broken = [huge, vec![0x81, 0x05, b'h'], vec![0xff; 64]].map(|garbage| {
        TestRelay::with(Behaviour {
            noise: vec![event_message(request_at(
                now(),
                "from a relay that breaks off",
            ))],
            garbage: Some(garbage),
            ..Behaviour::default()
        })
    });
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with(&[&honest], dir.path(), Keys::generate(), |settings| {
        settings.relays.push(noisy.url.clone());
        settings
            .relays
            .extend(broken.iter().map(|relay| relay.url.clone()));
        settings.open_per_key = 100;
        // The noise was made before the start.
        settings.look_back_seconds = 3600;
    });
    // The noise has come first, the forgery of this very request among it.
    served.wait_refused("forged", 4);
    for relay in &broken {
        let given_up = || "it is not tried again";
        wait_until(given_up, || relay.connections() >= 2);
    }
    honest.publish(&real);
    for n in 0..10 {
        honest.publish(&customer.request(&format!("honest {n}")));
    }
    let done = |relay: &TestRelay| {
        let results = relay.wait_for(6050, 11);
        let results = results.iter().filter_map(|event| {
            let result = candle_dvm::nip90::JobResult::read(event, &customer.0).ok()?;
            result.text.starts_with("honest").then_some(result.job)
        });
        results.collect::<Vec<_>>()
    };
    let missing = || format!("{} of 11 results", done(&honest).len());
    wait_until(missing, || done(&honest).len() >= 11);
    let mut jobs = done(&honest);
    assert!(jobs.contains(&real.id), "the forgery did not keep it out");
    let count = jobs.len();
    jobs.sort();
    jobs.dedup();
    assert_eq!((jobs.len(), count), (11, 11), "each once");
    served.wait_refused("before_start", 1);
    served.wait_refused("in_future", 1);
    served.wait_refused("input_too_long", 1);
}
