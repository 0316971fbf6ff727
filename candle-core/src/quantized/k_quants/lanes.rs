//! The vector instructions that [panels](super::panels) need.

use super::simd::Simd;
use crate::cpu::transpose_bytes::transpose_bytes;

/// Maximum number of rows of a panel.
pub(crate) const MAX_ROWS: usize = 32;

/// Number of rows of weights that are transposed together: the number of groups of four in 32 bytes.
pub(crate) const GROUP: usize = 8;

/// Vectors over the rows of a panel, in addition to those of [`Simd`], which unpack it.
///
/// # Safety
/// As for [`Simd`]; pointers must be valid for the number of elements that each function states.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait PanelSimd: Simd {
    /// Rows of a panel, a multiple of [`GROUP`] and at most [`MAX_ROWS`].
    const ROWS: usize;
    /// Whether 128 is added to signed codes in a panel, for instructions with one unsigned operand.
    const UNSIGNED: bool;
    /// Four codes of each row.
    type Fours: Copy;
    /// An integer for each row.
    type Sums: Copy;
    /// An integer for each row, in another layout than [`Sums`](Self::Sums).
    type Totals: Copy;
    /// A float for each row.
    type Values: Copy;

    /// Transposes eight rows of eight groups of four bytes to eight groups of eight rows.
    unsafe fn transpose(rows: [Self::Bytes; GROUP]) -> [Self::Bytes; GROUP];
    /// Transposes eight rows of eight bytes (the first is a word's lowest) to eight groups of eight rows: four groups in each result.
    #[inline(always)]
    unsafe fn transpose_bytes(rows: [u64; GROUP]) -> [Self::Bytes; 2] {
        let turned = transpose_bytes(rows).map(u64::to_le_bytes);
        let p = turned.as_flattened().as_ptr();
        [Self::load(p), Self::load(p.add(32))]
    }
    /// Adds 128 to each byte, wrapping.
    unsafe fn flip_signs(bytes: Self::Bytes) -> Self::Bytes;
    /// Writes 32 bytes.
    unsafe fn store(p: *mut u8, bytes: Self::Bytes);

    /// The eight signed bytes of a word as floats, the lowest byte first.
    unsafe fn eight_bytes(word: u64) -> Self::Floats;
    /// Eight f16, given by their bits.
    unsafe fn eight_floats(halves: [u16; GROUP]) -> Self::Floats;
    /// 32 signed bytes as floats.
    unsafe fn eights(bytes: Self::Bytes) -> [Self::Floats; 4];
    /// `a + b`
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Writes 8 floats.
    unsafe fn store_eight(p: *mut f32, values: Self::Floats);

    /// Four codes of each row, row by row.
    unsafe fn load_fours(p: *const u8) -> Self::Fours;
    /// `sum` plus the products with the four signed bytes at `y`. `SIGNED` means that the codes have a sign.
    unsafe fn dot_fours<const SIGNED: bool>(
        sum: Self::Sums,
        x: Self::Fours,
        y: *const i8,
    ) -> Self::Sums;
    /// The integer at `p` for every row.
    unsafe fn splat_sum(p: *const i32) -> Self::Sums;
    unsafe fn zero_sums() -> Self::Sums;
    unsafe fn values_of(sums: Self::Sums) -> Self::Values;

    unsafe fn zero_totals() -> Self::Totals;
    /// An integer for each row from the floats at `p`.
    unsafe fn load_whole(p: *const f32) -> Self::Totals;
    /// `total + sums * by`
    unsafe fn add_times(total: Self::Totals, sums: Self::Sums, by: Self::Totals) -> Self::Totals;
    unsafe fn values_of_totals(totals: Self::Totals) -> Self::Values;

    /// The float at `p` for every row.
    unsafe fn splat_value(p: *const f32) -> Self::Values;
    unsafe fn zero_values() -> Self::Values;
    /// A float for each row.
    unsafe fn load_values(p: *const f32) -> Self::Values;
    unsafe fn store_values(p: *mut f32, values: Self::Values);
    /// `a * b + c`
    unsafe fn fma(a: Self::Values, b: Self::Values, c: Self::Values) -> Self::Values;
}

/// A kernel that is compiled for every instruction set with [`PanelSimd`].
pub(crate) trait PanelKernel {
    /// Runs the kernel. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn run<S: PanelSimd>(self);
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
