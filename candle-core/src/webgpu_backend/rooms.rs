//! The order of this module's layers, checked by a test that reads the sources.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Layers, bottom first. A file may use files of the same layer and of the earlier ones.
const ROOMS: [&[&str]; 9] = [
    &["limits", "status", "elem", "free_memory", "shared"],
    &["adapter", "pipeline_cache", "pool", "profile"],
    &["memory", "kernel", "shader", "pipelines", "unroll"],
    &["queue", "warm_up"],
    &["readback"],
    &["gpu"],
    &["device", "storage"],
    &["ops", "quantized"],
    &["backend", "custom"],
];

fn room_of(file: &str) -> Option<usize> {
    ROOMS.iter().position(|room| room.contains(&file))
}

/// The first segments of the paths that begin with `prefix`: one, or those in braces.
fn named<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut names = vec![];
    for (at, _) in code.match_indices(prefix) {
        // `super::super::ops` does not begin at the second word.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let (list, inner) = match rest.strip_prefix('{') {
            Some(list) => (list.split_once('}').map_or(list, |(list, _)| list), true),
            None => (rest, false),
        };
        let words = list.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        if inner {
            names.extend(words.filter(|word| !word.is_empty()))
        } else {
            names.extend(words.take(1))
        }
    }
    names
}

/// The file from which `mod.rs` exports a name: `WebGpuDevice` comes from `device`.
fn exports(text: &str) -> HashMap<&str, &str> {
    let uses = text.lines().filter_map(|line| line.split_once("use "));
    let paths = uses.filter_map(|(_, path)| path.split_once("::"));
    let names = paths.flat_map(|(file, names)| {
        let words = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.map(move |word| (word, file))
    });
    names.collect()
}

/// The uses of layers above its own in a file; `inside` if its parent is this module.
fn faults(file: &str, text: &str, inside: bool, exports: &HashMap<&str, &str>) -> Vec<String> {
    let Some(room) = room_of(file) else {
        return vec![format!("{file} is in no room")];
    };
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut names = named(&code, "crate::webgpu_backend::");
    if inside {
        names.extend(named(&code, "super::"));
    }
    let files = names.iter().map(|name| exports.get(name).unwrap_or(name));
    let above = files.filter(|named| room_of(named).is_some_and(|other| other > room));
    above.map(|named| format!("{file} names {named}")).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_file_names_no_room_above_its_own() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/webgpu_backend");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a source");
    let top = read(&dir.join("mod.rs"));
    let exports = exports(&top);
    let mut found = vec![];
    for path in files(&dir) {
        let place = path.strip_prefix(&dir).expect("in the folder");
        let parts: Vec<_> = place.iter().filter_map(|part| part.to_str()).collect();
        let file = parts[0].trim_end_matches(".rs");
        if matches!(file, "mod" | "loops" | "rooms") {
            continue;
        }
        let inside = parts.len() == 1 || parts[1] == "mod.rs";
        found.extend(faults(file, &read(&path), inside, &exports));
    }
    assert_eq!(
        found, [""; 0],
        "each room knows those below it alone: move what both need down"
    );
}

#[test]
fn faults_are_found() {
    let exports = exports("pub use device::{Stats, WebGpuDevice};\nmod gpu;");
    let find = |text| faults("queue", text, true, &exports);
    assert_eq!(find("use super::ops::bind;"), ["queue names ops"]);
    assert_eq!(
        find("use super::{kernel, WebGpuDevice};"),
        ["queue names device"]
    );
    let path = "fn f(g: &crate::webgpu_backend::gpu::Gpu) {}";
    assert_eq!(find(path), ["queue names gpu"]);
    assert!(find("// use super::ops::bind;\nuse super::pool::Pool;").is_empty());
    assert_eq!(faults("new", "", true, &exports), ["new is in no room"]);
}
