//! The pages for browsers: their workspace's tool builds and serves them, and Node drives real browsers over them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::weights::{self, pictures, speech};
use super::{chrome, nostr};
use crate::command::{cmd, Cmd};
use crate::files::built;
use crate::install;
use crate::testing;

const MANIFEST: &str = "candle-wasm-examples/Cargo.toml";
/// Build output for browsers; separate from the native builds, whose flags differ.
const TARGET: &str = "target/web";
const TESTS: &str = "candle-wasm-examples/tests";
const VERSUS: &str = "candle-wasm-examples/versus";

/// `cargo xtask web`.
pub fn build(only: Option<&str>) -> Result<(), String> {
    match only {
        None => tool("build").run(),
        Some(only) => tool(&format!("build --only {only}")).run(),
    }
}

/// `cargo xtask web --static`: what was built, as a folder for a host that only serves files.
pub fn export(to: &Path) -> Result<(), String> {
    tool("export").arg(to.display().to_string()).run()
}

/// `cargo xtask serve`.
pub fn serve(port: u16) -> Result<(), String> {
    tool(&format!("serve --port {port}")).run()
}

fn tool(args: &str) -> Cmd {
    cmd(&format!(
        "cargo run --manifest-path {MANIFEST} --package web-tool --target-dir {TARGET} -- {args}"
    ))
}

/// The builds that the tests take: the other one would add half to the time that building takes.
const BUILT: &str = "simd,threads";
/// The build with which pages run that may run on a GPU.
const TESTED: &str = "simd";

/// The native programs that pages are held against, by the variables of tests that name them.
const NATIVE: [(&str, &str); 5] = [
    ("BERT_SIMILARITY", "examples/bert_similarity"),
    ("CANDLE_DVM", "candle-dvm"),
    ("DETECT", "examples/detect"),
    ("SEGMENT", "examples/segment"),
    ("SPLADE", "examples/splade"),
];

/// The settings for compiling the modules that tests load.
#[derive(Clone, Copy)]
enum Modules {
    /// In a third of the time, larger and slower.
    Quick,
    /// As they are published, but without brotli copies.
    Published,
}

impl Modules {
    fn build(self) -> Result<(), String> {
        match self {
            Self::Quick => tool(&format!("build --only {BUILT} --quick")).run(),
            Self::Published => tool(&format!("build --only {BUILT} --no-brotli")).run(),
        }
    }
}

/// The pages, and what tries them.
pub fn ahead() -> Result<(), String> {
    Modules::Quick.build()?;
    prepared()
}

/// As [`ahead`], for [`firefox`].
pub fn ahead_published() -> Result<(), String> {
    Modules::Published.build()?;
    prepared()
}

fn prepared() -> Result<(), String> {
    node_folder(TESTS)?;
    nostr::tools()?;
    speech::with_detector()?;
    pictures::folder()?;
    weights::word_model()?;
    Ok(())
}

/// The modules as they are published are within their sizes.
pub fn sizes() -> Result<String, String> {
    Modules::Published.build()?;
    Ok(format!("the modules of the builds {BUILT}"))
}

/// All pages in Chromium.
pub fn web() -> Result<String, String> {
    cmd(&format!(
        "cargo test --manifest-path {MANIFEST} --package web-tool --target-dir {TARGET}"
    ))
    .run()?;
    tried("chromium", Modules::Quick)
}

/// All pages in Firefox, with the modules as they are published.
pub fn firefox() -> Result<String, String> {
    tried("firefox", Modules::Published)
}

/// Builds all pages and tries them as a person would, in a headless browser with WebGPU on a software adapter. run.mjs ends after a time.
fn tried(browser: &str, modules: Modules) -> Result<String, String> {
    let (variable, program) = match browser {
        "chromium" => ("CHROME", chrome::program()?),
        _ => {
            let names = ["firefox-esr", "firefox"];
            (
                "FIREFOX",
                install::program("Firefox", &names, "firefox-esr")?,
            )
        }
    };
    modules.build()?;
    testing::build_workspace()?;
    let tests = node_folder(TESTS)?;
    let nostr = nostr::tools()?;
    let speech = speech::with_detector()?;
    let pictures = pictures::folder()?;
    let splade = weights::word_model()?;
    let server = Server::start()?;
    let run = cmd(&format!(
        "node {}/run.mjs {} {TARGET}/screenshots",
        tests.display(),
        server.address
    ))
    .env("BROWSERS", browser)
    .env("BUILDS", TESTED)
    .env(variable, install::path_of(program)?)
    .env("CHROME_ARGS", chrome::ARGS.join(" "))
    .env("NOSTR", nostr.display().to_string())
    .env("SPEECH", speech.display().to_string())
    .env("PICTURES", pictures.display().to_string())
    .env("SPLADE_MODEL", splade.display().to_string());
    let run = NATIVE.iter().try_fold(run, |run, (variable, name)| {
        let program = built(name)?;
        Ok::<_, String>(run.env(variable, program.display().to_string()))
    })?;
    let tally = testing::tally(&run, browser)?;
    Ok(format!(
        "{} passed; screenshots in {TARGET}/screenshots",
        tally.passed
    ))
}

/// `cargo xtask versus`: ops in Chromium, ours and those of onnxruntime-web.
pub fn versus() -> Result<(), String> {
    let chromium = chrome::program()?;
    Modules::Published.build()?;
    let scripts = node_folder(VERSUS)?;
    let server = Server::start()?;
    cmd(&format!(
        "node {}/run.mjs {}",
        scripts.display(),
        server.address
    ))
    .env("CHROME", install::path_of(chromium)?)
    .env("CHROME_ARGS", chrome::ARGS.join(" "))
    .run()
}

/// Scripts for Node, copied next to the packages that they need: npm installs those in the scripts' folder, and the repository should not
/// contain them.
fn node_folder(from: &str) -> Result<PathBuf, String> {
    install::program("Node", &["node"], "nodejs")?;
    install::program("npm", &["npm"], "npm")?;
    let from = Path::new(from);
    let to = Path::new(TARGET).join(from.file_name().unwrap_or_default());
    let failed =
        |err: std::io::Error| format!("copying {} to {}: {err}", from.display(), to.display());
    std::fs::create_dir_all(&to).map_err(failed)?;
    let lock = "package-lock.json";
    let same = std::fs::read(to.join(lock)).ok() == std::fs::read(from.join(lock)).ok();
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    if !same || !to.join("node_modules").exists() {
        let install = format!("npm ci --no-audit --no-fund --prefix {}", to.display());
        // A lockfile is there already: what was not installed must not pass for installed.
        if let Err(err) = cmd(&install).run() {
            let _ = std::fs::remove_file(to.join(lock));
            return Err(err);
        }
    }
    Ok(to)
}

/// The pages' server, which does not outlive the step.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Result<Self, String> {
        let program = format!("{TARGET}/debug/web-tool{}", std::env::consts::EXE_SUFFIX);
        let failed = |err: std::io::Error| format!("{program} serve: {err}");
        let mut process = Command::new(&program)
            .args(["serve", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut address = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut address)
                .map_err(failed)?;
        }
        let server = Self {
            process,
            address: address.trim().to_string(),
        };
        if server.address.starts_with("http://") {
            Ok(server)
        } else {
            Err(format!(
                "{program} serve: no address, but {:?}",
                server.address
            ))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
