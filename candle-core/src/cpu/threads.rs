//! Parallel loops: the only code that distributes work over threads. Not in Candle's interface.
//!
//! Loops run on the process's [`BarrierPool`]: the calling thread starts at once. Rayon would hand all of the work to its workers and
//! sleep, which takes longer than most ops. Rayon runs loops started by its own threads, nested loops, and simultaneous loops of several
//! threads.
//!
//! Rayon's code is compiled once for each closure type. There is a kernel for every op and dtype, so closures are passed as trait objects:
//! one indirect call per task saves well over half of the compile time.

use crate::utils::{barrier_pool, BarrierPool};
use rayon::prelude::*;
use std::ops::Range;

/// The number of threads for a loop that this thread starts.
pub fn count() -> usize {
    pool().map_or_else(rayon::current_num_threads, |pool| pool.n_workers() + 1)
}

/// The process's pool. Rayon cannot start threads in a browser, and other threads must not wait for the one thread that it uses.
#[cfg(target_family = "wasm")]
fn pool() -> Option<&'static BarrierPool> {
    Some(barrier_pool())
}

/// The process's pool, unless this is a rayon thread or the program has given rayon fewer threads.
#[cfg(not(target_family = "wasm"))]
fn pool() -> Option<&'static BarrierPool> {
    let own = rayon::current_thread_index().is_none();
    own.then(barrier_pool)
        .filter(|pool| pool.n_workers() < rayon::current_num_threads())
}

/// A pointer whose user guarantees that no two threads write the same element.
struct Shared<T>(*mut T);

// SAFETY: see `chunks_mut`, which passes each task a separate part.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// A method, so that closures capture the struct and not the bare pointer.
    fn at(&self, offset: usize) -> *mut T {
        // SAFETY: callers stay within the slice that the pointer came from.
        unsafe { self.0.add(offset) }
    }
}

/// Runs `task(0)`, ... `task(count - 1)`, in any order and on any thread.
pub fn for_each(count: usize, task: &(dyn Fn(usize) + Sync)) {
    for_each_range(count, &|range| range.for_each(task));
}

/// Runs `task` with ranges that together are `0..count`, in any order and on any thread: for small tasks that share
/// set-up work.
pub fn for_each_range(count: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
    match count {
        0 => {}
        1 => task(0..1),
        _ if pool().is_some_and(|pool| pool.try_ranges(count, task)) => {}
        _ if cfg!(target_family = "wasm") => task(0..count),
        _ => {
            let pieces = count.min(8 * rayon::current_num_threads());
            let start = |piece: usize| piece * count / pieces;
            let run = |piece: usize| task(start(piece)..start(piece + 1));
            (0..pieces).into_par_iter().with_max_len(1).for_each(run);
        }
    }
}

/// Runs `task(i, chunk)` for each chunk of `size` elements, of which the last may have fewer.
pub fn chunks_mut<T: Send>(dst: &mut [T], size: usize, task: impl Fn(usize, &mut [T]) + Sync) {
    let (len, size) = (dst.len(), size.max(1));
    let start = Shared(dst.as_mut_ptr());
    for_each(len.div_ceil(size), &|i| {
        let first = i * size;
        // SAFETY: the chunks are disjoint parts of `dst`, and `dst` is borrowed until all tasks are done.
        let chunk =
            unsafe { std::slice::from_raw_parts_mut(start.at(first), size.min(len - first)) };
        task(i, chunk)
    });
}

/// Runs `task(src, dst)` for each chunk of `src_size` elements of `src` and the chunk of `dst_size` elements of `dst` with the same index,
/// if both exist.
pub fn zip_chunks<S: Sync, T: Send>(
    src: &[S],
    src_size: usize,
    dst: &mut [T],
    dst_size: usize,
    task: impl Fn(&[S], &mut [T]) + Sync,
) {
    let (src_size, dst_size) = (src_size.max(1), dst_size.max(1));
    let count = src.len().div_ceil(src_size);
    let len = dst.len().min(count.saturating_mul(dst_size));
    chunks_mut(&mut dst[..len], dst_size, |i, dst| {
        let start = i * src_size;
        task(&src[start..src.len().min(start + src_size)], dst)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn chunks_cover_everything_once() {
        for len in [0, 1, 7, 8, 9, 1000] {
            for size in [0, 1, 8, 2000] {
                let mut dst = vec![usize::MAX; len];
                chunks_mut(&mut dst, size, |i, chunk| {
                    for (j, v) in chunk.iter_mut().enumerate() {
                        assert_eq!(*v, usize::MAX);
                        *v = i * size.max(1) + j;
                    }
                });
                assert!(dst.iter().copied().eq(0..len), "{len} by {size}");
            }
        }
    }

    #[test]
    fn pairs_of_chunks_end_with_the_shorter_side() {
        let src: Vec<usize> = (0..10).collect();
        for (len, pairs) in [(0, 0), (1, 1), (4, 2), (5, 2), (99, 5)] {
            let mut dst = vec![0; len];
            zip_chunks(&src, 2, &mut dst, 3, |src, dst| dst.fill(src[0] + 1));
            let expected = (0..len).map(|i| if i / 3 < pairs { i / 3 * 2 + 1 } else { 0 });
            assert!(dst.iter().copied().eq(expected), "{len}");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let caught = std::panic::catch_unwind(|| for_each(9, &|i| assert_ne!(i, 5, "five")));
        assert!(caught.is_err());
    }

    /// Nested loops and simultaneous loops of several threads run each task exactly once.
    #[test]
    fn loops_meet() {
        let runs = |outer: usize, inner: usize| {
            let counts: Vec<_> = (0..outer * inner).map(|_| AtomicUsize::new(0)).collect();
            for_each(outer, &|i| {
                for_each(inner, &|j| {
                    counts[i * inner + j].fetch_add(1, Ordering::Relaxed);
                });
            });
            counts.into_iter().all(|count| count.into_inner() == 1)
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|i| assert!(runs(i % 7, 9))));
            }
        });
        assert!(crate::utils::with_threadpool(|| runs(5, 5)));
    }
}
