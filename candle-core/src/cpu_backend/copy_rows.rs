//! Copies rows of equal length from one stride to another.

use crate::cpu::simd::multiversioned;

/// Maximum number of bytes that are copied inline: a call of `memcpy` takes as long as loading and storing several registers.
const INLINE: usize = 256;

/// Bytes of a vector.
const VECTOR: usize = 32;

multiversioned! {
    /// Copies rows of `len` elements with stride `src_stride` to rows of `dst` with stride `dst_stride`. The last row of `dst` may be
    /// shorter than its stride.
    pub(super) fn copy_rows[T: Copy](src: &[T], src_stride: usize, dst: &mut [T], dst_stride: usize, len: usize) {
        match len {
            1 => copy::<T, 1>(src, src_stride, dst, dst_stride, len),
            2..=4 => copy::<T, 2>(src, src_stride, dst, dst_stride, len),
            5..=8 => copy::<T, 4>(src, src_stride, dst, dst_stride, len),
            9..=16 => copy::<T, 8>(src, src_stride, dst, dst_stride, len),
            17..=32 => copy::<T, 16>(src, src_stride, dst, dst_stride, len),
            33..=64 => copy::<T, 32>(src, src_stride, dst, dst_stride, len),
            65..=128 => copy::<T, 64>(src, src_stride, dst, dst_stride, len),
            _ => copy::<T, 128>(src, src_stride, dst, dst_stride, len),
        }
    }
}

/// Copies rows of `HALF` to `2 * HALF` elements as their first `HALF` and their last `HALF`, which may overlap. Copies other lengths by
/// `memcpy`.
#[inline(always)]
fn copy<T: Copy, const HALF: usize>(
    src: &[T],
    src_stride: usize,
    dst: &mut [T],
    dst_stride: usize,
    len: usize,
) {
    let inline = (HALF..=2 * HALF).contains(&len) && 2 * HALF * size_of::<T>() <= INLINE;
    for (row, dst) in dst.chunks_mut(dst_stride).enumerate() {
        let (src, dst) = (&src[row * src_stride..][..len], &mut dst[..len]);
        if !inline {
            dst.copy_from_slice(src);
            continue;
        }
        if let (Some(src), Some(dst)) = (src.first_chunk(), dst.first_chunk_mut::<HALF>()) {
            upwards(src, dst);
        }
        if let (Some(src), Some(dst)) = (src.last_chunk(), dst.last_chunk_mut::<HALF>()) {
            upwards(src, dst);
        }
    }
}

/// `*dst = *src`, from the first vector to the last. For an array assignment or a loop over one, the compiler writes the last vector first;
/// consecutive rows then return to cache lines that they had left, which costs a third of the speed.
#[inline(always)]
fn upwards<T: Copy, const N: usize>(src: &[T; N], dst: &mut [T; N]) {
    let piece = (VECTOR / size_of::<T>()).clamp(1, N);
    let mut vectors = src.chunks(piece).zip(dst.chunks_mut(piece));
    let mut copy_next = || {
        if let Some((src, dst)) = vectors.next() {
            dst.copy_from_slice(src);
        }
    };
    // Half of `INLINE` has four vectors.
    copy_next();
    copy_next();
    copy_next();
    copy_next();
    vectors.for_each(|(src, dst)| dst.copy_from_slice(src));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy + PartialEq + std::fmt::Debug>(element: fn(usize) -> T) {
        let none = element(usize::MAX);
        for len in (1..=40).chain([63, 64, 65, 127, 128, 129, 255, 256, 257, 300]) {
            for (more, gap) in [(0, 0), (1, 0), (0, 3), (7, 2)] {
                let (src_stride, dst_stride) = (len + more, len + gap);
                let src: Vec<T> = (0..3 * src_stride).map(element).collect();
                let mut dst = vec![none; 2 * dst_stride + len];
                copy_rows(&src, src_stride, &mut dst, dst_stride, len);
                for (i, &v) in dst.iter().enumerate() {
                    let (row, column) = (i / dst_stride, i % dst_stride);
                    let copied = column < len;
                    let expected = if copied {
                        src[row * src_stride + column]
                    } else {
                        none
                    };
                    assert_eq!(v, expected, "{len} {src_stride} {dst_stride} {i}");
                }
            }
        }
    }

    #[test]
    fn rows_of_all_lengths() {
        check(|i| (i % 251) as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as f64);
    }

    #[test]
    fn one_row_again_and_again() {
        let mut dst = [0; 15];
        copy_rows(&[1, 2, 3, 4, 5], 0, &mut dst, 5, 5);
        assert_eq!(dst, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
    }
}
