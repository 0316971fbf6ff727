//! Models that think: their thoughts are apart from their answers, within a budget, and not read again.
//!
//! The embedded model does not think by itself. Its templates here open thoughts in the prompt, and a budget ends them.

use super::{with, Server};
use crate::support::ModelFolder;
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// Thoughts begin in the prompt unless they are switched off.
const INSIDE: &str = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{{ mood }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";

fn server(template: &str) -> (ModelFolder, Server) {
    let folder = ModelFolder::new();
    folder.write("chat_template.jinja", template);
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    (folder, server)
}

fn asked(more: Value) -> Value {
    let chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "fn main() {"}], "max_tokens": 40,
        "temperature": 0, "logit_bias": {"1": -100}
    });
    with(chat, more)
}

/// The thoughts and the content of a message.
fn said(answer: &Value) -> (&str, &str) {
    let message = &answer["choices"][0]["message"];
    (
        message["reasoning_content"].as_str().unwrap_or_default(),
        message["content"].as_str().unwrap(),
    )
}

fn thought_tokens(answer: &Value) -> u64 {
    let details = &answer["usage"]["completion_tokens_details"];
    details["reasoning_tokens"].as_u64().unwrap()
}

#[test]
fn thoughts_are_apart_whole_and_in_pieces() {
    let (_folder, server) = server(INSIDE);
    let asked = asked(json!({"thinking_budget": 6, "logprobs": true}));
    let whole = server.json(CHAT, asked.clone());
    let (thoughts, content) = said(&whole);
    assert!(!thoughts.is_empty() && !content.is_empty(), "{whole}");
    assert!(
        !thoughts.contains("think>") && !content.contains("think>"),
        "{whole}"
    );
    assert!(
        !content.starts_with('\n') && !thoughts.ends_with('\n'),
        "{whole}"
    );
    // The budget, and the tokens of the mark that ends it.
    let mark = server.json("/tokenize", json!({"content": "\n</think>"}))["count"].clone();
    let tokens = thought_tokens(&whole);
    assert!(
        (7..=6 + mark.as_u64().unwrap()).contains(&tokens),
        "{tokens}, {mark}"
    );
    let logprobs = &whole["choices"][0]["logprobs"]["content"];
    let texts = logprobs.as_array().unwrap().iter();
    let texts: String = texts.map(|it| it["token"].as_str().unwrap()).collect();
    assert!(
        texts.ends_with(content) && texts.len() < content.len() + 3,
        "{texts:?} {content:?}"
    );

    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = server.events(CHAT, with(asked, stream));
    let all = |name: &str| {
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
        deltas
            .filter_map(|delta| delta[name].as_str())
            .collect::<String>()
    };
    assert_eq!(
        (all("reasoning_content").as_str(), all("content").as_str()),
        (thoughts, content)
    );
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

#[test]
fn thoughts_that_do_not_end_are_all_there_is() {
    let (_folder, server) = server(INSIDE);
    let asked = asked(json!({"max_tokens": 8}));
    let whole = server.json(CHAT, asked.clone());
    let (thoughts, content) = said(&whole);
    assert!(!thoughts.is_empty(), "{whole}");
    assert_eq!((content, thought_tokens(&whole)), ("", 8));
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    // Without any, the model answers at once: by the template, and where that has no such switch by the budget.
    let off = server.json(
        CHAT,
        with(asked.clone(), json!({"reasoning_effort": "none"})),
    );
    assert_eq!((said(&off).0, thought_tokens(&off)), ("", 0));
    let switch = json!({"chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(
        said(&server.json(CHAT, with(asked.clone(), switch))),
        said(&off)
    );
    let (_bare, bare) = self::server("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n");
    let off = with(asked, json!({"reasoning_effort": "none", "max_tokens": 30}));
    let off = bare.json(CHAT, off);
    assert_eq!(said(&off).0, "");
    assert!(
        !said(&off).1.is_empty() && !said(&off).1.contains("think>"),
        "{off}"
    );
}

/// The form of an answer is that of the answer alone, and so is a call.
#[test]
fn forms_hold_after_thoughts() {
    let (_folder, inside) = server(INSIDE);
    let (_other, start) =
        server("{# <think> #}{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["kind"],
        "properties": {"kind": {"enum": ["left", "right"]}}
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    let formed = asked(
        json!({"thinking_budget": 5, "max_tokens": 90, "response_format": format, "logit_bias": null}),
    );
    for (server, thinks) in [(&inside, true), (&start, false)] {
        for seed in 0..4 {
            let temperature = if seed == 0 { 0.0 } else { 1.5 };
            let drawn = json!({"seed": seed, "temperature": temperature});
            let answer = server.json(CHAT, with(formed.clone(), drawn));
            let (thoughts, content) = said(&answer);
            assert!(!thinks || !thoughts.is_empty(), "{answer}");
            let found: Value = serde_json::from_str(content).unwrap();
            assert!(
                found["kind"] == "left" || found["kind"] == "right",
                "{answer}"
            );
        }
    }
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": schema}}]);
    let call = asked(json!({
        "thinking_budget": 5, "max_tokens": 200, "tools": tools, "tool_choice": "required", "logit_bias": null
    }));
    let answer = inside.json(CHAT, call);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert!(
        choice["message"]["reasoning_content"].is_string(),
        "{answer}"
    );
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["kind"].is_string(), "{answer}");
}

/// The answer of a model whose template has marks of thoughts, and which writes none, is unchanged.
#[test]
fn answers_without_thoughts_are_unchanged() {
    let plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let (_plain, plain) = (ModelFolder::new(), server(plain));
    let (_marked, marked) =
        server("{# <think> #}{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let answer = plain.1.json(CHAT, asked(json!({})));
    assert!(answer["usage"].get("completion_tokens_details").is_none());
    assert!(answer["choices"][0]["message"]
        .get("reasoning_content")
        .is_none());
    let other = marked.json(CHAT, asked(json!({})));
    assert_eq!(said(&other), said(&answer));
    assert_eq!(thought_tokens(&other), 0);
}

#[test]
fn earlier_thoughts_are_for_templates_that_read_them() {
    let (_folder, forgets) = server(INSIDE);
    let reads = INSIDE.replace(
        "{{ m.content }}",
        "{{ m.content }}{{ m.reasoning_content }}",
    );
    let (_other, reads) = server(&reads);
    let tokens = |server: &Server, answer: Value| {
        let user = json!({"role": "user", "content": "fn"});
        let mut answer = answer;
        answer["role"] = "assistant".into();
        let body = json!({"model": "tiny", "messages": [user, answer, user], "max_tokens": 1});
        let answer = server.json(CHAT, body);
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = json!({"content": "let x"});
    let marked = json!({"content": "<think>\nthe borrow checker\n</think>\n\nlet x"});
    let beside = json!({"content": "let x", "reasoning_content": "the borrow checker"});
    let alone = tokens(&forgets, plain.clone());
    assert_eq!(tokens(&forgets, marked.clone()), alone);
    assert_eq!(tokens(&forgets, beside.clone()), alone);
    assert_eq!(tokens(&reads, plain), alone);
    assert!(tokens(&reads, beside.clone()) > alone);
    assert_eq!(tokens(&reads, marked), tokens(&reads, beside.clone()));
    let responses = |server: &Server| {
        let part = json!({"type": "reasoning_text", "text": "the borrow checker"});
        let input = json!([
            {"role": "user", "content": "fn"}, {"type": "reasoning", "id": "rs-1", "summary": [], "content": [part]},
            {"role": "assistant", "content": "let x"}, {"role": "user", "content": "fn"}
        ]);
        let body = json!({"model": "tiny", "input": input, "max_output_tokens": 1});
        server.json(RESPONSES, body)["usage"]["input_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(responses(&forgets), alone);
    assert_eq!(responses(&reads), tokens(&reads, beside));
}

/// Magistral's marks are special tokens, which decoders leave out.
#[test]
fn marks_that_are_special_tokens_are_seen() {
    let folder = ModelFolder::new();
    folder.edit("tokenizer.json", |tokenizer| {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let last = vocab.iter().find(|(_, id)| **id == 4095).unwrap().0.clone();
        vocab.remove(&last);
        vocab.insert("[/THINK]".to_string(), 4095.into());
        tokenizer["model"]["merges"].as_array_mut().unwrap().pop();
        let mut token = tokenizer["added_tokens"][1].clone();
        token["id"] = 4095.into();
        token["content"] = "[/THINK]".into();
        tokenizer["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(token);
    });
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}[THINK]";
    folder.write("chat_template.jinja", template);
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    let hidden = server.json("/detokenize", json!({"tokens": [4095, 40]}));
    assert!(!hidden["content"].as_str().unwrap().contains("THINK"));
    let answer = server.json(CHAT, asked(json!({"thinking_budget": 4})));
    let (thoughts, content) = said(&answer);
    assert!(!thoughts.is_empty() && !content.is_empty(), "{answer}");
    assert!(!answer.to_string().contains("THINK"), "{answer}");
}

#[test]
fn responses_have_an_item_of_thoughts() {
    let (_folder, server) = server(INSIDE);
    let body = json!({
        "model": "tiny", "input": "fn main() {", "max_output_tokens": 40, "temperature": 0, "thinking_budget": 6,
        "logit_bias": {"1": -100}, "reasoning": {"effort": "low", "summary": "auto"}
    });
    let whole = server.json(RESPONSES, body.clone());
    let output = whole["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{whole}");
    let thoughts = output[0]["content"][0]["text"].as_str().unwrap();
    let text = output[1]["content"][0]["text"].as_str().unwrap();
    assert!(
        !thoughts.is_empty() && !text.is_empty() && !text.contains("think>"),
        "{whole}"
    );
    let details = &whole["usage"]["output_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64().unwrap() > 6, "{whole}");

    let (status, events) = server.post(RESPONSES, &with(body, json!({"stream": true})));
    assert_eq!(status, 200, "{events}");
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|it| serde_json::from_str(it).unwrap()).collect();
    let all = |kind: &str| {
        let deltas = events.iter().filter(|event| event["type"] == kind);
        deltas
            .filter_map(|event| event["delta"].as_str())
            .collect::<String>()
    };
    assert_eq!(all("response.reasoning_text.delta"), thoughts);
    assert_eq!(all("response.output_text.delta"), text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(last["output"][0]["content"], output[0]["content"]);
    assert_eq!(last["output"][1]["content"], output[1]["content"]);
    let added = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.added");
    let places: Vec<u64> = added
        .map(|event| event["output_index"].as_u64().unwrap())
        .collect();
    assert_eq!(places, [0, 1]);
}

#[test]
fn fields_that_cannot_hold_are_refused() {
    let (_folder, thinks) = server(INSIDE);
    let (_other, plain) = server("{% for m in messages %}{{ m.content }}{% endfor %}");
    for (fields, part) in [
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
        ),
        (
            json!({"chat_template_kwargs": []}),
            "chat_template_kwargs: expected an object",
        ),
        (
            json!({"reasoning_effort": "much"}),
            "reasoning_effort: \"much\" is not supported",
        ),
        (
            json!({"thinking_budget": -5}),
            "thinking_budget: -5 is out of range",
        ),
        (
            json!({"reasoning_budget": "few"}),
            "reasoning_budget: expected a whole number",
        ),
    ] {
        let problem = thinks.problem(CHAT, asked(fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let effort = asked(json!({"reasoning_effort": "high", "max_tokens": 1}));
    let problem = plain.problem(CHAT, effort.clone(), 400);
    assert!(problem.contains("reasoning_effort: \"high\""), "{problem}");
    thinks.json(CHAT, effort);
    plain.json(
        CHAT,
        asked(json!({"reasoning_effort": "none", "max_tokens": 1})),
    );
    // Templates read names of their choice.
    let tokens = |mood: &str| {
        let variables = json!({"chat_template_kwargs": {"mood": mood}, "max_tokens": 1});
        let answer = thinks.json(CHAT, asked(variables));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens("the borrow checker ") > tokens(""));
}
