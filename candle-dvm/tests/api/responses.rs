//! `/v1/responses`: items in, items out, and the events between.

use super::{with, Server};
use crate::support::ModelFolder;
use serde_json::{json, Value};

const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";
/// As Qwen's templates, it teaches the form of Hermes.
const TEMPLATE: &str = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% for call in m.tool_calls %}{{ call.function.arguments.city }}{% endfor %}\n{% endfor %}";

fn server() -> (ModelFolder, Server) {
    let folder = ModelFolder::new();
    folder.write("chat_template.jinja", TEMPLATE);
    let server = Server::start(&["--model", folder.path().to_str().unwrap()]);
    (folder, server)
}

/// The events of an answer that is streamed, each under its name.
fn events(server: &Server, body: Value) -> Vec<Value> {
    let (status, text) = server.post(RESPONSES, &with(body, json!({"stream": true})));
    assert_eq!(status, 200, "{text}");
    let mut all = Vec::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("event: ") {
            name = named;
        }
        if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["type"], name);
            assert_eq!(event["sequence_number"], all.len());
            all.push(event);
        }
    }
    all
}

/// The items without their ids.
fn items(response: &Value) -> Value {
    let mut items = response["output"].clone();
    for item in items.as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        assert!(item.remove("id").unwrap().is_string());
        item.remove("call_id");
    }
    items
}

#[test]
fn texts_are_items_whole_and_as_events() {
    let (_folder, server) = server();
    let asked = json!({
        "model": "tiny", "input": "fn main() {", "instructions": "Rust", "max_output_tokens": 12, "temperature": 0,
        "store": true, "reasoning": null, "include": ["message.output_text.logprobs"], "top_logprobs": 2
    });
    let whole = server.json(RESPONSES, asked.clone());
    assert_eq!(
        (&whole["object"], &whole["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let message = &whole["output"][0];
    let text = message["content"][0]["text"].as_str().unwrap();
    // The same conversation as chat has the same prompt and the same text.
    let chat = json!({
        "model": "tiny", "max_tokens": 12, "temperature": 0, "messages": [
            {"role": "system", "content": "Rust"}, {"role": "user", "content": "fn main() {"}
        ]
    });
    let chat = server.json(CHAT, chat);
    assert_eq!(chat["choices"][0]["message"]["content"], text);
    assert_eq!(
        chat["usage"]["prompt_tokens"],
        whole["usage"]["input_tokens"]
    );
    let logprobs = message["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(
        (
            logprobs.len(),
            logprobs[0]["top_logprobs"].as_array().unwrap().len()
        ),
        (12, 2)
    );

    let all = events(&server, asked);
    let kinds: Vec<&str> = all
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        kinds[kinds.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let deltas = all
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(
        deltas
            .filter_map(|event| event["delta"].as_str())
            .collect::<String>(),
        text
    );
    let last = &all.last().unwrap()["response"];
    assert_eq!(items(last), items(&whole));
    assert_eq!(last["usage"], whole["usage"]);

    // Messages with parts, and what was answered before, id and all.
    let said = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "fn"}]}, message,
        {"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "let"}
    ]);
    let more = json!({"model": "tiny", "input": said, "max_output_tokens": 1});
    assert_eq!(
        server.json(RESPONSES, more)["output"][0]["role"],
        "assistant"
    );
    for (fields, part) in [
        (
            json!({"previous_response_id": "resp-1"}),
            "previous_response_id: is not supported",
        ),
        (json!({"input": []}), "input: is empty"),
        (
            json!({"input": [{"type": "web_search_call"}]}),
            "input[0].type: unsupported item",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "tiny takes no images",
        ),
        (json!({"include": ["file_search_call.results"]}), "include"),
        (json!({"n": 2}), "n: is not supported"),
        (json!({"truncation": "auto"}), "truncation"),
        (
            json!({"text": {"format": {"type": "grammar"}}}),
            "text.format.type",
        ),
        (json!({"reasoning": {"effort": "high"}}), "reasoning"),
    ] {
        let body = json!({"model": "tiny", "input": "fn", "max_output_tokens": 1});
        let problem = server.problem(RESPONSES, with(body, fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn schemas_and_calls() {
    let (_folder, server) = server();
    let city = json!({
        "type": "object", "additionalProperties": false, "required": ["city"],
        "properties": {"city": {"$ref": "#/$defs/town"}}, "$defs": {"town": {"enum": ["Rome", "Oslo"]}}
    });
    let format =
        json!({"format": {"type": "json_schema", "name": "it", "strict": true, "schema": city}});
    let asked = json!({"model": "tiny", "input": "fn", "max_output_tokens": 200, "temperature": 1, "seed": 3});
    let whole = server.json(RESPONSES, with(asked.clone(), json!({"text": format})));
    let found: Value =
        serde_json::from_str(whole["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(
        found["city"] == "Rome" || found["city"] == "Oslo",
        "{found}"
    );
    assert_eq!(whole["status"], "completed");

    let tools = json!([
        {"type": "function", "name": "weather", "strict": true, "parameters": city},
        {"type": "function", "name": "time", "parameters": null}
    ]);
    let must = |choice: Value| {
        with(
            asked.clone(),
            json!({"tools": tools, "tool_choice": choice}),
        )
    };
    let one = must(json!({"type": "function", "name": "weather"}));
    let whole = server.json(RESPONSES, one.clone());
    let call = &whole["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("weather"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(
        arguments["city"] == "Rome" || arguments["city"] == "Oslo",
        "{arguments}"
    );
    let all = events(&server, one);
    let kinds: Vec<&str> = all
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[2..],
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    assert_eq!(items(&all.last().unwrap()["response"]), items(&whole));
    for seed in 0..4 {
        let any = server.json(
            RESPONSES,
            with(must(json!("required")), json!({"seed": seed})),
        );
        let call = &any["output"][0];
        assert_eq!(call["type"], "function_call", "{any}");
        if call["name"] == "time" {
            assert_eq!(call["arguments"], "{}");
        }
    }
    // The result of the call belongs to the answer that called.
    let said = json!([
        {"role": "user", "content": "fn"}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    ]);
    let more = server.json(
        RESPONSES,
        json!({"model": "tiny", "input": said, "max_output_tokens": 1}),
    );
    let city = arguments["city"].as_str().unwrap();
    let plain = json!([{"role": "user", "content": "fn"}, {"role": "assistant", "content": city}, {"role": "tool", "content": "sunny"}]);
    let chat = server.json(
        CHAT,
        json!({"model": "tiny", "messages": plain, "max_tokens": 1}),
    );
    assert_eq!(
        more["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );

    // The same in chat's words.
    let nested = json!([{"type": "function", "function": {"name": "time"}}]);
    let chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "fn"}], "tools": nested,
        "tool_choice": {"type": "function", "function": {"name": "time"}}
    });
    let answer = server.json(CHAT, chat.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"],
        json!({"name": "time", "arguments": "{}"})
    );
    for (fields, part) in [
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "\"other\" is not one of the tools",
        ),
        (
            json!({"tool_choice": "maybe"}),
            "expected none, auto, required",
        ),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "no tools to choose from",
        ),
    ] {
        let problem = server.problem(CHAT, with(chat.clone(), fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
}
