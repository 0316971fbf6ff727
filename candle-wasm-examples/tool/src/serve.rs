//! A server for this machine alone: the site's files, with the headers that isolate a page.

use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{from_fn, Next};
use axum::response::Response;
use axum::Router;
use std::path::Path;
use tokio::net::TcpListener;
use tower_http::services::ServeDir;

/// With the first three a page may share memory with its workers, which the CPU's threads need. With the last a browser asks whether its
/// copy of a file is still the newest, so that a page that was built again is seen at once.
const HEADERS: [(HeaderName, &str); 4] = [
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-embedder-policy"),
        "require-corp",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (CACHE_CONTROL, "no-cache"),
];

/// Texts that a browser should show and not download. The type of `.ts` is otherwise one of video.
const SHOWN_AS_TEXT: [&str; 2] = [".ts", ".md"];

/// Serves `site` on 127.0.0.1 until the process ends; `port` 0 takes any that is free.
///
/// # Errors
/// The site is not built, or the port is taken.
pub fn serve(site: &Path, port: u16) -> Result<(), String> {
    if !site.join("index.html").exists() {
        return Err(format!(
            "{} not found: build it with `cargo xtask web`",
            site.display()
        ));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| format!("cannot start tokio: {err}"))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.map_err(|err| {
            format!("cannot listen on 127.0.0.1:{port}: {err}; choose another port with `--port`")
        })?;
        let address = listener.local_addr().map_err(|err| err.to_string())?;
        println!("http://{address}/");
        axum::serve(listener, routes(site))
            .await
            .map_err(|err| format!("{address}: {err}"))
    })
}

fn routes(site: &Path) -> Router {
    Router::new()
        .fallback_service(ServeDir::new(site).precompressed_br().precompressed_gzip())
        .layer(from_fn(with_headers))
}

async fn with_headers(mut request: Request, next: Next) -> Response {
    // Parts are of the file and not of its compressed copy, whatever a browser takes.
    if request.headers().contains_key(RANGE) {
        request.headers_mut().remove(ACCEPT_ENCODING);
    }
    let path = request.uri().path();
    let is_text = SHOWN_AS_TEXT.iter().any(|end| path.ends_with(end));
    let mut response = next.run(request).await;
    let headers: &mut HeaderMap = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_text && headers.contains_key(CONTENT_TYPE) {
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    /// A server of this crate's folder, which ends with the test's process.
    fn served() -> SocketAddr {
        served_from(Path::new(env!("CARGO_MANIFEST_DIR")))
    }

    fn served_from(folder: &Path) -> SocketAddr {
        let folder = folder.to_path_buf();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                send.send(listener.local_addr().unwrap()).unwrap();
                axum::serve(listener, routes(&folder)).await.unwrap();
            });
        });
        receive.recv().unwrap()
    }

    fn connected(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    /// The whole answer to a request for `path`, its head in lower case.
    fn answer(address: SocketAddr, method: &str, path: &str, headers: &str) -> (String, String) {
        let (head, body) = answer_in_bytes(address, method, path, headers);
        (head, String::from_utf8(body).unwrap())
    }

    fn answer_in_bytes(
        address: SocketAddr,
        method: &str,
        path: &str,
        headers: &str,
    ) -> (String, Vec<u8>) {
        let mut stream = connected(address);
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        write!(stream, "{request}{headers}\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        (head.to_lowercase(), answer.split_off(end + 4))
    }

    #[test]
    fn files_have_their_types_and_isolate_the_page() {
        let address = served();
        let (head, body) = answer(address, "GET", "/static/isolation.js", "");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/javascript"), "{head}");
        for (name, value) in HEADERS {
            assert!(head.contains(&format!("{name}: {value}")), "{head}");
        }
        assert_eq!(body, include_str!("../static/isolation.js"));
        let (head, body) = answer(address, "HEAD", "/static/isolation.js", "");
        assert!(head.starts_with("http/1.1 200") && body.is_empty());
        let (head, _) = answer(address, "POST", "/static/isolation.js", "");
        assert!(head.starts_with("http/1.1 405"), "{head}");
    }

    #[test]
    fn parts_of_a_file() {
        let address = served();
        let whole = include_str!("../Cargo.toml");
        let (head, body) = answer(address, "GET", "/Cargo.toml", "Range: bytes=3-11\r\n");
        assert!(head.starts_with("http/1.1 206"), "{head}");
        let range = format!("content-range: bytes 3-11/{}", whole.len());
        assert!(head.contains(&range), "{head}");
        assert_eq!(body, whole[3..12]);
        let (head, _) = answer(address, "GET", "/Cargo.toml", "Range: bytes=99999-\r\n");
        assert!(head.starts_with("http/1.1 416"), "{head}");
    }

    #[test]
    fn compressed_copies_are_sent_to_those_who_take_them() {
        let folder = std::env::temp_dir().join(format!("candle-serve-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "a line of a page\n".repeat(200);
        for name in ["index.html", "candle_bg.wasm", "candle.d.ts"] {
            std::fs::write(folder.join(name), &text).unwrap();
        }
        std::fs::write(folder.join("short.js"), "short()").unwrap();
        compress::folder(&folder, &compress::FORMATS).unwrap();
        let address = served_from(&folder);
        let both = "Accept-Encoding: gzip, deflate, br, zstd\r\n";
        for (path, kind) in [
            ("/", "text/html"),
            ("/candle_bg.wasm", "application/wasm"),
            ("/candle.d.ts", "text/plain; charset=utf-8"),
        ] {
            for (accepted, encoding) in [
                (both, Some("br")),
                ("Accept-Encoding: gzip\r\n", Some("gzip")),
                ("Accept-Encoding: identity\r\n", None),
                ("", None),
            ] {
                let (head, body) = answer_in_bytes(address, "GET", path, accepted);
                assert!(head.starts_with("http/1.1 200"), "{head}");
                assert!(head.contains(&format!("content-type: {kind}")), "{head}");
                assert!(head.contains("vary: accept-encoding"), "{head}");
                assert!(head.contains(&format!("content-length: {}", body.len())));
                let mut bytes = Vec::new();
                match encoding {
                    Some("br") => brotli::BrotliDecompress(&mut &body[..], &mut bytes).unwrap(),
                    Some(_) => {
                        let mut decoder = flate2::read::GzDecoder::new(&body[..]);
                        decoder.read_to_end(&mut bytes).map(drop).unwrap();
                    }
                    None => bytes = body,
                }
                let named = head.split("content-encoding: ").nth(1);
                assert_eq!(named.and_then(|rest| rest.lines().next()), encoding);
                assert_eq!(String::from_utf8(bytes).unwrap(), text);
            }
        }
        let (head, body) = answer(address, "GET", "/short.js", both);
        assert!(!head.contains("content-encoding") && body == "short()");

        // Parts are of the file, and so is its length.
        let part = format!("{both}Range: bytes=2-9\r\n");
        let (head, body) = answer(address, "GET", "/candle_bg.wasm", &part);
        assert!(head.starts_with("http/1.1 206"), "{head}");
        let range = format!("content-range: bytes 2-9/{}", text.len());
        assert!(head.contains(&range) && !head.contains("content-encoding"));
        assert_eq!(body, text[2..10]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Relative links would be wrong in a page whose URL lacks its slash.
    #[test]
    fn folders_have_a_slash() {
        let (head, _) = answer(served(), "GET", "/src?a=1", "");
        assert!(head.starts_with("http/1.1 307"), "{head}");
        assert!(head.contains("location: /src/?a=1"), "{head}");
    }

    #[test]
    fn nothing_outside_of_the_site_is_found() {
        let address = served();
        for path in ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "//etc/passwd"] {
            let (head, _) = answer(address, "GET", path, "");
            assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
        }
    }

    /// A browser opens six connections to a server at once and keeps them, and the tests run several browsers. A server with a pool of
    /// threads (tiny_http 0.12) left some of them without an answer on a busy machine.
    #[test]
    fn many_connections_at_once() {
        let address = served();
        let mut kept = Vec::new();
        for _ in 0..20 {
            let mut opened: Vec<_> = (0..6).map(|_| connected(address)).collect();
            for stream in &mut opened {
                write!(stream, "GET /Cargo.toml HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            }
            for stream in &mut opened {
                let mut start = [0; 12];
                stream.read_exact(&mut start).unwrap();
                assert_eq!(&start, b"HTTP/1.1 200");
            }
            kept.append(&mut opened);
        }
    }
}
