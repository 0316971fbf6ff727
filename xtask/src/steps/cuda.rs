//! The tests on CUDA: on a card if there is one; otherwise on an emulator of NVIDIA's libraries, with NVIDIA's compiler.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::cmd;
use crate::files::{absolute, built, create};
use crate::testing::{Backend, Long, Names, Tests};

/// Carries NVRTC, which needs no card.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
/// The newer architecture for which kernels are also compiled.
const NEWER: &str = "sm_90a";
/// The compute capability of the oldest supported card, on which every op runs with every dtype: it has fewer matrix instructions, and code
/// that compiles for it compiles for later ones. With `--all` the ops run on a newer card too.
const OLDEST: (&str, &str) = ("CANDLE_CUDA_EMULATOR_CC", "7.5");
const OLDEST_ARCH: &str = "sm_75";
/// The same for `--all`, in which all tests run with all of these.
const ALL: &str = "sm_80,sm_90a,sm_120";

/// The tests that take longest on the emulator: many kernels to compile, and matrix instructions, which it runs one element at a time.
const LONG: Names = &[
    (
        "candle-core",
        &[
            "backprop::gradcheck::devices_agree::cuda",
            "conv_device::edges::cuda",
            "conv_device::tiles::cuda",
            "long_loops::products::cuda",
            "long_loops::quantized_products::cuda",
            "matmul::columns_and_depths::cuda",
            "matmul::layouts::cuda",
            "matmul::long_depths::cuda",
            "quantized_device::activations_of_any_size::cuda",
            "quantized_device::layouts_batches_and_dtypes::cuda",
            "quantized_device::no_numbers_stay_in_their_row::cuda",
            "quantized_tables::products::cuda",
            "reduce::lengths::cuda",
            "reduce::long_rows::cuda",
            "sort::layouts_and_dtypes::cuda",
        ],
    ),
    (
        "candle-nn",
        &[
            "attention_options::options_together::cuda",
            "attention_sizes::few_queries_of_many_keys::cuda",
            "attention_sizes::moving_maxima::cuda",
            "attention_sizes::sizes::cuda",
            "flash::packed_sequences::cuda",
            "linear_blocks::of_many_sizes::cuda",
            "linear_quantized::of_every_layout::cuda",
        ],
    ),
];

/// Runs the tests named `cuda`; on the emulator those of tensors and layers, without the long ones.
pub fn cuda() -> Result<String, String> {
    if let Some(on_card) = on_a_card() {
        return on_card;
    }
    let env = emulator()?;
    let note = tensors_and_layers(&env, Long::Without(LONG))?;
    let ops = every_op_as_on_the_oldest(&env, OLDEST_ARCH)?;
    Ok(format!(
        "{note}, on the emulator, and every op as on the oldest card ({ops}); NVRTC takes the kernels of the former for {NEWER}, of the latter for {OLDEST_ARCH}"
    ))
}

/// The long tests of tensors and layers that [`cuda`] leaves out on the emulator.
pub fn rest() -> Result<String, String> {
    if has_card() {
        return Ok("the step `cuda` runs them on this machine's card".to_string());
    }
    let note = tensors_and_layers(&emulator()?, Long::Only(LONG))?;
    Ok(format!(
        "{note}, on the emulator; NVRTC takes their kernels for {NEWER}"
    ))
}

fn tensors_and_layers(env: &[(String, String)], long: Long) -> Result<String, String> {
    let filter = match long {
        // Names are joined by "or".
        Long::Only(_) => String::new(),
        _ => format!("::cuda --skip {EVERY_OP}"),
    };
    let more = [(ARCHS, NEWER)];
    run("--test core --test nn", &filter, long, env, &more)
}

const EVERY_OP: &str = "all_ops::cuda";

fn every_op_as_on_the_oldest(env: &[(String, String)], archs: &str) -> Result<String, String> {
    let more = [OLDEST, (ARCHS, archs)];
    run("--test core", EVERY_OP, Long::Too, env, &more)
}

/// As [`cuda`], models among the tests, and every kernel for every generation of cards.
pub fn long() -> Result<String, String> {
    if let Some(on_card) = on_a_card() {
        return on_card;
    }
    let env = emulator()?;
    let note = run("--tests", "::cuda", Long::Too, &env, &[(ARCHS, ALL)])?;
    every_op_as_on_the_oldest(&env, &format!("{OLDEST_ARCH},{ALL}"))?;
    Ok(format!(
        "{note}, on the emulator; NVRTC takes every kernel for {ALL}"
    ))
}

const ARCHS: &str = "CANDLE_CUDA_EMULATOR_ARCHS";

/// Environment variables and their values.
type Variables = Vec<(String, String)>;

/// The variables with which tests of another workspace run on CUDA, and a description of the device. On the emulator NVRTC compiles their
/// few kernels for every generation of cards.
pub fn environment() -> Result<(Variables, &'static str), String> {
    if has_card() {
        return Ok((Vec::new(), "on this machine's card"));
    }
    let mut env = emulator()?;
    // A text is tried for no card older than the emulated one.
    let (capability, oldest) = OLDEST;
    env.push((capability.to_string(), oldest.to_string()));
    env.push((ARCHS.to_string(), format!("{OLDEST_ARCH},{ALL}")));
    Ok((env, "on the emulator"))
}

fn has_card() -> bool {
    cmd("nvidia-smi -L").succeeds()
}

fn on_a_card() -> Option<Result<String, String>> {
    let tests = || {
        let note = run("--tests", "::cuda", Long::Too, &[], &[])?;
        Ok(format!("{note}, on this machine's card"))
    };
    has_card().then(tests)
}

fn run(
    targets: &str,
    filter: &str,
    long: Long,
    env: &[(String, String)],
    more: &[(&str, &str)],
) -> Result<String, String> {
    let env = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let env: Vec<(&str, &str)> = env.chain(more.iter().copied()).collect();
    Tests {
        targets,
        filter,
        env: &env,
        long,
        ..Tests::default()
    }
    .run_on(Backend::Cuda)
}

/// Builds the emulator and fetches NVRTC (PyPI, 90 MB) into `target/`; gives the environment that tests find them by.
fn emulator() -> Result<Vec<(String, String)>, String> {
    let folder = absolute("target/cuda-emulator")?;
    create(&folder)?;
    cmd("cargo build -p candle-cuda-emulator").run()?;
    let library = built("library")?.with_file_name(format!(
        "{}candle_cuda_emulator{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    for name in ["libcuda.so.1", "libnvrtc.so.13"] {
        copy(&library, &folder.join(name))?;
    }
    let nvrtc = nvrtc()?;
    let path = |path: &Path| path.display().to_string();
    let variables = [
        ("LD_LIBRARY_PATH", path(&folder)),
        ("CANDLE_CUDA_PATH", path(&folder)),
        ("CANDLE_CUDA_CACHE", path(&folder.join("cubins"))),
        ("CANDLE_CUDA_EMULATOR_CACHE", path(&folder.join("kernels"))),
        ("CANDLE_CUDA_EMULATOR_NVRTC", path(&nvrtc)),
    ];
    Ok(variables
        .map(|(name, value)| (name.to_string(), value))
        .to_vec())
}

/// NVRTC's library.
fn nvrtc() -> Result<PathBuf, String> {
    let folder = absolute("target/nvrtc")?;
    let library = folder.join("nvidia/cu13/lib/libnvrtc.so.13");
    if !library.is_file() {
        let to = folder.display();
        create(&folder)?;
        cmd(&format!(
            "python3 -m pip download --quiet --no-deps --only-binary :all: --dest {to} {NVRTC}"
        ))
        .run()?;
        let files = fs::read_dir(&folder).map_err(|err| format!("{to}: {err}"))?;
        let wheel = files
            .flatten()
            .map(|file| file.path())
            .find(|path| path.extension().is_some_and(|kind| kind == "whl"))
            .ok_or_else(|| format!("{to}: pip left no wheel there"))?;
        cmd(&format!("python3 -m zipfile -e {} {to}", wheel.display())).run()?;
    }
    Ok(library)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = fs::copy(from, to);
    copied.map_err(|err| format!("cannot copy {} to {}: {err}", from.display(), to.display()))?;
    Ok(())
}
