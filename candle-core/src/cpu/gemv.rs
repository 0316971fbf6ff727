//! Products of a few f32 rows with a matrix of f32, f16 or bf16, which is read once and widened in registers.
//!
//! With a single row, as in decoding one token, the product is bound by memory bandwidth. These kernels read the matrix
//! in order, whichever dimension is contiguous.

use half::{bf16, f16};

use super::half_floats::HalfFloat;
use super::simd::{joined, LANES};

/// Number of elements that are widened at a time without AVX2.
const WIDEN: usize = 256;

/// An element type of the matrix.
pub(crate) trait GemvWeight: Copy + Send + Sync {
    /// `dst = src`; both have the same length.
    fn widen(src: &[Self], dst: &mut [f32]);

    /// The same slice, if the elements are f32.
    fn as_f32s(_: &[Self]) -> Option<&[f32]> {
        None
    }

    /// Like [`Self::as_f32s`], mutable.
    fn as_f32s_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }

    /// Eight elements as f32.
    ///
    /// # Safety
    /// `src` must be readable for 8 elements; the CPU must have AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(src: *const Self) -> std::arch::x86_64::__m256;
}

impl GemvWeight for f32 {
    fn widen(src: &[Self], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }

    fn as_f32s(elements: &[Self]) -> Option<&[f32]> {
        Some(elements)
    }

    fn as_f32s_mut(elements: &mut [Self]) -> Option<&mut [f32]> {
        Some(elements)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(src: *const Self) -> std::arch::x86_64::__m256 {
        unsafe { std::arch::x86_64::_mm256_loadu_ps(src) }
    }
}

impl GemvWeight for f16 {
    fn widen(src: &[Self], dst: &mut [f32]) {
        <Self as HalfFloat>::widen(src, dst);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(src: *const Self) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(src.cast())) }
    }
}

impl GemvWeight for bf16 {
    fn widen(src: &[Self], dst: &mut [f32]) {
        <Self as HalfFloat>::widen(src, dst);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(src: *const Self) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

/// Writes the dot product of `column` with row `r` of `rows`, which are contiguous, to `out[r]`. The order of summation does not depend on
/// the number of rows, and equals that of [`dot_columns`]: a token's results do not depend on the other tokens of the batch.
pub(crate) fn dot_rows<T: GemvWeight>(rows: &[f32], column: &[T], out: &mut [f32]) {
    let k = column.len();
    assert_eq!(rows.len(), k * out.len());
    #[cfg(target_arch = "x86_64")]
    if super::simd::has_avx2() {
        let row = |r: usize| rows[r * k..(r + 1) * k].as_ptr();
        for (four, out) in out.chunks_mut(4).enumerate() {
            let r = 4 * four;
            // SAFETY: rows and column have k elements; the CPU has AVX2, FMA and F16C.
            unsafe {
                match out {
                    [a] => [*a] = x86::dots([row(r)], column),
                    [a, b] => [*a, *b] = x86::dots([row(r), row(r + 1)], column),
                    [a, b, c] => {
                        [*a, *b, *c] = x86::dots([row(r), row(r + 1), row(r + 2)], column);
                    }
                    four => {
                        let rows = [row(r), row(r + 1), row(r + 2), row(r + 3)];
                        four.copy_from_slice(&x86::dots::<T, 4>(rows, column));
                    }
                }
            }
        }
        return;
    }
    let mut wide = [0f32; WIDEN];
    out.fill(0.);
    for (i, column) in column.chunks(WIDEN).enumerate() {
        let wide = &mut wide[..column.len()];
        T::widen(column, wide);
        for (r, out) in out.iter_mut().enumerate() {
            *out += dot(&rows[r * k + i * WIDEN..][..wide.len()], wide);
        }
    }
}

/// Writes the dot product of `row` with the elements from `matrix[j * stride]` on to `out[j]`.
pub(crate) fn dot_columns<T: GemvWeight>(
    row: &[f32],
    matrix: &[T],
    stride: usize,
    out: &mut [f32],
) {
    let k = row.len();
    assert!(out.is_empty() || (out.len() - 1) * stride + k <= matrix.len());
    #[cfg(target_arch = "x86_64")]
    if super::simd::has_avx2() {
        // SAFETY: the length of the matrix was asserted; the CPU has AVX2, FMA and F16C.
        return unsafe { x86::dot_columns(row, matrix, stride, out) };
    }
    for (j, out) in out.iter_mut().enumerate() {
        dot_rows(row, &matrix[j * stride..][..k], std::slice::from_mut(out));
    }
}

/// Maximum width for short runs: the sums of a single row of this width stay in registers for the whole matrix.
#[cfg(target_arch = "x86_64")]
const NARROW: usize = 128;

/// Adds to row `r` of `out` the rows of a matrix, row `i` times `factors[r * k + i]`. Row `i` of the matrix is the `width` elements
/// from `matrix[i * stride]` on.
pub(crate) fn axpy_rows<T: GemvWeight>(
    factors: &[f32],
    k: usize,
    (matrix, stride): (&[T], usize),
    out: &mut [f32],
    width: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if k > 0 && width <= NARROW && out.len() == width && super::simd::has_avx2() {
        assert!((k - 1) * stride + width <= matrix.len());
        // SAFETY: the length of the matrix was asserted; the CPU has AVX2, FMA and F16C.
        return unsafe { x86::add_narrow(&factors[..k], matrix, stride, out) };
    }
    for i in (0..k).step_by(4) {
        let matrix = &matrix[i * stride..];
        let done = if i + 4 <= k {
            add_four(&factors[i..], k, (matrix, stride), out, width)
        } else {
            0
        };
        if done == width {
            continue;
        }
        let row = |n: usize| &matrix[n * stride..][done..width];
        for (r, out) in out.chunks_mut(width).enumerate() {
            let (factors, out) = (&factors[r * k + i..(r + 1) * k], &mut out[done..]);
            match *factors {
                [a, b, c, d, ..] => {
                    add_scaled([a, b, c, d], [row(0), row(1), row(2), row(3)], out);
                }
                _ => {
                    for (n, &factor) in factors.iter().enumerate() {
                        add_scaled([factor], [row(n)], out);
                    }
                }
            }
        }
    }
}

/// Like `axpy_rows` for the first four rows of a matrix; returns the number of columns processed. If `out` has several rows, each element
/// is widened once for all of them.
fn add_four<T: GemvWeight>(
    factors: &[f32],
    k: usize,
    (matrix, stride): (&[T], usize),
    out: &mut [f32],
    width: usize,
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if out.len() > width && super::simd::has_avx2() {
        let few = out.len() / width;
        assert!(few * width == out.len() && (few - 1) * k + 4 <= factors.len());
        assert!(3 * stride + width <= matrix.len());
        // SAFETY: the lengths were asserted; the CPU has AVX2, FMA and F16C.
        return unsafe { x86::add_four(factors, k, (matrix, stride), out, width) };
    }
    let _ = (factors, k, matrix, stride, out, width);
    0
}

/// `out += factors · rows`; all rows have the length of `out`.
#[inline]
fn add_scaled<T: GemvWeight, const N: usize>(factors: [f32; N], rows: [&[T]; N], out: &mut [f32]) {
    assert!(rows.iter().all(|row| row.len() == out.len()));
    #[cfg(target_arch = "x86_64")]
    if super::simd::has_avx2() {
        // SAFETY: the lengths were compared; the CPU has AVX2, FMA and F16C.
        return unsafe { x86::add_scaled(factors, rows, out) };
    }
    let mut wide = [0f32; WIDEN];
    for (factor, row) in factors.into_iter().zip(rows) {
        for (row, out) in row.chunks(WIDEN).zip(out.chunks_mut(WIDEN)) {
            let wide = &mut wide[..row.len()];
            T::widen(row, wide);
            for (out, &v) in out.iter_mut().zip(&*wide) {
                *out += factor * v;
            }
        }
    }
}

/// The dot product of two slices of the same length, on any CPU. Multiply-add is fused only where it is one instruction.
fn dot(lhs: &[f32], rhs: &[f32]) -> f32 {
    const FMA: bool = cfg!(target_arch = "aarch64");
    let mut acc = [0f32; LANES];
    let ((l, l_tail), (r, r_tail)) = (lhs.as_chunks::<LANES>(), rhs.as_chunks::<LANES>());
    for (l, r) in l.iter().zip(r) {
        for i in 0..LANES {
            acc[i] = if FMA {
                l[i].mul_add(r[i], acc[i])
            } else {
                acc[i] + l[i] * r[i]
            };
        }
    }
    let sum = joined(acc, |lhs, rhs| lhs + rhs);
    let tail = l_tail.iter().zip(r_tail);
    tail.fold(sum, |acc, (&l, &r)| acc + l * r)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::simd::{ahead, prefetch};
    use super::{GemvWeight, NARROW};
    use std::arch::x86_64::*;
    use std::ops::Range;

    /// Number of streams in which a matrix is read at the same time.
    const STREAMS: usize = 4;

    /// Prefetch distance of each stream in bytes.
    const FETCHED: usize = 512;

    /// Maximum number of columns whose sums are in registers at the same time.
    const WIDEST: usize = 64;

    /// The prefetch distance in elements, about `bytes`, for rows with stride `stride`, `together` of which are multiplied at a time.
    fn rows_ahead<T>(bytes: usize, stride: usize, together: usize) -> usize {
        (bytes / (stride * size_of::<T>()).max(1)).max(together) * stride
    }

    /// The dot products of `R` rows with a column, in the order of [`dot_columns`].
    ///
    /// # Safety
    /// Each row must be readable for the number of elements of the column.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dots<T: GemvWeight, const R: usize>(
        rows: [*const f32; R],
        column: &[T],
    ) -> [f32; R] {
        let (k, column) = (column.len(), column.as_ptr());
        let mut acc = [[_mm256_setzero_ps(); 2]; R];
        let mut i = 0;
        while i + 16 <= k {
            // SAFETY: 16 elements from `i` on are below k.
            unsafe {
                let (left, right) = (T::load(column.add(i)), T::load(column.add(i + 8)));
                for r in 0..R {
                    let row = rows[r].add(i);
                    acc[r][0] = _mm256_fmadd_ps(_mm256_loadu_ps(row), left, acc[r][0]);
                    acc[r][1] = _mm256_fmadd_ps(_mm256_loadu_ps(row.add(8)), right, acc[r][1]);
                }
            }
            i += 16;
        }
        if i + 8 <= k {
            // SAFETY: as above, 8 elements.
            unsafe {
                let v = T::load(column.add(i));
                for r in 0..R {
                    acc[r][0] = _mm256_fmadd_ps(_mm256_loadu_ps(rows[r].add(i)), v, acc[r][0]);
                }
            }
            i += 8;
        }
        let rest = k - i;
        let mut tail = [0f32; 8];
        if rest > 0 {
            // SAFETY: the last elements of the column.
            let column = unsafe { std::slice::from_raw_parts(column.add(i), rest) };
            T::widen(column, &mut tail[..rest]);
        }
        let mut sums = [0f32; R];
        for r in 0..R {
            let sum = _mm256_add_ps(acc[r][0], acc[r][1]);
            let pairs = _mm256_hadd_ps(sum, sum);
            let fours = _mm256_hadd_ps(pairs, pairs);
            let (low, high) = (
                _mm256_castps256_ps128(fours),
                _mm256_extractf128_ps::<1>(fours),
            );
            sums[r] = _mm_cvtss_f32(_mm_add_ss(low, high));
            for (n, v) in tail[..rest].iter().enumerate() {
                // SAFETY: below k.
                sums[r] += unsafe { *rows[r].add(i + n) } * v;
            }
        }
        sums
    }

    /// The dot products of a row with several columns, each as eight partial sums, over the elements that fill whole registers.
    ///
    /// # Safety
    /// Each column must have the length of the row.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn partial_dots<T: GemvWeight, const C: usize>(
        row: &[f32],
        columns: [&[T]; C],
    ) -> [__m256; C] {
        let k = row.len();
        let mut acc = [[_mm256_setzero_ps(); 2]; C];
        let mut i = 0;
        while i + 16 <= k {
            for column in columns {
                prefetch(column.as_ptr().wrapping_add(i + FETCHED / size_of::<T>()));
            }
            // SAFETY: 16 elements from `i` on are below k.
            unsafe {
                let left = _mm256_loadu_ps(row.as_ptr().add(i));
                let right = _mm256_loadu_ps(row.as_ptr().add(i + 8));
                for c in 0..C {
                    let column = columns[c].as_ptr().add(i);
                    acc[c][0] = _mm256_fmadd_ps(left, T::load(column), acc[c][0]);
                    acc[c][1] = _mm256_fmadd_ps(right, T::load(column.add(8)), acc[c][1]);
                }
            }
            i += 16;
        }
        if i + 8 <= k {
            // SAFETY: as above, 8 elements.
            unsafe {
                let left = _mm256_loadu_ps(row.as_ptr().add(i));
                for c in 0..C {
                    let column = T::load(columns[c].as_ptr().add(i));
                    acc[c][0] = _mm256_fmadd_ps(left, column, acc[c][0]);
                }
            }
        }
        let mut dots = [_mm256_setzero_ps(); C];
        for (dot, [left, right]) in dots.iter_mut().zip(acc) {
            *dot = _mm256_add_ps(left, right);
        }
        dots
    }

    /// Reads the matrix in several streams, each from its first column to its last. Neighbouring columns would be a few pages each, and the
    /// hardware prefetcher, which follows streams within a page, would lose all of them at every page end.
    ///
    /// # Safety
    /// `matrix` must have `row.len()` elements from `(out.len() - 1) * stride` on.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dot_columns<T: GemvWeight>(
        row: &[f32],
        matrix: &[T],
        stride: usize,
        out: &mut [f32],
    ) {
        let k = row.len();
        let per_stream = out.len() / STREAMS;
        let whole = k - k % 8;
        for j in 0..per_stream {
            // Without closures: the compiler may not inline them.
            let mut columns: [&[T]; STREAMS] = [&[]; STREAMS];
            for (s, column) in columns.iter_mut().enumerate() {
                *column = &matrix[(s * per_stream + j) * stride..][..k];
            }
            // SAFETY: each column has the length of the row.
            let [a, b, c, d] = unsafe { partial_dots(row, columns) };
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let sums = _mm_add_ps(
                _mm256_castps256_ps128(pairs),
                _mm256_extractf128_ps::<1>(pairs),
            );
            let mut products = [0f32; STREAMS];
            // SAFETY: four elements.
            unsafe { _mm_storeu_ps(products.as_mut_ptr(), sums) };
            if whole < k {
                let mut tail = [0f32; 8];
                for (column, product) in columns.iter().zip(&mut products) {
                    T::widen(&column[whole..], &mut tail[..k - whole]);
                    for (&x, v) in row[whole..].iter().zip(tail) {
                        *product += x * v;
                    }
                }
            }
            for (s, product) in products.into_iter().enumerate() {
                out[s * per_stream + j] = product;
            }
        }
        for (j, out) in out.iter_mut().enumerate().skip(STREAMS * per_stream) {
            // SAFETY: the row has the length of the column.
            [*out] = unsafe { dots([row.as_ptr()], &matrix[j * stride..][..k]) };
        }
    }

    /// Rows of each stream that are added in one block of columns before the next block: few, because each block leaves the stream and
    /// resumes it.
    const BLOCK: usize = 2;

    /// Reads the matrix in several streams, like [`dot_columns`].
    ///
    /// # Safety
    /// `matrix` must have `out.len()` elements from `(factors.len() - 1) * stride` on.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn add_narrow<T: GemvWeight>(
        factors: &[f32],
        matrix: &[T],
        stride: usize,
        out: &mut [f32],
    ) {
        let per_stream = factors.len() / STREAMS;
        // If all sums fit into registers, they stay in registers.
        let block = if out.len() > WIDEST {
            BLOCK
        } else {
            per_stream.max(1)
        };
        for first in (0..per_stream).step_by(block) {
            let rows = first..per_stream.min(first + block);
            // SAFETY: rows of the streams are below the number of factors.
            unsafe { add_block::<T, STREAMS>(factors, rows, per_stream, (matrix, stride), out) };
        }
        let rest = STREAMS * per_stream..factors.len();
        // SAFETY: as above.
        unsafe { add_block::<T, 1>(factors, rest, 0, (matrix, stride), out) };
        let whole = out.len() - out.len() % 8;
        if whole == out.len() {
            return;
        }
        let mut tail = [0f32; 8];
        for (i, &factor) in factors.iter().enumerate() {
            let tail = &mut tail[..out.len() - whole];
            T::widen(&matrix[i * stride + whole..][..tail.len()], tail);
            for (out, &v) in out[whole..].iter_mut().zip(&*tail) {
                *out += factor * v;
            }
        }
    }

    /// Adds `rows` rows of each of `S` streams, whose first rows are `per_stream` apart, in the columns that fill whole registers. Returns
    /// the number of columns processed.
    ///
    /// # Safety
    /// These rows are rows of the matrix, with the length of `out`, and there are factors for them.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_block<T: GemvWeight, const S: usize>(
        factors: &[f32],
        rows: Range<usize>,
        per_stream: usize,
        (matrix, stride): (&[T], usize),
        out: &mut [f32],
    ) {
        let mut start = 0;
        while start + 8 <= out.len() {
            let (matrix, out) = (
                (matrix.as_ptr().wrapping_add(start), stride),
                &mut out[start..],
            );
            let rows = rows.clone();
            // SAFETY: at most the remaining columns; the rest is this function's contract.
            start += unsafe {
                match out.len() {
                    WIDEST.. => add_registers::<T, S, 8>(factors, rows, per_stream, matrix, out),
                    32.. => add_registers::<T, S, 4>(factors, rows, per_stream, matrix, out),
                    16.. => add_registers::<T, S, 2>(factors, rows, per_stream, matrix, out),
                    _ => add_registers::<T, S, 1>(factors, rows, per_stream, matrix, out),
                }
            };
        }
    }

    /// Adds `8 * N` columns and returns that number.
    ///
    /// # Safety
    /// As for [`add_block`]; `out` has at least that number of elements.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_registers<T: GemvWeight, const S: usize, const N: usize>(
        factors: &[f32],
        rows: Range<usize>,
        per_stream: usize,
        (matrix, stride): (*const T, usize),
        out: &mut [f32],
    ) -> usize {
        let (out, _) = out.as_chunks_mut::<8>();
        // SAFETY: 8 elements.
        let mut acc: [__m256; N] =
            std::array::from_fn(|n| unsafe { _mm256_loadu_ps(out[n].as_ptr()) });
        let ahead = rows_ahead::<T>(FETCHED, stride, 1);
        for i in rows {
            for stream in 0..S {
                let i = i + stream * per_stream;
                let (factor, row) = (_mm256_set1_ps(factors[i]), matrix.wrapping_add(i * stride));
                for line in (0..8 * N).step_by(64 / size_of::<T>()) {
                    prefetch(row.wrapping_add(ahead + line));
                }
                for (n, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: by this function's contract.
                    let v = unsafe { T::load(row.add(8 * n)) };
                    *acc = _mm256_fmadd_ps(factor, v, *acc);
                }
            }
        }
        for (acc, out) in acc.into_iter().zip(out) {
            // SAFETY: 8 elements.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
        }
        8 * N
    }

    /// Returns the number of columns processed: the remainder is shorter than two registers.
    ///
    /// # Safety
    /// `out` must be rows of `width`; `matrix` must have `width` elements from `3 * stride` on, and `factors` four from `k * r` on for each
    /// row `r` of `out`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn add_four<T: GemvWeight>(
        factors: &[f32],
        k: usize,
        (matrix, stride): (&[T], usize),
        out: &mut [f32],
        width: usize,
    ) -> usize {
        let few = out.len() / width;
        let done = width - width % 16;
        // The hardware prefetcher follows longer rows unaided.
        let ahead = (width <= NARROW).then(|| rows_ahead::<T>(ahead(), stride, 4));
        for j in (0..done).step_by(16) {
            // SAFETY: 16 columns from `j` on are in each row; the factors are there by this function's contract.
            unsafe {
                let wide: [_; 4] = std::array::from_fn(|n| {
                    let row = matrix.as_ptr().add(n * stride + j);
                    if let Some(ahead) = ahead {
                        prefetch(row.wrapping_add(ahead));
                    }
                    [T::load(row), T::load(row.add(8))]
                });
                for r in 0..few {
                    let out = out.as_mut_ptr().add(r * width + j);
                    let factors = factors.as_ptr().add(r * k);
                    let mut sums = [_mm256_loadu_ps(out), _mm256_loadu_ps(out.add(8))];
                    for (n, wide) in wide.iter().enumerate() {
                        let factor = _mm256_broadcast_ss(&*factors.add(n));
                        for (sum, &v) in sums.iter_mut().zip(wide) {
                            *sum = _mm256_fmadd_ps(factor, v, *sum);
                        }
                    }
                    _mm256_storeu_ps(out, sums[0]);
                    _mm256_storeu_ps(out.add(8), sums[1]);
                }
            }
        }
        done
    }

    /// # Safety
    /// All rows must have the length of `out`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn add_scaled<T: GemvWeight, const N: usize>(
        factors: [f32; N],
        rows: [&[T]; N],
        out: &mut [f32],
    ) {
        let wide = factors.map(|factor| _mm256_set1_ps(factor));
        let (chunks, tail) = out.as_chunks_mut::<8>();
        let start = chunks.len() * 8;
        for (i, chunk) in chunks.iter_mut().enumerate() {
            // SAFETY: 8 elements of `out` and of each row.
            unsafe {
                let mut sum = _mm256_loadu_ps(chunk.as_ptr());
                for n in 0..N {
                    sum = _mm256_fmadd_ps(wide[n], T::load(rows[n].as_ptr().add(i * 8)), sum);
                }
                _mm256_storeu_ps(chunk.as_mut_ptr(), sum);
            }
        }
        let mut rest = [0f32; 8];
        for n in 0..N {
            let rest = &mut rest[..tail.len()];
            T::widen(&rows[n][start..], rest);
            for (out, &v) in tail.iter_mut().zip(&*rest) {
                *out += factors[n] * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, salt: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((i * 7 + salt * 13) % 31) as f32 / 8. - 2.)
            .collect()
    }

    /// Compares with sums in f64, for lengths around those of the registers and with offsets.
    fn check<T: GemvWeight>(narrow: fn(f32) -> T, wide: fn(T) -> f32) {
        for k in [0, 1, 3, 7, 8, 9, 31, 33, 64, 100, 128, 131, 300] {
            for m in [1, 2, 4, 5, 8] {
                let rows = numbers(m * k, 1);
                let matrix: Vec<T> = numbers(1 + k * (k + 2), 2)
                    .into_iter()
                    .map(narrow)
                    .collect();
                let expected = |r: usize, element: &dyn Fn(usize) -> T| -> f64 {
                    (0..k)
                        .map(|i| f64::from(rows[r * k + i]) * f64::from(wide(element(i))))
                        .sum()
                };
                let mut out = vec![f32::NAN; m];
                dot_rows(&rows, &matrix[1..1 + k], &mut out);
                for (r, &got) in out.iter().enumerate() {
                    let expected = expected(r, &|i| matrix[1 + i]);
                    assert!(
                        (f64::from(got) - expected).abs() < 1e-4,
                        "k {k}, m {m}: {got} {expected}"
                    );
                }
                let width = k.max(1);
                let mut out = vec![0f32; m * width];
                axpy_rows(&rows, k, (&matrix[1..], k + 2), &mut out, width);
                for (at, &got) in out.iter().enumerate() {
                    let (r, j) = (at / width, at % width);
                    let expected = expected(r, &|i| matrix[1 + i * (k + 2) + j]);
                    assert!(
                        (f64::from(got) - expected).abs() < 1e-4,
                        "k {k}, m {m}: {got} {expected}"
                    );
                }
            }
        }
    }

    /// Like [`check`], for a row with columns that are short, longer and long.
    fn check_columns<T: GemvWeight>(narrow: fn(f32) -> T, wide: fn(T) -> f32) {
        for k in [1, 3, 7, 8, 9, 31, 33, 256, 257, 300, 2047, 2049, 4097, 4111] {
            for n in [1, 3, 4, 9] {
                let row = numbers(k, 1);
                let matrix = numbers(1 + n * (k + 2), 2);
                let matrix: Vec<T> = matrix.into_iter().map(narrow).collect();
                let mut out = vec![f32::NAN; n];
                dot_columns(&row, &matrix[1..], k + 2, &mut out);
                for (j, &got) in out.iter().enumerate() {
                    let column = &matrix[1 + j * (k + 2)..];
                    let products = row.iter().zip(column);
                    let expected = products.map(|(&x, &v)| f64::from(x) * f64::from(wide(v)));
                    let expected: f64 = expected.sum();
                    assert!(
                        (f64::from(got) - expected).abs() < 1e-4,
                        "k {k}, {j} of {n}: {got} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_agree_with_sums_in_f64() {
        check(|v| v, |v| v);
        check(f16::from_f32, f16::to_f32);
        check(bf16::from_f32, bf16::to_f32);
        check_columns(|v| v, |v| v);
        check_columns(f16::from_f32, f16::to_f32);
        check_columns(bf16::from_f32, bf16::to_f32);
    }

    #[test]
    fn a_row_does_not_depend_on_those_beside_it() {
        fn check<T: GemvWeight>(narrow: fn(f32) -> T) {
            for k in [1, 7, 8, 16, 24, 100, 576, 1001] {
                let of = |len: usize, by: f32| (0..len).map(move |i| (i as f32 * by).sin());
                let rows: Vec<f32> = of(9 * k, 0.7).collect();
                let matrix: Vec<T> = of(7 * k, 1.3).map(narrow).collect();
                for (r, row) in rows.chunks(k).enumerate() {
                    let mut alone = vec![f32::NAN; 7];
                    dot_columns(row, &matrix, k, &mut alone);
                    for few in r + 1..=9 {
                        for (column, alone) in matrix.chunks(k).zip(&alone) {
                            let mut out = vec![f32::NAN; few];
                            dot_rows(&rows[..few * k], column, &mut out);
                            assert_eq!(out[r].to_bits(), alone.to_bits(), "k {k}, {r} of {few}");
                        }
                    }
                }
            }
        }
        check(|v| v);
        check(f16::from_f32);
        check(bf16::from_f32);
    }

    #[test]
    fn not_a_number_and_infinity_go_through() {
        let mut out = [0.];
        dot_rows(&[0., 1.], &[f32::INFINITY, 1.], &mut out);
        assert!(out[0].is_nan());
        dot_rows(&[1., 1.], &[f16::INFINITY, f16::ONE], &mut out);
        assert_eq!(out, [f32::INFINITY]);
    }
}
