//! How the threads of a section share its numbers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The numbers `0..count`, in shares for threads.
pub(super) struct Shares {
    shares: [Share; Self::MOST],
    used: usize,
}

/// Numbers that are not taken yet, in a line of the cache (and the one that comes with it) of their own.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl Shares {
    /// More threads than this have shares in common.
    const MOST: usize = 32;

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

    /// Takes numbers until none is left, from the share of `thread` first.
    pub(super) fn run(&self, thread: usize, task: &(dyn Fn(usize) + Sync)) {
        let first = thread % self.used;
        let (before, from) = self.shares[..self.used].split_at(first);
        for share in from.iter().chain(before) {
            while share.next.load(Ordering::Relaxed) < share.end {
                let i = share.next.fetch_add(1, Ordering::Relaxed);
                if i < share.end {
                    task(i);
                }
            }
        }
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
                    // A thread that is alone takes the shares of all.
                    found.run(last, &|i| {
                        taken.lock().unwrap().push(i);
                    });
                    found.run(0, &|i| panic!("{i} is left"));
                    let mut taken = taken.into_inner().unwrap();
                    taken.sort_unstable();
                    assert!(taken.into_iter().eq(0..count), "{count} by {threads}");
                }
            }
        }
    }
}
