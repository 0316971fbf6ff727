//! The elements of a tensor, on any backend: one line per op.

use crate::backend::{BackendDevice, BackendStorage};
use crate::dispatch::Backend;
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, DeviceLocation, Error,
    InplaceOp1, InplaceOp2, InplaceOp3, Layout, MetalStorage, Result, Shape,
};

/// The elements of one or several tensors; a tensor's layout selects its part.
#[derive(Debug)]
pub enum Storage {
    /// In the host's memory.
    Cpu(CpuStorage),
    /// On a CUDA device.
    Cuda(CudaStorage),
    /// On a Metal device.
    Metal(MetalStorage),
    /// On a GPU through WebGPU.
    #[cfg(feature = "webgpu")]
    WebGpu(crate::WebGpuStorage),
}

impl Storage {
    /// A new storage with the same elements; `layout` is valid for the copy too.
    pub fn try_clone(&self, layout: &Layout) -> Result<Self> {
        map_backend!("clone", (self, layout) => |a| a.try_clone(layout))
    }

    /// The device that holds the elements.
    pub fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            Self::Cuda(s) => Device::Cuda(s.device().clone()),
            Self::Metal(s) => Device::Metal(s.device().clone()),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(s) => Device::WebGpu(s.device().clone()),
        }
    }

    /// The storage that kernels in WGSL run on: that of a WebGPU device, or the inner one of a Metal device. `None` for other devices.
    #[cfg(feature = "webgpu")]
    pub fn as_wgpu(&self) -> Option<&crate::WebGpuStorage> {
        match self {
            Self::WebGpu(storage) => Some(storage),
            #[cfg(feature = "metal")]
            Self::Metal(storage) => Some(storage.webgpu()),
            _ => None,
        }
    }

    /// Wraps the result of a kernel in WGSL as a storage of the same backend as `self`.
    #[cfg(feature = "webgpu")]
    pub(crate) fn wrap_wgpu(&self, result: crate::WebGpuStorage) -> Self {
        match self {
            #[cfg(feature = "metal")]
            Self::Metal(_) => Self::Metal(result.into()),
            _ => Self::WebGpu(result),
        }
    }

    /// The elements' dtype.
    pub fn dtype(&self) -> DType {
        on_backend!(self => |a| a.dtype())
    }

    pub(crate) fn location(&self) -> DeviceLocation {
        on_backend!(self => |a| a.device().location())
    }

    /// An error unless both storages have the same dtype.
    pub(crate) fn same_dtype(&self, rhs: &Self, op: &'static str) -> Result<()> {
        let (lhs, rhs) = (self.dtype(), rhs.dtype());
        if lhs != rhs {
            return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
        }
        Ok(())
    }

    /// Copies all elements to the host, waiting for the device.
    pub(crate) fn to_cpu_storage(&self) -> Result<CpuStorage> {
        on_backend!(self => |a| a.to_cpu_storage())
    }

    /// Starts copying the elements to the host, without waiting.
    pub(crate) fn begin_read(&self) -> Result<PendingRead> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(s) => Ok(PendingRead::Cuda(s.begin_read()?)),
            #[cfg(feature = "metal")]
            Self::Metal(s) => Ok(PendingRead::Metal(s.begin_read()?)),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(s) => Ok(PendingRead::WebGpu(s.begin_read()?)),
            ready => Ok(PendingRead::Ready(ready.to_cpu_storage()?)),
        }
    }

    /// Copies all elements to `device`.
    pub(crate) fn transfer(&self, device: &Device) -> Result<Self> {
        match self {
            Self::Cpu(s) => device.storage_from_cpu(s),
            other => device.storage_from_cpu_owned(other.to_cpu_storage()?),
        }
    }

    pub(crate) fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()> {
        change_backend!("const-set", (self, layout) => |a| a.const_set(value, layout))
    }

    pub(crate) fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self> {
        map_backend!("affine", (self, layout) => |a| a.affine(layout, mul, add))
    }

    pub(crate) fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self> {
        map_backend!("powf", (self, layout) => |a| a.powf(layout, exponent))
    }

    pub(crate) fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self> {
        map_backend!("elu", (self, layout) => |a| a.elu(layout, alpha))
    }

    pub(crate) fn cmp(
        &self,
        op: CmpOp,
        rhs: &Self,
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        self.same_dtype(rhs, "cmp")?;
        map_backend!("cmp", (self, lhs_l), (rhs, rhs_l) => |a, b| a.cmp(op, b, lhs_l, rhs_l))
    }

    pub(crate) fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
        map_backend!(op.name(), (self, layout) => |a| a.reduce_op(op, layout, dims))
    }

    pub(crate) fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self> {
        map_backend!("to_dtype", (self, layout) => |a| a.to_dtype(layout, dtype))
    }

    pub(crate) fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {
        map_backend!(B::NAME, (self, layout) => |a| a.unary_impl::<B>(layout))
    }

    pub(crate) fn binary_impl<B: BinaryOpT>(
        &self,
        rhs: &Self,
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        self.same_dtype(rhs, B::NAME)?;
        map_backend!(B::NAME, (self, lhs_l), (rhs, rhs_l) => |a, b| a.binary_impl::<B>(b, lhs_l, rhs_l))
    }

    pub(crate) fn where_cond(
        &self,
        layout: &Layout,
        on_true: &Self,
        on_true_l: &Layout,
        on_false: &Self,
        on_false_l: &Layout,
    ) -> Result<Self> {
        on_true.same_dtype(on_false, "where_cond")?;
        map_backend!("where_cond", (self, layout), (on_true, on_true_l), (on_false, on_false_l) => |a, t, f| {
            a.where_cond(layout, t, on_true_l, f, on_false_l)
        })
    }

    pub(crate) fn gather(
        &self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        map_backend!("gather", (self, layout), (ids, ids_l) => |a, i| a.gather(layout, i, ids_l, dim))
    }

    pub(crate) fn scatter_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        self.same_dtype(src, "scatter")?;
        change_backend!("scatter", (self, layout), (ids, ids_l), (src, src_l) => |a, i, s| {
            a.scatter_set(layout, i, ids_l, s, src_l, dim)
        })
    }

    pub(crate) fn scatter_add_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        self.same_dtype(src, "scatter-add")?;
        change_backend!("scatter-add", (self, layout), (ids, ids_l), (src, src_l) => |a, i, s| {
            a.scatter_add_set(layout, i, ids_l, s, src_l, dim)
        })
    }

    pub(crate) fn index_add(
        &self,
        layout: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        self.same_dtype(src, "index-add")?;
        map_backend!("index-add", (self, layout), (ids, ids_l), (src, src_l) => |a, i, s| {
            a.index_add(layout, i, ids_l, s, src_l, dim)
        })
    }

    pub(crate) fn index_select(
        &self,
        ids: &Self,
        layout: &Layout,
        ids_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        map_backend!("index-select", (self, layout), (ids, ids_l) => |a, i| a.index_select(i, layout, ids_l, dim))
    }

    pub(crate) fn matmul(
        &self,
        rhs: &Self,
        bmnk: (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        self.same_dtype(rhs, "matmul")?;
        map_backend!("matmul", (self, lhs_l), (rhs, rhs_l) => |a, b| a.matmul(b, bmnk, lhs_l, rhs_l))
    }

    /// Copies the elements of `src_l` to `dst[dst_offset..]`.
    pub(crate) fn copy_strided_src(
        &self,
        dst: &mut Self,
        dst_offset: usize,
        src_l: &Layout,
    ) -> Result<()> {
        self.same_dtype(dst, "copy-strided")?;
        change_backend!("copy-strided", (dst, src_l), (self, src_l) => |d, a| a.copy_strided_src(d, dst_offset, src_l))
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        self.same_dtype(dst, "copy2d")?;
        // The layouts are only for debugging; without it they are not built.
        change_backend!(
            "copy2d",
            (dst, &Layout::new((d1, d2).into(), vec![dst_stride1, 1], dst_offset)),
            (self, &Layout::new((d1, d2).into(), vec![src_stride1, 1], src_offset))
            => |d, a| a.copy2d(d, d1, d2, src_stride1, dst_stride1, src_offset, dst_offset)
        )
    }

    pub(crate) fn apply_op1(&self, l1: &Layout, op: &dyn CustomOp1) -> Result<(Self, Shape)> {
        let shape = OutShape::default();
        let out = map_backend!(op.name(), (self, l1) => |a| shape.keep(a.custom1(l1, op)))?;
        Ok((out, shape.get()))
    }

    pub(crate) fn apply_op2(
        &self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        op: &dyn CustomOp2,
    ) -> Result<(Self, Shape)> {
        let shape = OutShape::default();
        let out = map_backend!(op.name(), (self, l1), (s2, l2) => |a, b| shape.keep(a.custom2(l1, b, l2, op)))?;
        Ok((out, shape.get()))
    }

    pub(crate) fn apply_op3(
        &self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        s3: &Self,
        l3: &Layout,
        op: &dyn CustomOp3,
    ) -> Result<(Self, Shape)> {
        let shape = OutShape::default();
        let out = map_backend!(op.name(), (self, l1), (s2, l2), (s3, l3) => |a, b, c| {
            shape.keep(a.custom3(l1, b, l2, c, l3, op))
        })?;
        Ok((out, shape.get()))
    }

    pub(crate) fn inplace_op1(&mut self, l1: &Layout, op: &dyn InplaceOp1) -> Result<()> {
        change_backend!(op.name(), (self, l1) => |a| a.inplace1(l1, op))
    }

    pub(crate) fn inplace_op2(
        &mut self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        op: &dyn InplaceOp2,
    ) -> Result<()> {
        change_backend!(op.name(), (self, l1), (s2, l2) => |a, b| a.inplace2(l1, b, l2, op))
    }

    pub(crate) fn inplace_op3(
        &mut self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        s3: &Self,
        l3: &Layout,
        op: &dyn InplaceOp3,
    ) -> Result<()> {
        change_backend!(op.name(), (self, l1), (s2, l2), (s3, l3) => |a, b, c| a.inplace3(l1, b, l2, c, l3, op))
    }
}

/// The shape that a custom op returns with its storage.
#[derive(Default)]
struct OutShape(std::cell::RefCell<Option<Shape>>);

impl OutShape {
    fn keep<S>(&self, result: Result<(S, Shape)>) -> Result<S> {
        let (storage, shape) = result?;
        self.0.replace(Some(shape));
        Ok(storage)
    }

    fn get(self) -> Shape {
        self.0.into_inner().unwrap_or(Shape::from(()))
    }
}

/// A pending copy to the host.
pub(crate) enum PendingRead {
    Ready(CpuStorage),
    #[cfg(feature = "cuda")]
    Cuda(crate::cuda_backend::PendingRead),
    #[cfg(feature = "metal")]
    Metal(crate::metal_backend::PendingRead),
    #[cfg(feature = "webgpu")]
    WebGpu(crate::webgpu_backend::PendingRead),
}

impl PendingRead {
    /// Waits for the copy on this thread.
    pub(crate) fn wait(self) -> Result<CpuStorage> {
        match self {
            Self::Ready(storage) => Ok(storage),
            #[cfg(feature = "cuda")]
            Self::Cuda(read) => read.wait(),
            #[cfg(feature = "metal")]
            Self::Metal(read) => read.wait(),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(read) => read.wait(),
        }
    }

    /// Waits for the copy without blocking the thread where the platform allows that.
    pub(crate) async fn finish(self) -> Result<CpuStorage> {
        match self {
            Self::Ready(storage) => Ok(storage),
            // The driver can only wait on a thread.
            #[cfg(feature = "cuda")]
            Self::Cuda(read) => read.wait(),
            #[cfg(feature = "metal")]
            Self::Metal(read) => read.finish().await,
            #[cfg(feature = "webgpu")]
            Self::WebGpu(read) => read.finish().await,
        }
    }
}
