//! Threads that wait for short parallel sections.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// How often a thread looks for a change before it sleeps: some 10 µs, which is more than lies between two sections of one layer.
const SPINS: usize = 2000;

/// Ranges a thread has in `execute_chunked`, if all are equally fast.
const RANGES: usize = 8;

thread_local! {
    /// Whether this thread runs a part of a section now.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

/// Threads for parallel sections so short that handing them to a general pool would cost more than they take: the workers look for
/// the next section for a while before they sleep, and a section begins and ends with one atomic operation each.
///
/// The calling thread takes part: it has the last number, after those of the workers. [`barrier_pool`] is the process's pool.
///
/// A section is run by the caller alone, number by number, where it cannot be shared: inside of another section, while another thread
/// uses the pool, and on systems without threads. The calls of a section must therefore not wait for one another.
pub struct BarrierPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by the thread whose section runs.
    caller: Mutex<()>,
}

/// A section's body. The caller keeps it alive until the last worker is done.
type Body = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Goes up by one for each section.
    section: AtomicUsize,
    /// The body of the current section: written between sections by the thread that holds `caller`, read within one.
    body: UnsafeCell<Option<Body>>,
    /// Threads that have not finished the section yet.
    pending: AtomicUsize,
    /// What the first worker that panicked in this section panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    finish: Mutex<()>,
    finished: Condvar,
}

// SAFETY: `body` is the only part without synchronisation of its own. It is written while `pending` is 0, before the `section` counter
// is raised, and read after that counter was seen to change and before `pending` goes down. What it points to is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

// SAFETY: all that a pool has is in `Shared` and in types that are both.
unsafe impl Send for BarrierPool {}
// SAFETY: as above.
unsafe impl Sync for BarrierPool {}

impl BarrierPool {
    /// A pool of `n_workers` threads beside the calling one. Threads that the system refuses are done without.
    pub fn new(n_workers: usize) -> Self {
        let shared = Arc::new(Shared {
            section: AtomicUsize::new(0),
            body: UnsafeCell::new(None),
            pending: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            finish: Mutex::new(()),
            finished: Condvar::new(),
        });
        let spawn = |worker: usize| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("candle-{worker}"));
            thread.spawn(move || shared.work(worker)).ok()
        };
        let threads = (0..n_workers).map_while(spawn).collect();
        Self {
            shared,
            threads,
            caller: Mutex::new(()),
        }
    }

    /// How many threads there are beside the calling one.
    pub fn n_workers(&self) -> usize {
        self.threads.len()
    }

    /// Calls `f` with each number of `0..=n_workers()`, in parallel, and returns when all calls have. Sections may be nested, and any
    /// number of threads may call this at once.
    ///
    /// # Panics
    /// With what a call of `f` panicked with, once no other call runs. The pool can be used again.
    pub fn execute<F: Fn(usize) + Sync>(&self, f: F) {
        let alone = || (0..=self.n_workers()).for_each(&f);
        if self.threads.is_empty() || IN_SECTION.get() {
            return alone();
        }
        let Some(caller) = self.caller.try_lock() else {
            return alone();
        };
        let shared = &*self.shared;
        let body: &(dyn Fn(usize) + Sync) = &f;
        // SAFETY: only the lifetime changes. The pointer is used until `pending` is 0, which this function waits for, even if `f`
        // panics. The lock that this thread holds, and `pending` being 0, make it the only one to touch `body`.
        unsafe {
            let body: Body = std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Body>(body);
            *shared.body.get() = Some(body);
        }
        shared.pending.store(self.threads.len(), Ordering::Relaxed);
        shared.section.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _sleep = shared.sleep.lock();
            shared.wake.notify_all();
        }
        let own = in_section(|| f(self.n_workers()));
        shared.wait_until_finished();
        let worker_panic = shared.panic.lock().take();
        drop(caller);
        if let Some(panic) = own.err().or(worker_panic) {
            resume_unwind(panic);
        }
    }

    /// Calls `f` with ranges that together are `0..n_items`. Each thread takes the next range when it is done with one, so that slower
    /// threads do less.
    ///
    /// # Panics
    /// As [`BarrierPool::execute`].
    pub fn execute_chunked<F: Fn(Range<usize>) + Sync>(&self, n_items: usize, f: F) {
        let size = n_items.div_ceil(RANGES * (self.n_workers() + 1)).max(1);
        let ranges = n_items.div_ceil(size);
        let range = |i: usize| f(i * size..n_items.min((i + 1) * size));
        if ranges <= 1 || self.threads.is_empty() {
            return (0..ranges).for_each(range);
        }
        let taken = AtomicUsize::new(0);
        self.execute(|_| loop {
            let i = taken.fetch_add(1, Ordering::Relaxed);
            if i >= ranges {
                break;
            }
            range(i);
        });
    }
}

impl Drop for BarrierPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _sleep = self.shared.sleep.lock();
            self.shared.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // Panics were caught where they happened.
            let _ = thread.join();
        }
    }
}

/// Runs a worker's part, with its panic caught.
fn in_section(f: impl FnOnce()) -> std::thread::Result<()> {
    IN_SECTION.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    IN_SECTION.set(false);
    result
}

impl Shared {
    /// What a worker's thread does: each section that begins, until the pool is dropped.
    fn work(&self, worker: usize) {
        let mut done = 0usize;
        while self.wait_for_section(done) {
            done = done.wrapping_add(1);
            // SAFETY: this section has begun and waits for this thread.
            let result = in_section(|| unsafe {
                if let Some(body) = *self.body.get() {
                    (*body)(worker);
                }
            });
            if let Err(panic) = result {
                self.panic.lock().get_or_insert(panic);
            }
            if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _finish = self.finish.lock();
                self.finished.notify_one();
            }
        }
    }

    /// Waits until more than `done` sections have begun; false when the pool is dropped.
    fn wait_for_section(&self, done: usize) -> bool {
        let begun = || self.section.load(Ordering::SeqCst) != done;
        let stopped = || self.stop.load(Ordering::SeqCst);
        if spin_until(|| begun() || stopped()) {
            return !stopped();
        }
        let mut sleep = self.sleep.lock();
        // A section that begins after this sees a sleeper; one that has begun is seen below.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !begun() && !stopped() {
            self.wake.wait(&mut sleep);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        !stopped()
    }

    fn wait_until_finished(&self) {
        let finished = || self.pending.load(Ordering::Acquire) == 0;
        if spin_until(finished) {
            return;
        }
        let mut finish = self.finish.lock();
        while !finished() {
            self.finished.wait(&mut finish);
        }
    }
}

fn spin_until(done: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// The process's pool, made at the first call: with the calling thread, [`get_num_threads`](super::get_num_threads) threads take
/// part.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// candle_core::utils::barrier_pool().execute_chunked(100, |range| {
///     sum.fetch_add(range.sum(), Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub fn barrier_pool() -> &'static BarrierPool {
    static POOL: OnceLock<BarrierPool> = OnceLock::new();
    POOL.get_or_init(|| BarrierPool::new(super::get_num_threads() - 1))
}
