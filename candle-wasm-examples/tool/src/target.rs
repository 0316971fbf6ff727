//! A compiler for wasm32: rustup's, or where rustup cannot fetch the target, Debian's own packages.

use std::path::Path;
use std::process::{Command, Stdio};

pub const TARGET: &str = "wasm32-unknown-unknown";

/// A package of Debian's, and a file of it that is needed.
type Needed = (&'static str, &'static str);

/// For crates with C code.
const CLANG: Needed = ("clang", "/usr/bin/clang");
const RUSTC: Needed = ("rustc-web", "/usr/bin/rustc");
const STD: Needed = (
    "rust-web-src",
    "/usr/lib/rustlib/src/rust/library/std/Cargo.toml",
);
const LINKER: Needed = ("lld-19", "/usr/bin/wasm-ld-19");

/// The toolchain for [`TARGET`].
pub enum Toolchain {
    /// The compiler that runs this has the target.
    Rustup,
    /// Debian's compiler and linker; the standard library is built from its source.
    Debian,
}

impl Toolchain {
    /// The first that is there or can be brought, with a compiler for C.
    pub fn find() -> Result<Self, String> {
        if !has_target() && may_change_machine() {
            println!("{TARGET} is not installed: installing it with rustup");
        }
        let add = || may_change_machine() && quiet("rustup", &["target", "add", TARGET]);
        let toolchain = if has_target() || (add() && has_target()) {
            Self::Rustup
        } else {
            println!("rustup has no {TARGET}: using Debian's compiler");
            Self::Debian
        };
        let missing = toolchain.missing();
        let complete = missing.is_empty()
            || (may_install() && install(&missing) && toolchain.missing().is_empty());
        if !complete {
            let missing = missing.join(" ");
            let rustup = match toolchain {
                Self::Rustup => String::new(),
                Self::Debian => format!("run `rustup target add {TARGET}`, or "),
            };
            return Err(format!(
                "cannot compile for {TARGET}: {rustup}on Debian, run `sudo apt-get install --no-install-recommends {missing}`"
            ));
        }
        Ok(toolchain)
    }

    /// The packages that it needs and that are not there.
    fn missing(&self) -> Vec<&'static str> {
        let there = |(_, file): &Needed| Path::new(file).exists();
        let mut missing = Vec::new();
        // Other systems have it elsewhere.
        if !there(&CLANG) && !quiet("clang", &["--version"]) {
            missing.push(CLANG.0);
        }
        if let Self::Debian = self {
            let absent = [RUSTC, STD, LINKER]
                .into_iter()
                .filter(|needed| !there(needed));
            missing.extend(absent.map(|(package, _)| package));
        }
        missing
    }

    /// Brings the source of the standard library, which modules with threads need to build again.
    pub fn find_source(&self) -> Result<(), String> {
        let there = || match self {
            Self::Rustup => has_source(),
            Self::Debian => true,
        };
        if !there() && may_change_machine() {
            println!("rust-src is not installed: installing it with rustup");
            quiet("rustup", &["component", "add", "rust-src"]);
        }
        there().then_some(()).ok_or_else(|| {
            "cannot compile the modules with threads: run `rustup component add rust-src`, or build one of the others with `--only`".to_string()
        })
    }

    /// `cargo build` with this compiler and a profile of the workspace. `flags` are for rustc; with `own_std` they are for the standard
    /// library too, which is built from its source.
    pub fn cargo_build(&self, profile: &str, flags: &[&str], own_std: bool) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--target", TARGET, "--profile", profile]);
        cargo.env("RUSTFLAGS", flags.join(" "));
        if own_std || matches!(self, Self::Debian) {
            cargo.arg("-Zbuild-std=std,panic_abort");
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        if let Self::Debian = self {
            cargo.env("RUSTC", RUSTC.1);
            cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", LINKER.1);
        }
        cargo
    }
}

/// With this variable set to 1, as for `cargo xtask test`, nothing is installed outside the repository.
const NO_INSTALL: &str = "CANDLE_NO_INSTALL";

fn may_change_machine() -> bool {
    std::env::var_os(NO_INSTALL).is_none_or(|value| value.is_empty() || value == "0")
}

fn may_install() -> bool {
    if !may_change_machine() {
        return false;
    }
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0") && quiet("apt-get", &["--version"])
}

/// Whether Debian's packages could be installed.
fn install(packages: &[&str]) -> bool {
    let packages_list = packages.join(" ");
    println!(
        "running as root: installing {packages_list} with apt-get ({NO_INSTALL}=1 disables this)"
    );
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        // Another of our steps may be installing something.
        apt.args(["-o", "DPkg::Lock::Timeout=300"]).args(args);
        let status = apt.env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    let install = ["install", "-y", "--no-install-recommends"];
    apt(&["update"]) && apt(&[&install, packages].concat())
}

/// Whether the compiler that cargo takes has a standard library for the target.
fn has_target() -> bool {
    in_sysroot(TARGET)
}

/// Whether it has the source of the standard library.
fn has_source() -> bool {
    in_sysroot("src/rust/library/std/Cargo.toml")
}

fn in_sysroot(path: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let Ok(output) = output else {
        return false;
    };
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_string();
    Path::new(&sysroot).join("lib/rustlib").join(path).exists()
}

/// Whether a command starts and ends well; prints nothing.
fn quiet(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
