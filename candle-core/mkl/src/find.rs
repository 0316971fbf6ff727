//! The search for MKL's libraries. Separate from the build script for testing.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// MKL's own name for static libraries with 32-bit integers and Intel's OpenMP.
const PACKAGE: &str = "mkl-static-lp64-iomp";

/// The interface, the threads, the computations: each depends on the next.
const LIBRARIES: [&str; 3] = ["mkl_intel_lp64", "mkl_intel_thread", "mkl_core"];

/// Install prefixes of MKL and of OpenMP's runtime: oneAPI's, older ones of Intel's, Debian's.
const USUAL: &[&str] = &[
    "/opt/intel/oneapi/mkl/latest",
    "/opt/intel/oneapi/compiler/latest",
    "/opt/intel/mkl",
    "/usr",
];

/// Library folders below a prefix: oneAPI's from 2024 on and PyPI's, older ones of Intel's, Debian's, PyPI's on Windows.
const BELOW: &[&str] = &["lib", "lib/intel64", "lib/x86_64-linux-gnu", "Library/lib"];

const HOW_TO: &str = "Install MKL and say where it is, in one of these ways:
  - PyPI: `pip install mkl-static`, then MKLROOT=$(python3 -c 'import sys; print(sys.prefix)')
  - Intel's oneAPI (package intel-oneapi-mkl-devel): its setvars sets MKLROOT and CMPLR_ROOT
  - Debian (non-free) and Ubuntu (multiverse): `apt install libmkl-dev`
Or build without the feature `mkl`: matrix products need no library then.";

/// A reply of `pkg-config`.
pub enum Asked {
    Yes(String),
    /// The reason for having no reply.
    No(String),
}

/// The inputs of the search.
pub struct Host<'a> {
    pub os: String,
    pub arch: String,
    /// A variable of the environment that is set and not empty.
    pub variable: &'a dyn Fn(&str) -> Option<PathBuf>,
    pub pkg_config: &'a dyn Fn(&[&str]) -> Asked,
}

/// The output for Cargo.
#[derive(Debug, PartialEq)]
pub struct Found {
    pub directories: Vec<PathBuf>,
    /// In the form of `cargo:rustc-link-lib`, in the linker's order.
    pub libraries: Vec<String>,
}

/// Searches MKL: in `MKLROOT` only if it is set, otherwise in pkg-config's folders, otherwise in the usual install folders.
///
/// # Errors
/// With the searched files and folders, and installation instructions.
pub fn find(host: &Host) -> Result<Found, String> {
    if host.arch != "x86_64" {
        return Err(format!(
            "the feature `mkl` links Intel's MKL, which is for x86-64; the target is {} on {}. Build without `mkl`.",
            host.arch, host.os
        ));
    }
    let files = Files::of(&host.os);
    let mut report = String::new();
    // Folders that pkg-config returns, and prefixes.
    let mut places = Vec::new();
    let mut roots: Vec<PathBuf> = Vec::new();
    if let Some(root) = (host.variable)("MKLROOT") {
        report += "  MKLROOT is set, so nowhere else\n";
        // OpenMP's runtime is there too, or next to MKL in oneAPI's layout.
        let compiler = (host.variable)("CMPLR_ROOT");
        let compiler = compiler.unwrap_or_else(|| root.join("../../compiler/latest"));
        roots.extend([root, compiler]);
    } else {
        report += "  MKLROOT is not set\n";
        match (host.pkg_config)(&["--libs", "--static", PACKAGE]) {
            Asked::Yes(flags) => {
                let _ = writeln!(report, "  pkg-config knows {PACKAGE}: {flags}");
                places.extend(flags.split_whitespace().filter_map(directory_of));
                for package in [PACKAGE, "openmp"] {
                    if let Asked::Yes(at) = (host.pkg_config)(&["--variable=libdir", package]) {
                        places.extend((!at.is_empty()).then(|| PathBuf::from(at)));
                    }
                }
            }
            Asked::No(why) => {
                let _ = writeln!(report, "  pkg-config {PACKAGE}: {why}");
            }
        }
        roots.extend(USUAL.iter().map(PathBuf::from));
    }
    let named = places.len();
    places.extend(roots.iter().flat_map(|root| below(root)));

    let all_in = |place: &&PathBuf| {
        LIBRARIES
            .iter()
            .all(|name| place.join(files.archive(name)).is_file())
    };
    let mkl = places.iter().find(all_in);
    let with = |file: &str| places.iter().find(|place| place.join(file).is_file());
    // The shared one is preferred, as Intel recommends: two runtimes in one process interfere.
    let openmp = with(files.openmp_shared)
        .map(|at| (at, "dylib"))
        .or_else(|| with(files.openmp_static).map(|at| (at, "static:-bundle")));
    if let (Some(mkl), Some((openmp, kind))) = (mkl, openmp) {
        let mut directories = vec![mkl.clone()];
        if openmp != mkl {
            directories.push(openmp.clone());
        }
        // Not bundled: the archives have 600 MB, and a program needs a few.
        let archive = |name: &&str| format!("static:-bundle={name}");
        let mut libraries: Vec<_> = LIBRARIES.iter().map(archive).collect();
        libraries.push(format!("{kind}={}", files.openmp));
        libraries.extend(files.system.iter().map(|name| format!("dylib={name}")));
        return Ok(Found {
            directories,
            libraries,
        });
    }

    let wanted = LIBRARIES.map(|name| files.archive(name)).join(", ");
    let openmp = format!("{} or {}", files.openmp_shared, files.openmp_static);
    let missing = match mkl {
        Some(mkl) => format!(
            "MKL is in {}, but Intel's OpenMP runtime, {openmp}, was not found",
            mkl.display()
        ),
        None => format!("no directory has all of {wanted} ({openmp} may be elsewhere)"),
    };
    for place in &places[..named] {
        let _ = writeln!(report, "  looked in {}", place.display());
    }
    for root in &roots {
        let (root, below) = (root.display(), BELOW.join(", "));
        let _ = writeln!(report, "  looked in {root}: {below}");
    }
    Err(format!(
        "the feature `mkl` links Intel's MKL statically: {missing}.\n{report}{HOW_TO}"
    ))
}

/// File names on a system.
struct Files {
    prefix: &'static str,
    extension: &'static str,
    openmp: &'static str,
    openmp_shared: &'static str,
    openmp_static: &'static str,
    /// Libraries that MKL itself depends on.
    system: &'static [&'static str],
}

impl Files {
    fn of(os: &str) -> Self {
        match os {
            "windows" => Self {
                prefix: "",
                extension: "lib",
                openmp: "libiomp5md",
                // An import library: the library that is loaded is a DLL.
                openmp_shared: "libiomp5md.lib",
                openmp_static: "libiomp5mt.lib",
                system: &[],
            },
            _ => Self {
                prefix: "lib",
                extension: "a",
                openmp: "iomp5",
                openmp_shared: if os == "macos" {
                    "libiomp5.dylib"
                } else {
                    "libiomp5.so"
                },
                openmp_static: "libiomp5.a",
                system: &["pthread", "m", "dl"],
            },
        }
    }

    fn archive(&self, name: &str) -> String {
        format!("{}{name}.{}", self.prefix, self.extension)
    }
}

fn below(root: &Path) -> Vec<PathBuf> {
    BELOW.iter().map(|below| root.join(below)).collect()
}

/// The folder in one of pkg-config's flags: `-L/there` or `/there/libmkl_core.a`.
fn directory_of(flag: &str) -> Option<PathBuf> {
    if let Some(directory) = flag.strip_prefix("-L") {
        return Some(PathBuf::from(directory));
    }
    let path = Path::new(flag);
    path.is_absolute()
        .then(|| path.parent().map(Path::to_path_buf))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const OPENMP: &str = "libiomp5.so";

    fn files(root: &Path, directory: &str, names: &[&str]) -> PathBuf {
        let directory = root.join(directory);
        fs::create_dir_all(&directory).unwrap();
        for name in names {
            fs::write(directory.join(name), "").unwrap();
        }
        directory
    }

    fn mkl(root: &Path, directory: &str) -> PathBuf {
        files(
            root,
            directory,
            &LIBRARIES
                .map(|name| format!("lib{name}.a"))
                .each_ref()
                .map(String::as_str),
        )
    }

    fn look(root: Option<&Path>, pkg_config: &dyn Fn(&[&str]) -> Asked) -> Result<Found, String> {
        find(&Host {
            os: "linux".into(),
            arch: "x86_64".into(),
            variable: &|name| root.filter(|_| name == "MKLROOT").map(Path::to_path_buf),
            pkg_config,
        })
    }

    fn unknown(_: &[&str]) -> Asked {
        Asked::No("Package mkl-static-lp64-iomp was not found".into())
    }

    /// PyPI's layout, Intel's older one, and oneAPI's with OpenMP next to MKL.
    #[test]
    fn mklroot() {
        let layouts = [
            ("p", "lib", "lib"),
            ("p", "lib/intel64", "lib/intel64"),
            ("mkl/2026.2", "lib", "../../compiler/latest/lib"),
        ];
        for (prefix, at, openmp) in layouts {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join(prefix);
            let at = mkl(&root, at);
            let openmp = files(&root, openmp, &[OPENMP]);
            let found = look(Some(&root), &unknown).unwrap();
            assert!(found.directories.contains(&at), "{found:?}");
            assert!(found.directories.contains(&openmp), "{found:?}");
            assert_eq!(found.libraries[0], "static:-bundle=mkl_intel_lp64");
            assert_eq!(found.libraries[3], "dylib=iomp5");
        }
    }

    /// pkg-config's output for Intel's files, and for one that only has `-L`; `MKLROOT` takes precedence.
    #[test]
    fn by_pkg_config() {
        let folder = tempfile::tempdir().unwrap();
        let at = mkl(folder.path(), "a");
        let openmp = files(folder.path(), "b", &["libiomp5.a"]);
        let (mkl_dir, openmp_dir) = (at.display(), openmp.display());
        let outputs = [
            format!("-Wl,--start-group {mkl_dir}/libmkl_core.a -Wl,--end-group -lm -L{openmp_dir} -liomp5"),
            format!("-L{mkl_dir} -lmkl_core -L{openmp_dir}"),
        ];
        for output in &outputs {
            let answers = |arguments: &[&str]| match arguments[0] {
                "--libs" => Asked::Yes(output.clone()),
                _ => Asked::Yes(String::new()),
            };
            let found = look(None, &answers).unwrap();
            assert_eq!(found.directories, [at.clone(), openmp.clone()]);
            assert_eq!(found.libraries[3], "static:-bundle=iomp5");
            let elsewhere = folder.path().join("elsewhere");
            assert!(look(Some(&elsewhere), &answers).is_err());
        }
    }

    #[test]
    fn what_was_looked_for_and_where() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let says = |err: &str, parts: &[&str]| {
            for part in parts {
                assert!(err.contains(part), "{part:?} is not in: {err}");
            }
        };
        let err = look(Some(root), &unknown).unwrap_err();
        let place = root.display().to_string();
        says(
            &err,
            &[
                "libmkl_core.a",
                "libiomp5.so",
                "MKLROOT is set",
                &place,
                "pip install mkl-static",
            ],
        );

        // One archive is missing, then OpenMP.
        let at = mkl(root, "lib");
        fs::remove_file(at.join("libmkl_core.a")).unwrap();
        says(
            &look(Some(root), &unknown).unwrap_err(),
            &["no directory has all of", &place],
        );
        mkl(root, "lib");
        says(
            &look(Some(root), &unknown).unwrap_err(),
            &["OpenMP runtime", "libiomp5.so or libiomp5.a"],
        );

        let arm = find(&Host {
            os: "linux".into(),
            arch: "aarch64".into(),
            variable: &|_| None,
            pkg_config: &unknown,
        });
        says(&arm.unwrap_err(), &["x86-64", "aarch64"]);
    }
}
