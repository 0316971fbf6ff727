//! A small model, and an engine that fails: for tests here and of what is built on the engine.

use super::{BatchEngine, BatchSettings};
use crate::engine::CandleBackend;
use crate::model::{ModelFiles, ModelSource};
use candle_core::{DType, Device};
use std::sync::Arc;
use std::time::Duration;

/// The embedded model on the CPU.
pub fn small_model() -> Arc<CandleBackend> {
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let model = CandleBackend::load(files, "test", &Device::Cpu, DType::F32, &|_| {});
    Arc::new(model.unwrap())
}

/// An engine that panics at the end of each step.
pub fn breaking(model: Arc<CandleBackend>) -> BatchEngine {
    let engine = BatchEngine::with_step(model, ONE_SLOT, |scheduler| {
        scheduler.step()?;
        panic!("as the test asks")
    });
    engine.unwrap()
}

pub(super) const ONE_SLOT: BatchSettings = BatchSettings {
    slots: 1,
    piece: Some(16),
    waiting: 8,
    longest_step: Duration::from_secs(600),
    compile_ahead: false,
    cache_memory: None,
};
