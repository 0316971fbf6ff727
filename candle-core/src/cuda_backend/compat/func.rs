//! Kernels of other crates: CUDA C++ compiled by NVRTC for the card, or PTX.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaModule, CudaStream, LaunchArgs};
use cudarc::nvrtc::Ptx;
use parking_lot::Mutex;

use super::super::device::CudaDevice;
use super::super::error::{CudaError, During};
use super::super::nvrtc::compile;
use super::kernels;
use crate::Result;

/// A kernel on a device, and the stream in which it is launched.
pub struct CudaFunc {
    function: CudaFunction,
    stream: Arc<CudaStream>,
}

impl std::ops::Deref for CudaFunc {
    type Target = CudaFunction;

    fn deref(&self) -> &CudaFunction {
        &self.function
    }
}

impl CudaFunc {
    /// The function without its stream.
    pub fn into_cuda_function(self) -> CudaFunction {
        self.function
    }

    /// Starts a launch in the device's stream: pass the parameters in the kernel's order, then launch.
    pub fn builder(&self) -> LaunchArgs<'_> {
        self.stream.launch_builder(&self.function)
    }
}

/// A module compiled by [`CudaDevice::compile`]. Clones are handles of the same module.
#[derive(Clone)]
pub struct CompiledModule {
    name: Arc<str>,
    module: Arc<CudaModule>,
    stream: Arc<CudaStream>,
}

impl CompiledModule {
    /// A kernel by its name, which is its name in the source if that declares it `extern "C"`.
    ///
    /// # Errors
    /// If the module has no kernel of this name.
    pub fn func(&self, name: &str) -> Result<CudaFunc> {
        function(&self.module, name, &self.name, &self.stream)
    }

    /// The module, for cudarc's own functions.
    pub fn cuda_module(&self) -> &Arc<CudaModule> {
        &self.module
    }
}

/// The modules that programs have loaded on a device.
#[derive(Default)]
struct Modules {
    /// By the program's name for the module.
    ptx: Mutex<HashMap<String, Arc<CudaModule>>>,
    compiled: Mutex<HashMap<Program, CompiledModule>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Program {
    name: String,
    text: String,
    options: Vec<String>,
}

fn function(
    module: &Arc<CudaModule>,
    name: &str,
    module_name: &str,
    stream: &Arc<CudaStream>,
) -> Result<CudaFunc> {
    let what = || format!("looking for kernel {name:?} in module {module_name:?}");
    no_zero_byte(name, "a kernel's name")?;
    Ok(CudaFunc {
        function: module.load_function(name).during(what)?,
        stream: stream.clone(),
    })
}

/// An error for a zero byte: cudarc panics if a string for the driver contains one.
fn no_zero_byte(text: &str, what: &str) -> Result<()> {
    if text.contains('\0') {
        crate::bail!("{what} has a zero byte")
    }
    Ok(())
}

impl CudaDevice {
    /// A kernel from PTX. The module is loaded on the first use of its name; later calls with this name reuse it, whatever their `ptx`. For
    /// CUDA C++ see [`CudaDevice::compile`].
    ///
    /// # Errors
    /// [`CudaError::Load`] if the driver rejects the PTX: it is damaged, or for a newer driver or another card. [`CudaError::During`] if
    /// the module has no kernel `fn_name`.
    pub fn get_or_load_custom_func(
        &self,
        fn_name: &str,
        module_name: &str,
        ptx: &str,
    ) -> Result<CudaFunc> {
        let modules = self.kept::<Modules>();
        let mut loaded = modules.ptx.lock();
        let module = match loaded.get(module_name) {
            Some(module) => module.clone(),
            None => {
                no_zero_byte(ptx, "PTX")?;
                let module = self.load(Ptx::from_src(ptx), module_name)?;
                loaded.insert(module_name.to_string(), module.clone());
                module
            }
        };
        function(&module, fn_name, module_name, self.stream())
    }

    /// Upstream's access to one of its kernels, which this backend does not have: it compiles a kernel for each use, from other sources,
    /// with other names and parameters.
    ///
    /// # Errors
    /// Always [`CudaError::MissingKernel`], with the replacement: the tensor's ops for what upstream's kernel computes, and
    /// [`CudaDevice::compile`] or [`CudaDevice::get_or_load_custom_func`] for other kernels.
    pub fn get_or_load_func(&self, fn_name: &str, mdl: &kernels::Module) -> Result<CudaFunc> {
        Err(CudaError::MissingKernel {
            module_name: format!("{fn_name} ({:?})", mdl.id()),
        }
        .into())
    }

    /// Compiles CUDA C++ for this card, as a replacement for nvcc at build time. No toolkit is needed.
    ///
    /// `name` appears in error messages. `options` are NVRTC's, such as `-DTILE=16` and `--use_fast_math`; the architecture is this card's,
    /// and the language is C++17 unless an option sets another. NVRTC has no headers: a source that includes `cuda_fp16.h` needs an `-I`
    /// with a toolkit's `include`. The same name, source and options are compiled once per device.
    ///
    /// # Errors
    /// [`CudaError::KernelSource`] with the compiler's messages.
    ///
    /// ```no_run
    /// use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
    /// use candle_core::cuda_backend::WrapErr;
    /// # fn main() -> candle_core::Result<()> {
    /// let device = candle_core::Device::new_cuda(0)?;
    /// let cuda = device.as_cuda_device()?;
    /// let text = r#"
    ///     extern "C" __global__ void scale(float* x, float by, unsigned n) {
    ///         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    ///         if (i < n) x[i] *= by;
    ///     }
    /// "#;
    /// let scale = cuda.compile("scale.cu", text, &[])?.func("scale")?;
    ///
    /// let mut x = cuda.clone_htod(&[1f32, 2., 3.])?;
    /// let (by, n) = (10f32, 3u32);
    /// let mut launch = scale.builder();
    /// launch.arg(&mut x).arg(&by).arg(&n);
    /// // The kernel writes n elements of x, which has them.
    /// unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.w()?;
    /// assert_eq!(cuda.clone_dtoh(&x)?, [10., 20., 30.]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn compile(&self, name: &str, text: &str, options: &[&str]) -> Result<CompiledModule> {
        let program = Program {
            name: name.to_string(),
            text: text.to_string(),
            options: options.iter().map(|option| option.to_string()).collect(),
        };
        let modules = self.kept::<Modules>();
        let mut compiled = modules.compiled.lock();
        if let Some(module) = compiled.get(&program) {
            return Ok(module.clone());
        }
        for option in options {
            no_zero_byte(option, "an option for NVRTC")?;
        }
        let cubin = compile(text, name, self.arch(), &program.options).map_err(|log| {
            CudaError::KernelSource {
                kernel: name.to_string(),
                arch: self.arch().to_string(),
                log,
            }
        })?;
        let module = CompiledModule {
            name: name.into(),
            module: self.load(Ptx::from_binary(cubin), name)?,
            stream: self.cuda_stream(),
        };
        compiled.insert(program, module.clone());
        Ok(module)
    }

    fn load(&self, code: Ptx, name: &str) -> Result<Arc<CudaModule>> {
        let load = |cuda| CudaError::Load {
            cuda,
            module_name: name.to_string(),
        };
        Ok(self.context().load_module(code).map_err(load)?)
    }
}
