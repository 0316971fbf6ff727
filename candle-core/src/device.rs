//! The `Device` enum, device selection, and the creation of storages.

use crate::backend::BackendDevice;
use crate::dispatch::Backend;
use crate::{CpuStorage, CudaDevice, DType, MetalDevice, Result, Shape, Storage, WithDType};

/// Kind and ordinal of a device, for comparisons and for error messages.
#[derive(Debug, Copy, Clone, PartialEq, Eq, Hash)]
pub enum DeviceLocation {
    /// The host.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// Its ordinal.
        gpu_id: usize,
    },
    /// A Metal device.
    Metal {
        /// Its ordinal.
        gpu_id: usize,
    },
    /// A GPU through WebGPU.
    #[cfg(feature = "webgpu")]
    WebGpu {
        /// The adapter's ordinal.
        gpu_id: usize,
    },
}

/// A device that holds tensors and runs their ops.
#[derive(Debug, Clone)]
pub enum Device {
    /// The host.
    Cpu,
    /// A CUDA device.
    Cuda(CudaDevice),
    /// A Metal device.
    Metal(MetalDevice),
    /// A GPU through WebGPU: Vulkan, Metal, DX12, or the browser's own.
    #[cfg(feature = "webgpu")]
    WebGpu(crate::WebGpuDevice),
}

/// A backend and its first device, or the reason for having none; see [`Device::probe`].
#[derive(Debug)]
pub struct DeviceProbe {
    /// `cuda`, `metal`, `webgpu` or `cpu`.
    pub name: &'static str,
    /// The device, or the error from opening it.
    pub found: Result<Device>,
}

impl Device {
    /// Opens the CUDA device with this ordinal, in the driver's numbering (`CUDA_VISIBLE_DEVICES` hides devices). Handles with the same
    /// ordinal refer to one device: they share its stream, its memory and its compiled kernels.
    ///
    /// # Errors
    /// [`crate::Error::NotCompiledWithCudaSupport`] without the feature `cuda`; else [`crate::Error::Cuda`] with the reason: the driver or
    /// NVRTC is not installed, no card has this ordinal, or the card is older than compute capability 7.5.
    pub fn new_cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::Cuda(CudaDevice::new(ordinal)?))
    }

    /// Like [`Device::new_cuda`], but each call opens another device with a separate stream. Ops do not mix tensors of two devices, even on
    /// one card: [`Tensor::to_device`](crate::Tensor::to_device) copies.
    pub fn new_cuda_with_stream(ordinal: usize) -> Result<Self> {
        Ok(Self::Cuda(CudaDevice::new_with_stream(ordinal)?))
    }

    /// Opens the Metal adapter with this ordinal, on Apple's systems with the feature `metal`. It is used through the WebGPU backend;
    /// see `metal_backend`.
    ///
    /// # Errors
    /// [`crate::Error::NotCompiledWithMetalSupport`] on other systems and without the feature; else [`crate::Error::Metal`] with the
    /// requested adapter and the adapters found.
    pub fn new_metal(ordinal: usize) -> Result<Self> {
        Ok(Self::Metal(MetalDevice::new(ordinal)?))
    }

    /// Opens the WebGPU adapter with this ordinal, in the order of `webgpu_backend::adapters()`: real GPUs first.
    ///
    /// # Errors
    /// [`crate::Error::NotCompiledWithWebGpuSupport`] without the feature `webgpu`; else [`crate::Error::WebGpu`] with the requested
    /// adapter and the adapters found. In a browser a thread must not block: use `Device::new_webgpu_async`.
    pub fn new_webgpu(ordinal: usize) -> Result<Self> {
        #[cfg(feature = "webgpu")]
        return Ok(Self::WebGpu(crate::WebGpuDevice::new(ordinal)?));
        #[cfg(not(feature = "webgpu"))]
        {
            let _ = ordinal;
            Err(crate::Error::NotCompiledWithWebGpuSupport)
        }
    }

    /// Like [`Device::new_webgpu`], without blocking: the form for browsers.
    #[cfg(feature = "webgpu")]
    pub async fn new_webgpu_async(ordinal: usize) -> Result<Self> {
        Ok(Self::WebGpu(crate::WebGpuDevice::new_async(ordinal).await?))
    }

    /// Every backend in order of preference, CUDA, Metal, WebGPU, CPU, with its first device or the reason for having none.
    ///
    /// A software WebGPU adapter (device type `Cpu`) counts as present; [`Device::best_available`] skips it.
    pub fn probe() -> Vec<DeviceProbe> {
        vec![
            DeviceProbe {
                name: "cuda",
                found: Self::new_cuda(0),
            },
            DeviceProbe {
                name: "metal",
                found: Self::new_metal(0),
            },
            DeviceProbe {
                name: "webgpu",
                found: Self::new_webgpu(0),
            },
            DeviceProbe {
                name: "cpu",
                found: Ok(Self::Cpu),
            },
        ]
    }

    /// The fastest device present: CUDA, then Metal, then WebGPU, then the CPU. A software WebGPU adapter is slower than the CPU backend
    /// and is skipped. [`Device::probe`] returns the reasons why backends are unavailable.
    pub fn best_available() -> Result<Self> {
        Self::best_of(&Self::probe())
    }

    /// [`Device::best_available`] among devices that are already probed.
    pub fn best_of(probes: &[DeviceProbe]) -> Result<Self> {
        let usable = |device: &&Self| !device.is_software_gpu();
        Ok(probes
            .iter()
            .filter_map(|probe| probe.found.as_ref().ok())
            .find(usable)
            .cloned()
            .unwrap_or(Self::Cpu))
    }

    /// Whether this is a software WebGPU adapter, which runs on the CPU.
    pub fn is_software_gpu(&self) -> bool {
        #[cfg(feature = "webgpu")]
        return self.as_wgpu().is_some_and(crate::WebGpuDevice::is_software);
        #[cfg(not(feature = "webgpu"))]
        false
    }

    /// Free bytes of a GPU's memory: those that the driver reports, or those that remain of a budget
    /// ([`WebGpuDevice::set_memory_budget`](crate::WebGpuDevice::set_memory_budget)). `None` if unknown: on the CPU, in a browser, and
    /// without a budget on WebGPU over Metal and DX12. Not in upstream's interface.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn free_memory(&self) -> Result<Option<u64>> {
        #[cfg(feature = "webgpu")]
        if let Some(device) = self.as_wgpu() {
            return Ok(device.free_memory());
        }
        #[cfg(feature = "cuda")]
        if let Self::Cuda(device) = self {
            return device.free_memory().map(Some);
        }
        Ok(None)
    }

    /// The CUDA device with this ordinal if the first can be opened, else the CPU.
    ///
    /// # Errors
    /// As [`Device::new_cuda`], if there are CUDA devices but none with this ordinal.
    pub fn cuda_if_available(ordinal: usize) -> Result<Self> {
        if crate::utils::cuda_is_available() {
            Self::new_cuda(ordinal)
        } else {
            Ok(Self::Cpu)
        }
    }

    /// The first Metal device if there is one, else the CPU.
    pub fn metal_if_available(ordinal: usize) -> Result<Self> {
        if crate::utils::metal_is_available() {
            Self::new_metal(ordinal)
        } else {
            Ok(Self::Cpu)
        }
    }

    /// The CUDA device, or an error that names the actual device.
    pub fn as_cuda_device(&self) -> Result<&CudaDevice> {
        match self {
            Self::Cuda(device) => Ok(device),
            other => crate::bail!("expected a cuda device, got {:?}", other.location()),
        }
    }

    /// The Metal device, or an error that names the actual device.
    pub fn as_metal_device(&self) -> Result<&MetalDevice> {
        match self {
            Self::Metal(device) => Ok(device),
            other => crate::bail!("expected a metal device, got {:?}", other.location()),
        }
    }

    /// The WebGPU device, or an error that names the actual device.
    #[cfg(feature = "webgpu")]
    pub fn as_webgpu_device(&self) -> Result<&crate::WebGpuDevice> {
        match self {
            Self::WebGpu(device) => Ok(device),
            other => crate::bail!("expected a webgpu device, got {:?}", other.location()),
        }
    }

    /// The device that runs kernels in WGSL: this one if it is a WebGPU device, the inner one of a Metal device. `None` for other devices.
    #[cfg(feature = "webgpu")]
    pub fn as_wgpu(&self) -> Option<&crate::WebGpuDevice> {
        match self {
            Self::WebGpu(device) => Some(device),
            #[cfg(feature = "metal")]
            Self::Metal(device) => Some(device.webgpu()),
            _ => None,
        }
    }

    /// Whether ops run as kernels in WGSL: on WebGPU devices, and on Metal devices, which use a WebGPU device.
    pub fn is_wgpu(&self) -> bool {
        #[cfg(feature = "webgpu")]
        return self.as_wgpu().is_some();
        #[cfg(not(feature = "webgpu"))]
        false
    }

    /// Kind and ordinal.
    pub fn location(&self) -> DeviceLocation {
        on_device!(self => |device| device.location())
    }

    /// Whether both are handles of the same device.
    pub fn same_device(&self, rhs: &Self) -> bool {
        match (self, rhs) {
            (Self::Cpu, Self::Cpu) => true,
            (Self::Cuda(lhs), Self::Cuda(rhs)) => lhs.same_device(rhs),
            (Self::Metal(lhs), Self::Metal(rhs)) => lhs.same_device(rhs),
            #[cfg(feature = "webgpu")]
            (Self::WebGpu(lhs), Self::WebGpu(rhs)) => lhs.same_device(rhs),
            _ => false,
        }
    }

    /// Whether this is the host.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu)
    }

    /// Whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// Whether this is a Metal device.
    pub fn is_metal(&self) -> bool {
        matches!(self, Self::Metal(_))
    }

    /// Whether this is a WebGPU device; false in a build without the feature `webgpu`.
    pub fn is_webgpu(&self) -> bool {
        #[cfg(feature = "webgpu")]
        return matches!(self, Self::WebGpu(_));
        #[cfg(not(feature = "webgpu"))]
        false
    }

    /// Whether bf16 is fast on this device: on GPUs, where it halves the memory traffic.
    pub fn supports_bf16(&self) -> bool {
        self.is_cuda() || self.is_metal() || self.is_webgpu()
    }

    /// bf16 if it is fast, else f32.
    pub fn bf16_default_to_f32(&self) -> DType {
        if self.supports_bf16() {
            DType::BF16
        } else {
            DType::F32
        }
    }

    /// Seeds the device's random generator: the same seed gives the same numbers.
    pub fn set_seed(&self, seed: u64) -> Result<()> {
        on_device!(self => |device| device.set_seed(seed))
    }

    /// The most recently set seed.
    pub fn get_current_seed(&self) -> Result<u64> {
        on_device!(self => |device| device.get_current_seed())
    }

    /// Waits until all work given to the device is done.
    pub fn synchronize(&self) -> Result<()> {
        on_device!(self => |device| device.synchronize())
    }

    /// Like [`Device::synchronize`], without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// Errors on the device since the last check.
    pub async fn synchronize_async(&self) -> Result<()> {
        // The read is queued after all earlier work.
        let last = self.zeros(&Shape::from(1), DType::U32)?;
        last.begin_read()?.finish().await?;
        Ok(())
    }

    /// Runs `f` with this device's context current in the thread, for programs that call the CUDA driver themselves. Other devices have
    /// no context, and the ops of tensors need none.
    pub fn with_context<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        #[cfg(feature = "cuda")]
        if let Self::Cuda(device) = self {
            device.bind_to_thread();
        }
        f()
    }

    pub(crate) fn rand_uniform_f64(
        &self,
        lo: f64,
        up: f64,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Storage> {
        on_device!(self => |device| device.rand_uniform(shape, dtype, lo, up).map(Backend::wrap))
    }

    pub(crate) fn rand_normal_f64(
        &self,
        mean: f64,
        std: f64,
        shape: &Shape,
        dtype: DType,
    ) -> Result<Storage> {
        on_device!(self => |device| device.rand_normal(shape, dtype, mean, std).map(Backend::wrap))
    }

    pub(crate) fn zeros(&self, shape: &Shape, dtype: DType) -> Result<Storage> {
        on_device!(self => |device| device.zeros_impl(shape, dtype).map(Backend::wrap))
    }

    /// # Safety
    /// Every element must be written before it is read.
    pub(crate) unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<Storage> {
        on_device!(self => |device| unsafe { device.alloc_uninit(shape, dtype) }.map(Backend::wrap))
    }

    pub(crate) fn storage_from_slice<D: WithDType>(&self, data: &[D]) -> Result<Storage> {
        on_device!(self => |device| device.storage_from_slice(data).map(Backend::wrap))
    }

    pub(crate) fn storage_from_cpu(&self, storage: &CpuStorage) -> Result<Storage> {
        on_device!(self => |device| device.storage_from_cpu_storage(storage).map(Backend::wrap))
    }

    pub(crate) fn storage_from_cpu_owned(&self, storage: CpuStorage) -> Result<Storage> {
        on_device!(self => |device| device.storage_from_cpu_storage_owned(storage).map(Backend::wrap))
    }

    pub(crate) fn storage<A: NdArray>(&self, array: A) -> Result<Storage> {
        self.storage_from_cpu_owned(array.to_cpu_storage())
    }

    pub(crate) fn storage_owned<S: WithDType>(&self, data: Vec<S>) -> Result<Storage> {
        self.storage_from_cpu_owned(S::to_cpu_storage_owned(data))
    }
}

/// Nested arrays and vectors of numbers: the input of [`Tensor::new`](crate::Tensor::new).
pub trait NdArray {
    /// The array's shape; an error if nested vectors differ in length.
    fn shape(&self) -> Result<Shape>;

    /// The elements in row-major order.
    fn to_cpu_storage(&self) -> CpuStorage;
}

impl<S: WithDType> NdArray for S {
    fn shape(&self) -> Result<Shape> {
        Ok(Shape::from(()))
    }

    fn to_cpu_storage(&self) -> CpuStorage {
        S::to_cpu_storage(&[*self])
    }
}

macro_rules! array_nd {
    ($([$($n:ident),+] $array:ty, [$($dim:ident),+], $flat:expr;)*) => {$(
        impl<S: WithDType, $(const $n: usize),+> NdArray for $array {
            fn shape(&self) -> Result<Shape> {
                Ok(Shape::from(&[$($dim),+][..]))
            }

            fn to_cpu_storage(&self) -> CpuStorage {
                let flat: fn(&$array) -> Vec<S> = $flat;
                S::to_cpu_storage_owned(flat(self))
            }
        }
    )*};
}

array_nd! {
    [N] &[S; N], [N], |a| a.to_vec();
    [N, M] &[[S; N]; M], [M, N], |a| a.as_flattened().to_vec();
    [N1, N2, N3] &[[[S; N3]; N2]; N1], [N1, N2, N3], |a| a.as_flattened().as_flattened().to_vec();
    [N1, N2, N3, N4] &[[[[S; N4]; N3]; N2]; N1], [N1, N2, N3, N4], |a| {
        a.as_flattened().as_flattened().as_flattened().to_vec()
    };
}

impl<S: WithDType> NdArray for &[S] {
    fn shape(&self) -> Result<Shape> {
        Ok(Shape::from(self.len()))
    }

    fn to_cpu_storage(&self) -> CpuStorage {
        S::to_cpu_storage(self)
    }
}

impl<S: WithDType> NdArray for Vec<S> {
    fn shape(&self) -> Result<Shape> {
        Ok(Shape::from(self.len()))
    }

    fn to_cpu_storage(&self) -> CpuStorage {
        S::to_cpu_storage(self)
    }
}

/// The shape of a vector whose items must all have one shape.
fn nested_shape<T>(items: &[T], inner: impl Fn(&T) -> Result<Shape>) -> Result<Shape> {
    let Some(first) = items.first() else {
        crate::bail!("an empty nested vector has no shape: give at least one item");
    };
    let first = inner(first)?;
    for (index, item) in items.iter().enumerate() {
        let shape = inner(item)?;
        if shape != first {
            crate::bail!(
                "item {index} has shape {shape:?}, but the items before it have {first:?}"
            );
        }
    }
    let dims: Vec<usize> = [&[items.len()], first.dims()].concat();
    Ok(Shape::from(dims))
}

impl<S: WithDType> NdArray for Vec<&[S]> {
    fn shape(&self) -> Result<Shape> {
        nested_shape(self, |item| Ok(Shape::from(item.len())))
    }

    fn to_cpu_storage(&self) -> CpuStorage {
        S::to_cpu_storage_owned(self.concat())
    }
}

macro_rules! vec_nd {
    ($($array:ty, $flat:expr;)*) => {$(
        impl<S: WithDType> NdArray for $array {
            fn shape(&self) -> Result<Shape> {
                nested_shape(self, NdArray::shape)
            }

            fn to_cpu_storage(&self) -> CpuStorage {
                let flat: fn(&$array) -> Vec<S> = $flat;
                S::to_cpu_storage_owned(flat(self))
            }
        }
    )*};
}

vec_nd! {
    Vec<Vec<S>>, |a| a.concat();
    Vec<Vec<Vec<S>>>, |a| a.iter().flatten().flatten().copied().collect();
    Vec<Vec<Vec<Vec<S>>>>, |a| a.iter().flatten().flatten().flatten().copied().collect();
}
