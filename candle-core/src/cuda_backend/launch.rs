//! Kernel launches: parameters by value, in one stream, without events.

use std::ffi::c_void;

use cudarc::driver::result::launch_kernel;
use cudarc::driver::sys::{CUevent_flags, CUstreamCaptureStatus};
use cudarc::driver::CudaEvent;

use super::error::{During, WrapErr};
use super::gpu::{Gpu, NAME};
use super::kernel::Kernel;
use crate::watch;
use crate::Result;

/// Threads in a block of kernels without a reason for another number.
pub(super) const BLOCK: u32 = 256;

/// Maximum number of blocks in the second and third dimension of a grid.
pub(super) const MAX_GRID_YZ: usize = 65535;

/// Numbers of blocks and of threads per block, and dynamic shared memory per block in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
    pub(super) shared: u32,
}

impl Grid {
    pub(super) fn new(blocks: [u32; 3], threads: u32) -> Self {
        Self {
            blocks,
            threads: [threads, 1, 1],
            shared: 0,
        }
    }

    /// At least `count` threads in blocks of [`BLOCK`]. Kernels compute their index with `thread_index()` and compare it with `count`. A
    /// grid has at most 2^31 - 1 blocks; that is 2^39 elements, which exceeds any card's memory.
    pub(super) fn of_threads(count: usize) -> Self {
        Self::new([count.div_ceil(BLOCK as usize) as u32, 1, 1], BLOCK)
    }

    /// Blocks of `threads` threads, one for each of `rows`.
    pub(super) fn of_rows(rows: usize, threads: u32) -> Self {
        Self::new([rows as u32, 1, 1], threads)
    }

    pub(super) fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }
}

/// Maximum words of parameters: three layouts of eight dimensions and the values that accompany them.
const WORDS: usize = 96;
/// Maximum number of parameters of a kernel.
const PARAMS: usize = 20;

/// A kernel's parameters in its order: addresses and plain values.
pub(super) struct Args {
    words: [u64; WORDS],
    used: usize,
    starts: [usize; PARAMS],
    count: usize,
}

impl Args {
    pub(super) fn new() -> Self {
        Self {
            words: [0; WORDS],
            used: 0,
            starts: [0; PARAMS],
            count: 0,
        }
    }

    /// A number or a struct that the kernel declares in the same way.
    pub(super) fn value<T: bytemuck::Pod>(mut self, value: T) -> Self {
        let bytes = bytemuck::bytes_of(&value);
        let words = bytes.len().div_ceil(8);
        let place = &mut self.words[self.used..self.used + words];
        bytemuck::cast_slice_mut::<u64, u8>(place)[..bytes.len()].copy_from_slice(bytes);
        self.starts[self.count] = self.used;
        self.used += words;
        self.count += 1;
        self
    }

    /// A count or an offset, as `u64`.
    pub(super) fn size(self, size: usize) -> Self {
        self.value(size as u64)
    }
}

/// A launch that `CANDLE_CUDA_LOG` prints. The log waits for each launch, unless a graph is captured: then nothing runs yet.
struct Log {
    number: u64,
    begun: Option<CudaEvent>,
}

impl Log {
    fn begin(gpu: &Gpu, kernel: &Kernel, grid: Grid) -> Self {
        let number = gpu.launch_number();
        let ([x, y, z], threads) = (grid.blocks, grid.threads.iter().product::<u32>());
        let (op, kernel) = (watch::current(), kernel.label());
        let line = format!("#{number} {op} | {kernel} | {x}x{y}x{z} blocks of {threads}");
        watch::report(NAME, &line);
        let runs = gpu.stream().capture_status();
        let runs =
            runs.is_ok_and(|status| status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        Self {
            number,
            begun: if runs { Self::event(gpu) } else { None },
        }
    }

    /// Skips launches that cannot be timed; launch errors are reported elsewhere.
    fn event(gpu: &Gpu) -> Option<CudaEvent> {
        let flags = CUevent_flags::CU_EVENT_DEFAULT;
        gpu.stream().record_event(Some(flags)).ok()
    }

    fn end(self, gpu: &Gpu) {
        let Some(begun) = self.begun else { return };
        let took = Self::event(gpu).and_then(|ended| begun.elapsed_ms(&ended).ok());
        if let Some(ms) = took {
            let (number, us) = (self.number, f64::from(ms) * 1e3);
            watch::report(NAME, &format!("#{number} took {us:.1} us"));
        }
    }
}

impl Gpu {
    /// Queues a kernel in the stream; compiles it on the first use. Does nothing for a grid without blocks.
    pub(super) fn launch(&self, kernel: &Kernel, grid: Grid, args: Args) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let loaded = self.kernels.get(kernel)?;
        loaded.allow_shared(grid.shared)?;
        self.context().bind_to_thread().w()?;
        let mut args = args;
        let mut pointers = [std::ptr::null_mut::<c_void>(); PARAMS];
        for (pointer, start) in pointers.iter_mut().zip(&args.starts[..args.count]) {
            *pointer = std::ptr::from_mut(&mut args.words[*start]).cast();
        }
        let triple = |[x, y, z]: [u32; 3]| (x, y, z);
        let timer = self.profile_begin(kernel)?;
        let log = if self.logs() {
            Some(Log::begin(self, kernel, grid))
        } else {
            None
        };
        // SAFETY: the only caller for a kernel passes the kernel's parameters; the storages that they point to are freed in stream order,
        // so after the kernel.
        let launched = unsafe {
            launch_kernel(
                loaded.function.cu_function(),
                triple(grid.blocks),
                triple(grid.threads),
                grid.shared,
                self.stream().cu_stream(),
                &mut pointers[..args.count],
            )
        };
        launched.during(|| format!("launching {} with {grid:?}", kernel.label()))?;
        if let Some(log) = log {
            log.end(self);
        }
        self.profile_end(timer)
    }
}
