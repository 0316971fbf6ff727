//! A server with the Hub's addresses and headers. Large files are somewhere else, as on the Hub, to which it redirects.

use serde_json::json;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A model at a revision.
#[derive(Clone)]
pub struct Served {
    pub commit: String,
    /// The token that all downloads require.
    pub token: Option<String>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Served {
    pub fn new<'a>(commit: &str, files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let files = files.into_iter();
        Self {
            commit: commit.to_string(),
            token: None,
            files: files
                .map(|(name, bytes)| (name.to_string(), bytes))
                .collect(),
        }
    }

    pub fn add(&mut self, name: &str, bytes: Vec<u8>) {
        self.files.insert(name.to_string(), bytes);
    }
}

#[derive(Default)]
struct State {
    /// By `owner/name@revision`.
    models: BTreeMap<String, Served>,
    requests: Vec<String>,
    /// The file and the first byte of each answer with more than one byte.
    bodies: Vec<(String, usize)>,
    /// Files whose last byte is changed on the way.
    tampered: Vec<String>,
    /// After how many bytes the next answers with a file break off.
    cuts: BTreeMap<String, Vec<usize>>,
}

pub struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        let own = address.clone();
        // It ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, own) = (shared.clone(), own.clone());
                std::thread::spawn(move || answer(stream, &state, &own));
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Serves a model under `owner/name`, which is its branch `main`, or `owner/name@revision`, and under its commit.
    pub fn put(&self, name: &str, model: Served) {
        let (repo, revision) = name.split_once('@').unwrap_or((name, "main"));
        let mut state = self.state.lock().unwrap();
        for revision in [revision, &model.commit] {
            let key = format!("{repo}@{revision}");
            state.models.insert(key, model.clone());
        }
    }

    pub fn cut(&self, file: &str, after: &[usize]) {
        let mut state = self.state.lock().unwrap();
        state.cuts.insert(file.to_string(), after.to_vec());
    }

    /// Changes the last byte of a file that it sends, or no longer.
    pub fn tamper(&self, file: &str, on: bool) {
        let mut state = self.state.lock().unwrap();
        state.tampered.retain(|other| other != file);
        state.tampered.extend(on.then(|| file.to_string()));
    }

    /// The paths that were asked for.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn forget_requests(&self) {
        let mut state = self.state.lock().unwrap();
        state.requests.clear();
        state.bodies.clear();
    }

    /// The files of which more than one byte was sent.
    pub fn bodies(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.bodies.iter().map(|(file, _)| file.clone()).collect()
    }

    /// The offsets at which the responses with a file began.
    pub fn starts(&self, file: &str) -> Vec<usize> {
        let state = self.state.lock().unwrap();
        let of_file = state.bodies.iter().filter(|(other, _)| other == file);
        of_file.map(|(_, start)| *start).collect()
    }
}

struct Request {
    path: String,
    range: Option<String>,
    token: Option<String>,
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut request = Request {
        path: first.split(' ').nth(1)?.to_string(),
        range: None,
        token: None,
    };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = value.trim().strip_prefix("bytes=").map(str::to_string),
            "authorization" => {
                request.token = value.trim().strip_prefix("Bearer ").map(str::to_string);
            }
            _ => (),
        }
    }
    Some(request)
}

fn send(
    mut stream: &TcpStream,
    status: &str,
    headers: &[(&str, String)],
    length: usize,
    body: &[u8],
) {
    let mut head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    // The other side may have gone.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
}

fn refuse(stream: &TcpStream, status: &str, code: &str) {
    let headers = [("X-Error-Code", code.to_string())];
    send(stream, status, &headers, 0, b"");
}

/// The name of a large file on the Hub.
pub fn sha256(bytes: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, bytes);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

fn answer(stream: TcpStream, state: &Mutex<State>, own: &str) {
    let Some(request) = read(&stream) else {
        return;
    };
    let mut state = state.lock().unwrap();
    state.requests.push(request.path.clone());
    let path = request.path.trim_start_matches('/').replace("%2F", "/");
    if let Some(rest) = path.strip_prefix("api/models/") {
        let (repo, revision) = rest.split_once("/revision/").unwrap();
        let Some(model) = state.models.get(&format!("{repo}@{revision}")) else {
            let known = state.models.contains_key(&format!("{repo}@main"));
            return if known {
                refuse(&stream, "404 Not Found", "RevisionNotFound")
            } else {
                // What the Hub answers to who has no token.
                refuse(&stream, "401 Unauthorized", "RepoNotFound")
            };
        };
        let files: Vec<_> = model
            .files
            .keys()
            .map(|name| json!({ "rfilename": name }))
            .collect();
        let body = json!({ "sha": model.commit, "siblings": files, "private": false }).to_string();
        return send(&stream, "200 OK", &[], body.len(), body.as_bytes());
    }
    let elsewhere = path.strip_prefix("elsewhere/");
    let rest = elsewhere.unwrap_or(&path);
    let (repo, rest) = rest.split_once("/resolve/").unwrap();
    let (revision, file) = rest.split_once('/').unwrap();
    let Some(model) = state.models.get(&format!("{repo}@{revision}")) else {
        return refuse(&stream, "404 Not Found", "RevisionNotFound");
    };
    let (commit, token) = (model.commit.clone(), model.token.clone());
    let Some(mut bytes) = model.files.get(file).cloned() else {
        return refuse(&stream, "404 Not Found", "EntryNotFound");
    };
    if elsewhere.is_none() && token.is_some() && token != request.token {
        return match request.token {
            None => refuse(&stream, "401 Unauthorized", "GatedRepo"),
            Some(_) => refuse(&stream, "403 Forbidden", "GatedRepo"),
        };
    }
    let large = [".safetensors", ".gguf"]
        .iter()
        .any(|end| file.ends_with(end));
    let etag = if large {
        format!("\"{}\"", sha256(&bytes))
    } else {
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        format!("\"{:016x}\"", hash.finish())
    };
    if state.tampered.iter().any(|other| other == file) {
        *bytes.last_mut().unwrap() ^= 1;
    }
    if elsewhere.is_none() && large {
        let headers = [
            ("X-Repo-Commit", commit),
            ("X-Linked-Etag", etag),
            ("X-Linked-Size", bytes.len().to_string()),
            ("Location", format!("{own}/elsewhere/{path}")),
        ];
        return send(&stream, "302 Found", &headers, 0, b"");
    }
    let (start, end) = match request
        .range
        .as_deref()
        .and_then(|range| range.split_once('-'))
    {
        Some((start, end)) => {
            let end = end.parse().map_or(bytes.len(), |end: usize| end + 1);
            (start.parse().unwrap(), end.min(bytes.len()))
        }
        None => (0, bytes.len()),
    };
    let headers = [
        ("X-Repo-Commit", commit),
        ("ETag", etag),
        (
            "Content-Range",
            format!("bytes {start}-{}/{}", end - 1, bytes.len()),
        ),
    ];
    let mut sent = &bytes[start..end];
    let length = sent.len();
    // A client requests the first byte alone to learn the size.
    if length > 1 {
        if let Some(cuts) = state.cuts.get_mut(file).filter(|cuts| !cuts.is_empty()) {
            sent = &sent[..cuts.remove(0)];
        }
        state.bodies.push((file.to_string(), start));
    }
    drop(state);
    send(&stream, "206 Partial Content", &headers, length, sent);
}
