//! Requests as strangers write them, and results as they read them.

use super::relay::TestRelay;
use super::served::{error, Customer, Served};
use candle_dvm::nip90::{Announcement, Scheme, Usage};
use candle_dvm::service::now;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Kind, Tag, Timestamp};

fn tags(event: &Event, name: &str) -> Vec<Vec<String>> {
    let named = event.tags.iter().filter(|tag| tag.kind() == name);
    named.map(|tag| tag.as_slice()[1..].to_vec()).collect()
}

fn request(customer: &Customer, tags: &[&[&str]], content: &str) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from_u16(5050), content)
        .tags(tags)
        .custom_created_at(Timestamp::from(now()))
        .finalize(&customer.0)
        .unwrap()
}

#[test]
fn jobs_of_another_sort_are_passed_over_unless_they_are_for_us() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let us = served.keys.public_key().to_hex();
    let table: &[&[&str]] = &[&["param", "table", "events"], &["param", "filter", "{}"]];
    let picture: &[&[&str]] = &[&["i", "a cat", "text"], &["output", "image/png"]];
    let cases = [(table, "", "`i`"), (picture, "", "image/png")];
    for (tags, content, _) in cases {
        relay.publish(&request(&customer, tags, content));
    }
    served.wait_refused("other_job", 2);
    assert!(relay.of_kind(6050).is_empty() && relay.of_kind(7000).is_empty());
    let p: &[&str] = &["p", &us];
    for (tags, content, part) in cases {
        let job = request(&customer, &[tags, &[p]].concat(), content);
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_prompt_in_a_parameter_is_answered() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let prompt: &[&str] = &["param", "prompt", "real"];
    relay.publish(&request(&customer, &[prompt], "Text Generation Request"));
    let result = customer.read(&relay.wait_for(6050, 1)[0]);
    assert_eq!(result.text, "real real real ");
}

#[test]
fn errors_name_what_the_customer_wrote() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    let input: &[&str] = &["i", "a", "text"];
    let cases: [(Vec<&[&str]>, &str); 3] = [
        (vec![input; 65], "`i`: found 65"),
        (
            vec![input, &["param", "frequency_penalty", "1e-300"]],
            "`frequency_penalty`",
        ),
        (vec![&["i", " ", "text"]], "prompt has no tokens"),
    ];
    for (tags, part) in cases {
        let job = request(&customer, &tags, "");
        relay.publish(&job);
        let reason = error(&relay, &customer, &job);
        assert!(reason.contains(part) && !reason.contains("--"), "{reason}");
    }
}

#[test]
fn a_result_says_what_made_it_unless_it_is_hidden() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::on(&[&relay], dir.path());
    let customer = Customer::new();
    relay.publish(&customer.request("one"));
    let event = relay.wait_for(6050, 1).remove(0);
    let usage = Usage {
        model: "echo".to_string(),
        prompt_tokens: 3,
        completion_tokens: 3,
    };
    assert_eq!(customer.read(&event).usage, Some(usage));
    assert_eq!(tags(&event, "status"), [["success"]]);
    let alt = tags(&event, "alt").concat().concat();
    assert!(alt.contains("text generation"), "{alt}");
    for scheme in [Scheme::Nip04, Scheme::Nip44] {
        let count = relay.of_kind(6050).len();
        relay.publish(&customer.request_with("secretword", |request| {
            request.providers = vec![served.keys.public_key()];
            request.encryption = Some(scheme);
        }));
        let event = relay.wait_for(6050, count + 1).remove(count);
        assert!(customer.read(&event).text.contains("secretword"));
        assert_eq!(tags(&event, "status"), [["success"]]);
        let names: Vec<_> = event
            .tags
            .iter()
            .map(|tag| tag.kind().to_string())
            .collect();
        assert!(
            !names.iter().any(|name| name.starts_with("llm-")),
            "{names:?}"
        );
        let alt = tags(&event, "alt").concat().concat();
        assert!(
            alt.contains("Encrypted") && !alt.contains("secret"),
            "{alt}"
        );
        let json = event.as_json();
        assert!(
            !json.contains("secretword") && !json.contains("echo"),
            "{json}"
        );
    }
}

#[test]
fn the_announcement_names_price_and_parameters() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::on(&[&relay], dir.path());
    let announcement = Announcement::read(&relay.of_kind(31990)[0]).unwrap();
    assert_eq!(announcement.amount_msat, Some(0), "free, and said so");
    assert!(announcement.encryption);
    for name in ["model", "max_tokens", "min_p", "seed", "stop"] {
        assert!(announcement.params.contains_key(name), "{name}");
    }
}
