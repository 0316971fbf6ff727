//! Every kernel in a browser's own compiler. naga, which compiles them natively, takes things that Chromium's Tint refuses: constants that
//! overflow, for one. The step before this one, the tests with a browser's limits, writes the shaders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::files::EmptyDir;
use crate::install;

const PROGRAMS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// With a WebGPU adapter that needs no GPU.
pub const ARGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
];

const TIMEOUT: Duration = Duration::from_secs(900);

/// Compiles each shader and posts a line with a tab for each that is refused, then how many there were.
const PAGE: &str = r#"<!doctype html><script type="module">
const post = text => fetch("/done", {method: "POST", body: text});
try {
  const names = (await (await fetch("/list")).text()).split("\n").filter(name => name);
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const lines = [];
  const check = async name => {
    const code = await (await fetch("/shader/" + name)).text();
    device.pushErrorScope("validation");
    const module = device.createShaderModule({code});
    const scope = device.popErrorScope();
    const {messages} = await module.getCompilationInfo();
    const error = messages.find(message => message.type == "error");
    if (error) lines.push(`${name}\tline ${error.lineNum}: ${error.message}`);
    else if (await scope) lines.push(`${name}\t${(await scope).message}`);
  };
  for (let i = 0; i < names.length; i += 16) await Promise.all(names.slice(i, i + 16).map(check));
  await post([...lines, `checked ${names.length}`].join("\n"));
} catch (error) { await post(`failed ${error}`); }
</script>"#;

/// The folder of the shaders from the tests with a browser's limits.
pub fn shaders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/browser-shaders")
}

pub fn chrome() -> Result<String, String> {
    let dir = shaders();
    let names = names(&dir);
    if names.is_empty() {
        return Err(format!(
            "no shaders in {}: the step `browser` writes them, run it first",
            dir.display()
        ));
    }
    let program = program()?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("cannot listen"))?;
    let address = listener.local_addr().map_err(failed("cannot listen"))?;
    let profile = EmptyDir::new()?;
    let mut browser = Browser(
        Command::new(program)
            .args(ARGS)
            .arg(format!("--user-data-dir={}", profile.0.display()))
            .arg(format!("http://{address}/"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed(program))?,
    );
    listener
        .set_nonblocking(true)
        .map_err(failed("cannot listen"))?;
    let start = Instant::now();
    let report = loop {
        match listener.accept() {
            Ok((stream, _)) => {
                // A browser may close a connection that it opened in advance.
                if let Ok(Some(report)) = answer(stream, &dir, &names) {
                    break report;
                }
            }
            Err(_) if start.elapsed() > TIMEOUT => {
                return Err(format!("{program} did not finish within {TIMEOUT:?}"))
            }
            Err(_) if browser.ended() => return Err(format!("{program} ended by itself")),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let refused: Vec<&str> = report.lines().filter(|line| line.contains('\t')).collect();
    if !refused.is_empty() {
        return Err(format!(
            "{program} refuses {} of {} shaders in {}:\n  {}",
            refused.len(),
            names.len(),
            dir.display(),
            refused.join("\n  ")
        ));
    }
    if report.ends_with(&format!("checked {}", names.len())) {
        Ok(format!("{} shaders", names.len()))
    } else {
        Err(format!("{program}: {report}"))
    }
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |err| format!("{what}: {err}")
}

/// A browser that does not outlive the step.
struct Browser(Child);

impl Browser {
    fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn program() -> Result<&'static str, String> {
    install::program("Chromium or Chrome", &PROGRAMS, "chromium")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".wgsl"))
        .collect();
    names.sort();
    names
}

/// Answers one request; `Some` is what the page posted.
fn answer(stream: TcpStream, dir: &Path, names: &[String]) -> std::io::Result<Option<String>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = request.split(' ').nth(1).unwrap_or("");
    let content = match path {
        "/" => PAGE.to_string(),
        "/list" => names.join("\n"),
        _ => {
            // Only what is in the list.
            let name = path.strip_prefix("/shader/").unwrap_or("");
            match names.iter().find(|known| *known == name) {
                Some(name) => std::fs::read_to_string(dir.join(name))?,
                None => String::new(),
            }
        }
    };
    let kind = if path == "/" {
        "text/html"
    } else {
        "text/plain"
    };
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{content}",
        content.len()
    )?;
    Ok((path == "/done").then(|| String::from_utf8_lossy(&body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gives_what_is_in_the_list() {
        let dir = EmptyDir::new().unwrap();
        let dir = dir.0.join("shaders");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("a.wgsl"), "fn a() {}").unwrap();
        let names = names(&dir);
        assert_eq!(names, ["a.wgsl"]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ask = |request: String| {
            let client = std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            });
            let posted = answer(listener.accept().unwrap().0, &dir, &names).unwrap();
            (posted, client.join().unwrap())
        };
        let get = |path: &str| ask(format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(get("/shader/a.wgsl").1.ends_with("\r\n\r\nfn a() {}"));
        assert!(get("/shader/../a.wgsl").1.ends_with("\r\n\r\n"));
        assert!(get("/list").1.ends_with("a.wgsl"));
        let (posted, _) = ask("POST /done HTTP/1.1\r\nContent-Length: 9\r\n\r\nchecked 1".into());
        assert_eq!(posted.as_deref(), Some("checked 1"));
    }
}
