//! `candle:hostile/attacks`: each export tries something that a host has to survive, and says what it got.

#![allow(unsafe_code)]

mod kernels;

use std::fmt::{Debug, Write};
use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};

use bindings::exports::candle::hostile::attacks::Guest;
use gpu::compute::{self, BufferId, BufferUsage, GpuError};
use gpu::ml_kernels as ml;

mod bindings {
    wit_bindgen::generate!({
        world: "hostile",
        path: "../wit/hostile.wit",
        pub_export_macro: true,
    });
}

mod gpu {
    mod bindings {
        wit_bindgen::generate!({
            world: "ml-compute",
            path: "../../wit/0.1",
        });
    }
    pub use bindings::wasi::gpu::{compute, ml_kernels};
}

struct Component;

bindings::export!(Component with_types_in bindings);

/// A line for each call.
#[derive(Default)]
pub(crate) struct Log(String);

impl Log {
    fn line(&mut self, what: &str, outcome: impl AsRef<str>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{what}: {}", outcome.as_ref());
    }

    /// Whether it went well; nothing of what came back.
    pub(crate) fn call<T>(&mut self, what: &str, result: Result<T, GpuError>) -> Option<T> {
        match result {
            Ok(value) => {
                self.line(what, "ok");
                Some(value)
            }
            Err(error) => {
                self.line(what, text(&error));
                None
            }
        }
    }

    /// Reports a result with its value.
    pub(crate) fn value<T: Debug>(&mut self, what: &str, result: Result<T, GpuError>) {
        match result {
            Ok(value) => self.line(what, format!("ok: {value:?}")),
            Err(error) => self.line(what, text(&error)),
        }
    }
}

/// The error's name, as in the interface.
fn text(error: &GpuError) -> String {
    match error {
        GpuError::OutOfMemory => "out-of-memory".to_string(),
        GpuError::InvalidBuffer => "invalid-buffer".to_string(),
        GpuError::KernelError(message) => format!("kernel-error: {message}"),
        GpuError::DeviceUnavailable => "device-unavailable".to_string(),
        GpuError::InvalidParams(message) => format!("invalid-params: {message}"),
    }
}

pub(crate) fn create(size: u64) -> Result<BufferId, GpuError> {
    compute::buffer_create(size, BufferUsage::STORAGE)
}

/// A buffer of these words.
pub(crate) fn filled(words: &[u32]) -> Result<BufferId, GpuError> {
    let buffer = create(words.len() as u64 * 4)?;
    let bytes = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect::<Vec<_>>();
    compute::buffer_write(buffer, 0, &bytes)?;
    Ok(buffer)
}

/// The words of a buffer.
pub(crate) fn words(buffer: BufferId, count: u32) -> Result<Vec<u32>, GpuError> {
    let bytes = compute::buffer_read(buffer, 0, count * 4)?;
    Ok(bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect())
}

/// Every function, with this name for one of its buffers and a good one for the others.
fn every_function(log: &mut Log, who: &str, name: BufferId) -> Result<(), GpuError> {
    let good = filled(&[0; 64])?;
    let what = |call: &str| format!("{call} {who}");
    log.call(
        &what("buffer-write to"),
        compute::buffer_write(name, 0, &[0xAA; 4]),
    );
    log.value(&what("buffer-read of"), compute::buffer_read(name, 0, 4));
    log.call(
        &what("buffer-copy from"),
        compute::buffer_copy(name, 0, good, 0, 4),
    );
    log.call(
        &what("buffer-copy to"),
        compute::buffer_copy(good, 0, name, 0, 4),
    );
    kernels::with_one_bad_buffer(log, who, name)?;
    log.call(&what("buffer-destroy of"), compute::buffer_destroy(name));
    compute::buffer_destroy(good)
}

/// The log, with what stopped it in its last line.
fn ended(mut log: Log, result: Result<(), GpuError>) -> String {
    if let Err(error) = result {
        log.line("stopped", text(&error));
    }
    log.0
}

impl Guest for Component {
    fn huge_buffers() -> String {
        let mut log = Log::default();
        for (what, size) in [
            ("0 bytes", 0),
            ("2^32 bytes", 1 << 32),
            ("2^63 bytes", 1 << 63),
            ("2^64 - 4 bytes", u64::MAX - 3),
            ("2^64 - 1 bytes", u64::MAX),
        ] {
            if let Some(buffer) = log.call(what, create(size)) {
                log.call("its buffer-destroy", compute::buffer_destroy(buffer));
            }
        }
        log.call("16 bytes", create(16));
        log.0
    }

    fn many_buffers(count: u32, size: u64) -> String {
        let mut log = Log::default();
        let mut buffers = Vec::new();
        for _ in 0..count {
            match create(size) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => {
                    log.line("refused", text(&error));
                    break;
                }
            }
        }
        log.line("created", format!("ok: {}", buffers.len()));
        let freed = buffers
            .iter()
            .filter(|&&buffer| compute::buffer_destroy(buffer).is_ok())
            .count();
        log.line("freed", format!("ok: {freed}"));
        log.call("one more", create(size));
        buffers.sort_unstable();
        buffers.dedup();
        log.line("different names", format!("ok: {}", buffers.len()));
        log.0
    }

    fn bad_names() -> String {
        let mut log = Log::default();
        let result = (|| {
            let stale = create(256)?;
            compute::buffer_destroy(stale)?;
            every_function(&mut log, "0", 0)?;
            every_function(&mut log, "a destroyed buffer", stale)?;
            every_function(&mut log, "2^32 - 1", u32::MAX)
        })();
        ended(log, result)
    }

    fn foreign_names(first: u32, last: u32) -> String {
        let mut log = Log::default();
        let result = (|| {
            // Names are not given out twice: past `last`, none of those below is a living buffer of this guest.
            for _ in 0..1 << 16 {
                let own = create(4)?;
                compute::buffer_destroy(own)?;
                if own >= last {
                    break;
                }
            }
            (first..=last).try_for_each(|name| every_function(&mut log, &name.to_string(), name))
        })();
        ended(log, result)
    }

    fn wild_ranges() -> String {
        let mut log = Log::default();
        let result = (|| {
            let buffer = create(64)?;
            let other = create(64)?;
            for offset in [0, 60, 61, 64, 65, 1 << 32, u64::MAX - 3, u64::MAX] {
                let what = |call: &str| format!("{call} at {offset}");
                log.call(
                    &what("buffer-write of 4"),
                    compute::buffer_write(buffer, offset, &[7; 4]),
                );
                log.call(
                    &what("buffer-write of 0"),
                    compute::buffer_write(buffer, offset, &[]),
                );
                for size in [0, 4, u32::MAX] {
                    log.call(
                        &what(&format!("buffer-read of {size}")),
                        compute::buffer_read(buffer, offset, size),
                    );
                }
                for size in [0, 4, u64::MAX - offset, u64::MAX] {
                    log.call(
                        &what(&format!("buffer-copy of {size} from")),
                        compute::buffer_copy(buffer, offset, other, 0, size),
                    );
                    log.call(
                        &what(&format!("buffer-copy of {size} to")),
                        compute::buffer_copy(buffer, 0, other, offset, size),
                    );
                    log.call(
                        &what(&format!("buffer-copy of {size} onto itself")),
                        compute::buffer_copy(buffer, offset, buffer, offset, size),
                    );
                }
            }
            log.call("a good read", compute::buffer_read(buffer, 0, 64));
            Ok(())
        })();
        ended(log, result)
    }

    fn overlapping_copies() -> String {
        let mut log = Log::default();
        let result = (|| {
            let mut model = (0..=255_u8).cycle().take(1021).collect::<Vec<_>>();
            let buffer = create(model.len() as u64)?;
            compute::buffer_write(buffer, 0, &model)?;
            for (from, to, size) in [
                (0, 1, 1020),
                (1, 0, 1020),
                (3, 10, 900),
                (10, 3, 900),
                (4, 8, 512),
                (8, 4, 512),
                (5, 5, 300),
                (0, 511, 510),
                (100, 101, 1),
            ] {
                let what = format!("{size} bytes from {from} to {to}");
                compute::buffer_copy(buffer, from as u64, buffer, to as u64, size as u64)?;
                model.copy_within(from..from + size, to);
                let found = compute::buffer_read(buffer, 0, model.len() as u32)?;
                let differs = found.iter().zip(&model).position(|(a, b)| a != b);
                match differs {
                    None if found.len() == model.len() => log.line(&what, "ok"),
                    None => log.line(&what, format!("{} bytes came back", found.len())),
                    Some(at) => log.line(&what, format!("byte {at} is wrong")),
                }
            }
            Ok(())
        })();
        ended(log, result)
    }

    fn wild_parameters() -> String {
        let mut log = Log::default();
        let result = kernels::wild_parameters(&mut log);
        ended(log, result)
    }

    fn wild_indices() -> String {
        let mut log = Log::default();
        let result = kernels::wild_indices(&mut log);
        ended(log, result)
    }

    fn residue(rounds: u32, size: u32) -> String {
        let mut log = Log::default();
        let mut seen = 0;
        let result = (0..rounds).try_for_each(|round| {
            // Sizes that share the pool's classes without being equal.
            let size = size.saturating_sub(round % 4).max(1);
            let buffer = create(u64::from(size))?;
            let bytes = compute::buffer_read(buffer, 0, size)?;
            seen += bytes.iter().filter(|&&byte| byte != 0).count();
            compute::buffer_write(buffer, 0, &vec![0xA5; size as usize])?;
            compute::buffer_destroy(buffer)
        });
        log.line("bytes that were not zero", format!("ok: {seen}"));
        ended(log, result)
    }

    fn leave(size: u32, byte: u8) -> Result<u32, String> {
        let buffer = create(u64::from(size)).map_err(|error| text(&error))?;
        compute::buffer_write(buffer, 0, &vec![byte; size as usize])
            .map_err(|error| text(&error))?;
        Ok(buffer)
    }

    fn endless_loop() -> String {
        let mut turns = 0_u64;
        while black_box(true) {
            turns = black_box(turns.wrapping_add(1));
        }
        format!("ended: ok: {turns}\n")
    }

    fn endless_calls() -> String {
        let result = (|| {
            let buffer = create(4096)?;
            let params = ml::BootstrapParams {
                n_samples: 1024,
                seed: 1,
                max_index: 1024,
            };
            while black_box(true) {
                black_box(compute::get_device_info());
                ml::kernel_bootstrap_sample(params, buffer)?;
                black_box(compute::buffer_read(buffer, 0, 4096)?);
                compute::sync();
            }
            Ok(())
        })();
        ended(Log::default(), result)
    }

    fn endless_kernels() -> String {
        ended(Log::default(), kernels::endless())
    }

    fn grow_memory() -> String {
        let mut log = Log::default();
        for pages in [1 << 15, 1 << 10, 1 << 5, 1] {
            while core::arch::wasm32::memory_grow(0, pages) != usize::MAX {}
        }
        let pages = core::arch::wasm32::memory_size(0);
        log.line("pages", format!("ok: {pages}"));
        // The host has to find room for the strings of its answer.
        let memory = compute::get_device_info().total_memory;
        log.line("get-device-info", format!("ok: {memory}"));
        log.0
    }

    fn giant_list(bytes: u32) -> String {
        let mut log = Log::default();
        let Some(start) = grown(bytes) else {
            log.line("memory", "refused");
            return log.0;
        };
        let result = (|| {
            let buffer = create(u64::from(bytes))?;
            // SAFETY: `grown` made these bytes part of linear memory, zero, and nothing else uses them.
            let list = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
            log.call("buffer-write", compute::buffer_write(buffer, 0, list));
            compute::buffer_destroy(buffer)
        })();
        ended(log, result)
    }

    fn giant_read(bytes: u32) -> String {
        let mut log = Log::default();
        let result = (|| {
            let buffer = create(u64::from(bytes))?;
            let read = compute::buffer_read(buffer, 0, bytes).map(|list| list.len());
            log.value("buffer-read", read);
            compute::buffer_destroy(buffer)
        })();
        ended(log, result)
    }

    fn deep_recursion() -> String {
        fn deeper(depth: u64) -> u64 {
            let frame = black_box([depth; 16]);
            if black_box(true) {
                deeper(depth + 1) + black_box(frame)[3]
            } else {
                depth
            }
        }
        format!("returned: ok: {}\n", deeper(0))
    }

    fn wild_list() -> String {
        let mut log = Log::default();
        // The generated functions only take lists that exist.
        #[link(wasm_import_module = "wasi:gpu/compute@0.1.0")]
        extern "C" {
            #[link_name = "buffer-write"]
            fn buffer_write(buffer: u32, offset: u64, list: u32, len: u32, result: *mut u8);
        }
        let mut result = [0_u8; 16];
        // SAFETY: the host has to check the list; the result has the size that the canonical ABI gives it.
        unsafe {
            buffer_write(1, 0, u32::MAX - 7, u32::MAX, result.as_mut_ptr());
        }
        log.line("buffer-write", format!("ok: {result:?}"));
        log.0
    }

    fn network(port: u16) -> String {
        let mut log = Log::default();
        let host = Ipv4Addr::LOCALHOST;
        let mut tried = |what: &str, result: io::Result<()>| match result {
            Ok(()) => log.line(what, "ok"),
            Err(error) => log.line(what, format!("{:?}", error.kind())),
        };
        tried("connect", TcpStream::connect((host, port)).map(drop));
        tried("listen", TcpListener::bind((host, 0)).map(drop));
        let datagram = UdpSocket::bind((host, 0))
            .and_then(|socket| socket.send_to(b"out", (host, port)))
            .map(drop);
        tried("send", datagram);
        tried("resolve", ("localhost", port).to_socket_addrs().map(drop));
        log.0
    }
}

/// `bytes` of new linear memory, or `None` if the host refuses.
fn grown(bytes: u32) -> Option<*const u8> {
    let pages = bytes.div_ceil(1 << 16) as usize;
    let before = core::arch::wasm32::memory_grow(0, pages);
    (before != usize::MAX).then_some((before << 16) as *const u8)
}
