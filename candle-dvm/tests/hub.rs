//! Models of the Hugging Face Hub, from a server on 127.0.0.1 that answers as the Hub does.

use crate::cli::{assert_one_line, program, stdout};
use crate::gguf_model::in_format;
use crate::hub_server::{sha256, Served, Server};
use crate::support::{golden, ModelFolder};
use candle_core::quantized::GgmlDType;
use candle_engine::{Hub, HubModel, ModelFiles, ModelSource};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FILES: [&str; 4] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model.safetensors",
];

/// A server with the embedded model as `us/demo`, and an empty cache.
struct Place {
    server: Server,
    cache: TempDir,
}

impl Place {
    fn new() -> Self {
        Self::with(served(&ModelFolder::new(), &FILES))
    }

    fn with(model: Served) -> Self {
        let server = Server::start();
        server.put("us/demo", model);
        let cache = tempfile::tempdir().unwrap();
        Self { server, cache }
    }

    fn hub(&self) -> Hub {
        Hub {
            endpoint: self.server.address(),
            cache: self.cache.path().to_path_buf(),
            token: None,
            offline: false,
        }
    }

    fn offline(&self) -> Hub {
        Hub {
            offline: true,
            ..self.hub()
        }
    }

    /// The line that a hub has for a model that it cannot fetch.
    #[track_caller]
    fn refuses(&self, hub: &Hub, name: &str, parts: &[&str]) {
        let error = hub.fetch(&model(name)).unwrap_err().to_string();
        assert!(error.starts_with(name) && !error.contains('\n'), "{error}");
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
}

fn served(folder: &ModelFolder, files: &[&str]) -> Served {
    let files = files.iter().map(|file| (*file, folder.read(file)));
    Served::new("c0ffee1", files)
}

fn model(name: &str) -> HubModel {
    HubModel::parse(name).unwrap_or_else(|| panic!("{name}"))
}

fn folder(source: ModelSource) -> PathBuf {
    match source {
        ModelSource::Folder(path) => path,
        other => panic!("{other:?}"),
    }
}

fn gguf(source: ModelSource) -> PathBuf {
    match source {
        ModelSource::Gguf(path) => path,
        other => panic!("{other:?}"),
    }
}

/// Files of `path` with the contents that the embedded model's have.
#[track_caller]
fn assert_demo(path: &Path) {
    let demo = ModelFolder::new();
    for file in FILES {
        assert!(
            std::fs::read(path.join(file)).unwrap() == demo.read(file),
            "{file}"
        );
    }
}

#[test]
fn a_folder_is_fetched_once_and_then_there_offline() {
    let place = Place::new();
    place.refuses(
        &place.offline(),
        "us/demo",
        &["missing or incomplete in the cache", "HF_HUB_OFFLINE"],
    );
    assert_eq!(place.server.requests(), Vec::<String>::new());

    let path = folder(place.hub().fetch(&model("us/demo")).unwrap());
    assert_demo(&path);
    ModelFiles::open(&ModelSource::Folder(path.clone())).unwrap();
    // As huggingface_hub lays it out.
    assert_eq!(
        path,
        place
            .cache
            .path()
            .join("models--us--demo/snapshots/c0ffee1")
    );
    let branch = place.cache.path().join("models--us--demo/refs/main");
    assert_eq!(std::fs::read_to_string(branch).unwrap(), "c0ffee1");

    place.server.forget_requests();
    assert_eq!(folder(place.hub().fetch(&model("us/demo")).unwrap()), path);
    assert_eq!(
        place.server.requests(),
        ["/api/models/us/demo/revision/main"]
    );

    place.server.forget_requests();
    assert_eq!(
        folder(place.offline().fetch(&model("us/demo")).unwrap()),
        path
    );
    assert_eq!(place.server.requests(), Vec::<String>::new());

    // Without a network, and without `HF_HUB_OFFLINE`.
    let mut gone = place.hub();
    gone.endpoint = "http://127.0.0.1:1".to_string();
    assert_eq!(folder(gone.fetch(&model("us/demo")).unwrap()), path);
    place.refuses(&gone, "us/other", &["cannot reach", "127.0.0.1:1"]);
}

#[test]
fn the_program_takes_a_name() {
    let place = Place::new();
    let home = tempfile::tempdir().unwrap();
    let prompt = &golden().prompts[0];
    let run = |name: &str, offline: &str| {
        program(&[
            "generate",
            "--device",
            "cpu",
            "--max-tokens",
            "48",
            "--prompt",
            &prompt.text,
            "--model",
            name,
        ])
        .env("HF_HOME", home.path())
        .env("HF_ENDPOINT", place.server.address())
        .env("HF_HUB_OFFLINE", offline)
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN")
        .current_dir(home.path())
        .output()
        .unwrap()
    };
    let refused = run("us/demo", "1");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    for offline in ["0", "1"] {
        let output = run("us/demo", offline);
        assert_eq!(stdout(&output), format!("{}\n", prompt.greedy_text));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("us/demo: loaded"), "{stderr}");
    }
    assert!(home.path().join("hub/models--us--demo/refs/main").exists());

    // A folder of that name is nearer than the Hub.
    std::fs::create_dir_all(home.path().join("us/demo")).unwrap();
    let output = run("us/demo", "0");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: us/demo/config.json"), "{stderr}");
    // A text that is neither a path nor a name is refused without a request.
    place.server.forget_requests();
    assert_one_line(
        &["generate", "--prompt", "x", "--model", "no/such/folder"],
        &[
            "no/such/folder",
            "no such file or folder",
            candle_engine::model::FORM,
        ],
    );
    assert_eq!(place.server.requests(), Vec::<String>::new());
}

#[test]
fn a_gguf_file_is_fetched_alone() {
    let demo = ModelFolder::new();
    let bytes = std::fs::read(in_format(GgmlDType::Q8_0)).unwrap();
    let mut files = served(&demo, &["config.json"]);
    files.add("sub/q8.gguf", bytes.clone());
    let place = Place::with(files);
    let path = gguf(place.hub().fetch(&model("us/demo:sub/q8.gguf")).unwrap());
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert!(path.ends_with("snapshots/c0ffee1/sub/q8.gguf"), "{path:?}");
    ModelFiles::open(&ModelSource::Gguf(path.clone())).unwrap();
    assert!(!path
        .parent()
        .unwrap()
        .with_file_name("config.json")
        .exists());
    let again = place
        .offline()
        .fetch(&model("us/demo:sub/q8.gguf"))
        .unwrap();
    assert_eq!(gguf(again), path);
    let hint = "us/demo:sub/q8.gguf";
    place.refuses(&place.hub(), "us/demo:q4.gguf", &["has no q4.gguf", hint]);
    // As a folder it is not complete.
    place.refuses(&place.hub(), "us/demo", &["has no tokenizer.json", hint]);
    place.refuses(
        &place.offline(),
        "us/demo",
        &["missing or incomplete in the cache"],
    );
}

#[test]
fn formats_and_files_in_parts() {
    let demo = ModelFolder::new();
    let folder = tempfile::tempdir().unwrap();
    let parts = crate::gguf_cli::in_parts(folder.path(), 2);
    let mut files = served(&demo, &["config.json"]);
    files.add(
        "demo-Q8_0.gguf",
        std::fs::read(in_format(GgmlDType::Q8_0)).unwrap(),
    );
    files.add("mmproj-demo-Q8_0.gguf", b"other".to_vec());
    files.add("demo-Q4_K_M.gguf", b"other".to_vec());
    files.add("demo-UD-Q4_K_M.gguf", b"other".to_vec());
    for part in &parts {
        let name = part.file_name().unwrap().to_str().unwrap();
        files.add(
            &format!("F16/{}", name.replace("demo", "demo-F16")),
            std::fs::read(part).unwrap(),
        );
    }
    let place = Place::with(files);
    let path = gguf(place.hub().fetch(&model("hf.co/us/demo:q8_0")).unwrap());
    assert!(
        path.ends_with("snapshots/c0ffee1/demo-Q8_0.gguf"),
        "{path:?}"
    );
    assert_eq!(
        gguf(place.offline().fetch(&model("us/demo:Q8_0")).unwrap()),
        path
    );
    // All parts, in a folder.
    let path = gguf(
        place
            .hub()
            .fetch(&model("https://huggingface.co/us/demo:F16"))
            .unwrap(),
    );
    assert!(
        path.ends_with("F16/demo-F16-00001-of-00002.gguf"),
        "{path:?}"
    );
    ModelFiles::open(&ModelSource::Gguf(path.clone())).unwrap();
    assert_eq!(
        gguf(place.offline().fetch(&model("us/demo:F16")).unwrap()),
        path
    );
    let second = path.with_file_name("demo-F16-00002-of-00002.gguf");
    std::fs::remove_file(second).unwrap();
    place.refuses(
        &place.offline(),
        "us/demo:F16",
        &["missing or incomplete in the cache"],
    );
    place.refuses(
        &place.hub(),
        "us/demo:Q5_K",
        &["\"Q5_K\"", "demo-Q8_0.gguf", "demo-Q4_K_M.gguf"],
    );
    place.refuses(
        &place.hub(),
        "us/demo:Q4_K_M",
        &["several", "demo-Q4_K_M.gguf", "demo-UD-Q4_K_M.gguf"],
    );
    // A part of a format's name is not the format.
    place.refuses(&place.hub(), "us/demo:Q4_K", &["no GGUF file"]);
    assert_eq!(model("us/demo:Q8_0").short_name(), "demo");
}

#[test]
fn shards_come_with_their_index() {
    let demo = ModelFolder::new();
    demo.shard();
    let files = [
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "part-1.safetensors",
        "part-2.safetensors",
    ];
    let mut all = served(&demo, &files);
    demo.write("chat_template.jinja", "{{ messages[0].content }}");
    all.add("chat_template.jinja", demo.read("chat_template.jinja"));
    all.add("README.md", b"unread".to_vec());
    let place = Place::with(all);
    let path = folder(place.hub().fetch(&model("us/demo")).unwrap());
    let opened = ModelFiles::open(&ModelSource::Folder(path.clone())).unwrap();
    assert!(opened.chat_template.is_some());
    assert!(!path.join("README.md").exists());
    // A cache that lost a shard is not whole.
    folder(place.offline().fetch(&model("us/demo")).unwrap());
    std::fs::remove_file(path.join("part-2.safetensors")).unwrap();
    place.refuses(&place.offline(), "us/demo", &["incomplete"]);

    let mut short = served(&demo, &files[..4]);
    short.commit = "c0ffee2".to_string();
    place.server.put("us/demo", short);
    place.refuses(&place.hub(), "us/demo", &["has no part-2.safetensors"]);
}

#[test]
fn a_revision_is_its_own_and_shares_what_is_the_same() {
    let demo = ModelFolder::new();
    let place = Place::with(served(&demo, &FILES));
    demo.edit("generation_config.json", |config| {
        config["eos_token_id"] = serde_json::json!([1, 2]);
    });
    let mut other = served(&demo, &FILES);
    other.commit = "beef2".to_string();
    place.server.put("us/demo@refs/pr/2", other.clone());

    let main = folder(place.hub().fetch(&model("us/demo")).unwrap());
    place.server.forget_requests();
    let second = folder(place.hub().fetch(&model("us/demo@refs/pr/2")).unwrap());
    assert!(second.ends_with("beef2"), "{second:?}");
    assert_demo(&main);
    let read = |file: &str| std::fs::read(second.join(file)).unwrap();
    assert!(read("generation_config.json") == demo.read("generation_config.json"));
    assert!(read("model.safetensors") == demo.read("model.safetensors"));
    let bodies = place.server.bodies();
    assert_eq!(
        bodies,
        ["generation_config.json"],
        "the rest is in the cache"
    );
    assert_eq!(
        folder(place.offline().fetch(&model("us/demo@refs/pr/2")).unwrap()),
        second
    );
    // A commit is known by itself.
    assert_eq!(
        folder(place.offline().fetch(&model("us/demo@beef2")).unwrap()),
        second
    );
    place.refuses(&place.hub(), "us/demo@v9", &["no revision `v9`"]);

    // A branch that moved on is followed.
    place.server.put("us/demo", other);
    assert_eq!(
        folder(place.hub().fetch(&model("us/demo")).unwrap()),
        second
    );
    assert_eq!(
        folder(place.offline().fetch(&model("us/demo")).unwrap()),
        second
    );
}

#[test]
fn what_is_not_for_everybody() {
    let place = Place::new();
    place.refuses(
        &place.hub(),
        "us/missing",
        &[
            "no such file or folder",
            "has no such model",
            &place.server.address(),
            "HF_TOKEN",
        ],
    );
    let mut gated = served(&ModelFolder::new(), &FILES);
    gated.token = Some("secret".to_string());
    place.server.put("us/gated", gated);
    place.refuses(
        &place.hub(),
        "us/gated",
        &["gated: request access", "HF_TOKEN"],
    );
    let with = |token: &str| Hub {
        token: Some(token.to_string()),
        ..place.hub()
    };
    let error = with("wrong")
        .fetch(&model("us/gated"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the token has no access") && !error.contains("wrong"),
        "{error}"
    );
    assert_demo(&folder(with("secret").fetch(&model("us/gated")).unwrap()));
}

#[test]
fn an_interrupted_download_is_taken_up_again() {
    let place = Place::new();
    let size = ModelFolder::new().read("model.safetensors").len();
    // Twice, within one run.
    place.server.cut("model.safetensors", &[size / 4, size / 4]);
    let path = folder(place.hub().fetch(&model("us/demo")).unwrap());
    assert_demo(&path);
    let starts = place.server.starts("model.safetensors");
    assert_eq!(starts, [0, size / 4, size / 2]);
}

#[test]
fn a_download_that_failed_goes_on_in_the_next_run() {
    let place = Place::new();
    let size = ModelFolder::new().read("model.safetensors").len();
    place.server.cut("model.safetensors", &[size / 2, 0, 0, 0]);
    let kept = format!("kept {} bytes", size / 2);
    place.refuses(&place.hub(), "us/demo", &["model.safetensors", &kept]);
    // An incomplete folder is not a model.
    place.refuses(&place.offline(), "us/demo", &["incomplete"]);
    place.server.forget_requests();
    assert_demo(&folder(place.hub().fetch(&model("us/demo")).unwrap()));
    assert_eq!(place.server.starts("model.safetensors"), [size / 2]);
}

/// The blobs of the cache, without locks.
fn blobs(place: &Place) -> Vec<String> {
    let folder = place.cache.path().join("models--us--demo/blobs");
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.ends_with(".lock")).collect()
}

#[test]
fn bytes_with_another_hash_are_refused() {
    let place = Place::new();
    let bytes = ModelFolder::new().read("model.safetensors");
    let (hash, size) = (sha256(&bytes), bytes.len());
    let mut changed = bytes;
    *changed.last_mut().unwrap() ^= 1;
    place.server.tamper("model.safetensors", true);
    let parts = ["model.safetensors", &hash, &sha256(&changed), "deleted"];
    place.refuses(&place.hub(), "us/demo", &parts);
    place.refuses(&place.offline(), "us/demo", &["incomplete"]);
    let kept = blobs(&place);
    assert!(kept.iter().all(|name| !name.contains(&hash)), "{kept:?}");
    // Nothing is left to resume.
    place.server.tamper("model.safetensors", false);
    place.server.forget_requests();
    assert_demo(&folder(place.hub().fetch(&model("us/demo")).unwrap()));
    assert_eq!(place.server.starts("model.safetensors"), [0]);
    assert!(blobs(&place).contains(&hash));

    // The bytes of an earlier run count too.
    let place = Place::new();
    place.server.cut("model.safetensors", &[size / 2, 0, 0, 0]);
    place.refuses(&place.hub(), "us/demo", &["kept"]);
    let part = place
        .cache
        .path()
        .join(format!("models--us--demo/blobs/{hash}.part"));
    let mut half = std::fs::read(&part).unwrap();
    half[0] ^= 1;
    std::fs::write(&part, half).unwrap();
    place.refuses(&place.hub(), "us/demo", &[&hash, "try again"]);
    assert!(!part.exists());
    assert_demo(&folder(place.hub().fetch(&model("us/demo")).unwrap()));
}

/// A run that ended between the last byte and the file's name.
#[test]
fn a_complete_part_is_checked_and_used() {
    for changed in [false, true] {
        let place = Place::new();
        let mut bytes = ModelFolder::new().read("model.safetensors");
        let folder_of_blobs = place.cache.path().join("models--us--demo/blobs");
        std::fs::create_dir_all(&folder_of_blobs).unwrap();
        let part = folder_of_blobs.join(format!("{}.part", sha256(&bytes)));
        bytes[7] ^= u8::from(changed);
        std::fs::write(&part, &bytes).unwrap();
        if changed {
            place.refuses(&place.hub(), "us/demo", &["SHA-256", "deleted"])
        } else {
            assert_demo(&folder(place.hub().fetch(&model("us/demo")).unwrap()))
        }
        assert!(!part.exists());
        let starts = place.server.starts("model.safetensors");
        assert_eq!(starts, Vec::<usize>::new());
    }
}
