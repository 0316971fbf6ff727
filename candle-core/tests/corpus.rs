//! Runs the fuzz targets over the valid files of each format and over mutations of them: every prefix, and changed, inserted or deleted
//! bytes. The fuzzer itself runs at night.

#[path = "../fuzz/src/bounded.rs"]
mod bounded;
#[path = "../fuzz/src/targets.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Number of mutations of each file, in addition to its prefixes.
const MUTATIONS: usize = 1500;
/// Number of prefixes of each file; those of a longer file are spread evenly.
const PREFIXES: usize = 500;

/// Serialises the tests: memory is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn files(extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let entries = std::fs::read_dir(&folder).expect("the folder of files");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no file *.{extension}");
    paths
}

/// A reproducible pseudo-random sequence, so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Applies one or two changes: a flipped bit, an extreme byte, an inserted or a removed byte, or a run of 0xff, which may hit a length
/// field.
fn mutate(data: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..1 + numbers.below(2) {
        let at = numbers.below(data.len());
        match numbers.below(5) {
            0 if !data.is_empty() => data[at] ^= 1 << numbers.below(8),
            1 if !data.is_empty() => data[at] = [0, 0x7f, 0x80, 0xff][numbers.below(4)],
            2 => data.insert(at, numbers.below(256) as u8),
            3 if !data.is_empty() => drop(data.remove(at)),
            _ => {
                let end = data.len().min(at + 8);
                data[at..end].fill(0xff);
            }
        }
    }
}

fn replay(extension: &str, target: fn(&[u8])) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for path in files(extension) {
        let data = std::fs::read(&path).expect("a file");
        target(&data);
        let step = data.len().div_ceil(PREFIXES).max(1);
        for end in (0..data.len()).step_by(step) {
            target(&data[..end]);
        }
        for _ in 0..MUTATIONS {
            let mut mutated = data.clone();
            mutate(&mut mutated, &mut numbers);
            target(&mutated);
        }
    }
}

macro_rules! formats {
    ($($format:ident),* $(,)?) => {
        $(
            #[test]
            fn $format() {
                replay(stringify!($format), targets::$format);
            }
        )*
    };
}

formats!(ggml, gguf, imatrix, npy, npz, pickle, pth, safetensors);

/// A target aborts the process if it takes more memory than its input justifies. The test runs itself in a child process to check that.
#[test]
fn memory_that_no_input_justifies_is_found() {
    const CHILD: &str = "CORPUS_TAKES_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        bounded::bounded(&[0; 4], || {
            drop(std::hint::black_box(vec![1u8; 64 << 20]));
            Ok(())
        });
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let name = "memory_that_no_input_justifies_is_found";
    let child = std::process::Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output();
    let output = child.expect("a child");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("more than the input justifies"),
        "{text}"
    );
}
