//! A server for this machine alone: the site's files, with the headers that isolate a page.

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
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
        .fallback_service(ServeDir::new(site))
        .layer(from_fn(with_headers))
}

async fn with_headers(request: Request, next: Next) -> Response {
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
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    /// A server of this crate's folder, which ends with the test's process.
    fn served() -> SocketAddr {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                send.send(listener.local_addr().unwrap()).unwrap();
                let site = routes(Path::new(env!("CARGO_MANIFEST_DIR")));
                axum::serve(listener, site).await.unwrap();
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
        let mut stream = connected(address);
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        write!(stream, "{request}{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_string())
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
