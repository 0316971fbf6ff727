//! The barrier pool for short parallel sections, and the process-wide pool.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use candle_core::utils::{self, BarrierPool};

/// Returns how often each index was called.
fn calls(pool: &BarrierPool) -> Vec<usize> {
    let counts: Vec<_> = (0..=pool.n_workers())
        .map(|_| AtomicUsize::new(0))
        .collect();
    pool.execute(|i| {
        counts[i].fetch_add(1, Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn each_number_once() {
    for workers in [0, 1, 2, 7] {
        let pool = BarrierPool::new(workers);
        assert_eq!(pool.n_workers(), workers);
        for round in 0..200 {
            if round % 50 == 49 {
                // Long enough for the threads to fall asleep.
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(calls(&pool), vec![1; workers + 1]);
        }
    }
    let pool = utils::barrier_pool();
    assert!(std::ptr::eq(pool, utils::barrier_pool()));
    assert_eq!(pool.n_workers() + 1, utils::get_num_threads());
}

/// Returns a pool of `workers` threads that this test starts. They end with the process.
fn pool_of_program(workers: usize) -> &'static BarrierPool {
    let pool: &'static BarrierPool = Box::leak(Box::new(BarrierPool::of_program(workers)));
    for worker in 0..workers {
        std::thread::spawn(move || pool.work(worker));
    }
    pool
}

#[test]
fn a_program_brings_its_own_threads() {
    for workers in [0, 1, 3] {
        let pool = pool_of_program(workers);
        for round in 0..100 {
            if round % 50 == 49 {
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(calls(pool), vec![1; workers + 1]);
        }
    }
    // The process-wide pool exists, so it remains.
    utils::barrier_pool();
    assert!(utils::set_barrier_pool(BarrierPool::of_program(1)).is_err());
}

/// Where a panic aborts, a thread ends in the middle of its part: the caller must not wait for it forever.
#[test]
fn a_lost_thread_is_a_panic() {
    let pool = pool_of_program(2);
    let section = || {
        pool.execute(|i| {
            if i == 1 {
                pool.lose(1);
                loop {
                    std::thread::park();
                }
            }
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(section)).unwrap_err();
    let message = panic.downcast::<String>().unwrap();
    assert_eq!(*message, "worker 1 ended in the middle of its work");
}

/// No worker runs a section's body after the call has returned, however late it joins. Without the pool's `swap`s this fails in qemu-user
/// 7.2 for AArch64 in some runs; it has not failed on a processor.
#[test]
fn a_section_is_over_when_it_returns() {
    const SECTIONS: usize = 100_000;
    let pool = BarrierPool::new(1);
    let over: Vec<_> = (0..SECTIONS).map(|_| AtomicBool::new(false)).collect();
    let late = AtomicUsize::new(0);
    for (i, over) in over.iter().enumerate() {
        let items = 1 + i % 2;
        let done = AtomicUsize::new(0);
        pool.execute_chunked(items, |range| {
            for _ in 0..i * 7919 % 97 {
                std::hint::spin_loop();
            }
            done.fetch_add(range.len(), Relaxed);
            late.fetch_add(usize::from(over.load(SeqCst)), Relaxed);
        });
        over.store(true, SeqCst);
        assert_eq!(done.into_inner(), items, "section {i}");
    }
    assert_eq!(late.into_inner(), 0);
}

/// Pauses around the time after which threads sleep: sections begin before, during and after it.
#[test]
fn sections_meet_threads_that_fall_asleep() {
    let pool = BarrierPool::new(3);
    for round in 0..2000u64 {
        let pause = Duration::from_micros(round * 7 % 120);
        let start = Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        if round % 2 == 0 {
            assert_eq!(calls(&pool), [1; 4], "{pause:?}");
        } else {
            let sum = AtomicUsize::new(0);
            pool.execute_chunked(100, |range| {
                sum.fetch_add(range.sum(), Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950, "{pause:?}");
        }
    }
}

/// The caller has the last index, and sections are actually shared.
#[test]
fn the_caller_takes_part() {
    let pool = BarrierPool::new(2);
    let ids = Mutex::new([None; 3]);
    pool.execute(|i| ids.lock().unwrap()[i] = Some(std::thread::current().id()));
    let ids = ids.into_inner().unwrap();
    assert_eq!(ids[2], Some(std::thread::current().id()));
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}

#[test]
fn chunks_cover_all_items_once() {
    for workers in [0, 1, 3] {
        let pool = BarrierPool::new(workers);
        for n_items in [0, 1, 2, 7, 31, 32, 33, 1000] {
            let counts: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            pool.execute_chunked(n_items, |range| {
                assert!(!range.is_empty());
                range.for_each(|i| {
                    counts[i].fetch_add(1, Relaxed);
                });
            });
            assert!(
                counts.iter().all(|count| count.load(Relaxed) == 1),
                "{n_items}"
            );
        }
    }
}

#[test]
fn sections_within_sections() {
    let pool = BarrierPool::new(3);
    let count = AtomicUsize::new(0);
    pool.execute(|_| {
        pool.execute(|_| {
            pool.execute_chunked(10, |range| {
                count.fetch_add(range.len(), Relaxed);
            });
        });
    });
    assert_eq!(count.into_inner(), 4 * 4 * 10);
}

#[test]
fn many_callers_at_once() {
    let pool = BarrierPool::new(3);
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(calls(&pool), [1; 4]);
                    count.fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 8 * 300);
}

/// The caller re-raises a panic of any thread, once no thread uses the section's data; the pool remains usable.
#[test]
fn panics_come_out_at_the_caller() {
    let pool = BarrierPool::new(3);
    for who in 0..4 {
        for _ in 0..20 {
            let running = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.execute(|i| {
                    running.fetch_add(1, Relaxed);
                    if i == who {
                        running.fetch_sub(1, Relaxed);
                        std::panic::resume_unwind(Box::new(i));
                    }
                    std::thread::sleep(Duration::from_micros(50));
                    running.fetch_sub(1, Relaxed);
                });
            }));
            assert_eq!(running.into_inner(), 0);
            assert_eq!(result.unwrap_err().downcast_ref(), Some(&who));
            assert_eq!(calls(&pool), [1; 4]);
        }
    }
    // All threads panic at once: one panic is raised.
    let all = catch_unwind(AssertUnwindSafe(|| {
        pool.execute(|i| std::panic::resume_unwind(Box::new(i)));
    }));
    assert!(all.is_err());
    assert_eq!(calls(&pool), [1; 4]);
}

/// The other threads of a section see earlier writes, and the caller sees theirs.
#[test]
fn writes_are_seen_on_both_sides() {
    let pool = BarrierPool::new(3);
    let mut data = vec![0usize; 1000];
    for round in 1..=100 {
        let previous = data.clone();
        let next: Vec<_> = (0..data.len()).map(|_| AtomicUsize::new(0)).collect();
        pool.execute_chunked(data.len(), |range| {
            for i in range {
                next[i].store(previous[i] + i, Relaxed);
            }
        });
        data = next.into_iter().map(AtomicUsize::into_inner).collect();
        assert!(data.iter().enumerate().all(|(i, &v)| v == round * i));
    }
}

#[test]
fn the_process_pool_runs_what_it_is_given() {
    utils::init_global_threadpool();
    utils::init_global_threadpool();
    let caller = std::thread::current().id();
    let (inside, sum) = utils::with_threadpool(|| {
        use rayon::prelude::*;
        let sum: usize = (0..1000usize).into_par_iter().sum();
        (std::thread::current().id(), sum)
    });
    assert_eq!(sum, 499_500);
    assert_ne!(inside, caller);
    let panic = catch_unwind(|| utils::with_threadpool(|| std::panic::resume_unwind(Box::new(3))));
    assert!(panic.is_err());
    utils::set_thread_affinity();
}

#[test]
fn a_build_says_what_is_in_it() {
    assert_eq!(utils::has_mkl(), cfg!(feature = "mkl"));
    let accelerate = cfg!(feature = "accelerate") && cfg!(target_vendor = "apple");
    assert_eq!(utils::has_accelerate(), accelerate);
}
