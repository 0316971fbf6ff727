//! The fuzz targets: candle-core's file formats, and what candle-dvm reads from relays. The step `test` runs the same targets over the valid
//! inputs and their mutations.

use std::path::Path;

use crate::command::cmd;
use crate::install;

/// A package of targets, and its valid inputs: a target starts from those whose extension is its name.
struct Package {
    targets: &'static str,
    seeds: &'static str,
}

const PACKAGES: [Package; 2] = [
    Package {
        targets: "candle-core/fuzz",
        seeds: "candle-core/tests/files",
    },
    Package {
        targets: "candle-dvm/fuzz",
        seeds: "candle-dvm/fuzz/seeds",
    },
];
/// Build output, and the inputs that extend the coverage.
const OUT: &str = "target/fuzz";
/// For each target.
const SECONDS: u32 = 60;

/// The stable compiler has all that a run without sanitizers needs. The targets count their own memory.
const OPTIONS: &str = "--sanitizer none --codegen-units 16";

/// The targets of all packages.
pub fn ahead() -> Result<(), String> {
    install()?;
    PACKAGES.iter().try_for_each(Package::build)
}

/// Runs each target, from the inputs that earlier runs kept, after installing `cargo-fuzz` where it is missing. `Err` names the command that
/// found something; the input that it found is under `artifacts` in the package.
pub fn fuzz() -> Result<String, String> {
    install()?;
    let mut count = 0;
    for package in &PACKAGES {
        count += package.run()?;
    }
    Ok(format!("{count} targets, {SECONDS} s each"))
}

fn install() -> Result<(), String> {
    if cmd("cargo fuzz --version").succeeds() {
        return Ok(());
    }
    // Unoptimised: it only calls others.
    let install = "cargo install cargo-fuzz --locked --debug";
    if !install::may_change_machine() {
        return Err(format!("missing cargo-fuzz: `{install}` brings it"));
    }
    println!(
        "cargo-fuzz is installed among cargo's programs ({}=1 turns this off)",
        install::NO_INSTALL
    );
    cmd(install).run()
}

impl Package {
    fn options(&self) -> String {
        format!("--fuzz-dir {} --target-dir {OUT} {OPTIONS}", self.targets)
    }

    fn build(&self) -> Result<(), String> {
        cmd(&format!("cargo fuzz build {}", self.options())).run()
    }

    /// Runs the targets; returns their number.
    fn run(&self) -> Result<usize, String> {
        let Self { targets, seeds } = self;
        let list = cmd(&format!("cargo fuzz list --fuzz-dir {targets}"));
        let Some(names) = list.stdout() else {
            return Err(format!("{list}\n  failed"));
        };
        self.build()?;
        let options = self.options();
        let names: Vec<&str> = names.split_whitespace().collect();
        for name in &names {
            let corpus = format!("{OUT}/corpus/{name}");
            let copied = copy_seeds(Path::new(seeds), name, Path::new(&corpus))
                .map_err(|err| format!("cannot copy {seeds} to {corpus}: {err}"))?;
            if copied == 0 {
                return Err(format!(
                    "there is no {seeds}/*.{name} for the fuzz target {name} to start from"
                ));
            }
            cmd(&format!(
                "cargo fuzz run {options} {name} {corpus} -- -max_total_time={SECONDS} -timeout=10 -rss_limit_mb=2048 \
                 -max_len=8192 -verbosity=0 -print_final_stats=1"
            ))
            .run()?;
        }
        Ok(names.len())
    }
}

/// Copies the valid files of a format to a folder and counts them.
fn copy_seeds(from: &Path, extension: &str, to: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(to)?;
    let mut count = 0;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        if let (Some(found), Some(name)) = (path.extension(), path.file_name()) {
            if found == extension {
                std::fs::copy(&path, to.join(name))?;
                count += 1;
            }
        }
    }
    Ok(count)
}
