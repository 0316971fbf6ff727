//! The match over backends, written once.
//!
//! `on_backend!` matches one storage and queries it. `map_backend!` runs an op: it matches one storage, or two or three
//! of the same backend, each with its layout, and wraps the new storage as a [`Storage`] of that backend.
//! `change_backend!` does the same for ops that write into their first storage. Storages of different backends become
//! the device mismatch error, which carries the op's name. A new backend is added here, in `device.rs` and in its own
//! folder.
//!
//! On a GPU an op passes through `watch.rs`, which can run the same body on the CPU: to verify the result, or as an
//! explicit fallback.

use crate::backend::{BackendDevice, BackendStorage};
use crate::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3,
    Layout, MetalStorage, Result, Shape, Storage,
};

/// The backends' connections between devices, see [`distributed::on_devices`](crate::distributed::on_devices).
#[cfg(not(target_arch = "wasm32"))]
pub(crate) const LINKS: &[&dyn crate::distributed::Links] = &[
    #[cfg(feature = "cuda")]
    &crate::cuda_backend::NcclLinks,
];

/// Runs a body on the storage inside a `Storage`.
macro_rules! on_backend {
    ($self:expr => |$a:ident| $body:expr) => {
        match $self {
            $crate::Storage::Cpu($a) => $body,
            $crate::Storage::Cuda($a) => $body,
            $crate::Storage::Metal($a) => $body,
            #[cfg(feature = "webgpu")]
            $crate::Storage::WebGpu($a) => $body,
        }
    };
}

/// Runs an op's body, which returns a new storage, on the storages inside `Storage`s of one backend.
macro_rules! map_backend {
    (@gpu $op:expr, ($a:ident, $layout:expr) $(, ($b:ident, $other_l:expr))* => $body:expr) => {{
        $($crate::dispatch::same_device($op, $a, $b)?;)*
        let operands = [($a, $layout), $(($b, $other_l)),*];
        $crate::watch::map($op, operands, || $body, |[$a, $($b),*]| $body)
            .map($crate::dispatch::Backend::wrap)
    }};
    ($op:expr, ($self:expr, $layout:expr) $(, ($other:expr, $other_l:expr))* => |$a:ident $(, $b:ident)*| $body:expr) => {{
        let op = $op;
        let locations = [$self.location() $(, $other.location())*];
        #[allow(unreachable_patterns, reason = "one storage is always of one backend")]
        match ($self, $($other,)*) {
            ($crate::Storage::Cpu($a), $($crate::Storage::Cpu($b),)*) => {
                $body.map($crate::dispatch::Backend::wrap)
            }
            ($crate::Storage::Cuda($a), $($crate::Storage::Cuda($b),)*) => {
                map_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            ($crate::Storage::Metal($a), $($crate::Storage::Metal($b),)*) => {
                map_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            #[cfg(feature = "webgpu")]
            ($crate::Storage::WebGpu($a), $($crate::Storage::WebGpu($b),)*) => {
                map_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            _ => Err($crate::dispatch::mismatch(op, &locations)),
        }
    }};
}

/// Like `map_backend!`, for an op that changes the first storage (`&mut`) and returns nothing.
macro_rules! change_backend {
    (@gpu $op:expr, ($a:ident, $layout:expr) $(, ($b:ident, $other_l:expr))* => $body:expr) => {{
        $($crate::dispatch::same_device($op, &*$a, $b)?;)*
        // Layouts that an op passes only for debugging are not built without it.
        if $crate::watch::watches($a) {
            let operands = [$(($b, $other_l)),*];
            $crate::watch::change($op, ($a, $layout), operands, |$a| $body, |$a, [$($b),*]| $body)
        } else {
            $body
        }
    }};
    ($op:expr, ($self:expr, $layout:expr) $(, ($other:expr, $other_l:expr))* => |$a:ident $(, $b:ident)*| $body:expr) => {{
        let op = $op;
        let locations = [$self.location() $(, $other.location())*];
        #[allow(unreachable_patterns, reason = "one storage is always of one backend")]
        match ($self, $($other,)*) {
            ($crate::Storage::Cpu($a), $($crate::Storage::Cpu($b),)*) => $body,
            ($crate::Storage::Cuda($a), $($crate::Storage::Cuda($b),)*) => {
                change_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            ($crate::Storage::Metal($a), $($crate::Storage::Metal($b),)*) => {
                change_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            #[cfg(feature = "webgpu")]
            ($crate::Storage::WebGpu($a), $($crate::Storage::WebGpu($b),)*) => {
                change_backend!(@gpu op, ($a, $layout) $(, ($b, $other_l))* => $body)
            }
            _ => Err($crate::dispatch::mismatch(op, &locations)),
        }
    }};
}

/// Runs a body on the backend's own device inside a `Device`.
macro_rules! on_device {
    ($self:expr => |$device:ident| $body:expr) => {
        match $self {
            $crate::Device::Cpu => {
                let $device = &$crate::cpu_backend::CpuDevice;
                $body
            }
            $crate::Device::Cuda($device) => $body,
            $crate::Device::Metal($device) => $body,
            #[cfg(feature = "webgpu")]
            $crate::Device::WebGpu($device) => $body,
        }
    };
}

/// The error for storages on different backends; names the first two locations that differ.
pub(crate) fn mismatch(op: &'static str, locations: &[crate::DeviceLocation]) -> crate::Error {
    let lhs = locations[0];
    let rhs = locations.iter().copied().find(|l| *l != lhs).unwrap_or(lhs);
    crate::Error::DeviceMismatchBinaryOp { lhs, rhs, op }.bt()
}

/// An error unless two storages of one backend are on one device.
pub(crate) fn same_device<S: BackendStorage>(op: &'static str, lhs: &S, rhs: &S) -> Result<()> {
    if lhs.device().same_device(rhs.device()) {
        return Ok(());
    }
    let locations = [lhs.device().location(), rhs.device().location()];
    Err(mismatch(op, &locations))
}

/// The dispatch's requirements on a backend's storage beyond its ops: its variant of [`Storage`], and running custom ops.
pub(crate) trait Backend: BackendStorage {
    fn wrap(self) -> Storage;
    fn custom1(&self, l1: &Layout, op: &dyn CustomOp1) -> Result<(Self, Shape)>;
    fn custom2(
        &self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        op: &dyn CustomOp2,
    ) -> Result<(Self, Shape)>;
    fn custom3(
        &self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        s3: &Self,
        l3: &Layout,
        op: &dyn CustomOp3,
    ) -> Result<(Self, Shape)>;
    fn inplace1(&mut self, l1: &Layout, op: &dyn InplaceOp1) -> Result<()>;
    fn inplace2(&mut self, l1: &Layout, s2: &Self, l2: &Layout, op: &dyn InplaceOp2) -> Result<()>;
    fn inplace3(
        &mut self,
        l1: &Layout,
        s2: &Self,
        l2: &Layout,
        s3: &Self,
        l3: &Layout,
        op: &dyn InplaceOp3,
    ) -> Result<()>;
}

macro_rules! backend {
    ($storage:ty, $variant:ident, $fwd:ident) => {
        impl Backend for $storage {
            fn wrap(self) -> Storage {
                Storage::$variant(self)
            }
            fn custom1(&self, l1: &Layout, op: &dyn CustomOp1) -> Result<(Self, Shape)> {
                op.$fwd(self, l1)
            }
            fn custom2(
                &self,
                l1: &Layout,
                s2: &Self,
                l2: &Layout,
                op: &dyn CustomOp2,
            ) -> Result<(Self, Shape)> {
                op.$fwd(self, l1, s2, l2)
            }
            fn custom3(
                &self,
                l1: &Layout,
                s2: &Self,
                l2: &Layout,
                s3: &Self,
                l3: &Layout,
                op: &dyn CustomOp3,
            ) -> Result<(Self, Shape)> {
                op.$fwd(self, l1, s2, l2, s3, l3)
            }
            fn inplace1(&mut self, l1: &Layout, op: &dyn InplaceOp1) -> Result<()> {
                op.$fwd(self, l1)
            }
            fn inplace2(
                &mut self,
                l1: &Layout,
                s2: &Self,
                l2: &Layout,
                op: &dyn InplaceOp2,
            ) -> Result<()> {
                op.$fwd(self, l1, s2, l2)
            }
            fn inplace3(
                &mut self,
                l1: &Layout,
                s2: &Self,
                l2: &Layout,
                s3: &Self,
                l3: &Layout,
                op: &dyn InplaceOp3,
            ) -> Result<()> {
                op.$fwd(self, l1, s2, l2, s3, l3)
            }
        }
    };
}

backend!(CpuStorage, Cpu, cpu_fwd);
backend!(CudaStorage, Cuda, cuda_fwd);
backend!(MetalStorage, Metal, metal_fwd);
#[cfg(feature = "webgpu")]
backend!(crate::WebGpuStorage, WebGpu, webgpu_fwd);
