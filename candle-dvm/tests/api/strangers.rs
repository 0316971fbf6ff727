//! The server among clients that ask for too much, for nothing, or for what is not theirs.

use super::{plain, Server, COMPLETIONS};
use crate::cli::assert_one_line;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

impl Server {
    fn socket(&self) -> TcpStream {
        TcpStream::connect(self.address.trim_start_matches("http://")).unwrap()
    }

    /// The answer to a request, whose head ends with these lines.
    fn raw(&self, first: &str, lines: &[&str], body: &str) -> String {
        let mut socket = self.socket();
        let head: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let request = format!(
            "{first} HTTP/1.1\r\n{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a signal by its name.
    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the program's end; its exit code, and how long it took.
    fn end(&mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return (status.code(), start.elapsed());
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Memory of the process, in MiB.
    #[cfg(target_os = "linux")]
    fn memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }
}

/// A prompt too long for a model of 1,024 tokens is refused before it is tokenised, and blocks no other request.
#[test]
fn megabytes_hold_nobody_up() {
    let server = Server::start(&[]);
    server.json(COMPLETIONS, plain("a", 1));
    #[cfg(target_os = "linux")]
    let before = server.memory();
    let large = plain(&"ab ".repeat(1_300_000), 1);
    let slowest = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| server.problem(COMPLETIONS, large.clone(), 400)))
            .collect();
        let mut slowest = Duration::ZERO;
        while !clients.iter().all(|client| client.is_finished()) {
            let start = Instant::now();
            let health = ureq::get(format!("{}/health", server.address)).call();
            assert_eq!(health.unwrap().status(), 200);
            slowest = slowest.max(start.elapsed());
        }
        for client in clients {
            let problem = client.join().unwrap();
            assert!(problem.contains("3900000 bytes"), "{problem}");
        }
        slowest
    });
    // Tens of milliseconds; it was half a minute.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    println!("slowest /health: {slowest:?}");
    #[cfg(target_os = "linux")]
    {
        let after = server.memory();
        println!("memory: {before} MiB before, {after} MiB after");
        assert!(after < before + 100, "{before} MiB, then {after} MiB");
    }
}

/// Long texts that have to be tokenised wait for each other, and no other request waits.
#[test]
fn long_texts_wait_for_each_other_alone() {
    let server = Server::start(&[]);
    let long = json!({"content": "ab ".repeat(700_000)});
    let ended = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tokens = server.json("/tokenize", long.clone());
                assert!(tokens["count"].as_u64().unwrap() >= 700_000);
                ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        // They have come by then.
        std::thread::sleep(Duration::from_millis(300));
        server.json(COMPLETIONS, plain("a", 1));
        let health = ureq::get(format!("{}/health", server.address)).call();
        assert_eq!(health.unwrap().status(), 200);
        let ended = ended.load(std::sync::atomic::Ordering::SeqCst);
        assert!(ended <= 2, "it was behind {ended} long texts");
    });
}

/// Whatever clients hold open.
#[test]
#[cfg(unix)]
fn signals_end_it() {
    let half = |server: &Server| {
        let mut socket = server.socket();
        let begun = format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nX");
        socket.write_all(begun.as_bytes()).unwrap();
        // It has been read once another request was answered.
        server.json(COMPLETIONS, plain("a", 1));
        socket
    };
    for signal in ["INT", "TERM"] {
        let mut server = Server::start(&["--drain", "1"]);
        let socket = half(&server);
        server.signal(signal);
        let (code, took) = server.end();
        assert_eq!(code, Some(0), "{signal}");
        assert!(took < Duration::from_secs(20), "{signal}: {took:?}");
        drop(socket);
    }
    // A second signal does not wait.
    for signal in ["INT", "TERM"] {
        let mut server = Server::start(&["--drain", "600"]);
        let socket = half(&server);
        server.signal(signal);
        // It has been heard once connections are refused.
        while TcpStream::connect(server.address.trim_start_matches("http://")).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
        server.signal(signal);
        assert_eq!(server.end().0, Some(1), "{signal}");
        drop(socket);
    }
}

/// Answers that were begun come to their end.
#[test]
#[cfg(unix)]
fn a_signal_waits_for_what_runs() {
    // Longer than by default: 200 tokens take a minute on a machine that does other work.
    let mut server = Server::start(&["--drain", "120"]);
    let mut socket = server.socket();
    let body = json!({"model": "tiny", "prompt": "fn main() {", "max_tokens": 200, "temperature": 0, "stream": true});
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut beginning = [0; 200];
    socket.read_exact(&mut beginning).unwrap();
    server.signal("TERM");
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.end().0, Some(0));
}

#[test]
#[cfg(unix)]
fn keys_are_required_where_a_file_has_them() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let path = file.to_str().unwrap();
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    let start = ["api", "--listen", "127.0.0.1:0", "--api-key-file", path];
    for (content, access, part) in [
        ("sk-one-0123456789\n", 0o644, "chmod 600"),
        ("# none\n", 0o600, "has no key"),
        ("short\n", 0o600, "line 1: expected a key"),
    ] {
        std::fs::write(&file, content).unwrap();
        mode(access);
        assert_one_line(&start, &[part]);
    }
    std::fs::write(&file, "# ours\nsk-one-0123456789\n\nsk-two-0123456789\n").unwrap();
    mode(0o600);
    let server = Server::start(&["--api-key-file", path]);
    let ask = |key: &[&str]| {
        let lines = [&["Host: localhost"], key].concat();
        server.raw("GET /v1/models", &lines, "")
    };
    for key in ["sk-one-0123456789", "sk-two-0123456789"] {
        let answer = ask(&[&format!("Authorization: Bearer {key}")]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    for wrong in [
        &[][..],
        &["Authorization: Bearer "],
        &["Authorization: Bearer sk-one-012345678"],
        &["Authorization: Bearer sk-one-01234567890"],
        &["Authorization: Bearer # ours"],
        &["Authorization: Basic sk-one-0123456789"],
    ] {
        let answer = ask(wrong);
        assert!(answer.starts_with("HTTP/1.1 401"), "{wrong:?}: {answer}");
        assert!(answer.contains("\"invalid_api_key\""), "{answer}");
    }
    let health = server.raw("GET /health", &["Host: localhost"], "");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[test]
fn pages_of_other_sites_are_refused() {
    let body = plain("a", 1).to_string();
    let post = format!("POST {COMPLETIONS}");
    let preflight = "OPTIONS /v1/completions";
    let server = Server::start(&["--host-name", "models.example"]);
    let port = server.address.rsplit(':').next().unwrap();
    let ask = |server: &Server, first: &str, lines: &[&str]| {
        let lines = [lines, &["Content-Type: application/json"]].concat();
        let answer = server.raw(first, &lines, &body);
        let status = answer.split(' ').nth(1).unwrap().to_string();
        (status, answer)
    };
    // Its name leads to this machine, by an attack.
    let rebound = format!("Host: evil.example:{port}");
    let (status, answer) = ask(&server, &post, &[&rebound]);
    assert_eq!(status, "403", "{answer}");
    assert!(answer.contains("--host-name evil.example"), "{answer}");
    let absolute = format!("GET http://evil.example:{port}/v1/models");
    assert_eq!(ask(&server, &absolute, &["Host: localhost"]).0, "403");
    let ours = format!("Host: localhost:{port}");
    let page = format!("Origin: http://localhost:{port}");
    for lines in [
        &[&ours[..]][..],
        &["Host: 127.0.0.1"],
        &["Host: models.example"],
        &[&ours, &page],
    ] {
        let (status, answer) = ask(&server, &post, lines);
        assert_eq!(status, "200", "{lines:?}: {answer}");
    }
    let foreign = "Origin: https://page.example";
    for first in [&post, preflight] {
        let (status, answer) = ask(&server, first, &[&ours, foreign]);
        assert_eq!(status, "403", "{answer}");
        assert!(
            !answer.to_lowercase().contains("access-control-allow"),
            "{answer}"
        );
    }
    // A type that a page may send without asking first.
    let plain = server.raw(&post, &[&ours, "Content-Type: text/plain"], &body);
    assert!(plain.starts_with("HTTP/1.1 415"), "{plain}");

    let server = Server::start(&["--allow-origin", "https://page.example/"]);
    let lines = [
        "Host: localhost",
        foreign,
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,x-stainless-os",
    ];
    let (status, answer) = ask(&server, preflight, &lines);
    let answer = answer.to_lowercase();
    assert_eq!(status, "204", "{answer}");
    assert!(
        answer.contains("access-control-allow-origin: https://page.example"),
        "{answer}"
    );
    assert!(answer.contains("authorization,x-stainless-os"), "{answer}");
    let (status, answer) = ask(&server, &post, &lines[..2]);
    assert_eq!(status, "200", "{answer}");
    assert!(
        answer.contains("access-control-allow-origin: https://page.example"),
        "{answer}"
    );
    let other = ["Host: localhost", "Origin: https://other.example"];
    assert_eq!(ask(&server, &post, &other).0, "403");
}

#[test]
fn an_open_address_without_a_key_is_warned_of() {
    let server = Server::start(&[]);
    assert!(
        !server.said.concat().contains("warning"),
        "{:?}",
        server.said
    );
    let server = Server::start(&["--listen", "0.0.0.0:0"]);
    let warnings = server
        .said
        .iter()
        .filter(|line| line.contains("--api-key-file"));
    assert_eq!(warnings.count(), 1, "{:?}", server.said);
}
