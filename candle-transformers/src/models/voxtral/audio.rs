//! From samples to the encoder's input.

use candle_core::{bail, Device, Error, Tensor};

use super::{FAMILY, HOP_LENGTH, N_FFT, N_MELS};
use crate::models::whisper::audio::{log_mel_spectrogram_, Float};
use crate::models::whisper::N_FRAMES;

/// The spectrogram of samples at 16 kHz: (128, frames) in rows. Silence fills it up to a multiple of 15 seconds, and 15 more.
///
/// # Panics
/// If there are fewer filters than `128 * 201`.
pub fn pcm_to_mel<T: Float>(samples: &[T], filters: &[T]) -> Vec<T> {
    log_mel_spectrogram_(samples, filters, N_FFT, HOP_LENGTH, N_MELS, false)
}

/// The spectrogram of samples at 16 kHz from -1 to 1, in chunks of 30 seconds: (chunks, 128, 3000) in f32. The last chunk is padded with
/// zeros. `filters` are (128, 201) in rows, as [`mel_filters`](crate::models::whisper::audio::mel_filters) makes them.
///
/// # Errors
/// If there are fewer filters, or the device refuses the tensor.
pub fn extract_features(audio: &[f32], filters: &[f32], device: &Device) -> Result<Tensor, Error> {
    let needed = N_MELS * (N_FFT / 2 + 1);
    if filters.len() < needed {
        bail!(
            "{FAMILY}: {} mel filters; expected {needed}, 201 for each of {N_MELS} bands",
            filters.len()
        )
    }
    let mel = pcm_to_mel(audio, filters);
    let frames = mel.len() / N_MELS;
    let pieces = frames.div_ceil(N_FRAMES);
    // On the host, so that the device gets contiguous chunks.
    let mut all = vec![0f32; pieces * N_MELS * N_FRAMES];
    for (band, row) in mel.chunks_exact(frames.max(1)).enumerate() {
        for (piece, part) in row.chunks(N_FRAMES).enumerate() {
            let start = (piece * N_MELS + band) * N_FRAMES;
            all[start..start + part.len()].copy_from_slice(part);
        }
    }
    Tensor::from_vec(all, (pieces, N_MELS, N_FRAMES), device)
}
