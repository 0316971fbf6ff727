//! Threads that wait for short parallel sections.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::shares::Shares;

/// How long a thread looks for a change before it sleeps: more than lies between two ops of one layer, less than a person or a battery
/// would notice.
const SPIN: Duration = Duration::from_micros(50);

/// Ranges a thread has in `execute_chunked`, if all are equally fast.
const RANGES: usize = 8;

/// How many sleepers a thread wakes. It costs some microseconds each, so that those who were woken wake others.
const WAKES: usize = 2;

thread_local! {
    /// Whether this thread runs a part of a section now.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

/// Threads for parallel sections so short that handing them to a general pool would cost more than they take: the workers look for
/// the next section for a while before they sleep, and the calling thread begins at once. It has the last number, after those of the
/// workers. [`barrier_pool`] is the process's pool.
///
/// A section is run by the caller alone, number by number, where it cannot be shared: inside of another section, while another thread
/// uses the pool, and on systems without threads. The calls of a section must therefore not wait for one another.
pub struct BarrierPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by the thread whose section runs.
    caller: Mutex<()>,
}

/// A section's body. The caller keeps it alive until the last worker that joined has left.
type Body = *const (dyn Fn(usize) + Sync);

struct Shared {
    phase: AtomicU64,
    /// The body of the current section: written while none is open by the thread that holds `caller`, read by those who joined.
    body: UnsafeCell<Option<Body>>,
    /// Workers that the current section has use for.
    wanted: AtomicUsize,
    /// Workers that joined the current section and are done with it.
    left: AtomicUsize,
    /// The caller, if it sleeps until more have left.
    waiting: Mutex<Option<Thread>>,
    /// What the first worker that panicked in this section panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    /// How many `sleepers` there are.
    sleeping: AtomicUsize,
    /// Locked where `sleeping` changes.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

/// What `Shared::phase` holds: from the lowest bit, whether a section may be joined, how many workers have, and its number.
#[derive(Clone, Copy)]
struct Phase(u64);

impl Phase {
    const OPEN: u64 = 1;
    const JOINED: u64 = 2;
    const SECTION: u64 = 1 << 24;

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn joined(self) -> usize {
        (self.0 % Self::SECTION / Self::JOINED) as usize
    }

    fn section(self) -> u64 {
        self.0 / Self::SECTION
    }

    /// The next section, open, joined by nobody.
    fn next(self) -> Self {
        Self((self.section() + 1) * Self::SECTION + Self::OPEN)
    }
}

// SAFETY: `body` is the only part without synchronisation of its own. It is written while no section is open and all who joined the
// last one have left, and read between joining and leaving, both of which go through atomics that order it. What it points to is `Sync`.
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
            phase: AtomicU64::new(0),
            body: UnsafeCell::new(None),
            wanted: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            waiting: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::new()),
        });
        let spawn = |worker: usize| {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(format!("candle-{worker}"));
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
        if !self.section(Joins::All, &f) {
            (0..=self.n_workers()).for_each(f);
        }
    }

    /// Calls `f` with ranges that together are `0..n_items`. Each thread takes the next range when it is done with one, so that slower
    /// threads do less.
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

    /// Runs `task` with ranges that together are `0..count`. False, and nothing was done, where the pool cannot share them: it has no
    /// workers, or this is inside of a section, or another thread uses it.
    ///
    /// Each thread begins with a share of its own, the same one each time, so that it finds in its core's cache what it had there the
    /// last time; then it takes what others have not come to. Workers that come when all is taken are not waited for.
    pub(crate) fn try_ranges(&self, count: usize, task: &(dyn Fn(Range<usize>) + Sync)) -> bool {
        let shares = Shares::new(count, self.n_workers() + 1);
        let body = |thread: usize| shares.run(thread, task);
        self.section(Joins::Up(count.saturating_sub(1)), &body)
    }

    /// Runs `f` on this thread and on workers that join it. False if the section cannot be shared.
    fn section(&self, joins: Joins, f: &(dyn Fn(usize) + Sync)) -> bool {
        if self.threads.is_empty() || IN_SECTION.get() {
            return false;
        }
        let Some(caller) = self.caller.try_lock() else {
            return false;
        };
        let shared = &*self.shared;
        let wanted = match joins {
            Joins::All => self.threads.len(),
            Joins::Up(most) => most.min(self.threads.len()),
        };
        // SAFETY: only the lifetime changes. The pointer is used between joining and leaving, and this function waits until the section
        // is closed to others and all who joined have left, even if `f` panics. The lock that this thread holds, and that of the last
        // section all have left, make it the only one to touch `body`.
        unsafe {
            let body: Body = std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Body>(f);
            *shared.body.get() = Some(body);
        }
        shared.wanted.store(wanted, Ordering::Relaxed);
        shared.left.store(0, Ordering::Relaxed);
        let phase = Phase(shared.phase.load(Ordering::Relaxed)).next();
        shared.phase.store(phase.0, Ordering::SeqCst);
        let awake = self.threads.len() - shared.sleeping.load(Ordering::SeqCst);
        shared.wake(match joins {
            Joins::All => wanted,
            Joins::Up(_) => wanted.saturating_sub(awake).min(WAKES),
        });

        let own = in_section(|| f(self.n_workers()));
        if matches!(joins, Joins::All) {
            shared.wait_until_left(wanted);
        }
        let closed = Phase(shared.phase.fetch_and(!Phase::OPEN, Ordering::AcqRel));
        shared.wait_until_left(closed.joined());
        let worker_panic = shared.panic.lock().take();
        drop(caller);
        if let Some(panic) = own.err().or(worker_panic) {
            resume_unwind(panic);
        }
        true
    }
}

/// Who takes part in a section.
#[derive(Clone, Copy)]
enum Joins {
    /// Each worker, once.
    All,
    /// So many at most are of use, and none has to.
    Up(usize),
}

impl Drop for BarrierPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake(usize::MAX);
        for thread in self.threads.drain(..) {
            // Panics were caught where they happened.
            let _ = thread.join();
        }
    }
}

/// Runs a thread's part, with its panic caught.
fn in_section(f: impl FnOnce()) -> thread::Result<()> {
    IN_SECTION.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    IN_SECTION.set(false);
    result
}

impl Shared {
    /// What a worker's thread does: sections that are open, each once, until the pool is dropped.
    fn work(&self, worker: usize) {
        let own = Arc::new(Sleeper {
            thread: thread::current(),
            woken: AtomicBool::new(false),
        });
        let mut done = 0;
        loop {
            let Some((phase, slept)) = self.wait_for_section(done, &own) else {
                return;
            };
            done = phase.section();
            let Some(joined) = self.join(phase) else {
                continue;
            };
            if slept {
                let wanted = self.wanted.load(Ordering::Relaxed);
                self.wake(wanted.saturating_sub(joined).min(WAKES));
            }
            // SAFETY: this thread joined the section, which waits until it has left.
            let result = in_section(|| unsafe {
                if let Some(body) = *self.body.get() {
                    (*body)(worker);
                }
            });
            if let Err(panic) = result {
                self.panic.lock().get_or_insert(panic);
            }
            self.left.fetch_add(1, Ordering::AcqRel);
            if let Some(caller) = self.waiting.lock().take() {
                caller.unpark();
            }
        }
    }

    /// Joins the section of `phase` if it is still open; with how many others it was joined.
    fn join(&self, mut phase: Phase) -> Option<usize> {
        let section = phase.section();
        while phase.is_open() && phase.section() == section {
            let joined = phase.0 + Phase::JOINED;
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match self
                .phase
                .compare_exchange_weak(phase.0, joined, order.0, order.1)
            {
                Ok(_) => return Some(Phase(joined).joined()),
                Err(now) => phase = Phase(now),
            }
        }
        None
    }

    /// Waits until a section after `done` is open; `None` when the pool is dropped. Also says whether this thread slept.
    fn wait_for_section(&self, done: u64, own: &Arc<Sleeper>) -> Option<(Phase, bool)> {
        let found = || {
            let phase = Phase(self.phase.load(Ordering::SeqCst));
            (phase.is_open() && phase.section() != done).then_some(phase)
        };
        let stopped = || self.stop.load(Ordering::SeqCst);
        let mut slept = false;
        loop {
            spin_until(|| found().is_some() || stopped());
            if stopped() {
                return None;
            }
            if let Some(phase) = found() {
                return Some((phase, slept));
            }
            own.woken.store(false, Ordering::Relaxed);
            {
                let mut sleepers = self.sleepers.lock();
                sleepers.push(own.clone());
                self.sleeping.fetch_add(1, Ordering::SeqCst);
            }
            // Who opens a section after this sees a sleeper; one that was opened before is seen here.
            if found().is_some() || stopped() {
                let mut sleepers = self.sleepers.lock();
                if let Some(place) = sleepers.iter().position(|other| Arc::ptr_eq(other, own)) {
                    sleepers.swap_remove(place);
                    self.sleeping.fetch_sub(1, Ordering::SeqCst);
                }
                continue;
            }
            while !own.woken.load(Ordering::Acquire) {
                thread::park();
            }
            slept = true;
        }
    }

    /// Wakes up to `most` workers that sleep.
    fn wake(&self, most: usize) {
        if most == 0 || self.sleeping.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut sleepers = self.sleepers.lock();
        let kept = sleepers.len().saturating_sub(most);
        for sleeper in sleepers.drain(kept..) {
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
            sleeper.woken.store(true, Ordering::Release);
            sleeper.thread.unpark();
        }
    }

    /// Waits until `count` workers have left the section.
    fn wait_until_left(&self, count: usize) {
        let all_left = || self.left.load(Ordering::Acquire) >= count;
        if spin_until(all_left) {
            return;
        }
        while !all_left() {
            *self.waiting.lock() = Some(thread::current());
            if all_left() {
                break;
            }
            thread::park();
        }
    }
}

/// False if `done` was not true for [`SPIN`].
fn spin_until(done: impl Fn() -> bool) -> bool {
    /// Looks between two at the clock.
    const LOOKS: usize = 32;
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        // Systems without threads have no clock either, and never come here.
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
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
