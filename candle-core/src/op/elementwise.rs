//! The elementwise operations and their definition for every dtype.

use std::marker::PhantomData;

use float8::F8E4M3;
use half::{bf16, f16};
use num_traits::Float;

use crate::cpu::half_floats::{bf16_to_f32, f32_to_bf16};
use crate::cpu::kernels::{map_slice, map_through_f32, zip_slices, zip_through_f32};
use crate::cpu::simd::multiversioned;
use crate::cpu::{erf, functions, trigonometry};

/// An elementwise function of one argument, for each dtype. All functions are total: none panics for any argument.
pub trait UnaryOpT {
    /// The op's name in errors.
    const NAME: &'static str;
    /// The name of the op's kernels in the GPU backends.
    const KERNEL: &'static str;
    /// The op as a value.
    const V: Self;
    /// Whether the op is defined on integers; if not, the backends return an error. The integer functions below then
    /// compute in f64 and truncate.
    fn has_integers() -> bool {
        true
    }

    /// The function on `bf16`.
    fn bf16(v1: bf16) -> bf16;
    /// The function on `f16`.
    fn f16(v1: f16) -> f16;
    /// The function on `f32`.
    fn f32(v1: f32) -> f32;
    /// The function on `f64`.
    fn f64(v1: f64) -> f64;
    /// The function on `F8E4M3`.
    fn f8e4m3(v1: F8E4M3) -> F8E4M3;
    /// The function on `u8`.
    fn u8(v1: u8) -> u8;
    /// The function on `u32`.
    fn u32(v1: u32) -> u32;
    /// The function on `i16`.
    fn i16(v1: i16) -> i16;
    /// The function on `i32`.
    fn i32(v1: i32) -> i32;
    /// The function on `i64`.
    fn i64(v1: i64) -> i64;

    /// The function on each element, `ys = f(xs)`.
    fn bf16_vec(xs: &[bf16], ys: &mut [bf16]) {
        map_slice(xs, ys, Self::bf16);
    }
    /// The function on each element, `ys = f(xs)`.
    fn f16_vec(xs: &[f16], ys: &mut [f16]) {
        map_slice(xs, ys, Self::f16);
    }
    /// The function on each element, `ys = f(xs)`.
    fn f32_vec(xs: &[f32], ys: &mut [f32]) {
        map_f32(xs, ys, PhantomData::<Self>);
    }
    /// The function on each element, `ys = f(xs)`.
    fn f64_vec(xs: &[f64], ys: &mut [f64]) {
        map_f64(xs, ys, PhantomData::<Self>);
    }
}

// Generic over the op's type: a function passed as a value is only inlined while it is small.
multiversioned! {
    fn map_f32[Op: UnaryOpT + ?Sized](xs: &[f32], ys: &mut [f32], _op: PhantomData<Op>) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = Op::f32(x);
        }
    }

    fn map_f64[Op: UnaryOpT + ?Sized](xs: &[f64], ys: &mut [f64], _op: PhantomData<Op>) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = Op::f64(x);
        }
    }
}

multiversioned! {
    // Converting bf16 takes a few integer instructions, which fit between those of the op.
    fn zip_bf16[Op: BinaryOpT + ?Sized](xs1: &[bf16], xs2: &[bf16], ys: &mut [bf16], _op: PhantomData<Op>) {
        for ((y, &l), &r) in ys.iter_mut().zip(xs1).zip(xs2) {
            *y = f32_to_bf16(Op::f32(bf16_to_f32(l), bf16_to_f32(r)));
        }
    }

    fn zip_scalar_bf16[Op: BinaryOpT + ?Sized](scalar: bf16, xs: &[bf16], ys: &mut [bf16], _op: PhantomData<Op>) {
        let scalar = bf16_to_f32(scalar);
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = f32_to_bf16(Op::f32(bf16_to_f32(x), scalar));
        }
    }
}

/// Whether `l < r` for the bits of two 16-bit floats; `infinity` holds the bits of infinity.
#[inline(always)]
fn bits_less(l: u16, r: u16, infinity: u16) -> bool {
    // The bit patterns of negative numbers are in reverse order.
    let order = |bits: u16| (bits ^ ((bits as i16) >> 15) as u16 & 0x7FFF) as i16;
    let numbers = (l & 0x7FFF <= infinity) & (r & 0x7FFF <= infinity);
    let zeros = (l | r) & 0x7FFF == 0;
    (order(l) < order(r)) & numbers & !zeros
}

/// The methods of [`BinaryOpT`] for one dtype: on two values, on two slices, on a slice and a value.
macro_rules! binary_methods {
    ($($ty:ident $vec:ident $scalar_vec:ident),+ $(,)?) => {$(
        #[doc = concat!("The function on `", stringify!($ty), "`.")]
        fn $ty(v1: $ty, v2: $ty) -> $ty;

        /// The function on each pair of elements, `ys = f(xs1, xs2)`.
        fn $vec(xs1: &[$ty], xs2: &[$ty], ys: &mut [$ty]) {
            zip_slices(xs1, xs2, ys, Self::$ty);
        }

        /// The function on each element and a fixed second argument, `ys = f(xs, scalar)`.
        fn $scalar_vec(scalar: $ty, xs: &[$ty], ys: &mut [$ty]) {
            map_slice(xs, ys, |x| Self::$ty(x, scalar));
        }
    )+};
}

/// An elementwise function of two arguments, for each dtype. Integers wrap; dividing by 0 gives 0 here, but an error in
/// the backends.
pub trait BinaryOpT {
    /// The op's name in errors.
    const NAME: &'static str;
    /// The name of the op's kernels in the GPU backends.
    const KERNEL: &'static str;
    /// The op as a value.
    const V: Self;

    /// The function on `F8E4M3`.
    fn f8e4m3(v1: F8E4M3, v2: F8E4M3) -> F8E4M3;

    binary_methods! {
        bf16 bf16_vec bf16_scalar_vec,
        f16 f16_vec f16_scalar_vec,
        f32 f32_vec f32_scalar_vec,
        f64 f64_vec f64_scalar_vec,
        u8 u8_vec u8_scalar_vec,
        u32 u32_vec u32_scalar_vec,
        i16 i16_vec i16_scalar_vec,
        i32 i32_vec i32_scalar_vec,
        i64 i64_vec i64_scalar_vec,
    }
}

/// The smaller floats compute in f32 and round once.
macro_rules! small_floats {
    (unary $($method:ident: $ty:ident),+) => {$(
        #[inline(always)]
        fn $method(v1: $ty) -> $ty {
            $ty::from_f32(Self::f32(v1.to_f32()))
        }
    )+};
    (binary $($method:ident: $ty:ident),+) => {$(
        #[inline(always)]
        fn $method(v1: $ty, v2: $ty) -> $ty {
            $ty::from_f32(Self::f32(v1.to_f32(), v2.to_f32()))
        }
    )+};
}

/// The constants of an op.
macro_rules! op_consts {
    ($name:ident, $op:literal, $kernel:literal) => {
        const NAME: &'static str = $op;
        const KERNEL: &'static str = $kernel;
        const V: Self = $name;
    };
}

macro_rules! binary_ops {
    ($($(#[$doc:meta])* $name:ident $op:literal $kernel:literal, |$l:ident, $r:ident| float $float:expr, int $int:expr;)+) => {$(
        $(#[$doc])*
        pub struct $name;

        impl BinaryOpT for $name {
            op_consts!($name, $op, $kernel);

            small_floats!(binary bf16: bf16, f16: f16, f8e4m3: F8E4M3);
            binary_ops!(@fns |$l, $r| $float; f32 f64);
            binary_ops!(@fns |$l, $r| $int; u8 u32 i16 i32 i64);
            half_pairs!($name);
        }
    )+};
    (@fns |$l:ident, $r:ident| $value:expr; $($ty:ident)+) => {$(
        #[inline(always)]
        fn $ty($l: $ty, $r: $ty) -> $ty {
            $value
        }
    )+};
}

/// Slices of 16-bit floats: maximum and minimum compare bits, the other ops compute in f32.
macro_rules! half_pairs {
    (Maximum) => {
        half_pairs!(@bits |l, r, infinity| if bits_less(l, r, infinity) { r } else { l };
            bf16 bf16_vec bf16_scalar_vec, f16 f16_vec f16_scalar_vec);
    };
    (Minimum) => {
        half_pairs!(@bits |l, r, infinity| if bits_less(r, l, infinity) { r } else { l };
            bf16 bf16_vec bf16_scalar_vec, f16 f16_vec f16_scalar_vec);
    };
    ($name:ident) => {
        fn bf16_vec(xs1: &[bf16], xs2: &[bf16], ys: &mut [bf16]) {
            zip_bf16(xs1, xs2, ys, PhantomData::<Self>);
        }

        fn bf16_scalar_vec(scalar: bf16, xs: &[bf16], ys: &mut [bf16]) {
            zip_scalar_bf16(scalar, xs, ys, PhantomData::<Self>);
        }

        fn f16_vec(xs1: &[f16], xs2: &[f16], ys: &mut [f16]) {
            zip_through_f32(xs1, xs2, ys, Self::f32_vec);
        }

        fn f16_scalar_vec(scalar: f16, xs: &[f16], ys: &mut [f16]) {
            map_through_f32(xs, ys, |x, y| Self::f32_scalar_vec(scalar.to_f32(), x, y));
        }
    };
    (@bits |$l:ident, $r:ident, $infinity:ident| $value:expr; $($ty:ident $vec:ident $scalar_vec:ident),+) => {$(
        fn $vec(xs1: &[$ty], xs2: &[$ty], ys: &mut [$ty]) {
            zip_slices(xs1, xs2, ys, |l, r| {
                let ($l, $r, $infinity) = (l.to_bits(), r.to_bits(), $ty::INFINITY.to_bits());
                $ty::from_bits($value)
            });
        }

        fn $scalar_vec(scalar: $ty, xs: &[$ty], ys: &mut [$ty]) {
            let $r = scalar.to_bits();
            map_slice(xs, ys, |x| {
                let ($l, $infinity) = (x.to_bits(), $ty::INFINITY.to_bits());
                $ty::from_bits($value)
            });
        }
    )+};
}

binary_ops! {
    /// Marks [`BinaryOp::Add`](super::BinaryOp::Add).
    Add "add" "badd", |l, r| float l + r, int l.wrapping_add(r);
    /// Marks [`BinaryOp::Sub`](super::BinaryOp::Sub).
    Sub "sub" "bsub", |l, r| float l - r, int l.wrapping_sub(r);
    /// Marks [`BinaryOp::Mul`](super::BinaryOp::Mul).
    Mul "mul" "bmul", |l, r| float l * r, int l.wrapping_mul(r);
    /// Marks [`BinaryOp::Div`](super::BinaryOp::Div).
    Div "div" "bdiv", |l, r| float l / r, int if r == 0 { 0 } else { l.wrapping_div(r) };
    /// Marks [`BinaryOp::Maximum`](super::BinaryOp::Maximum): a NaN stays on the left side and is ignored on the right.
    Maximum "maximum" "bmaximum", |l, r| float if l < r { r } else { l }, int l.max(r);
    /// Marks [`BinaryOp::Minimum`](super::BinaryOp::Minimum): a NaN stays on the left side and is ignored on the right.
    Minimum "minimum" "bminimum", |l, r| float if l > r { r } else { l }, int l.min(r);
}

/// Slices of 16-bit floats: ops that depend only on the sign work on the bits, the others compute in f32.
macro_rules! half_slices {
    (Neg $($ty:ident $vec:ident),+) => {
        half_slices!(@bits |v, infinity| v ^ 0x8000; $($ty $vec),+);
    };
    (Abs $($ty:ident $vec:ident),+) => {
        half_slices!(@bits |v, infinity| v & 0x7FFF; $($ty $vec),+);
    };
    (Relu $($ty:ident $vec:ident),+) => {
        // Greater bits are NaN or negative.
        half_slices!(@bits |v, infinity| if v <= infinity { v } else { 0 }; $($ty $vec),+);
    };
    ($name:ident $($ty:ident $vec:ident),+) => {$(
        fn $vec(xs: &[$ty], ys: &mut [$ty]) {
            map_through_f32(xs, ys, Self::f32_vec);
        }
    )+};
    (@bits |$v:ident, $infinity:ident| $value:expr; $($ty:ident $vec:ident),+) => {$(
        fn $vec(xs: &[$ty], ys: &mut [$ty]) {
            map_slice(xs, ys, |v| {
                #[allow(unused_variables, reason = "one op looks at it")]
                let ($v, $infinity) = (v.to_bits(), $ty::INFINITY.to_bits());
                $ty::from_bits($value)
            });
        }
    )+};
}

/// Slices of f32, for ops whose vectorised form is not valid for every argument.
macro_rules! f32_slices {
    (Sin) => {
        fn f32_vec(xs: &[f32], ys: &mut [f32]) {
            trigonometry::sin_slice(xs, ys);
        }
    };
    (Cos) => {
        fn f32_vec(xs: &[f32], ys: &mut [f32]) {
            trigonometry::cos_slice(xs, ys);
        }
    };
    ($name:ident) => {};
}

macro_rules! unary_ops {
    // Ops for floats; on integers they compute in f64.
    ($($(#[$doc:meta])* $name:ident $op:literal $kernel:literal, |$v:ident| float $float:expr;)+) => {
        unary_ops! {
            $($(#[$doc])* $name $op $kernel, false, |$v| f32 $float, f64 $float,
              unsigned Self::f64($v as f64) as _, signed Self::f64($v as f64) as _;)+
        }
    };
    ($($(#[$doc:meta])* $name:ident $op:literal $kernel:literal, |$v:ident| f32 $f32:expr, f64 $f64:expr;)+) => {
        unary_ops! {
            $($(#[$doc])* $name $op $kernel, false, |$v| f32 $f32, f64 $f64,
              unsigned Self::f64($v as f64) as _, signed Self::f64($v as f64) as _;)+
        }
    };
    // Ops for floats and integers.
    ($($(#[$doc:meta])* $name:ident $op:literal $kernel:literal, |$v:ident| float $float:expr, unsigned $unsigned:expr, signed $signed:expr;)+) => {
        unary_ops! {
            $($(#[$doc])* $name $op $kernel, true, |$v| f32 $float, f64 $float, unsigned $unsigned, signed $signed;)+
        }
    };
    ($($(#[$doc:meta])* $name:ident $op:literal $kernel:literal, $integers:literal, |$v:ident| f32 $f32:expr, f64 $f64:expr, unsigned $unsigned:expr, signed $signed:expr;)+) => {$(
        $(#[$doc])*
        pub struct $name;

        impl UnaryOpT for $name {
            op_consts!($name, $op, $kernel);

            fn has_integers() -> bool {
                $integers
            }

            small_floats!(unary bf16: bf16, f16: f16, f8e4m3: F8E4M3);
            unary_ops!(@fns |$v| $f32; f32);
            unary_ops!(@fns |$v| $f64; f64);
            unary_ops!(@fns |$v| $unsigned; u8 u32);
            unary_ops!(@fns |$v| $signed; i16 i32 i64);

            half_slices!($name bf16 bf16_vec, f16 f16_vec);
            f32_slices!($name);
        }
    )+};
    (@fns |$v:ident| $value:expr; $($ty:ident)+) => {$(
        #[inline(always)]
        fn $ty($v: $ty) -> $ty {
            $value
        }
    )+};
}

unary_ops! {
    /// Marks [`UnaryOp::Abs`](super::UnaryOp::Abs).
    Abs "abs" "uabs", |v| float v.abs(), unsigned v, signed v.wrapping_abs();
    /// Marks [`UnaryOp::Neg`](super::UnaryOp::Neg).
    Neg "neg" "uneg", |v| float -v, unsigned v.wrapping_neg(), signed v.wrapping_neg();
    /// Marks [`UnaryOp::Sqr`](super::UnaryOp::Sqr).
    Sqr "sqr" "usqr", |v| float v * v, unsigned v.wrapping_mul(v), signed v.wrapping_mul(v);
    /// Marks [`UnaryOp::Relu`](super::UnaryOp::Relu); NaN gives 0.
    Relu "relu" "urelu", |v| float v.max(0.), unsigned v, signed v.max(0);
    /// Marks [`UnaryOp::Floor`](super::UnaryOp::Floor).
    Floor "floor" "ufloor", |v| float v.floor(), unsigned v, signed v;
    /// Marks [`UnaryOp::Ceil`](super::UnaryOp::Ceil).
    Ceil "ceil" "uceil", |v| float v.ceil(), unsigned v, signed v;
    /// Marks [`UnaryOp::Round`](super::UnaryOp::Round).
    Round "round" "uround", |v| float v.round(), unsigned v, signed v;
    /// Marks [`UnaryOp::Sign`](super::UnaryOp::Sign); NaN and both zeros give 0.
    Sign "sign" "usign", |v| float sign(v), unsigned v.min(1), signed v.signum();
}

unary_ops! {
    /// Marks [`UnaryOp::Recip`](super::UnaryOp::Recip).
    Recip "recip" "urecip", |v| float v.recip();
    /// Marks [`UnaryOp::Sqrt`](super::UnaryOp::Sqrt).
    Sqrt "sqrt" "usqrt", |v| float v.sqrt();
}

// In f32, forms that the compiler can vectorise.
unary_ops! {
    /// Marks [`UnaryOp::Exp`](super::UnaryOp::Exp).
    Exp "exp" "uexp", |v| f32 functions::exp(v), f64 functions::exp_f64(v);
    /// Marks [`UnaryOp::Log`](super::UnaryOp::Log).
    Log "log" "ulog", |v| f32 functions::ln(v), f64 v.ln();
    /// Marks [`UnaryOp::Sin`](super::UnaryOp::Sin).
    Sin "sin" "usin", |v| f32 trigonometry::sin(v), f64 v.sin();
    /// Marks [`UnaryOp::Cos`](super::UnaryOp::Cos).
    Cos "cos" "ucos", |v| f32 trigonometry::cos(v), f64 v.cos();
    /// Marks [`UnaryOp::Tanh`](super::UnaryOp::Tanh).
    Tanh "tanh" "utanh", |v| f32 functions::tanh(v), f64 v.tanh();
    /// Marks [`UnaryOp::Silu`](super::UnaryOp::Silu).
    Silu "silu" "usilu", |v| f32 functions::silu(v), f64 v / (1. + functions::exp_f64(-v));
    /// Marks [`UnaryOp::Gelu`](super::UnaryOp::Gelu).
    Gelu "gelu" "ugelu", |v| f32 functions::gelu_tanh(v), f64 gelu_tanh(v, 0.044715);
    /// Marks [`UnaryOp::GeluErf`](super::UnaryOp::GeluErf).
    GeluErf "gelu_erf" "ugelu_erf", |v|
        f32 0.5 * v * functions::erfc(-v * std::f32::consts::FRAC_1_SQRT_2),
        f64 0.5 * v * erf::erfc_f64(-v * std::f64::consts::FRAC_1_SQRT_2);
    /// Marks [`UnaryOp::Erf`](super::UnaryOp::Erf).
    Erf "erf" "uerf", |v| f32 functions::erf(v), f64 erf::erf_f64(v);
}

#[inline(always)]
fn sign<T: Float>(v: T) -> T {
    if v > T::zero() {
        T::one()
    } else if v < T::zero() {
        -T::one()
    } else {
        T::zero()
    }
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + cubic * x^3)))`
#[inline(always)]
fn gelu_tanh<T: Float + num_traits::FloatConst>(v: T, cubic: T) -> T {
    let sqrt_2_over_pi = T::FRAC_2_SQRT_PI() * T::FRAC_1_SQRT_2();
    let half = (T::one() + T::one()).recip();
    half * v * (T::one() + (sqrt_2_over_pi * v * (T::one() + cubic * v * v)).tanh())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_never_panic() {
        assert_eq!(Add::u8(250, 10), 4);
        assert_eq!(Sub::u32(0, 1), u32::MAX);
        assert_eq!(Mul::i16(i16::MAX, 2), -2);
        assert_eq!(Div::i64(i64::MIN, -1), i64::MIN);
        assert_eq!(Div::i32(1, 0), 0);
        assert_eq!(Abs::i32(i32::MIN), i32::MIN);
        assert_eq!(Neg::u8(1), 255);
        assert_eq!(Log::i64(0), i64::MIN);
        assert_eq!(Sqrt::u32(17), 4);
    }

    #[test]
    fn nan_in_maximum_depends_on_its_side() {
        assert!(Maximum::f32(f32::NAN, 1.).is_nan());
        assert_eq!(Maximum::f32(1., f32::NAN), 1.);
        assert!(Minimum::f64(f64::NAN, 1.).is_nan());
    }

    #[test]
    fn activations_at_known_points() {
        // x * Phi(x), with Phi from tables of the normal distribution.
        assert!((GeluErf::f64(1.) - 0.8413447460685429).abs() < 1e-14);
        assert!((f64::from(GeluErf::f32(-3.)) + 3. * 1.349898031630095e-3).abs() < 1e-8);
        // The approximation differs from the exact function by up to 5e-4.
        assert!((Gelu::f64(1.) - 0.841192).abs() < 1e-6);
        assert!((Silu::f64(1.) - 0.7310585786300049).abs() < 1e-15);
        assert_eq!(Round::f32(-2.5), -3.);
        assert_eq!(Sign::f32(-0.), 0.);
        assert_eq!(Silu::bf16(bf16::ZERO), bf16::ZERO);
    }

    #[test]
    fn sign_ops_on_the_bits_of_half_floats() {
        fn check<Op: UnaryOpT>() {
            let xs: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
            let mut ys = vec![f16::ONE; xs.len()];
            Op::f16_vec(&xs, &mut ys);
            for (&x, &y) in xs.iter().zip(&ys) {
                let expected = Op::f16(x);
                assert!(y == expected || y.is_nan() && expected.is_nan(), "{x:?}");
            }
        }
        check::<Neg>();
        check::<Abs>();
        check::<Relu>();
    }

    #[test]
    fn greater_and_lesser_by_the_bits_of_half_floats() {
        fn check<Op: BinaryOpT>() {
            // Every 251st pattern, and those around zeros, infinities and NaNs, on both sides.
            let edges = [
                0, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7C01, 0x7F80, 0x7F81, 0x7FFF,
            ];
            let edges = edges
                .into_iter()
                .flat_map(|bits: u16| [bits, bits | 0x8000]);
            let bits: Vec<u16> = edges.chain((0..=u16::MAX).step_by(251)).collect();
            macro_rules! pairs {
                ($ty:ident $vec:ident $scalar_vec:ident) => {
                    let xs: Vec<$ty> = bits.iter().map(|&bits| $ty::from_bits(bits)).collect();
                    let mut ys = [vec![$ty::ONE; xs.len()], vec![$ty::ONE; xs.len()]];
                    for &r in &xs {
                        Op::$vec(&xs, &vec![r; xs.len()], &mut ys[0]);
                        Op::$scalar_vec(r, &xs, &mut ys[1]);
                        for (i, &l) in xs.iter().enumerate() {
                            let expected = Op::$ty(l, r);
                            for y in [ys[0][i], ys[1][i]] {
                                let same = y.to_bits() == expected.to_bits();
                                assert!(same || y.is_nan() && expected.is_nan(), "{l:?} {r:?}");
                            }
                        }
                    }
                };
            }
            pairs!(f16 f16_vec f16_scalar_vec);
            pairs!(bf16 bf16_vec bf16_scalar_vec);
        }
        check::<Maximum>();
        check::<Minimum>();
    }

    #[test]
    fn slices_of_half_floats_agree_with_values() {
        let xs: Vec<f16> = (0..600).map(|i| f16::from_f32(i as f32 / 7.)).collect();
        let mut ys = vec![f16::ZERO; xs.len()];
        Sqrt::f16_vec(&xs, &mut ys);
        assert!(xs.iter().zip(&ys).all(|(&x, &y)| Sqrt::f16(x) == y));
        let mut zs = ys.clone();
        Sub::f16_vec(&xs, &ys, &mut zs);
        assert!((0..600).all(|i| Sub::f16(xs[i], ys[i]) == zs[i]));
        let xs: Vec<bf16> = xs.iter().map(|&x| bf16::from_f32(x.to_f32())).collect();
        let mut ys = vec![bf16::ZERO; xs.len()];
        Div::bf16_vec(&xs[1..], &xs[..599], &mut ys[..599]);
        assert!((0..599).all(|i| Div::bf16(xs[i + 1], xs[i]) == ys[i]));
        Mul::bf16_scalar_vec(xs[5], &xs, &mut ys);
        assert!((0..600).all(|i| Mul::bf16(xs[i], xs[5]) == ys[i]));
    }
}
