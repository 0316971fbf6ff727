//! Dequantisation with the unpacking of [panels](super::panels), on CPUs that have them. Returns the same bits as [`Decode`], which runs on
//! all CPUs.

use super::lanes::{PanelKernel, PanelSimd, GROUP};
use super::level::{run_panels_at, Level};
use super::panels::{eight_factors, Codes, PanelWeights};
use super::*;

/// Maximum number of parts of a block.
const PARTS: usize = 16;

/// [`GgmlType::to_float`] with this CPU's best instruction set.
pub(super) fn elements<T: PanelWeights + Decode>(xs: &[T], ys: &mut [f32]) {
    if run_panels_at(Level::best(), Elements { xs, ys }).is_none() {
        dispatch(ToFloat { xs, ys })
    }
}

/// `by` times the signed scale bytes of all parts of a block.
#[inline(always)]
fn times<T: PanelWeights, S: PanelSimd>(s: S, to: &mut [f32; PARTS], by: f32, bytes: [u64; 2]) {
    let words = T::BLCK_SIZE / T::PART / 8;
    for (to, word) in to.as_chunks_mut::<8>().0.iter_mut().zip(bytes).take(words) {
        s.store_eight(to, s.mul(s.eight_bytes(word), s.splat(by)));
    }
}

/// [`ToFloat`] with [`PanelSimd`].
pub(super) struct Elements<'a, T> {
    pub(super) xs: &'a [T],
    pub(super) ys: &'a mut [f32],
}

impl<T: PanelWeights> PanelKernel for Elements<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: PanelSimd>(self, s: S) {
        const { assert!(T::BLCK_SIZE / T::PART <= PARTS) };
        let (mut scales, mut minima) = ([0f32; PARTS], [0f32; PARTS]);
        let groups = self.xs.chunks(GROUP);
        for (xs, ys) in groups.zip(self.ys.chunks_mut(GROUP * T::BLCK_SIZE)) {
            // If there are fewer blocks, the first one is repeated.
            let mut blocks = [&xs[0]; GROUP];
            for (block, x) in blocks.iter_mut().zip(xs) {
                *block = x;
            }
            let mut factors = [[0f32; GROUP]; 2];
            for (to, floats) in factors.iter_mut().zip(eight_factors(s, blocks)) {
                s.store_eight(to, floats);
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
                    times::<T, S>(s, &mut scales, d, of_scales);
                    if T::CODES == Codes::AboveMinimum {
                        times::<T, S>(s, &mut minima, -m, of_minima);
                    }
                }
                let eights = ys.as_chunks_mut::<8>().0;
                for (j, &bytes) in T::codes(s, x.read_all(s)).as_ref().iter().enumerate() {
                    let bytes = match T::CODES {
                        Codes::Offset(offset) => s.less(bytes, offset as u8),
                        Codes::Signed | Codes::AboveMinimum => bytes,
                    };
                    for (i, eight) in s.eights(bytes).into_iter().enumerate() {
                        let at = 32 * j + 8 * i;
                        let part = at / T::PART;
                        let mut values = s.mul(eight, s.splat(scales[part]));
                        if T::CODES == Codes::AboveMinimum {
                            values = s.add(values, s.splat(minima[part]));
                        }
                        s.store_eight(&mut eights[4 * j + i], values);
                    }
                }
            }
        }
    }
}
