//! Silero VAD, which detects speech in windows of 32 milliseconds: the network for 16 kHz of
//! [silero-vad](https://github.com/snakers4/silero-vad). Not in upstream's interface. [`Speech`] has the stretches of speech in a recording,
//! [`Phrases`] those of a recording that is still running.
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

mod detector;
mod phrases;
mod speech;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::rnn::{lstm, LSTMConfig, LSTMState, LSTM, RNN};
use candle_nn::{conv1d, conv1d_no_bias, Conv1d, Conv1dConfig, VarBuilder};

pub use phrases::Phrases;
pub use speech::{Options, Speech};

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

/// A recording that arrives in parts, between two of them.
#[derive(Debug, Clone)]
pub struct Hearing {
    state: LSTMState,
    /// The context of the next window, then samples that do not fill one yet.
    pending: Vec<f32>,
    /// Samples so far.
    heard: usize,
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
        let mut hearing = self.begin()?;
        let mut probabilities = self.hear(&mut hearing, samples)?;
        probabilities.extend(self.end(hearing)?);
        Ok(probabilities)
    }

    /// The state before the first sample of a recording that arrives in parts.
    ///
    /// # Errors
    /// The device fails.
    pub fn begin(&self) -> Result<Hearing> {
        Ok(Hearing {
            state: self.lstm.zero_state(1)?,
            pending: vec![0.; CONTEXT],
            heard: 0,
        })
    }

    /// The probabilities of the windows that `samples` complete, as in [`probabilities`](Self::probabilities).
    ///
    /// # Errors
    /// If a sample is NaN, or the device fails.
    pub fn hear(&self, hearing: &mut Hearing, samples: &[f32]) -> Result<Vec<f32>> {
        if let Some(bad) = samples.iter().position(|sample| !sample.is_finite()) {
            bail!(
                "silero_vad: sample {} is {}; samples are from -1 to 1",
                hearing.heard + bad,
                samples[bad]
            )
        }
        hearing.heard += samples.len();
        hearing.pending.extend(samples);
        let count = (hearing.pending.len() - CONTEXT) / WINDOW;
        let mut probabilities = Vec::with_capacity(count);
        for start in (0..count).step_by(BATCH) {
            let windows = BATCH.min(count - start);
            let features = self.features(&hearing.pending[start * WINDOW..], windows)?;
            let states = self
                .lstm
                .seq_init(&features.unsqueeze(0)?, &hearing.state)?;
            let hidden = self.lstm.states_to_tensor(&states)?;
            let speaks = self.last.forward(&hidden.relu()?.transpose(1, 2)?)?;
            let speaks = candle_nn::ops::sigmoid(&speaks)?;
            probabilities.extend(speaks.flatten_all()?.to_vec1::<f32>()?);
            if let Some(last) = states.into_iter().last() {
                hearing.state = last;
            }
        }
        hearing.pending.drain(..count * WINDOW);
        Ok(probabilities)
    }

    /// The probability of the last window, padded with silence; none if it is empty.
    ///
    /// # Errors
    /// The device fails.
    pub fn end(&self, mut hearing: Hearing) -> Result<Option<f32>> {
        match hearing.pending.len() - CONTEXT {
            0 => Ok(None),
            rest => {
                let silence = vec![0.; WINDOW - rest];
                Ok(self.hear(&mut hearing, &silence)?.pop())
            }
        }
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
