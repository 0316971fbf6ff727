//! Images on the command line, in a conversation at the terminal and over HTTP.

use crate::cli::{assert_one_line, program, run, stdout};
use crate::seeing::{picture, png, Seeing};
use serde_json::{json, Value};
use std::io::Write;
use std::process::Stdio;

fn text(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_string()
}

#[test]
fn generate_reads_images() {
    let folder = Seeing::new("smolvlm");
    let model = text(folder.path());
    let images = ["a", "b"].map(|seed| text(&folder.image(seed, &picture(seed, 20, 13))));
    let made = |images: &[&str]| {
        let mut args = vec![
            "generate", "-m", &model, "-p", "w2 w5", "--device", "cpu", "--json",
        ];
        images
            .iter()
            .for_each(|image| args.extend(["--image", image]));
        let report: Value = serde_json::from_str(&stdout(&run(&args))).unwrap();
        (
            report["prompt_tokens"].as_u64().unwrap(),
            report["token_ids"].clone(),
        )
    };
    let (none, one, two) = (
        made(&[]),
        made(&[&images[0]]),
        made(&[&images[0], &images[1]]),
    );
    // With the begin token.
    assert_eq!(none.0, 3);
    assert!(one.0 > 28 && two.0 == 2 * one.0 - 3, "{} {}", one.0, two.0);
    assert_ne!(one.1, made(&[&images[1]]).1);
    let args = [
        "generate", "-m", &model, "-p", "w2", "--device", "cpu", "--image",
    ];
    let refused = |more: &[&str], parts: &[&str]| assert_one_line(&[&args, more].concat(), parts);
    refused(&["/nowhere.png"], &["/nowhere.png"]);
    refused(
        &[&text(&folder.file("config.json"))],
        &["config.json", "expected PNG or JPEG"],
    );
    refused(
        &[&images[0], "--prompt-lookup", "3"],
        &["prompt-lookup 3", "0 with images"],
    );
    refused(&[&images[0], "--gpus", "2"], &["--gpus 1"]);
    // The embedded model takes none, and its name is in the message.
    let args = [
        "generate", "-p", "w2", "--device", "cpu", "--image", &images[0],
    ];
    assert_one_line(&args, &["takes no images", "embedded"]);
}

/// Images of any shape: 4 tokens between two of Qwen's, and 2 rows of 3, each with its end, of Mistral's.
#[test]
fn generate_reads_images_of_any_shape() {
    for (name, tokens) in [("qwen2_5_vl", 6), ("qwen3_vl", 6), ("mistral3", 8)] {
        let folder = Seeing::new(name);
        let image = text(&folder.image("a.png", &picture("a", 20, 13)));
        let model = text(folder.path());
        let args = [
            "generate", "-m", &model, "-p", "w2 w5", "--device", "cpu", "--json", "--image", &image,
        ];
        let report: Value = serde_json::from_str(&stdout(&run(&args))).unwrap();
        // With the begin token.
        assert_eq!(report["prompt_tokens"], 3 + tokens, "{name}");
    }
}

#[test]
fn chat_takes_images() {
    let folder = Seeing::new("gemma3");
    let image = text(&folder.image("a.png", &picture("a", 20, 13)));
    let said = |lines: &str| {
        let model = text(folder.path());
        let args = [
            "chat",
            "-m",
            &model,
            "--device",
            "cpu",
            "--temperature",
            "0",
            "--max-tokens",
            "6",
        ];
        let mut child = program(&args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(lines.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        (stdout(&output), String::from_utf8(output.stderr).unwrap())
    };
    let saved = text(&folder.file("talk.json"));
    let (with, notes) = said(&format!(
        "/image {image}\nw5 w6\n/save {saved}\n/image nowhere\n"
    ));
    for part in [
        "20 x 13 pixels, 4 tokens",
        "images, which cannot be saved",
        "nowhere: ",
    ] {
        assert!(notes.contains(part), "{notes}");
    }
    assert_ne!(with, said("w5 w6\n").0);
}

#[cfg(feature = "api")]
#[test]
fn the_api_takes_data_urls() {
    use crate::api::Server;
    use base64::engine::general_purpose::STANDARD;
    use base64::Engine;
    let folder = Seeing::new("gemma3");
    let server = Server::start(&["--model", &text(folder.path())]);
    let url = |seed: &str| {
        let bytes = STANDARD.encode(png(&picture(seed, 20, 13)));
        format!("data:image/png;base64,{bytes}")
    };
    let body = |parts: Value| {
        json!({"model": "tiny", "max_tokens": 6, "temperature": 0,
            "messages": [{"role": "user", "content": parts}]})
    };
    let part =
        |url: String| json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}});
    let words = json!({"type": "text", "text": "w5 w6"});
    let chat = "/v1/chat/completions";
    let ask = |parts: Value| {
        let answer = server.json(chat, body(parts));
        let content = answer["choices"][0]["message"]["content"].clone();
        (content, answer["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    let one = ask(json!([part(url("a")), words]));
    let two = ask(json!([part(url("a")), words, part(url("b"))]));
    assert_eq!((one.1, two.1), (9, 15));
    assert_eq!(ask(json!([part(url("a")), words])), one);
    assert_ne!(ask(json!([part(url("b")), words])).0, one.0);
    // In the form of responses.
    let input = json!([{"role": "user", "content": [
        {"type": "input_image", "image_url": url("a")}, {"type": "input_text", "text": "w5 w6"}]}]);
    let answer = server.json(
        "/v1/responses",
        json!({"model": "tiny", "max_output_tokens": 16, "temperature": 0, "input": input}),
    );
    assert_eq!(answer["usage"]["input_tokens"], 9);
    for (parts, problem) in [
        (
            json!([part("https://example.com/a.png".into())]),
            "is not fetched",
        ),
        (
            json!([part("data:image/png;base64,AAAA".into())]),
            "expected PNG or JPEG",
        ),
        (
            json!([part("data:image/gif;base64,AAAA".into())]),
            "image/gif",
        ),
        (
            json!([{"type": "image_url"}]),
            "expected an object with the text `url`",
        ),
        (json!([{"type": "input_audio"}]), "unsupported content part"),
        (
            json!([{"type": "video_url"}]),
            "\"video_url\": videos are not supported",
        ),
        (Value::from(vec![part(url("a")); 17]), "the maximum is 16"),
    ] {
        let error = server.problem(chat, body(parts), 400);
        assert!(error.contains(problem), "{error}");
    }
    let system =
        json!({"model": "tiny", "messages": [{"role": "system", "content": [part(url("a"))]}]});
    assert!(server
        .problem(chat, system, 400)
        .contains("unsupported content part"));
    // A model without an encoder is named as clients name it.
    let folder = Seeing::new("gemma3");
    std::fs::remove_file(folder.file("preprocessor_config.json")).unwrap();
    let server = Server::start(&["--model", &text(folder.path())]);
    let error = server.problem(chat, body(json!([part(url("a"))])), 400);
    assert!(
        error.contains("tiny takes no images: it has no preprocessor_config.json"),
        "{error}"
    );
}
