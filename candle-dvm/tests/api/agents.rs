//! Features that agents use in addition to plain text: several answers, penalties, tokens, vectors, JSON.

use super::{plain, with, Server, COMPLETIONS};
use crate::embed::Folder;
use crate::support::ModelFolder;
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

/// The embedded model with a chat template.
pub(super) fn chat_folder() -> ModelFolder {
    let folder = ModelFolder::new();
    folder.write("chat_template.jinja", TEMPLATE);
    folder
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap().iter();
    choices
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

#[test]
fn several_answers_to_a_prompt() {
    let folder = chat_folder();
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    let drawn = json!({"n": 3, "temperature": 1, "seed": 5});
    let answer = server.json(COMPLETIONS, with(plain("let", 12), drawn.clone()));
    let three = texts(&answer);
    assert_eq!(three.len(), 3);
    assert!(three[0] != three[1] && three[1] != three[2], "{three:?}");
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    // The first is what it is alone, and all are the same again, also as events.
    let alone = server.json(
        COMPLETIONS,
        with(plain("let", 12), with(drawn.clone(), json!({"n": 1}))),
    );
    assert_eq!(texts(&alone), three[..1]);
    let two = json!({"prompt": ["let", "fn"], "stream": true});
    let events = server.events(COMPLETIONS, with(plain("", 12), with(drawn.clone(), two)));
    let piece = |index: usize| {
        let of = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == index);
        of.filter_map(|event| event["choices"][0]["text"].as_str())
            .collect::<String>()
    };
    assert_eq!([piece(0), piece(1), piece(2)], three[..]);
    assert!(!piece(5).is_empty());

    let chat =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "let"}], "max_tokens": 6});
    let whole = server.json(CHAT, with(chat.clone(), drawn.clone()));
    let contents = whole["choices"].as_array().unwrap().iter();
    let contents: Vec<_> = contents
        .map(|it| it["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(contents.len(), 3);
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = server.events(CHAT, with(with(chat, drawn), stream));
    for (index, content) in contents.iter().enumerate() {
        let of = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == index);
        let pieces = of.filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(&pieces.collect::<String>(), content);
    }
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
    let many = server.problem(COMPLETIONS, with(plain("a", 1), json!({"n": 17})), 400);
    assert!(many.contains("n: 17 is out of range"), "{many}");
}

#[test]
fn penalties_and_biases_change_what_is_chosen() {
    let server = Server::start(&[]);
    let ids = |fields: Value| {
        let answer = server.json(COMPLETIONS, with(plain("fn main() {", 24), fields));
        let text = texts(&answer)[0].to_string();
        let tokens = server.json("/tokenize", json!({"content": text}));
        (text, tokens["tokens"].as_array().unwrap().clone())
    };
    // One token beats all others.
    let bias = ids(json!({"logit_bias": {"40": 100}, "max_tokens": 5}));
    let token = server.json("/detokenize", json!({"tokens": [40, 40, 40, 40, 40]}));
    assert_eq!(bias.0, token["content"].as_str().unwrap());
    // Each time that it is there costs it 2, and the bias does not hold that for ever.
    let both = json!({"logit_bias": {"40": 12}, "frequency_penalty": 2});
    let often = |ids: &[Value]| ids.iter().filter(|id| **id == 40).count();
    let (free, penalised) = (ids(json!({"logit_bias": {"40": 12}})), ids(both));
    assert!(
        often(&penalised.1) < often(&free.1),
        "{penalised:?} {free:?}"
    );
    let (free, present) = (ids(json!({})), ids(json!({"presence_penalty": 2})));
    let distinct = |ids: &[Value]| {
        let mut ids: Vec<u64> = ids.iter().filter_map(Value::as_u64).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    };
    assert!(
        distinct(&present.1) > distinct(&free.1),
        "{present:?} {free:?}"
    );
    for (fields, part) in [
        (json!({"logit_bias": {"x": 1}}), "token \"x\""),
        (json!({"logit_bias": {"4096": 1}}), "4096"),
        (json!({"logit_bias": {"5": 101}}), "-100 to 100"),
        (json!({"presence_penalty": 2.5}), "presence_penalty: 2.5"),
        (
            json!({"frequency_penalty": "much"}),
            "expected a number, found \"much\"",
        ),
    ] {
        let problem = server.problem(COMPLETIONS, with(plain("a", 1), fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn tokens_and_counts() {
    let server = Server::start(&[]);
    let tokens = server.json(
        "/tokenize",
        json!({"content": "fn main() {", "add_special": true}),
    );
    let ids = tokens["tokens"].as_array().unwrap();
    assert_eq!((&ids[0], &tokens["count"]), (&json!(0), &json!(ids.len())));
    let text = server.json("/detokenize", json!({"tokens": ids}));
    assert_eq!(text["content"], "fn main() {");
    let of_text = server.json(COMPLETIONS, plain("fn main() {", 5));
    let of_ids = server.json(COMPLETIONS, with(plain("", 5), json!({"prompt": ids})));
    assert_eq!(texts(&of_text), texts(&of_ids));
    assert_eq!(of_text["usage"]["prompt_tokens"], tokens["count"]);
    assert_eq!(
        server.json("/tokenize", json!({"content": ""}))["tokens"],
        json!([])
    );
    let problem = server.problem("/detokenize", json!({"tokens": [5000]}), 400);
    assert!(problem.contains("token 5000"), "{problem}");

    server.problem(COMPLETIONS, with(plain("a", 1), json!({"best_of": 2})), 400);
    let page = ureq::get(format!("{}/metrics", server.address))
        .call()
        .unwrap();
    let page = page.into_body().read_to_string().unwrap();
    let count = 2 * ids.len();
    for line in [
        format!("candle_api_prompt_tokens_total {count}"),
        "candle_api_completion_tokens_total 10".to_string(),
        "candle_api_completions_total 2".to_string(),
        "candle_api_completions_running 0".to_string(),
        "candle_api_completions_queued 0".to_string(),
        r#"candle_api_requests_total{route="/v1/completions",status="200"} 2"#.to_string(),
        r#"candle_api_requests_total{route="/v1/completions",status="400"} 1"#.to_string(),
    ] {
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
    let seconds = page
        .lines()
        .find_map(|line| line.strip_prefix("candle_api_completion_seconds_total "));
    assert!(seconds.unwrap().parse::<f64>().unwrap() > 0.0, "{page}");
}

#[test]
fn vectors_of_texts_and_of_tokens() {
    let folder = Folder::new();
    let path = folder.path().to_str().unwrap();
    let server = Server::start(&["--embedding-model", path, "--embedding-name", "vectors"]);
    let vectors = |input: Value| {
        let answer = server.json(
            "/v1/embeddings",
            json!({"model": "vectors", "input": input, "user": null}),
        );
        let data = answer["data"].as_array().unwrap().iter();
        data.map(|it| it["embedding"].clone()).collect::<Vec<_>>()
    };
    let whole = vectors(json!(["a b c", "d"]));
    let ids = |text: &str| {
        let asked = json!({"model": "vectors", "content": text, "add_special": true});
        server.json("/tokenize", asked)["tokens"].clone()
    };
    assert_eq!(ids("a b c"), json!([2, 4, 5, 6, 3]));
    // Rows of another batch are rounded otherwise.
    let is_close = |a: &[Value], b: &[Value]| {
        let numbers = |all: &[Value]| -> Vec<f64> {
            let rows = all.iter().flat_map(|row| row.as_array().unwrap());
            rows.map(|x| x.as_f64().unwrap()).collect()
        };
        let (a, b) = (numbers(a), numbers(b));
        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4)
    };
    assert!(is_close(&vectors(json!([ids("a b c"), ids("d")])), &whole));
    assert!(is_close(&vectors(ids("d")), &whole[1..]));
    let long = json!({"model": "vectors", "content": "a ".repeat(40)});
    let problem = server.problem("/tokenize", long, 400);
    assert!(problem.contains("more than"), "{problem}");
    for (input, part) in [
        (json!([1, 999]), "token 999"),
        (json!([[1], []]), "input[1]: found 0 tokens"),
        (json!([vec![1; 99]]), "found 99 tokens"),
        (json!([]), "found 0"),
        (json!([1.5]), "expected a text, a list of texts"),
        (json!(["a", 1]), "expected a text, a list of texts"),
    ] {
        let problem = server.problem(
            "/v1/embeddings",
            json!({"model": "vectors", "input": input}),
            400,
        );
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let listed = ureq::get(format!("{}/v1/models", server.address))
        .call()
        .unwrap();
    let listed: Value = listed.into_body().read_json().unwrap();
    assert_eq!(listed["data"][1]["id"], "vectors");
}

#[test]
fn answers_keep_to_a_schema() {
    let folder = chat_folder();
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "fn"}], "max_tokens": 200});
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["count", "kind"],
        "properties": {
            "count": {"type": "integer", "minimum": 10, "maximum": 99},
            "kind": {"enum": ["left", "right"]}
        }
    });
    let format = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}}});
    for seed in 0..6 {
        let drawn = json!({"seed": seed, "temperature": if seed == 0 { 0.0 } else { 1.5 }});
        let asked = with(with(chat.clone(), format(&schema)), drawn);
        let answer = server.json(CHAT, asked);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let content = choice["message"]["content"].as_str().unwrap();
        let found: Value = serde_json::from_str(content).unwrap();
        let object = found.as_object().unwrap();
        assert_eq!(object.len(), 2, "{found}");
        assert!(
            (10..=99).contains(&found["count"].as_i64().unwrap()),
            "{found}"
        );
        assert!(
            found["kind"] == "left" || found["kind"] == "right",
            "{found}"
        );
    }
    // Any object; one that is cut off is the beginning of one.
    let any = json!({"response_format": {"type": "json_object"}, "max_tokens": 40, "temperature": 1.0, "seed": 3});
    let answer = server.json(CHAT, with(chat.clone(), any));
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.trim_start().starts_with('{'), "{content}");
    let whole = serde_json::from_str::<Value>(content);
    assert!(
        whole.is_ok() || answer["choices"][0]["finish_reason"] == "length",
        "{content}"
    );

    for (fields, part) in [
        (
            format(&json!({"type": "nonsense"})),
            "response_format.json_schema.schema",
        ),
        (format(&json!(5)), "expected an object"),
        (
            format(&json!({"type": "string", "pattern": "("})),
            "response_format.json_schema.schema",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "json_schema: is missing",
        ),
        (
            json!({"response_format": {"type": "grammar"}}),
            "unsupported type \"grammar\"",
        ),
        (json!({"response_format": "json"}), "expected an object"),
    ] {
        let problem = server.problem(CHAT, with(chat.clone(), fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    server.json(
        CHAT,
        with(
            chat,
            json!({"max_tokens": 1, "response_format": {"type": "text"}}),
        ),
    );
}

/// A model that is held to the form of a call calls.
#[test]
fn functions_are_called() {
    let folder = ModelFolder::new();
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
        {% for call in m.tool_calls %}{{ call.function.arguments.city }}{% endfor %}\n{% endfor %}";
    folder.write("chat_template.jinja", template);
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    let user = json!({"role": "user", "content": "fn"});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let of = |name: &str, schema: Value| {
        json!({
            "type": "object", "additionalProperties": false, "required": ["name", "parameters"],
            "properties": {"name": {"const": name}, "parameters": schema}
        })
    };
    let city = json!({
        "type": "object", "additionalProperties": false, "required": ["city"],
        "properties": {"city": {"const": "Rome"}}
    });
    let asked = |name: &str, more: Value| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "call", "schema": of(name, city.clone())}});
        let chat = json!({
            "model": "tiny", "messages": [user], "max_tokens": 200, "temperature": 0, "tools": tools,
            "response_format": format
        });
        with(chat, more)
    };
    let answer = server.json(CHAT, asked("weather", json!({})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("weather"))
    );
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Rome"}));

    let events = server.events(CHAT, asked("weather", json!({"stream": true})));
    let deltas: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .collect();
    assert!(deltas
        .iter()
        .all(|delta| delta["content"].as_str().unwrap_or_default().is_empty()));
    let calls: Vec<&Value> = deltas
        .iter()
        .filter_map(|delta| delta.get("tool_calls"))
        .collect();
    assert_eq!(calls.len(), 1, "{events:?}");
    assert_eq!(calls[0][0]["function"], call["function"]);
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "tool_calls"
    );

    // A function that is not there is text, and so is a call where none is wanted.
    for more in [
        asked("other", json!({})),
        asked("weather", json!({"tool_choice": "none"})),
    ] {
        let answer = server.json(CHAT, more.clone());
        let choice = &answer["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap();
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let events = server.events(CHAT, with(more, json!({"stream": true})));
        let pieces = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces.collect::<String>(), content);
    }

    // The conversation continues with the call and its result.
    let said = json!([
        user,
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    ]);
    let prompt = |messages: Value| {
        let chat =
            json!({"model": "tiny", "messages": messages, "max_tokens": 1, "temperature": 0});
        server.json(CHAT, chat)["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let plain = json!([user, {"role": "assistant", "content": "Rome"}, {"role": "tool", "content": "sunny"}]);
    assert_eq!(prompt(said), prompt(plain));
    for (fields, part) in [
        (json!({"tool_choice": {"type": "custom"}}), "tool_choice"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}),
            "not JSON",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "mood": "good"}]}),
            "messages[0].mood",
        ),
    ] {
        let problem = server.problem(CHAT, asked("weather", fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}
