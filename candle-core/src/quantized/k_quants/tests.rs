//! Every set of instructions that this machine has against plain Rust.

use half::f16;

use super::products::Weights;
use super::simd::{run_at, Level};
use super::*;

/// A generator of numbers, good enough for tests.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32 * 2. - 1.
    }

    fn blocks<T: GgmlType>(&mut self, blocks: usize) -> Vec<T> {
        let xs: Vec<f32> = (0..blocks * T::BLCK_SIZE).map(|_| self.float()).collect();
        let mut ys = vec![T::zeros(); blocks];
        T::from_float(&xs, &mut ys);
        ys
    }

    /// Blocks of random bytes: every code and every scale occurs. `finite` replaces the scales by finite ones.
    fn bytes<T: GgmlType>(&mut self, blocks: usize, finite: fn(&mut T, f16)) -> Vec<T> {
        let mut ys = vec![T::zeros(); blocks];
        let len = std::mem::size_of_val(&ys[..]);
        // SAFETY: blocks are plain numbers without padding, for which all bytes are values.
        let bytes = unsafe { std::slice::from_raw_parts_mut(ys.as_mut_ptr().cast::<u8>(), len) };
        bytes.fill_with(|| self.next() as u8);
        for y in &mut ys {
            finite(y, f16::from_f32(self.float()));
        }
        ys
    }
}

/// Differences come from the order of the sums alone.
fn close(found: f32, right: f32, magnitude: f32) -> bool {
    (found - right).abs() <= 1e-5 * magnitude.max(1.)
}

/// Products of one row and of many at every level, for rows of 0, 1, 2, 3 and 7 blocks.
fn levels_agree<T: Weights>(finite: fn(&mut T, f16)) {
    let mut random = Random(7);
    for level in Level::all() {
        for blocks in [0, 1, 2, 3, 7] {
            let n = blocks * T::BLCK_SIZE;
            let xs: Vec<T> = random.bytes(5 * blocks, finite);
            let ys: Vec<T::VecDotType> = random.blocks(6 * blocks);
            let x = |r: usize| &xs[r * blocks..(r + 1) * blocks];
            let y = |c: usize| &ys[c * blocks..(c + 1) * blocks];
            // What the sum is made of, for the tolerance.
            let magnitude = |r: usize, c: usize| -> f32 {
                let (mut xf, mut yf) = (vec![0f32; n], vec![0f32; n]);
                T::to_float(x(r), &mut xf);
                T::VecDotType::to_float(y(c), &mut yf);
                // Minima are taken away from the codes' part, so that both parts may be larger than the elements.
                xf.iter().zip(&yf).map(|(x, y)| (x * y).abs()).sum::<f32>() * 4.
            };
            let check = |found: f32, r: usize, c: usize| {
                let right = T::vec_dot_unopt(n, x(r), y(c));
                assert!(
                    close(found, right, magnitude(r, c)),
                    "{level:?} {:?}, {blocks} blocks: {found} for {right}",
                    T::DTYPE
                );
            };
            let mut one = [0.];
            // SAFETY: `all` lists what the machine has.
            unsafe { run_at(level, Tile::one(n, &xs, y(1), &mut one)) };
            check(one[0], 0, 1);
            for (rows, columns) in [(5, 6), (4, 1), (5, 4), (1, 5), (3, 0)] {
                if blocks == 0 {
                    continue;
                }
                let mut dst = vec![f32::NAN; rows * columns];
                let (xs, ys) = (&xs[..rows * blocks], &ys[..columns * blocks]);
                // SAFETY: `all` lists what the machine has.
                unsafe { run_at(level, Tile::new(n, xs, ys, &mut dst)) };
                for (i, &found) in dst.iter().enumerate() {
                    check(found, i % rows, i / rows);
                }
            }
        }
    }
}

/// Elements of random bytes and codes of random elements are the same bits at every level.
fn conversions_agree<
    T: Weights + Decode + Encode<LEN> + PartialEq + std::fmt::Debug,
    const LEN: usize,
>(
    finite: fn(&mut T, f16),
) {
    let mut random = Random(11);
    let xs: Vec<T> = random.bytes(9, finite);
    let floats: Vec<f32> = (0..9 * LEN).map(|_| random.float()).collect();
    let weights: Vec<f32> = (0..3 * LEN).map(|_| random.float().abs()).collect();
    let convert = |level: Level| {
        let mut decoded = vec![0f32; 9 * LEN];
        let (mut plain, mut weighted) = (vec![T::zeros(); 9], vec![T::zeros(); 9]);
        // SAFETY: `all` lists what the machine has.
        unsafe {
            run_at(
                level,
                ToFloat {
                    xs: &xs,
                    ys: &mut decoded,
                },
            );
            for (ys, weights) in [(&mut plain, &[][..]), (&mut weighted, &weights)] {
                run_at(
                    level,
                    FromFloat::<T, LEN> {
                        xs: &floats,
                        ys,
                        weights,
                    },
                );
            }
        }
        (decoded, plain, weighted)
    };
    let right = convert(Level::Scalar);
    for level in Level::all() {
        assert_eq!(convert(level), right, "{level:?} {:?}", T::DTYPE);
    }
}

macro_rules! formats {
    ($($name:ident $ty:ident $len:ident |$block:ident, $d:ident| $finite:expr;)*) => {$(
        #[test]
        fn $name() {
            let finite = |$block: &mut $ty, $d: f16| $finite;
            levels_agree::<$ty>(finite);
            conversions_agree::<$ty, $len>(finite);
        }
    )*};
}

formats! {
    q4_0 BlockQ4_0 QK4_0 |x, d| x.d = d;
    q4_1 BlockQ4_1 QK4_1 |x, d| (x.d, x.m) = (d, d);
    q5_0 BlockQ5_0 QK5_0 |x, d| x.d = d;
    q5_1 BlockQ5_1 QK5_1 |x, d| (x.d, x.m) = (d, -d);
    q8_0 BlockQ8_0 QK8_0 |x, d| x.d = d;
    q8_1 BlockQ8_1 QK8_1 |x, d| (x.d, x.s) = (d, d);
    q2k BlockQ2K QK_K |x, d| (x.d, x.dmin) = (d, d);
    q3k BlockQ3K QK_K |x, d| x.d = d;
    q4k BlockQ4K QK_K |x, d| (x.d, x.dmin) = (d, d);
    q5k BlockQ5K QK_K |x, d| (x.d, x.dmin) = (d, -d);
    q6k BlockQ6K QK_K |x, d| x.d = d;
    q8k BlockQ8K QK_K |x, d| x.d = d.to_f32();
}
