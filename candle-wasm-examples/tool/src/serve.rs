//! A server for this machine alone: files with their types, and parts of them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

/// Number of concurrent requests. A browser opens six connections for a page, and a paused download occupies one.
const THREADS: usize = 16;

const TYPES: [(&str, &str); 9] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("json", "application/json"),
    ("wasm", "application/wasm"),
    ("svg", "image/svg+xml"),
    ("webp", "image/webp"),
    ("ts", "text/plain; charset=utf-8"),
    ("md", "text/plain; charset=utf-8"),
];

pub fn serve(site: &Path, port: u16) -> Result<(), String> {
    if !site.join("index.html").exists() {
        return Err(format!(
            "{} not found: build it with `cargo xtask web`",
            site.display()
        ));
    }
    let server = Server::http(("127.0.0.1", port)).map_err(|err| {
        format!("cannot listen on 127.0.0.1:{port}: {err}; choose another port with `--port`")
    })?;
    println!("http://{}/", server.server_addr());
    let server = Arc::new(server);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (server, site) = (server.clone(), site.to_path_buf());
            std::thread::spawn(move || {
                for request in server.incoming_requests() {
                    // A browser that has gone away is no failure.
                    let _ = answer(request, &site);
                }
            })
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn answer(request: Request, site: &Path) -> std::io::Result<()> {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return request.respond(text(405, "only GET and HEAD"));
    }
    if let Some(folder) = folder(site, request.url()) {
        let moved = text(301, "a folder").with_header(header("Location", &folder));
        return request.respond(moved);
    }
    let Some((file, path)) = find(site, request.url()) else {
        return request.respond(text(404, "no such file"));
    };
    let size = file.metadata()?.len();
    let range = request.headers().iter().find(|h| h.field.equiv("Range"));
    let range = range.map(|header| part(header.value.as_str(), size));
    let (status, start, end) = match range {
        None => (200, 0, size),
        Some(Some((start, end))) => (206, start, end),
        Some(None) => {
            let refused = text(416, "no such part of the file");
            return request
                .respond(refused.with_header(header("Content-Range", &format!("bytes */{size}"))));
        }
    };
    let mut file = file;
    file.seek(SeekFrom::Start(start))?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let known = TYPES.iter().find(|(known, _)| Some(*known) == extension);
    let mut headers = vec![
        header(
            "Content-Type",
            known.map_or("application/octet-stream", |(_, ty)| ty),
        ),
        header("Accept-Ranges", "bytes"),
        // A page that was built anew is seen at once.
        header("Cache-Control", "no-cache"),
    ];
    if status == 206 {
        let range = format!("bytes {start}-{}/{size}", end - 1);
        headers.push(header("Content-Range", &range));
    }
    let body = file.take(end - start);
    let len = usize::try_from(end - start).ok();
    request.respond(
        Response::new(StatusCode(status), headers, body, len, None)
            .with_chunked_threshold(usize::MAX),
    )
}

/// The place of a URL's path. Nothing outside of the site is reached.
fn place(site: &Path, url: &str) -> Option<PathBuf> {
    let path = url.split(['?', '#']).next()?.trim_start_matches('/');
    let inside = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    inside.then(|| site.join(path))
}

/// Where a folder is that a URL names without its slash: the links of a page in it would lead beside it.
fn folder(site: &Path, url: &str) -> Option<String> {
    let (path, rest) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let name = path.trim_start_matches('/');
    let lacks = !name.is_empty() && !name.ends_with('/') && place(site, url)?.is_dir();
    lacks.then(|| format!("/{name}/{rest}"))
}

/// The file of a URL's path; `index.html` of a folder.
fn find(site: &Path, url: &str) -> Option<(File, PathBuf)> {
    let mut path = place(site, url)?;
    if path.is_dir() {
        path.push("index.html");
    }
    Some((File::open(&path).ok()?, path))
}

/// The first and the last byte but one of `bytes=first-last`, `bytes=first-` or `bytes=-count`.
fn part(header: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end) = match (first, last) {
        ("", count) => (size.saturating_sub(count.parse().ok()?), size),
        (first, "") => (first.parse().ok()?, size),
        (first, last) => (
            first.parse().ok()?,
            last.parse::<u64>().ok()?.checked_add(1)?,
        ),
    };
    let end = end.min(size);
    (start < end).then_some((start, end))
}

fn text(status: u16, what: &str) -> Response<std::io::Cursor<Vec<u8>>> {
    Response::from_string(what).with_status_code(status)
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("names and values here are plain text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file() {
        assert_eq!(part("bytes=0-3", 10), Some((0, 4)));
        assert_eq!(part("bytes=4-", 10), Some((4, 10)));
        assert_eq!(part("bytes=-3", 10), Some((7, 10)));
        assert_eq!(part("bytes=8-99", 10), Some((8, 10)));
        for wrong in [
            "bytes=10-",
            "bytes=5-4",
            "bytes=-0",
            "lines=1-2",
            "bytes=1-2,4-5",
        ] {
            assert_eq!(part(wrong, 10), None, "{wrong}");
        }
    }

    #[test]
    fn folders_have_a_slash() {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let moved = |url: &str| folder(crate_folder, url);
        assert_eq!(moved("/src").as_deref(), Some("/src/"));
        assert_eq!(moved("//src?a=1").as_deref(), Some("/src/?a=1"));
        for stays in [
            "/",
            "/src/",
            "/src/main.rs",
            "/nowhere",
            "/../tool",
            "/src?/",
        ] {
            let expected = stays.starts_with("/src?").then_some("/src/?/");
            assert_eq!(moved(stays).as_deref(), expected, "{stays}");
        }
    }

    #[test]
    fn nothing_outside_of_the_site_is_found() {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert!(find(&src, "/main.rs?x#y").is_some());
        assert!(find(&src, "/../Cargo.toml").is_none());
        assert!(find(&src, "//etc/passwd").is_none());
    }
}
