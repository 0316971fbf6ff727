//! Work stealing: each thread of a parallel section has a range of its iterations, and takes from the others when that is used up.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The iterations `0..count`, divided into shares of threads.
pub(super) struct Shares {
    shares: [Share; Self::MOST],
    used: usize,
}

/// The remaining iterations; padded against false sharing.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl Shares {
    /// Maximum number of shares; with more threads, some share one.
    const MOST: usize = 32;

    /// Divisor of guided self-scheduling (Polychronopoulos and Kuck 1987): a thread takes one in this many of the iterations left in a
    /// share. The first chunks are large, so that the overhead per chunk is paid rarely, and the last are small, so that all threads finish
    /// at the same time. A slow thread never holds much that the others cannot steal.
    const PIECES: usize = 4;

    pub(super) fn new(count: usize, threads: usize) -> Self {
        let used = count.min(threads).clamp(1, Self::MOST);
        let (size, larger) = (count / used, count % used);
        let start = |share: usize| (share * size + share.min(larger)).min(count);
        Self {
            shares: std::array::from_fn(|share| Share {
                next: AtomicUsize::new(start(share)),
                end: start(share + 1),
            }),
            used,
        }
    }

    /// Takes ranges until none is left, from the share of `thread` first.
    pub(super) fn run(&self, thread: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
        let first = thread % self.used;
        let (before, from) = self.shares[..self.used].split_at(first);
        for share in from.iter().chain(before) {
            while let Some(piece) = share.take() {
                task(piece);
            }
        }
    }
}

impl Share {
    fn take(&self) -> Option<Range<usize>> {
        let piece = |from: usize| self.end.saturating_sub(from).div_ceil(Shares::PIECES);
        let order = Ordering::Relaxed;
        let taken = self
            .next
            .fetch_update(order, order, |from| match piece(from) {
                0 => None,
                len => Some(from + len),
            });
        taken.ok().map(|from| from..from + piece(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_number_once_whoever_comes() {
        for count in [0, 1, 2, 31, 32, 33, 100] {
            for threads in [1, 2, 16, 32, 40] {
                for last in [0, threads - 1] {
                    let found = Shares::new(count, threads);
                    let taken = Mutex::new(vec![]);
                    // A single thread takes all shares.
                    found.run(last, &|piece| {
                        taken.lock().unwrap().extend(piece);
                    });
                    found.run(0, &|piece| panic!("{piece:?} is left"));
                    let mut taken = taken.into_inner().unwrap();
                    taken.sort_unstable();
                    assert!(taken.into_iter().eq(0..count), "{count} by {threads}");
                }
            }
        }
    }
}
