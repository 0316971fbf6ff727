//! From samples to the spectrogram that the models were trained with.

use std::f64::consts::PI;

use crate::models::whisper::audio::{mel_filters_of, Bands, Spectrum};

/// Samples between frames.
pub const HOP_LENGTH: usize = 160;
/// Samples of a transform, and of the window in its middle.
const SIZE: usize = 512;
const WINDOW: usize = 400;
/// Fraction of the previous sample that is subtracted from each.
const PREEMPHASIS: f64 = 0.97;
/// Added to the powers, whose logarithm is taken.
const LEAST_POWER: f64 = 1. / (1 << 24) as f64;
/// Added to the deviations that bands are divided by.
const LEAST_DEVIATION: f64 = 1e-5;

/// The logarithms of the powers in `bands`, each band with mean 0 and deviation 1: (samples / 160, bands) in rows, of samples at 16 kHz from
/// -1 to 1. Silence is before the first sample and behind the last. Two frames, 320 samples, are the fewest that have a deviation.
pub fn features(samples: &[f32], bands: usize) -> Vec<f32> {
    let bins = SIZE / 2 + 1;
    let filters = mel_filters_of(bands, SIZE).into_iter().map(f64::from);
    let filters: Vec<f64> = filters.collect();
    let filters = Bands::new(&filters, bins);
    let margin = (SIZE - WINDOW) / 2;
    let weight = |i: usize| match i.checked_sub(margin).filter(|i| *i < WINDOW) {
        // Both ends are 0.
        Some(i) => 0.5 * (1. - (2. * PI * i as f64 / (WINDOW - 1) as f64).cos()),
        None => 0.,
    };
    let mut spectrum = Spectrum::weighted((0..SIZE).map(weight).collect());
    let emphasised = |at: usize| {
        let before = at.checked_sub(1).map_or(0., |at| f64::from(samples[at]));
        (f64::from(samples[at]) - PREEMPHASIS * before) as f32
    };
    let emphasised: Vec<f32> = (0..samples.len()).map(emphasised).collect();

    let frames = samples.len() / HOP_LENGTH;
    let mut powers = vec![0f64; bins];
    let mut values = Vec::with_capacity(frames * bands);
    for frame in 0..frames {
        let at = |i: usize| {
            let at = (frame * HOP_LENGTH + i).checked_sub(SIZE / 2)?;
            emphasised.get(at).copied().map(f64::from)
        };
        spectrum.powers(at, &mut powers);
        values.extend(filters.sums(&powers).map(|sum| (sum + LEAST_POWER).ln()));
    }
    for band in 0..bands {
        let of_band = || values.iter().skip(band).step_by(bands);
        let mean = of_band().sum::<f64>() / frames as f64;
        let squares: f64 = of_band().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / frames.saturating_sub(1).max(1) as f64).sqrt();
        for value in values.iter_mut().skip(band).step_by(bands) {
            *value = (*value - mean) / (deviation + LEAST_DEVIATION);
        }
    }
    values.into_iter().map(|value| value as f32).collect()
}
