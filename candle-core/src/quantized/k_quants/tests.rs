//! Compares every instruction set of this machine with plain Rust.

use half::f16;
use std::ops::Range;

use super::activations::{Activations, Bytes32, EncodeBytes};
use super::elements::Elements;
use super::level::{run_at, run_panels_at, Level};
use super::one_row::{FewRows, OneRowWeights};
use super::panels::{PanelWeights, Panels, PIECE};
use super::prepared::{DenseRows, RowProducts};
use super::products::{Unpack, Weights};
use super::*;

/// A random number generator, good enough for tests.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// A number between -1 and 1.
    fn float(&mut self) -> f32 {
        self.next() as f32 / u32::MAX as f32 * 2. - 1.
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    #[allow(unsafe_code, reason = "any bytes are a block")]
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

/// The blocks of these activations.
fn active<V: Activations>(xs: &[f32]) -> Vec<V> {
    let mut ys = vec![V::zeros(); xs.len() / V::LEN];
    V::encode(xs, &mut ys);
    ys
}

/// Only the order of the sums may cause differences.
fn close(found: f32, right: f32, magnitude: f32) -> bool {
    (found - right).abs() <= 1e-5 * magnitude.max(1.)
}

/// The magnitude of a product's terms, for the tolerance.
fn magnitude<T: GgmlType, V: Activations>(x: &[T], y: &[V]) -> f32 {
    let mut xf = vec![0f32; x.len() * T::BLCK_SIZE];
    T::to_float(x, &mut xf);
    let codes = |y: &V| {
        y.codes()
            .iter()
            .map(|&q| f32::from(q) * y.scale())
            .collect::<Vec<_>>()
    };
    let yf: Vec<f32> = y.iter().flat_map(codes).collect();
    // Minima are subtracted from the codes' part, so both parts may be larger than the elements.
    xf.iter().zip(&yf).map(|(x, y)| (x * y).abs()).sum::<f32>() * 4.
}

/// The product of one row with one at a level. Every other kernel of the level gives the same bits.
fn one_with_one<T: Weights<Y>, Y>(level: Level, x: &[T], y: &[Y]) -> f32 {
    let mut dot = [0.];
    run_at(
        level,
        BlockTile::one(x.len() * T::BLCK_SIZE, x, y, &mut dot),
    );
    dot[0]
}

/// Products of one row and of many at every level, for rows of 0, 1, 2, 3, 7 and 13 blocks.
fn levels_agree<T: Weights<<T as Unpack>::Activations>>(finite: fn(&mut T, f16)) {
    let mut random = Random(7);
    for level in Level::all() {
        for blocks in [0, 1, 2, 3, 7, 13, 35] {
            let n = blocks * T::BLCK_SIZE;
            let xs: Vec<T> = random.bytes(9 * blocks, finite);
            let ys: Vec<T::Activations> = active(&random.floats(6 * n));
            let x = |r: usize| &xs[r * blocks..(r + 1) * blocks];
            let y = |c: usize| &ys[c * blocks..(c + 1) * blocks];
            let magnitude = |r: usize, c: usize| magnitude(x(r), y(c));
            let check = |found: f32, r: usize, c: usize| {
                let right = one_with_one(Level::Scalar, x(r), y(c));
                assert!(
                    close(found, right, magnitude(r, c)),
                    "{level:?} {:?}, {blocks} blocks: {found} for {right}",
                    T::DTYPE
                );
            };
            check(one_with_one(level, x(0), y(1)), 0, 1);
            for (rows, columns) in [(5, 6), (4, 1), (9, 3), (5, 4), (1, 5), (3, 0)] {
                if blocks == 0 {
                    continue;
                }
                let mut dst = vec![f32::NAN; rows * columns];
                let (xs, ys) = (&xs[..rows * blocks], &ys[..columns * blocks]);
                run_at(level, BlockTile::new(n, xs, ys, &mut dst));
                for (i, &found) in dst.iter().enumerate() {
                    let (r, c) = (i % rows, i / rows);
                    check(found, r, c);
                    assert_eq!(found, one_with_one(level, x(r), y(c)), "{level:?}");
                }
            }
        }
    }
}

/// Dequantising random bytes and encoding random elements give the same bits at every level.
fn conversions_agree<
    T: Decode + Encode<LEN> + GgmlType + PartialEq + std::fmt::Debug,
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
        let [mut first, mut plain, mut weighted] = [(); 3].map(|()| vec![T::zeros(); 9]);
        run_at(
            level,
            ToFloat {
                xs: &xs,
                ys: &mut decoded,
            },
        );
        for (ys, how) in [
            (&mut first, How::AsAtFirst),
            (&mut plain, How::AsGgml),
            (&mut weighted, How::Weighted(&weights)),
        ] {
            run_at(
                level,
                FromFloat::<T, LEN> {
                    xs: &floats,
                    ys,
                    how,
                },
            );
        }
        (decoded, first, plain, weighted)
    };
    let right = convert(Level::Scalar);
    for level in Level::all() {
        assert_eq!(convert(level), right, "{level:?} {:?}", T::DTYPE);
    }
}

/// Rows of `len` elements, in the form that [`DenseRows`] needs.
fn copied(len: usize, floats: &[f32]) -> impl Fn(Range<usize>, &mut [f32]) + Sync + '_ {
    move |rows, to| to.copy_from_slice(&floats[rows.start * len..rows.end * len])
}

/// Compares panels at every level that has them with products in plain Rust: rows that do not fill a panel, numbers of columns around those
/// processed together, and lengths around that of a chunk.
fn panels_agree<T: PanelWeights>(finite: fn(&mut T, f16)) {
    let mut random = Random(13);
    let piece = PIECE / T::BLCK_SIZE;
    for blocks in [1, 2, piece - 1, piece, piece + 1, 2 * piece + 3] {
        let n = blocks * T::BLCK_SIZE;
        let xs: Vec<T> = random.bytes(32 * blocks, finite);
        let floats = random.floats(9 * n);
        let ys: Vec<T::Activations> = active(&floats);
        let right: Vec<Vec<(f32, f32)>> = (xs.chunks_exact(blocks))
            .map(|x| {
                let ys = ys.chunks_exact(blocks);
                ys.map(|y| (one_with_one(Level::Scalar, x, y), magnitude(x, y)))
                    .collect()
            })
            .collect();
        for level in Level::all() {
            let copied = copied(n, &floats);
            let Some(panels) = Panels::<T>::new(level, &DenseRows::new(9, n, &copied)) else {
                assert!(!has_panels(level), "{level:?}");
                continue;
            };
            let panel_rows = panels.panel_rows().expect("panels");
            for rows in [1, 2, 3, 7, 8, 9, 31, 32] {
                for columns in [0..0, 0..1, 1..4, 2..6, 1..9, 0..9] {
                    if rows > panel_rows {
                        continue;
                    }
                    let mut dst = vec![f32::NAN; columns.len() * panel_rows];
                    panels.multiply(&xs[..rows * blocks], columns.clone(), &mut dst);
                    for (c, dst) in columns.clone().zip(dst.chunks_exact(panel_rows)) {
                        for (r, &found) in dst[..rows].iter().enumerate() {
                            let (x, y) = (&xs[r * blocks..][..blocks], &ys[c * blocks..][..blocks]);
                            assert_eq!(
                                found,
                                one_with_one(level, x, y),
                                "{level:?} {:?}",
                                T::DTYPE
                            );
                            let (right, magnitude) = right[r][c];
                            assert!(
                                close(found, right, magnitude),
                                "{level:?} {:?}, {blocks} blocks, row {r} of {rows}, column {c} of {columns:?}: {found} for {right}",
                                T::DTYPE
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Whether a level has kernels for panels.
fn has_panels(level: Level) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) | Level::AvxVnni(_) | Level::Avx512Vnni(_) => true,
        #[cfg(target_arch = "aarch64")]
        Level::Neon(_) | Level::NeonDotProd(_) => true,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128(_) => true,
        _ => false,
    }
}

/// Whether a level has a kernel for one row, given a format for which some level has one.
fn has_one_row(level: Level, dtype: GgmlDType) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni(_) => true,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) | Level::AvxVnni(_) => dtype != GgmlDType::Q8_0,
        _ => {
            let _ = dtype;
            false
        }
    }
}

/// Compares prepared rows of activations, at every level with kernels for them, with products in plain Rust: lengths around those processed
/// together.
fn one_row_agrees<T: OneRowWeights>(finite: fn(&mut T, f16)) {
    let mut random = Random(19);
    for blocks in [1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 35, 64] {
        let n = blocks * T::BLCK_SIZE;
        let xs: Vec<T> = random.bytes(5 * blocks, finite);
        let floats = random.floats(3 * n);
        let ys: Vec<T::Activations> = active(&floats);
        for level in Level::all() {
            let copied = copied(n, &floats);
            let few = FewRows::<T>::new(level, &DenseRows::new(3, n, &copied));
            assert_eq!(few.is_some(), has_one_row(level, T::DTYPE), "{level:?}");
            let Some(few) = few else {
                continue;
            };
            for (rows, columns) in [(0, 0..3), (1, 0..1), (5, 0..3), (4, 1..2), (3, 2..2)] {
                let mut dst = vec![f32::NAN; rows * columns.len()];
                few.multiply(&xs[..rows * blocks], columns.clone(), &mut dst);
                for (i, &found) in dst.iter().enumerate() {
                    let (r, c) = (i % rows, columns.start + i / rows);
                    let (x, y) = (&xs[r * blocks..][..blocks], &ys[c * blocks..][..blocks]);
                    assert_eq!(found, one_with_one(level, x, y), "{level:?} {:?}", T::DTYPE);
                    let right = one_with_one(Level::Scalar, x, y);
                    assert!(
                        close(found, right, magnitude(x, y)),
                        "{level:?} {:?}, {blocks} blocks, row {r}, column {c}: {found} for {right}",
                        T::DTYPE
                    );
                }
            }
        }
    }
}

/// Complete products, of few rows and of more than a tile has, of few weight rows and of more than a panel has, with one thread and two;
/// with a single thread if the system has no more.
fn products_agree<T: PanelWeights>(finite: fn(&mut T, f16)) {
    let mut random = Random(17);
    let (blocks, most_m, most_n) = (512 / T::BLCK_SIZE, 129, 65);
    let k = blocks * T::BLCK_SIZE;
    let xs: Vec<T> = random.bytes(most_n * blocks, finite);
    let floats: Vec<f32> = (0..most_m * k).map(|_| random.float()).collect();
    let ys: Vec<T::Activations> = active(&floats);
    let right: Vec<(f32, f32)> = (ys.chunks_exact(blocks))
        .flat_map(|y| xs.chunks_exact(blocks).map(move |x| (x, y)))
        .map(|(x, y)| (one_with_one(Level::Scalar, x, y), magnitude(x, y)))
        .collect();
    // `None` is the calling thread, if a system has no others.
    let pools = if cfg!(target_family = "wasm") {
        vec![None]
    } else {
        vec![Some(1), Some(2)]
    };
    for threads in pools {
        let pool = threads.map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().expect("a pool of threads")
        });
        for m in [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, most_m] {
            for n in [1, 31, 32, 33, most_n] {
                let mut dst = vec![f32::NAN; m * n];
                let mut product = || matmul((m, k, n), &floats[..m * k], &xs, &mut dst);
                match &pool {
                    Some(pool) => pool.install(product),
                    None => product(),
                }
                .expect("sizes that fit");
                for (i, &found) in dst.iter().enumerate() {
                    let (right, magnitude) = right[i / n * most_n + i % n];
                    assert!(
                        close(found, right, magnitude),
                        "{:?} {m}x{k}x{n}, threads {threads:?}, {i}: {found} for {right}",
                        T::DTYPE
                    );
                }
            }
        }
    }
}

/// Dequantisation with the vectors of every level with panels returns the bits of plain Rust.
fn elements_agree<T: PanelWeights + Decode>(finite: fn(&mut T, f16)) {
    let xs: Vec<T> = Random(19).bytes(9, finite);
    let mut right = vec![0f32; 9 * T::BLCK_SIZE];
    for (x, ys) in xs.iter().zip(right.chunks_exact_mut(T::BLCK_SIZE)) {
        x.decode(ys);
    }
    let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for level in Level::all() {
        if level.panels().is_none() {
            continue;
        }
        let mut ys = vec![f32::NAN; right.len()];
        let elements = Elements {
            xs: &xs,
            ys: &mut ys,
        };
        assert_eq!(run_panels_at(level, elements), Some(()));
        assert_eq!(bits(&ys), bits(&right), "{level:?} {:?}", T::DTYPE);
    }
}

/// The functions of an instruction set take the proof that the CPU has it: none is unsafe.
#[test]
fn instructions_are_safe_functions() {
    let sources = [
        include_str!("../avx.rs"),
        include_str!("../avx_panels.rs"),
        include_str!("../avx_rows.rs"),
        include_str!("../avx512_rows.rs"),
        include_str!("../neon.rs"),
        include_str!("../neon_panels.rs"),
        include_str!("../simd128.rs"),
        include_str!("../simd128_panels.rs"),
    ];
    for source in sources {
        let found = source.lines().find(|line| line.contains("unsafe fn"));
        assert_eq!(found, None);
    }
}

/// Encodes one block.
fn encoded<T: GgmlType>(xs: &[f32]) -> T {
    let mut block = [T::zeros()];
    T::from_float(xs, &mut block);
    let [block] = block;
    block
}

/// The origin of the scale: the first of several largest elements; a NaN is ignored, and elements beyond the range get the end codes.
#[test]
fn scales_of_odd_elements() {
    let mut xs = [0.25f32; 32];
    (xs[3], xs[20]) = (-1., 1.);
    let block = encoded::<BlockQ4_0>(&xs);
    assert_eq!(block.d, f16::from_f32(0.125));
    (xs[3], xs[20]) = (1., -1.);
    let block = encoded::<BlockQ4_0>(&xs);
    assert_eq!(block.d, f16::from_f32(-0.125));
    xs[7] = f32::NAN;
    let with_nan = encoded::<BlockQ4_0>(&xs);
    assert_eq!(with_nan.d, block.d);
    assert_eq!(with_nan.qs[7] & 15, 0);
    let block = encoded::<BlockQ4_1>(&xs);
    assert_eq!(
        (block.d, block.m),
        (f16::from_f32(2. / 15.), f16::from_f32(-1.))
    );
    let zeros = encoded::<BlockQ4_0>(&[0.; 32]);
    assert_eq!((zeros.d.to_f32(), zeros.qs), (0., [0x88; 16]));
}

/// Activations at every level: ties, a NaN, infinity, and numbers so small that the scale has no inverse.
#[test]
fn activations_of_odd_elements() {
    let mut random = Random(23);
    let halves = |i: usize| (i as f32 - 127.) / 2.;
    for odd in [1., f32::NAN, f32::INFINITY] {
        for scale in [1., 1e-3, 1e-39, 1e30] {
            let mut xs: Vec<f32> = (0..QK_K).map(|i| scale * halves(i)).collect();
            xs.rotate_left(random.next() as usize % QK_K);
            xs[40] = scale * odd;
            for level in Level::all() {
                activations_agree::<BlockQ8_0, QK8_0>(&xs, level);
                activations_agree::<BlockQ8_1, QK8_1>(&xs, level);
                activations_agree::<BlockQ8K, QK_K>(&xs, level);
                let [found, right] = [level, Level::Scalar].map(|level| {
                    let mut ys = vec![Bytes32::zeros(); QK_K / 32];
                    let (xs, ys_mut) = (&xs, &mut ys);
                    run_at(level, EncodeBytes { xs, ys: ys_mut });
                    ys
                });
                // As text, in which all NaNs are equal.
                assert_eq!(
                    format!("{found:?}"),
                    format!("{right:?}"),
                    "{level:?} of {xs:?}"
                );
                for (y, xs) in found.iter().zip(xs.chunks(32)) {
                    assert_eq!(y.d.is_finite(), xs.iter().all(|x| x.is_finite()));
                }
            }
        }
    }
}

fn activations_agree<T, const LEN: usize>(xs: &[f32], level: Level)
where
    T: Encode<LEN> + GgmlType + PartialEq + std::fmt::Debug,
{
    let run = |level| {
        let mut ys = vec![T::zeros(); xs.len() / LEN];
        let kernel = FromFloat::<T, LEN> {
            xs,
            ys: &mut ys,
            how: How::AsGgml,
        };
        run_at(level, kernel);
        ys
    };
    // As text, in which all NaNs are equal.
    let shown = |level| format!("{:?}", run(level));
    assert_eq!(shown(level), shown(Level::Scalar), "{level:?} of {xs:?}");
}

/// The exact products at every level, as a hash of their bits: the first of `bits` where a multiply-add rounds twice, the second where it
/// rounds once. Every kernel of a level gives the bits of [`one_with_one`], which the other tests check, so these hold all kernels to them.
fn products_keep_their_bits<T: Weights<<T as Unpack>::Activations>>(
    finite: fn(&mut T, f16),
    bits: [u64; 2],
) {
    let rounds_once = |level: Level| match level {
        Level::Scalar => false,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128(_) => false,
        #[allow(unreachable_patterns, reason = "a target may have plain Rust only")]
        _ => true,
    };
    for level in Level::all() {
        let mut random = Random(29);
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for blocks in [1, 2, 5, 9, 18] {
            let xs: Vec<T> = random.bytes(9 * blocks, finite);
            let ys: Vec<T::Activations> = active(&random.floats(9 * blocks * T::BLCK_SIZE));
            for y in ys.chunks_exact(blocks) {
                for x in xs.chunks_exact(blocks) {
                    let product = u64::from(one_with_one(level, x, y).to_bits());
                    hash = (hash ^ product).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
        let right = bits[usize::from(rounds_once(level))];
        assert_eq!(hash, right, "{level:?} {:?}: {hash:#x}", T::DTYPE);
    }
}

macro_rules! formats {
    ($($name:ident $ty:ident $len:ident $bits:expr, |$block:ident, $d:ident| $finite:expr $(, $panels:ident)*;)*) => {$(
        #[test]
        fn $name() {
            let finite = |$block: &mut $ty, $d: f16| $finite;
            products_keep_their_bits::<$ty>(finite, $bits);
            levels_agree::<$ty>(finite);
            conversions_agree::<$ty, $len>(finite);
            $($panels::<$ty>(finite);)*
        }
    )*};
}

formats! {
    q4_0 BlockQ4_0 QK4_0 [0x35b3_2e90_9cd1_f09f, 0xc5e7_4596_978e_f1c6], |x, d| x.d = d, panels_agree, elements_agree, products_agree, one_row_agrees;
    q4_1 BlockQ4_1 QK4_1 [0x29cb_e382_dfaf_f956, 0xa3c5_0ecf_89b4_412b], |x, d| (x.d, x.m) = (d, d), panels_agree, elements_agree, products_agree;
    q5_0 BlockQ5_0 QK5_0 [0xeb7e_f045_ffb3_0c53, 0x9652_7151_2e98_a63c], |x, d| x.d = d, panels_agree, elements_agree, products_agree, one_row_agrees;
    q5_1 BlockQ5_1 QK5_1 [0xec59_93ef_9624_56bc, 0x6ea5_c2db_f813_2ad7], |x, d| (x.d, x.m) = (d, -d), panels_agree, elements_agree, products_agree;
    q8_0 BlockQ8_0 QK8_0 [0x6640_465f_3e31_0e86, 0x162e_e15a_f76d_c5aa], |x, d| x.d = d, panels_agree, elements_agree, products_agree, one_row_agrees;
    q8_1 BlockQ8_1 QK8_1 [0x37da_50ce_5a81_6326, 0xad49_8fe9_dce3_c275], |x, d| (x.d, x.s) = (d, d);
    q2k BlockQ2K QK_K [0x41e1_2cba_57a8_b533, 0x136f_4064_c141_b58d], |x, d| (x.d, x.dmin) = (d, d), panels_agree, elements_agree, products_agree;
    q3k BlockQ3K QK_K [0x3523_4e20_84cb_6f7a, 0x1f1b_48ac_30e0_fd0e], |x, d| x.d = d, panels_agree, elements_agree, products_agree;
    q4k BlockQ4K QK_K [0x04ea_4ed5_dda3_9755, 0x48fe_2989_ea2c_991c], |x, d| (x.d, x.dmin) = (d, d), panels_agree, elements_agree, products_agree, one_row_agrees;
    q5k BlockQ5K QK_K [0xe85a_8da7_b4d6_49da, 0x6beb_f7e4_36ea_47f7], |x, d| (x.d, x.dmin) = (d, -d), panels_agree, elements_agree, products_agree, one_row_agrees;
    q6k BlockQ6K QK_K [0xf6b7_39b1_1873_9efd, 0x7bbc_188c_fc41_5cdd], |x, d| x.d = d, panels_agree, elements_agree, products_agree;
    q8k BlockQ8K QK_K [0x914b_a270_304f_4566, 0xd40e_1381_89b4_0931], |x, d| x.d = d.to_f32();
}

#[cfg(feature = "all-ggml-types")]
formats! {
    iq4nl BlockIQ4NL QK4_NL [0x55ce_8a97_da6d_804c, 0xbfae_d973_04f5_b6cf], |x, d| x.d = d, panels_agree, elements_agree, products_agree;
}

#[cfg(feature = "all-ggml-types")]
macro_rules! tables {
    ($($name:ident $ty:ident $bits:expr, |$block:ident, $d:ident| $finite:expr;)*) => {$(
        #[test]
        fn $name() {
            let finite = |$block: &mut $ty, $d: f16| $finite;
            products_keep_their_bits::<$ty>(finite, $bits);
            levels_agree::<$ty>(finite);
        }
    )*};
}

#[cfg(feature = "all-ggml-types")]
tables! {
    iq1s BlockIQ1S [0x9b0c_c365_503d_6dbe, 0x7ab3_b2a4_aa43_5fca], |x, d| x.d = d;
    iq1m BlockIQ1M [0x4899_5a83_3ec5_3bfc, 0x6b71_9b85_1b20_c54e], |x, _d| x.scales[7] &= 0xbf;
    iq2xxs BlockIQ2XXS [0xded1_a0c3_bf8a_e3d4, 0x373c_98fd_3adc_9997], |x, d| x.d = d;
    iq2xs BlockIQ2XS [0x0d02_cb97_81ee_ede5, 0xa476_5318_328f_0404], |x, d| x.d = d;
    iq2s BlockIQ2S [0xfb23_48c0_9da5_531f, 0x1ef2_c649_f924_e395], |x, d| x.d = d;
    iq3xxs BlockIQ3XXS [0xbb0c_9e86_904a_60e2, 0xe7d3_10be_30d8_0c8f], |x, d| x.d = d;
    iq3s BlockIQ3S [0x04e6_80ff_39e1_d080, 0x8139_13c8_b5f8_e863], |x, d| x.d = d;
    iq4xs BlockIQ4XS [0x1ec0_0a4e_5e54_cae7, 0x8b86_8cf0_86e9_4c97], |x, d| x.d = d;
    mxfp4 BlockMXFP4 [0xa3f3_4820_9444_c029, 0xa3f3_4820_9444_c029], |x, _d| x.e = 120 + x.e % 8;
    tq1_0 BlockTQ1_0 [0x83ce_133b_baa1_bfd5, 0xda45_8ca2_9f01_2465], |x, d| x.d = d;
    tq2_0 BlockTQ2_0 [0xb283_c066_da0d_441f, 0x8fc7_54e7_c0d8_bcd3], |x, d| x.d = d;
}
