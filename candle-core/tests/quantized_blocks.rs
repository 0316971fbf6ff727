//! Block formats: layouts, decoding compared with an independent implementation, encoding errors, products.

use candle_core::quantized::k_quants::*;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

/// A pseudo-random sequence from a fixed seed.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// Returns a number in `0..1`.
    fn uniform(&mut self) -> f32 {
        self.next() as f32 / 4_294_967_296.
    }

    /// Returns a number with mean 0 and variance 1: the sum of twelve uniform numbers minus six.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.
    }

    fn floats(&mut self, n: usize, number: fn(&mut Self) -> f32) -> Vec<f32> {
        (0..n).map(|_| number(self)).collect()
    }
}

fn encode<T: GgmlType>(xs: &[f32]) -> Vec<T> {
    let mut blocks = vec![T::zeros(); xs.len() / T::BLCK_SIZE];
    T::from_float(xs, &mut blocks);
    blocks
}

fn decode<T: GgmlType>(blocks: &[T]) -> Vec<f32> {
    let mut ys = vec![f32::NAN; blocks.len() * T::BLCK_SIZE];
    T::to_float(blocks, &mut ys);
    ys
}

/// Returns the root of the weighted mean of the squared errors.
fn error(xs: &[f32], ys: &[f32], weights: &[f32]) -> f64 {
    let weight = |i: usize| f64::from(weights[i % weights.len()]);
    let sum: f64 = xs
        .iter()
        .zip(ys)
        .enumerate()
        .map(|(i, (&x, &y))| weight(i) * (f64::from(x) - f64::from(y)).powi(2))
        .sum();
    (sum / xs.len() as f64).sqrt()
}

/// Calls `$f::<Block>` for every format.
macro_rules! every_format {
    ($f:ident) => {
        $f::<BlockQ4_0>();
        $f::<BlockQ4_1>();
        $f::<BlockQ5_0>();
        $f::<BlockQ5_1>();
        $f::<BlockQ8_0>();
        $f::<BlockQ8_1>();
        $f::<BlockQ2K>();
        $f::<BlockQ3K>();
        $f::<BlockQ4K>();
        $f::<BlockQ5K>();
        $f::<BlockQ6K>();
        $f::<BlockQ8K>();
    };
}

#[test]
fn sizes_are_those_of_files() {
    fn check<T: GgmlType>() {
        // Bits per element, from the descriptions of the formats.
        let bits = match T::DTYPE {
            GgmlDType::Q4_0 | GgmlDType::Q4K => 4.5,
            GgmlDType::Q4_1 => 5.,
            GgmlDType::Q5_0 | GgmlDType::Q5K => 5.5,
            GgmlDType::Q5_1 => 6.,
            GgmlDType::Q8_0 => 8.5,
            GgmlDType::Q8_1 => 9.,
            GgmlDType::Q2K => 2.625,
            GgmlDType::Q3K => 3.4375,
            GgmlDType::Q6K => 6.5625,
            _ => 9.125,
        };
        assert_eq!(size_of::<T>() as f64, bits * T::BLCK_SIZE as f64 / 8.);
        assert_eq!(T::DTYPE.type_size(), size_of::<T>());
        assert_eq!(T::DTYPE.block_size(), T::BLCK_SIZE);
        assert_eq!(T::VecDotType::BLCK_SIZE, T::BLCK_SIZE);
        assert!(!T::DIRECT_COPY);
    }
    every_format!(check);
    assert_eq!(K_SCALE_SIZE, 12);
}

/// Random blocks decode to the same bits as in the `gguf` package (data/quantized_blocks.py).
#[test]
fn decoding_agrees_with_the_gguf_package() {
    fn check<T: GgmlType>(vectors: &mut &[u8]) {
        let (block, rest) = vectors.split_at(size_of::<T>());
        let (elements, rest) = rest.split_at(4 * T::BLCK_SIZE);
        *vectors = rest;
        let mut blocks = vec![T::zeros()];
        // SAFETY: blocks are plain numbers of this size.
        unsafe {
            let to = blocks.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, block.len());
        }
        for (i, (found, right)) in decode(&blocks).iter().zip(elements.chunks(4)).enumerate() {
            let right = f32::from_le_bytes(right.try_into().unwrap());
            // Both 0 and -0 are correct.
            assert_eq!(*found, right, "{:?}, element {i}", T::DTYPE);
        }
    }
    let mut vectors: &[u8] = include_bytes!("data/quantized_blocks.bin");
    check::<BlockQ4_0>(&mut vectors);
    check::<BlockQ4_1>(&mut vectors);
    check::<BlockQ5_0>(&mut vectors);
    check::<BlockQ5_1>(&mut vectors);
    check::<BlockQ8_0>(&mut vectors);
    check::<BlockQ2K>(&mut vectors);
    check::<BlockQ3K>(&mut vectors);
    check::<BlockQ4K>(&mut vectors);
    check::<BlockQ5K>(&mut vectors);
    check::<BlockQ6K>(&mut vectors);
    assert!(vectors.is_empty());
}

/// Encoding is byte-identical to ggml's encoder (data/ggml_encoder.py), with and without an importance matrix.
#[test]
fn encoding_agrees_with_ggml() {
    /// Elements per row, and number of rows.
    const ROW: usize = 512;
    const ROWS: usize = 14;

    fn floats(file: &mut &[u8], count: usize) -> Vec<f32> {
        let (bytes, rest) = file.split_at(4 * count);
        *file = rest;
        let float = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
        bytes.chunks(4).map(float).collect()
    }

    fn check<T: GgmlType>(file: &mut &[u8], xs: &[f32], weights: &[f32]) {
        let mut blocks = vec![T::zeros(); xs.len() / T::BLCK_SIZE];
        let whole = Tensor::from_slice(xs, (ROWS, ROW), &Device::Cpu).unwrap();
        let whole = QTensor::quantize_as_ggml(&whole, T::DTYPE).unwrap();
        let bytes = whole.data().unwrap();
        assert!(file.starts_with(&bytes), "{:?} as a tensor", T::DTYPE);
        let size = size_of::<T>();
        let mut compare = |how: &str, blocks: &[T]| {
            // SAFETY: blocks are plain numbers without padding.
            let found = unsafe {
                std::slice::from_raw_parts(blocks.as_ptr().cast::<u8>(), size_of_val(blocks))
            };
            let (right, rest) = file.split_at(found.len());
            *file = rest;
            for (i, (found, right)) in found.chunks(size).zip(right.chunks(size)).enumerate() {
                let row = i * T::BLCK_SIZE / ROW;
                assert_eq!(found, right, "{:?} {how}, block {i}, row {row}", T::DTYPE);
            }
        };
        T::from_float_as_ggml(xs, &mut blocks);
        compare("without weights", &blocks);
        let eight_bits = matches!(T::DTYPE, GgmlDType::Q8_0 | GgmlDType::Q8_1 | GgmlDType::Q8K);
        if !eight_bits {
            T::from_float_imatrix(xs, &mut blocks, weights, ROW);
            compare("with weights", &blocks);
        }
    }

    let mut file: &[u8] = include_bytes!("data/ggml_encoder.bin");
    let xs = floats(&mut file, ROWS * ROW);
    let weights = floats(&mut file, ROW);
    macro_rules! check_all {
        ($($ty:ident)*) => {
            $(check::<$ty>(&mut file, &xs, &weights);)*
        };
    }
    check_all!(BlockQ4_0 BlockQ4_1 BlockQ5_0 BlockQ5_1 BlockQ8_0 BlockQ8_1);
    check_all!(BlockQ2K BlockQ3K BlockQ4K BlockQ5K BlockQ6K BlockQ8K);
    assert!(file.is_empty());
}

/// A row has bit-identical products alone and in a batch of any size, with every kernel that the machine supports.
#[test]
fn a_row_alone_and_in_a_batch() {
    fn check<T: GgmlType>() {
        // Blocks processed in groups, and a remainder.
        let (k, n) = (7 * 256, 23);
        let mut random = Random(31);
        let weights: Vec<T> = encode(&random.floats(n * k, Random::normal));
        let xs = random.floats(33 * k, Random::normal);
        let alone = |x: &[f32]| {
            let mut dst = vec![f32::NAN; n];
            matmul((1, k, n), x, &weights, &mut dst).unwrap();
            dst
        };
        let right: Vec<Vec<f32>> = xs.chunks(k).map(alone).collect();
        for m in [1, 2, 3, 7, 8, 9, 33] {
            let mut dst = vec![f32::NAN; m * n];
            matmul((m, k, n), &xs[..m * k], &weights, &mut dst).unwrap();
            for (row, (found, right)) in dst.chunks(n).zip(&right).enumerate() {
                assert_eq!(found, right, "{:?}, row {row} of {m}", T::DTYPE);
            }
        }
    }
    every_format!(check);
    check::<f32>();
    check::<half::f16>();
    check::<half::bf16>();
}

/// The errors on normal and on uniform data are at most those of crates.io's candle-core 0.11.1. Its values, for variance 1 and for -1..1,
/// are listed here with 3% added for the different random numbers.
#[test]
fn encoding_errors() {
    fn check<T: GgmlType>() {
        let (normal, uniform) = match T::DTYPE {
            GgmlDType::Q4_0 => (0.0861, 0.0375),
            GgmlDType::Q4_1 => (0.0782, 0.0349),
            GgmlDType::Q5_0 => (0.0428, 0.0180),
            GgmlDType::Q5_1 => (0.0379, 0.0169),
            GgmlDType::Q8_0 | GgmlDType::Q8_1 => (0.00537, 0.00217),
            GgmlDType::Q2K => (0.2903, 0.1379),
            GgmlDType::Q3K => (0.1507, 0.0722),
            GgmlDType::Q4K => (0.0747, 0.0331),
            GgmlDType::Q5K => (0.0369, 0.0164),
            GgmlDType::Q6K => (0.0184, 0.0080),
            _ => (0.0070, 0.00226),
        };
        let mut random = Random(1);
        for (name, number, limit) in [
            ("normal", Random::normal as fn(&mut Random) -> f32, normal),
            ("uniform", |r| 2. * r.uniform() - 1., uniform),
        ] {
            for scale in [1., 0.02, 1000.] {
                let xs = random.floats(64 * 256, number);
                let xs: Vec<f32> = xs.iter().map(|x| x * scale).collect();
                let found = error(&xs, &decode(&encode::<T>(&xs)), &[1.]);
                let limit = 1.03 * limit * f64::from(scale);
                assert!(found <= limit, "{:?} {name}: {found} > {limit}", T::DTYPE);
                assert!(found > 0.);
            }
        }
    }
    every_format!(check);
}

/// The error is at most a third of the range for 2 bits, and less for more bits, for any data, with outliers too.
#[test]
fn encoding_errors_of_unusual_data() {
    fn check<T: GgmlType>() {
        let zeros = decode(&encode::<T>(&[0.; 256]));
        assert!(zeros.iter().all(|&y| y == 0.), "{:?}", T::DTYPE);

        let part = match T::DTYPE {
            GgmlDType::Q2K => 0.33,
            GgmlDType::Q3K => 0.15,
            _ => 0.07,
        };
        let mut random = Random(5);
        let mut outliers = random.floats(256, Random::normal);
        outliers[7] = 50.;
        outliers[200] = -80.;
        let step: Vec<f32> = (0..256).map(|i| if i < 100 { -3. } else { 5. }).collect();
        let tiny = random.floats(256, |r| 1e-3 * r.normal());
        for xs in [vec![1.5; 256], vec![-1.5; 256], outliers, step, tiny] {
            let range = xs.iter().fold(0f32, |a, x| a.max(x.abs()));
            for (x, y) in xs.iter().zip(decode(&encode::<T>(&xs))) {
                let off = (x - y).abs() / range;
                assert!(off <= part, "{:?}: {y} for {x}", T::DTYPE);
            }
        }
    }
    every_format!(check);
}

/// NaN, infinities and numbers beyond the range of the scales give some result, without a panic, in products too.
#[test]
fn encoding_takes_any_float() {
    fn check<T: GgmlType>() {
        let mut random = Random(3);
        let odd = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            1e-45,
            -0.,
            1e30,
        ];
        for (i, &number) in odd.iter().enumerate() {
            for xs in [vec![number; 256], {
                let mut xs = random.floats(256, Random::normal);
                xs[17 * i] = number;
                xs[255] = odd[(i + 1) % odd.len()];
                xs
            }] {
                let blocks = encode::<T>(&xs);
                assert_eq!(decode(&blocks).len(), 256);
                let mut weighted = vec![T::zeros(); blocks.len()];
                T::from_float_imatrix(&xs, &mut weighted, &xs, 256);
                let ys = encode::<T::VecDotType>(&xs);
                let _ = T::vec_dot(256, &blocks, &ys);
                let _ = T::vec_dot_unopt(256, &blocks, &ys);
            }
        }
    }
    every_format!(check);
}

/// Importance weights reduce the weighted error. All-zero weights change nothing.
#[test]
fn imatrix_weights_lower_the_weighted_error() {
    fn check<T: GgmlType + PartialEq + std::fmt::Debug>() {
        let mut random = Random(9);
        let xs = random.floats(32 * 512, Random::normal);
        let weights = random.floats(512, |r| 10. * r.uniform().powi(3) + 0.01);
        let encode_weighted = |weights: &[f32]| {
            let mut blocks = vec![T::zeros(); xs.len() / T::BLCK_SIZE];
            T::from_float_imatrix(&xs, &mut blocks, weights, weights.len());
            blocks
        };
        let plain = encode::<T>(&xs);
        let weighted = encode_weighted(&weights);
        let (before, after) = (
            error(&xs, &decode(&plain), &weights),
            error(&xs, &decode(&weighted), &weights),
        );
        let eight_bits = matches!(T::DTYPE, GgmlDType::Q8_0 | GgmlDType::Q8_1 | GgmlDType::Q8K);
        if eight_bits {
            assert_eq!(plain, weighted, "{:?}", T::DTYPE);
        } else {
            assert!(after < 0.95 * before, "{:?}: {before}, {after}", T::DTYPE);
        }
        assert_eq!(encode_weighted(&[0.; 512]), plain, "{:?}", T::DTYPE);
    }
    every_format!(check);
}

/// In every format the products equal those of the decoded operands in f64, except for rounding of sums.
#[test]
fn products_are_those_of_decoded_blocks() {
    fn check<T: GgmlType>() {
        let mut random = Random(21);
        for blocks in [0, 1, 2, 3, 5, 16] {
            let n = blocks * T::BLCK_SIZE;
            let xs: Vec<Vec<T>> = (0..5)
                .map(|_| encode(&random.floats(n, Random::normal)))
                .collect();
            let ys: Vec<Vec<T::VecDotType>> = (0..6)
                .map(|_| encode(&random.floats(n, Random::normal)))
                .collect();
            let near = |found: f32, r: usize, c: usize| {
                let (x, y) = (decode(&xs[r]), decode(&ys[c]));
                let products = x.iter().zip(&y).map(|(&x, &y)| f64::from(x) * f64::from(y));
                let magnitude: f64 = products.clone().map(f64::abs).sum();
                let right: f64 = products.sum();
                // Formats with the sum of a block of activations (Q8_1) store it as f16.
                let f16_sum = matches!(T::DTYPE, GgmlDType::Q4_1 | GgmlDType::Q5_1);
                let tolerance = if f16_sum { 2e-3 } else { 1e-5 } * (magnitude + 1.);
                assert!(
                    (f64::from(found) - right).abs() <= tolerance,
                    "{:?}, {blocks} blocks: {found} for {right}",
                    T::DTYPE
                );
            };
            near(T::vec_dot(n, &xs[0], &ys[0]), 0, 0);
            near(T::vec_dot_unopt(n, &xs[0], &ys[0]), 0, 0);
            let (a, b) = T::vec_dot_2(n, &xs[0], &xs[1], &ys[1]);
            near(a, 0, 1);
            near(b, 1, 1);
            let (a, b, c, d) = T::vec_dot_4(n, &xs[1], &xs[2], &xs[3], &xs[4], &ys[2]);
            near(a, 1, 2);
            near(b, 2, 2);
            near(c, 3, 2);
            near(d, 4, 2);
            if blocks > 0 {
                // One row more and one fewer than the kernel processes at a time.
                for (rows, columns) in [(5, 6), (4, 3), (1, 1), (3, 4), (2, 5)] {
                    let mut dst = vec![f32::NAN; rows * columns];
                    let (xs, ys) = (xs[..rows].concat(), ys[..columns].concat());
                    T::vec_dot_tile(n, &xs, &ys, &mut dst);
                    for (i, &found) in dst.iter().enumerate() {
                        near(found, i % rows, i / rows);
                    }
                }
            }
        }
    }
    every_format!(check);
}

/// Returns the panic message of an invalid call.
fn panic_of(call: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(call).expect_err("no panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

/// Slices of a wrong length panic with the format and both lengths, as the signatures return no error.
#[test]
fn lengths_that_do_not_fit() {
    fn check<T: GgmlType>() {
        let name = format!("{:?}", T::DTYPE);
        let len = T::BLCK_SIZE;
        let says = |text: String, parts: &[String]| {
            for part in parts.iter().chain([&name]) {
                assert!(text.contains(part.as_str()), "{text:?} lacks {part:?}");
            }
        };
        let number = |n: usize| n.to_string();
        says(
            panic_of(|| T::from_float(&vec![0.; len + 1], &mut [T::zeros()])),
            &["from_float".into(), number(len), number(len + 1)],
        );
        says(
            panic_of(|| T::to_float(&[T::zeros()], &mut vec![0.; len - 1])),
            &["to_float".into(), number(len), number(len - 1)],
        );
        let dot = |n: usize| {
            let _ = T::vec_dot(n, &[T::zeros()], &[T::VecDotType::zeros()]);
        };
        says(panic_of(|| dot(len - 1)), &[number(len - 1), number(len)]);
        says(
            panic_of(|| dot(2 * len)),
            &["vec_dot".into(), number(2 * len)],
        );
    }
    every_format!(check);
}
