//! Kernels: CUDA C++ generated for dtypes and layouts, compiled by NVRTC for the card, and cached.
//!
//! A [`Kernel`] is a value: the source, and the names that are defined before it. Its complete source is `kernels/prelude.cu`, these
//! definitions, and the files of the source, each readable from top to bottom. Its machine code is a cubin for the exact card, never PTX: a
//! driver rejects the PTX of a newer toolkit but accepts its machine code.

use std::collections::HashMap;
use std::ffi::{c_char, CString};
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use cudarc::driver::{sys as driver, CudaContext, CudaFunction};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys, Ptx};
use parking_lot::{Mutex, RwLock};

use super::cubin_cache::CubinCache;
use super::error::{CudaError, WrapErr};
use crate::Result;

/// The files of a kernel. The last one has the function `NAME_kernel`, where NAME is the file's name.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static [&'static str],
}

/// The source `kernels/NAME.cu`, after other files that it needs.
macro_rules! source {
    (@text $name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda_backend/kernels/", $name, ".cu"))
    };
    ($($part:literal,)* => $name:literal) => {{
        static SOURCE: $crate::cuda_backend::kernel::Source = $crate::cuda_backend::kernel::Source {
            name: $name,
            text: &[$(source!(@text $part),)* source!(@text $name)],
        };
        &SOURCE
    }};
    ($name:literal) => { source!(=> $name) };
}
pub(super) use source;

const PRELUDE: [&str; 2] = [
    include_str!("kernels/primitives.cu"),
    include_str!("kernels/prelude.cu"),
];

/// The value of a name in a kernel's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Define {
    /// A type or a function.
    Name(&'static str),
    /// An integer.
    Int(i64),
}

impl From<&'static str> for Define {
    fn from(name: &'static str) -> Self {
        Self::Name(name)
    }
}

impl From<bool> for Define {
    fn from(flag: bool) -> Self {
        Self::Int(flag.into())
    }
}

macro_rules! define_int {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Define {
            fn from(value: $ty) -> Self {
                Self::Int(value as i64)
            }
        }
    )*};
}
define_int!(i32, u32, usize, i64);

/// Maximum number of definitions of a kernel.
const DEFINES: usize = 16;

/// Everything that determines a kernel's machine code, except the card.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    source: &'static Source,
    defines: [(&'static str, Define); DEFINES],
    count: usize,
    /// Hash of the source and the values, updated with each definition.
    hash: u64,
}

impl Kernel {
    pub(super) fn new(source: &'static Source) -> Self {
        Self {
            source,
            defines: [("", Define::Int(0)); DEFINES],
            count: 0,
            hash: std::ptr::from_ref(source) as u64,
        }
    }

    /// Adds `#define name value` before the source.
    pub(super) fn define(mut self, name: &'static str, value: impl Into<Define>) -> Self {
        let value = value.into();
        let word = match value {
            Define::Name(name) => name.as_ptr() as u64,
            Define::Int(value) => value as u64,
        };
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.defines[self.count] = (name, value);
        self.count += 1;
        self
    }

    fn defines(&self) -> &[(&'static str, Define)] {
        &self.defines[..self.count]
    }

    /// `map F=f_exp SRC=f32`, for logs, profiles and errors.
    pub(super) fn label(&self) -> String {
        let mut label = self.source.name.to_string();
        for (name, value) in self.defines() {
            let _ = match value {
                Define::Name(text) => write!(label, " {name}={text}"),
                Define::Int(number) => write!(label, " {name}={number}"),
            };
        }
        label
    }

    pub(super) fn name(&self) -> &'static str {
        self.source.name
    }

    /// The complete source.
    pub(super) fn text(&self) -> String {
        let mut text = PRELUDE.concat();
        for (name, value) in self.defines() {
            let _ = match value {
                Define::Name(value) => writeln!(text, "#define {name} {value}"),
                Define::Int(value) => writeln!(text, "#define {name} {value}"),
            };
        }
        for part in self.source.text {
            text.push_str(part);
        }
        text
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && std::ptr::eq(self.source, other.source)
            && self.defines() == other.defines()
    }
}

impl Eq for Kernel {}

impl Hash for Kernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A hasher for keys with a precomputed hash.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a kernel hashes as one u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Map = HashMap<Kernel, Arc<Loaded>, BuildHasherDefault<Ready>>;

/// A kernel loaded on a card.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) function: CudaFunction,
    /// Maximum dynamic shared memory that it was granted so far.
    shared: Mutex<u32>,
}

/// Default shared memory per block.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

impl Loaded {
    /// Grants a block `bytes` of dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= SHARED_BY_DEFAULT {
            return Ok(());
        }
        let mut allowed = self.shared.lock();
        if *allowed < bytes {
            let attribute =
                driver::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.function.set_attribute(attribute, bytes as i32).w()?;
            *allowed = bytes;
        }
        Ok(())
    }
}

/// The kernels loaded on a card.
pub(super) struct Kernels {
    context: Arc<CudaContext>,
    arch: String,
    disk: Option<CubinCache>,
    loaded: RwLock<Map>,
}

impl Kernels {
    pub(super) fn new(context: Arc<CudaContext>, capability: (i32, i32)) -> Result<Self> {
        let arch = arch(capability);
        let disk = CubinCache::open(&arch);
        Ok(Self {
            context,
            arch,
            disk,
            loaded: RwLock::default(),
        })
    }

    /// The number of loaded kernels.
    pub(super) fn count(&self) -> usize {
        self.loaded.read().len()
    }

    /// The architecture that kernels are compiled for, in NVRTC's notation.
    pub(super) fn arch(&self) -> &str {
        &self.arch
    }

    /// The kernel, compiled on the first use.
    pub(super) fn get(&self, kernel: &Kernel) -> Result<Arc<Loaded>> {
        if let Some(loaded) = self.loaded.read().get(kernel) {
            return Ok(loaded.clone());
        }
        let text = kernel.text();
        let name = kernel.name();
        let cubin = match self.disk.as_ref().and_then(|disk| disk.read(&text)) {
            Some(cubin) => cubin,
            None => {
                let cubin = compile(&text, &format!("{name}.cu"), &self.arch, &[])
                    .map_err(|log| self.source_error(kernel, log))?;
                if let Some(disk) = &self.disk {
                    disk.write(&text, &cubin);
                }
                cubin
            }
        };
        let module = self.context.load_module(Ptx::from_binary(cubin)).w()?;
        let function = module.load_function(&format!("{name}_kernel")).w()?;
        let loaded = Arc::new(Loaded {
            function,
            shared: Mutex::new(SHARED_BY_DEFAULT),
        });
        let mut all = self.loaded.write();
        Ok(all.entry(*kernel).or_insert(loaded).clone())
    }

    fn source_error(&self, kernel: &Kernel, log: String) -> CudaError {
        if let Some(path) = std::env::var_os("CANDLE_CUDA_DUMP") {
            // If writing fails there is no dump; the error below has the important part.
            let _ = std::fs::write(path, kernel.text());
        }
        CudaError::KernelSource {
            kernel: kernel.label(),
            arch: self.arch.clone(),
            log,
        }
    }
}

/// NVRTC's name for a card of this compute capability. From 9.0 on with the instructions specific to that generation (`a`), which matrix
/// products need; the machine code runs on no other card anyway.
fn arch((major, minor): (i32, i32)) -> String {
    let special = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{special}")
}

/// Compiles a program to machine code, or returns NVRTC's log as an error.
pub(super) fn compile(
    text: &str,
    name: &str,
    arch: &str,
    options: &[String],
) -> std::result::Result<Vec<u8>, String> {
    let text = CString::new(text).map_err(|_| "the text has a zero byte".to_string())?;
    let name = CString::new(name).unwrap_or_default();
    let failed = |error: nvrtc::NvrtcError| format!("NVRTC reports {error}");
    let program = Program(nvrtc::create_program(&text, Some(&name)).map_err(failed)?);
    let mut all = vec![
        format!("--gpu-architecture={arch}"),
        "--device-as-default-execution-space".into(),
    ];
    let names_language = |option: &String| option.contains("-std=");
    if !options.iter().any(names_language) {
        all.push("--std=c++17".into());
    }
    all.extend_from_slice(options);
    // SAFETY: the program was just created, and lives until it is dropped below.
    unsafe {
        if let Err(error) = nvrtc::compile_program(program.0, &all) {
            let log = nvrtc::get_program_log(program.0).unwrap_or_default();
            let log: Vec<u8> = log
                .iter()
                .map(|c| *c as u8)
                .take_while(|c| *c != 0)
                .collect();
            return Err(format!("{error}: {}", String::from_utf8_lossy(&log).trim()));
        }
        let mut size = 0;
        nvrtc_sys::nvrtcGetCUBINSize(program.0, &mut size)
            .result()
            .map_err(failed)?;
        let mut cubin = vec![0u8; size];
        nvrtc_sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast::<c_char>())
            .result()
            .map_err(failed)?;
        Ok(cubin)
    }
}

struct Program(nvrtc_sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program`, and destroyed once. A failure leaks some host memory.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

/// NVRTC's version.
pub(super) fn nvrtc_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are to two numbers. A failure leaves zeros.
    let _ = unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) };
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::{arch, Kernel};

    #[test]
    fn kernels_are_equal_by_source_and_definitions() {
        let one = source!("functions", => "map");
        let kernel = || Kernel::new(one).define("SRC", "f32").define("RANK", 2);
        assert_eq!(kernel(), kernel());
        assert_ne!(kernel(), kernel().define("RANK", 3));
        assert_ne!(
            kernel(),
            Kernel::new(one).define("SRC", "f32").define("RANK", 3)
        );
        assert_eq!(kernel().label(), "map SRC=f32 RANK=2");
        assert!(kernel().text().contains("#define RANK 2\n"));
    }

    #[test]
    fn architectures_are_named_as_nvrtc_names_them() {
        assert_eq!(arch((7, 5)), "sm_75");
        assert_eq!(arch((8, 9)), "sm_89");
        assert_eq!(arch((9, 0)), "sm_90a");
        assert_eq!(arch((12, 0)), "sm_120a");
    }
}
