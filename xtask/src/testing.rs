//! Builds test binaries, runs them and counts what passed, with the time of each test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use crate::command::{cmd, Cmd};
use crate::files::{built, EmptyDir};
use crate::times;

/// Makes Mesa's software adapter compile kernels in two thirds of the time (measured on attention, norms and quantised products): LLVM
/// runs no optional passes and legalises vectors of four lanes. Kernels then run at half the speed. Real adapters do not read these variables.
const COMPILE_QUICKLY: [(&str, &str); 2] =
    [("GALLIVM_PERF", "nopt"), ("LP_NATIVE_VECTOR_WIDTH", "128")];
/// The packages whose tests compile for longer than they run.
const MANY_KERNELS: [&str; 3] = ["candle-core", "candle-nn", "candle-transformers"];

/// At most this many failed tests run again, alone. A test that waits for a process or a relay can take longer than it allows for on a
/// machine that is busy with other things; more failures than this are the code's.
const UNSTEADY: usize = 2;
/// A test that fails now and then by itself seldom passes this many times in a row.
const AGAIN: usize = 3;

/// With this variable tests on a software adapter leave no case out.
pub const EVERY_CASE: &str = "CANDLE_EVERY_CASE";

/// The GPU backends. CUDA and Metal need nothing installed to build, so that one build on every machine has all of them.
pub const BACKENDS: &str = "--features \
     candle-core/webgpu,candle-nn/webgpu,candle-transformers/webgpu,\
     candle-core/cuda,candle-nn/cuda,candle-transformers/cuda,\
     candle-core/nccl,candle-core/metal,candle-nn/metal";

/// Builds every target of the workspace that `cargo test` builds: tests, examples and programs. Steps that run one of them call this
/// first: another selection of packages would be another set of features, and a second build of everything below.
pub fn build_workspace() -> Result<(), String> {
    build(&format!("--workspace {BACKENDS}")).map(|_| ())
}

/// Tests to build and run.
#[derive(Default)]
pub struct Tests<'a> {
    /// Cargo's arguments after those of the workspace: `--test core --lib`. All targets where empty.
    pub targets: &'a str,
    /// Names of tests, and options of the test harness: `matmul:: --skip ::cpu`.
    pub filter: &'a str,
    pub env: &'a [(&'a str, &'a str)],
    /// Binaries that do not run.
    pub without: &'a [&'a str],
    /// Which of the tests that are listed as long run.
    pub long: Long,
}

/// The names of long tests, or parts of names, by package.
pub type Names = &'static [(&'static str, &'static [&'static str])];

/// Which tests of a list run.
#[derive(Clone, Copy, Default)]
pub enum Long {
    /// Those on the list and all others: no list.
    #[default]
    Too,
    /// All but those on the list.
    Without(Names),
    /// Those on the list alone.
    Only(Names),
}

impl Long {
    /// The arguments of the test harness for a package; `None` where none of its tests run.
    fn arguments(self, package: &str) -> Option<String> {
        let of = |names: Names| {
            let mut listed = names.iter().filter(|(name, _)| *name == package);
            listed.next().map(|(_, names)| *names)
        };
        match self {
            Self::Too => Some(String::new()),
            Self::Without(names) => {
                let names = of(names).unwrap_or_default().iter();
                Some(names.map(|name| format!(" --skip {name}")).collect())
            }
            Self::Only(names) => of(names).map(|names| format!(" {}", names.join(" "))),
        }
    }
}

/// The packages whose tests run; all where it is not set. What is built stays the same, so that nothing is built twice.
static ONLY: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Restricts all tests to these packages.
pub fn only(packages: BTreeSet<String>) {
    // It is called once, before the first step.
    let _ = ONLY.set(packages);
}

/// The binaries of `Device::Metal`, which need a Mac or a variable.
pub const METAL: &[&str] = &["metal"];

impl Tests<'_> {
    /// Runs the tests on every backend but counts those on `backend`: none is an error, unless the run is of some packages.
    pub fn run_on(&self, backend: Backend) -> Result<String, String> {
        let tally = self.run()?;
        match tally.on(backend) {
            0 if ONLY.get().is_none() => Err(format!(
                "`{}` with the filter `{}` ran no test on {backend}",
                self.targets, self.filter
            )),
            on_gpu => Ok(format!(
                "{} passed, {on_gpu} of them on {backend}{}",
                tally.passed,
                tally.only_alone()
            )),
        }
    }

    /// Runs every binary, those after a failed one too. `Err` names the tests that failed.
    ///
    /// One binary more runs at a time than there are processors. The tests of one binary share a device, whose queue compiles one kernel
    /// after another where the adapter is software; and those of candle-dvm mostly wait for relays and timers.
    pub fn run(&self) -> Result<Tally, String> {
        let mut binaries = build(&format!("--workspace {BACKENDS} {}", self.targets))?;
        binaries.retain(|binary| {
            let skipped = self.without.contains(&binary.target.as_str());
            !skipped
                && self.long.arguments(&binary.package).is_some()
                && ONLY
                    .get()
                    .is_none_or(|names| names.contains(&binary.package))
        });
        let tally = Mutex::new(Tally::default());
        let next = AtomicUsize::new(0);
        let worker = || {
            while let Some(binary) = binaries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let more = self.long.arguments(&binary.package).unwrap_or_default();
                binary.run(&format!("{}{more}", self.filter), self.env, &tally)?;
            }
            Ok(())
        };
        let workers = 1 + std::thread::available_parallelism().map_or(2, |count| count.get());
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            running.into_iter().try_for_each(|worker| {
                let ended: Result<(), String> =
                    worker.join().map_err(|_| "a worker panicked".to_string())?;
                ended
            })
        })?;
        let mut tally = tally.into_inner().map_err(|_| "a worker panicked")?;
        if (1..=UNSTEADY).contains(&tally.failed.len()) {
            self.again(&binaries, &mut tally);
        }
        tally.verdict()?;
        Ok(tally)
    }

    /// Runs the failed tests again, each alone, and moves those that pass every time to `unsteady`.
    fn again(&self, binaries: &[Binary], tally: &mut Tally) {
        let passes = |failed: &String| {
            let Some((target, name)) = failed.split_once(' ') else {
                return false;
            };
            let mut of_target = binaries.iter().filter(|binary| binary.target == target);
            let (Some(binary), None) = (of_target.next(), of_target.next()) else {
                return false;
            };
            println!("{failed} failed beside other tests: {AGAIN} runs of it alone");
            (0..AGAIN).all(|_| {
                let own = Mutex::new(Tally::default());
                let ran = binary.run(&format!("--exact {name}"), self.env, &own);
                let own = own.into_inner().unwrap_or_default();
                ran.is_ok() && own.failed.is_empty() && own.passed == 1
            })
        };
        let failed = std::mem::take(&mut tally.failed);
        let (unsteady, failed) = failed.into_iter().partition(passes);
        (tally.unsteady, tally.failed) = (unsteady, failed);
    }
}

/// A test binary that cargo built.
pub struct Binary {
    pub package: String,
    /// The target's name: `core`, `nn`, a library's name.
    pub target: String,
    pub path: PathBuf,
    /// The package's folder, in which its tests expect to run.
    pub folder: PathBuf,
}

/// Builds the tests that `args` of `cargo test` select.
pub fn build(args: &str) -> Result<Vec<Binary>, String> {
    let line =
        format!("cargo test --no-run --timings --message-format json-render-diagnostics {args}");
    let mut binaries = Vec::new();
    cmd(&line).run_lines(|line| binaries.extend(binary(line)))?;
    Ok(binaries)
}

/// The test binary that a line of cargo's JSON reports, if it reports one.
fn binary(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let id = message["package_id"].as_str()?;
    Some(Binary {
        package: package_name(id)?.to_string(),
        target: message["target"]["name"].as_str()?.to_string(),
        path: message["executable"].as_str()?.into(),
        folder: folder.to_path_buf(),
    })
}

/// The name in a package id: `path+file:///a/candle-core#0.11.1` or `…/core#candle-core@0.11.1`.
fn package_name(id: &str) -> Option<&str> {
    let (url, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

impl Binary {
    /// Runs the tests that `filter` selects, prints each line after the binary's name and adds it to `tally`.
    fn run(&self, filter: &str, env: &[(&str, &str)], tally: &Mutex<Tally>) -> Result<(), String> {
        let runtime = EmptyDir::new()?;
        let program = self.path.display();
        let run = cmd(&format!(
            "{program} --report-time -Zunstable-options {filter}"
        ));
        let mut run = with_runtime_dir(run.quiet().folder(&self.folder), &runtime)
            // The harness reports a test's time to those who may use unstable options.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_MANIFEST_DIR", self.folder.display().to_string())
            // Shaders check bounds in tests; in users' programs candle-core has checked them before.
            .env("CANDLE_WEBGPU_CHECKS", "1");
        if MANY_KERNELS.contains(&self.package.as_str()) {
            run = compiling_quickly(run);
        }
        for (name, value) in env {
            run = run.env(name, *value);
        }
        let name = &self.target;
        println!("[{name}] $ {program} {filter}  # of {}", self.package);
        let mut own = Tally::default();
        let ended = run.run_lines(|line| {
            println!("[{name}] {line}");
            own.add(name, line);
        });
        // A binary whose tests failed ends with an error too; one without a failed test was killed or could not start.
        if let (Err(reason), true) = (ended, own.failed.is_empty()) {
            own.failed
                .push(format!("{name} of {}: {reason}", self.package));
        }
        if let Ok(mut tally) = tally.lock() {
            tally.append(own);
        }
        Ok(())
    }
}

/// For a program that compiles kernels for longer than it runs them.
pub fn compiling_quickly(command: Cmd) -> Cmd {
    let set = |command: Cmd, (name, value): &(&str, &str)| command.env(name, *value);
    COMPILE_QUICKLY.iter().fold(command, set)
}

/// Mesa looks for a Wayland socket in this folder and complains on standard error where the variable is not set.
pub fn with_runtime_dir(command: Cmd, folder: &EmptyDir) -> Cmd {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(_) => command,
        None => command.env("XDG_RUNTIME_DIR", folder.0.display().to_string()),
    }
}

/// A GPU backend, named as its tests are.
#[derive(Clone, Copy, Debug)]
pub enum Backend {
    WebGpu,
    Cuda,
    Metal,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WebGpu => "WebGPU",
            Self::Cuda => "CUDA",
            Self::Metal => "Metal",
        })
    }
}

/// The results of tests, summed over binaries.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    pub passed: usize,
    /// The names of the tests that failed, each after its binary's.
    pub failed: Vec<String>,
    /// Those that failed beside others, and then passed alone.
    pub unsteady: Vec<String>,
    pub ignored: usize,
    /// Number of those of `passed` whose name ends with the backend.
    pub webgpu: usize,
    pub cuda: usize,
    pub metal: usize,
}

impl Tally {
    /// Reads a line of the harness: `test add::webgpu ... ok <0.103s>`.
    pub fn add(&mut self, binary: &str, line: &str) {
        let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
        else {
            return;
        };
        let (result, time) = match result.split_once(" <") {
            Some((result, time)) => (result, time.trim_end_matches("s>").parse().ok()),
            None => (result, None),
        };
        if let Some(seconds) = time {
            times::record(times::Kind::Test, seconds, &format!("{binary} {name}"));
        }
        // A test that should panic has a note after its name.
        let name = name.split(" - ").next().unwrap_or(name);
        match result {
            "ok" => {
                self.passed += 1;
                self.webgpu += usize::from(name.ends_with("webgpu"));
                self.cuda += usize::from(name.ends_with("::cuda"));
                self.metal += usize::from(name.ends_with("::metal"));
            }
            "FAILED" => self.failed.push(format!("{binary} {name}")),
            ignored if ignored.starts_with("ignored") => self.ignored += 1,
            _ => {}
        }
    }

    fn append(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.unsteady.extend(other.unsteady);
        self.ignored += other.ignored;
        self.webgpu += other.webgpu;
        self.cuda += other.cuda;
        self.metal += other.metal;
    }

    fn on(&self, backend: Backend) -> usize {
        match backend {
            Backend::WebGpu => self.webgpu,
            Backend::Cuda => self.cuda,
            Backend::Metal => self.metal,
        }
    }

    /// The end of a step's line: the tests that passed only alone.
    fn only_alone(&self) -> String {
        match self.unsteady.as_slice() {
            [] => String::new(),
            names => format!("; PASSED ONLY ALONE: {}", names.join(", ")),
        }
    }

    /// `Err` lists the tests that failed.
    pub fn verdict(&self) -> Result<(), String> {
        println!(
            "tests: {} passed, {} failed, {} ignored{}",
            self.passed,
            self.failed.len(),
            self.ignored,
            self.only_alone()
        );
        if self.failed.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{} tests failed\n  {}",
                self.failed.len(),
                self.failed.join("\n  ")
            ))
        }
    }
}

/// Runs a command that prints as the harness does, and counts; no test at all is an error.
pub fn tally(run: &Cmd, binary: &str) -> Result<Tally, String> {
    let mut tally = Tally::default();
    run.run_lines(|line| {
        println!("{line}");
        tally.add(binary, line);
    })?;
    match tally.passed {
        0 => Err(format!("{run}\n  ran no test")),
        _ => Ok(tally),
    }
}

/// Runs the examples of the documentation and counts them.
pub fn doc_tests() -> Result<usize, String> {
    // For all packages: cargo accepts the features of BACKENDS for no other selection.
    let run = cmd(&format!(
        "cargo test --doc --no-fail-fast --workspace {BACKENDS}"
    ));
    Ok(tally(&run.env("CANDLE_WEBGPU_CHECKS", "1"), "doc")?.passed)
}

/// The path of an example's program.
pub fn example(name: &str) -> Result<PathBuf, String> {
    built(&format!("examples/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_sums_over_test_binaries() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test matmul::cpu ... ok <0.001s>",
            "test matmul::webgpu ... ok <1.2s>",
            "test matmul::metal ... ok",
            "test softmax::webgpu ... FAILED <0.1s>",
            "test softmax::cuda ... ok",
            "test errors::text - should panic ... ok",
            "test slow::cpu ... ignored, for a card",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ] {
            tally.add("core", line);
        }
        let expected = Tally {
            passed: 5,
            failed: vec!["core softmax::webgpu".to_string()],
            unsteady: Vec::new(),
            ignored: 1,
            webgpu: 1,
            cuda: 1,
            metal: 1,
        };
        assert_eq!(tally, expected);
        assert!(tally
            .verdict()
            .unwrap_err()
            .contains("core softmax::webgpu"));
    }

    /// A binary whose test `always` passes and whose `now_and_then` fails every third time.
    #[cfg(unix)]
    #[test]
    fn what_fails_beside_others_has_to_pass_alone_every_time() {
        use std::os::unix::fs::PermissionsExt;
        let folder = EmptyDir::new().unwrap();
        let path = folder.0.join("tests.sh");
        let script = "#!/bin/sh\n\
            echo x >> runs\n\
            case \"$* $(($(wc -l < runs) % 3))\" in\n\
            *now_and_then\\ 0) echo \"test now_and_then ... FAILED\"; exit 1;;\n\
            *) echo \"test some ... ok\";;\n\
            esac\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let binary = Binary {
            package: "crate".to_string(),
            target: "some".to_string(),
            path,
            folder: folder.0.clone(),
        };
        let mut tally = Tally {
            failed: ["some always", "some now_and_then", "unknown test"]
                .map(String::from)
                .to_vec(),
            ..Tally::default()
        };
        Tests::default().again(&[binary], &mut tally);
        assert_eq!(tally.unsteady, ["some always"]);
        assert_eq!(tally.failed, ["some now_and_then", "unknown test"]);
        assert!(tally.only_alone().contains("some always"));
        assert!(tally.verdict().is_err());
    }

    #[test]
    fn a_list_of_long_tests_splits_a_package() {
        const LIST: Names = &[("core", &["conv::", "sum::webgpu"])];
        let arguments = |long: Long, package| long.arguments(package);
        let skip = " --skip conv:: --skip sum::webgpu".to_string();
        assert_eq!(arguments(Long::Without(LIST), "core"), Some(skip));
        assert_eq!(arguments(Long::Without(LIST), "nn"), Some(String::new()));
        let only = " conv:: sum::webgpu".to_string();
        assert_eq!(arguments(Long::Only(LIST), "core"), Some(only));
        assert_eq!(arguments(Long::Only(LIST), "nn"), None);
        assert_eq!(arguments(Long::Too, "core"), Some(String::new()));
    }

    #[test]
    fn a_package_id_holds_a_name() {
        assert_eq!(
            package_name("path+file:///w/candle-core#0.11.1"),
            Some("candle-core")
        );
        assert_eq!(
            package_name("path+file:///w/mkl#candle-mkl@0.11.1"),
            Some("candle-mkl")
        );
    }
}
