//! Kernels from other crates, for the `webgpu_fwd` of custom ops.

use super::kernel::{Caps, Kernel, Params, Shader};
use super::limits::{MAX_BUFFERS, PARAM_BYTES};
use super::ops::{self, elementwise};
use super::pipelines::ForeignText;
use super::{WebGpuDevice, WebGpuStorage};
use crate::backend::{BackendDevice, BackendStorage};
use crate::{DType, Error, Layout, Result};

/// A compute shader in WGSL, for [`WebGpuDevice::run_wgsl`].
///
/// The module's entry point is `main`. In `@group(0)`, the inputs are bindings 0, 1, … (`var<storage, read>`), the result is the next
/// binding (`var<storage, read_write>`), and the parameters are the last one, for modules that declare them (`var<uniform>`).
///
/// An f32, u32 or i32 tensor is an array of that type. Smaller dtypes are packed into `u32` words, the first element in the lowest
/// bits: two f16, bf16 or i16, four u8 or f8e4m3. An i64 is a `vec2<u32>`, low word first.
#[derive(Debug, Clone, Copy)]
pub struct WgslKernel<'a> {
    /// The op's name, for errors, logs and profiles.
    pub name: &'static str,
    /// The module's WGSL. It is compiled once per device.
    pub source: &'a str,
    /// At most 64 words of 32 bits; `f32::to_bits` converts a float.
    pub params: &'a [u32],
    /// Number of workgroups, in three dimensions of at most 65,535 each.
    pub workgroups: [u32; 3],
}

impl WebGpuDevice {
    /// Runs a kernel on `inputs`; returns a new storage of `len` elements of `dtype`.
    ///
    /// The kernel reads each input as its layout's elements in row-major order, starting at 0: an input with another layout is copied
    /// first. Elements of the result that the kernel does not write have arbitrary values. Accesses out of bounds are harmless, as in a
    /// browser. The call does not wait for the kernel.
    ///
    /// ```no_run
    /// use candle_core::backend::BackendStorage;
    /// use candle_core::webgpu_backend::WgslKernel;
    /// use candle_core::{DType, Layout, Result, Shape, WebGpuStorage};
    ///
    /// fn double(x: &WebGpuStorage, layout: &Layout) -> Result<(WebGpuStorage, Shape)> {
    ///     let len = layout.shape().elem_count();
    ///     let kernel = WgslKernel {
    ///         name: "double",
    ///         source: "
    ///             @group(0) @binding(0) var<storage, read> x: array<f32>;
    ///             @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    ///             @group(0) @binding(2) var<uniform> len: u32;
    ///
    ///             @compute @workgroup_size(64)
    ///             fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    ///                 if id.x < len { y[id.x] = 2.0 * x[id.x]; }
    ///             }",
    ///         params: &[len as u32],
    ///         workgroups: [len.div_ceil(64) as u32, 1, 1],
    ///     };
    ///     let y = x.device().run_wgsl(&kernel, &[(x, layout)], len, DType::F32)?;
    ///     Ok((y, layout.shape().clone()))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::WebGpu`], with the kernel's name: the module does not compile or has other bindings, there are more than 7 inputs or 64
    /// parameters or more workgroups than the adapter supports, an input is on another device or exceeds a binding.
    /// [`Error::UnsupportedOnDevice`] if the device does not support `dtype`.
    pub fn run_wgsl(
        &self,
        kernel: &WgslKernel<'_>,
        inputs: &[(&WebGpuStorage, &Layout)],
        len: usize,
        dtype: DType,
    ) -> Result<WebGpuStorage> {
        let copies = self.wgsl_inputs(kernel, inputs, 1)?;
        let dst = self.alloc(len, dtype, kernel.name)?;
        if len > 0 {
            self.launch_wgsl(kernel, &copies, &[&dst])?;
        }
        Ok(dst)
    }

    /// Runs a kernel that writes to existing storages, such as those of [`WebGpuDevice::zeros_impl`](BackendDevice::zeros_impl).
    ///
    /// Like [`WebGpuDevice::run_wgsl`], except that the bindings after the inputs are `outputs`, in order, each with all its elements:
    /// `var<storage, read_write>`, with their contents at the call. Elements that the kernel does not write are unchanged.
    ///
    /// # Errors
    /// As [`WebGpuDevice::run_wgsl`], counting outputs like inputs: at most 8 of both together, and at least one output. An output must not
    /// share memory with an input or with another output.
    pub fn run_wgsl_in_place(
        &self,
        kernel: &WgslKernel<'_>,
        inputs: &[(&WebGpuStorage, &Layout)],
        outputs: &mut [&mut WebGpuStorage],
    ) -> Result<()> {
        let refuse = |what: String| refuse(kernel.name, what);
        if outputs.is_empty() {
            return refuse("a kernel needs at least one output".into());
        }
        let copies = self.wgsl_inputs(kernel, inputs, outputs.len())?;
        let outputs: Vec<&WebGpuStorage> = outputs.iter().map(|output| &**output).collect();
        for (i, output) in outputs.iter().enumerate() {
            if !output.device().same_device(self) {
                return refuse(format!("output {i} is on a different device"));
            }
            let shares = |other: &WebGpuStorage| output.memory().shares_with(other.memory());
            if copies.iter().any(shares) || outputs[..i].iter().any(|other| shares(other)) {
                return refuse(format!(
                    "output {i} shares memory with another operand, which WebGPU forbids: pass a copy of one"
                ));
            }
        }
        self.launch_wgsl(kernel, &copies, &outputs)
    }

    /// The inputs in the form that the kernel reads, after all other checks.
    fn wgsl_inputs(
        &self,
        kernel: &WgslKernel<'_>,
        inputs: &[(&WebGpuStorage, &Layout)],
        outputs: usize,
    ) -> Result<Vec<WebGpuStorage>> {
        let refuse = |what: String| refuse(kernel.name, what);
        let most = MAX_BUFFERS.saturating_sub(outputs);
        if inputs.len() > most {
            return refuse(format!(
                "a kernel with {} inputs; the maximum is {most}: merge some of them",
                inputs.len()
            ));
        }
        if outputs > MAX_BUFFERS {
            return refuse(format!(
                "a kernel with {outputs} outputs; the maximum is {MAX_BUFFERS}: merge some of them"
            ));
        }
        if kernel.params.len() > WORDS {
            return refuse(format!(
                "a kernel with {} parameters; the maximum is {WORDS}: pass the others as a tensor",
                kernel.params.len()
            ));
        }
        let most = self.max_workgroups();
        if kernel.workgroups.iter().any(|count| *count > most) {
            return refuse(format!(
                "{:?} workgroups, but this adapter's limit is {most} per dimension: spread them over the dimensions, or let an \
                 invocation compute several elements",
                kernel.workgroups
            ));
        }
        let mut copies = Vec::with_capacity(inputs.len());
        for (i, (storage, layout)) in inputs.iter().enumerate() {
            if !storage.device().same_device(self) {
                return refuse(format!("input {i} is on a different device"));
            }
            copies.push(row_major(storage, layout)?);
        }
        Ok(copies)
    }

    fn launch_wgsl(
        &self,
        kernel: &WgslKernel<'_>,
        inputs: &[WebGpuStorage],
        outputs: &[&WebGpuStorage],
    ) -> Result<()> {
        let module = Module {
            name: kernel.name,
            source: self.kernels().foreign(kernel.name, kernel.source),
            inputs: inputs.len(),
            outputs: outputs.len(),
        };
        let storages = inputs.iter().chain(outputs.iter().copied());
        let bindings: Vec<_> = storages.map(ops::bind).collect();
        let mut params = Words([0; WORDS]);
        params.0[..kernel.params.len()].copy_from_slice(kernel.params);
        self.run(&module, &bindings, &params, kernel.workgroups)
    }
}

/// A module from another crate, with the number of its bindings.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Module {
    name: &'static str,
    source: ForeignText,
    inputs: usize,
    outputs: usize,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Kernel for Module {
    type Params = Words;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::foreign(self.source.text(), self.inputs, self.outputs)
    }
}

/// Maximum number of parameters of a kernel.
const WORDS: usize = PARAM_BYTES / size_of::<u32>();

/// Parameters that the module declares itself.
#[repr(transparent)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Words([u32; WORDS]);

impl Params for Words {
    const WGSL: &'static str = "";
}

fn refuse<T>(name: &str, what: String) -> Result<T> {
    Err(Error::WebGpu(format!("{name}: {what}")).bt())
}

/// A storage whose elements are those of `layout` in row-major order, starting at 0.
fn row_major(storage: &WebGpuStorage, layout: &Layout) -> Result<WebGpuStorage> {
    if let Some((start, end)) = layout.contiguous_offsets() {
        if start == 0 {
            return Ok(storage.share());
        }
        if let Some(window) = storage.aligned_window(start, end - start) {
            return Ok(window);
        }
    }
    elementwise::copy(storage, layout)
}
