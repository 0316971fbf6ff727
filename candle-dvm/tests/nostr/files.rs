//! A web server of a few files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    asked: AtomicU32,
    held: AtomicBool,
}

pub struct Files {
    address: String,
    state: Arc<State>,
}

impl Files {
    pub fn serve(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let files = files.into_iter();
        let state = Arc::new(State {
            files: files
                .map(|(name, bytes)| (format!("/{name}"), bytes))
                .collect(),
            ..State::default()
        });
        let shared = state.clone();
        // It ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || answer(&stream, &state));
            }
        });
        Self { address, state }
    }

    pub fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Number of requested files.
    pub fn asked(&self) -> u32 {
        self.state.asked.load(SeqCst)
    }

    /// Keeps answers back, or no longer.
    pub fn hold(&self, on: bool) {
        self.state.held.store(on, SeqCst);
    }
}

fn answer(mut stream: &TcpStream, state: &State) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines
        .next()
        .and_then(|line| Some(line.split(' ').nth(1)?.to_string()));
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    state.asked.fetch_add(1, SeqCst);
    while state.held.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = path.and_then(|path| state.files.get(&path));
    let (status, body) = match file {
        Some(file) => ("200 OK", file.as_slice()),
        None => ("404 Not Found", &b""[..]),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // Whoever asked may have gone.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
}
