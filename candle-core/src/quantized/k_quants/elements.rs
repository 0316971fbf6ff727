//! Dequantisation with the unpacking of [panels](super::panels), on CPUs that have them. Returns the same bits as [`Decode`], which runs on
//! all CPUs.

use super::lanes::{PanelKernel, PanelSimd, GROUP};
use super::panels::{eight_factors, Codes, PanelWeights};
use super::simd::{run_panels_at, Level};
use super::*;

/// Maximum number of parts of a block.
const PARTS: usize = 16;

/// [`GgmlType::to_float`] with this CPU's best instruction set.
pub(super) fn elements<T: PanelWeights + Decode>(xs: &[T], ys: &mut [f32]) {
    let level = Level::best();
    if level.panels().is_some() {
        // SAFETY: `best` returns an instruction set of this CPU, and the level has panels.
        unsafe { run_panels_at(level, Elements { xs, ys }) }
    } else {
        dispatch(ToFloat { xs, ys })
    }
}

/// `by` times the signed scale bytes of all parts of a block.
///
/// # Safety
/// As for [`PanelSimd`].
#[inline(always)]
unsafe fn times<T: PanelWeights, S: PanelSimd>(to: &mut [f32; PARTS], by: f32, bytes: [u64; 2]) {
    let words = T::BLCK_SIZE / T::PART / 8;
    for (to, word) in to.as_chunks_mut::<8>().0.iter_mut().zip(bytes).take(words) {
        S::store_eight(to.as_mut_ptr(), S::mul(S::eight_bytes(word), S::splat(by)));
    }
}

/// [`ToFloat`] with [`PanelSimd`].
pub(super) struct Elements<'a, T> {
    pub(super) xs: &'a [T],
    pub(super) ys: &'a mut [f32],
}

impl<T: PanelWeights> PanelKernel for Elements<'_, T> {
    #[inline(always)]
    unsafe fn run<S: PanelSimd>(self) {
        const { assert!(T::BLCK_SIZE / T::PART <= PARTS) };
        let (mut scales, mut minima) = ([0f32; PARTS], [0f32; PARTS]);
        let groups = self.xs.chunks(GROUP);
        for (xs, ys) in groups.zip(self.ys.chunks_mut(GROUP * T::BLCK_SIZE)) {
            // If there are fewer blocks, the first one is repeated.
            let mut blocks = [xs.as_ptr(); GROUP];
            for (block, x) in blocks.iter_mut().zip(xs) {
                *block = x;
            }
            let mut factors = [[0f32; GROUP]; 2];
            for (to, floats) in factors.iter_mut().zip(eight_factors::<T, S>(blocks)) {
                S::store_eight(to.as_mut_ptr(), floats);
            }
            let ys = ys.chunks_exact_mut(T::BLCK_SIZE);
            for ((x, ys), (d, m)) in xs
                .iter()
                .zip(ys)
                .zip(factors[0].into_iter().zip(factors[1]))
            {
                if T::BLCK_SIZE == T::PART {
                    (scales[0], minima[0]) = (d, m);
                } else {
                    let [of_scales, of_minima] = x.part_bytes();
                    times::<T, S>(&mut scales, d, of_scales);
                    if T::CODES == Codes::AboveMinimum {
                        times::<T, S>(&mut minima, -m, of_minima);
                    }
                }
                let ys = ys.as_mut_ptr();
                for (j, &bytes) in T::codes::<S>(x.read_all::<S>()).as_ref().iter().enumerate() {
                    let bytes = match T::CODES {
                        Codes::Offset(offset) => S::less(bytes, offset as u8),
                        Codes::Signed | Codes::AboveMinimum => bytes,
                    };
                    for (i, eight) in S::eights(bytes).into_iter().enumerate() {
                        let at = 32 * j + 8 * i;
                        let part = at / T::PART;
                        let mut values = S::mul(eight, S::splat(scales[part]));
                        if T::CODES == Codes::AboveMinimum {
                            values = S::add(values, S::splat(minima[part]));
                        }
                        S::store_eight(ys.add(at), values);
                    }
                }
            }
        }
    }
}
