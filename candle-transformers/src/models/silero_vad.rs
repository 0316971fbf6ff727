//! Silero VAD, which detects speech in windows of 32 milliseconds: the network for 16 kHz of
//! [silero-vad](https://github.com/snakers4/silero-vad). Not in upstream's interface.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::silero_vad::{Options, SileroVad, Speech};
//! # fn main() -> candle_core::Result<()> {
//! // Of the Python package silero-vad. The ONNX files in the same folder have other weights.
//! let file = "silero_vad/data/silero_vad_16k.safetensors";
//! // SAFETY: nothing changes the file while it is mapped.
//! let vb = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu)? };
//! let vad = SileroVad::load(vb)?;
//! // Samples at 16 kHz, from -1 to 1.
//! let samples = vec![0f32; 16_000];
//! let speech = Speech::of(&vad.probabilities(&samples)?, samples.len(), &Options::default());
//! for range in &speech.ranges {
//!     println!("samples {range:?}");
//! }
//! # Ok(())
//! # }
//! ```

use std::ops::Range;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::rnn::{lstm, LSTMConfig, LSTM, RNN};
use candle_nn::{conv1d, conv1d_no_bias, Conv1d, Conv1dConfig, VarBuilder};

/// Samples in a second.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples that have a probability together.
pub const WINDOW: usize = 512;
/// Samples before a window that are heard with it.
const CONTEXT: usize = 64;
/// Samples that are mirrored at a window's end.
const MIRRORED: usize = 64;
const FFT: usize = 256;
const FREQUENCIES: usize = FFT / 2 + 1;
const HIDDEN: usize = 128;
/// Windows whose convolutions run at once.
const BATCH: usize = 1024;

/// The network.
#[derive(Debug, Clone)]
pub struct SileroVad {
    /// The Fourier transform: real parts, then imaginary ones.
    stft: Conv1d,
    convs: [Conv1d; 4],
    lstm: LSTM,
    last: Conv1d,
}

impl SileroVad {
    /// Loads `stft_conv`, `conv1` to `conv4`, `lstm_cell` and `final_conv`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let by = |stride| Conv1dConfig {
            stride,
            ..Conv1dConfig::default()
        };
        let conv = |name, from, to, stride| {
            let config = Conv1dConfig {
                padding: 1,
                ..by(stride)
            };
            conv1d(from, to, 3, config, vb.pp(name))
        };
        // The names of a cell's weights have no layer number.
        let cell = vb.pp("lstm_cell");
        let cell = cell.rename_f(|name| name.trim_end_matches("_l0").to_string());
        Ok(Self {
            stft: conv1d_no_bias(1, 2 * FREQUENCIES, FFT, by(FFT / 2), vb.pp("stft_conv"))?,
            convs: [
                conv("conv1", FREQUENCIES, HIDDEN, 1)?,
                conv("conv2", HIDDEN, 64, 2)?,
                conv("conv3", 64, 64, 2)?,
                conv("conv4", 64, HIDDEN, 1)?,
            ],
            lstm: lstm(HIDDEN, HIDDEN, LSTMConfig::default(), cell)?,
            last: conv1d(HIDDEN, 1, 1, by(1), vb.pp("final_conv"))?,
        })
    }

    /// The probability of speech, from 0 to 1, for each [`WINDOW`] of `samples`; the last one is padded with silence.
    ///
    /// # Errors
    /// If a sample is NaN, or the device fails.
    pub fn probabilities(&self, samples: &[f32]) -> Result<Vec<f32>> {
        if let Some(bad) = samples.iter().position(|sample| !sample.is_finite()) {
            bail!(
                "silero_vad: sample {bad} is {}; samples are from -1 to 1",
                samples[bad]
            )
        }
        let count = samples.len().div_ceil(WINDOW);
        let mut padded = vec![0.; CONTEXT];
        padded.extend(samples);
        padded.resize(CONTEXT + count * WINDOW, 0.);
        let mut state = self.lstm.zero_state(1)?;
        let mut probabilities = Vec::with_capacity(count);
        for start in (0..count).step_by(BATCH) {
            let windows = BATCH.min(count - start);
            let features = self.features(&padded[start * WINDOW..], windows)?;
            let states = self.lstm.seq_init(&features.unsqueeze(0)?, &state)?;
            let hidden = self.lstm.states_to_tensor(&states)?;
            let speaks = self.last.forward(&hidden.relu()?.transpose(1, 2)?)?;
            let speaks = candle_nn::ops::sigmoid(&speaks)?;
            probabilities.extend(speaks.flatten_all()?.to_vec1::<f32>()?);
            if let Some(last) = states.into_iter().last() {
                state = last;
            }
        }
        Ok(probabilities)
    }

    /// The input of the recurrent layer for each window: (windows, 128). `padded` begins with the context of the first.
    fn features(&self, padded: &[f32], windows: usize) -> Result<Tensor> {
        let whole = CONTEXT + WINDOW;
        let mut heard: Vec<f32> = Vec::with_capacity(windows * (whole + MIRRORED));
        for window in 0..windows {
            let window = &padded[window * WINDOW..][..whole];
            heard.extend(window);
            // The last sample is the mirror.
            heard.extend(window[whole - 1 - MIRRORED..whole - 1].iter().rev());
        }
        let device = self.stft.weight().device();
        let heard = Tensor::from_vec(heard, (windows, 1, whole + MIRRORED), device)?;
        let parts = self.stft.forward(&heard)?.sqr()?;
        let real = parts.narrow(1, 0, FREQUENCIES)?;
        let mut xs = (real + parts.narrow(1, FREQUENCIES, FREQUENCIES)?)?.sqrt()?;
        for conv in &self.convs {
            xs = conv.forward(&xs)?.relu()?;
        }
        xs.squeeze(2)
    }
}

/// When a sequence of probabilities is speech.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Speech begins where the probability is at least this.
    pub threshold: f32,
    /// It ends where the probability stays below this.
    pub end_threshold: f32,
    /// Minimum duration of speech, in seconds; anything shorter is noise.
    pub min_speech: f64,
    /// A shorter pause, in seconds, ends nothing.
    pub min_silence: f64,
    /// Seconds kept before and after speech.
    pub padding: f64,
}

/// For a transcript: a pause between sentences ends nothing, and no sound of a word is lost.
impl Default for Options {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            end_threshold: 0.35,
            min_speech: 0.25,
            min_silence: 2.,
            padding: 0.4,
        }
    }
}

/// The stretches of speech in a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speech {
    /// The samples, in order; ranges do not touch.
    pub ranges: Vec<Range<usize>>,
}

impl Speech {
    /// From the probabilities of the windows of a recording of `samples`.
    pub fn of(probabilities: &[f32], samples: usize, options: &Options) -> Self {
        let in_samples = |seconds: f64| (seconds.max(0.) * SAMPLE_RATE as f64) as usize;
        let (pause, shortest) = (
            in_samples(options.min_silence),
            in_samples(options.min_speech),
        );
        let mut found: Vec<Range<usize>> = Vec::new();
        // The start of the current speech, and of the pause in it.
        let (mut begun, mut paused) = (None, None);
        let mut ends = |range: Range<usize>| {
            if range.len() >= shortest {
                found.push(range);
            }
        };
        for (i, probability) in probabilities.iter().enumerate() {
            let at = (i * WINDOW).min(samples);
            match begun {
                None if *probability >= options.threshold => (begun, paused) = (Some(at), None),
                None => {}
                Some(_) if *probability >= options.threshold => paused = None,
                Some(start) if *probability < options.end_threshold => {
                    let silent = *paused.get_or_insert(at);
                    if at + WINDOW - silent >= pause {
                        ends(start..silent);
                        begun = None;
                    }
                }
                Some(_) => {}
            }
        }
        if let Some(start) = begun {
            ends(start..paused.unwrap_or(samples));
        }
        let padding = in_samples(options.padding);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in found {
            let wide = range.start.saturating_sub(padding)..(range.end + padding).min(samples);
            match ranges.last_mut() {
                Some(last) if last.end >= wide.start => last.end = wide.end,
                _ => ranges.push(wide),
            }
        }
        Self { ranges }
    }

    /// Those samples alone, one range after the other.
    pub fn cut(&self, samples: &[f32]) -> Vec<f32> {
        let parts = self
            .ranges
            .iter()
            .filter_map(|range| samples.get(range.clone()));
        parts.flatten().copied().collect()
    }

    /// The time in the recording of a beginning, given in seconds of the result of [`cut`](Self::cut).
    pub fn start(&self, seconds: f64) -> f64 {
        self.place(seconds, |left, len| left < len)
    }

    /// The time in the recording of an end, given in seconds of the result of [`cut`](Self::cut): where two ranges meet, in the first.
    pub fn end(&self, seconds: f64) -> f64 {
        self.place(seconds, |left, len| left <= len)
    }

    fn place(&self, seconds: f64, is_here: fn(f64, f64) -> bool) -> f64 {
        let rate = SAMPLE_RATE as f64;
        let mut left = seconds * rate;
        for range in &self.ranges {
            if is_here(left, range.len() as f64) {
                return (range.start as f64 + left) / rate;
            }
            left -= range.len() as f64;
        }
        self.ranges
            .last()
            .map_or(seconds, |last| last.end as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: usize = SAMPLE_RATE;

    /// The stretches of speech if these windows, from the first to before the second, are loud.
    fn heard(loud: &[(usize, usize)], windows: usize, options: &Options) -> Vec<(usize, usize)> {
        let is_loud = |i: usize| loud.iter().any(|(start, end)| (*start..*end).contains(&i));
        let probability = |i: usize| f32::from(u8::from(is_loud(i)));
        let probabilities: Vec<f32> = (0..windows).map(probability).collect();
        let samples = (windows * WINDOW).saturating_sub(100);
        let speech = Speech::of(&probabilities, samples, options);
        let ranges = speech.ranges.into_iter();
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn pauses_noises_and_what_is_kept_around() {
        let options = Options {
            min_silence: 0.32,
            padding: 0.,
            ..Options::default()
        };
        let windows = |start: usize, end: usize| (start * WINDOW, end * WINDOW);
        // Ten windows are a pause, nine are not; eight are speech, seven a noise.
        assert_eq!(heard(&[(5, 13)], 40, &options), [windows(5, 13)]);
        assert!(heard(&[(5, 12)], 40, &options).is_empty());
        let close = heard(&[(5, 13), (22, 30)], 60, &options);
        assert_eq!(close, [windows(5, 30)]);
        let two = heard(&[(5, 13), (23, 31)], 60, &options);
        assert_eq!(two, [windows(5, 13), windows(23, 31)]);
        // To the end, which is in the last window.
        let last = heard(&[(20, 30)], 30, &options);
        assert_eq!(last, [(20 * WINDOW, 30 * WINDOW - 100)]);
        assert!(heard(&[], 30, &options).is_empty());
        assert!(heard(&[], 0, &Options::default()).is_empty());
        let wide = Options {
            padding: 0.2,
            ..options
        };
        let whole = (0, 31 * WINDOW + 3200);
        assert_eq!(heard(&[(5, 13), (23, 31)], 60, &wide), [whole]);
    }

    #[test]
    fn between_the_thresholds_nothing_changes() {
        let options = Options {
            min_silence: 0.,
            min_speech: 0.,
            padding: 0.,
            ..Options::default()
        };
        let probabilities = [0.4, 0.6, 0.4, 0.3, 0.4, 0.5];
        let found = Speech::of(&probabilities, 6 * WINDOW, &options).ranges;
        assert_eq!(found, [WINDOW..3 * WINDOW, 5 * WINDOW..6 * WINDOW]);
    }

    #[test]
    fn times_of_what_was_cut_are_those_of_the_recording() {
        let speech = Speech {
            ranges: vec![SECOND..3 * SECOND, 10 * SECOND..11 * SECOND],
        };
        let samples: Vec<f32> = (0..12 * SECOND).map(|i| i as f32).collect();
        let cut = speech.cut(&samples);
        assert_eq!(
            (cut.len(), cut[0], cut[2 * SECOND]),
            (3 * SECOND, 16_000., 160_000.)
        );
        assert_eq!((speech.start(0.), speech.end(0.5)), (1., 1.5));
        assert_eq!((speech.start(2.), speech.end(2.)), (10., 3.));
        assert_eq!(
            (speech.start(2.5), speech.end(3.), speech.end(9.)),
            (10.5, 11., 11.)
        );
    }
}
