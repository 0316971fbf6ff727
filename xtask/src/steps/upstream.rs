//! Runs Candle's own tests, from the sources of its crates on crates.io, with the crates of this workspace: on the CPU, and on WebGPU
//! wherever upstream runs a body on every device.
//!
//! The repository contains none of them. They are copied from cargo's unpacked sources of the packages that the oracle's lockfile pins to
//! packages under `target/upstream`, which depend on this workspace's crates by path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::command::cmd;
use crate::files::target_dir;

/// Tests that fail correctly, each with the reason: `crate/file::test` or `crate/file::test::webgpu`. At most three, listed in
/// `docs/differences.md` too. One that passes is an error, so that the list shrinks.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "core/quantized_tests::qmm_batch::webgpu",
        "12 rows take another kernel than 6, which sums in another order; the test itself allows that for CUDA alone",
    ),
    (
        "core/quantized_tests::quantized_matmul_neg::webgpu",
        "it wants the values of Metal's kernel, to the last of six digits; few rows are rounded to 8 bits here, as on the CPU",
    ),
    (
        "core/quantized_tests::quantized_matmul::webgpu",
        "it wants the values of Metal's kernel, 84946 for the first; the CPU's are 85120, ours 85114",
    ),
];

/// The tests of 0.11.1 without those that it ignores. Any other number means that a test got lost.
const EXPECTED: Counts = Counts {
    // On AArch64 there is one more.
    cpu: 254 + cfg!(target_arch = "aarch64") as usize,
    webgpu: 118,
};

/// The ends of the names of the crates whose tests run. Each may use those before it.
const CRATES: [&str; 3] = ["core", "nn", "transformers"];

const FOLDER: &str = "target/upstream";

/// The tests' dependencies other than Candle.
const DEPENDENCIES: &str = r#"anyhow = "=1.0.104"
float8 = { version = "0.7", features = ["num-traits"] }
half = { version = "2.7", features = ["num-traits", "rand_distr"] }
num-traits = "0.2"
rand = "0.9"
rand_distr = "0.5"
"#;

/// Copies the tests, builds and runs them.
pub fn upstream() -> Result<String, String> {
    lay_out()?;
    let executables = build()?;
    only_locked_packages()?;
    let mut report = Report::default();
    for test in &executables {
        report.add(run(test)?);
    }
    report.verdict(EXCEPTIONS, &EXPECTED)
}

/// A workspace of one package for each crate, with its tests.
fn lay_out() -> Result<(), String> {
    let sources = sources()?;
    let members: Vec<String> = CRATES.iter().map(|end| format!("\"{end}\"")).collect();
    let root = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{}]\n\n{}",
        members.join(", "),
        profile()?
    );
    write(&Path::new(FOLDER).join("Cargo.toml"), root.as_bytes())?;
    // The versions that everything here is built with.
    let lock = read(Path::new("Cargo.lock"))?;
    write(&Path::new(FOLDER).join("Cargo.lock"), &lock)?;
    for (end, source) in CRATES.iter().zip(&sources) {
        let package = Path::new(FOLDER).join(end);
        write(&package.join("Cargo.toml"), manifest(end).as_bytes())?;
        write(&package.join("src/lib.rs"), b"")?;
        copy_tests(&source.join("tests"), &package.join("tests"))?;
    }
    Ok(())
}

/// The folders of cargo's sources of crates.io's crates.
fn sources() -> Result<Vec<PathBuf>, String> {
    let metadata = "cargo metadata --locked --format-version 1 \
                    --manifest-path candle-core/oracle/models/upstream/Cargo.toml";
    let mut text = String::new();
    cmd(metadata).run_lines(|line| text.push_str(line))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|err| format!("{err} in metadata"))?;
    let packages = metadata["packages"].as_array();
    let folder = |end: &&str| {
        let name = format!("candle-{end}");
        let mut packages = packages.into_iter().flatten();
        let package = packages.find(|p| p["name"] == *name && p["source"].is_string());
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let folder = manifest.and_then(|manifest| Path::new(manifest).parent());
        let folder = folder.ok_or_else(|| format!("the oracle depends on no {name} of crates.io"));
        folder.map(Path::to_path_buf)
    };
    CRATES.iter().map(folder).collect()
}

/// The oracle's profile, for what both build to be built once; quick to compile where the tests do not wait for it.
fn profile() -> Result<String, String> {
    let path = Path::new("candle-core/oracle/ops/Cargo.toml");
    let manifest = String::from_utf8_lossy(&read(path)?).into_owned();
    let start = manifest
        .find("[profile.dev]")
        .ok_or_else(|| format!("{}: no [profile.dev]", path.display()))?;
    let mut profile = manifest[start..].to_string();
    let packages = CRATES.map(|end| format!("upstream-{end}"));
    for name in packages
        .iter()
        .map(String::as_str)
        .chain(["candle-transformers"])
    {
        profile.push_str(&format!("\n[profile.dev.package.{name}]\nopt-level = 0\n"));
    }
    Ok(profile)
}

/// The package of one crate's tests. By its feature `webgpu`, on which `test_device!` looks, a body runs on WebGPU too.
fn manifest(end: &str) -> String {
    let ours = |name: &str, end: &str| {
        format!("{name} = {{ package = \"candle-{end}\", path = \"../../../candle-{end}\", features = [\"webgpu\"] }}\n")
    };
    // Upstream's own name for it in all crates but itself.
    let core = match end {
        "core" => "candle-core",
        _ => "candle",
    };
    let mut dependencies = ours(core, "core");
    for other in CRATES.iter().skip(1) {
        if CRATES.iter().position(|e| e == other) <= CRATES.iter().position(|e| *e == end) {
            dependencies.push_str(&ours(&format!("candle-{other}"), other));
        }
    }
    format!(
        "[package]\nname = \"upstream-{end}\"\nversion = \"0.0.0\"\nedition = \"2021\"\npublish = false\n\n\
         [lib]\ntest = false\ndoctest = false\n\n\
         [features]\ndefault = [\"webgpu\"]\nwebgpu = []\n\n\
         [lints.rust]\nwarnings = \"allow\"\n\n\
         [dependencies]\n{dependencies}{DEPENDENCIES}"
    )
}

/// Copies the tests and the files that they read; removes files of an earlier run that are not tests any more.
fn copy_tests(from: &Path, to: &Path) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for path in files(from)? {
        let name = path.file_name().unwrap_or_default().to_os_string();
        let mut bytes = read(&path)?;
        if path.extension().is_some_and(|extension| extension == "rs") {
            bytes = with_webgpu(&String::from_utf8_lossy(&bytes)).into_bytes();
        }
        write(&to.join(&name), &bytes)?;
        names.insert(name);
    }
    for path in files(to)? {
        if !names.contains(path.file_name().unwrap_or_default()) {
            fs::remove_file(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        }
    }
    Ok(())
}

/// Matches over all devices, which know nothing of WebGPU, with what they expect of Metal for it: there too the left side of a product with
/// quantised weights stays f32.
fn with_webgpu(text: &str) -> String {
    text.replace(
        "Device::Metal(_) =>",
        "Device::Metal(_) | Device::WebGpu(_) =>",
    )
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |err: std::io::Error| format!("{}: {err}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|err| format!("{}: {err}", path.display()))
}

/// Leaves a file alone that is the same already, so that cargo sees no change.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, bytes))
        .map_err(|err| format!("{}: {err}", path.display()))
}

/// The tests of one file, built.
struct Executable {
    /// `crate/file`
    name: String,
    path: PathBuf,
    /// The folder of its package, in which tests look for their files.
    folder: PathBuf,
}

/// A test that does not compile fails the build, and cargo names it.
fn build() -> Result<Vec<Executable>, String> {
    let line = format!(
        "cargo build --tests --keep-going --message-format json-render-diagnostics --manifest-path {FOLDER}/Cargo.toml"
    );
    let mut executables = Vec::new();
    cmd(&line)
        .env("CARGO_TARGET_DIR", target_dir()?.display().to_string())
        .run_lines(|line| executables.extend(executable(line)))?;
    executables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(executables)
}

/// The test executable that a line of cargo's JSON reports, if any.
fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    let file = message["target"]["name"].as_str()?;
    Some(Executable {
        name: format!("{package}/{file}"),
        path: message["executable"].as_str()?.into(),
        folder: folder.to_path_buf(),
    })
}

/// Cargo adds to a lockfile what is missing, in the newest version: then runs could differ from day to day.
fn only_locked_packages() -> Result<(), String> {
    let packages = |path: &Path| -> Result<BTreeSet<String>, String> {
        Ok(locked(&String::from_utf8_lossy(&read(path)?)))
    };
    let ours = packages(Path::new("Cargo.lock"))?;
    let used = packages(&Path::new(FOLDER).join("Cargo.lock"))?;
    // The workspace has none of these, so the version is named here.
    let pinned = |package: &&str| {
        let parts = package.split_once(' ');
        parts.is_some_and(|(name, version)| {
            DEPENDENCIES.contains(&format!("{name} = \"={version}\""))
        })
    };
    let unknown: Vec<&str> = used
        .difference(&ours)
        .map(String::as_str)
        .filter(|package| !pinned(package))
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{FOLDER}: the tests use {}, which Cargo.lock does not have: let their dependencies be some of the workspace's",
            unknown.join(", ")
        ))
    }
}

/// `name version` of each package in a lockfile but those made here.
fn locked(lockfile: &str) -> BTreeSet<String> {
    let value = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.trim_matches([' ', '=', '"']);
        Some(value.to_string())
    };
    let mut packages = BTreeSet::new();
    let mut name = String::new();
    for line in lockfile.lines() {
        if let Some(found) = value(line, "name = ") {
            name = found;
        } else if let Some(version) = value(line, "version = ") {
            if !name.is_empty() && !name.starts_with("upstream-") {
                packages.insert(format!("{name} {version}"));
            }
        }
    }
    packages
}

/// Number of tests per device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    cpu: usize,
    webgpu: usize,
}

impl Counts {
    fn of<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut counts = Self::default();
        for name in names {
            if name.ends_with("::webgpu") {
                counts.webgpu += 1
            } else {
                counts.cpu += 1
            }
        }
        counts
    }
}

/// The results of the tests, each as `crate/file::test`.
#[derive(Default)]
struct Report {
    passed: Vec<String>,
    failed: Vec<String>,
    /// Files whose process ended otherwise than the harness ends it.
    broken: Vec<String>,
}

fn run(test: &Executable) -> Result<Report, String> {
    let start = Instant::now();
    let mut command = Command::new(&test.path);
    command.current_dir(&test.folder).stdin(Stdio::null());
    command.env("CANDLE_WEBGPU_CHECKS", "1");
    // Mesa looks for a Wayland socket there and complains when the variable is not set.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        command.env("XDG_RUNTIME_DIR", &test.folder);
    }
    let output = command
        .output()
        .map_err(|err| format!("{}: {err}", test.name))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report = Report::read(&test.name, &text, output.status);
    if !report.failed.is_empty() || !report.broken.is_empty() {
        println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let passed = Counts::of(&report.passed);
    let failed = Counts::of(&report.failed);
    let mut row = format!("{:<32}", test.name);
    for (device, passed, failed) in [
        ("CPU", passed.cpu, failed.cpu),
        ("WebGPU", passed.webgpu, failed.webgpu),
    ] {
        row.push_str(&match passed + failed {
            0 => " ".repeat(device.len() + 13),
            all => format!("  {device} {passed:>3} of {all:>3}"),
        });
    }
    println!("{row}  {:>5.1} s", start.elapsed().as_secs_f64());
    Ok(report)
}

impl Report {
    /// Reads the harness's output for the tests of one file.
    fn read(file: &str, output: &str, status: ExitStatus) -> Self {
        let mut report = Self::default();
        for line in output.lines() {
            let Some((name, result)) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.rsplit_once(" ... "))
            else {
                continue;
            };
            // `test name - should panic ... ok`
            let name = name.split(" - ").next().unwrap_or(name);
            match result {
                "ok" => report.passed.push(format!("{file}::{name}")),
                "FAILED" => report.failed.push(format!("{file}::{name}")),
                _ => {}
            }
        }
        // The harness ends with success exactly if no test failed.
        if !status.success() && report.failed.is_empty() {
            report.broken.push(format!("{file} ended with {status}"));
        }
        report
    }

    fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
        self.broken.extend(other.broken);
    }

    /// The totals; `Err` has what is not as it has to be.
    fn verdict(&self, exceptions: &[(&str, &str)], expected: &Counts) -> Result<String, String> {
        let excepted = |name: &String| exceptions.iter().any(|(exception, _)| exception == name);
        let mut problems = self.broken.clone();
        for name in self.failed.iter().filter(|name| !excepted(name)) {
            problems.push(format!("{name} failed"));
        }
        for name in self.passed.iter().filter(|name| excepted(name)) {
            problems.push(format!("{name} passed: it is an exception no longer"));
        }
        let ran: Vec<&String> = self.passed.iter().chain(&self.failed).collect();
        for (name, _) in exceptions {
            if !ran.iter().any(|found| found == name) {
                problems.push(format!("{name} is an exception, but did not run"));
            }
        }
        let (passed, all) = (Counts::of(&self.passed), Counts::of(ran));
        if all != *expected {
            problems.push(format!(
                "{} tests ran on the CPU and {} on WebGPU, Candle 0.11.1 has {} and {}",
                all.cpu, all.webgpu, expected.cpu, expected.webgpu
            ));
        }
        let mut totals = format!(
            "CPU {} of {}, WebGPU {} of {}",
            passed.cpu, expected.cpu, passed.webgpu, expected.webgpu
        );
        for (name, reason) in exceptions {
            totals.push_str(&format!("; not {name}: {reason}"));
        }
        println!("Candle's own tests: {totals}");
        if problems.is_empty() {
            Ok(totals)
        } else {
            Err(format!("{totals}\n  {}", problems.join("\n  ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn status(code: i32) -> ExitStatus {
        std::os::unix::process::ExitStatusExt::from_raw(code << 8)
    }

    #[cfg(unix)]
    const OUTPUT: &str = "running 4 tests\n\
        test add_cpu ... ok\n\
        test add::webgpu ... FAILED\n\
        test slow ... ignored\n\
        test refuses - should panic ... ok\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored";

    #[cfg(unix)]
    #[test]
    fn the_harness_is_read_line_by_line() {
        let report = Report::read("core/ops", OUTPUT, status(101));
        assert_eq!(report.passed, ["core/ops::add_cpu", "core/ops::refuses"]);
        assert_eq!(report.failed, ["core/ops::add::webgpu"]);
        assert!(report.broken.is_empty());
        let crashed = Report::read("core/ops", "test add_cpu ... ok", status(101));
        assert_eq!(crashed.broken.len(), 1);
    }

    #[test]
    fn only_what_is_excepted_may_fail() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        let report = Report {
            passed: names(&["a::x", "a::y"]),
            failed: names(&["a::y::webgpu"]),
            broken: vec![],
        };
        let expected = Counts { cpu: 2, webgpu: 1 };
        let why = "a reason";
        let verdict = |exceptions: &[(&str, &str)]| report.verdict(exceptions, &expected);
        let totals = verdict(&[("a::y::webgpu", why)]).unwrap();
        assert!(totals.contains("CPU 2 of 2, WebGPU 0 of 1") && totals.contains(why));
        for (exceptions, problem) in [
            (vec![], "a::y::webgpu failed"),
            (vec![("a::y::webgpu", why), ("a::x", why)], "a::x passed"),
            (
                vec![("a::y::webgpu", why), ("a::z", why)],
                "a::z is an exception, but did not run",
            ),
        ] {
            let err = verdict(&exceptions).unwrap_err();
            assert!(err.contains(problem), "{err}");
        }
        let more = Counts { cpu: 3, webgpu: 1 };
        let err = report.verdict(&[("a::y::webgpu", why)], &more).unwrap_err();
        assert!(err.contains("2 tests ran on the CPU"), "{err}");
    }

    #[test]
    fn there_are_at_most_three_exceptions_each_with_a_reason() {
        assert!(EXCEPTIONS.len() <= 3);
        assert!(EXCEPTIONS.iter().all(|(_, reason)| !reason.is_empty()));
    }

    #[test]
    fn packages_of_a_lockfile() {
        let lock = "version = 4\n\n[[package]]\nname = \"half\"\nversion = \"2.7.1\"\ndependencies = [\n \"libm\",\n]\n\n\
                    [[package]]\nname = \"upstream-nn\"\nversion = \"0.0.0\"\n";
        assert_eq!(locked(lock), BTreeSet::from(["half 2.7.1".to_string()]));
    }

    #[test]
    fn a_package_depends_on_the_crates_up_to_its_own() {
        let nn = manifest("nn");
        assert!(nn.contains("candle = { package = \"candle-core\""));
        assert!(nn.contains("candle-nn = ") && !nn.contains("candle-transformers"));
    }
}
