//! The codec: what is written reads back as the same, and nothing that comes in makes it panic.

use candle_dvm::nip90::announcement::{withdraw, ParamInfo, ServedModel};
use candle_dvm::nip90::{
    cancellation, crypto, has_work, params, Announcement, Feedback, Heartbeat, Input, InputKind,
    JobKind, JobRequest, JobResult, ReadError, Scheme, Status, Task, Usage,
};
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, Tag};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::sync::LazyLock;

const NOW: u64 = 1_800_000_000;

static CUSTOMER: LazyLock<Keys> = LazyLock::new(Keys::generate);
static PROVIDER: LazyLock<Keys> = LazyLock::new(Keys::generate);

fn event(kind: u16, tags: &[&[&str]], content: &str) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from_u16(kind), content)
        .tags(tags)
        .finalize(&*CUSTOMER)
        .unwrap()
}

fn read(tags: &[&[&str]], content: &str) -> Result<JobRequest, ReadError> {
    JobRequest::read(&event(5050, tags, content), &PROVIDER)
}

fn input() -> impl Strategy<Value = Input> {
    let kind = prop_oneof![
        Just(InputKind::Text),
        Just(InputKind::Url),
        Just(InputKind::Event),
        Just(InputKind::Job)
    ];
    (".*", kind, option::of(".+"), option::of(".+")).prop_map(|(data, kind, relay, marker)| Input {
        data,
        kind,
        relay,
        marker,
    })
}

fn scheme() -> impl Strategy<Value = Option<Scheme>> {
    prop_oneof![
        Just(None),
        Just(Some(Scheme::Nip04)),
        Just(Some(Scheme::Nip44))
    ]
}

prop_compose! {
    fn request()(
        inputs in vec(input(), 1..4),
        params in vec((".+", ".*"), 0..4),
        kind in prop::sample::select(JobKind::ALL.to_vec()),
        output in option::of(".*"),
        bid_msat in option::of(any::<u64>()),
        relays in vec(".*", 0..3),
        named in any::<bool>(),
        expiration in option::of(any::<u64>()),
        encryption in scheme(),
        cashu in option::of(".*"),
    ) -> JobRequest {
        let providers = if named || encryption.is_some() {
            vec![PROVIDER.public_key()]
        } else {
            vec![]
        };
        JobRequest { kind, inputs, params, output, bid_msat, relays, providers, expiration, cashu, encryption }
    }
}

fn strings() -> impl Strategy<Value = Vec<Vec<String>>> {
    let name = prop_oneof![
        "(i|input|param|output|bid|relays|p|t|encrypted|e|status|amount|request|expiration|nonce|d|k|r)",
        ".*"
    ];
    let value = prop_oneof![
        "(text|url|event|job|5050|max_tokens|prompt|Stop|-1|1e400|partial)",
        ".*"
    ];
    vec((name, vec(value, 0..5)), 0..12).prop_map(|tags| {
        tags.into_iter()
            .map(|(name, values)| [vec![name], values].concat())
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_reads_back_as_it_was(request in request()) {
        let event = request.write(&CUSTOMER, NOW).unwrap();
        event.verify().unwrap();
        prop_assert_eq!(JobRequest::read(&event, &PROVIDER).unwrap(), request);
    }

    #[test]
    fn a_result_reads_back_as_it_was(
        text in ".+",
        amount_msat in option::of(any::<u64>()),
        encryption in scheme(),
        usage in option::of((".*", any::<u64>(), any::<u64>())),
        cashu in option::of(".+"),
        request in request(),
    ) {
        let request = request.write(&CUSTOMER, NOW).unwrap();
        // Nothing of it is written where the text is hidden.
        let usage = usage.filter(|_| encryption.is_none());
        let usage = usage.map(|(model, prompt_tokens, completion_tokens)| {
            Usage { model, prompt_tokens, completion_tokens }
        });
        let invoice = amount_msat.map(|_| "lnbc1".to_string());
        let result = JobResult { job: request.id, text, amount_msat, invoice, cashu, encryption, usage };
        let event = result.write(&PROVIDER, NOW, &request, Some("ws://a"), usize::MAX).unwrap();
        prop_assert_eq!(JobResult::read(&event, &CUSTOMER).unwrap(), result);
    }

    #[test]
    fn feedback_reads_back_as_it_was(
        text in ".*",
        extra in option::of(".+"),
        expiration in option::of(any::<u64>()),
        encryption in scheme(),
        cashu in option::of(".+"),
        request in request(),
    ) {
        let request = request.write(&CUSTOMER, NOW).unwrap();
        for status in [Status::PaymentRequired, Status::Processing, Status::Error, Status::Partial] {
            let feedback = Feedback {
                extra: extra.clone(),
                text: text.clone(),
                expiration,
                encryption,
                cashu: cashu.clone(),
                ..Feedback::new(request.id, status)
            };
            let event = feedback.write(&PROVIDER, NOW, &request.pubkey).unwrap();
            prop_assert_eq!(Feedback::read(&event, &CUSTOMER).unwrap(), feedback);
        }
    }

    #[test]
    fn nothing_that_comes_in_panics(tags in strings(), content in ".*", hidden in any::<bool>()) {
        let mut lists: Vec<Vec<&str>> =
            tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
        let provider = PROVIDER.public_key().to_hex();
        let mut content = content;
        if hidden {
            lists.push(vec!["encrypted"]);
            lists.push(vec!["p", &provider]);
            let inside = serde_json::to_string(&tags).unwrap();
            content = Scheme::Nip44.encrypt(&CUSTOMER, &PROVIDER.public_key(), &inside).unwrap();
        }
        let lists: Vec<&[&str]> = lists.iter().map(Vec::as_slice).collect();
        for kind in [5050, 6050, 7000, 5, 31990, 11998] {
            let event = event(kind, &lists, &content);
            if let Ok(request) = JobRequest::read(&event, &PROVIDER) {
                let _ = request.task();
                if let Ok(written) = request.write(&CUSTOMER, NOW) {
                    prop_assert_eq!(JobRequest::read(&written, &PROVIDER), Ok(request));
                }
            }
            let _ = JobResult::read(&event, &PROVIDER);
            let _ = Feedback::read(&event, &PROVIDER);
            let _ = cancellation::read(&event);
            let _ = Announcement::read(&event);
            let _ = Heartbeat::read(&event);
            let _ = has_work(&event, 8);
        }
    }
}

#[test]
fn spellings_that_are_in_use_are_understood() {
    let request = read(
        &[
            &["i", "one"],
            &["i", "two", "prompt"],
            &["i", "three", ""],
            &["param", "top-k", "40"],
            &["param", "top-p", "0.9"],
            &["param", "Max_Tokens", " 12 "],
            &["param", "frequency_penalty", "0"],
            &["param", "temperature", "0.5"],
            &["param", "colour", "red"],
            &["param"],
            &["x", "y"],
            &["bid", "1000"],
        ],
        "",
    )
    .unwrap();
    let inputs: Vec<_> = request
        .inputs
        .iter()
        .map(|i| (i.data.as_str(), i.kind))
        .collect();
    let text = InputKind::Text;
    assert_eq!(inputs, [("one", text), ("two", text), ("three", text)]);
    assert_eq!(request.bid_msat, Some(1000));
    let params = params::read(&request.params).unwrap();
    assert_eq!(params.top_k, Some(40));
    assert_eq!(params.top_p, Some(0.9));
    assert_eq!(params.max_tokens, Some(12));
    assert_eq!(params.frequency_penalty, Some(1.0));
    assert_eq!(params.temperature, Some(0.5));
}

#[test]
fn a_prompt_in_the_content_counts_where_there_is_no_input() {
    assert_eq!(read(&[], "hello").unwrap().inputs, [Input::text("hello")]);
    let both = read(&[&["i", "a", "text"]], "hello").unwrap();
    assert_eq!(both.inputs, [Input::text("a")]);
}

#[test]
fn a_prompt_may_be_a_parameter_or_an_input_with_the_type_first() {
    let text = |tags: &[&[&str]], content: &str| {
        let inputs = read(tags, content).unwrap().inputs;
        inputs
            .into_iter()
            .map(|i| (i.data, i.kind))
            .collect::<Vec<_>>()
    };
    let one = |data: &str| vec![(data.to_string(), InputKind::Text)];
    let title = "NIP 90 Text Generation Request";
    let prompt: &[&str] = &["param", "prompt", "What is a relay?"];
    assert_eq!(text(&[prompt], title), one("What is a relay?"));
    assert_eq!(text(&[&["input", "text", "Hi"]], title), one("Hi"));
    assert_eq!(text(&[&["input", "Hi", "text"]], title), one("Hi"));
    assert_eq!(text(&[&["input", "Hi"]], title), one("Hi"));
    // What NIP-90 names comes first, and what says nothing does not count.
    assert_eq!(text(&[prompt, &["i", "a", "text"]], title), one("a"));
    assert_eq!(text(&[&["param", "prompt", ""]], title), one(title));
    let both = text(&[&["input", "job", "ab"], &["i", "b", "text"]], "");
    assert_eq!(both[0], ("ab".to_string(), InputKind::Job));
    assert_eq!(both[1..], one("b"));
    let many: &[&str] = &["param", "Prompt", "later"];
    assert_eq!(text(&[prompt, many], ""), one("later"));
    // Inside of an encrypted content too.
    let provider = PROVIDER.public_key();
    let inside = r#"[["param","prompt","hidden"]]"#;
    let content = Scheme::Nip44.encrypt(&CUSTOMER, &provider, inside).unwrap();
    let tags: &[&[&str]] = &[&["encrypted"], &["p", &provider.to_hex()]];
    assert_eq!(text(tags, &content), one("hidden"));
}

#[test]
fn jobs_of_another_sort_are_not_mistakes() {
    let problem = |tags: &[&[&str]], content: &str| {
        let read = read(tags, content).and_then(|request| request.task());
        read.map(|_| ()).unwrap_err()
    };
    let others: [(&[&[&str]], &str); 6] = [
        (&[], ""),
        (
            &[&["param", "table", "events"], &["param", "filter", "{}"]],
            "query",
        ),
        (&[&["i", "a", "video"]], ""),
        (&[&["i", "a", "text"], &["output", "image/png"]], ""),
        (&[&["i", "a", "text"], &["output", "application/json"]], ""),
        (&[&["param", "table", "events"]], ""),
    ];
    for (tags, content) in others {
        let problem = problem(tags, content);
        assert!(problem.is_other_job(), "{tags:?}: {problem}");
    }
    let i: &[&str] = &["i", "a", "text"];
    assert!(problem(&[i, &["output", "image/png"]], "")
        .to_string()
        .contains("image/png"));
    for tags in [&["param", "top_p", "7"][..], &["bid", "a lot"]] {
        assert!(!problem(&[i, tags], "").is_other_job(), "{tags:?}");
    }
    for output in [
        "",
        "text/plain",
        "text/markdown; charset=utf-8",
        "Text",
        "*/*",
    ] {
        let request = read(&[i, &["output", output], &["param", "table", "x"]], "").unwrap();
        assert_eq!(
            request.task(),
            Ok(Task::Text(params::Params::default())),
            "{output}"
        );
    }
    let titled = read(&[&["param", "max_tokens", "3"]], "a prompt").unwrap();
    let three = params::Params {
        max_tokens: Some(3),
        ..params::Params::default()
    };
    assert_eq!(titled.task(), Ok(Task::Text(three)));
}

#[test]
fn what_is_too_much_is_named_and_not_cut() {
    let input: &[&str] = &["i", "a", "text"];
    let param: &[&str] = &["param", "colour", "red"];
    let relays = [&["relays"][..], &["wss://a"; 65]].concat();
    let stops = [&["param", "stop"][..], &["a"; 65]].concat();
    let cases: [(&str, Vec<&[&str]>); 4] = [
        ("`i`", vec![input; 65]),
        ("`param`", [vec![input], vec![param; 65]].concat()),
        ("`param`", vec![input, &stops]),
        ("`relays`", vec![input, &relays]),
    ];
    for (name, tags) in &cases {
        let err = read(tags, "").unwrap_err();
        let text = err.to_string();
        assert!(text.contains(name) && text.contains("65"), "{text}");
        assert!(!err.is_other_job());
    }
    assert_eq!(read(&[input; 64], "").unwrap().inputs.len(), 64);
    let many = JobRequest {
        inputs: vec![Input::text("a"); 65],
        ..JobRequest::default()
    };
    let err = many.write(&CUSTOMER, NOW).unwrap_err().to_string();
    assert!(err.contains("`i`") && err.contains("65"), "{err}");
    let letters: Vec<_> = ('a'..='q')
        .map(|c| ("stop".to_string(), c.to_string()))
        .collect();
    let err = params::read(&letters).unwrap_err().to_string();
    assert!(err.contains("`stop`") && err.contains("16"), "{err}");
}

#[test]
fn seeds_and_stop_sequences_are_read() {
    let params = |tags: &[&[&str]]| {
        let tags = [&[&["i", "a"][..]], tags].concat();
        params::read(&read(&tags, "").unwrap().params).unwrap()
    };
    assert_eq!(
        params(&[&["param", "seed", "18446744073709551615"]]).seed,
        Some(u64::MAX)
    );
    assert_eq!(params(&[&["param", "seed", "-1"]]).seed, None);
    assert_eq!(params(&[&["param", "min-p", "0.05"]]).min_p, Some(0.05));
    // White space is what many stop at.
    let stops = params(&[
        &["param", "stop", "\n\n"],
        &["param", "stop", ""],
        &["param", "Stop", r#"["END", "\n\n"]"#],
        &["param", "stop", "a", "b"],
        &["param", "stop", "[not a list"],
    ]);
    assert_eq!(stops.stop, ["\n\n", "END", "a", "b", "[not a list"]);
}

#[test]
fn bad_values_are_named() {
    let long = "x".repeat(257);
    for (key, value) in [
        ("max_tokens", "0"),
        ("max_tokens", "many"),
        ("max_tokens", "-3"),
        ("temperature", "-0.1"),
        ("temperature", "NaN"),
        ("temperature", "inf"),
        ("top_k", "-1"),
        ("top_p", "0"),
        ("top_p", "1.1"),
        ("frequency_penalty", "-1"),
        // Nothing, once it is an f32, and what is too small to divide logits by.
        ("frequency_penalty", "1e-300"),
        ("frequency_penalty", "1e-30"),
        ("frequency_penalty", "1e300"),
        ("min_p", "1.5"),
        ("min_p", "-0.5"),
        ("seed", "-2"),
        ("seed", "18446744073709551616"),
        ("stop", &long),
    ] {
        let err = params::read(&[(key.to_string(), value.to_string())]).unwrap_err();
        let text = err.to_string();
        let value: String = value.chars().take(80).collect();
        assert!(text.contains(key) && text.contains(&value), "{text}");
    }
    for (tags, part) in [
        (&["i", "a", "video"][..], "video"),
        (&["bid", "a lot"], "a lot"),
    ] {
        let err = read(&[tags], "").unwrap_err().to_string();
        assert!(err.contains(part), "{err}");
    }
    let long = "9".repeat(100_000);
    let err = read(&[&["bid", &long]], "").unwrap_err().to_string();
    assert!(err.len() < 300, "{}", err.len());
}

#[test]
fn encrypted_requests_are_for_one_provider() {
    let ours = PROVIDER.public_key().to_hex();
    let theirs = Keys::generate().public_key().to_hex();
    let foreign = read(&[&["encrypted"], &["p", &theirs]], "x");
    assert_eq!(foreign, Err(ReadError::NotForUs));
    let broken = read(&[&["encrypted"], &["p", &ours]], "x");
    assert_eq!(broken, Err(ReadError::Undecryptable));
    let nobody = JobRequest {
        inputs: vec![Input::text("a")],
        encryption: Some(Scheme::Nip44),
        ..JobRequest::default()
    };
    assert!(nobody.write(&CUSTOMER, NOW).is_err());
    let hidden = JobRequest {
        providers: vec![PROVIDER.public_key()],
        ..nobody
    };
    let event = hidden.write(&CUSTOMER, NOW).unwrap();
    assert!(event
        .tags
        .iter()
        .all(|tag| tag.kind() != "i" && tag.kind() != "param"));
}

#[test]
fn a_request_shows_the_work_that_it_was_written_with() {
    let request = JobRequest {
        inputs: vec![Input::text("a")],
        ..JobRequest::default()
    };
    let event = request.write_with_work(&CUSTOMER, NOW, 9).unwrap();
    event.verify().unwrap();
    assert_eq!(JobRequest::read(&event, &PROVIDER).unwrap(), request);
    assert!(has_work(&event, 9));
    assert!(!has_work(&event, 10), "luck does not count as work");
    assert!(!has_work(&request.write(&CUSTOMER, NOW).unwrap(), 1));
}

#[test]
fn relays_and_the_bid_may_be_hidden_too() {
    let provider = PROVIDER.public_key();
    let inside = r#"[["i","a","text"],["relays","wss://a","wss://b"],["bid","5"],[],[1],"x"]"#;
    let content = Scheme::Nip44.encrypt(&CUSTOMER, &provider, inside).unwrap();
    let request = read(&[&["encrypted"], &["p", &provider.to_hex()]], &content).unwrap();
    assert_eq!(request.relays, ["wss://a", "wss://b"]);
    assert_eq!(request.bid_msat, Some(5));
    assert_eq!(request.inputs, [Input::text("a")]);
}

#[test]
fn a_result_that_is_too_large_leaves_out_inputs_then_the_request() {
    let request = JobRequest {
        inputs: vec![Input::text("x".repeat(1000))],
        ..JobRequest::default()
    };
    let request = request.write(&CUSTOMER, NOW).unwrap();
    let result = JobResult {
        job: request.id,
        text: "y".repeat(500),
        amount_msat: None,
        invoice: None,
        cashu: None,
        encryption: None,
        usage: Some(Usage {
            model: "m".to_string(),
            prompt_tokens: 1,
            completion_tokens: 2,
        }),
    };
    let kinds = |limit| {
        let event = result.write(&PROVIDER, NOW, &request, None, limit).unwrap();
        assert!(event.as_json().len() <= limit);
        let has = |name: &str| event.tags.iter().any(|tag| tag.kind() == name);
        assert!(has("e") && has("p") && has("status"));
        (has("i"), has("request"), has("alt") && has("llm-model"))
    };
    assert_eq!(kinds(10_000), (true, true, true));
    assert_eq!(kinds(3_000), (false, true, true));
    assert_eq!(kinds(1_500), (false, false, true));
    assert_eq!(kinds(1_100), (false, false, false));
    assert!(result.write(&PROVIDER, NOW, &request, None, 600).is_err());
}

#[test]
fn other_providers_encrypted_feedback_is_read_as_text() {
    let job = event(5050, &[&["i", "a"]], "");
    let content = Scheme::Nip04
        .encrypt(&PROVIDER, &CUSTOMER.public_key(), "plain words")
        .unwrap();
    let id = job.id.to_hex();
    let tags = [["status", "partial"], ["e", id.as_str()]].map(|tag| Tag::parse(tag).unwrap());
    let feedback = EventBuilder::new(Kind::from_u16(7000), content)
        .tags(tags)
        .tag(Tag::parse(["encrypted"]).unwrap())
        .finalize(&*PROVIDER)
        .unwrap();
    let read = Feedback::read(&feedback, &CUSTOMER).unwrap();
    assert_eq!(read.text, "plain words");
    assert_eq!(read.encryption, Some(Scheme::Nip04));
}

#[test]
fn schemes_are_distinguished() {
    for scheme in [Scheme::Nip04, Scheme::Nip44] {
        let text = scheme
            .encrypt(&CUSTOMER, &PROVIDER.public_key(), "hello")
            .unwrap();
        let opened = crypto::decrypt(&PROVIDER, &CUSTOMER.public_key(), &text).unwrap();
        assert_eq!(opened, ("hello".to_string(), scheme));
    }
}

#[test]
fn announcements_and_heartbeats_read_back() {
    let announcement = Announcement {
        identifier: "a".to_string(),
        name: "name".to_string(),
        about: "about".to_string(),
        picture: Some("https://example.com/p.png".to_string()),
        model: Some(ServedModel {
            name: "m".to_string(),
            prompt: "chat".to_string(),
            context: Some(1024),
        }),
        params: [(
            "max_tokens".to_string(),
            ParamInfo {
                max: Some("64".to_string()),
                ..ParamInfo::default()
            },
        )]
        .into(),
        kinds: vec![JobKind::Speech, JobKind::Text],
        speech_model: Some("s".to_string()),
        mints: vec!["https://mint.example.com".to_string()],
        topics: vec!["text".to_string()],
        encryption: true,
        amount_msat: Some(1000),
    };
    for amount_msat in [None, Some(0), Some(1000)] {
        let announcement = Announcement {
            amount_msat,
            ..announcement.clone()
        };
        let event = announcement.write(&PROVIDER, NOW).unwrap();
        assert_eq!(Announcement::read(&event).unwrap(), announcement);
        assert_eq!(event.content.contains("\"amount\""), amount_msat.is_some());
    }
    let event = announcement.write(&PROVIDER, NOW).unwrap();
    let heartbeat = Heartbeat {
        identifier: "a".to_string(),
        status: "online".to_string(),
        expiration: Some(NOW + 900),
    };
    let beat = heartbeat.write(&PROVIDER, NOW).unwrap();
    assert_eq!(Heartbeat::read(&beat).unwrap(), heartbeat);
    let gone = withdraw(&PROVIDER, NOW, "a", Some(event.id)).unwrap();
    assert_eq!(cancellation::read(&gone).unwrap(), [event.id]);
    let coordinate = format!("31990:{}:a", PROVIDER.public_key().to_hex());
    assert!(gone
        .tags
        .iter()
        .any(|tag| tag.content() == Some(&coordinate)));
}
