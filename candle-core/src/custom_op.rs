//! Operations defined outside of this crate: returning a new tensor (`CustomOp1/2/3`, by number of arguments) or in
//! place (`InplaceOp1/2/3`).
//!
//! Each has one method per backend. `cpu_fwd` is required; the defaults of the others return an error, because a silent
//! fallback to the CPU would hide its cost. `webgpu_fwd` exists with the feature `webgpu` alone: implement it inside of
//! [`with_webgpu!`](crate::with_webgpu). `metal_fwd` runs it by default, as Metal devices run WebGPU's kernels.

use std::sync::Arc;

use crate::op::{BackpropOp, Op};
use crate::{CpuStorage, CudaStorage, Error, Layout, MetalStorage, Result, Shape, Storage, Tensor};

fn no_cuda_form(op: &str) -> Error {
    Error::Cuda(
        format!("{op} has no CUDA implementation: implement cuda_fwd or move the tensor").into(),
    )
    .bt()
}

/// The default on Metal: the op's WebGPU form, on the storages inside.
#[cfg(feature = "metal")]
macro_rules! metal_form {
    ($op:ident, $($arg:expr),+) => {
        crate::metal_backend::on_metal($op.webgpu_fwd($($arg),+))
    };
}

#[cfg(not(feature = "metal"))]
macro_rules! metal_form {
    ($op:ident, $($arg:expr),+) => {
        Err(Error::NotCompiledWithMetalSupport)
    };
}

/// Items for WebGPU: they exist if `candle-core` is built with its feature `webgpu`, and only then.
///
/// Without this macro, a crate whose ops have a WebGPU form would need its own feature, enabled together with `candle-core`'s: a program
/// that enables only the latter would find the ops without the form. The macro follows `candle-core`'s feature alone. Function bodies
/// around it can call [`Device::is_wgpu`](crate::Device::is_wgpu) without any `cfg`. Takes items, also those of an `impl`, and statements.
///
/// ```
/// use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
///
/// /// `x³`.
/// struct Cube;
///
/// impl CustomOp1 for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///
///     fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
///         let cubes = candle_core::cpu_backend::unary_map(storage.as_slice::<f32>()?, layout, |v| v * v * v);
///         Ok((CpuStorage::F32(cubes), layout.shape().clone()))
///     }
///
///     candle_core::with_webgpu! {
///         fn webgpu_fwd(
///             &self,
///             storage: &candle_core::WebGpuStorage,
///             layout: &Layout,
///         ) -> Result<(candle_core::WebGpuStorage, Shape)> {
///             use candle_core::{backend::BackendStorage, op};
///             let contiguous = Layout::contiguous(layout.shape());
///             let square = storage.unary_impl::<op::Sqr>(layout)?;
///             let cube = square.binary_impl::<op::Mul>(storage, &contiguous, layout)?;
///             Ok((cube, layout.shape().clone()))
///         }
///     }
/// }
///
/// # fn main() -> Result<()> {
/// // The second is there in a build with WebGPU, on a machine that has an adapter.
/// let devices = [Some(Device::Cpu), Device::new_webgpu(0).ok()];
/// for device in devices.iter().flatten() {
///     let cubes = Tensor::new(&[[1f32, 2.], [3., 4.]], device)?.t()?.apply_op1(Cube)?;
///     assert_eq!(cubes.to_vec2::<f32>()?, [[1., 27.], [8., 64.]]);
/// }
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! with_webgpu {
    ($($item:tt)*) => { $crate::__if_webgpu! { $($item)* } };
}

/// [`with_webgpu!`] with the feature; the other definition has the documentation of both.
#[cfg(feature = "webgpu")]
#[doc(hidden)]
#[macro_export]
macro_rules! __if_webgpu {
    ($($item:tt)*) => { $($item)* };
}

/// [`with_webgpu!`] without the feature.
#[cfg(not(feature = "webgpu"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __if_webgpu {
    ($($item:tt)*) => {};
}

/// The error for an op without a WebGPU form. It names the op and the remedy.
#[cfg(feature = "webgpu")]
pub fn no_webgpu_form(op: &str) -> Error {
    Error::WebGpu(format!(
        "{op} has no WebGPU implementation: implement `webgpu_fwd`, or move its arguments to the CPU with `to_device`"
    ))
    .bt()
}

/// An operation on one tensor.
///
/// ```
/// use candle_core::{cpu_backend, CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, Var};
///
/// struct Cube;
///
/// impl CustomOp1 for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///
///     fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
///         let cubes = cpu_backend::unary_map(storage.as_slice::<f32>()?, layout, |v| v * v * v);
///         Ok((CpuStorage::F32(cubes), layout.shape().clone()))
///     }
///
///     fn bwd(&self, arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
///         Ok(Some(((arg.sqr()? * 3.)? * grad_res)?))
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let cubes = x.apply_op1(Cube)?;
/// assert_eq!(cubes.to_vec1::<f32>()?, [1., 8.]);
/// let gradients = cubes.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?, [3., 12.]);
/// # Ok(())
/// # }
/// ```
pub trait CustomOp1 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// The result on the CPU, row-major, with its shape. `layout` may have any strides.
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)>;

    /// As `cpu_fwd`, on a CUDA device.
    fn cuda_fwd(&self, _storage: &CudaStorage, _layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        metal_form!(self, storage.webgpu(), layout)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        _storage: &crate::WebGpuStorage,
        _layout: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        Err(no_webgpu_form(self.name()))
    }

    /// The gradient with respect to the argument, from the argument, the result, and the gradient of the result.
    fn bwd(&self, _arg: &Tensor, _res: &Tensor, _grad_res: &Tensor) -> Result<Option<Tensor>> {
        Err(Error::BackwardNotSupported { op: self.name() }.bt())
    }
}

/// An operation on two tensors.
pub trait CustomOp2 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// The result on the CPU, row-major, with its shape. The layouts may have any strides.
    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)>;

    /// As `cpu_fwd`, on a CUDA device.
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(
        &self,
        s1: &MetalStorage,
        l1: &Layout,
        s2: &MetalStorage,
        l2: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal_form!(self, s1.webgpu(), l1, s2.webgpu(), l2)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        _s1: &crate::WebGpuStorage,
        _l1: &Layout,
        _s2: &crate::WebGpuStorage,
        _l2: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        Err(no_webgpu_form(self.name()))
    }

    /// The gradients with respect to the arguments, from the arguments, the result, and the gradient of the result.
    fn bwd(
        &self,
        _arg1: &Tensor,
        _arg2: &Tensor,
        _res: &Tensor,
        _grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Err(Error::BackwardNotSupported { op: self.name() }.bt())
    }
}

/// An operation on three tensors.
pub trait CustomOp3 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// The result on the CPU, row-major, with its shape. The layouts may have any strides.
    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)>;

    /// As `cpu_fwd`, on a CUDA device.
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(
        &self,
        s1: &MetalStorage,
        l1: &Layout,
        s2: &MetalStorage,
        l2: &Layout,
        s3: &MetalStorage,
        l3: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal_form!(self, s1.webgpu(), l1, s2.webgpu(), l2, s3.webgpu(), l3)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        _s1: &crate::WebGpuStorage,
        _l1: &Layout,
        _s2: &crate::WebGpuStorage,
        _l2: &Layout,
        _s3: &crate::WebGpuStorage,
        _l3: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        Err(no_webgpu_form(self.name()))
    }

    /// The gradients with respect to the arguments, from the arguments, the result, and the gradient of the result.
    fn bwd(
        &self,
        _arg1: &Tensor,
        _arg2: &Tensor,
        _arg3: &Tensor,
        _res: &Tensor,
        _grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Err(Error::BackwardNotSupported { op: self.name() }.bt())
    }
}

/// An operation that changes a tensor's elements in place.
///
/// ```
/// use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor};
///
/// struct Increment;
///
/// impl InplaceOp1 for Increment {
///     fn name(&self) -> &'static str {
///         "increment"
///     }
///
///     fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
///         let CpuStorage::U32(values) = storage else {
///             candle_core::bail!("increment takes u32")
///         };
///         layout.strided_index().for_each(|i| values[i] += 1);
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let t = Tensor::new(&[1u32, 2, 3], &Device::Cpu)?;
/// t.narrow(0, 1, 2)?.inplace_op1(&Increment)?;
/// assert_eq!(t.to_vec1::<u32>()?, [1, 3, 4]);
/// # Ok(())
/// # }
/// ```
pub trait InplaceOp1 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// Changes the elements of `layout` on the CPU.
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()>;

    /// As `cpu_fwd`, on a CUDA device.
    fn cuda_fwd(&self, _storage: &mut CudaStorage, _layout: &Layout) -> Result<()> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(&self, storage: &mut MetalStorage, layout: &Layout) -> Result<()> {
        metal_form!(self, storage.webgpu_mut(), layout)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(&self, _storage: &mut crate::WebGpuStorage, _layout: &Layout) -> Result<()> {
        Err(no_webgpu_form(self.name()))
    }
}

/// An operation that changes the first tensor's elements in place and reads a second tensor.
pub trait InplaceOp2 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// Changes the elements of `l1` on the CPU.
    fn cpu_fwd(&self, s1: &mut CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout)
        -> Result<()>;

    /// As `cpu_fwd`, on a CUDA device.
    #[allow(unused_variables)]
    fn cuda_fwd(
        &self,
        s1: &mut CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<()> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(
        &self,
        s1: &mut MetalStorage,
        l1: &Layout,
        s2: &MetalStorage,
        l2: &Layout,
    ) -> Result<()> {
        metal_form!(self, s1.webgpu_mut(), l1, s2.webgpu(), l2)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        _s1: &mut crate::WebGpuStorage,
        _l1: &Layout,
        _s2: &crate::WebGpuStorage,
        _l2: &Layout,
    ) -> Result<()> {
        Err(no_webgpu_form(self.name()))
    }
}

/// An operation that changes the first tensor's elements in place and reads two other tensors.
pub trait InplaceOp3 {
    /// The op's name, for errors.
    fn name(&self) -> &'static str;

    /// Changes the elements of `l1` on the CPU.
    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<()>;

    /// As `cpu_fwd`, on a CUDA device.
    fn cuda_fwd(
        &self,
        _: &mut CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<()> {
        Err(no_cuda_form(self.name()))
    }

    /// As `cpu_fwd`, on a Metal device: by default `webgpu_fwd` on the storage inside.
    #[allow(unused_variables)]
    fn metal_fwd(
        &self,
        s1: &mut MetalStorage,
        l1: &Layout,
        s2: &MetalStorage,
        l2: &Layout,
        s3: &MetalStorage,
        l3: &Layout,
    ) -> Result<()> {
        metal_form!(self, s1.webgpu_mut(), l1, s2.webgpu(), l2, s3.webgpu(), l3)
    }

    /// As `cpu_fwd`, on a WebGPU device.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        _s1: &mut crate::WebGpuStorage,
        _l1: &Layout,
        _s2: &crate::WebGpuStorage,
        _l2: &Layout,
        _s3: &crate::WebGpuStorage,
        _l3: &Layout,
    ) -> Result<()> {
        Err(no_webgpu_form(self.name()))
    }
}

/// The three kinds of in-place ops, by the number of tensors that they read in addition to the one they change.
pub trait InplaceOpN<const N: usize> {
    /// The op's name, for errors.
    fn op_name(&self) -> &'static str;

    /// Runs the op on storages that are locked already.
    fn run(&self, dst: &mut Storage, dst_l: &Layout, args: [(&Storage, &Layout); N]) -> Result<()>;
}

impl<C: InplaceOp1> InplaceOpN<0> for C {
    fn op_name(&self) -> &'static str {
        self.name()
    }

    fn run(&self, dst: &mut Storage, dst_l: &Layout, []: [(&Storage, &Layout); 0]) -> Result<()> {
        dst.inplace_op1(dst_l, self)
    }
}

impl<C: InplaceOp2> InplaceOpN<1> for C {
    fn op_name(&self) -> &'static str {
        self.name()
    }

    fn run(
        &self,
        dst: &mut Storage,
        dst_l: &Layout,
        [(s2, l2)]: [(&Storage, &Layout); 1],
    ) -> Result<()> {
        dst.inplace_op2(dst_l, s2, l2, self)
    }
}

impl<C: InplaceOp3> InplaceOpN<2> for C {
    fn op_name(&self) -> &'static str {
        self.name()
    }

    fn run(
        &self,
        dst: &mut Storage,
        dst_l: &Layout,
        [(s2, l2), (s3, l3)]: [(&Storage, &Layout); 2],
    ) -> Result<()> {
        dst.inplace_op3(dst_l, s2, l2, s3, l3, self)
    }
}

impl Tensor {
    fn inplace_op<const N: usize, C: InplaceOpN<N>>(&self, args: [&Self; N], c: &C) -> Result<()> {
        self.same_device(&args, c.op_name())?;
        let (mut dst, sources) = self.lock_for_write(args, c.op_name())?;
        let args = std::array::from_fn(|i| (&*sources[i], args[i].layout()));
        c.run(&mut dst, self.layout(), args)
    }

    /// Changes this tensor's elements in place. Tensors that share them see the change; gradients do not.
    pub fn inplace_op1<C: InplaceOp1>(&self, c: &C) -> Result<()> {
        self.inplace_op([], c)
    }

    /// Changes this tensor's elements in place, reading `rhs`.
    ///
    /// # Errors
    /// When `rhs` shares its storage with this tensor, or the op fails.
    pub fn inplace_op2<C: InplaceOpN<1>>(&self, rhs: &Self, c: &C) -> Result<()> {
        self.inplace_op([rhs], c)
    }

    /// Changes this tensor's elements in place, reading `t2` and `t3`.
    ///
    /// # Errors
    /// When `t2` or `t3` shares its storage with this tensor, or the op fails.
    pub fn inplace_op3<C: InplaceOpN<2>>(&self, t2: &Self, t3: &Self, c: &C) -> Result<()> {
        self.inplace_op([t2, t3], c)
    }

    /// Applies an op outside of the graph: no gradient flows through the result.
    pub fn apply_op1_no_bwd<C: CustomOp1>(&self, c: &C) -> Result<Self> {
        self.custom_op1(c, BackpropOp::none())
    }

    /// Applies an op of two arguments outside of the graph: no gradient flows through the result.
    pub fn apply_op2_no_bwd<C: CustomOp2>(&self, rhs: &Self, c: &C) -> Result<Self> {
        self.custom_op2(rhs, c, BackpropOp::none())
    }

    /// Applies an op of three arguments outside of the graph: no gradient flows through the result.
    pub fn apply_op3_no_bwd<C: CustomOp3>(&self, t2: &Self, t3: &Self, c: &C) -> Result<Self> {
        self.custom_op3(t2, t3, c, BackpropOp::none())
    }

    /// Applies an op that is already shared; see [`Tensor::apply_op1`].
    pub fn apply_op1_arc(&self, c: Arc<Box<dyn CustomOp1 + Send + Sync>>) -> Result<Self> {
        let op = BackpropOp::new1(self, |arg| Op::CustomOp1(arg, c.clone()));
        self.custom_op1(&**c, op)
    }

    /// Applies an op of two arguments that is already shared; see [`Tensor::apply_op2`].
    pub fn apply_op2_arc(
        &self,
        rhs: &Self,
        c: Arc<Box<dyn CustomOp2 + Send + Sync>>,
    ) -> Result<Self> {
        let op = BackpropOp::new2(self, rhs, |t1, t2| Op::CustomOp2(t1, t2, c.clone()));
        self.custom_op2(rhs, &**c, op)
    }

    /// Applies an op of three arguments that is already shared; see [`Tensor::apply_op3`].
    pub fn apply_op3_arc(
        &self,
        t2: &Self,
        t3: &Self,
        c: Arc<Box<dyn CustomOp3 + Send + Sync>>,
    ) -> Result<Self> {
        let op = BackpropOp::new3(self, t2, t3, |t1, t2, t3| {
            Op::CustomOp3(t1, t2, t3, c.clone())
        });
        self.custom_op3(t2, t3, &**c, op)
    }

    /// Applies an op; the gradient flows through its `bwd`.
    pub fn apply_op1<C: 'static + CustomOp1 + Send + Sync>(&self, c: C) -> Result<Self> {
        self.apply_op1_arc(Arc::new(Box::new(c)))
    }

    /// Applies an op of two arguments; the gradient flows through its `bwd`.
    pub fn apply_op2<C: 'static + CustomOp2 + Send + Sync>(&self, r: &Self, c: C) -> Result<Self> {
        self.apply_op2_arc(r, Arc::new(Box::new(c)))
    }

    /// Applies an op of three arguments; the gradient flows through its `bwd`.
    pub fn apply_op3<C: 'static + CustomOp3 + Send + Sync>(
        &self,
        t2: &Self,
        t3: &Self,
        c: C,
    ) -> Result<Self> {
        self.apply_op3_arc(t2, t3, Arc::new(Box::new(c)))
    }

    fn custom_op1(&self, c: &dyn CustomOp1, op: BackpropOp) -> Result<Self> {
        let (storage, shape) = self.storage().apply_op1(self.layout(), c)?;
        Ok(Self::from_storage(storage, shape, op, false))
    }

    fn custom_op2(&self, t2: &Self, c: &dyn CustomOp2, op: BackpropOp) -> Result<Self> {
        self.same_device(&[t2], c.name())?;
        let (storage, shape) =
            self.storage()
                .apply_op2(self.layout(), &t2.storage(), t2.layout(), c)?;
        Ok(Self::from_storage(storage, shape, op, false))
    }

    fn custom_op3(&self, t2: &Self, t3: &Self, c: &dyn CustomOp3, op: BackpropOp) -> Result<Self> {
        self.same_device(&[t2, t3], c.name())?;
        let (storage, shape) = self.storage().apply_op3(
            self.layout(),
            &t2.storage(),
            t2.layout(),
            &t3.storage(),
            t3.layout(),
            c,
        )?;
        Ok(Self::from_storage(storage, shape, op, false))
    }
}
