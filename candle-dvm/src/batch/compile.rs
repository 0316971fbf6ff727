//! Kernels that steps take, compiled before the first text comes: otherwise the first texts wait seconds for them, and again whenever
//! another number of texts runs for the first time.

use super::BatchSettings;
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::Result;
use candle_core::{Device, Tensor, D};
use candle_transformers::blocks::DecoderState;
use web_time::Instant;

/// Positions up to which a text is thought of.
const LONGEST: usize = 1024;

/// Compiles the kernels of steps of up to as many texts as there are slots, with prompts of several lengths. The CPU has none to compile.
///
/// # Errors
/// The device's.
pub(super) fn ahead(backend: &CandleBackend, settings: BatchSettings) -> Result<()> {
    let start = Instant::now();
    let steps = || all_steps(backend, settings);
    match backend.device() {
        Device::Cpu => return Ok(()),
        #[cfg(feature = "webgpu")]
        Device::WebGpu(device) => {
            let warmed = device.warm_up(|| steps().map_err(candle_core::Error::wrap));
            let warmed = warmed.doing("compiling kernels")?;
            tracing::debug!(?warmed, "kernels were compiled ahead");
        }
        // Its kernels are compiled as they are launched.
        _ => steps()?,
    }
    tracing::info!(
        seconds = start.elapsed().as_secs_f32(),
        "the kernels are compiled"
    );
    Ok(())
}

/// What a busy engine runs, on slots that are thrown away.
fn all_steps(backend: &CandleBackend, settings: BatchSettings) -> Result<()> {
    let BatchSettings { slots, piece, .. } = settings;
    let longest = backend.max_positions().min(LONGEST);
    let mut state = backend.new_slots(slots)?;
    // Kernels for few rows are made for their number, others for ranges of it.
    let counts = (1..=8)
        .chain([12, 16, 24, 32, 48, 64, 96, 128])
        .chain([piece]);
    for count in counts.filter(|count| *count <= piece && *count < longest) {
        state.cut_slot(0, 0).doing("compiling kernels")?;
        read(backend, count, &mut state)?;
    }
    for rows in 1..=slots {
        write(backend, rows, &mut state)?;
    }
    // The same behind more keys.
    let piece = piece.min(longest - 1);
    while state.lens()[0] + piece < longest {
        read(backend, piece, &mut state)?;
        write(backend, slots, &mut state)?;
    }
    Ok(())
}

fn read(backend: &CandleBackend, count: usize, state: &mut DecoderState) -> Result<()> {
    let doing = "compiling kernels";
    let ids = Tensor::new(vec![0u32; count], backend.device());
    let ids = ids.and_then(|ids| ids.unsqueeze(0)).doing(doing)?;
    let read = backend.decoder().forward_slots(&ids, &[count], 0, state);
    read.map(drop).doing(doing)
}

fn write(backend: &CandleBackend, rows: usize, state: &mut DecoderState) -> Result<()> {
    let doing = "compiling kernels";
    let ids = Tensor::new(vec![0u32; rows], backend.device());
    let ids = ids.and_then(|ids| ids.unsqueeze(1)).doing(doing)?;
    let decoder = backend.decoder();
    let logits = decoder.next_logits_of_slots(&ids, &vec![1; rows], 0, state);
    let chosen = logits.and_then(|logits| logits.argmax(D::Minus1)?.to_vec1::<u32>());
    chosen.map(drop).doing(doing)
}
