//! Copies from the host to the memory of storages.
//!
//! `write_buffer` allocates a staging buffer for each call, whose pages are new each time, and fills it on one thread. Long copies go
//! through staging buffers that stay, filled by all threads, while the GPU reads another one. A browser maps buffers between two tasks of
//! its event loop: there `write_buffer` copies everything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use wgpu::WriteOnly;

use super::memory::{Memory, Piece};
use super::queue::Queue;
use crate::cpu::threads;
use crate::parts::Parts;
use crate::{Error, Result};

/// Copies by `write_buffer` are split into chunks of this size, because each needs a staging buffer of its size.
const WRITTEN_BYTES: u64 = 32 << 20;
/// Minimum number of bytes for which staging buffers are worth a submission.
const STAGED_FROM: u64 = 1 << 20;
/// Maximum size of a staging buffer: long enough that a submission takes a small part of its time.
const STAGING_BYTES: u64 = 8 << 20;
/// Staging buffers: one is filled, one is read, one waits.
const STAGINGS: usize = 3;
/// Bytes that a thread copies at a time.
const TASK_BYTES: usize = 256 << 10;

/// The staging buffers, the least recently used first.
#[derive(Default)]
pub(super) struct Uploads(Mutex<VecDeque<Staging>>);

struct Staging {
    buffer: wgpu::Buffer,
    /// Whether the host can write: the GPU has read it.
    mapped: Arc<AtomicBool>,
    read: Option<wgpu::SubmissionIndex>,
}

impl Uploads {
    /// Releases the buffers.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Queue {
    /// Writes `parts`, concatenated, to the start of a storage's memory.
    pub(super) fn upload(&self, memory: &Memory, parts: &[&[u8]]) -> Result<()> {
        // A copy runs before everything not yet submitted, which may still read the buffer's old contents.
        self.flush()?;
        self.health.check("upload")?;
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let mut rest = Parts::new(parts);
        let is_staged = bytes >= STAGED_FROM && !cfg!(target_family = "wasm");
        // A rayon thread that waits for the others in a loop may run another task, which copies too: it must not wait for this one.
        let stagings = is_staged.then(|| self.uploads.0.try_lock()).flatten();
        match stagings {
            Some(mut stagings) => {
                let size = STAGING_BYTES.min(self.pool.max_buffer_size());
                for piece in memory.pieces(bytes, size) {
                    let parts = rest.take(piece.bytes as usize);
                    self.stage(&mut stagings, size, &piece, &parts)?;
                }
            }
            None => {
                for piece in memory.pieces(bytes, WRITTEN_BYTES) {
                    self.write(&piece, rest.take(piece.bytes as usize));
                }
            }
        }
        self.health.check("upload")
    }

    fn write(&self, piece: &Piece<'_>, parts: Vec<&[u8]>) {
        // Each write is of whole words.
        let before_last = &parts[..parts.len().saturating_sub(1)];
        let joined;
        let parts = if before_last.iter().all(|part| part.len() % 4 == 0) {
            parts
        } else {
            joined = parts.concat();
            vec![joined.as_slice()]
        };
        let raw = piece.buffer.raw();
        let mut offset = piece.offset;
        for part in parts {
            let (words, end) = part.split_at(part.len() & !3);
            if !words.is_empty() {
                self.queue.write_buffer(raw, offset, words);
                offset += words.len() as u64;
            }
            if !end.is_empty() {
                let mut word = [0; 4];
                word[..end.len()].copy_from_slice(end);
                self.queue.write_buffer(raw, offset, &word);
            }
        }
        if piece.bytes == WRITTEN_BYTES {
            self.queue.submit([]);
        }
    }

    fn stage(
        &self,
        stagings: &mut VecDeque<Staging>,
        size: u64,
        piece: &Piece<'_>,
        parts: &[&[u8]],
    ) -> Result<()> {
        let staging = self.free_staging(stagings, size)?;
        let bytes = piece.bytes.next_multiple_of(4);
        let range = staging.buffer.slice(..bytes).get_mapped_range_mut();
        let mut range = range.map_err(|err| failed(&format!("{err:?}")))?;
        fill(range.slice(..), parts);
        drop(range);
        staging.buffer.unmap();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let raw = piece.buffer.raw();
        encoder.copy_buffer_to_buffer(&staging.buffer, 0, raw, piece.offset, bytes);
        let read = self.queue.submit([encoder.finish()]);
        let mapped = Arc::new(AtomicBool::new(false));
        let done = mapped.clone();
        let map = staging.buffer.slice(..);
        map.map_async(wgpu::MapMode::Write, move |result| {
            done.store(result.is_ok(), Ordering::Release)
        });
        stagings.push_back(Staging {
            buffer: staging.buffer,
            mapped,
            read: Some(read),
        });
        Ok(())
    }

    /// A buffer that the host can write; waits for the GPU if it reads all of them.
    fn free_staging(&self, stagings: &mut VecDeque<Staging>, size: u64) -> Result<Staging> {
        let is_mapped = |staging: &Staging| staging.mapped.load(Ordering::Acquire);
        let new = stagings.len() < STAGINGS && !stagings.front().is_some_and(is_mapped);
        let oldest = if new { None } else { stagings.pop_front() };
        let Some(mut oldest) = oldest else {
            return Ok(Staging {
                buffer: self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("upload"),
                    size: size.next_multiple_of(4),
                    usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                    mapped_at_creation: true,
                }),
                mapped: Arc::new(AtomicBool::new(true)),
                read: None,
            });
        };
        if !is_mapped(&oldest) {
            let wait = wgpu::PollType::Wait {
                submission_index: oldest.read.take(),
                timeout: None,
            };
            self.device.poll(wait).map_err(|err| failed(&err))?;
            self.health.check("upload")?;
        }
        if !is_mapped(&oldest) {
            return Err(failed(&"a staging buffer cannot be mapped"));
        }
        Ok(oldest)
    }
}

fn failed(err: &dyn std::fmt::Display) -> Error {
    Error::WebGpu(format!("copying to the GPU: {err}")).bt()
}

/// Bytes for one thread, and what it copies there.
struct Task<'a> {
    dst: WriteOnly<'a, [u8]>,
    src: &'a [u8],
}

// SAFETY: as `&mut [u8]`, the destination is memory that nothing else accesses; wgpu implements `Send` for sized types alone.
unsafe impl Send for Task<'_> {}

/// Copies the parts to consecutive bytes, on all threads; zeros follow.
fn fill(mut dst: WriteOnly<'_, [u8]>, parts: &[&[u8]]) {
    let mut tasks = Vec::new();
    for part in parts {
        for src in part.chunks(TASK_BYTES) {
            let (to, rest) = dst.split_at(src.len());
            tasks.push(Task { dst: to, src });
            dst = rest;
        }
    }
    dst.fill(0);
    threads::chunks_mut(&mut tasks, 1, |_, tasks| {
        for Task { dst, src } in tasks {
            dst.copy_from_slice(src);
        }
    });
}
