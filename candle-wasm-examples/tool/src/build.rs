//! From crates and pages to a folder that a server can give out.

use crate::compress;
use crate::pages::{self, PAGES};
use crate::target::{Toolchain, TARGET};
use crate::{at, examples, site, target_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use wasm_bindgen_cli_support::Bindgen;

/// A crate that becomes WebAssembly, and the folder of the site that gets it.
struct Module {
    krate: &'static str,
    to: &'static str,
    /// The most bytes that it may have as gzip, which every server can send.
    most: Option<u64>,
    /// Whether it is also built with threads.
    threads: bool,
}

const MODULES: [Module; 7] = [
    Module {
        krate: "candle-wasm",
        to: "candle-wasm",
        most: Some(2_700_000),
        threads: true,
    },
    Module {
        krate: "embeddings",
        to: "embeddings/wasm",
        most: Some(1_740_000),
        threads: false,
    },
    // In the npm package, next to the module of language models, which does not grow by it.
    Module {
        krate: "transcribe",
        to: "candle-wasm/speech",
        most: Some(1_900_000),
        threads: true,
    },
    // With relays and a journal besides.
    Module {
        krate: "browser-dvm",
        to: "candle-wasm/dvm",
        most: Some(3_320_000),
        threads: true,
    },
    // Next to them too: answers that keep to a schema.
    Module {
        krate: "grammar",
        to: "candle-wasm/grammar",
        most: Some(450_000),
        threads: false,
    },
    Module {
        krate: "vision",
        to: "vision/wasm",
        most: Some(1_200_000),
        threads: false,
    },
    Module {
        krate: "ops",
        to: "ops/wasm",
        most: Some(1_000_000),
        threads: false,
    },
];

/// The settings for compiling modules, and the folder's name.
struct Build {
    name: &'static str,
    /// For rustc.
    flags: &'static [&'static str],
    /// For the CPU alone, over memory that workers share: the objects of WebGPU belong to one thread.
    threads: bool,
}

/// A module is built for processors' vectors and without, and for several threads: a browser takes what it can.
const BUILDS: [Build; 3] = [
    Build {
        name: "simd",
        flags: &["-Ctarget-feature=+simd128"],
        threads: false,
    },
    Build {
        name: "threads",
        flags: &[
            "-Ctarget-feature=+simd128,+atomics,+bulk-memory,+mutable-globals",
            "-Clink-arg=--shared-memory",
            "-Clink-arg=--import-memory",
            "-Clink-arg=--max-memory=4294967296",
            // What wasm-bindgen needs to give each thread its own variables and stack.
            "-Clink-arg=--export=__heap_base",
            "-Clink-arg=--export=__wasm_init_tls",
            "-Clink-arg=--export=__tls_size",
            "-Clink-arg=--export=__tls_align",
            "-Clink-arg=--export=__tls_base",
        ],
        threads: true,
    },
    Build {
        name: "plain",
        flags: &[],
        threads: false,
    },
];

impl Build {
    fn modules(&self) -> impl Iterator<Item = &'static Module> {
        let threads = self.threads;
        MODULES
            .iter()
            .filter(move |module| module.threads || !threads)
    }
}

/// Random numbers come from the browser.
const FLAGS: &str = r#"--cfg getrandom_backend="wasm_js""#;

/// Optional features of WebAssembly that compilers use unasked; every browser with WebGPU has them.
const WASM_OPT: [&str; 9] = [
    "-Os",
    "--enable-bulk-memory",
    "--enable-mutable-globals",
    "--enable-nontrapping-float-to-int",
    "--enable-reference-types",
    "--enable-multivalue",
    "--enable-sign-ext",
    "--strip-debug",
    "--strip-producers",
];

/// Builds the modules, or those of one of [`BUILDS`], and copies them next to the pages. A `quick` build is for tests, one
/// with `names` for a profiler: their files are neither shrunk nor compressed, and their sizes not checked. `formats` are those of
/// [`compress`].
pub fn build(
    only: &[String],
    quick: bool,
    names: bool,
    formats: &[&'static str],
) -> Result<(), String> {
    let start = Instant::now();
    let toolchain = Toolchain::find()?;
    let site = site();
    if site.exists() {
        fs::remove_dir_all(&site).map_err(at(&site))?;
    }
    copy(&examples().join("page"), &site)?;
    // The files of the npm package.
    let package = examples().join("candle-wasm/package");
    copy(&package, &site.join("candle-wasm"))?;
    pages::fill(&site, "")?;
    for (page, _) in PAGES {
        copy(&examples().join(page).join("page"), &site.join(page))?;
        pages::fill(&site, page)?;
    }
    // The model that comes with candle-engine is a folder as others have it.
    let model = site.join("llm/model");
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors",
    ] {
        let from = examples()
            .join("../candle-transformers/engine/model")
            .join(file);
        copy(&from, &model.join(file))?;
    }
    let profile = if quick { "web-quick" } else { "web" };
    let published = !quick && !names;
    let shrinks = published && has_wasm_opt();
    let mut modules = Vec::new();
    let wanted = |build: &&Build| only.is_empty() || only.iter().any(|name| name == build.name);
    let builds: Vec<_> = BUILDS.iter().filter(wanted).collect();
    if builds.iter().any(|build| build.threads) {
        toolchain.find_source()?;
    } else {
        let told = site.join("candle-wasm/builds.js");
        fs::write(&told, "export const HAS_THREADS = false;\n").map_err(at(&told))?;
    }
    println!("The first build takes minutes, most of them for the last crates, which are optimised as a whole.");
    for (index, build) in builds.iter().enumerate() {
        let (name, count) = (build.name, builds.len());
        let crates: Vec<_> = build.modules().map(|module| module.krate).collect();
        let crates = crates.join(", ");
        println!(
            "[{}/{count}] {name}: compiling {crates} for {TARGET}",
            index + 1
        );
        let compiled = compile(&toolchain, profile, build)?;
        println!(
            "[{}/{count}] {name}: compiled, {} since the start",
            index + 1,
            minutes(start.elapsed())
        );
        for module in build.modules() {
            let wasm = compiled.join(format!("{}.wasm", module.krate.replace('-', "_")));
            let to = site.join(module.to).join(name);
            println!("{} ({name}): writing its JavaScript", module.krate);
            let built = bind(&wasm, &to, names)?;
            if shrinks {
                println!("{} ({name}): wasm-opt", module.krate);
                shrink(&built, build.threads)?;
            }
            let size = fs::metadata(&built).map_err(at(&built))?.len();
            tell_size(&to.join("candle.js"), size)?;
            modules.push((module, name, built, size));
        }
    }
    if published {
        println!("compressing all files for servers");
        compress::folder(&site, formats)?;
        check_sizes(&modules, formats)?;
    } else {
        for (module, name, _, size) in &modules {
            println!("{} ({name}): {}", module.krate, megabytes(*size));
        }
    }
    println!("built {} in {}", site.display(), minutes(start.elapsed()));
    Ok(())
}

/// A module, the build's name, its file and that one's length.
type Built = (&'static Module, &'static str, PathBuf, u64);

/// Prints the sizes of modules, and returns an error that names those which are too large.
fn check_sizes(modules: &[Built], formats: &[&'static str]) -> Result<(), String> {
    let mut too_large = Vec::new();
    for (module, name, file, size) in modules {
        let mut line = format!("{} ({name}): {}", module.krate, megabytes(*size));
        for format in formats {
            let sent = compress::size(file, format)?;
            line += &format!(", .{format} {}", megabytes(sent));
            let most = module.most.filter(|most| sent > *most);
            if let (&compress::GZIP, Some(most)) = (format, most) {
                too_large.push(format!(
                    "{} is {sent} bytes as gzip, more than {most}",
                    file.display()
                ));
            }
        }
        println!("{line}");
    }
    if too_large.is_empty() {
        Ok(())
    } else {
        Err(too_large.join("\n"))
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// Adds the module's length to its JavaScript, for a bar: of a compressed answer `Content-Length` does not say how much comes out of it.
fn tell_size(script: &Path, size: u64) -> Result<(), String> {
    let mut text = fs::read_to_string(script).map_err(at(script))?;
    text +=
        &format!("\n/** The length of the module, in bytes. */\nexport const wasmSize = {size};\n");
    fs::write(script, text).map_err(at(script))
}

/// `3 min 20 s`.
fn minutes(time: Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// Compiles the crates; the folder with the modules as rustc leaves them.
fn compile(toolchain: &Toolchain, profile: &str, build: &Build) -> Result<PathBuf, String> {
    let flags: Vec<&str> = [FLAGS].iter().chain(build.flags).copied().collect();
    let mut cargo = toolchain.cargo_build(profile, &flags, build.threads);
    // All at once: if built in sequence, each could need other features of their dependencies, which would be compiled again.
    for module in build.modules() {
        cargo.args(["--package", module.krate]);
    }
    if build.threads {
        cargo.arg("--no-default-features");
    }
    // Other flags for the compiler replace what is there: the build with threads has a separate folder, so that both stay.
    let to = if build.threads {
        target_dir().join(build.name)
    } else {
        target_dir()
    };
    cargo.arg("--target-dir").arg(&to);
    let status = cargo.current_dir(examples()).status();
    let status = status.map_err(|err| format!("{cargo:?}: {err}"))?;
    if !status.success() {
        return Err(format!("{cargo:?} exited with {status}"));
    }
    Ok(to.join(TARGET).join(profile))
}

/// Writes the JavaScript and the types next to the module; returns the module's new path.
fn bind(wasm: &Path, to: &Path, names: bool) -> Result<PathBuf, String> {
    let failed = |err| format!("wasm-bindgen: {}: {err:?}", wasm.display());
    let mut bindgen = Bindgen::new();
    bindgen.input_path(wasm).typescript(true).out_name("candle");
    bindgen
        .remove_name_section(!names)
        .remove_producers_section(true);
    bindgen.web(true).map_err(failed)?;
    bindgen.generate(to).map_err(failed)?;
    Ok(to.join("candle_bg.wasm"))
}

/// The first wasm-opt that is to be trusted: those before it export a module's first table, whichever was meant. wasm-bindgen keeps the
/// objects of JavaScript in the second, and a table of functions takes none of them.
const OLDEST_WASM_OPT: u32 = 110;

/// Whether there is a wasm-opt that is new enough; says so where there is none.
fn has_wasm_opt() -> bool {
    let output = Command::new("wasm-opt").arg("--version").output();
    let version = output
        .ok()
        .map(|output| version(&String::from_utf8_lossy(&output.stdout)));
    let larger = "the modules stay unoptimised";
    match version {
        Some(Some(version)) if version >= OLDEST_WASM_OPT => return true,
        Some(Some(version)) => println!(
            "wasm-opt is version {version}, and before {OLDEST_WASM_OPT} it breaks modules with two tables: {larger}"
        ),
        Some(None) => println!("wasm-opt does not report its version: {larger}"),
        None => println!("wasm-opt not found: {larger} (install binaryen; {OLDEST_WASM_OPT} is the minimum version)"),
    }
    false
}

/// The number in `wasm-opt version 116 (version_116)`.
fn version(output: &str) -> Option<u32> {
    output.split_whitespace().find_map(|word| word.parse().ok())
}

/// Runs wasm-opt.
fn shrink(wasm: &Path, threads: bool) -> Result<(), String> {
    let shrunk = wasm.with_extension("opt");
    let mut opt = Command::new("wasm-opt");
    opt.args(WASM_OPT).arg("--enable-simd");
    if threads {
        opt.arg("--enable-threads");
    }
    opt.arg(wasm).arg("-o").arg(&shrunk);
    match opt.status() {
        Ok(status) if status.success() => fs::rename(&shrunk, wasm).map_err(at(wasm)),
        Ok(status) => Err(format!("{opt:?} exited with {status}")),
        Err(err) => Err(format!("{opt:?}: {err}")),
    }
}

/// Copies a file, or a folder with what is in it.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if !from.is_dir() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        fs::copy(from, to).map_err(at(from))?;
        return Ok(());
    }
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_minutes() {
        assert_eq!(minutes(Duration::from_secs(59)), "59 s");
        assert_eq!(minutes(Duration::from_secs(200)), "3 min 20 s");
    }

    #[test]
    fn versions_of_wasm_opt() {
        assert_eq!(version("wasm-opt version 108\n"), Some(108));
        assert_eq!(version("wasm-opt version 116 (version_116)\n"), Some(116));
        assert_eq!(version("wasm-opt"), None);
    }
}
