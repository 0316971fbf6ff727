//! Jobs whose inputs are the messages of a conversation, through the model's chat template, and raw prompts.

use super::commands::Daemon;
use super::relay::TestRelay;
use super::served::{error, feedback, Customer, Served};
use crate::cli::{run, stdout};
use crate::support::{embedded, ModelFolder};
use candle_dvm::nip90::{Announcement, Input, Scheme, Status};
use candle_engine::{Chat, ChatTemplate, CompletionRequest, DeviceKind};
use nostr::prelude::{Event, Keys};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;

/// Names each role. Words, so that the echo of a prompt shows it.
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant:";

fn served(relay: &TestRelay, dir: &std::path::Path, raw: bool) -> Served {
    let template = ChatTemplate::new("test", TEMPLATE.to_string());
    Served::templated(&[relay], dir, Some(template), |settings| {
        settings.raw = raw;
        settings.default_tokens = 8;
    })
}

/// The first words of an answer that repeats its prompt.
fn answered(relay: &TestRelay, customer: &Customer, job: &Event, count: usize) -> String {
    relay.publish(job);
    let results = relay.wait_for(6050, count);
    let mut read = results.iter().map(|event| customer.read(event));
    read.find(|result| result.job == job.id).unwrap().text
}

#[test]
fn inputs_are_turns_and_parameters_say_otherwise() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let served = served(&relay, dir.path(), false);
    let announced = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    let model = announced.model.unwrap();
    assert_eq!(
        (model.name.as_str(), model.prompt.as_str()),
        ("echo", "chat")
    );
    assert_eq!(announced.params["raw"].default.as_deref(), Some("false"));
    assert!(announced.params.contains_key("system"));
    let customer = Customer::new();
    let marked = |text: &str, marker: &str| Input {
        marker: Some(marker.to_string()),
        ..Input::text(text)
    };
    let several = customer.request_with("", |request| {
        request.inputs = vec![
            marked("s", "system"),
            Input::text("a"),
            marked("b", "assistant"),
            Input::text("c"),
        ];
    });
    let text = answered(&relay, &customer, &several, 1);
    assert_eq!(text, "system: s user: a assistant: b user: c ");
    let with = |params: &[(&str, &str)]| {
        customer.request_with("a b", |request| {
            let params = params.iter();
            let params = params.map(|(key, value)| (key.to_string(), value.to_string()));
            request.params = params.collect();
        })
    };
    let text = answered(&relay, &customer, &with(&[("system_prompt", "s")]), 2);
    assert_eq!(text, "system: s user: a b assistant: system: s ");
    let text = answered(&relay, &customer, &with(&[("raw", "true")]), 3);
    assert_eq!(text, "a b a b a b a b ");
    let bad = customer.request_with("a", |request| {
        request.params = vec![("raw".to_string(), "maybe".to_string())];
        request.providers = vec![served.keys.public_key()];
        request.encryption = Some(Scheme::Nip44);
    });
    relay.publish(&bad);
    let reason = error(&relay, &customer, &bad);
    assert!(reason.contains("true or false"), "{reason}");
    assert!(!reason.contains("maybe"), "it was hidden: {reason}");
    let last = customer.request_with("", |request| {
        request.inputs = vec![Input::text("a"), marked("b", "assistant")];
    });
    relay.publish(&last);
    assert!(error(&relay, &customer, &last).contains("the last input"));
}

#[test]
fn an_operator_can_serve_raw_prompts_and_a_model_may_have_no_template() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let raw = served(&relay, dir.path(), true);
    let announced = Announcement::read(&relay.wait_for(31990, 1)[0]).unwrap();
    assert_eq!(announced.model.unwrap().prompt, "raw");
    assert_eq!(announced.params["raw"].default.as_deref(), Some("true"));
    let customer = Customer::new();
    let text = answered(&relay, &customer, &customer.request("a b"), 1);
    assert_eq!(text, "a b a b a b a b ");
    let chat = |prompt: &str| {
        customer.request_with(prompt, |request| {
            request.params = vec![("raw".to_string(), "false".to_string())];
        })
    };
    let text = answered(&relay, &customer, &chat("c"), 2);
    assert_eq!(text, "user: c assistant: user: c assistant: user: c ");
    raw.stop();

    let without = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::with(&[&without], dir.path(), Keys::generate(), |_| ());
    let job = chat("d");
    without.publish(&job);
    let reason = error(&without, &customer, &job);
    assert!(reason.contains("no chat template"), "{reason}");
}

/// A model that repeats its prompt thinks what is between the marks.
#[test]
fn results_are_answers_without_thoughts() {
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let template = "{# <think> #}{% for m in messages %}{{ m.content }} {% endfor %}";
    let template = ChatTemplate::new("test", template.to_string());
    let served = Served::templated(&[&relay], dir.path(), Some(template), |settings| {
        settings.default_tokens = 7;
        settings.partial_millis = 1;
    });
    served.echo.pause.store(5, SeqCst);
    let customer = Customer::new();
    let job = customer.request("<think> secret plan </think> c d e");
    let text = answered(&relay, &customer, &job, 1);
    assert_eq!(text, "c d e ");
    let mut partials = feedback(&relay, &customer, &job);
    partials.retain(|feedback| feedback.status == Status::Partial);
    assert!(!partials.is_empty());
    for partial in partials {
        assert!(text.starts_with(&partial.text), "{:?}", partial.text);
    }
    // Nor are the thoughts of an earlier answer read.
    let turns = customer.request_with("", |request| {
        let marker = Some("assistant".to_string());
        let answer = Input {
            marker,
            ..Input::text("<think> secret </think> b")
        };
        request.inputs = vec![Input::text("a"), answer, Input::text("c")];
    });
    let text = answered(&relay, &customer, &turns, 2);
    assert_eq!(text, "a b c a b c a ");
}

/// The same text as a conversation with the same model, from the program.
#[test]
fn a_models_own_template_is_used_and_its_special_tokens_are_not_doubled() {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let folder = ModelFolder::new();
    folder.write(
        "tokenizer_config.json",
        json!({ "chat_template": template, "bos_token": "<|begin_of_text|>" }).to_string(),
    );
    let relay = TestRelay::start();
    let dir = tempfile::tempdir().unwrap();
    let model = folder.path().to_str().unwrap();
    let _daemon = Daemon::start(&[&relay.url], dir.path(), &["--model", model]);
    relay.wait_for(31990, 1);
    let customer = Customer::new();
    // What a customer says is text, also where it is spelt as a special token.
    let text = "fn main() {<|begin_of_text|>";
    let job = customer.request_with(text, |request| {
        request.params = vec![("max_tokens".to_string(), "12".to_string())];
    });
    relay.publish(&job);
    let result = customer.read(&relay.wait_for(6050, 1)[0]);
    let rendered = ChatTemplate::new(
        "test",
        "<|begin_of_text|>{% for m in messages %}{{ m.content }}\n{% endfor %}".to_string(),
    );
    let request = CompletionRequest {
        max_tokens: 12,
        ..CompletionRequest::default()
    };
    let backend = embedded(DeviceKind::Cpu);
    let mut chat = Chat::new(backend, &rendered, None);
    let said = chat.say(text, &request, &mut |_| ControlFlow::Continue(()));
    let said = said.unwrap();
    let usage = result.usage.unwrap();
    assert_eq!(usage.prompt_tokens, said.prompt_tokens as u64);
    assert_eq!(result.text, said.text);
    let listed = stdout(&run(&["discover", "--relay", &relay.url]));
    assert!(
        listed.contains(": chat, 1024 tokens of context"),
        "{listed}"
    );
}
