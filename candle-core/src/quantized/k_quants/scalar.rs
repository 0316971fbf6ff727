//! [`Simd`] in plain Rust: for CPUs without vector instructions, and the reference in tests.

use half::f16;

use super::simd::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

/// The sums of the products of four neighbours each.
#[inline(always)]
fn dot(x: [i32; 32], y: [u8; 32]) -> [i32; 8] {
    let product = |i: usize| x[i] * i32::from(y[i] as i8);
    std::array::from_fn(|i| (4 * i..4 * i + 4).map(product).sum())
}

#[inline(always)]
fn bytes_of(words: [u64; 2]) -> [u8; 16] {
    let [low, high] = words.map(u64::to_le_bytes);
    std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] })
}

impl Simd for Scalar {
    type Bytes = [u8; 32];
    type Signed = [u8; 32];
    type Words = [i16; 16];
    type Scales = [i16; 16];
    type Ints = [i32; 8];
    type Floats = [f32; 8];

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> [u8; 32] {
        *bytes
    }

    #[inline(always)]
    fn nibbles(self, b: &[u8; 16]) -> [u8; 32] {
        std::array::from_fn(|i| if i < 16 { b[i] & 15 } else { b[i - 16] >> 4 })
    }

    #[inline(always)]
    fn fifth_bits(self, bits: [u8; 4]) -> [u8; 32] {
        let bits = u32::from_le_bytes(bits);
        std::array::from_fn(|i| ((bits >> i) as u8 & 1) << 4)
    }

    #[inline(always)]
    fn right<const BY: i32>(self, b: [u8; 32], mask: u8) -> [u8; 32] {
        b.map(|b| (b >> BY) & mask)
    }

    #[inline(always)]
    fn left<const BY: i32>(self, b: [u8; 32], mask: u8) -> [u8; 32] {
        b.map(|b| (b << BY) & mask)
    }

    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn less(self, b: [u8; 32], by: u8) -> [u8; 32] {
        b.map(|b| b.wrapping_sub(by))
    }

    #[cfg(feature = "all-ggml-types")]
    #[inline(always)]
    fn look_up(self, codes: [u8; 32], table: &[i8; 16]) -> [u8; 32] {
        codes.map(|code| table[usize::from(code & 15)] as u8)
    }

    #[inline(always)]
    fn signed(self, b: [u8; 32]) -> [u8; 32] {
        b
    }

    #[inline(always)]
    fn dot_signed(self, x: [u8; 32], y: [u8; 32]) -> [i32; 8] {
        dot(x.map(|x| i32::from(x as i8)), y)
    }

    #[inline(always)]
    fn dot(self, x: [u8; 32], y: [u8; 32]) -> [i32; 8] {
        dot(x.map(i32::from), y)
    }

    #[inline(always)]
    fn dot_wide(self, x: [u8; 32], y: [u8; 32]) -> [i32; 8] {
        self.dot_signed(x, y)
    }

    #[inline(always)]
    fn scales_of_16(self, bytes: [u64; 2]) -> [i16; 16] {
        self.words_of_16(bytes)
    }

    #[inline(always)]
    fn scales_of_32(self, bytes: u64) -> [i16; 16] {
        self.words_of_32(bytes)
    }

    #[inline(always)]
    fn dot_scaled<const J: usize>(
        self,
        sum: [i32; 8],
        x: [u8; 32],
        y: [u8; 32],
        scales: [i16; 16],
    ) -> [i32; 8] {
        let dot = self.dot(x, y);
        std::array::from_fn(|i| sum[i] + dot[i] * i32::from(scales[2 * J + i / 4]))
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 16]) -> [i16; 16] {
        *words
    }

    #[inline(always)]
    fn words_of_16(self, bytes: [u64; 2]) -> [i16; 16] {
        bytes_of(bytes).map(|b| i16::from(b as i8))
    }

    #[inline(always)]
    fn words_of_32(self, bytes: u64) -> [i16; 16] {
        let bytes = bytes.to_le_bytes();
        std::array::from_fn(|i| i16::from(bytes[i / 2]))
    }

    #[inline(always)]
    fn dot_words(self, x: [i16; 16], y: [i16; 16]) -> [i32; 8] {
        let product = |i: usize| i32::from(x[i]) * i32::from(y[i]);
        std::array::from_fn(|i| product(2 * i).wrapping_add(product(2 * i + 1)))
    }

    #[inline(always)]
    fn no_ints(self) -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn add_ints(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn total(self, x: [i32; 8]) -> [i32; 8] {
        [x.into_iter().fold(0, i32::wrapping_add); 8]
    }

    #[inline(always)]
    fn sub_shifted<const BY: i32>(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i] << BY))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 8] {
        [x; 8]
    }

    #[inline(always)]
    fn splat_f16(self, x: f16) -> [f32; 8] {
        [super::utils::f16_to_f32(x); 8]
    }

    #[inline(always)]
    fn floats(self, x: [i32; 8]) -> [f32; 8] {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn neg_mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }

    #[inline(always)]
    fn first(self, [x, ..]: [f32; 8]) -> f32 {
        x
    }
}
