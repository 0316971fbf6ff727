//! Settings for reduced precision of matrix products. They apply to the whole process, as in upstream; all are off by default.

use std::sync::atomic::{AtomicBool, Ordering};

static F32: AtomicBool = AtomicBool::new(false);
static F16: AtomicBool = AtomicBool::new(false);
static BF16: AtomicBool = AtomicBool::new(false);

/// Whether products of f32 matrices may round their operands to TF32, which has a mantissa of 10 bits.
pub fn gemm_reduced_precision_f32() -> bool {
    F32.load(Ordering::Relaxed)
}

/// Sets [`gemm_reduced_precision_f32`] for all devices of the process.
pub fn set_gemm_reduced_precision_f32(reduced: bool) {
    F32.store(reduced, Ordering::Relaxed);
}

/// Whether products of f16 matrices may accumulate in f16 instead of f32.
pub fn gemm_reduced_precision_f16() -> bool {
    F16.load(Ordering::Relaxed)
}

/// Sets [`gemm_reduced_precision_f16`] for all devices of the process.
pub fn set_gemm_reduced_precision_f16(reduced: bool) {
    F16.store(reduced, Ordering::Relaxed);
}

/// Whether products of bf16 matrices may accumulate partial sums in bf16 instead of f32.
pub fn gemm_reduced_precision_bf16() -> bool {
    BF16.load(Ordering::Relaxed)
}

/// Sets [`gemm_reduced_precision_bf16`] for all devices of the process.
pub fn set_gemm_reduced_precision_bf16(reduced: bool) {
    BF16.store(reduced, Ordering::Relaxed);
}
