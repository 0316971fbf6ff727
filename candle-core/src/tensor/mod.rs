//! [`Tensor`]: a shared storage, a layout over it, and the op that computed it. Its methods are in the other files of this folder, by
//! topic.

mod conv;
mod convert;
mod create;
mod elementwise;
mod indexing;
mod matmul;
mod movement;
mod operators;
mod pending;
mod pool;
mod reduce;
mod scan;
mod sort;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::op::{BackpropOp, Op};
use crate::scalar::Scalar;
use crate::shape::Dim;
use crate::{
    DType, Device, Error, Layout, Module, ModuleT, Result, Shape, Storage, StridedBlocks,
    StridedIndex,
};

pub(crate) use convert::{bytes_of, storage_from_bytes};
pub use pending::PendingVec1;

/// Read access to a tensor's storage.
pub type StorageRef<'a> = RwLockReadGuard<'a, Storage>;

/// Write access to a tensor's storage.
pub type StorageMutRef<'a> = RwLockWriteGuard<'a, Storage>;

/// Identifies a tensor; two tensors have the same id only if one is a clone of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(usize);

impl TensorId {
    fn new() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(1);
        Self(COUNTER.fetch_add(1, Ordering::Relaxed))
    }
}

/// The shared fields of a [`Tensor`].
pub struct Tensor_ {
    id: TensorId,
    /// Views share the storage; ops in place lock it.
    storage: Arc<RwLock<Storage>>,
    /// Number of elements in the storage, to distinguish a view of a part from one of the whole.
    storage_len: usize,
    layout: Layout,
    op: BackpropOp,
    is_variable: bool,
    dtype: DType,
    device: Device,
}

/// An n-dimensional array of numbers on a device.
///
/// A tensor is a cheap handle: cloning it, and taking views such as [`narrow`](Tensor::narrow) or [`transpose`](Tensor::transpose), shares
/// the elements. Operations return new tensors, except those documented as in place.
///
/// ```
/// use candle_core::{Device, Tensor, D};
/// # fn main() -> candle_core::Result<()> {
/// let t = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let rows = (&t * 2.)?.sum(D::Minus1)?;
/// assert_eq!(rows.to_vec1::<f32>()?, [6., 14.]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Tensor_>);

impl std::ops::Deref for Tensor {
    type Target = Tensor_;

    fn deref(&self) -> &Tensor_ {
        &self.0
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl<S: Into<Shape>> From<(Storage, S)> for Tensor {
    fn from((storage, shape): (Storage, S)) -> Self {
        Self::from_storage(storage, shape, BackpropOp::none(), false)
    }
}

impl Tensor {
    /// A row-major tensor of `shape` over all of `storage`, which has the same number of elements.
    pub fn from_storage<S: Into<Shape>>(
        storage: Storage,
        shape: S,
        op: BackpropOp,
        is_variable: bool,
    ) -> Tensor {
        let layout = Layout::contiguous(shape);
        let (dtype, device) = (storage.dtype(), storage.device());
        let len = layout.shape().elem_count();
        let storage = Arc::new(RwLock::new(storage));
        Self::of_parts((storage, len), layout, op, is_variable, (dtype, device))
    }

    /// A new tensor over `storage`, which has `storage_len` elements of `dtype` on `device`.
    #[inline(always)]
    fn of_parts(
        (storage, storage_len): (Arc<RwLock<Storage>>, usize),
        layout: Layout,
        op: BackpropOp,
        is_variable: bool,
        (dtype, device): (DType, Device),
    ) -> Self {
        // Fields are written in place. `Arc::new` would copy them with vector loads that span several recent smaller
        // stores; such loads miss store forwarding and stall, which costs a sixth of an op on a few elements.
        let tensor = Arc::into_raw(Arc::<Tensor_>::new_uninit())
            .cast::<Tensor_>()
            .cast_mut();
        // SAFETY: the memory is a `Tensor_`'s and not shared, and all fields are written before it is used as one.
        unsafe {
            (&raw mut (*tensor).id).write(TensorId::new());
            (&raw mut (*tensor).storage).write(storage);
            (&raw mut (*tensor).storage_len).write(storage_len);
            (&raw mut (*tensor).layout).write(layout);
            (&raw mut (*tensor).op).write(op);
            (&raw mut (*tensor).is_variable).write(is_variable);
            (&raw mut (*tensor).dtype).write(dtype);
            (&raw mut (*tensor).device).write(device);
            Self(Arc::from_raw(tensor))
        }
    }

    /// Another layout over the same storage.
    pub(crate) fn view(&self, layout: Layout, op: BackpropOp) -> Self {
        self.with_layout(layout, op, false)
    }

    fn with_layout(&self, layout: Layout, op: BackpropOp, is_variable: bool) -> Self {
        let storage = (self.storage.clone(), self.storage_len);
        let of = (self.dtype, self.device.clone());
        Self::of_parts(storage, layout, op, is_variable, of)
    }

    /// The same elements as a variable: a tensor that can be set and has gradients.
    pub(crate) fn into_variable(self) -> Self {
        self.with_layout(self.layout.clone(), BackpropOp::none(), true)
    }

    /// The op that computed the tensor.
    pub(crate) fn op(&self) -> &Option<Op> {
        &self.op
    }

    /// The op that computed the tensor, if there is no other handle.
    pub(crate) fn into_op(self) -> Option<Op> {
        Arc::into_inner(self.0).and_then(|mut inner| inner.op.take())
    }

    /// The tensor's id.
    pub fn id(&self) -> TensorId {
        self.id
    }

    /// Whether the tensor is a variable; see [`Var`](crate::Var).
    pub fn is_variable(&self) -> bool {
        self.is_variable
    }

    /// Whether gradients flow through the tensor: it is a variable or was computed from one.
    pub fn track_op(&self) -> bool {
        self.is_variable || self.op.is_some()
    }

    /// The same elements outside of the graph: no gradient flows through the result.
    pub fn detach(&self) -> Tensor {
        if !self.track_op() {
            return self.clone();
        }
        self.view(self.layout.clone(), BackpropOp::none())
    }

    /// The elements' dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that holds the elements.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The size of one dimension.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn dim<D: Dim>(&self, dim: D) -> Result<usize> {
        self.layout.dim(dim)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Number of elements.
    pub fn elem_count(&self) -> usize {
        self.shape().elem_count()
    }

    /// The layout of the elements in the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The strides, in elements.
    pub fn stride(&self) -> &[usize] {
        self.layout.stride()
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether the elements are contiguous in column-major order.
    pub fn is_fortran_contiguous(&self) -> bool {
        self.layout.is_fortran_contiguous()
    }

    /// The storage offset of each element, in row-major order.
    pub fn strided_index(&self) -> StridedIndex<'_> {
        self.layout.strided_index()
    }

    /// The elements as contiguous runs in the storage.
    pub fn strided_blocks(&self) -> StridedBlocks<'_> {
        self.layout.strided_blocks()
    }

    /// A dimension from an index that counts from the end when negative, as in ONNX and PyTorch.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn normalize_axis(&self, axis: i64) -> Result<usize> {
        let rank = self.rank() as i64;
        let index = if axis < 0 { rank + axis } else { axis };
        if !(0..rank).contains(&index) {
            crate::bail!("axis {axis} is out of range for shape {:?}", self.shape())
        }
        Ok(index as usize)
    }

    /// The storage, locked for reading, and the layout over it.
    pub fn storage_and_layout(&self) -> (StorageRef<'_>, &Layout) {
        (self.storage(), &self.layout)
    }

    /// The storage, locked for reading. The lock is recursive, so both arguments of an op may be the same tensor.
    pub(crate) fn storage(&self) -> StorageRef<'_> {
        self.storage.read_recursive()
    }

    /// The storage, locked for writing.
    pub(crate) fn storage_mut(&self) -> StorageMutRef<'_> {
        self.storage.write()
    }

    /// Whether both tensors share a storage.
    pub(crate) fn same_storage(&self, rhs: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &rhs.storage)
    }

    /// Whether the elements are contiguous and fill the whole storage, and neither the tensor nor the storage has another handle.
    pub(crate) fn owns_storage(&self) -> bool {
        self.is_contiguous()
            && self.storage_len == self.elem_count()
            && Arc::strong_count(&self.0) == 1
            && Arc::strong_count(&self.storage) == 1
    }

    /// Locks this tensor's storage for writing and those of `args` for reading.
    ///
    /// # Errors
    /// When an argument shares this tensor's storage.
    pub(crate) fn lock_for_write<'a, const N: usize>(
        &'a self,
        args: [&'a Self; N],
        op: &'static str,
    ) -> Result<(StorageMutRef<'a>, [StorageRef<'a>; N])> {
        if let Some(i) = args.iter().position(|arg| self.same_storage(arg)) {
            crate::bail!(
                "{op} changes a tensor in place whose storage argument {} uses as well: copy one of them first (see copy)",
                i + 1
            )
        }
        // Locks are taken in the order of addresses, so that two threads that each write the other's input do not deadlock.
        let address = |t: &Self| Arc::as_ptr(&t.storage) as usize;
        let mut earlier = args.map(|arg| (address(arg) < address(self)).then(|| arg.storage()));
        let dst = self.storage_mut();
        let sources = std::array::from_fn(|i| match earlier[i].take() {
            Some(guard) => guard,
            None => args[i].storage(),
        });
        Ok((dst, sources))
    }

    /// The common shape of both sides of an op that needs equal shapes.
    pub(crate) fn same_shape_binary_op(&self, rhs: &Self, op: &'static str) -> Result<&Shape> {
        if self.shape() != rhs.shape() {
            return Err(Error::ShapeMismatchBinaryOp {
                lhs: self.shape().clone(),
                rhs: rhs.shape().clone(),
                op,
            }
            .bt());
        }
        Ok(self.shape())
    }

    /// An error unless all arguments are on this tensor's device.
    pub(crate) fn same_device(&self, args: &[&Self], op: &'static str) -> Result<()> {
        match args
            .iter()
            .find(|arg| !self.device.same_device(&arg.device))
        {
            None => Ok(()),
            Some(arg) => Err(Error::DeviceMismatchBinaryOp {
                lhs: self.device.location(),
                rhs: arg.device.location(),
                op,
            }
            .bt()),
        }
    }

    /// An error unless both sides have the same device and dtype.
    pub(crate) fn same_kind(&self, rhs: &Self, op: &'static str) -> Result<()> {
        self.same_device(&[rhs], op)?;
        if self.dtype != rhs.dtype {
            return Err(Error::DTypeMismatchBinaryOp {
                lhs: self.dtype,
                rhs: rhs.dtype,
                op,
            }
            .bt());
        }
        Ok(())
    }

    /// Sets all elements of this tensor in place. Tensors that share them see the change; gradients do not.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?;
    /// t.narrow(1, 0, 1)?.const_set(3f32.into())?;
    /// assert_eq!(t.to_vec2::<f32>()?, [[3., 0.], [3., 0.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the value has another dtype.
    pub fn const_set(&self, value: Scalar) -> Result<()> {
        if value.dtype() != self.dtype {
            return Err(Error::UnexpectedDType {
                msg: "const_set",
                expected: self.dtype,
                got: value.dtype(),
            }
            .bt());
        }
        self.storage_mut().const_set(value, &self.layout)
    }

    /// Sets all elements to zero in place.
    pub fn zero_set(&self) -> Result<()> {
        self.const_set(create::scalar_zero(self.dtype)?)
    }

    /// Sets all elements to one in place.
    pub fn one_set(&self) -> Result<()> {
        self.const_set(create::scalar_one(self.dtype)?)
    }

    /// Applies a layer: `xs.apply(&layer)` is `layer.forward(&xs)`, in the order of reading.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
    /// let doubled_relu = t.apply(&Tensor::relu)?.apply(&|xs: &Tensor| xs * 2.)?;
    /// assert_eq!(doubled_relu.to_vec1::<f32>()?, [0., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn apply<M: Module>(&self, m: &M) -> Result<Self> {
        m.forward(self)
    }

    /// Like [`Tensor::apply`], for layers that behave differently in training.
    pub fn apply_t<M: ModuleT>(&self, m: &M, train: bool) -> Result<Self> {
        m.forward_t(self, train)
    }
}
