//! What `cargo xtask test` does, in order.

mod auth;
mod cashu;
mod chrome;
mod cross;
pub mod cuda;
mod emulated;
mod examples;
mod first;
mod fuzz;
mod metal;
mod nostr;
mod openai;
mod oracle;
mod rust;
mod setup;
mod shaders;
mod tests;
mod upstream;
mod wasi;
pub mod web;
mod weights;
mod words;

/// The runs that include a step.
#[derive(Clone, Copy, PartialEq)]
pub enum When {
    /// Every run: what shows each feature once.
    Default,
    /// `--changed` where files of `paths` changed, a separate job in CI, and `--all`.
    Changed,
    /// `--all`: the same once more under other limits, in other browsers, on other systems, or for longer.
    All,
}

/// One named part of `cargo xtask test`.
pub struct Step {
    pub name: &'static str,
    pub title: &'static str,
    pub when: When,
    /// Seconds that it may take in a whole run, from an empty target folder on two idle cores. A whole run in CI fails where a step takes
    /// longer by half.
    pub budget: u32,
    /// Files that concern the step, by the start of their paths; none for a step that every change needs.
    pub paths: &'static [&'static str],
    /// `Ok` holds a note for the summary, `Err` the command that failed or what is missing.
    pub run: fn() -> Result<String, String>,
    /// The part that may run in the background during earlier steps: builds that no other step uses. `run` does not need it.
    pub ahead: Option<fn() -> Result<(), String>>,
}

/// Cheap steps come first, so that a slip is found before the long ones.
pub const STEPS: &[Step] = &[
    Step {
        name: "setup",
        title: "setup: a Vulkan driver, rustfmt and clippy are installed",
        when: When::Default,
        budget: 120,
        paths: &[],
        run: setup::setup,
        ahead: None,
    },
    Step {
        name: "fmt",
        title: "rustfmt finds nothing to change; no new discouraged phrases",
        when: When::Default,
        budget: 30,
        paths: &[],
        run: rust::fmt,
        ahead: None,
    },
    Step {
        name: "deps",
        title: "candle-core's default build pulls in no wgpu and no cudarc, and no more packages than it did",
        when: When::Default,
        budget: 30,
        paths: &[],
        run: rust::deps,
        ahead: None,
    },
    Step {
        name: "clippy",
        title: "clippy is silent with all backends",
        when: When::Default,
        budget: 200,
        paths: &[],
        run: rust::clippy,
        ahead: None,
    },
    Step {
        name: "doc",
        title: "the documentation builds without a warning",
        when: When::Default,
        budget: 100,
        paths: &[],
        run: rust::doc,
        ahead: None,
    },
    Step {
        name: "test",
        title: "all tests but those on CUDA and the long ones, on the CPU and on WebGPU",
        when: When::Default,
        // On a machine without a cache of Mesa's kernels, a third of it compiles them.
        budget: 1300,
        paths: &[],
        run: tests::test,
        ahead: None,
    },
    Step {
        name: "test-long",
        title: "the long WebGPU tests: models in 16 bits, sizes and layouts of products and attention",
        when: When::Changed,
        budget: 900,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/"],
        run: tests::long,
        ahead: None,
    },
    Step {
        name: "metal",
        title: "Device::Metal, on a Mac's adapter or on an emulated one",
        when: When::Default,
        budget: 60,
        paths: &["candle-core/", "candle-nn/"],
        run: metal::metal,
        ahead: None,
    },
    Step {
        name: "cuda",
        title: "tensors and layers on CUDA, on a card or on an emulator, with NVIDIA's compiler",
        when: When::Default,
        // The emulator runs matrix instructions, which attention and quantised products consist of, one element at a time.
        budget: 500,
        paths: &["candle-core/", "candle-nn/"],
        run: cuda::cuda,
        ahead: None,
    },
    Step {
        name: "shaders",
        title: "naga translates every shader of the step `test` for Metal and DX12",
        when: When::Default,
        budget: 150,
        paths: &["candle-core/", "candle-nn/", "xtask/shaders/"],
        run: shaders::shaders,
        ahead: None,
    },
    Step {
        name: "cuda-rest",
        title: "the long tests of tensors and layers on CUDA",
        when: When::Changed,
        budget: 900,
        paths: &["candle-core/", "candle-nn/"],
        run: cuda::rest,
        ahead: None,
    },
    Step {
        name: "cross",
        title: "all packages compile for Windows",
        when: When::Changed,
        budget: 150,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/", "candle-dvm/Cargo.toml"],
        run: cross::cross,
        ahead: None,
    },
    Step {
        name: "web",
        title: "the pages work in headless Chromium: every op on WebGPU, models on WebGPU and on the CPU",
        when: When::Default,
        // From an empty target folder the modules are not yet built when the step begins: it waits for five minutes.
        budget: 800,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/", "candle-wasm-examples/"],
        run: web::web,
        ahead: Some(web::ahead),
    },
    Step {
        name: "examples",
        title: "the examples run, on the CPU, and one on WebGPU",
        when: When::Default,
        budget: 150,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/"],
        run: examples::examples,
        ahead: Some(examples::ahead),
    },
    Step {
        name: "web-sizes",
        title: "the modules that browsers load, as they are published, are within their sizes",
        when: When::Changed,
        budget: 500,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/", "candle-dvm/src/", "candle-wasm-examples/"],
        run: web::sizes,
        ahead: None,
    },
    Step {
        name: "wasi",
        title: "WebAssembly guests train forests by wasi:gpu as scikit-learn does; hostile ones get nowhere",
        when: When::Changed,
        budget: 500,
        paths: &["candle-core/", "candle-wasm-examples/wasi-gpu/"],
        run: wasi::wasi,
        ahead: Some(wasi::ahead),
    },
    Step {
        name: "oracle",
        title: "ops and models agree with crates.io's candle 0.11.1 on the CPU",
        when: When::Changed,
        budget: 450,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/", "docs/upstream.md"],
        run: oracle::oracle,
        ahead: None,
    },
    Step {
        name: "upstream",
        title: "Candle's own tests pass, on the CPU and on WebGPU",
        when: When::Default,
        budget: 200,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/"],
        run: upstream::upstream,
        ahead: None,
    },
    Step {
        name: "nostr",
        title: "jobs over third-party relays and with third-party customers; 40 jobs, 4 kills",
        when: When::Default,
        budget: 200,
        paths: &["candle-core/", "candle-nn/", "candle-transformers/", "candle-dvm/", "xtask/nostr/"],
        run: nostr::nostr,
        ahead: None,
    },
    Step {
        name: "clippy-long",
        title: "clippy is silent without any feature, tests and examples too",
        when: When::Changed,
        budget: 300,
        paths: &["candle-core/Cargo.toml", "candle-nn/Cargo.toml", "candle-transformers/", "candle-dvm/"],
        run: rust::clippy_long,
        ahead: None,
    },
    Step {
        name: "examples-long",
        title: "every example runs on WebGPU",
        when: When::All,
        budget: 400,
        paths: &[],
        run: examples::long,
        ahead: None,
    },
    Step {
        name: "cross-long",
        title: "all packages compile for macOS and Windows, with tests and examples",
        when: When::All,
        budget: 400,
        paths: &[],
        run: cross::long,
        ahead: None,
    },
    Step {
        name: "cashu",
        title: "jobs paid with tokens of PyPI's mint and wallet: once, with change, and back on failure, also when the service is killed",
        when: When::All,
        budget: 120,
        paths: &["candle-dvm/"],
        run: cashu::cashu,
        ahead: None,
    },
    Step {
        name: "nostr-long",
        title: "the jobs of the step `nostr` five times over: 200 jobs, 20 kills",
        when: When::All,
        budget: 300,
        paths: &[],
        run: nostr::long,
        ahead: None,
    },
    Step {
        name: "first",
        title: "the readme's first command compiles within its budget, and the program is within its size",
        when: When::All,
        budget: 900,
        paths: &[],
        run: first::first,
        ahead: None,
    },
    Step {
        name: "msrv",
        title: "all packages compile with the oldest Rust that the manifest names",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: rust::msrv,
        ahead: None,
    },
    Step {
        name: "browser",
        title: "the WebGPU tests, with no more than every browser gives",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: tests::browser,
        ahead: None,
    },
    Step {
        name: "chrome",
        title: "Chromium's compiler takes every shader of the step `browser`",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: chrome::chrome,
        ahead: None,
    },
    Step {
        name: "firefox",
        title: "the pages work in headless Firefox",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: web::firefox,
        ahead: Some(web::ahead_published),
    },
    Step {
        name: "tiny",
        title: "candle-core's WebGPU tests, with 16 KiB in a binding: nearly every op is split",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: tests::tiny,
        ahead: None,
    },
    Step {
        name: "cuda-long",
        title: "models on CUDA as well; NVRTC takes every kernel for each generation of cards",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: cuda::long,
        ahead: None,
    },
    Step {
        name: "oracle-long",
        title: "ops agree with crates.io's candle 0.11.1 in four times as many cases, models on WebGPU too",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: oracle::long,
        ahead: None,
    },
    Step {
        name: "fuzz",
        title: "the fuzz targets of files and events find nothing in a minute each",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: fuzz::fuzz,
        ahead: Some(fuzz::ahead),
    },
    Step {
        name: "auth",
        title: "jobs over nostr-rs-relay, which takes events only of those who have said who they are",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: auth::auth,
        ahead: Some(auth::ahead),
    },
    Step {
        name: "weights",
        title: "trained models answer, hear and see as they do elsewhere, through `candle-dvm` and the example `classify`, on the CPU and on WebGPU",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: weights::weights,
        ahead: None,
    },
    Step {
        name: "openai",
        title: "OpenAI's packages of Python and JavaScript are answered by `candle-dvm api`, on the CPU and on WebGPU",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: openai::openai,
        ahead: None,
    },
    Step {
        name: "emulated",
        title: "the CPU backend on AArch64 and on x86-64 without AVX in an emulator, and in WebAssembly",
        when: When::All,
        budget: 1800,
        paths: &[],
        run: emulated::emulated,
        ahead: None,
    },
];

/// The steps' names and budgets, in order.
pub fn budgets() -> Vec<(&'static str, u32)> {
    STEPS.iter().map(|step| (step.name, step.budget)).collect()
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn step_names_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name));
        }
    }

    /// The steps that a workflow names.
    fn in_workflow(text: &str) -> Vec<&str> {
        let lists = text.lines().filter_map(|line| {
            let (_, list) = line.split_once("steps: ").or(line.split_once("--only "))?;
            (!list.starts_with("${{")).then_some(list)
        });
        lists.flat_map(|list| list.trim().split(',')).collect()
    }

    #[test]
    fn ci_runs_each_step_of_the_default_run() {
        let named = in_workflow(include_str!("../../../.github/workflows/ci.yml"));
        for name in &named {
            assert!(STEPS.iter().any(|step| step.name == *name), "{name}");
        }
        for step in STEPS.iter().filter(|step| step.when == When::Default) {
            assert!(named.contains(&step.name), "{}", step.name);
        }
        for step in STEPS.iter().filter(|step| step.when == When::Changed) {
            assert!(named.contains(&step.name), "{}", step.name);
        }
        let nightly = include_str!("../../../.github/workflows/nightly.yml");
        assert!(nightly.contains("cargo xtask test --all"));
    }
}
