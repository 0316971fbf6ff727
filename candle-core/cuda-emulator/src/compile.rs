//! Compiles a kernel's source to a shared library of the host, cached on disk by a hash of everything it is built from.

use crate::launch::RawLaunch;
use crate::loader::Library;
use crate::text;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// The prefix of the text that replaces PTX: the rest of the line is the library's path.
pub const TEXT_PREFIX: &str = "// candle-cuda-emulator ";

pub type Run = unsafe extern "C" fn(*const RawLaunch, u64, u64);

const DEVICE: &str = include_str!("../shim/device.h");
const NUMBERS: &str = include_str!("../shim/numbers.h");
const WARP: &str = include_str!("../shim/warp.h");
const PRIMITIVES: &str = include_str!("../shim/primitives.h");
const LAUNCH: &str = include_str!("../shim/launch.h");
const FIBER: &str = include_str!("../shim/fiber.h");
const OPS: &str = include_str!("../shim/ops.h");
const RUNTIME: &str = include_str!("../shim/runtime.cpp");

/// Flags of every compilation. A kernel may have the name of a function of libc, so names are hidden. Kernels cast pointers and rely on
/// integers that wrap; a device fuses products and sums.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-fvisibility=hidden",
    "-fPIC",
    "-w",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-x",
    "c++",
];

/// Kernels access the runtime's variables at fixed offsets of a thread, which requires static TLS.
const RUNTIME_FLAGS: &[&str] = &["-O3", "-ftls-model=initial-exec", "-D__CUDA_ARCH__=900"];

/// Kernels call nothing but libm, which the program has: linking the libraries took half of the time of a small one.
const WITHOUT_LIBRARIES: &str = "-nostdlib";

/// The host's compiler: `CXX`, g++, c++ or clang++, the first that exists.
fn compiler() -> Result<&'static (String, String), String> {
    static COMPILER: OnceLock<Result<(String, String), String>> = OnceLock::new();
    let found = COMPILER.get_or_init(|| {
        let asked = std::env::var("CXX").ok().filter(|name| !name.is_empty());
        let names = asked
            .into_iter()
            .chain(["g++", "c++", "clang++"].map(String::from));
        for name in names {
            if let Ok(output) = Command::new(&name).arg("--version").output() {
                if output.status.success() {
                    return Ok((name, String::from_utf8_lossy(&output.stdout).into_owned()));
                }
            }
        }
        Err("no C++ compiler: set CXX, or install g++ or clang++".to_string())
    });
    found.as_ref().map_err(Clone::clone)
}

fn machine_flags() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
        return vec!["-mfma", "-mavx2"];
    }
    Vec::new()
}

/// The folder of compiled libraries.
pub fn folder() -> Result<PathBuf, String> {
    let folder = match std::env::var_os("CANDLE_CUDA_EMULATOR_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join("candle-cuda-emulator"),
    };
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// 128 bits of a value, as text.
pub fn hash(value: impl Hash) -> String {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        value.hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(1), half(2))
}

/// A name in the folder of `path` that no other thread or process writes to.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{count}.part", std::process::id()))
}

/// Writes a file atomically: others see all of it or nothing.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let part = beside(path);
    std::fs::write(&part, bytes)
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs the compiler on a source; returns its output, or its messages.
fn run_compiler(arguments: &[&str], text: &str) -> Result<Vec<u8>, String> {
    let (name, _) = compiler()?;
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = Command::new(name)
        .args(FLAGS)
        .args(machine_flags())
        .args(arguments)
        .arg("-")
        .args(arguments.contains(&WITHOUT_LIBRARIES).then_some("-lgcc"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().ok_or("no pipe to the compiler")?;
    let text = text.to_string();
    // A failed write shows in the compiler's messages.
    let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let output = child.wait_with_output().map_err(failed)?;
    let _ = writer.join();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn build(arguments: &[&str], text: &str, library: &Path) -> Result<(), String> {
    let part = beside(library);
    let path = part.to_str().ok_or("the folder's name is not UTF-8")?;
    let shared: &[&str] = if cfg!(target_os = "macos") {
        &["-dynamiclib", "-undefined", "dynamic_lookup", "-o", path]
    } else {
        &["-shared", "-o", path]
    };
    run_compiler(&[arguments, shared].concat(), text)?;
    std::fs::rename(&part, library).map_err(|error| format!("{}: {error}", library.display()))
}

/// The runtime's entry, compiled and loaded on the first call.
pub fn runtime() -> Result<Run, String> {
    static RUNTIME_ENTRY: OnceLock<Result<Run, String>> = OnceLock::new();
    let load = || {
        let parts = [DEVICE, NUMBERS, PRIMITIVES, FIBER, OPS, RUNTIME];
        let key = hash((parts, FLAGS, machine_flags(), &compiler()?.1, RUNTIME_FLAGS));
        let path = folder()?.join(format!("runtime-{key}.so"));
        if !path.exists() {
            // Its quoted includes are inserted where they occur.
            let mut text = RUNTIME.to_string();
            for (name, part) in [
                ("fiber.h", FIBER),
                ("ops.h", OPS),
                ("numbers.h", NUMBERS),
                ("primitives.h", PRIMITIVES),
                ("device.h", DEVICE),
            ] {
                text = text.replace(&format!("#include \"{name}\"\n"), part);
            }
            // Kernels access its variables at fixed offsets, so they have to be in static TLS.
            build(RUNTIME_FLAGS, &text, &path)?;
        }
        let library = Library::open(&path, true)?;
        let watch: unsafe extern "C" fn() = unsafe { library.function(c"emu_watch")? };
        unsafe { watch() };
        unsafe { library.function(c"emu_run") }
    };
    RUNTIME_ENTRY.get_or_init(load).clone()
}

/// Compiles a source with these definitions (`NAME=VALUE`) for an architecture (75, 80, ...) to a library.
pub fn program(source: &str, arch: u32, definitions: &[String]) -> Result<PathBuf, String> {
    let shim = [DEVICE, NUMBERS, WARP, PRIMITIVES, LAUNCH];
    let key = hash((
        shim,
        FLAGS,
        machine_flags(),
        &compiler()?.1,
        source,
        arch,
        definitions,
    ));
    let path = folder()?.join(format!("{key}.so"));
    if path.exists() {
        return Ok(path);
    }
    let mut options = vec![format!("-D__CUDA_ARCH__={arch}0")];
    options.extend(
        definitions
            .iter()
            .map(|definition| format!("-D{definition}")),
    );
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    options.push("-O1");
    let first = [
        "-E",
        "-DCANDLE_CUDA_EMULATOR",
        "-D__CUDACC__",
        "-D__CUDACC_RTC__",
    ];
    let expanded = run_compiler(
        &[&first, options.as_slice()].concat(),
        &format!("# 1 \"kernel.cu\"\n{source}"),
    )?;
    let expanded = String::from_utf8_lossy(&expanded);
    let mut text = format!("{DEVICE}{NUMBERS}{WARP}{PRIMITIVES}\n# 1 \"kernel.cu\"\n");
    text.push_str(&text::dynamic_shared(&expanded)?);
    text.push_str("\n# 1 \"launch.h\"\n");
    text.push_str(LAUNCH);
    for entry in text::entries(&expanded) {
        text.push_str(&format!(
            "EMU_KERNEL({}, {})\n",
            entry.name,
            entry.bound.as_deref().unwrap_or("0")
        ));
    }
    if cfg!(target_os = "linux") {
        options.push(WITHOUT_LIBRARIES);
    }
    build(&options, &text, &path)?;
    Ok(path)
}

/// Writes a library's bytes to a file that can be opened.
pub fn keep_image(image: &[u8]) -> Result<PathBuf, String> {
    let path = folder()?.join(format!("module-{}.so", hash(image)));
    if !path.exists() {
        write_whole(&path, image)?;
    }
    Ok(path)
}
