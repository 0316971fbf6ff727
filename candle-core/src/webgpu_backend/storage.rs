//! The storage: memory with a dtype. Every op is one call into `ops`.

use super::device::WebGpuDevice;
use super::memory::Memory;
use super::ops;
use super::queue::Binding;
use super::readback::PendingRead;
use crate::backend::BackendStorage;
use crate::conv::{
    Geometry, ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D,
};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::watch::{Switches, Watched};
use crate::{CpuStorage, DType, Error, Layout, Result, WithDType};

/// Elements of one dtype on the GPU.
#[derive(Debug)]
pub struct WebGpuStorage {
    memory: Memory,
    len: usize,
    dtype: DType,
    device: WebGpuDevice,
}

impl WebGpuStorage {
    pub(super) fn new(memory: Memory, len: usize, dtype: DType, device: WebGpuDevice) -> Self {
        Self {
            memory,
            len,
            dtype,
            device,
        }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> u64 {
        self.len as u64 * self.dtype.size_in_bytes() as u64
    }

    /// Whether one binding reaches all of it.
    pub(super) fn fits_binding(&self) -> bool {
        !matches!(self.memory, Memory::Chunks { .. }) && self.bytes() <= self.device.max_binding()
    }

    /// All of it as a kernel's binding.
    pub(super) fn binding(&self) -> Binding<'_> {
        match &self.memory {
            _ if !self.fits_binding() => Binding::TooLarge(self.bytes()),
            Memory::One(buffer) => Binding::Buffer(buffer),
            Memory::Window { buffer, offset } => Binding::Window(buffer, *offset),
            Memory::Chunks { .. } => Binding::TooLarge(self.bytes()),
        }
    }

    /// Another handle of the same memory.
    pub(super) fn share(&self) -> Self {
        Self::new(
            self.memory.clone(),
            self.len,
            self.dtype,
            self.device.clone(),
        )
    }

    /// Elements `first..first + len` as a storage that fits a binding, and the first one's place in it. `None` if they are too many or
    /// span two buffers. The same memory: what is written to one is seen in the other.
    pub(super) fn window(&self, first: usize, len: usize) -> Option<(Self, usize)> {
        if self.fits_binding() {
            return Some((self.share(), first));
        }
        let size = self.dtype.size_in_bytes();
        let (begin, end) = (first * size, (first + len) * size);
        let limit = self.device.max_binding();
        let (memory, start) = self.memory.window(begin as u64, end as u64, limit)?;
        let shift = (begin - start as usize) / size;
        let window = Self::new(memory, shift + len, self.dtype, self.device.clone());
        Some((window, shift))
    }

    /// As [`WebGpuStorage::window`], starting at `first` itself; `None` as well if no binding can start there.
    pub(super) fn aligned_window(&self, first: usize, len: usize) -> Option<Self> {
        let size = self.dtype.size_in_bytes();
        let (begin, end) = ((first * size) as u64, ((first + len) * size) as u64);
        let (memory, start) = self.memory.window(begin, end, self.device.max_binding())?;
        let window = || Self::new(memory, len, self.dtype, self.device.clone());
        (start == begin).then(window)
    }

    /// Starts copying the elements to the host, without waiting.
    pub fn begin_read(&self) -> Result<PendingRead> {
        let raw = match super::warm_up::is_warming(self.device.id()) {
            true => None,
            false => Some(self.device.queue().begin_read(&self.memory, self.bytes())?),
        };
        Ok(PendingRead {
            raw,
            dtype: self.dtype,
            len: self.len,
        })
    }
}

/// The host's storage made of a storage's bytes, which `feed` gives in order and in pieces of whole elements.
pub(super) fn cpu_storage(
    len: usize,
    dtype: DType,
    feed: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>,
) -> Result<CpuStorage> {
    fn read<T: WithDType + bytemuck::Pod>(
        len: usize,
        feed: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<CpuStorage> {
        let mut data: Vec<T> = Vec::with_capacity(len);
        feed(&mut |bytes| match bytemuck::try_cast_slice(bytes) {
            Ok(elements) => data.extend_from_slice(elements),
            Err(_) => data.extend(bytemuck::pod_collect_to_vec::<u8, T>(bytes)),
        })?;
        Ok(T::to_cpu_storage_owned(data))
    }
    match dtype {
        DType::U8 => read::<u8>(len, feed),
        DType::U32 => read::<u32>(len, feed),
        DType::I16 => read::<i16>(len, feed),
        DType::I32 => read::<i32>(len, feed),
        DType::I64 => read::<i64>(len, feed),
        DType::BF16 => read::<half::bf16>(len, feed),
        DType::F16 => read::<half::f16>(len, feed),
        DType::F32 => read::<f32>(len, feed),
        DType::F64 => read::<f64>(len, feed),
        DType::F8E4M3 => {
            let mut data = Vec::with_capacity(len);
            feed(&mut |bytes| {
                data.extend(bytes.iter().copied().map(float8::F8E4M3::from_bits));
            })?;
            Ok(CpuStorage::F8E4M3(data))
        }
        other => crate::bail!("a WebGPU storage cannot hold {other:?}"),
    }
}

impl Watched for WebGpuStorage {
    const NAME: &'static str = "webgpu";

    fn switches(&self) -> Switches {
        self.device().switches()
    }

    fn device_name(&self) -> &str {
        self.device().name()
    }

    fn failure(text: String) -> Error {
        Error::WebGpu(text).bt()
    }
}

impl BackendStorage for WebGpuStorage {
    type Device = WebGpuDevice;

    fn try_clone(&self, _layout: &Layout) -> Result<Self> {
        ops::elementwise::copy(self, &Layout::contiguous(self.len))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn device(&self) -> &WebGpuDevice {
        &self.device
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        self.begin_read()?.wait()
    }

    fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self> {
        ops::elementwise::affine(self, layout, mul, add)
    }

    fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self> {
        ops::elementwise::powf(self, layout, exponent)
    }

    fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self> {
        ops::elementwise::elu(self, layout, alpha)
    }

    fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
        ops::reduce::reduce(self, op, layout, dims)
    }

    fn cmp(&self, op: CmpOp, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self> {
        ops::elementwise::cmp(self, op, rhs, lhs_l, rhs_l)
    }

    fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self> {
        ops::elementwise::to_dtype(self, layout, dtype)
    }

    fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {
        ops::elementwise::unary(self, layout, B::NAME)
    }

    fn binary_impl<B: BinaryOpT>(
        &self,
        rhs: &Self,
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        ops::elementwise::binary(self, rhs, lhs_l, rhs_l, B::NAME)
    }

    fn where_cond(
        &self,
        layout: &Layout,
        on_true: &Self,
        on_true_l: &Layout,
        on_false: &Self,
        on_false_l: &Layout,
    ) -> Result<Self> {
        ops::elementwise::where_cond(self, layout, on_true, on_true_l, on_false, on_false_l)
    }

    fn conv1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConv1D,
    ) -> Result<Self> {
        let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
        ops::conv::forward(operands, Geometry::conv1d(params)?)
    }

    fn conv_transpose1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConvTranspose1D,
    ) -> Result<Self> {
        let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
        ops::conv::transposed(operands, Geometry::conv_transpose1d(params)?)
    }

    fn conv2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConv2D,
    ) -> Result<Self> {
        let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
        ops::conv::forward(operands, Geometry::conv2d(params)?)
    }

    fn conv_transpose2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_l: &Layout,
        params: &ParamsConvTranspose2D,
    ) -> Result<Self> {
        let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
        ops::conv::transposed(operands, Geometry::conv_transpose2d(params)?)
    }

    fn avg_pool2d(
        &self,
        layout: &Layout,
        kernel: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self> {
        ops::pool::pool2d(self, layout, kernel, stride, ops::pool::Pool::Mean)
    }

    fn max_pool2d(
        &self,
        layout: &Layout,
        kernel: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self> {
        ops::pool::pool2d(self, layout, kernel, stride, ops::pool::Pool::Max)
    }

    fn upsample_nearest1d(&self, layout: &Layout, target: usize) -> Result<Self> {
        ops::upsample::nearest(self, layout, (1, target), "upsample_nearest1d")
    }

    fn upsample_nearest2d(&self, layout: &Layout, h: usize, w: usize) -> Result<Self> {
        ops::upsample::nearest(self, layout, (h, w), "upsample_nearest2d")
    }

    fn upsample_bilinear2d(
        &self,
        layout: &Layout,
        h: usize,
        w: usize,
        align_corners: bool,
        scale_h: Option<f64>,
        scale_w: Option<f64>,
    ) -> Result<Self> {
        ops::upsample::bilinear(self, layout, (h, w), align_corners, (scale_h, scale_w))
    }

    fn gather(&self, layout: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self> {
        ops::indexing::gather(self, layout, ids, ids_l, dim)
    }

    fn scatter_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        let updates = ops::scatter::Updates {
            ids,
            ids_l,
            src,
            src_l,
            dim,
        };
        ops::scatter::scatter(self, layout, updates, false)
    }

    fn scatter_add_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        let updates = ops::scatter::Updates {
            ids,
            ids_l,
            src,
            src_l,
            dim,
        };
        ops::scatter::scatter(self, layout, updates, true)
    }

    fn index_select(
        &self,
        ids: &Self,
        layout: &Layout,
        ids_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        ops::indexing::index_select(self, ids, layout, ids_l, dim)
    }

    fn index_add(
        &self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        ops::scatter::index_add(self, layout, ids, ids_l, src, src_l, dim)
    }

    fn matmul(
        &self,
        rhs: &Self,
        bmnk: (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        ops::matmul::matmul(self, rhs, bmnk, lhs_l, rhs_l)
    }

    fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, src_l: &Layout) -> Result<()> {
        ops::elementwise::copy_strided_src(self, dst, dst_offset, src_l)
    }

    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        let rows = ops::copy2d::Rows {
            d1,
            d2,
            src_stride: src_stride1,
            dst_stride: dst_stride1,
            src_offset,
            dst_offset,
        };
        ops::copy2d::copy2d(self, dst, rows)
    }

    fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()> {
        ops::fill::const_set(self, value, layout)
    }
}
