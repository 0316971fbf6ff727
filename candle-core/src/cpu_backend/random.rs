//! Random numbers on the CPU: one generator for the process, which [`set_seed`] restarts.
//!
//! Each call draws one number from it. Each block of fixed size has a separate generator seeded from that number, so the result depends
//! only on the seed, not on the number of threads.

use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal, StandardUniform};

use super::element::Element;
use super::CpuStorage;
use crate::cpu::threads;
use crate::{DType, Error, Result, Shape};

/// Number of elements from one generator.
const BLOCK: usize = 1 << 14;

struct State {
    seed: u64,
    rng: StdRng,
}

impl State {
    fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { seed, rng }
    }
}

/// Until it is seeded, the generator starts from the random keys of the standard library's hash maps, which exist on every target,
/// including browsers.
static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let seed = std::hash::RandomState::new().build_hasher().finish();
    Mutex::new(State::new(seed))
});

pub(super) fn set_seed(seed: u64) {
    *STATE.lock() = State::new(seed);
}

/// The process's next random number, the seed of one call's elements.
pub(super) fn next() -> u64 {
    STATE.lock().rng.random()
}

pub(super) fn current_seed() -> u64 {
    STATE.lock().seed
}

/// Uniform in `[lo, up)`, determined by `seed`; rounding to a 16-bit dtype can reach `up`.
pub(super) fn uniform(
    seed: u64,
    shape: &Shape,
    dtype: DType,
    lo: f64,
    up: f64,
) -> Result<CpuStorage> {
    const OP: &str = "rand_uniform";
    if !(lo <= up && lo.is_finite() && up.is_finite()) {
        return Err(Error::msg(format!(
            "{OP}: needs finite bounds with lo <= up, got lo = {lo} and up = {up}"
        ))
        .bt());
    }
    let (lo32, range32) = (lo as f32, (up - lo) as f32);
    fill(
        (seed, OP),
        shape,
        dtype,
        |rng| {
            let v: f32 = StandardUniform.sample(rng);
            lo32 + range32 * v
        },
        |rng| {
            let v: f64 = StandardUniform.sample(rng);
            lo + (up - lo) * v
        },
    )
}

/// Normal with the given mean and standard deviation, determined by `seed`.
pub(super) fn normal(
    seed: u64,
    shape: &Shape,
    dtype: DType,
    mean: f64,
    std: f64,
) -> Result<CpuStorage> {
    const OP: &str = "rand_normal";
    if !(std >= 0. && std.is_finite() && mean.is_finite()) {
        return Err(Error::msg(format!(
            "{OP}: needs a finite mean and a finite std of at least 0, got mean = {mean} and std = {std}"
        ))
        .bt());
    }
    let (mean32, std32) = (mean as f32, std as f32);
    fill(
        (seed, OP),
        shape,
        dtype,
        |rng| {
            let v: f32 = StandardNormal.sample(rng);
            mean32 + std32 * v
        },
        |rng| {
            let v: f64 = StandardNormal.sample(rng);
            mean + std * v
        },
    )
}

/// A storage of samples: in f64 for F64, else in f32 and rounded.
fn fill(
    (seed, op): (u64, &'static str),
    shape: &Shape,
    dtype: DType,
    sample32: impl Fn(&mut StdRng) -> f32 + Sync,
    sample64: impl Fn(&mut StdRng) -> f64 + Sync,
) -> Result<CpuStorage> {
    fn rounded<T: Element>(
        len: usize,
        seed: u64,
        sample: impl Fn(&mut StdRng) -> f32 + Sync,
    ) -> CpuStorage {
        T::to_cpu_storage_owned(blocks(len, seed, |rng| T::from_f32(sample(rng))))
    }
    if !matches!(
        dtype,
        DType::BF16 | DType::F16 | DType::F32 | DType::F64 | DType::F8E4M3
    ) {
        return Err(Error::UnsupportedDTypeForOp(dtype, op).bt());
    }
    let len = shape.elem_count();
    Ok(match dtype {
        DType::BF16 => rounded::<half::bf16>(len, seed, sample32),
        DType::F16 => rounded::<half::f16>(len, seed, sample32),
        DType::F8E4M3 => rounded::<float8::F8E4M3>(len, seed, sample32),
        DType::F64 => CpuStorage::F64(blocks(len, seed, sample64)),
        _ => rounded::<f32>(len, seed, sample32),
    })
}

fn blocks<T: Element>(len: usize, seed: u64, sample: impl Fn(&mut StdRng) -> T + Sync) -> Vec<T> {
    let mut dst = vec![T::from_i64(0); len];
    threads::chunks_mut(&mut dst, BLOCK, |i, dst| {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(i as u64));
        dst.iter_mut().for_each(|dst| *dst = sample(&mut rng));
    });
    dst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_number() {
        let f32s = |seed| {
            let storage = uniform(seed, &Shape::from(40_000), DType::F32, -1., 3.).unwrap();
            storage.as_slice::<f32>().unwrap().to_vec()
        };
        let values = f32s(7);
        assert_eq!(values, f32s(7));
        assert_ne!(values, f32s(8));
        assert!(values.iter().all(|v| (-1. ..3.).contains(v)));
        let mean = values.iter().sum::<f32>() / 40_000.;
        assert!((mean - 1.).abs() < 0.03, "{mean}");
        let normal = |seed| normal(seed, &Shape::from(3), DType::BF16, 0., 1.).unwrap();
        assert_eq!(format!("{:?}", normal(1)), format!("{:?}", normal(1)));
        let state = || State::new(3).rng.random::<u64>();
        assert_eq!(state(), state());
    }

    #[test]
    fn bad_arguments_are_errors() {
        let shape = Shape::from(2);
        assert!(uniform(0, &shape, DType::F32, 1., 0.).is_err());
        assert!(uniform(0, &shape, DType::F32, f64::NAN, 0.).is_err());
        assert!(uniform(0, &shape, DType::U8, 0., 1.).is_err());
        assert!(normal(0, &shape, DType::F32, 0., -1.).is_err());
    }
}
