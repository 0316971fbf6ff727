//! Times of kernels on the card: an event before and after each, summed by kernel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{sys::CUevent_flags, CudaEvent, CudaStream};
use parking_lot::Mutex;

use super::error::WrapErr;
use super::kernel::Kernel;
use crate::kernel_time::KernelTime;
use crate::Result;

/// Maximum number of unread events; more would take too much of the driver's memory.
const PENDING: usize = 4096;

#[derive(Default)]
pub(super) struct Profiler {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<(String, CudaEvent, CudaEvent)>,
    times: HashMap<String, (u64, f64)>,
}

/// A kernel that has started.
pub(super) struct Timer {
    label: String,
    begun: CudaEvent,
}

impl Profiler {
    pub(super) fn start(&self) {
        *self.state.lock() = State::default();
        self.on.store(true, Ordering::Release);
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, stream: &CudaStream, kernel: &Kernel) -> Result<Option<Timer>> {
        if !self.on.load(Ordering::Acquire) {
            return Ok(None);
        }
        let begun = stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .w()?;
        let label = kernel.label();
        Ok(Some(Timer { label, begun }))
    }

    pub(super) fn end(&self, stream: &CudaStream, timer: Timer) -> Result<()> {
        let ended = stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .w()?;
        let mut state = self.state.lock();
        state.pending.push((timer.label, timer.begun, ended));
        if state.pending.len() >= PENDING {
            state.collect()?;
        }
        Ok(())
    }

    pub(super) fn stop(&self) -> Result<Vec<KernelTime>> {
        self.on.store(false, Ordering::Release);
        let mut state = std::mem::take(&mut *self.state.lock());
        state.collect()?;
        let times = state.times.into_iter();
        let mut times: Vec<KernelTime> = times
            .map(|(kernel, (count, total_us))| KernelTime {
                kernel,
                count,
                total_us,
            })
            .collect();
        times.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
        Ok(times)
    }
}

impl State {
    fn collect(&mut self) -> Result<()> {
        for (label, begun, ended) in self.pending.drain(..) {
            ended.synchronize().w()?;
            let time = f64::from(begun.elapsed_ms(&ended).w()?) * 1e3;
            let sum = self.times.entry(label).or_default();
            sum.0 += 1;
            sum.1 += time;
        }
        Ok(())
    }
}
