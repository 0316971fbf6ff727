//! The encoder of sound: Whisper's, with learned positions and exact GELUs.

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::{conv1d, layer_norm, Activation, Conv1d, Conv1dConfig, LayerNorm, VarBuilder};

use super::FAMILY;
use crate::blocks::encoder::{
    EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec, NormPlace, Seen,
};

/// Norm epsilon.
const NORM_EPS: f64 = 1e-5;
const KERNEL: usize = 3;
/// The bound to which Transformers clamps f16 between layers: 1000 below its largest number.
const LIMIT_OF_F16: f64 = 64504.;

/// The numbers of the encoder.
#[derive(Debug, Clone)]
pub struct VoxtralEncoderConfig {
    /// Not used by the encoder.
    pub vocab_size: usize,
    /// Size of the vectors between the layers.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks, and the numbers that become a token: a multiple of `hidden_size`.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Not used: the number of key heads is that of query heads.
    pub num_key_value_heads: usize,
    /// Not used: the head dimension is `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Not used: embeddings are not scaled.
    pub scale_embedding: bool,
    /// Activation of the feed-forward blocks: `gelu` or `relu`.
    pub activation_function: String,
    /// Bands of the spectrogram.
    pub num_mel_bins: usize,
    /// The most vectors, of two frames each.
    pub max_source_positions: usize,
    /// Used in training only.
    pub initializer_range: f64,
    /// Not used: nothing is dropped.
    pub attention_dropout: f64,
    /// Not used: nothing is dropped.
    pub dropout: f64,
    /// Not used: no layer is dropped.
    pub layerdrop: f64,
    /// Not used: nothing is dropped.
    pub activation_dropout: f64,
}

/// That of [mistralai/Voxtral-Mini-3B-2507](https://huggingface.co/mistralai/Voxtral-Mini-3B-2507).
impl Default for VoxtralEncoderConfig {
    fn default() -> Self {
        Self {
            vocab_size: 51866,
            hidden_size: 1280,
            intermediate_size: 5120,
            num_hidden_layers: 32,
            num_attention_heads: 20,
            num_key_value_heads: 20,
            head_dim: 64,
            scale_embedding: false,
            activation_function: "gelu".to_string(),
            num_mel_bins: 128,
            max_source_positions: 1500,
            initializer_range: 0.02,
            attention_dropout: 0.,
            dropout: 0.,
            layerdrop: 0.,
            activation_dropout: 0.,
        }
    }
}

impl VoxtralEncoderConfig {
    /// With `dropout`, `layerdrop` and `activation_dropout` of 0, as in Whisper.
    pub fn with_whisper_compatibility(self) -> Self {
        Self {
            dropout: 0.,
            layerdrop: 0.,
            activation_dropout: 0.,
            ..self
        }
    }
}

/// An activation by its name in a `config.json`.
pub(super) fn activation(field: &str, name: &str) -> Result<Activation> {
    match name {
        "gelu" => Ok(Activation::Gelu),
        "relu" => Ok(Activation::Relu),
        _ => bail!(
            "{FAMILY} config: {field} {name:?} is not supported; expected \"gelu\" or \"relu\""
        ),
    }
}

/// Whisper's layer, whose keys have no bias.
fn layer(cfg: &VoxtralEncoderConfig) -> Result<EncoderSpec> {
    let spec = EncoderSpec::bert(
        FAMILY,
        ("hidden_size", cfg.hidden_size),
        ("num_attention_heads", cfg.num_attention_heads),
        cfg.intermediate_size,
        activation("activation_function", &cfg.activation_function)?,
        NORM_EPS,
    )?;
    Ok(EncoderSpec {
        bias: EncoderBiases {
            keys: false,
            ..spec.bias
        },
        place: NormPlace::Before,
        names: EncoderNames::BART,
        ..spec
    })
}

/// From a spectrogram to vectors of the sound.
#[derive(Debug, Clone)]
pub struct VoxtralEncoder {
    convs: [Conv1d; 2],
    /// (max_source_positions, hidden_size).
    positions: Tensor,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    inner: usize,
}

impl VoxtralEncoder {
    /// Loads `conv1`, `conv2`, `embed_positions`, `layers.N` and `layer_norm`.
    ///
    /// # Errors
    /// If the heads do not divide the size, the activation is not known, or a weight is missing or has another shape.
    pub fn new(cfg: &VoxtralEncoderConfig, vb: VarBuilder) -> Result<Self> {
        let size = cfg.hidden_size;
        let conv = |inputs, stride, name| {
            let config = Conv1dConfig {
                padding: KERNEL / 2,
                stride,
                ..Default::default()
            };
            conv1d(inputs, size, KERNEL, config, vb.pp(name))
        };
        let layers = layer(cfg)?.load_dense(cfg.num_hidden_layers, vb.clone(), "layers")?;
        let positions = (cfg.max_source_positions, size);
        Ok(Self {
            layers,
            convs: [conv(cfg.num_mel_bins, 1, "conv1")?, conv(size, 2, "conv2")?],
            positions: vb.pp("embed_positions").get(positions, "weight")?,
            norm: layer_norm(size, NORM_EPS, vb.pp("layer_norm"))?,
            inner: cfg.intermediate_size,
        })
    }

    /// From a spectrogram, (batch, num_mel_bins, frames) of any dtype, to (batch, ceil(frames / 2), hidden_size).
    ///
    /// # Errors
    /// If there is no frame, or more than twice `max_source_positions`, or another number of bands.
    pub fn forward(&self, input_features: &Tensor) -> Result<Tensor> {
        let expected = self.convs[0].weight().dim(1)?;
        let limit = self.positions.dim(0)?;
        let fits = match *input_features.dims() {
            [_, bands, frames] => bands == expected && frames > 0 && frames.div_ceil(2) <= limit,
            _ => false,
        };
        if !fits {
            bail!(
                "{FAMILY}: a spectrogram of {:?}; it must be (batch, {expected}, frames) with 1 to {} frames; split longer ones",
                input_features.dims(),
                2 * limit
            )
        }
        let mut xs = input_features.to_dtype(self.positions.dtype())?;
        for conv in &self.convs {
            xs = conv.forward(&xs)?.gelu_erf()?;
        }
        let xs = xs.transpose(1, 2)?;
        let positions = self.positions.narrow(0, 0, xs.dim(1)?)?;
        let mut xs = xs.broadcast_add(&positions)?;
        for layer in &self.layers {
            xs = layer.forward(xs, &Seen::default())?;
            if xs.dtype() == DType::F16 {
                xs = xs.clamp(-LIMIT_OF_F16, LIMIT_OF_F16)?;
            }
        }
        self.norm.forward(&xs)
    }

    /// As [`forward`](Self::forward): with dropouts of 0, training is the same.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with_training(&self, input_features: &Tensor, training: bool) -> Result<Tensor> {
        let _ = training;
        self.forward(input_features)
    }

    /// Inner size of the feed-forward blocks.
    pub fn get_intermediate_size(&self) -> usize {
        self.inner
    }

    /// As [`forward`](Self::forward), for a spectrogram of any length, in chunks of `chunk_size` frames that begin `overlap` frames before
    /// the end of the last one. Overlapping vectors are averaged.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), of chunks; if `overlap` is not less than `chunk_size`.
    pub fn process_long_audio(
        &self,
        input_features: &Tensor,
        chunk_size: usize,
        overlap: usize,
    ) -> Result<Tensor> {
        let frames = input_features.dims3()?.2;
        if frames <= chunk_size {
            return self.forward(input_features);
        }
        if overlap >= chunk_size {
            bail!("{FAMILY}: chunks of {chunk_size} frames cannot overlap by {overlap}; the overlap must be smaller")
        }
        let mut all: Option<Tensor> = None;
        for start in (0..frames).step_by(chunk_size - overlap) {
            let len = chunk_size.min(frames - start);
            let piece = self.forward(&input_features.narrow(D::Minus1, start, len)?)?;
            all = Some(match all {
                // Two frames are a vector.
                Some(before) => overlapped(&before, &piece, overlap / 2)?,
                None => piece,
            });
        }
        match all {
            Some(all) => Ok(all),
            None => bail!("{FAMILY}: a spectrogram without frames"),
        }
    }
}

/// Concatenates `first` and `second`, (batch, vectors, size), whose last and first `overlap` vectors cover the same time and are averaged.
fn overlapped(first: &Tensor, second: &Tensor, overlap: usize) -> Result<Tensor> {
    let (len, new) = (first.dim(1)?, second.dim(1)?);
    // A last chunk may end before the overlap does.
    let (start, both) = (len.saturating_sub(overlap), overlap.min(new).min(len));
    if both == 0 {
        return Tensor::cat(&[first, second], 1);
    }
    let mean = (first.narrow(1, start, both)? + second.narrow(1, 0, both)?)?;
    let parts = [
        first.narrow(1, 0, start)?,
        (mean * 0.5)?,
        first.narrow(1, start + both, len - start - both)?,
        second.narrow(1, both, new - both)?,
    ];
    let mut parts = parts.to_vec();
    parts.retain(|part| part.elem_count() > 0);
    Tensor::cat(&parts, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn what_overlaps_is_the_mean() -> Result<()> {
        let line = |values: &[f32]| Tensor::from_slice(values, (1, values.len(), 1), &Device::Cpu);
        let joined = |second: &[f32], overlap| -> Result<Vec<f32>> {
            let all = overlapped(&line(&[1., 2., 3., 4.])?, &line(second)?, overlap)?;
            all.flatten_all()?.to_vec1()
        };
        assert_eq!(joined(&[5., 6., 7.], 2)?, [1., 2., 4., 5., 7.]);
        assert_eq!(joined(&[5., 6.], 0)?, [1., 2., 3., 4., 5., 6.]);
        assert_eq!(joined(&[5.], 2)?, [1., 2., 4., 4.]);
        Ok(())
    }
}
