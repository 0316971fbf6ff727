//! Translates every WGSL file of a folder to MSL and HLSL, with naga and the options of wgpu 30's Metal and DX12 backends.
//!
//! What comes out is what these backends hand to Apple's and Microsoft's compilers, which are not run here.

mod backend;
mod translate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use backend::{Backend, BACKENDS};
use translate::{translate, Outcome};

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: translate-shaders FOLDER");
        return ExitCode::FAILURE;
    };
    match run(Path::new(&folder)) {
        Ok(lines) => {
            println!("{}", lines.join("\n"));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// A line for each backend with its counts, or all that could not be translated.
fn run(folder: &Path) -> Result<Vec<String>, String> {
    let shaders = shaders(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    if shaders.is_empty() {
        return Err(format!("{}: no .wgsl file", folder.display()));
    }
    let mut counts: Vec<Counts> = BACKENDS.iter().map(Counts::new).collect();
    let mut errors = Vec::new();
    for (path, results) in shaders.iter().zip(on_all_threads(&shaders)) {
        for (counts, result) in counts.iter_mut().zip(results) {
            match result {
                Ok(outcome) => counts.add(outcome),
                Err(reason) => errors.push(format!(
                    "{}: {}: {reason}",
                    path.display(),
                    counts.backend.name
                )),
            }
        }
    }
    if !errors.is_empty() {
        return Err(format!("{}\n{} errors", errors.join("\n"), errors.len()));
    }
    // A backend for which nothing is left was not tested.
    if let Some(empty) = counts.iter().find(|counts| counts.translated == 0) {
        return Err(format!("{}: not one shader is for it", empty.backend.name));
    }
    Ok(counts.iter().map(Counts::line).collect())
}

type Results = [Result<Outcome, String>; BACKENDS.len()];

/// The results of each backend for each shader, in the shaders' order.
fn on_all_threads(shaders: &[PathBuf]) -> Vec<Results> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let each = |path: &PathBuf| -> Results {
        let text = std::fs::read_to_string(path).map_err(|err| err.to_string());
        BACKENDS
            .each_ref()
            .map(|backend| translate(text.as_ref().map_err(String::clone)?, backend))
    };
    std::thread::scope(|scope| {
        let parts = shaders.chunks(shaders.len().div_ceil(threads));
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(each).collect::<Vec<_>>()))
            .collect();
        let join = |part: std::thread::ScopedJoinHandle<Vec<Results>>| {
            part.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}

/// The files in alphabetical order.
fn shaders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "wgsl")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The outcomes of the shaders on one backend.
struct Counts {
    backend: &'static Backend,
    translated: usize,
    /// The features that the backend's adapters lack, and the number of shaders that need them.
    lacking: Vec<(String, usize)>,
}

impl Counts {
    fn new(backend: &'static Backend) -> Self {
        Self {
            backend,
            translated: 0,
            lacking: Vec::new(),
        }
    }

    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Translated => self.translated += 1,
            Outcome::Lacking(features) => {
                match self.lacking.iter_mut().find(|(name, _)| *name == features) {
                    Some((_, count)) => *count += 1,
                    None => self.lacking.push((features, 1)),
                }
            }
        }
    }

    fn line(&self) -> String {
        let name = self.backend.name;
        let mut line = format!("{name}: {} translated", self.translated);
        for (features, count) in &self.lacking {
            line.push_str(&format!(", {count} not for it ({features})"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        struct Params { n: u32 }
        @group(0) @binding(2) var<uniform> p: Params;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < p.n { y[id.x] = f32(FLOAT(x[id.x]) * FLOAT(2)); }
        }";

    fn with(float: &str) -> String {
        PLAIN.replace("FLOAT", float)
    }

    /// The result for the files that `texts` become.
    fn of(name: &str, texts: &[String]) -> Result<Vec<String>, String> {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (index, text) in texts.iter().enumerate() {
            std::fs::write(folder.join(format!("{index}.wgsl")), text).unwrap();
        }
        let result = run(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        result
    }

    #[test]
    fn shaders_are_counted_by_what_a_backend_has() {
        let half = format!("enable f16;\n{}", with("f16"));
        let lines = of("counted", &[with("f32"), with("f64"), half]).unwrap();
        assert_eq!(
            lines,
            [
                "Metal 2.4: 2 translated, 1 not for it (SHADER_F64)",
                "Metal 4.0: 2 translated, 1 not for it (SHADER_F64)",
                "DX12 with DXC: 2 translated, 1 not for it (SHADER_F64)",
                "DX12 with FXC: 1 translated, 1 not for it (SHADER_F64), 1 not for it (SHADER_F16)",
            ]
        );
    }

    #[test]
    fn a_shader_that_no_backend_takes_is_an_error() {
        let err = of("parse", &[with("f32"), "fn main( {".into()]).unwrap_err();
        assert!(err.contains("1.wgsl: Metal 2.4"), "{err}");
        // It parses; the types do not fit.
        let err = of("types", &[with("vec2<f32>")]).unwrap_err();
        assert!(err.contains("0.wgsl: DX12 with FXC"), "{err}");
    }

    #[test]
    fn a_feature_that_no_list_names_is_an_error() {
        let atomic = "@group(0) @binding(0) var<storage, read_write> x: atomic<u64>;
            @compute @workgroup_size(1) fn main() { atomicMax(&x, 1lu); }";
        let err = of("unlisted", &[with("f32"), atomic.into()]).unwrap_err();
        assert!(err.contains("1.wgsl: Metal 2.4"), "{err}");
    }

    #[test]
    fn a_folder_without_shaders_is_an_error() {
        assert!(of("nothing", &[]).unwrap_err().contains("no .wgsl file"));
        let only = of("only", &[with("f64")]).unwrap_err();
        assert!(only.contains("not one shader is for it"), "{only}");
    }
}
