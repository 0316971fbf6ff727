//! A server whose model has a draft model: the same texts, and `usage` says what became of what it proposed.

use super::{plain, with, Server, COMPLETIONS};
use crate::support::{model_dir, ModelFolder};
use serde_json::{json, Value};

const DETAILS: &str = "completion_tokens_details";

#[test]
fn texts_are_the_same_and_usage_counts_proposals() {
    let model = model_dir();
    let folder = ModelFolder::new();
    folder.write(
        "chat_template.jinja",
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    );
    let own = ["--model", folder.path().to_str().unwrap()];
    let alone = Server::start(&own);
    let drafted = Server::start(&[&own[..], &["--draft", model.to_str().unwrap()]].concat());
    let drawn = json!({"temperature": 0.9, "top_p": 0.95, "seed": 4});
    for more in [
        json!({}),
        json!({"logprobs": 1}),
        json!({"presence_penalty": 0.5, "logit_bias": {"40": 2}}),
        drawn,
    ] {
        let body = with(plain("fn main() {", 12), more);
        let chosen = |server: &Server| server.json(COMPLETIONS, body.clone());
        let (expected, found) = (chosen(&alone), chosen(&drafted));
        assert_eq!(found["choices"], expected["choices"], "{body}");
        assert!(expected["usage"].get(DETAILS).is_none(), "{expected}");
        let count = |name: &str| found["usage"][DETAILS][name].as_u64().unwrap();
        let accepted = count("accepted_prediction_tokens");
        let made = accepted + count("rejected_prediction_tokens");
        assert!((1..=12 * 8).contains(&made) && accepted < 12, "{found}");
        let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = drafted.events(COMPLETIONS, with(body, streamed));
        let usage: &Value = &events.last().unwrap()["usage"];
        assert!(usage[DETAILS]["accepted_prediction_tokens"].is_u64());
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let messages = json!([{"role": "user", "content": "fn main() {"}]);
    let asked = json!({
        "model": "tiny", "messages": messages, "response_format": schema, "max_tokens": 16, "temperature": 0.9, "seed": 4,
    });
    let chosen = |server: &Server| server.json("/v1/chat/completions", asked.clone());
    let (expected, found) = (chosen(&alone), chosen(&drafted));
    assert_eq!(found["choices"], expected["choices"]);
    assert!(found["usage"][DETAILS]["rejected_prediction_tokens"].is_u64());
}
