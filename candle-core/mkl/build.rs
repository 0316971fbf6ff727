//! Finds MKL and passes it to Cargo, with the feature `link`. See `src/find.rs`.

use std::env;
use std::path::PathBuf;
use std::process::{exit, Command};

#[path = "src/find.rs"]
mod find;

use find::{Asked, Host};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/find.rs");
    if env::var_os("CARGO_FEATURE_LINK").is_none() {
        return;
    }
    for variable in VARIABLES {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let cargos = |variable: &str| env::var(variable).unwrap_or_default();
    let same = cargos("HOST") == cargos("TARGET");
    let host = Host {
        os: cargos("CARGO_CFG_TARGET_OS"),
        arch: cargos("CARGO_CFG_TARGET_ARCH"),
        variable: &|name| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        },
        pkg_config: &|arguments| {
            if same {
                pkg_config(arguments)
            } else {
                Asked::No("not asked: it knows this machine's libraries, not the target's".into())
            }
        },
    };
    match find::find(&host) {
        Ok(found) => {
            for directory in found.directories {
                println!("cargo:rustc-link-search=native={}", directory.display());
            }
            for library in found.libraries {
                println!("cargo:rustc-link-lib={library}");
            }
        }
        Err(message) => {
            eprintln!("{message}");
            exit(1);
        }
    }
}

/// The variables of Intel's `setvars`, the prefixes of MKL and of the compiler, which includes OpenMP's runtime; and pkg-config's.
const VARIABLES: &[&str] = &[
    "MKLROOT",
    "CMPLR_ROOT",
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
];

/// The output of the program `pkg-config`.
fn pkg_config(arguments: &[&str]) -> Asked {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    match Command::new(&program).args(arguments).output() {
        Err(err) => Asked::No(format!(
            "{} does not start: {err}",
            program.to_string_lossy()
        )),
        Ok(output) if output.status.success() => {
            Asked::Yes(String::from_utf8_lossy(&output.stdout).trim().to_string())
        }
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            Asked::No(
                message
                    .lines()
                    .next()
                    .unwrap_or("fails, without a message")
                    .to_string(),
            )
        }
    }
}
