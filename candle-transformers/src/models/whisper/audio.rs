//! From samples to log-mel spectrograms.
//!
//! [`pcm_to_mel`] gives Candle's numbers, which differ from those that the models were trained with: its frames start at a multiple of 160
//! samples instead of being centred there, and its powers are twice as large. [`log_mel`] gives the latter; [`mel_filters`] makes the bands
//! of both.

use std::f64::consts::PI;

use candle_core::{bail, Result};
use realfft::{RealFftPlanner, RealToComplex};
use std::sync::Arc;

use super::{Config, CHUNK_LENGTH, HOP_LENGTH, N_FFT, SAMPLE_RATE};

/// Numbers that spectrograms are made of: f32 and f64.
pub trait Float:
    num_traits::Float + num_traits::FloatConst + num_traits::NumAssign + Send + Sync
{
}

impl Float for f32 {}
impl Float for f64 {}

/// Minimum argument of the logarithm.
const LEAST_POWER: f64 = 1e-10;
/// Dynamic range: bands are at most this many powers of ten below the loudest one of a recording.
const RANGE: f64 = 8.;

/// The powers of a window of samples at the frequencies from 0 to that of sampling.
pub(in crate::models) struct Spectrum {
    transform: Arc<dyn RealToComplex<f64>>,
    /// The factor of samples.
    weights: Vec<f64>,
    window: Vec<f64>,
    halves: Vec<realfft::num_complex::Complex<f64>>,
    scratch: Vec<realfft::num_complex::Complex<f64>>,
}

impl Spectrum {
    fn new(size: usize) -> Self {
        let hann = |i| 0.5 * (1. - (2. * PI * i as f64 / size as f64).cos());
        Self::weighted((0..size).map(hann).collect())
    }

    /// A transform of windows with the length of `weights`, by which samples are multiplied.
    pub(in crate::models) fn weighted(weights: Vec<f64>) -> Self {
        let transform = RealFftPlanner::new().plan_fft_forward(weights.len());
        Self {
            weights,
            window: transform.make_input_vec(),
            halves: transform.make_output_vec(),
            scratch: transform.make_scratch_vec(),
            transform,
        }
    }

    /// The powers of the `size / 2 + 1` frequencies up to half of sampling's. Samples that `at` has none for are 0.
    pub(in crate::models) fn powers(
        &mut self,
        at: impl Fn(usize) -> Option<f64>,
        powers: &mut [f64],
    ) {
        for (i, (sample, weight)) in self.window.iter_mut().zip(&self.weights).enumerate() {
            *sample = at(i).map_or(0., |sample| sample * weight);
        }
        // The lengths are those that the plan gave, which is all that it checks.
        let done = self.transform.process_with_scratch(
            &mut self.window,
            &mut self.halves,
            &mut self.scratch,
        );
        debug_assert!(done.is_ok());
        for (power, half) in powers.iter_mut().zip(&self.halves) {
            *power = half.norm_sqr();
        }
    }
}

/// Weights of bands, without the zeros around each.
pub(in crate::models) struct Bands<'a> {
    weights: Vec<(usize, &'a [f64])>,
}

impl<'a> Bands<'a> {
    pub(in crate::models) fn new(filters: &'a [f64], bins: usize) -> Self {
        let band = |weights: &'a [f64]| {
            let first = weights.iter().position(|w| *w != 0.).unwrap_or(0);
            let end = weights
                .iter()
                .rposition(|w| *w != 0.)
                .map_or(first, |i| i + 1);
            (first, &weights[first..end])
        };
        Self {
            weights: filters.chunks_exact(bins).map(band).collect(),
        }
    }

    /// log10 of each band's power.
    fn logs<'b>(&'b self, powers: &'b [f64]) -> impl Iterator<Item = f64> + 'b {
        self.sums(powers).map(|sum| sum.max(LEAST_POWER).log10())
    }

    /// Each band's power.
    pub(in crate::models) fn sums<'b>(
        &'b self,
        powers: &'b [f64],
    ) -> impl Iterator<Item = f64> + 'b {
        self.weights.iter().map(|(first, weights)| {
            let pairs = weights.iter().zip(&powers[*first..]);
            pairs.map(|(w, p)| w * p).sum()
        })
    }
}

/// Clamps logarithms to [`RANGE`] below the largest, and brings them to about -1 to 1.
fn normalise(mel: &mut [f64]) {
    let least = mel.iter().copied().fold(f64::NEG_INFINITY, f64::max) - RANGE;
    for value in mel {
        *value = value.max(least) / 4. + 1.;
    }
}

/// Candle's spectrogram: (n_mel, frames) in rows, of the samples followed by silence.
///
/// `samples` are from -1 to 1. `filters` are (n_mel, fft_size / 2 + 1) in rows, or with `speed_up` (n_mel, fft_size / 4 + 1). Frames
/// are `fft_step` apart: those that the samples fill, rounded up to a multiple of half a chunk's 3000, and half a chunk more. `speed_up` adds
/// neighbouring frequencies, as if the recording were played at twice its speed.
///
/// # Panics
/// If there are fewer filters than that, or `fft_size` or `fft_step` is 0.
pub fn log_mel_spectrogram_<T: Float>(
    samples: &[T],
    filters: &[T],
    fft_size: usize,
    fft_step: usize,
    n_mel: usize,
    speed_up: bool,
) -> Vec<T> {
    let half = fft_size / 2;
    let bins = if speed_up { fft_size / 4 + 1 } else { half + 1 };
    let filters: Vec<f64> = as_f64(&filters[..n_mel * bins]);
    let bands = Bands::new(&filters, bins);

    let pad = 100 * CHUNK_LENGTH / 2;
    let frames = (samples.len() / fft_step).next_multiple_of(pad) + pad;
    let mut mel = vec![0f64; n_mel * frames];
    let mut spectrum = Spectrum::new(fft_size);
    let mut powers = vec![0f64; half + 1];
    for frame in 0..frames {
        let at = |i: usize| samples.get(frame * fft_step + i).and_then(T::to_f64);
        spectrum.powers(at, &mut powers);
        // Each frequency but the first and the last is there twice: as itself, and mirrored above half of sampling's.
        let mirrored = half.max(1);
        for power in &mut powers[1..mirrored] {
            *power *= 2.;
        }
        if speed_up {
            powers = slowed(&powers, bins, fft_size);
        }
        for (band, value) in bands.logs(&powers).enumerate() {
            mel[band * frames + frame] = value;
        }
        powers.resize(half + 1, 0.);
    }
    normalise(&mut mel);
    mel.iter().filter_map(|value| T::from(*value)).collect()
}

/// Means of neighbours among `powers`, and of the mirrored single ones above them where the last has no neighbour.
fn slowed(powers: &[f64], bins: usize, fft_size: usize) -> Vec<f64> {
    let at = |k: usize| match powers.get(k) {
        Some(power) => *power,
        // The mirrored frequency by itself: half of what its twin holds.
        None => powers
            .get(fft_size.saturating_sub(k))
            .map_or(0., |p| p / 2.),
    };
    (0..bins)
        .map(|j| 0.5 * (at(2 * j) + at(2 * j + 1)))
        .collect()
}

/// [`log_mel_spectrogram_`] with Whisper's windows: (config.num_mel_bins, frames) in rows, of samples at 16 kHz.
///
/// # Panics
/// If there are fewer filters than `num_mel_bins * 201`.
pub fn pcm_to_mel<T: Float>(cfg: &Config, samples: &[T], filters: &[T]) -> Vec<T> {
    log_mel_spectrogram_(samples, filters, N_FFT, HOP_LENGTH, cfg.num_mel_bins, false)
}

/// The spectrogram that the models were trained with: (bands, samples / 160) in rows, of samples at 16 kHz from -1 to 1.
///
/// Frames are centred at multiples of 160 samples; the recording is mirrored at its ends. `filters` are (bands, 201) in rows, as
/// [`mel_filters`] makes them.
///
/// # Errors
/// `filters` are not rows of 201.
pub fn log_mel(samples: &[f32], filters: &[f32]) -> Result<Vec<f32>> {
    let bins = N_FFT / 2 + 1;
    if filters.is_empty() || !filters.len().is_multiple_of(bins) {
        bail!(
            "whisper: {} mel filters; they must be rows of {bins}",
            filters.len()
        )
    }
    let filters = as_f64(filters);
    let bands = Bands::new(&filters, bins);
    let frames = samples.len() / HOP_LENGTH;
    let mut mel = vec![0f64; filters.len() / bins * frames];
    let mut spectrum = Spectrum::new(N_FFT);
    let mut powers = vec![0f64; bins];
    for frame in 0..frames {
        let at = |i: usize| {
            let at = (frame * HOP_LENGTH + i).abs_diff(N_FFT / 2);
            // Before the first sample the distance is the mirrored index; after the last one it is subtracted from the end.
            let at = match at.checked_sub(samples.len()) {
                Some(over) => samples.len().checked_sub(over + 2)?,
                None => at,
            };
            samples.get(at).copied().map(f64::from)
        };
        spectrum.powers(at, &mut powers);
        for (band, value) in bands.logs(&powers).enumerate() {
            mel[band * frames + frame] = value;
        }
    }
    normalise(&mut mel);
    Ok(mel.iter().map(|value| *value as f32).collect())
}

fn as_f64<T: Float>(numbers: &[T]) -> Vec<f64> {
    let numbers = numbers.iter().map(|n| n.to_f64().unwrap_or(f64::NAN));
    numbers.collect()
}

/// The bands of the models, (bands, 201) in rows: triangles of equal area whose corners are equally far apart on Slaney's mel scale, from 0 to
/// 8 kHz.
///
/// The scale is linear below 1 kHz, 200 / 3 Hz a mel, and logarithmic above, 27 mel from 1 to 6.4 kHz.
pub fn mel_filters(bands: usize) -> Vec<f32> {
    mel_filters_of(bands, N_FFT)
}

/// As [`mel_filters`], for transforms of `size` samples: (bands, size / 2 + 1) in rows.
pub(in crate::models) fn mel_filters_of(bands: usize, size: usize) -> Vec<f32> {
    const LINEAR: f64 = 200. / 3.;
    const BREAK: f64 = 1000.;
    let log_step = 6.4f64.ln() / 27.;
    let hertz = |mel: f64| {
        if mel < BREAK / LINEAR {
            LINEAR * mel
        } else {
            BREAK * (log_step * (mel - BREAK / LINEAR)).exp()
        }
    };
    let highest = SAMPLE_RATE as f64 / 2.;
    let highest = BREAK / LINEAR + (highest / BREAK).ln() / log_step;
    let corner = |i: usize| hertz(highest * i as f64 / (bands + 1) as f64);
    let bins = size / 2 + 1;
    let mut filters = Vec::with_capacity(bands * bins);
    for band in 0..bands {
        let [low, peak, high] = [corner(band), corner(band + 1), corner(band + 2)];
        let height = 2. / (high - low);
        filters.extend((0..bins).map(|bin| {
            let hertz = (bin * SAMPLE_RATE) as f64 / size as f64;
            let rising = (hertz - low) / (peak - low);
            let falling = (high - hertz) / (high - peak);
            (height * rising.min(falling).max(0.)) as f32
        }));
    }
    filters
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum that defines the transform.
    #[test]
    fn powers_are_those_of_the_sum() {
        for size in [1usize, 2, 5, 8, 20, 25] {
            let samples: Vec<f64> = (0..size).map(|i| (i as f64 * 1.3).sin()).collect();
            let mut powers = vec![0.; size / 2 + 1];
            let mut spectrum = Spectrum::new(size);
            spectrum.powers(|i| samples.get(i).copied(), &mut powers);
            for (k, power) in powers.iter().enumerate() {
                let (mut re, mut im) = (0., 0.);
                for (i, sample) in samples.iter().enumerate() {
                    let n = size as f64;
                    let windowed = sample * 0.5 * (1. - (2. * PI * i as f64 / n).cos());
                    let angle = 2. * PI * (k * i) as f64 / n;
                    re += windowed * angle.cos();
                    im -= windowed * angle.sin();
                }
                assert!((power - (re * re + im * im)).abs() < 1e-9, "{size} {k}");
            }
        }
    }

    /// Librosa's numbers for 80 bands, to the digits that it prints: the first band's, and the height of the last.
    #[test]
    fn bands_are_slaneys() {
        let filters = mel_filters(80);
        assert_eq!(filters.len(), 80 * 201);
        let first: Vec<f32> = filters[..4].to_vec();
        assert!((first[1] - 0.024_862_6).abs() < 1e-6, "{first:?}");
        assert!(
            first[2] < 0.002 && first[0] == 0. && first[3] == 0.,
            "{first:?}"
        );
        // Triangles of area 1 in Hz, where they are wide enough for bins of 40 Hz to tell.
        for band in filters.chunks_exact(201).skip(30) {
            let area: f32 = band.iter().sum::<f32>() * 40.;
            assert!((area - 1.).abs() < 0.1, "{area}");
        }
    }

    /// A tone is loudest in the band around it, in each frame but those of the silence around it.
    #[test]
    fn a_tone_is_in_its_band() -> Result<()> {
        let filters = mel_filters(80);
        let tone = |i: usize| (2. * PI * 1000. * i as f64 / 16_000.).sin() as f32;
        let samples: Vec<f32> = (0..16_000).map(tone).collect();
        let mel = log_mel(&samples, &filters)?;
        assert_eq!(mel.len(), 80 * 100);
        // The band with the largest weight at 1000 Hz, which is bin 25.
        let weight = |band: &usize| filters[band * 201 + 25];
        let loudest =
            |value: &dyn Fn(&usize) -> f32| (0..80).max_by(|a, b| value(a).total_cmp(&value(b)));
        let expected = loudest(&weight);
        for frame in 2..98 {
            assert_eq!(
                loudest(&|band| mel[band * 100 + frame]),
                expected,
                "{frame}"
            );
        }
        Ok(())
    }

    #[test]
    fn short_recordings() -> Result<()> {
        let filters = mel_filters(80);
        assert!(log_mel(&[], &filters)?.is_empty());
        assert!(log_mel(&[0.5; 159], &filters)?.is_empty());
        let mel = log_mel(&[0.5; 160], &filters)?;
        assert!(mel.len() == 80 && mel.iter().all(|m| m.is_finite()));
        assert!(log_mel(&[0.5; 160], &filters[1..]).is_err());
        assert_eq!(
            log_mel_spectrogram_(&[0f64; 0], &[0.; 1000], 100, 10, 10, false).len(),
            15_000
        );
        Ok(())
    }
}
