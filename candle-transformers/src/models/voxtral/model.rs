//! The encoder of sound, the projector and the decoder as one model.

use candle_core::{bail, Context as _, DType, Device, Module, Result, Tensor, TensorId};
use candle_nn::{linear_no_bias, Activation, Linear, VarBuilder};
use rand::Rng;

use super::encoder::activation;
pub use super::encoder::{VoxtralEncoder, VoxtralEncoderConfig};
use super::voxtral_llama::{VoxtralLlama, VoxtralLlamaCache, VoxtralLlamaConfig};
use super::FAMILY;
use crate::blocks::vision::three_axes::{places_of, spliced};
use crate::generation::{LogitsProcessor, Sampling};

/// The tokens that end a text: Mistral's `</s>`, and those of other vocabularies of this size, which Candle accepts too.
const ENDS: [u32; 4] = [2, 128_001, 128_009, 128_256];
/// The token that fills texts up. This many in a row end a text too.
const PADDING: (u32, usize) = (0, 5);

/// The numbers of the whole model.
#[derive(Debug, Clone)]
pub struct VoxtralConfig {
    /// Configuration of the audio encoder.
    pub audio_config: VoxtralEncoderConfig,
    /// Configuration of the decoder.
    pub text_config: VoxtralLlamaConfig,
    /// The placeholder token of a part of the sound.
    pub audio_token_id: usize,
    /// Activation of the projector: `gelu` or `relu`.
    pub projector_hidden_act: String,
}

/// That of [mistralai/Voxtral-Mini-3B-2507](https://huggingface.co/mistralai/Voxtral-Mini-3B-2507).
impl Default for VoxtralConfig {
    fn default() -> Self {
        Self {
            audio_config: VoxtralEncoderConfig::default(),
            text_config: VoxtralLlamaConfig::voxtral_3b(),
            audio_token_id: 24,
            projector_hidden_act: "gelu".to_string(),
        }
    }
}

/// The per-sequence state between steps, and the tokens of the last sound. A clone is independent.
#[derive(Debug, Clone)]
pub struct VoxtralCache {
    cache: VoxtralLlamaCache,
    /// The spectrogram, and what was made of it.
    sound: Option<(TensorId, Tensor)>,
}

impl VoxtralCache {
    /// An empty cache; see [`VoxtralLlamaCache::new`].
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(
        use_kv_cache: bool,
        dtype: DType,
        config: &VoxtralLlamaConfig,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self {
            cache: VoxtralLlamaCache::new(use_kv_cache, dtype, config, device)?,
            sound: None,
        })
    }

    /// Forgets the sequence and the sound.
    pub fn reset(&mut self) {
        self.cache.reset();
        self.sound = None;
    }
}

/// The settings by which [`VoxtralForConditionalGeneration::generate`] chooses tokens.
#[derive(Debug, Clone)]
pub struct VoxtralGenerationConfig {
    /// The most tokens that are made.
    pub max_new_tokens: usize,
    /// Divisor of the logits; 0 for the most probable token.
    pub temperature: f64,
    /// Cumulative probability of the tokens to draw from.
    pub top_p: Option<f64>,
    /// The device of the weights.
    pub device: Device,
    /// Memory to use; `None` for a new cache.
    pub cache: Option<VoxtralCache>,
}

impl VoxtralGenerationConfig {
    /// At most 500 tokens, the most probable each.
    pub fn new(device: Device) -> Self {
        Self {
            max_new_tokens: 500,
            temperature: 0.,
            top_p: None,
            device,
            cache: None,
        }
    }

    fn sampling(&self) -> Result<Sampling> {
        let (temperature, top_p) = (self.temperature, self.top_p);
        if temperature < 0. || temperature.is_nan() {
            bail!("{FAMILY}: temperature {temperature} must be 0 or more")
        }
        match top_p {
            Some(p) if !(0. ..=1.).contains(&p) => {
                bail!("{FAMILY}: top_p {p} must be from 0 to 1")
            }
            _ if temperature == 0. => Ok(Sampling::ArgMax),
            Some(0.) => Ok(Sampling::ArgMax),
            Some(p) => Ok(Sampling::TopP { p, temperature }),
            None => Ok(Sampling::All { temperature }),
        }
    }
}

/// `inputs_embeds`, (b, t, hidden_size), with the vectors `audio_embeds`, (n, hidden_size), at `audio_positions`, pairs of row and column,
/// in order. Surplus vectors are ignored. `device` is that of the embeddings.
///
/// # Errors
/// If there are fewer vectors than positions, or a position is outside.
pub fn replace_audio_tokens(
    inputs_embeds: &Tensor,
    audio_embeds: &Tensor,
    audio_positions: &[(usize, usize)],
    device: &Device,
) -> Result<Tensor> {
    if audio_positions.is_empty() {
        return Ok(inputs_embeds.clone());
    }
    let (b, t, _) = inputs_embeds.dims3()?;
    let (needed, found) = (audio_positions.len(), audio_embeds.dims2()?.0);
    if found < needed {
        bail!(
            "{FAMILY}: {needed} audio tokens, but the audio has {found} vectors; the text needs one token for each vector"
        )
    }
    let mut places = Vec::with_capacity(needed);
    for (row, column) in audio_positions {
        if *row >= b || *column >= t {
            bail!("{FAMILY}: the audio position ({row}, {column}) is not in {b} rows of {t} tokens")
        }
        places.push((row * t + column) as u32);
    }
    let audio_embeds = audio_embeds.narrow(0, 0, needed)?.to_device(device)?;
    spliced(inputs_embeds, &audio_embeds, &places)
}

/// The positions of `audio_token_id` in `input_ids`, (b, t) of integers: pairs of row and column, row by row. The ids are read back.
///
/// # Errors
/// If the ids are not (b, t), or cannot be read.
pub fn find_audio_token_positions(
    input_ids: &Tensor,
    audio_token_id: usize,
) -> Result<Vec<(usize, usize)>> {
    let t = input_ids.dims2()?.1;
    let places = places_of(input_ids, audio_token_id)?.into_iter();
    Ok(places.map(|i| (i as usize / t, i as usize % t)).collect())
}

/// From vectors of the sound to tokens of the decoder.
#[derive(Debug, Clone)]
pub struct VoxtralMultiModalProjector {
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl VoxtralMultiModalProjector {
    /// Loads `linear_1` and `linear_2`.
    ///
    /// # Errors
    /// If the activation is not known, or a weight is missing or has another shape.
    pub fn new(cfg: &VoxtralConfig, vb: VarBuilder) -> Result<Self> {
        let (inner, hidden) = (
            cfg.audio_config.intermediate_size,
            cfg.text_config.hidden_size,
        );
        Ok(Self {
            activation: activation("projector_hidden_act", &cfg.projector_hidden_act)?,
            up: linear_no_bias(inner, hidden, vb.pp("linear_1"))?,
            down: linear_no_bias(hidden, hidden, vb.pp("linear_2"))?,
        })
    }

    /// From (.., intermediate_size) to (.., hidden_size), of the encoder and of the decoder.
    ///
    /// # Errors
    /// If the size, the dtype or the device is another one.
    pub fn forward(&self, audio_features: &Tensor) -> Result<Tensor> {
        let xs = self.up.forward(audio_features)?;
        self.down.forward(&self.activation.forward(&xs)?)
    }
}

/// A language model that hears.
#[derive(Debug, Clone)]
pub struct VoxtralForConditionalGeneration {
    encoder: VoxtralEncoder,
    language_model: VoxtralLlama,
    projector: VoxtralMultiModalProjector,
    audio_token_id: usize,
    audio_config: VoxtralEncoderConfig,
    text_config: VoxtralLlamaConfig,
}

impl VoxtralForConditionalGeneration {
    /// Loads `audio_tower`, `language_model` and `multi_modal_projector`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &VoxtralConfig, vb: VarBuilder) -> Result<Self> {
        let (size, inner) = (
            cfg.audio_config.hidden_size,
            cfg.audio_config.intermediate_size,
        );
        if inner == 0 || size == 0 || inner % size != 0 {
            bail!("{FAMILY} config: intermediate_size {inner} is not a multiple of hidden_size {size}, so vectors cannot be grouped into tokens")
        }
        Ok(Self {
            encoder: VoxtralEncoder::new(&cfg.audio_config, vb.pp("audio_tower"))?,
            projector: VoxtralMultiModalProjector::new(cfg, vb.pp("multi_modal_projector"))?,
            language_model: VoxtralLlama::load(vb.pp("language_model"), &cfg.text_config)?,
            audio_token_id: cfg.audio_token_id,
            audio_config: cfg.audio_config.clone(),
            text_config: cfg.text_config.clone(),
        })
    }

    /// The placeholder token of a part of the sound.
    pub fn audio_token_id(&self) -> usize {
        self.audio_token_id
    }

    /// The numbers of the decoder.
    pub fn text_config(&self) -> &VoxtralLlamaConfig {
        &self.text_config
    }

    /// The numbers of the encoder.
    pub fn audio_config(&self) -> &VoxtralEncoderConfig {
        &self.audio_config
    }

    /// The tokens, (n, hidden_size), of spectrograms, (chunks, num_mel_bins, frames), in order: a token for each `intermediate_size`
    /// numbers of the encoder's vectors, four vectors of two frames in all models.
    ///
    /// # Errors
    /// As [`VoxtralEncoder::forward`]; if the vectors do not make whole tokens.
    pub fn get_audio_embeds(&self, input_features: &Tensor) -> Result<Tensor> {
        self.tokens(&self.encoder.forward(input_features)?)
    }

    fn tokens(&self, vectors: &Tensor) -> Result<Tensor> {
        let (b, n, _) = vectors.dims3()?;
        self.whole_tokens(b, n)?;
        let inner = self.audio_config.intermediate_size;
        self.projector.forward(&vectors.reshape(((), inner))?)
    }

    fn whole_tokens(&self, b: usize, n: usize) -> Result<()> {
        let of_token = self.audio_config.intermediate_size / self.audio_config.hidden_size.max(1);
        if !(b * n).is_multiple_of(of_token) {
            bail!("{FAMILY}: {b} sounds of {n} vectors do not form whole tokens of {of_token}; pad the spectrogram")
        }
        Ok(())
    }

    /// One vector for each spectrogram, (b, hidden_size): the mean of its tokens. The encoder processes the spectrograms in chunks; see
    /// [`VoxtralEncoder::process_long_audio`].
    ///
    /// # Errors
    /// As [`VoxtralEncoder::process_long_audio`]; if the vectors of a spectrogram do not make whole tokens.
    pub fn get_audio_embeds_chunked(
        &self,
        input_features: &Tensor,
        chunk_size: usize,
        overlap: usize,
    ) -> Result<Tensor> {
        let vectors = self
            .encoder
            .process_long_audio(input_features, chunk_size, overlap)?;
        self.whole_tokens(1, vectors.dim(1)?)?;
        let tokens = self.tokens(&vectors)?;
        let hidden = self.text_config.hidden_size;
        tokens.reshape((vectors.dim(0)?, (), hidden))?.mean(1)
    }

    /// The logits, (b, vocab) in f32, after the token ids, (b, t), at the positions from `index_pos` on. At 0 a new sequence begins. The
    /// tokens of `input_features`, which [`get_audio_embeds`](Self::get_audio_embeds) makes, replace the audio tokens among the ids. They
    /// are computed once per tensor; without audio tokens among the ids they are not needed.
    ///
    /// # Errors
    /// As [`get_audio_embeds`](Self::get_audio_embeds), [`replace_audio_tokens`] and [`VoxtralLlama::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        input_features: Option<&Tensor>,
        cache: &mut VoxtralCache,
        index_pos: usize,
    ) -> Result<Tensor> {
        let mut embeds = self.language_model.embed(input_ids)?;
        if let Some(features) = input_features {
            let positions = find_audio_token_positions(input_ids, self.audio_token_id)?;
            if !positions.is_empty() {
                let tokens = match &cache.sound {
                    Some((id, tokens)) if *id == features.id() => tokens.clone(),
                    _ => {
                        let tokens = self.get_audio_embeds(features)?;
                        let tokens = tokens.to_dtype(self.language_model.dtype())?;
                        cache.sound.insert((features.id(), tokens)).1.clone()
                    }
                };
                embeds = replace_audio_tokens(&embeds, &tokens, &positions, embeds.device())?;
            }
        }
        self.language_model
            .forward_input_embed(&embeds, index_pos, &mut cache.cache)
    }

    /// The token ids, (1, t), and those that follow them, up to an end of text or `max_new_tokens`.
    ///
    /// # Errors
    /// If there is more than one text, the temperature is negative, or `top_p` is not from 0 to 1; as [`forward`](Self::forward).
    pub fn generate(
        &self,
        input_ids: &Tensor,
        input_features: Option<&Tensor>,
        config: VoxtralGenerationConfig,
    ) -> Result<Vec<u32>> {
        let (b, _) = input_ids.dims2()?;
        if b != 1 {
            bail!(
                "{FAMILY}: input_ids are {:?}; only one text can be continued, (1, t)",
                input_ids.dims()
            )
        }
        let mut tokens = input_ids
            .to_dtype(DType::U32)?
            .squeeze(0)?
            .to_vec1::<u32>()?;
        let sampling = config.sampling()?;
        let mut sampler = LogitsProcessor::from_sampling(rand::rng().random(), sampling);
        let mut cache = match config.cache {
            Some(cache) => cache,
            None => {
                let dtype = self.language_model.dtype();
                VoxtralCache::new(true, dtype, &self.text_config, &config.device)?
            }
        };
        let mut input = input_ids.clone();
        let mut position = 0;
        for _ in 0..config.max_new_tokens {
            let features = input_features.filter(|_| position == 0 || !cache.cache.use_kv_cache);
            let logits = self
                .forward(&input, features, &mut cache, position)
                .context("Failed to generate tokens")?;
            let next = sampler.sample(&logits.squeeze(0)?)?;
            tokens.push(next);
            let (padding, most) = PADDING;
            let is_stuck =
                tokens.len() > most && tokens.iter().rev().take(most).all(|t| *t == padding);
            if ENDS.contains(&next) || is_stuck {
                break;
            }
            // Without keys and values, the whole text again.
            position = if cache.cache.use_kv_cache {
                tokens.len() - 1
            } else {
                0
            };
            input = Tensor::new(&tokens[position..], &config.device)?.unsqueeze(0)?;
        }
        Ok(tokens)
    }
}
