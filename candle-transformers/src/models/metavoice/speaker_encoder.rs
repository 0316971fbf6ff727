//! From a recording to the vector of a voice: [arXiv 1710.10467](https://arxiv.org/abs/1710.10467), as
//! [Resemblyzer](https://github.com/resemble-ai/Resemblyzer) trained it.

use std::f64::consts::PI;

use candle_core::{bail, Device, Module, Result, Tensor};
use candle_nn::{linear, lstm, LSTMConfig, Linear, VarBuilder, LSTM, RNN};
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::encoder::dtype_of_scores;

/// The sizes of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Samples of a second.
    pub sampling_rate: usize,
    /// Frames per part of a recording; parts are encoded separately.
    pub partial_n_frames: usize,
    /// The size of the LSTM's state.
    pub model_hidden_size: usize,
    /// The size of a voice's vector.
    pub model_embedding_size: usize,
    /// Layers of the LSTM.
    pub model_num_layers: usize,
    /// Milliseconds of a frame's window.
    pub mel_window_length: usize,
    /// Milliseconds from frame to frame.
    pub mel_window_step: usize,
    /// Bands of the spectrogram.
    pub mel_n_channels: usize,
}

impl Config {
    /// That of MetaVoice-1B.
    pub fn cfg() -> Self {
        Self {
            sampling_rate: 16_000,
            partial_n_frames: 160,
            model_hidden_size: 256,
            model_embedding_size: 256,
            model_num_layers: 3,
            mel_window_length: 25,
            mel_window_step: 10,
            mel_n_channels: 40,
        }
    }

    /// Samples of this many milliseconds.
    fn samples(&self, milliseconds: usize) -> usize {
        self.sampling_rate.saturating_mul(milliseconds) / 1000
    }
}

/// An LSTM over the frames of a spectrogram, whose last state becomes the vector.
pub struct Model {
    lstms: Vec<LSTM>,
    linear: Linear,
    cfg: Config,
}

impl Model {
    /// Loads `linear` and the LSTM: `lstm.weight_ih_l0` and so on as in the checkpoint of the original, or `lstm.0.weight_ih_l0` with the
    /// layer's number in front as in Candle.
    ///
    /// # Errors
    /// If a size is 0, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: Config, vb: VarBuilder) -> Result<Self> {
        for (name, size) in [
            ("partial_n_frames", cfg.partial_n_frames),
            ("model_hidden_size", cfg.model_hidden_size),
            ("model_embedding_size", cfg.model_embedding_size),
            ("model_num_layers", cfg.model_num_layers),
            ("mel_n_channels", cfg.mel_n_channels),
            (
                "mel_window_length, in samples,",
                cfg.samples(cfg.mel_window_length),
            ),
            (
                "mel_window_step, in samples,",
                cfg.samples(cfg.mel_window_step),
            ),
        ] {
            if size == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        let (hidden, all) = (cfg.model_hidden_size, vb.pp("lstm"));
        let mut lstms = Vec::new();
        for layer_idx in 0..cfg.model_num_layers {
            let config = LSTMConfig {
                layer_idx,
                ..LSTMConfig::default()
            };
            let input = match layer_idx {
                0 => cfg.mel_n_channels,
                _ => hidden,
            };
            let vb = if all.contains_tensor(&format!("weight_ih_l{layer_idx}")) {
                all.clone()
            } else {
                all.pp(layer_idx)
            };
            lstms.push(lstm(input, hidden, config, vb)?);
        }
        Ok(Self {
            lstms,
            linear: linear(hidden, cfg.model_embedding_size, vb.pp("linear"))?,
            cfg,
        })
    }

    /// The vector of the voice in the recording `wav`, samples from -1 to 1: (model_embedding_size), of length 1, on the weights' `device`.
    ///
    /// It is the mean over parts of `partial_n_frames`, `rate` of which begin per second. The last part is left out if less than the
    /// fraction `min_c` of it is in the recording (unless it is the only one); otherwise it is padded with silence. `mel_filters` are the
    /// weights of the bands of the spectrogram of powers, (mel_n_channels, window / 2 + 1) in rows; for the configuration of MetaVoice-1B
    /// [`mel_filters`](crate::models::whisper::audio::mel_filters)`(40)`. The original was run with `rate` 1.3 and `min_c` 0.75.
    ///
    /// # Errors
    /// If there are more or fewer filters, or `rate` is so large or small that parts begin nowhere.
    pub fn embed_utterance(
        &self,
        wav: &[f32],
        mel_filters: &[f32],
        rate: f64,
        min_c: f64,
        device: &Device,
    ) -> Result<Tensor> {
        let starts = self.starts(wav.len(), rate, min_c)?;
        let frames = self.cfg.partial_n_frames;
        let end = starts.last().map_or(0, |last| last + frames);
        let mel = self.mel(wav, mel_filters, end, device)?;
        let parts = starts.iter().map(|start| mel.narrow(0, *start, frames));
        let parts = Tensor::stack(&parts.collect::<Result<Vec<_>>>()?, 0)?;
        let parts = parts.to_dtype(self.linear.weight().dtype())?;
        of_length_one(&self.forward(&parts)?.mean_keepdim(0)?)?.squeeze(0)
    }

    /// The first frames of the parts of a recording.
    fn starts(&self, samples: usize, rate: f64, min_coverage: f64) -> Result<Vec<usize>> {
        let hop = self.cfg.samples(self.cfg.mel_window_step);
        let step = (self.cfg.sampling_rate as f64 / rate / hop as f64).round();
        // Not `step < 1.`, which is false for NaN.
        if !(step >= 1. && step < usize::MAX as f64) {
            bail!("{FAMILY}: {rate} parts per second are {step} frames apart; the distance must be at least 1 (the original uses 1.3 parts)")
        }
        let (step, length) = (step as usize, self.cfg.partial_n_frames);
        let frames = samples / hop + 1;
        let end = frames.saturating_add(step).saturating_sub(length) + 1;
        let mut starts: Vec<usize> = (0..end).step_by(step).collect();
        if let [_, .., last] = *starts {
            let seen = samples.saturating_sub(last * hop) as f64 / (length * hop) as f64;
            if seen < min_coverage {
                starts.pop();
            }
        }
        Ok(starts)
    }

    /// The powers in each band of `frames` frames that are centred at multiples of the step, (frames, mel_n_channels) in f32. There is
    /// silence around the recording.
    fn mel(&self, wav: &[f32], filters: &[f32], frames: usize, device: &Device) -> Result<Tensor> {
        let cfg = &self.cfg;
        let (size, hop) = (
            cfg.samples(cfg.mel_window_length),
            cfg.samples(cfg.mel_window_step),
        );
        let (bands, bins) = (cfg.mel_n_channels, size / 2 + 1);
        if filters.len() != bands * bins {
            bail!(
                "{FAMILY}: {} mel filters; they must be {bands} rows of {bins}",
                filters.len()
            )
        }
        let sample = |i: usize| {
            let at = (i / size * hop + i % size).checked_sub(size / 2);
            at.and_then(|at| wav.get(at)).copied().unwrap_or(0.)
        };
        let windows = Tensor::from_iter((0..frames * size).map(sample), device)?;
        let windows = windows.reshape((frames, size))?;
        // The transform as a product: a recording is some hundreds of frames, which are given to the device at once.
        let wave = |part: fn(f64) -> f64| {
            let turn = 2. * PI / size as f64;
            let value = move |i: usize| {
                let (at, bin) = (i / bins, i % bins);
                let hann = 0.5 * (1. - (turn * at as f64).cos());
                (hann * part(turn * (at * bin % size) as f64)) as f32
            };
            Tensor::from_iter((0..size * bins).map(value), device)?.reshape((size, bins))
        };
        let [re, im] = [
            windows.matmul(&wave(f64::cos)?)?,
            windows.matmul(&wave(f64::sin)?)?,
        ];
        let powers = (re.sqr()? + im.sqr()?)?;
        let filters = Tensor::from_slice(filters, (bands, bins), device)?;
        powers.matmul(&filters.t()?)
    }
}

/// From spectrograms of powers, (batch, frames, mel_n_channels), to vectors of length 1, (batch, model_embedding_size).
impl Module for Model {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let bands = self.cfg.mel_n_channels;
        match *xs.dims() {
            [b, frames, found] if b > 0 && frames > 0 && found == bands => {}
            _ => bail!(
                "{FAMILY}: the spectrograms are {:?}; they must be (batch, frames, {bands})",
                xs.dims()
            ),
        }
        let mut xs = xs.clone();
        for lstm in &self.lstms {
            xs = lstm.states_to_tensor(&lstm.seq(&xs)?)?;
        }
        let last = xs.narrow(1, xs.dim(1)? - 1, 1)?.squeeze(1)?.contiguous()?;
        of_length_one(&self.linear.forward(&last)?.relu()?)
    }
}

/// The rows of (n, size) divided by their lengths. Zeros stay zeros.
fn of_length_one(xs: &Tensor) -> Result<Tensor> {
    // A sum of squares leaves the range of f16.
    let wide = xs.to_dtype(dtype_of_scores(xs.dtype()))?;
    let length = wide.sqr()?.sum_keepdim(1)?.sqrt()?;
    let length = length.clamp(1e-7, f64::from(f32::MAX))?;
    wide.broadcast_div(&length)?.to_dtype(xs.dtype())
}
