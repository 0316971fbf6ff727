//! Several models, which share a budget of memory.

use super::{plain, Server, COMPLETIONS};
use crate::cli::program;
use crate::support::ModelFolder;
use serde_json::{json, Value};

fn metric(server: &Server, name: &str) -> u64 {
    let page = ureq::get(format!("{}/metrics", server.address))
        .call()
        .unwrap();
    let page = page.into_body().read_to_string().unwrap();
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("candle_api_{name} ")));
    value.unwrap().parse().unwrap()
}

#[test]
fn models_are_loaded_on_request() {
    let folders = [ModelFolder::new(), ModelFolder::new()];
    folders[1].write("chat_template.jinja", "{{ messages[0].content }}");
    let paths = folders
        .each_ref()
        .map(|folder| folder.path().to_str().unwrap().to_string());
    let weights = std::fs::metadata(folders[0].path().join("model.safetensors"))
        .unwrap()
        .len();
    let budget = (weights + weights / 2).to_string();
    // The first is called `tiny`, as `--name` comes first.
    let server = Server::start(&[
        "--model", &paths[0], "--model", &paths[1], "--name", "other", "--memory", &budget,
    ]);
    assert!(
        server.said.iter().any(|line| line.contains("tiny on cpu")),
        "{:?}",
        server.said
    );
    assert!(
        !server.said.iter().any(|line| line.contains("other on cpu")),
        "{:?}",
        server.said
    );
    let listed = ureq::get(format!("{}/v1/models", server.address))
        .call()
        .unwrap();
    let listed: Value = listed.into_body().read_json().unwrap();
    let names: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["tiny", "other"]);

    let ask = |name: &str, prompt: &str| {
        let mut body = plain(prompt, 12);
        body["model"] = name.into();
        let answer = server.json(COMPLETIONS, body);
        assert_eq!(answer["model"], name);
        answer["choices"][0]["text"].clone()
    };
    let first = ask("tiny", "fn main() {");
    assert_eq!(
        ask("other", "fn main() {"),
        first,
        "they have the same weights"
    );
    assert_eq!(metric(&server, "models_loaded"), 1);
    let chat = json!({"model": "other", "messages": [{"role": "user", "content": "fn main() {"}], "max_tokens": 12, "temperature": 0});
    let chat = server.json("/v1/chat/completions", chat);
    assert_eq!(chat["model"], "other");
    // Both at once, again and again: each answer is what it is alone, and all come.
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (ask, first) = (&ask, &first);
            scope.spawn(move || {
                for turn in 0..3 {
                    let name = ["tiny", "other"][(client + turn) % 2];
                    assert_eq!(&ask(name, "fn main() {"), first);
                }
            });
        }
    });
    assert_eq!(metric(&server, "models_loaded"), 1);
    let mut body = plain("fn", 1);
    body["model"] = "third".into();
    assert!(server
        .problem(COMPLETIONS, body, 404)
        .contains("tiny, other"));
    let tokens = server.json("/tokenize", json!({"content": "fn", "model": "other"}));
    assert_eq!(tokens, server.json("/tokenize", json!({"content": "fn"})));
}

#[test]
fn models_that_cannot_be_served_together_are_refused() {
    let folder = ModelFolder::new();
    let path = folder.path().to_str().unwrap();
    let fail = |args: &[&str]| {
        let args = [&["api", "--device", "cpu", "--listen", "127.0.0.1:0"], args].concat();
        let output = program(&args).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(fail(&["--model", path, "--memory", "1000"]).contains("raise --memory"));
    assert!(fail(&["--model", path, "--memory", "much"]).contains("8GB"));
    assert!(fail(&["--model", path, "--model", path]).contains("two models have the name"));
    assert!(fail(&["--model", path, "--name", "a", "--name", "b"])
        .contains("at most one for each --model"));
}
