//! Speech, over a tiny Whisper of random weights.

use super::{agent, Server};
use crate::cli::{run, stdout};
use crate::transcribe::Folder;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

const BOUNDARY: &str = "--frontier";

/// A form with a file and these fields.
pub(crate) fn form(file: Option<&[u8]>, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
        body.extend(part.into_bytes());
    }
    if let Some(file) = file {
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"tone.wav\"\r\nContent-Type: audio/wav\r\n\r\n");
        body.extend(head.into_bytes());
        body.extend(file);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
    body
}

pub(crate) fn post(server: &Server, path: &str, body: &[u8]) -> (u16, String, String) {
    let answer = agent()
        .post(format!("{}/v1/audio/{path}", server.address))
        .header(
            "Content-Type",
            format!("multipart/form-data; boundary={BOUNDARY}"),
        )
        .send(body);
    let mut answer = answer.unwrap();
    let kind = answer
        .headers()
        .get("content-type")
        .map(|kind| kind.to_str().unwrap().to_string());
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), kind.unwrap_or_default(), text)
}

#[test]
fn recordings_are_transcribed_in_all_forms() {
    let folder = Folder::new();
    let path = folder.path().display().to_string();
    let tone = std::fs::read(folder.at("tone.wav")).unwrap();
    let server = Server::start(&["--speech-model", &path, "--speech-name", "whisper"]);
    let ask = |fields: &[(&str, &str)]| {
        let fields = [&[("model", "whisper"), ("temperature", "0")], fields].concat();
        let (status, kind, text) = post(&server, "transcriptions", &form(Some(&tone), &fields));
        assert_eq!(status, 200, "{text}");
        (kind, text)
    };
    let json = |fields: &[(&str, &str)]| -> Value { serde_json::from_str(&ask(fields).1).unwrap() };
    // The command is the judge.
    let flags = ["--json", "--words", "--device", "cpu"];
    let tone_file = folder.at("tone.wav");
    let command = ["transcribe", &tone_file, "--model", &path];
    let command = [&command[..], &flags[..]].concat();
    let judge: Value = serde_json::from_str(&stdout(&run(&command))).unwrap();

    let plain = json(&[]);
    assert_eq!(plain["text"], judge["text"]);
    assert_eq!(plain["usage"]["seconds"], 3);
    let both = [
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"),
    ];
    let verbose = json(&both);
    assert_eq!(
        (&verbose["task"], &verbose["language"], &verbose["duration"]),
        (&"transcribe".into(), &"en".into(), &3.0.into())
    );
    let segments = judge["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    let found = verbose["segments"].as_array().unwrap();
    assert_eq!(found.len(), segments.len());
    for (found, expected) in found.iter().zip(segments) {
        for name in ["start", "end", "text", "tokens", "seek"] {
            assert_eq!(found[name], expected[name], "{name}");
        }
    }
    let words: usize = segments
        .iter()
        .map(|it| it["words"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!(verbose["words"].as_array().unwrap().len(), words);
    assert!(json(&[("response_format", "verbose_json")])["words"].is_null());

    let text = ask(&[("response_format", "text")]);
    assert_eq!(text.1.trim(), judge["text"].as_str().unwrap());
    assert!(text.0.starts_with("text/plain"), "{}", text.0);
    let srt = stdout(&run(&[
        "transcribe",
        &tone_file,
        "--model",
        &path,
        "--srt",
        "--device",
        "cpu",
    ]));
    assert_eq!(ask(&[("response_format", "srt")]).1, srt);
    let (kind, vtt) = ask(&[("response_format", "vtt")]);
    assert_eq!(kind, "text/vtt");
    assert!(vtt.starts_with("WEBVTT\n\n00:00:0"), "{vtt}");

    let (kind, events) = ask(&[("stream", "true")]);
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let mut deltas = String::new();
    let mut done = Value::Null;
    for data in events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        if data == "[DONE]" {
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        match event["type"].as_str().unwrap() {
            "transcript.text.delta" => deltas += event["delta"].as_str().unwrap(),
            "transcript.text.done" => done = event["text"].clone(),
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        (&done, deltas.trim()),
        (&judge["text"], judge["text"].as_str().unwrap())
    );
}

#[test]
fn what_cannot_be_transcribed_is_refused() {
    let folder = Folder::new();
    let path = folder.path().display().to_string();
    let tone = std::fs::read(folder.at("tone.wav")).unwrap();
    let server = Server::start(&["--speech-model", &path]);
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let problem = |path: &str, body: &[u8], status: u16| -> String {
        let (found, _, text) = post(&server, path, body);
        assert_eq!(found, status, "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        json["error"]["message"].as_str().unwrap().to_string()
    };
    for (fields, part) in [
        (vec![], "model: is missing"),
        (vec![("model", name), ("language", "de")], "English-only"),
        (
            vec![("model", name), ("temperature", "warm")],
            "temperature: expected a number from 0 to 1",
        ),
        (
            vec![("model", name), ("response_format", "xml")],
            "response_format",
        ),
        (
            vec![("model", name), ("timestamp_granularities[]", "word")],
            "verbose_json",
        ),
        (
            vec![
                ("model", name),
                ("stream", "true"),
                ("response_format", "srt"),
            ],
            "stream: requires",
        ),
        (
            vec![("model", name), ("chunking_strategy", "server_vad")],
            "chunking_strategy",
        ),
        (
            vec![("model", name), ("mood", "good")],
            "mood: this field is not supported",
        ),
    ] {
        let problem = problem("transcriptions", &form(Some(&tone), &fields), 400);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let model = [("model", name)];
    assert!(problem("translations", &form(Some(&tone), &model), 400).contains("cannot translate"));
    assert!(problem("transcriptions", &form(None, &model), 400).contains("file: is missing"));
    assert!(
        problem("transcriptions", &form(Some(b"no sound"), &model), 400)
            .contains("tone.wav: unrecognized audio")
    );
    assert!(problem("transcriptions", &form(Some(b""), &model), 400).contains("empty"));
    let other = form(Some(&tone), &[("model", "other")]);
    assert!(problem("transcriptions", &other, 404).contains(name));
    assert!(problem("transcriptions", b"nothing of a form", 400).contains("form"));
    // One that is too large is refused before it is there.
    let address = server.address.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n\
        Connection: close\r\nContent-Length: {}\r\n\r\n",
        26 << 20
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 413") && answer.contains("26214400"),
        "{answer}"
    );
    let (status, _) = server.post("/v1/audio/transcriptions", &serde_json::json!({}));
    assert_eq!(status, 415);
    let without = Server::start(&[]);
    let (status, _, text) = post(&without, "transcriptions", &form(Some(&tone), &model));
    assert!(status == 400 && text.contains("--speech-model"), "{text}");
}
