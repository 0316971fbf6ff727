//! A compiler for wasm32: rustup's, or where rustup cannot fetch the target, Debian's own packages.

use std::path::Path;
use std::process::{Command, Stdio};

pub const TARGET: &str = "wasm32-unknown-unknown";

/// What Debian needs; clang is for crates with C code.
const PACKAGES: [&str; 4] = ["rustc-web", "rust-web-src", "lld-19", "clang"];

/// What these packages bring, in their order.
const FILES: [&str; 4] = [
    "/usr/bin/rustc",
    "/usr/lib/rustlib/src/rust/library/std/Cargo.toml",
    "/usr/bin/wasm-ld-19",
    "/usr/bin/clang",
];

/// How to compile for [`TARGET`].
pub enum Toolchain {
    /// The compiler that runs this has the target.
    Rustup,
    /// Debian's compiler and linker; the standard library is built from its source.
    Debian,
}

impl Toolchain {
    /// The first that is there, or can be brought.
    pub fn find() -> Result<Self, String> {
        if has_target() {
            return Ok(Self::Rustup);
        }
        println!("no {TARGET} here yet: asking rustup for it");
        if quiet("rustup", &["target", "add", TARGET]) && has_target() {
            return Ok(Self::Rustup);
        }
        if missing().is_empty() {
            println!("rustup has no {TARGET}: taking Debian's compiler");
            return Ok(Self::Debian);
        }
        let root = Command::new("id").arg("-u").output();
        let root = root.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
        if root && quiet("apt-get", &["--version"]) {
            println!("rustup has no {TARGET}: installing {}", PACKAGES.join(" "));
            let mut install = vec!["install", "-y", "--no-install-recommends"];
            install.extend(PACKAGES);
            let apt = |args: &[&str]| {
                let mut apt = Command::new("apt-get");
                let status = apt
                    .args(args)
                    .env("DEBIAN_FRONTEND", "noninteractive")
                    .status();
                status.is_ok_and(|status| status.success())
            };
            if apt(&["update"]) && apt(&install) && missing().is_empty() {
                return Ok(Self::Debian);
            }
        }
        Err(format!(
            "no compiler for {TARGET}: `rustup target add {TARGET}` brings it; where rustup cannot fetch it, on Debian `sudo apt-get \
             install --no-install-recommends {}` does (not there: {})",
            PACKAGES.join(" "),
            missing().join(", ")
        ))
    }

    /// `cargo build` with this compiler. `flags` are for rustc.
    pub fn cargo_build(&self, flags: &[&str]) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--target", TARGET, "--profile", "web"]);
        cargo.env("RUSTFLAGS", flags.join(" "));
        if let Self::Debian = self {
            cargo.arg("-Zbuild-std=std,panic_abort");
            cargo.env("RUSTC", FILES[0]);
            cargo.env("RUSTC_BOOTSTRAP", "1");
            cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", FILES[2]);
        }
        cargo
    }
}

/// Debian's files that are not there.
fn missing() -> Vec<&'static str> {
    let missing = FILES.into_iter().filter(|file| !Path::new(file).exists());
    missing.collect()
}

/// Whether the compiler that cargo takes has a standard library for the target.
fn has_target() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let Ok(output) = output else {
        return false;
    };
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_string();
    Path::new(&sysroot)
        .join("lib/rustlib")
        .join(TARGET)
        .exists()
}

/// Whether a command starts and ends well; prints nothing.
fn quiet(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
