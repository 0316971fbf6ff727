//! `candle-dvm api`, as clients of OpenAI's interface use it.

mod agents;
pub(crate) mod audio;
mod cache;
mod draft;
mod models;
mod rerank;
mod responses;
mod strangers;
mod thinking;

use crate::cli::program;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program, serving the embedded model on a port of its choice.
pub(crate) struct Server {
    process: Child,
    address: String,
    /// The lines of standard error before the address.
    said: Vec<String>,
}

/// A client to which refusals are answers.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(120)))
        .build()
        .into()
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["api", "--device", "cpu", "--name", "tiny"];
        if !args.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(args);
        let mut command: Command = program(&all);
        let mut process = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let mut said = Vec::new();
        let mut lines = stderr.lines();
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("it ended: {said:?}");
            };
            if let Some(start) = line.find("http://") {
                let rest = &line[start..];
                break rest[..rest.find("/v1").unwrap()].to_string();
            }
            said.push(line);
        };
        // What is logged later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address,
            said,
        }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let answer = agent()
            .post(format!("{}{path}", self.address))
            .send_json(body);
        let mut answer = answer.unwrap();
        (
            answer.status().as_u16(),
            answer.body_mut().read_to_string().unwrap(),
        )
    }

    pub fn json(&self, path: &str, body: Value) -> Value {
        let (status, text) = self.post(path, &body);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The message of an error, which has this status.
    pub fn problem(&self, path: &str, body: Value, status: u16) -> String {
        let (found, text) = self.post(path, &body);
        assert_eq!(found, status, "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        assert!(json["error"]["type"].is_string(), "{text}");
        json["error"]["message"].as_str().unwrap().to_string()
    }

    /// The events of a stream, which `[DONE]` ends.
    fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let (status, text) = self.post(path, &body);
        assert_eq!(status, 200, "{text}");
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut lines: Vec<&str> = lines.collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{text}");
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const COMPLETIONS: &str = "/v1/completions";

fn plain(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn texts_whole_and_in_pieces() {
    let server = Server::start(&[]);
    let whole = server.json(COMPLETIONS, plain("fn main() {", 12));
    assert_eq!(whole["object"], "text_completion");
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let total = whole["usage"]["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(whole["usage"]["total_tokens"], total);

    let streamed =
        json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": 2});
    let events = server.events(COMPLETIONS, with(plain("fn main() {", 12), streamed));
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]),
        (&json!([]), &whole["usage"])
    );
    let tokens = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(tokens.flatten().count(), 12);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));

    // Several prompts, and tokens instead of texts.
    let several = server.json(
        COMPLETIONS,
        with(plain("", 5), json!({"prompt": ["fn main() {", "let x"]})),
    );
    let choices = several["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[1]["index"]), (2, &json!(1)));
    assert!(text.starts_with(choices[0]["text"].as_str().unwrap()));
    let tokens = server.json(
        COMPLETIONS,
        with(plain("", 3), json!({"prompt": [1, 40, 50], "logprobs": 1})),
    );
    let logprobs = &tokens["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["text_offset"][0], 0);

    // The same seed, the same text; the text does not include a stop sequence.
    let drawn = |seed: u64| {
        let body = json!({"temperature": 1.0, "seed": seed, "top_p": 0.9});
        server.json(COMPLETIONS, with(plain("let", 16), body))["choices"][0]["text"].clone()
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
    let stop: String = text.chars().skip(2).take(3).collect();
    let stopped = server.json(
        COMPLETIONS,
        with(plain("fn main() {", 12), json!({"stop": stop})),
    );
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let end = text.find(&stop).unwrap();
    assert_eq!(stopped["choices"][0]["text"], text[..end]);
}

#[test]
fn many_clients_at_once() {
    let server = Server::start(&["--slots", "4"]);
    let prompts: Vec<String> = (0..16).map(|i| format!("let value_{i} = ")).collect();
    let alone = prompts
        .iter()
        .map(|prompt| server.json(COMPLETIONS, plain(prompt, 10)));
    let alone: Vec<Value> = alone
        .map(|answer| answer["choices"][0]["text"].clone())
        .collect();
    std::thread::scope(|scope| {
        let clients = prompts.iter().zip(&alone).map(|(prompt, alone)| {
            let server = &server;
            scope.spawn(move || {
                let answer = server.json(COMPLETIONS, plain(prompt, 10));
                assert_eq!(&answer["choices"][0]["text"], alone);
            })
        });
        clients
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
}

/// The slot of a client that disconnects in the middle of a stream becomes free.
#[test]
fn a_client_that_leaves_frees_its_place() {
    let server = Server::start(&["--slots", "1", "--waiting", "0"]);
    let body = with(
        plain("fn main() {", 4000),
        // It does not end by itself.
        json!({"stream": true, "temperature": 1.5, "logit_bias": {"1": -100}}),
    );
    let address = server.address.trim_start_matches("http://").to_string();
    let text = body.to_string();
    let mut socket = std::net::TcpStream::connect(&address).unwrap();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
    let mut beginning = [0; 400];
    socket.read_exact(&mut beginning).unwrap();
    let busy = server.problem(COMPLETIONS, plain("x", 1), 429);
    assert!(busy.contains("try again later"), "{busy}");
    drop(socket);
    let start = std::time::Instant::now();
    while server.post(COMPLETIONS, &plain("x", 1)).0 != 200 {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the place stays taken"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn mistakes_have_the_interfaces_form() {
    let server = Server::start(&[]);
    for (fields, status, part) in [
        (json!({"model": "other"}), 404, "tiny"),
        (json!({"temperature": 3}), 400, "temperature"),
        (json!({"top_p": 0}), 400, "top_p"),
        (json!({"n": 0}), 400, "n"),
        (json!({"grammar": "root ::= x"}), 400, "grammar"),
        (json!({"json_schema": {}}), 400, "json_schema"),
        (
            json!({"repetition_penalty": 1.1}),
            400,
            "repetition_penalty",
        ),
        (json!({"n_predict": 5}), 400, "n_predict"),
        (json!({"reasoning_effort": "high"}), 400, "reasoning_effort"),
        (json!({"verbosity": "high"}), 400, "verbosity"),
        (json!({"tools": [{}]}), 400, "tools"),
        (json!({"suffix": "x".repeat(9000)}), 400, "suffix"),
        (
            json!({"stream_options": {"often": true}}),
            400,
            "stream_options.often",
        ),
        (
            json!({"temperature": "hot"}),
            400,
            "temperature: expected a number, found \"hot\"",
        ),
        (json!({"model": null}), 400, "model: is missing"),
        (json!({"best_of": 3}), 400, "best_of"),
        (json!({"echo": true}), 400, "echo"),
        (json!({"logprobs": 6}), 400, "logprobs"),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), 400, "stop"),
        (json!({"stop": ""}), 400, "stop"),
        (json!({"prompt": []}), 400, "prompt"),
        (json!({"prompt": [99_999_999]}), 400, "token"),
        (json!({"max_tokens": 0}), 400, "max_tokens"),
        (
            json!({"prompt": "a b c d e f g h ".repeat(4000)}),
            400,
            "tokens",
        ),
        (json!({"prompt": 5}), 400, "prompt"),
    ] {
        let problem = server.problem(COMPLETIONS, with(plain("a", 1), fields), status);
        assert!(problem.contains(part), "{part}: {problem}");
        assert!(problem.len() < 700, "{problem}");
    }
    let (_, text) = server.post(COMPLETIONS, &with(plain("a", 1), json!({"temperature": 3})));
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["param"], "temperature");
    let unknown = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build(),
    );
    let unknown = unknown
        .get(format!("{}/v1/models/%ff", server.address))
        .call()
        .unwrap();
    assert_eq!(unknown.status(), 404);
    let unknown: Value = unknown.into_body().read_json().unwrap();
    assert_eq!(unknown["error"]["code"], "model_not_found");
    // What changes nothing is taken.
    let harmless =
        json!({"presence_penalty": 0, "logit_bias": {}, "best_of": 1, "user": "somebody", "n": 1});
    server.json(COMPLETIONS, with(plain("a", 1), harmless));
    let nothing = json!({"presence_penalty": -0.0, "parallel_tool_calls": true, "verbosity": "medium", "tools": []});
    server.json(COMPLETIONS, with(plain("a", 1), nothing));
    let nulls = json!({
        "stream": null, "stream_options": null, "logprobs": null, "n": null, "stop": null, "seed": null, "top_p": null,
        "logit_bias": null, "response_format": null, "tools": null, "grammar": null, "user": null, "echo": null
    });
    server.json(COMPLETIONS, with(plain("a", 1), nulls));
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    let problem = server.problem("/v1/chat/completions", chat, 400);
    assert!(problem.contains("chat template"), "{problem}");
    let vectors = json!({"model": "tiny", "input": "hi"});
    let problem = server.problem("/v1/embeddings", vectors, 400);
    assert!(problem.contains("--embedding-model"), "{problem}");
    let documents = json!({"model": "tiny", "query": "hi", "documents": ["hi"]});
    let problem = server.problem("/v1/rerank", documents, 400);
    assert!(problem.contains("--rerank-model"), "{problem}");
    let problem = server.problem("/v1/nothing", json!({}), 404);
    assert!(problem.contains("/v1/chat/completions"), "{problem}");
    let listed = ureq::get(format!("{}/v1/models", server.address))
        .call()
        .unwrap();
    let listed: Value = listed.into_body().read_json().unwrap();
    assert_eq!(listed["data"][0]["id"], "tiny");
}
