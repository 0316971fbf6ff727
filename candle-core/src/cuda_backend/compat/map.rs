//! Traits for ops with one body for all dtypes: `f` is generic, and `map` calls it with the element type of the storages.
//!
//! Packed dtypes (F4, F6E2M3, F6E3M2, F8E8M0), which are stored as plain bytes, return an error, as do operands of different dtypes.

use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};

use super::super::device::CudaDevice;
use super::super::error::CudaError;
use super::super::storage::CudaStorageSlice as S;
use crate::{Layout, Result, WithDType};

/// Runs a body on the slices inside storages of the same dtype, with their enum variant.
macro_rules! with_slices {
    ($op:literal, ($($s:ident),+), $wrap:ident => $body:expr) => {{
        let dtypes = [$($s.dtype()),+];
        match ($($s,)+) {
            ($(S::U8($s),)+) => { let $wrap = S::U8; $body }
            ($(S::U32($s),)+) => { let $wrap = S::U32; $body }
            ($(S::I16($s),)+) => { let $wrap = S::I16; $body }
            ($(S::I32($s),)+) => { let $wrap = S::I32; $body }
            ($(S::I64($s),)+) => { let $wrap = S::I64; $body }
            ($(S::BF16($s),)+) => { let $wrap = S::BF16; $body }
            ($(S::F16($s),)+) => { let $wrap = S::F16; $body }
            ($(S::F32($s),)+) => { let $wrap = S::F32; $body }
            ($(S::F64($s),)+) => { let $wrap = S::F64; $body }
            ($(S::F8E4M3($s),)+) => { let $wrap = S::F8E4M3; $body }
            _ => Err(refused($op, &dtypes).into()),
        }
    }};
}

/// The error if no type fits.
fn refused(op: &'static str, dtypes: &[crate::DType]) -> CudaError {
    let first = dtypes[0];
    match dtypes.iter().find(|dtype| **dtype != first) {
        Some(other) => CudaError::UnexpectedDType {
            msg: op,
            expected: first,
            got: *other,
        },
        None => CudaError::UnsupportedDtype { dtype: first, op },
    }
}

/// An op of one operand, with a result of the same dtype.
pub trait Map1 {
    /// The op for one type.
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        src: &CudaSlice<T>,
        dev: &CudaDevice,
        layout: &Layout,
    ) -> Result<CudaSlice<T>>;

    /// The op for the dtype of `s`.
    ///
    /// # Errors
    /// [`CudaError::UnsupportedDtype`] for a packed dtype, and errors of `f`.
    fn map(&self, s: &S, d: &CudaDevice, l: &Layout) -> Result<S> {
        with_slices!("Map1", (s), wrap => Ok(wrap(self.f(s, d, l)?)))
    }
}

/// An op of two operands of the same dtype, with a result of that dtype.
pub trait Map2 {
    /// The op for one type.
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        src1: &CudaSlice<T>,
        layout1: &Layout,
        src2: &CudaSlice<T>,
        layout2: &Layout,
        dev: &CudaDevice,
    ) -> Result<CudaSlice<T>>;

    /// The op for the operands' dtype.
    ///
    /// # Errors
    /// [`CudaError::UnexpectedDType`] for operands of different dtypes, [`CudaError::UnsupportedDtype`] for a packed dtype, and errors of
    /// `f`.
    fn map(&self, s1: &S, l1: &Layout, s2: &S, l2: &Layout, d: &CudaDevice) -> Result<S> {
        with_slices!("Map2", (s1, s2), wrap => Ok(wrap(self.f(s1, l1, s2, l2, d)?)))
    }
}

/// An op of three operands of the same dtype, with a result of that dtype.
pub trait Map3 {
    /// The op for one type.
    #[allow(clippy::too_many_arguments, reason = "upstream's signature")]
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        src1: &CudaSlice<T>,
        layout1: &Layout,
        src2: &CudaSlice<T>,
        layout2: &Layout,
        src3: &CudaSlice<T>,
        layout3: &Layout,
        dev: &CudaDevice,
    ) -> Result<CudaSlice<T>>;

    /// The op for the operands' dtype.
    ///
    /// # Errors
    /// As [`Map2::map`].
    #[allow(clippy::too_many_arguments, reason = "upstream's signature")]
    fn map(
        &self,
        s1: &S,
        l1: &Layout,
        s2: &S,
        l2: &Layout,
        s3: &S,
        l3: &Layout,
        d: &CudaDevice,
    ) -> Result<S> {
        with_slices!("Map3", (s1, s2, s3), wrap => Ok(wrap(self.f(s1, l1, s2, l2, s3, l3, d)?)))
    }
}

/// An op that changes its first operand and reads another of the same dtype.
pub trait Map2InPlace {
    /// The op for one type.
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        dst: &mut CudaSlice<T>,
        dst_l: &Layout,
        src: &CudaSlice<T>,
        src_l: &Layout,
        dev: &CudaDevice,
    ) -> Result<()>;

    /// The op for the operands' dtype.
    ///
    /// # Errors
    /// As [`Map2::map`].
    fn map(
        &self,
        dst: &mut S,
        dst_l: &Layout,
        src: &S,
        src_l: &Layout,
        d: &CudaDevice,
    ) -> Result<()> {
        with_slices!("Map2InPlace", (dst, src), _wrap => self.f(dst, dst_l, src, src_l, d))
    }
}

/// An op of one operand, whose result has a dtype that the op chooses.
pub trait Map1Any {
    /// The op for one type; `wrap` makes a storage of a slice of the operand's type.
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits, W: Fn(CudaSlice<T>) -> S>(
        &self,
        src: &CudaSlice<T>,
        dev: &CudaDevice,
        layout: &Layout,
        wrap: W,
    ) -> Result<S>;

    /// The op for the dtype of `s`.
    ///
    /// # Errors
    /// As [`Map1::map`].
    fn map(&self, s: &S, d: &CudaDevice, l: &Layout) -> Result<S> {
        with_slices!("Map1Any", (s), wrap => self.f(s, d, l, wrap))
    }
}

/// An op of two operands of the same dtype, whose result has a dtype that the op chooses.
pub trait Map2Any {
    /// The op for one type.
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        src1: &CudaSlice<T>,
        layout1: &Layout,
        src2: &CudaSlice<T>,
        layout2: &Layout,
        dev: &CudaDevice,
    ) -> Result<S>;

    /// The op for the operands' dtype.
    ///
    /// # Errors
    /// As [`Map2::map`].
    fn map(&self, s1: &S, l1: &Layout, s2: &S, l2: &Layout, d: &CudaDevice) -> Result<S> {
        with_slices!("Map2Any", (s1, s2), _wrap => self.f(s1, l1, s2, l2, d))
    }
}

#[cfg(test)]
mod tests {
    use super::refused;
    use crate::DType;

    #[test]
    fn refusals_name_the_dtypes() {
        let text = refused("Map2", &[DType::F32, DType::U8]).to_string();
        assert_eq!(text, "Map2: expected F32, got U8");
        let text = refused("Map2", &[DType::F4, DType::F4]).to_string();
        assert_eq!(text, "Map2 has no CUDA kernel for F4");
    }
}
