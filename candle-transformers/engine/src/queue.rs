//! A thread that works on one request at a time and serves the owners in rotation.

use crate::batch::{Owner, Place, Places};
use crate::{Error, Result};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// A request to a [`Queue`].
pub trait Job: Send + 'static {
    /// Whether a caller still waits for the answer; if not, the job is dropped before it runs.
    fn is_wanted(&self) -> bool;
}

/// A thread and the requests that wait for it. The thread ends once this is dropped and all requests are done.
pub struct Queue<J> {
    name: &'static str,
    places: Arc<Places>,
    jobs: Mutex<Sender<Entry<J>>>,
}

struct Entry<J> {
    owner: Owner,
    job: J,
    _place: Place,
}

impl<J: Job> Queue<J> {
    /// Starts the thread, with `places` slots for requests that wait or run. `work` runs one step of a job, and returns the job if it
    /// needs another: the other jobs of its owner and those of other owners run first.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(
        name: &'static str,
        places: usize,
        work: impl FnMut(J) -> Option<J> + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, orders) = channel();
        let thread = std::thread::Builder::new().name(name.to_string());
        thread.spawn(move || run(&orders, work))?;
        Ok(Self {
            name,
            places: Places::new(places),
            jobs: Mutex::new(jobs),
        })
    }

    /// Requests that wait or are worked on.
    pub fn open(&self) -> usize {
        self.places.taken()
    }

    /// Adds a request.
    ///
    /// # Errors
    /// The queue is full for this owner, or the thread has panicked.
    pub fn put(&self, owner: Owner, job: J) -> Result<()> {
        let entry = Entry {
            _place: self.places.take(owner)?,
            owner,
            job,
        };
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = |_| Error::Batch(format!("the thread {} has stopped", self.name));
        jobs.send(entry).map_err(stopped)
    }
}

/// Works until all senders are dropped.
fn run<J: Job>(orders: &Receiver<Entry<J>>, mut work: impl FnMut(J) -> Option<J>) {
    let mut waiting: Vec<Entry<J>> = Vec::new();
    // When each owner was last served.
    let mut turns: HashMap<Owner, u64> = HashMap::new();
    let mut turn = 0;
    loop {
        if waiting.is_empty() {
            turns.clear();
            match orders.recv() {
                Ok(entry) => waiting.push(entry),
                Err(_) => return,
            }
        }
        waiting.extend(orders.try_iter());
        waiting.retain(|entry| entry.job.is_wanted());
        let last = |at: &usize| turns.get(&waiting[*at].owner).copied().unwrap_or(0);
        let Some(at) = (0..waiting.len()).min_by_key(last) else {
            continue;
        };
        let entry = waiting.remove(at);
        turn += 1;
        turns.insert(entry.owner, turn);
        if let Some(job) = work(entry.job) {
            waiting.push(Entry { job, ..entry });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Queue};
    use crate::batch::Owner;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::{channel, Receiver, Sender};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A job of this many steps, which reports its end.
    struct Turns {
        left: usize,
        wanted: Arc<AtomicBool>,
        done: Sender<()>,
    }

    impl Job for Turns {
        fn is_wanted(&self) -> bool {
            self.wanted.load(SeqCst)
        }
    }

    fn job(left: usize) -> (Turns, Arc<AtomicBool>, Receiver<()>) {
        let (done, told) = channel();
        let wanted = Arc::new(AtomicBool::new(true));
        let job = Turns {
            left,
            wanted: wanted.clone(),
            done,
        };
        (job, wanted, told)
    }

    #[test]
    fn owners_take_turns_and_jobs_end_with_those_that_wait() {
        let count = Arc::new(AtomicUsize::new(0));
        let (counted, (begin, begun)) = (count.clone(), channel());
        let queue = Queue::start("turns", 4, move |mut job: Turns| {
            if counted.fetch_add(1, SeqCst) == 0 {
                begun.recv().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
            job.left -= 1;
            match job.left {
                0 => {
                    job.done.send(()).unwrap();
                    None
                }
                _ => Some(job),
            }
        })
        .unwrap();
        let (large, wanted, large_done) = job(2000);
        let (small, _small_wanted, small_done) = job(2);
        queue.put(Owner(1), large).unwrap();
        queue.put(Owner(2), small).unwrap();
        assert_eq!(queue.open(), 2);
        begin.send(()).unwrap();
        small_done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(count.load(SeqCst) <= 8, "it waited for the large one");
        wanted.store(false, SeqCst);
        let start = Instant::now();
        while queue.open() > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "it goes on for nobody"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(large_done.try_recv().is_err() && count.load(SeqCst) < 2000);
    }

    #[test]
    fn a_full_queue_says_so() {
        let (release, held) = channel::<()>();
        let queue = Queue::start("full", 4, move |job: Turns| {
            held.recv().unwrap();
            job.done.send(()).unwrap();
            None
        })
        .unwrap();
        let all: Vec<_> = (0..4).map(|_| job(1)).collect();
        let mut told = Vec::new();
        let mut keep = Vec::new();
        for (job, wanted, done) in all {
            queue.put(Owner(1), job).unwrap();
            told.push(done);
            keep.push(wanted);
        }
        let problem = queue.put(Owner(1), job(1).0).unwrap_err().to_string();
        assert!(problem.contains("maximum"), "{problem}");
        for done in told {
            release.send(()).unwrap();
            done.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
}
