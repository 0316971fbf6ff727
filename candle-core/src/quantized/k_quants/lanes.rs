//! What [panels](super::panels) need from a machine's vector instructions.

use super::simd::Simd;

/// Rows that a panel can hold.
pub(crate) const MAX_ROWS: usize = 32;

/// Rows of weights that are transposed together: as many as 32 bytes have groups of four.
pub(crate) const GROUP: usize = 8;

/// Vectors over the rows of a panel, beside those of [`Simd`] that unpack it.
///
/// # Safety
/// As for [`Simd`]; pointers are to as many elements as the text says.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Lanes: Simd {
    /// Rows of a panel, a multiple of [`GROUP`] and at most [`MAX_ROWS`].
    const ROWS: usize;
    /// Whether codes with a sign get 128 added in a panel, for instructions that take one side without a sign.
    const UNSIGNED: bool;
    /// Four codes of each row.
    type Fours: Copy;
    /// An integer for each row.
    type Sums: Copy;
    /// A float for each row.
    type Values: Copy;

    /// Eight rows of eight groups of four bytes, turned into eight groups of eight rows.
    unsafe fn transpose(rows: [Self::Bytes; GROUP]) -> [Self::Bytes; GROUP];
    /// 128 more in each byte, without the carry.
    unsafe fn flip_signs(bytes: Self::Bytes) -> Self::Bytes;
    /// Writes 32 bytes.
    unsafe fn store(p: *mut u8, bytes: Self::Bytes);

    /// The eight signed bytes of a word as floats, that in its lowest byte first.
    unsafe fn eight_bytes(word: u64) -> Self::Floats;
    /// Eight f16, by their bits.
    unsafe fn eight_floats(halves: [u16; GROUP]) -> Self::Floats;
    /// 32 signed bytes as floats.
    unsafe fn eights(bytes: Self::Bytes) -> [Self::Floats; 4];
    /// `a + b`
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Writes 8 floats.
    unsafe fn store_eight(p: *mut f32, values: Self::Floats);

    /// Four codes of each row, one row after another.
    unsafe fn load_fours(p: *const u8) -> Self::Fours;
    /// `sum` and the products with the four signed bytes at `y`. `SIGNED` says that the codes have a sign.
    unsafe fn dot_fours<const SIGNED: bool>(
        sum: Self::Sums,
        x: Self::Fours,
        y: *const i8,
    ) -> Self::Sums;
    /// The integer at `p` for every row.
    unsafe fn splat_sum(p: *const i32) -> Self::Sums;
    unsafe fn zero_sums() -> Self::Sums;
    unsafe fn values_of(sums: Self::Sums) -> Self::Values;

    /// The float at `p` for every row.
    unsafe fn splat_value(p: *const f32) -> Self::Values;
    unsafe fn zero_values() -> Self::Values;
    /// A float for each row.
    unsafe fn load_values(p: *const f32) -> Self::Values;
    unsafe fn store_values(p: *mut f32, values: Self::Values);
    /// `a * b + c`
    unsafe fn fma(a: Self::Values, b: Self::Values, c: Self::Values) -> Self::Values;
}

/// Work that is compiled for every set of instructions with [`Lanes`].
pub(crate) trait PanelKernel {
    /// Does the work. To be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn run<S: Lanes>(self);
}
