//! Elementwise ops on one storage.

use super::element::Element;
use super::map;
use super::storage::per_dtype;
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::cpu::functions;
use crate::cpu::kernels::map_slice;
use crate::cpu::scratch::{WidenBuffer, WIDEN};
use crate::cpu::simd::multiversioned;
use crate::op::UnaryOpT;
use crate::{Error, Layout, Result, WithDType};

/// A function of each element, without a separate form for slices.
fn map_all<T: Element>(
    vs: &[T],
    layout: &Layout,
    f: impl Fn(T) -> T + Sync + Copy,
) -> Result<CpuStorage> {
    // SAFETY: `map_slice` writes its slice; elements are numbers.
    let dst = unsafe { map::map(vs, layout, &|xs: &[T], ys: &mut [T]| map_slice(xs, ys, f)) };
    Ok(T::to_cpu_storage_owned(dst))
}

fn unsupported<R>(storage: &CpuStorage, op: &'static str) -> Result<R> {
    Err(Error::UnsupportedDTypeForOp(storage.dtype(), op).bt())
}

pub(super) fn unary<B: UnaryOpT>(storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
    if storage.dtype().is_int() && !B::has_integers() {
        return unsupported(storage, B::NAME);
    }
    match storage {
        CpuStorage::BF16(vs) => {
            // SAFETY: the slice functions of ops write all of their result, which consists of numbers.
            let dst = unsafe { map::map(vs, layout, &B::bf16_vec) };
            Ok(CpuStorage::BF16(dst))
        }
        CpuStorage::F16(vs) => {
            // SAFETY: the slice functions of ops write all of their result, which consists of numbers.
            let dst = unsafe { map::map(vs, layout, &B::f16_vec) };
            Ok(CpuStorage::F16(dst))
        }
        CpuStorage::F32(vs) => {
            // SAFETY: the slice functions of ops write all of their result, which consists of numbers.
            let dst = unsafe { map::map(vs, layout, &B::f32_vec) };
            Ok(CpuStorage::F32(dst))
        }
        CpuStorage::F64(vs) => {
            // SAFETY: the slice functions of ops write all of their result, which consists of numbers.
            let dst = unsafe { map::map(vs, layout, &B::f64_vec) };
            Ok(CpuStorage::F64(dst))
        }
        CpuStorage::F8E4M3(vs) => map_all(vs, layout, B::f8e4m3),
        CpuStorage::U8(vs) => map_all(vs, layout, B::u8),
        CpuStorage::U32(vs) => map_all(vs, layout, B::u32),
        CpuStorage::I16(vs) => map_all(vs, layout, B::i16),
        CpuStorage::I32(vs) => map_all(vs, layout, B::i32),
        CpuStorage::I64(vs) => map_all(vs, layout, B::i64),
        other => unsupported(other, B::NAME),
    }
}

/// Like `map`, for a function of f32 on a smaller float: widens and rounds slice by slice.
fn map_small<T: Element>(
    vs: &[T],
    layout: &Layout,
    f: impl Fn(f32) -> f32 + Sync + Copy,
) -> Result<CpuStorage> {
    let f_vec = |xs: &[T], ys: &mut [T]| {
        let mut buffer = WidenBuffer::new();
        let buffer = buffer.filled(0., xs.len());
        for (xs, ys) in xs.chunks(WIDEN).zip(ys.chunks_mut(WIDEN)) {
            let buffer = &mut buffer[..xs.len()];
            T::widen(xs, buffer);
            map_in_place(buffer, f);
            T::narrow(buffer, ys);
        }
    };
    // SAFETY: `narrow` writes every element; they are numbers.
    let dst = unsafe { map::map(vs, layout, &f_vec) };
    Ok(T::to_cpu_storage_owned(dst))
}

multiversioned! {
    fn map_in_place[F: Fn(f32) -> f32](vs: &mut [f32], f: F) {
        for v in vs {
            *v = f(*v);
        }
    }
}

/// `x * mul + add`, with both converted to the elements' type first: on integers 0.5 counts as 0, and results wrap.
pub(super) fn affine(
    storage: &CpuStorage,
    layout: &Layout,
    mul: f64,
    add: f64,
) -> Result<CpuStorage> {
    fn small<T: Element>(vs: &[T], layout: &Layout, mul: f64, add: f64) -> Result<CpuStorage> {
        let (mul, add) = (T::from_f64(mul).as_f32(), T::from_f64(add).as_f32());
        map_small(vs, layout, |v| v * mul + add)
    }
    match storage {
        CpuStorage::F8E4M3(vs) => small(vs, layout, mul, add),
        CpuStorage::BF16(vs) => small(vs, layout, mul, add),
        CpuStorage::F16(vs) => small(vs, layout, mul, add),
        _ => per_dtype!(storage, "affine", |vs: T| {
            let (mul, add) = (T::from_f64(mul), T::from_f64(add));
            map_all(vs, layout, |v: T| v.times(mul).plus(add))
        }),
    }
}

/// A function of floats: f64 directly, the others through f32.
fn map_float(
    storage: &CpuStorage,
    layout: &Layout,
    op: &'static str,
    f32: impl Fn(f32) -> f32 + Sync + Copy,
    f64: impl Fn(f64) -> f64 + Sync + Copy,
) -> Result<CpuStorage> {
    match storage {
        CpuStorage::F8E4M3(vs) => map_small(vs, layout, f32),
        CpuStorage::BF16(vs) => map_small(vs, layout, f32),
        CpuStorage::F16(vs) => map_small(vs, layout, f32),
        CpuStorage::F32(vs) => map_all(vs, layout, f32),
        CpuStorage::F64(vs) => map_all(vs, layout, f64),
        other => unsupported(other, op),
    }
}

pub(super) fn powf(storage: &CpuStorage, layout: &Layout, exponent: f64) -> Result<CpuStorage> {
    map_float(
        storage,
        layout,
        "powf",
        |v| v.powf(exponent as f32),
        |v| v.powf(exponent),
    )
}

pub(super) fn elu(storage: &CpuStorage, layout: &Layout, alpha: f64) -> Result<CpuStorage> {
    let alpha32 = alpha as f32;
    map_float(
        storage,
        layout,
        "elu",
        move |v| {
            if v > 0. {
                v
            } else {
                functions::exp_m1(v) * alpha32
            }
        },
        move |v| if v > 0. { v } else { v.exp_m1() * alpha },
    )
}
