//! Whether products may be computed with less precision than their dtype has, as upstream's switches say.

use std::sync::atomic::{AtomicBool, Ordering};

macro_rules! switch {
    ($get:ident, $set:ident, $switch:ident, $doc:literal) => {
        static $switch: AtomicBool = AtomicBool::new(false);

        #[doc = concat!("Whether ", $doc, "; false at first.")]
        pub fn $get() -> bool {
            $switch.load(Ordering::Relaxed)
        }

        #[doc = concat!("Sets whether ", $doc, ", for all CUDA devices of the process.")]
        pub fn $set(reduced: bool) {
            $switch.store(reduced, Ordering::Relaxed);
        }
    };
}

switch!(
    gemm_reduced_precision_f32,
    set_gemm_reduced_precision_f32,
    F32,
    "products of f32 may round their operands to TF32, 10 bits after the point"
);
switch!(
    gemm_reduced_precision_f16,
    set_gemm_reduced_precision_f16,
    F16,
    "products of f16 may sum in f16; this backend sums in f32 all the same"
);
switch!(
    gemm_reduced_precision_bf16,
    set_gemm_reduced_precision_bf16,
    BF16,
    "products of bf16 may sum in bf16; this backend sums in f32 all the same"
);
