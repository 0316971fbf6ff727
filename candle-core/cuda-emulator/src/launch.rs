//! Launches: the driver's checks, and execution.

use crate::compile;
use crate::device::shared_at_most;
use crate::memory::{self, Kind};
use crate::module::{self, Function};
use crate::status::*;
use crate::stream;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A module's program, for the runtime.
pub struct Program {
    /// The calling thread's address of this program's shared variables.
    pub shared_address: unsafe extern "C" fn() -> *mut c_char,
}

/// As `EmuLaunch` in shim/runtime.cpp.
#[repr(C)]
pub struct RawLaunch {
    name: *const c_char,
    run: unsafe extern "C" fn(*mut *mut c_void),
    parameters: *const *mut u64,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    shared_address: unsafe extern "C" fn() -> *mut c_char,
    reversed: usize,
}

/// With its own copy of the parameters.
pub struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    parameters: Vec<Vec<u64>>,
}

fn host_threads() -> u64 {
    static THREADS: OnceLock<u64> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let asked = std::env::var("CANDLE_CUDA_EMULATOR_THREADS")
            .ok()
            .and_then(|text| text.parse().ok());
        asked.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
        })
    })
}

/// `CANDLE_CUDA_EMULATOR_ORDER=reverse`: the last thread of a block runs first, which reveals some missing barriers.
fn reversed() -> bool {
    static REVERSED: OnceLock<bool> = OnceLock::new();
    *REVERSED.get_or_init(|| {
        std::env::var("CANDLE_CUDA_EMULATOR_ORDER").is_ok_and(|order| order == "reverse")
    })
}

impl Launch {
    /// Minimum number of threads of all blocks for which blocks are distributed over threads of the host.
    const SPREAD: u64 = 1 << 15;

    pub fn run(&self) -> Result<(), Status> {
        let name = self.function.name.to_string_lossy();
        memory::ran(&name);
        self.check_pointers(&name)?;
        let run = compile::runtime().map_err(|error| {
            eprintln!("CUDA emulator: {error}");
            ERROR_UNKNOWN
        })?;
        let parameters: Vec<*mut u64> = self
            .parameters
            .iter()
            .map(|words| words.as_ptr().cast_mut())
            .collect();
        let raw = RawLaunch {
            name: self.function.name.as_ptr(),
            run: self.function.kernel().run,
            parameters: parameters.as_ptr(),
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            shared_address: self.function.program.shared_address,
            reversed: reversed().into(),
        };
        let blocks: u64 = self.grid.iter().map(|extent| u64::from(*extent)).product();
        let threads: u64 = self.block.iter().map(|extent| u64::from(*extent)).product();
        let workers = if blocks.saturating_mul(threads) < Self::SPREAD {
            1
        } else {
            host_threads().min(blocks)
        };
        if workers == 1 {
            unsafe { run(&raw, 0, blocks) };
        } else {
            spread(run, &raw, blocks, workers);
        }
        for word in self.parameters.iter().flatten() {
            if let Some(found) = memory::find(*word as usize) {
                found.check(&format!("kernel {name:?}"));
            }
        }
        Ok(())
    }

    /// A kernel's pointers must be null, or point to its device's memory or to pinned host memory.
    fn check_pointers(&self, name: &str) -> Result<(), Status> {
        for (i, (words, (_, pointer))) in self
            .parameters
            .iter()
            .zip(self.function.parameters())
            .enumerate()
        {
            let (true, Some(address)) = (pointer, words.first()) else {
                continue;
            };
            let problem = match memory::find(*address as usize) {
                _ if *address == 0 => continue,
                Some(found) if found.kind == Kind::Host || found.device == self.function.device => {
                    continue
                }
                Some(found) => format!(
                    "belongs to device {}, the kernel runs on {}",
                    found.device, self.function.device
                ),
                None => "is in no allocation of the device".to_string(),
            };
            eprintln!("CUDA emulator: kernel {name:?}: the pointer {address:#x}, its parameter {i}, {problem}");
            return Err(ERROR_ILLEGAL_ADDRESS);
        }
        Ok(())
    }
}

fn spread(run: compile::Run, raw: &RawLaunch, blocks: u64, workers: u64) {
    struct Shared<'a>(&'a RawLaunch);
    // Only read, and the data that it points to outlives the threads.
    unsafe impl Sync for Shared<'_> {}
    let (shared, next) = (&Shared(raw), &AtomicU64::new(0));
    let chunk = blocks.div_ceil(workers * 4);
    let work = move || loop {
        let first = next.fetch_add(chunk, Ordering::Relaxed);
        if first >= blocks {
            break;
        }
        let Shared(raw) = shared;
        unsafe { run(*raw, first, (first + chunk).min(blocks)) };
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
}

fn launch(
    handle: usize,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    on: usize,
    parameters: *const *const u8,
    extra: *const c_void,
) -> Result<(), Status> {
    let refuse = |what: String, error: Status| {
        eprintln!("CUDA emulator: launch refused: {what}");
        Err(error)
    };
    if handle == 0 {
        return refuse("no function".to_string(), ERROR_INVALID_HANDLE);
    }
    let function = module::function(handle)?;
    let name = &function.name;
    if !extra.is_null() {
        return Err(ERROR_NOT_SUPPORTED);
    }
    if stream::device(on)? != function.device {
        return refuse(
            format!("{name:?} is of another device than its stream"),
            ERROR_INVALID_HANDLE,
        );
    }
    let threads = block
        .iter()
        .map(|extent| u64::from(*extent))
        .product::<u64>();
    if grid.contains(&0)
        || threads == 0
        || grid[0] > i32::MAX as u32
        || grid[1].max(grid[2]) > 65535
    {
        return refuse(
            format!("{name:?} with a grid of {grid:?} and blocks of {block:?}"),
            ERROR_INVALID_VALUE,
        );
    }
    if threads > 1024 || block[2] > 64 {
        return refuse(
            format!("{name:?} with blocks of {block:?}"),
            ERROR_INVALID_VALUE,
        );
    }
    if threads > function.max_threads().into() {
        let bound = function.max_threads();
        return refuse(
            format!("{name:?}, bound to {bound} threads, with {block:?}"),
            ERROR_INVALID_VALUE,
        );
    }
    let allowed = function.dynamic_shared.load(Ordering::Relaxed);
    if dynamic_shared as usize > allowed
        || function.static_shared + dynamic_shared as usize > shared_at_most()
    {
        return refuse(
            format!(
                "{name:?} with {dynamic_shared} bytes of shared memory besides its own {}; allowed are {allowed}",
                function.static_shared
            ),
            ERROR_INVALID_VALUE,
        );
    }
    let mut copied = Vec::new();
    for (i, (size, _)) in function.parameters().enumerate() {
        let from = if parameters.is_null() {
            std::ptr::null()
        } else {
            unsafe { *parameters.add(i) }
        };
        if from.is_null() {
            return refuse(
                format!("{name:?} without its parameter {i}"),
                ERROR_INVALID_VALUE,
            );
        }
        let mut words = vec![0u64; size.div_ceil(8)];
        unsafe { std::ptr::copy_nonoverlapping(from, words.as_mut_ptr().cast::<u8>(), size) };
        copied.push(words);
    }
    let launch = Launch {
        function,
        grid,
        block,
        dynamic_shared: dynamic_shared as usize,
        parameters: copied,
    };
    stream::submit(on, crate::graph::Node::Launch(Arc::new(launch)))
}

#[no_mangle]
pub extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: usize,
    parameters: *const *const u8,
    extra: *const c_void,
) -> Status {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    status(launch(
        function, grid, block, shared, stream, parameters, extra,
    ))
}

/// `CUlaunchAttribute`.
#[repr(C)]
pub struct Attribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: *const Attribute,
    count: u32,
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: usize,
    parameters: *const *const u8,
    extra: *const c_void,
) -> Status {
    const COOPERATIVE: u32 = 2;
    const CLUSTER: u32 = 4;
    let Some(config) = (unsafe { config.as_ref() }) else {
        return ERROR_INVALID_VALUE;
    };
    for i in 0..config.count as usize {
        let attribute = unsafe { &*config.attributes.add(i) };
        let unsupported = match attribute.id {
            COOPERATIVE => attribute.value[0] != 0,
            CLUSTER => attribute.value[..3] != [1, 1, 1],
            _ => false,
        };
        if unsupported {
            return ERROR_NOT_SUPPORTED;
        }
    }
    status(launch(
        function,
        config.grid,
        config.block,
        config.shared,
        config.stream,
        parameters,
        extra,
    ))
}
