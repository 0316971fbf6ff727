//! Kernels that steps take, compiled before the first text comes: otherwise the first texts wait seconds for them, and again whenever
//! another number of texts runs for the first time.

use super::memory::state_for_kernels;
use super::scheduler::read;
use super::writing::next_logits;
use super::BatchSettings;
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::generation::Chosen;
use crate::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::sampling::{Change, Changes, Draw};
use candle_transformers::parallel::ParallelState;
use web_time::Instant;

const DOING: &str = "compiling kernels";
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
            let warmed = warmed.doing(DOING)?;
            tracing::debug!(?warmed, "compiled kernels ahead of time");
        }
        // Its kernels are compiled as they are launched.
        _ => steps()?,
    }
    tracing::info!(seconds = start.elapsed().as_secs_f32(), "kernels compiled");
    Ok(())
}

/// What a busy engine runs, on slots that are thrown away.
fn all_steps(backend: &CandleBackend, settings: BatchSettings) -> Result<()> {
    let (slots, piece) = (settings.slots, settings.piece_len());
    let longest = backend.slot_positions().min(LONGEST);
    let mut state = match settings.cache_memory {
        Some(_) => state_for_kernels(backend, settings, longest)?,
        None => backend.new_slots(slots)?,
    };
    // Kernels for few rows are made for their number, others for ranges of it.
    let counts = (1..=8)
        .chain([12, 16, 24, 32, 48, 64, 96, 128])
        .chain([piece]);
    for count in counts.filter(|count| *count <= piece && *count < longest) {
        state.cut_slot(0, 0).doing(DOING)?;
        read(backend, &vec![0; count], 0, &mut state)?;
    }
    for rows in 1..=slots {
        write(backend, rows, &mut state)?;
    }
    // The same behind more keys.
    let piece = piece.min(longest - 1);
    while state.lens()[0] + piece < longest {
        read(backend, &vec![0; piece], 0, &mut state)?;
        write(backend, slots, &mut state)?;
    }
    Ok(())
}

/// A token of each of the first slots, which is forgotten: a step needs a position, and may be done as often as there are slots.
fn write(backend: &CandleBackend, rows: usize, state: &mut ParallelState) -> Result<()> {
    let ids = Tensor::zeros((rows, 1), DType::U32, backend.device()).doing(DOING)?;
    let lens = state.lens().to_vec();
    let logits = next_logits(backend, &ids, &vec![1; rows], 0, state)?;
    let warm = Draw {
        temperature: 1.0,
        ..Draw::GREEDY
    };
    for with in [Draw::GREEDY, warm] {
        Chosen::begin(&logits, &vec![with; rows])?.wait()?;
    }
    let mut changes = vec![Changes::default(); rows];
    if let Some(first) = changes.first_mut() {
        let change = Change {
            token: 0,
            offset: 0.,
            penalty: 1.,
        };
        first.tokens.push(change);
        first.allowed = Some(vec![1; logits.dim(1).doing(DOING)?]);
    }
    Chosen::begin_changed(&logits, &vec![warm; rows], &changes)?.wait()?;
    if !backend.decoder().slots_rewind() {
        // The slots go on from there.
        return Ok(());
    }
    let mut rows = lens.iter().take(rows).enumerate();
    rows.try_for_each(|(at, len)| state.cut_slot(at, *len))
        .doing(DOING)
}
