//! Conversion between dtypes.

use super::element::{Accumulator, Element};
use super::map::map;
use super::storage::per_dtype;
use super::CpuStorage;
use crate::cpu::kernels::map_slice;
use crate::cpu::scratch::{WidenBuffer, WIDEN};
use crate::{DType, Error, Layout, Result};

pub(super) fn to_dtype(storage: &CpuStorage, layout: &Layout, dtype: DType) -> Result<CpuStorage> {
    match (storage, dtype) {
        // To and from f32 slice by slice, with the CPU's conversion instructions.
        (CpuStorage::F16(vs), DType::F32) => Ok(widen(vs, layout)),
        (CpuStorage::BF16(vs), DType::F32) => Ok(widen(vs, layout)),
        (CpuStorage::F32(vs), DType::F16) => Ok(narrow::<half::f16>(vs, layout)),
        (CpuStorage::F32(vs), DType::BF16) => Ok(narrow::<half::bf16>(vs, layout)),
        (CpuStorage::F16(vs), DType::BF16) => Ok(narrow_small::<_, half::bf16>(vs, layout)),
        (CpuStorage::BF16(vs), DType::F16) => Ok(narrow_small::<_, half::f16>(vs, layout)),
        _ => per_dtype!(storage, "to_dtype", |vs: T| cast(vs, layout, dtype)),
    }
}

fn widen<T: Element>(vs: &[T], layout: &Layout) -> CpuStorage {
    // SAFETY: `widen` writes every element.
    CpuStorage::F32(unsafe { map(vs, layout, &T::widen) })
}

fn narrow<D: Element>(vs: &[f32], layout: &Layout) -> CpuStorage {
    // SAFETY: `narrow` writes every element; elements are numbers.
    D::to_cpu_storage_owned(unsafe { map(vs, layout, &D::narrow) })
}

/// Converts between two smaller floats, through f32.
fn narrow_small<S: Element, D: Element>(vs: &[S], layout: &Layout) -> CpuStorage {
    let convert = |xs: &[S], ys: &mut [D]| {
        let mut buffer = WidenBuffer::new();
        let buffer = buffer.filled(0f32, xs.len());
        for (xs, ys) in xs.chunks(WIDEN).zip(ys.chunks_mut(WIDEN)) {
            let buffer = &mut buffer[..xs.len()];
            S::widen(xs, buffer);
            D::narrow(buffer, ys);
        }
    };
    // SAFETY: as above.
    D::to_cpu_storage_owned(unsafe { map(vs, layout, &convert) })
}

fn cast<S: Element>(vs: &[S], layout: &Layout, dtype: DType) -> Result<CpuStorage> {
    fn to<S: Element, D: Element>(vs: &[S], layout: &Layout) -> Result<CpuStorage> {
        let convert = |xs: &[S], ys: &mut [D]| {
            let mut buffer = WidenBuffer::new();
            let buffer = buffer.filled(S::Acc::ZERO, xs.len());
            for (xs, ys) in xs.chunks(WIDEN).zip(ys.chunks_mut(WIDEN)) {
                map_slice(S::acc_slice(xs, buffer), ys, |v| v.cast::<D>());
            }
        };
        // SAFETY: `map_slice` writes every element; elements are numbers.
        Ok(D::to_cpu_storage_owned(unsafe {
            map(vs, layout, &convert)
        }))
    }
    match dtype {
        DType::U8 => to::<S, u8>(vs, layout),
        DType::U32 => to::<S, u32>(vs, layout),
        DType::I16 => to::<S, i16>(vs, layout),
        DType::I32 => to::<S, i32>(vs, layout),
        DType::I64 => to::<S, i64>(vs, layout),
        DType::BF16 => to::<S, half::bf16>(vs, layout),
        DType::F16 => to::<S, half::f16>(vs, layout),
        DType::F32 => to::<S, f32>(vs, layout),
        DType::F64 => to::<S, f64>(vs, layout),
        DType::F8E4M3 => to::<S, float8::F8E4M3>(vs, layout),
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
            Err(Error::UnsupportedDTypeForOp(dtype, "to_dtype").bt())
        }
    }
}
