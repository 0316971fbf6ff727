//! `candle-dvm models`: the cache of the Hub, listed, filled and emptied.

use crate::cli::{program, stdout};
use crate::gguf_cli::in_parts;
use crate::gguf_model::in_format;
use crate::hub_server::{Served, Server};
use crate::support::ModelFolder;
use candle_core::quantized::GgmlDType;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A Hub with `us/demo`, a folder with one GGUF file and one in two parts, and an empty cache.
struct Place {
    server: Server,
    home: TempDir,
}

impl Place {
    fn new() -> Self {
        let demo = ModelFolder::new();
        let files = ["config.json", "tokenizer.json", "model.safetensors"];
        let files = files.map(|file| (file, demo.read(file)));
        let mut served = Served::new("c0ffee1", files);
        let one = std::fs::read(in_format(GgmlDType::Q8_0)).unwrap();
        served.add("demo-Q8_0.gguf", one);
        let folder = tempfile::tempdir().unwrap();
        for part in in_parts(folder.path(), 2) {
            let name = part.file_name().unwrap().to_str().unwrap();
            let name = name.replace("demo", "demo-F16");
            served.add(&format!("F16/{name}"), std::fs::read(&part).unwrap());
        }
        let server = Server::start();
        server.put("us/demo", served.clone());
        // Another file that loads the same weights.
        demo.edit("config.json", |config| config["other"] = Value::from(1));
        served.add("config.json", demo.read("config.json"));
        served.commit = "beef2".to_string();
        server.put("us/demo@v2", served);
        let home = tempfile::tempdir().unwrap();
        Self { server, home }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&[&["models"], args].concat());
        command
            .env("HF_HOME", self.home.path())
            .env("HF_ENDPOINT", self.server.address())
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_HUB_OFFLINE")
            .env_remove("HF_TOKEN");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The path that `pull` prints.
    fn pull(&self, name: &str) -> PathBuf {
        PathBuf::from(stdout(&self.run(&["pull", name])).trim_end())
    }

    fn names(&self) -> Vec<String> {
        let text = stdout(&self.run(&["list"]));
        let names = text.lines().map(|line| line.split_once(' ').unwrap().0);
        names.map(str::to_string).collect()
    }

    fn bytes(&self) -> u64 {
        let list: Value = serde_json::from_str(&stdout(&self.run(&["list", "--json"]))).unwrap();
        let repos = list.as_array().unwrap().iter();
        repos.map(|repo| repo["bytes"].as_u64().unwrap()).sum()
    }

    #[track_caller]
    fn refuses(&self, args: &[&str], parts: &[&str]) {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "no {part:?} in {stderr}");
        }
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()))
        } else {
            files.push(entry.path())
        }
    }
    files
}

#[test]
fn what_is_pulled_is_listed_and_removed() {
    let place = Place::new();
    let empty = place.run(&["list"]);
    assert!(empty.status.success() && empty.stdout.is_empty());
    let said = String::from_utf8(empty.stderr).unwrap();
    assert!(
        said.contains("no models in") && said.contains("pull"),
        "{said}"
    );
    let folder = place.pull("us/demo");
    assert!(folder.join("model.safetensors").exists(), "{folder:?}");
    let file = place.pull("hf.co/us/demo:q8_0");
    let one = std::fs::metadata(&file).unwrap().len();
    let split = place.pull("us/demo:F16");
    assert!(
        split.ends_with("F16/demo-F16-00001-of-00002.gguf"),
        "{split:?}"
    );
    let all = [
        "us/demo",
        "us/demo:F16/demo-F16-00001-of-00002.gguf",
        "us/demo:demo-Q8_0.gguf",
    ];
    assert_eq!(place.names(), all);
    let before = place.bytes();
    // A second revision that shares all large files.
    let second = place.pull("us/demo@v2");
    assert_eq!(place.names(), [&all[..], &["us/demo@v2"]].concat());
    let config = std::fs::metadata(second.join("config.json")).unwrap();
    let more = place.bytes() - before;
    assert_eq!(more, config.len());

    // Nobody is there to be questioned.
    place.refuses(&["rm", "us/demo:Q8_0"], &["us/demo:Q8_0", "--yes"]);
    assert_eq!(place.names().len(), 4);
    let before = place.bytes();
    let output = place.run(&["rm", "us/demo:Q8_0", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!file.is_symlink() && !file.exists());
    assert_eq!(before - place.bytes(), one);
    assert_eq!(place.names(), [&all[..2], &["us/demo@v2"]].concat());
    assert!(place.run(&["rm", "us/demo:F16", "--yes"]).status.success());
    assert!(!split.parent().unwrap().exists());
    // What another revision needs stays.
    let before = place.bytes();
    assert!(place.run(&["rm", "us/demo@v2", "--yes"]).status.success());
    assert_eq!(before - place.bytes(), more);
    assert_eq!(place.names(), ["us/demo"]);
    let refs = place.home.path().join("hub/models--us--demo/refs");
    assert!(!refs.join("v2").exists() && refs.join("main").exists());
    let offline = place
        .command(&["pull", "us/demo"])
        .env("HF_HUB_OFFLINE", "1")
        .output();
    assert_eq!(PathBuf::from(stdout(&offline.unwrap()).trim_end()), folder);
    assert!(place.run(&["rm", "us/demo", "--yes"]).status.success());
    assert_eq!(files_below(place.home.path()), Vec::<PathBuf>::new());
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_removed() {
    let place = Place::new();
    place.refuses(
        &["rm", "us/demo", "--yes"],
        &["us/demo: ", "not in the cache"],
    );
    place.pull("us/demo");
    for (name, part) in [
        ("us/other", "not in the cache"),
        ("us/demo@v9", "this revision is not in the cache"),
        ("us/demo:Q8_0", "such a file is not in the cache"),
        ("../demo", "not the name of a model"),
        ("/etc", "not the name of a model"),
        ("us/demo:../x.gguf", "not the name of a model"),
    ] {
        place.refuses(&["rm", name, "--yes"], &[name, part]);
    }
    place.refuses(&["pull", "us"], &["owner/name"]);
    assert_eq!(place.names(), ["us/demo"]);
}

#[test]
fn an_incomplete_download_is_listed_as_one() {
    let place = Place::new();
    let size = ModelFolder::new().read("model.safetensors").len();
    place.server.cut("model.safetensors", &[size / 2, 0, 0, 0]);
    place.refuses(&["pull", "us/demo"], &["kept"]);
    let text = stdout(&place.run(&["list"]));
    assert!(
        text.starts_with("us/demo  ") && text.ends_with("incomplete\n"),
        "{text}"
    );
    let list: Value = serde_json::from_str(&stdout(&place.run(&["list", "--json"]))).unwrap();
    assert_eq!(list[0]["incomplete_bytes"], size / 2);
    assert_eq!(list[0]["models"], Value::Array(Vec::new()));
    assert!(place.run(&["rm", "us/demo", "--yes"]).status.success());
    assert_eq!(files_below(place.home.path()), Vec::<PathBuf>::new());
}

#[cfg(unix)]
#[test]
fn a_person_is_questioned() {
    use crate::terminal::Terminal;
    let place = Place::new();
    place.pull("us/demo");
    for (answer, left) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
        let mut terminal = Terminal::start(&mut place.command(&["rm", "us/demo"]));
        terminal.wait_for("[y/N] ", 1);
        terminal.types(answer);
        let (status, shown) = terminal.end();
        assert!(status.success(), "{shown}");
        assert!(shown.starts_with("Remove us/demo ("), "{shown}");
        assert_eq!(place.names().len(), left, "{shown}");
    }
}

/// Required memory and number of layers that fit, for a folder and for a file, without loading either.
#[test]
fn what_fits() {
    let folder = ModelFolder::new();
    let path = folder.path().to_str().unwrap().to_string();
    let json = |args: &[&str]| -> Value {
        let output = program(&[&["models", "fit", "--json"], args].concat()).output();
        let text = stdout(&output.unwrap());
        serde_json::from_str(&text).unwrap()
    };
    let found = json(&[&path, "--context", "300"]);
    let number = |name: &str| found[name].as_u64().unwrap();
    let stored = folder.read("model.safetensors").len() as u64;
    // Without the header.
    assert!(stored - number("weights") < 10_000, "{found}");
    // 512 positions of 6 layers, keys and values of 2 heads of 64 in f16.
    assert_eq!(number("cache"), 512 * 6 * 2 * 2 * 64 * 2);
    let sum = number("weights") + number("cache") + number("computing");
    assert_eq!((number("layers"), number("on_gpu")), (6, sum));
    let wider = json(&[
        &path,
        "--context",
        "300",
        "--kv-dtype",
        "f32",
        "--texts",
        "2",
    ]);
    assert_eq!(wider["cache"], 4 * number("cache"));
    let file = in_format(GgmlDType::Q8_0);
    let output = program(&["models", "fit", file.to_str().unwrap()]).output();
    let text = stdout(&output.unwrap());
    for part in [
        "6 layers",
        "q8_0",
        "1024 tokens in f16",
        "2.0 GB  all layers",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let output = program(&["models", "fit", &path, "--texts", "0"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim(), "error: --texts 0: expected at least 1");
}
