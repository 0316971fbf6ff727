//! A backend with shorter calls.

use candle_core::Device;
use candle_wasi_gpu::{backend, BufferId, BufferUsage, GpuBackend, GpuError, Limits, Result};

/// The smallest quota that all tests but those of quotas live with.
pub const LIMITS: Limits = Limits {
    memory: 64 << 20,
    buffers: 64,
};

pub fn open(device: &Device) -> Result<Box<dyn GpuBackend>> {
    backend(device, LIMITS)
}

/// Calls as tests make them.
pub trait Calls: GpuBackend {
    fn empty(&self, bytes: u64) -> Result<BufferId> {
        self.buffer_create(bytes, BufferUsage::STORAGE)
    }

    fn bytes(&self, data: &[u8]) -> Result<BufferId> {
        let buffer = self.empty(data.len().max(1) as u64)?;
        self.buffer_write(buffer, 0, data)?;
        Ok(buffer)
    }

    fn words(&self, data: &[u32]) -> Result<BufferId> {
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    fn floats(&self, data: &[f32]) -> Result<BufferId> {
        let words: Vec<u32> = data.iter().map(|x| x.to_bits()).collect();
        self.words(&words)
    }

    fn read_words(&self, buffer: BufferId, count: usize) -> Result<Vec<u32>> {
        let bytes = self.buffer_read(buffer, 0, 4 * count as u32)?;
        let words = bytes.chunks_exact(4);
        Ok(words
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect())
    }

    fn read_floats(&self, buffer: BufferId, count: usize) -> Result<Vec<f32>> {
        let words = self.read_words(buffer, count)?;
        Ok(words.into_iter().map(f32::from_bits).collect())
    }
}

impl<T: GpuBackend + ?Sized> Calls for T {}

/// Numbers for tests, the same at every run (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u32) -> u32 {
        (self.bits() % u64::from(end)) as u32
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Whether both are NaN, the same infinity, or at most `tolerance` apart.
pub fn is_near(got: f32, want: f64, tolerance: f64) -> bool {
    let want_single = want as f32;
    if got.is_nan() || want_single.is_nan() || want_single.is_infinite() || got.is_infinite() {
        return got.is_nan() && want_single.is_nan() || got == want_single;
    }
    (f64::from(got) - want).abs() <= tolerance
}

/// Fails unless the call was refused for its parameters, with these words.
#[track_caller]
pub fn assert_invalid<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    match result {
        Err(GpuError::InvalidParams(text)) => {
            for word in words {
                assert!(text.contains(word), "{word:?} is not in {text:?}");
            }
        }
        other => panic!("not invalid-params: {other:?}"),
    }
}

/// Fails unless a kernel complained, with these words.
#[track_caller]
pub fn assert_kernel_error<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    match result {
        Err(GpuError::KernelError(text)) => {
            for word in words {
                assert!(text.contains(word), "{word:?} is not in {text:?}");
            }
        }
        other => panic!("not kernel-error: {other:?}"),
    }
}

/// The fault of a kernel: the CPU's is the call's answer, a GPU's is the next read's.
pub fn fault<T>(
    gpu: &dyn GpuBackend,
    call: Result<()>,
    read: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if gpu.get_device_info().backend == "cpu" {
        call?;
        panic!("the CPU has found no fault");
    }
    call.expect("a GPU finds faults later");
    read()
}
