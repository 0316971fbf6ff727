//! A thread pool for short parallel sections.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
#[cfg(not(target_family = "wasm"))]
use std::time::{Duration, Instant};

use super::work_stealing::Shares;

/// Time that a thread spins before it sleeps: longer than the gap between two ops of a layer, too short to matter for latency or battery.
#[cfg(not(target_family = "wasm"))]
const SPIN: Duration = Duration::from_micros(50);

/// Ranges per thread in `execute_chunked`, if all are equally fast.
const RANGES: usize = 8;

/// Number of sleepers that a thread wakes; woken threads wake the next ones. If one thread wakes many, each is scheduled on a core before
/// the next is woken. If several threads wake others at the same time, two can be scheduled on one core, where one waits for milliseconds.
const WAKES: usize = 16;

thread_local! {
    /// Whether this thread is running its part of a section.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

/// Threads for parallel sections that are too short for a general pool: workers spin for a while before they sleep, and the calling thread
/// starts at once. The caller has the last index, after those of the workers. [`barrier_pool`] is the process's pool.
///
/// The caller runs a section alone, index by index, if it cannot be shared: inside another section, while another thread uses the pool, and
/// on systems without threads. The calls of a section must therefore not wait for each other.
pub struct BarrierPool {
    shared: Arc<Shared>,
    workers: usize,
    /// Handles of the threads that the pool has started.
    threads: Vec<JoinHandle<()>>,
    /// Held by the thread whose section runs.
    caller: Mutex<()>,
}

/// A section's body. The caller keeps it alive until the last worker that joined has left.
///
/// This is sound because caller and worker each write first and read second, sequentially consistent: one of them sees the other's write.
/// Each write is a `swap` with an unused result instead of a `store`: qemu-user 7.2 on x86-64 runs AArch64's store-release (`stlr`) and a
/// following load-acquire (`ldar`) without a barrier between them, so neither saw the other's write, and a worker ran the body of a
/// finished section. On x86-64 both are one `xchg`.
type Body = *const (dyn Fn(usize) + Sync);

struct Shared {
    current: Apart<Current>,
    /// Number of sleeping workers.
    sleeping: Apart<AtomicUsize>,
    workers: Box<[Apart<Worker>]>,
    /// The caller, if it sleeps until workers have left.
    waiting: Mutex<Option<Thread>>,
    /// The panic payload of the first worker that panicked in this section.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Padded against false sharing, including the adjacent cache line that is prefetched with it.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// The current section, written only by the thread that holds `caller`: one cache line for workers to poll.
#[derive(Default)]
struct Current {
    phase: AtomicU64,
    /// Written while no section is open and no worker is in one; read by workers that have joined.
    body: UnsafeCell<Option<Body>>,
    /// Number of workers that the section does not need.
    spare: AtomicUsize,
    /// Whether the caller sleeps, and is in `waiting`.
    waits: AtomicBool,
    stop: AtomicBool,
}

/// The shared state of a worker.
#[derive(Default)]
struct Worker {
    /// The last section that the worker joined, as `Phase::joined` and `Phase::left`.
    state: AtomicU64,
    asleep: AtomicBool,
    /// Set before it first sleeps.
    thread: OnceLock<Thread>,
}

/// A section's number, and in the lowest bit whether it may be joined.
#[derive(Clone, Copy, PartialEq)]
struct Phase(u64);

impl Phase {
    const OPEN: u64 = 1;

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn closed(self) -> Self {
        Self(self.0 & !Self::OPEN)
    }

    /// The next section, open.
    fn next(self) -> Self {
        Self((self.closed().0 + 2) | Self::OPEN)
    }

    /// The state of a worker that is in the section.
    fn joined(self) -> u64 {
        self.0 | Self::OPEN
    }

    /// The state of a worker that has done its part.
    fn left(self) -> u64 {
        self.closed().0
    }
}

// SAFETY: `body` is the only field without synchronisation. It is written while no section is open and all workers that joined the last one
// have left. It is read between joining and leaving, both of which are atomic operations that order it. It points to a `Sync` value.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

// SAFETY: all fields of a pool are in `Shared` or have types that are both.
unsafe impl Send for BarrierPool {}
// SAFETY: as above.
unsafe impl Sync for BarrierPool {}

impl BarrierPool {
    /// A pool of `n_workers` threads in addition to the calling one. Continues with fewer threads if the system refuses some.
    pub fn new(n_workers: usize) -> Self {
        let shared = Arc::new(Shared::new(n_workers));
        let spawn = |worker: usize| {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(format!("candle-{worker}"));
            thread.spawn(move || shared.work(worker)).ok()
        };
        let threads: Vec<_> = (0..n_workers).map_while(spawn).collect();
        Self {
            shared,
            workers: threads.len(),
            threads,
            caller: Mutex::new(()),
        }
    }

    /// A pool whose threads the program starts, for systems where a library cannot: Web Workers that share their page's memory. Each of
    /// them calls [`BarrierPool::work`] with a different index below `n_workers`. Sections wait for all of them.
    pub fn of_program(n_workers: usize) -> Self {
        Self {
            shared: Arc::new(Shared::new(n_workers)),
            workers: n_workers,
            threads: Vec::new(),
            caller: Mutex::new(()),
        }
    }

    /// Runs a thread of [`BarrierPool::of_program`]: parts of sections, until the pool is dropped.
    ///
    /// # Panics
    /// If `worker` is not below [`BarrierPool::n_workers`].
    pub fn work(&self, worker: usize) {
        assert!(
            worker < self.workers,
            "worker {worker} of a pool of {}",
            self.workers
        );
        self.shared.work(worker);
    }

    /// Reports that a thread of [`BarrierPool::of_program`] ended during its work, as it does when panics abort: the section that waits for
    /// it panics. The pool must not be used again.
    pub fn lose(&self, worker: usize) {
        self.shared.lose(worker);
    }

    /// Number of threads in addition to the calling one.
    pub fn n_workers(&self) -> usize {
        self.workers
    }

    /// Calls `f` with each number of `0..=n_workers()`, in parallel, and returns when all calls have returned. Sections may be nested, and
    /// any number of threads may call this at once.
    ///
    /// # Panics
    /// With the payload of a call of `f` that panicked, once no other call runs. The pool can be used again.
    pub fn execute<F: Fn(usize) + Sync>(&self, f: F) {
        if !self.section(Joins::All, &f) {
            (0..=self.n_workers()).for_each(f);
        }
    }

    /// Calls `f` with ranges that together are `0..n_items`. Each thread takes the next range when it has finished one, so slower threads
    /// do less.
    ///
    /// # Panics
    /// As [`BarrierPool::execute`].
    pub fn execute_chunked<F: Fn(Range<usize>) + Sync>(&self, n_items: usize, f: F) {
        let size = n_items.div_ceil(RANGES * (self.n_workers() + 1)).max(1);
        let range = |i: usize| f(i * size..n_items.min((i + 1) * size));
        let ranges = n_items.div_ceil(size);
        if !self.try_ranges(ranges, &|ranges: Range<usize>| ranges.for_each(range)) {
            (0..ranges).for_each(range);
        }
    }

    /// Runs `task` with ranges that together are `0..count`. Returns false and does nothing if the pool cannot share
    /// them: it has no workers, this is inside a section, or another thread uses it.
    ///
    /// Each thread begins with its share, the same one each time, so that its core's cache may still hold the data; then it steals from the
    /// others. The pool does not wait for workers that arrive when nothing is left.
    pub(crate) fn try_ranges(&self, count: usize, task: &(dyn Fn(Range<usize>) + Sync)) -> bool {
        let shares = Shares::new(count, self.n_workers() + 1);
        let body = |thread: usize| shares.run(thread, task);
        self.section(Joins::Up(count.saturating_sub(1)), &body)
    }

    /// Runs `f` on this thread and on workers that join it. Returns false if the section cannot be shared.
    fn section(&self, joins: Joins, f: &(dyn Fn(usize) + Sync)) -> bool {
        if self.workers == 0 || IN_SECTION.get() {
            return false;
        }
        let caller = match self.caller.try_lock() {
            Ok(caller) => caller,
            Err(TryLockError::Poisoned(caller)) => caller.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let shared = &*self.shared;
        let wanted = match joins {
            Joins::All => self.workers,
            Joins::Up(most) => most.min(self.workers),
        };
        let current = &shared.current.0;
        // SAFETY: only the lifetime changes. The pointer is used between joining and leaving, and this function waits until the section is
        // closed and all workers that joined have left, even if `f` panics. This thread holds the lock, and all workers have left the last
        // section, so only this thread accesses `body`.
        unsafe {
            let body: Body = std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Body>(f);
            *current.body.get() = Some(body);
        }
        let spare = self.workers - wanted;
        current.spare.store(spare, Ordering::Relaxed);
        let phase = Phase(current.phase.load(Ordering::Relaxed)).next();
        current.phase.swap(phase.0, Ordering::SeqCst);
        shared.wake(0);

        let own = in_section(|| f(self.n_workers()));
        if matches!(joins, Joins::All) {
            shared.wait_until(|worker| worker == phase.left(), wanted);
        }
        current.phase.swap(phase.closed().0, Ordering::SeqCst);
        shared.wait_until(|worker| worker != phase.joined(), self.workers);
        let worker_panic = locked(&shared.panic).take();
        drop(caller);
        if let Some(panic) = own.err().or(worker_panic) {
            resume_unwind(panic);
        }
        true
    }
}

/// The workers that take part in a section.
#[derive(Clone, Copy)]
enum Joins {
    /// Each worker, once.
    All,
    /// At most this many workers are useful; none is required.
    Up(usize),
}

impl Drop for BarrierPool {
    fn drop(&mut self) {
        self.shared.current.0.stop.swap(true, Ordering::SeqCst);
        for worker in 0..self.workers {
            self.shared.rouse(worker);
        }
        for thread in self.threads.drain(..) {
            // Panics were already caught in the worker.
            let _ = thread.join();
        }
    }
}

/// Runs a thread's part and catches its panic.
fn in_section(f: impl FnOnce()) -> thread::Result<()> {
    IN_SECTION.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    IN_SECTION.set(false);
    result
}

/// The locks of the standard library sleep on every system with threads; those of parking_lot panic on WebAssembly.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(workers: usize) -> Self {
        Self {
            current: Apart::default(),
            sleeping: Apart::default(),
            workers: (0..workers).map(|_| Apart::default()).collect(),
            waiting: Mutex::new(None),
            panic: Mutex::new(None),
        }
    }

    /// A worker's thread: runs each open section once, until the pool is dropped.
    fn work(&self, worker: usize) {
        let current = &self.current.0;
        let own = &self.workers[worker].0;
        own.thread.get_or_init(thread::current);
        let mut done = Phase(0);
        while let Some(phase) = self.wait_for_section(done, own) {
            done = phase;
            // Either the caller, which closes a section before it reads who is in it, sees this write, or this thread sees that the section
            // is closed.
            own.state.swap(phase.joined(), Ordering::SeqCst);
            if current.phase.load(Ordering::SeqCst) == phase.0 {
                self.wake(WAKES * (worker + 1));
                // SAFETY: this thread joined the section, which waits until it has left.
                let result = in_section(|| unsafe {
                    if let Some(body) = *current.body.get() {
                        (*body)(worker);
                    }
                });
                if let Err(panic) = result {
                    locked(&self.panic).get_or_insert(panic);
                }
            }
            self.leave(own, phase);
        }
    }

    /// Records that a worker has finished its part.
    fn leave(&self, own: &Worker, phase: Phase) {
        // Either the caller, which sets `waits` before it reads who has left, sees this write, or this thread sees `waits`.
        own.state.swap(phase.left(), Ordering::SeqCst);
        if self.current.0.waits.load(Ordering::SeqCst) {
            if let Some(caller) = locked(&self.waiting).take() {
                caller.unpark();
            }
        }
    }

    /// Leaves on behalf of a worker that ended during its part.
    fn lose(&self, worker: usize) {
        if let Some(own) = self.workers.get(worker) {
            locked(&self.panic).get_or_insert(Box::new(format!(
                "worker {worker} ended in the middle of its work"
            )));
            let phase = Phase(self.current.0.phase.load(Ordering::SeqCst));
            self.leave(&own.0, phase);
        }
    }

    /// Waits until a section after `done` is open; `None` when the pool is dropped.
    fn wait_for_section(&self, done: Phase, own: &Worker) -> Option<Phase> {
        let current = &self.current.0;
        let found = || {
            let phase = Phase(current.phase.load(Ordering::SeqCst));
            (phase.is_open() && phase != done).then_some(phase)
        };
        let stopped = || current.stop.load(Ordering::SeqCst);
        loop {
            spin_until(|| found().is_some() || stopped());
            if stopped() {
                return None;
            }
            if let Some(phase) = found() {
                return Some(phase);
            }
            self.sleeping.0.fetch_add(1, Ordering::SeqCst);
            own.asleep.swap(true, Ordering::SeqCst);
            // A caller that opens a section after this sees a sleeper; a section opened before is seen here.
            if found().is_some() || stopped() {
                // Unless another thread does so now.
                self.awaken(own);
            }
            while own.asleep.load(Ordering::Acquire) {
                thread::park();
            }
        }
    }

    /// Wakes up to [`WAKES`] workers, unless the section does not need them; those from `first` on if they sleep.
    fn wake(&self, first: usize) {
        let count = self.workers.len();
        let spare = self.current.0.spare.load(Ordering::Relaxed);
        let mut most = self
            .sleeping
            .0
            .load(Ordering::SeqCst)
            .saturating_sub(spare)
            .min(WAKES);
        let mut worker = first;
        while most > 0 && worker < first + count {
            if self.rouse(worker % count) {
                most -= 1;
            }
            worker += 1;
        }
    }

    /// Wakes a worker. Returns false if it does not sleep.
    fn rouse(&self, worker: usize) -> bool {
        let worker = &self.workers[worker].0;
        let asleep = self.awaken(worker);
        if asleep {
            if let Some(thread) = worker.thread.get() {
                thread.unpark();
            }
        }
        asleep
    }

    /// Marks a worker as awake. Returns false if it was already awake.
    fn awaken(&self, worker: &Worker) -> bool {
        let asleep =
            worker.asleep.load(Ordering::SeqCst) && worker.asleep.swap(false, Ordering::SeqCst);
        if asleep {
            self.sleeping.0.fetch_sub(1, Ordering::SeqCst);
        }
        asleep
    }

    /// Waits until `done` holds for the states of the first `count` workers.
    fn wait_until(&self, done: impl Fn(u64) -> bool, count: usize) {
        let all = || {
            let mut workers = self.workers[..count].iter();
            workers.all(|worker| done(worker.0.state.load(Ordering::SeqCst)))
        };
        if spin_until(all) {
            return;
        }
        let waits = &self.current.0.waits;
        while !all() {
            *locked(&self.waiting) = Some(thread::current());
            waits.swap(true, Ordering::SeqCst);
            if all() {
                break;
            }
            thread::park();
        }
        waits.store(false, Ordering::Relaxed);
    }
}

/// Returns false if `done` was not true for about 50 microseconds, measured in polls: WebAssembly has no clock.
#[cfg(target_family = "wasm")]
fn spin_until(done: impl Fn() -> bool) -> bool {
    const LOOKS: usize = 20_000;
    (0..LOOKS).any(|_| {
        std::hint::spin_loop();
        done()
    })
}

/// Returns false if `done` was not true for [`SPIN`].
#[cfg(not(target_family = "wasm"))]
fn spin_until(done: impl Fn() -> bool) -> bool {
    /// Polls per reading of the clock.
    const LOOKS: usize = 32;
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

/// The process's pool, created at the first call: with the calling thread, [`get_num_threads`](super::get_num_threads) threads take part.
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
    POOL.get_or_init(|| BarrierPool::new(super::get_num_threads() - 1))
}

static POOL: OnceLock<BarrierPool> = OnceLock::new();

/// Sets the process's pool, before the first op creates one; returns `pool` if one exists.
pub fn set_barrier_pool(pool: BarrierPool) -> Result<(), BarrierPool> {
    POOL.set(pool)
}
