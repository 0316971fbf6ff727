//! The vector instructions that [panels](super::panels) need.

use super::simd::Simd;
use crate::cpu::transpose_bytes::transpose_bytes;

/// Maximum number of rows of a panel.
pub(crate) const MAX_ROWS: usize = 32;

/// Number of rows of weights that are transposed together: the number of groups of four in 32 bytes.
pub(crate) const GROUP: usize = 8;

/// Vectors over the rows of a panel, in addition to those of [`Simd`], which unpack it.
pub(crate) trait PanelSimd: Simd {
    /// Rows of a panel, a multiple of [`GROUP`] and at most [`MAX_ROWS`].
    const ROWS: usize;
    /// Whether 128 is added to signed codes in a panel, for instructions with one unsigned operand.
    const UNSIGNED: bool;
    /// Four bytes of each row, row by row: an array of `4 * ROWS`.
    type FourOfRows: bytemuck::Pod;
    /// A float of each row: an array of `ROWS`.
    type OneOfRows: bytemuck::Pod;
    /// Four codes of each row.
    type Fours: Copy;
    /// An integer for each row.
    type Sums: Copy;
    /// An integer for each row, in another layout than [`Sums`](Self::Sums).
    type Totals: Copy;
    /// A float for each row.
    type Values: Copy;

    /// Transposes eight rows of eight groups of four bytes to eight groups of eight rows.
    fn transpose(self, rows: [Self::Bytes; GROUP]) -> [Self::Bytes; GROUP];
    /// Transposes eight rows of eight bytes (the first is a word's lowest) to eight groups of eight rows: four groups in each result.
    #[inline(always)]
    fn transpose_bytes(self, rows: [u64; GROUP]) -> [Self::Bytes; 2] {
        let turned = transpose_bytes(rows).map(u64::to_le_bytes);
        let [low, high]: &[[u8; 32]; 2] = bytemuck::cast_ref(&turned);
        [self.load(low), self.load(high)]
    }
    /// Adds 128 to each byte, wrapping.
    fn flip_signs(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Writes 32 bytes.
    fn store(self, to: &mut [u8; 32], bytes: Self::Bytes);

    /// The eight signed bytes of a word as floats, the lowest byte first.
    fn eight_bytes(self, word: u64) -> Self::Floats;
    /// Eight f16, given by their bits.
    fn eight_floats(self, halves: [u16; GROUP]) -> Self::Floats;
    /// 32 signed bytes as floats.
    fn eights(self, bytes: Self::Bytes) -> [Self::Floats; 4];
    /// `a + b`
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Writes 8 floats.
    fn store_eight(self, to: &mut [f32; 8], values: Self::Floats);

    /// Four codes of each row.
    fn load_fours(self, codes: &Self::FourOfRows) -> Self::Fours;
    /// `sum` plus the products with the four signed bytes of `y`. `SIGNED` means that the codes have a sign.
    fn dot_fours<const SIGNED: bool>(self, sum: Self::Sums, x: Self::Fours, y: i32) -> Self::Sums;
    /// `x` for every row.
    fn splat_sum(self, x: i32) -> Self::Sums;
    fn zero_sums(self) -> Self::Sums;
    fn values_of(self, sums: Self::Sums) -> Self::Values;

    fn zero_totals(self) -> Self::Totals;
    /// An integer for each row from whole floats.
    fn load_whole(self, floats: &Self::OneOfRows) -> Self::Totals;
    /// `total + sums * by`
    fn add_times(self, total: Self::Totals, sums: Self::Sums, by: Self::Totals) -> Self::Totals;
    fn values_of_totals(self, totals: Self::Totals) -> Self::Values;

    /// `x` for every row.
    fn splat_value(self, x: f32) -> Self::Values;
    fn zero_values(self) -> Self::Values;
    /// A float for each row.
    fn load_values(self, floats: &Self::OneOfRows) -> Self::Values;
    fn store_values(self, to: &mut Self::OneOfRows, values: Self::Values);
    /// `a * b + c`
    fn fma(self, a: Self::Values, b: Self::Values, c: Self::Values) -> Self::Values;
}

/// A kernel that is compiled for every instruction set with [`PanelSimd`].
pub(crate) trait PanelKernel {
    type Output;

    /// Runs the kernel. Must be `#[inline(always)]`.
    fn run<S: PanelSimd>(self, s: S) -> Self::Output;
}

/// [`PanelSimd::transpose`] for registers that hold half of a row, from `four`, which transposes four words of four
/// rows.
#[cfg(any(
    target_arch = "aarch64",
    all(target_arch = "wasm32", target_feature = "simd128")
))]
#[inline(always)]
pub(crate) fn transpose_in_halves<V: Copy>(
    [a, b, c, d, e, f, g, h]: [[V; 2]; GROUP],
    four: impl Fn([V; 4]) -> [V; 4],
) -> [[V; 2]; GROUP] {
    let low = four([a[0], b[0], c[0], d[0]]);
    let low_rest = four([e[0], f[0], g[0], h[0]]);
    let high = four([a[1], b[1], c[1], d[1]]);
    let high_rest = four([e[1], f[1], g[1], h[1]]);
    [
        [low[0], low_rest[0]],
        [low[1], low_rest[1]],
        [low[2], low_rest[2]],
        [low[3], low_rest[3]],
        [high[0], high_rest[0]],
        [high[1], high_rest[1]],
        [high[2], high_rest[2]],
        [high[3], high_rest[3]],
    ]
}
