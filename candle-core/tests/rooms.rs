//! The layers of the GPU backends, checked by reading their sources: a file uses files of its layer and of the layers below.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A folder of `candle-core/src` with layers.
struct Backend {
    name: &'static str,
    /// Layers, bottom first: files and folders, without their endings.
    rooms: &'static [&'static [&'static str]],
    /// Files of tests, and the one that declares the modules.
    outside: &'static [&'static str],
}

const WEBGPU: Backend = Backend {
    name: "webgpu_backend",
    rooms: &[
        &["limits", "status", "elem", "free_memory", "shared"],
        &["adapter", "pipeline_cache", "pool", "profile"],
        &["memory", "kernel", "shader", "pipelines", "unroll"],
        &["queue", "upload", "warm_up"],
        &["readback"],
        &["gpu"],
        &["device", "storage"],
        &["ops", "quantized"],
        &["backend", "custom"],
    ],
    outside: &["mod", "loops"],
};

const CUDA: Backend = Backend {
    name: "cuda_backend",
    rooms: &[
        &["error", "elem", "views", "precision"],
        &["libraries", "card", "nvrtc"],
        &["cubin_cache", "faults", "kernel", "lt", "pinned", "pool"],
        &["blas", "profile"],
        &["gpu", "htod_cache", "launch", "memory", "spares", "upload"],
        &["device", "storage", "readback"],
        &["ops", "quantized"],
        &["backend", "compat", "graph", "nccl"],
    ],
    outside: &["mod"],
};

impl Backend {
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src")
            .join(self.name)
    }

    fn room_of(&self, file: &str) -> Option<usize> {
        self.rooms.iter().position(|room| room.contains(&file))
    }

    /// The uses of layers above its own in `text`. `path` is relative to the backend's folder, such as `ops/matmul/mod.rs`.
    fn faults(&self, path: &str, text: &str, exports: &HashMap<&str, &str>) -> Vec<String> {
        let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
        let file = parts[0];
        let Some(room) = self.room_of(file) else {
            return vec![format!("{path} is in no room")];
        };
        let code = code(text);
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
        let mut names = named(&code, &format!("crate::{}::", self.name));
        names.extend(named(&code, &"super::".repeat(depth)));
        let files = names.iter().map(|name| exports.get(name).unwrap_or(name));
        let above = files.filter(|named| self.room_of(named).is_some_and(|other| other > room));
        above.map(|named| format!("{path} names {named}")).collect()
    }

    /// The faults of all files.
    fn all_faults(&self) -> Vec<String> {
        let folder = self.folder();
        let read = |path: &Path| std::fs::read_to_string(path).expect("a source");
        let top = code(&read(&folder.join("mod.rs")));
        let exports = exports(&top);
        let mut found = vec![];
        for path in files(&folder) {
            let relative = path.strip_prefix(&folder).expect("in the folder");
            let relative = relative.to_string_lossy().replace('\\', "/");
            if !self.outside.contains(&relative.trim_end_matches(".rs")) {
                found.extend(self.faults(&relative, &read(&path), &exports));
            }
        }
        found
    }

    /// The layers in CONTRIBUTING.md, top first, as its table has them: the files in backticks of the first column.
    fn documented(&self, page: &str) -> Vec<Vec<String>> {
        let title = format!("### The layers of `{}`", self.name);
        let (_, section) = page.split_once(&title).expect("a section of the backend");
        let table = section.lines().skip_while(|line| !line.starts_with("| `"));
        let rows = table.take_while(|line| line.starts_with('|'));
        let names = |row: &str| {
            let column = row.split('|').nth(1).unwrap_or_default();
            let names = column.split('`').skip(1).step_by(2);
            let ends = |name: &str| {
                name.trim_end_matches(".rs")
                    .trim_end_matches('/')
                    .to_string()
            };
            names.map(ends).collect()
        };
        rows.map(names).collect()
    }
}

/// The lines that are not comments.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
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
        match rest.strip_prefix('{') {
            Some(list) => names.extend(first_segments(list)),
            None => names.push(word(rest)),
        }
    }
    names
}

/// The identifier at the beginning; empty if there is none.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

/// The first segments of a list of paths, which follows an opening brace and ends with its closing brace.
fn first_segments(list: &str) -> Vec<&str> {
    let (mut depth, mut starts) = (0, vec![0]);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts.push(at + 1),
            _ => {}
        }
    }
    let words = starts.into_iter().map(|at| word(list[at..].trim_start()));
    words.filter(|word| !word.is_empty()).collect()
}

/// The file from which `mod.rs` exports a name: `WebGpuDevice` comes from `device`.
fn exports(code: &str) -> HashMap<&str, &str> {
    let uses = code.split(';').filter_map(|item| item.split_once("use "));
    let paths = uses.filter_map(|(_, path)| path.split_once("::"));
    let names = paths.flat_map(|(file, names)| {
        let words = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.map(move |word| (word, file))
    });
    names.collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
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
    for backend in [WEBGPU, CUDA] {
        assert_eq!(
            backend.all_faults(),
            [""; 0],
            "{}: each room knows those below it alone: move what both need down",
            backend.name
        );
    }
}

#[test]
fn every_room_exists_and_is_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CONTRIBUTING.md");
    let page = std::fs::read_to_string(page).expect("CONTRIBUTING.md");
    for backend in [WEBGPU, CUDA] {
        let folder = backend.folder();
        for file in backend.rooms.iter().copied().flatten() {
            let exists = folder.join(format!("{file}.rs")).exists() || folder.join(file).is_dir();
            assert!(exists, "{}: {file} is missing", backend.name);
        }
        let sorted = |names: &[&str]| {
            let mut names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
            names.sort();
            names
        };
        let rooms: Vec<_> = backend
            .rooms
            .iter()
            .rev()
            .map(|room| sorted(room))
            .collect();
        let mut documented = backend.documented(&page);
        for room in &mut documented {
            // Folders without Rust.
            room.retain(|name| !matches!(&**name, "shaders" | "kernels"));
            room.sort();
        }
        assert_eq!(documented, rooms, "{}: CONTRIBUTING.md", backend.name);
    }
}

#[test]
fn faults_are_found() {
    let top = "pub use device::{Stats, WebGpuDevice};\npub use ops::{\n    Stack,\n    rows,\n};\nmod gpu;";
    let exports = exports(top);
    let find = |path, text| WEBGPU.faults(path, text, &exports);
    let in_queue = |text| find("queue.rs", text);
    assert_eq!(in_queue("use super::ops::bind;"), ["queue.rs names ops"]);
    assert_eq!(
        in_queue("use super::{kernel::{A, B}, WebGpuDevice};"),
        ["queue.rs names device"]
    );
    assert_eq!(
        in_queue("use super::{\n    kernel,\n    rows,\n};"),
        ["queue.rs names ops"]
    );
    let path = "fn f(g: &crate::webgpu_backend::gpu::Gpu) {}";
    assert_eq!(in_queue(path), ["queue.rs names gpu"]);
    assert!(in_queue("// use super::ops::bind;\nuse super::pool::Pool;").is_empty());
    let up = "use super::super::backend::run;";
    assert_eq!(find("ops/sort.rs", up), ["ops/sort.rs names backend"]);
    assert_eq!(
        find("ops/matmul/mod.rs", up),
        ["ops/matmul/mod.rs names backend"]
    );
    // In a folder `super` is another module of it.
    assert!(find("ops/sort.rs", "use super::backend::run;").is_empty());
    assert_eq!(find("new.rs", ""), ["new.rs is in no room"]);
}
