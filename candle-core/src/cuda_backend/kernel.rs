//! Kernels: CUDA C++ generated for dtypes and layouts, compiled by NVRTC for the card, and cached.
//!
//! A [`Kernel`] is a value: the source, and the names that are defined before it. Its complete source is `kernels/prelude.cu`, these
//! definitions, and the files of the source, each readable from top to bottom. Its machine code is a cubin for the exact card, never PTX: a
//! driver rejects the PTX of a newer toolkit but accepts its machine code.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use cudarc::driver::{sys as driver, CudaContext, CudaFunction};
use cudarc::nvrtc::Ptx;
use parking_lot::{Mutex, RwLock};

use super::cubin_cache::CubinCache;
use super::error::{CudaError, WrapErr};
use super::nvrtc::{arch, compile};
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

#[cfg(test)]
mod tests {
    use super::Kernel;

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
}
