//! `--draft` of `generate` and `chat`.

use crate::cli::{assert_one_line, program, run, stdout};
use crate::support::{golden, model_dir, ModelFolder};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

#[test]
fn a_draft_model_changes_the_speed_alone() {
    let (model, prompt) = (model_dir(), &golden().prompts[0]);
    let draft = ["--draft", model.to_str().unwrap(), "--device", "cpu"];
    let first = ["generate", "--prompt", &prompt.text, "--max-tokens", "16"];
    let output = run(&[&first[..], &draft, &["--draft-tokens", "3", "--json"]].concat());
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(stderr.contains(" with draft model "), "{stderr}");
    assert!(
        last.starts_with("proposed tokens: ") && last.ends_with("(100%)"),
        "{stderr}"
    );
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        json["token_ids"],
        serde_json::json!(prompt.greedy_ids[..16])
    );
    let [made, right] = ["made", "right"].map(|name| json["guesses"][name].as_u64().unwrap());
    assert!(made > 0 && right == made, "{json}");
}

#[test]
fn conversations_have_a_draft_model() {
    let model = model_dir();
    let model = model.to_str().unwrap();
    let template = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &template,
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    )
    .unwrap();
    let template = template.path().to_str().unwrap();
    let args = [
        "chat",
        "-m",
        model,
        "--template",
        template,
        "--device",
        "cpu",
    ];
    let more = ["--max-tokens", "12", "--seed", "3", "--draft", model];
    let mut chat = program(&[&args[..], &more].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"fn main() {\nlet x\n").unwrap();
    drop(input);
    let output = chat.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let notes = stderr
        .lines()
        .filter(|it| it.starts_with("proposed tokens: "));
    assert_eq!(notes.count(), 2, "{stderr}");
}

#[test]
fn what_cannot_work_is_one_line() {
    let folder = ModelFolder::new();
    folder.edit("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let of = |id: u32| vocab.iter().find(|it| *it.1 == id).unwrap().0.clone();
        let (a, b) = (of(300), of(301));
        vocab.insert(a, 301.into());
        vocab.insert(b, 300.into());
    });
    let (other, model) = (folder.path().to_str().unwrap(), model_dir());
    let model = model.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--draft", other],
            &[other, "embedded", "2 ids", "300", "same tokenizer"],
        ),
        (&["--draft-tokens", "3"], &["--draft <MODEL>"]),
        (
            &["--draft", model, "--draft-tokens", "65"],
            &["--draft-tokens 65", "1 to 64"],
        ),
        (&["--draft", "no/where/at/all"], &["no/where/at/all"]),
    ];
    for (args, parts) in cases {
        let first = ["generate", "--device", "cpu", "--prompt", "x"];
        assert_one_line(&[&first[..], args].concat(), parts);
    }
    #[cfg(feature = "api")]
    assert_one_line(
        &[
            "api", "--device", "cpu", "--model", model, "--model", model, "--draft", model,
        ],
        &["--draft", "one --model"],
    );
}
