//! Gemma 4, a language model that sees and hears ([Google's model card](https://ai.google.dev/gemma/docs/core/model_card_4)). Weight names
//! are those of Hugging Face's checkpoints, such as [google/gemma-4-31B-it](https://huggingface.co/google/gemma-4-31B-it).
//!
//! A vision transformer turns images into tokens, and a conformer sounds; they replace placeholders in the text. Models with embeddings per
//! layer (E2B, E4B) or experts (26B-A4B) are refused.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::gemma4::{config::Gemma4Config, Model};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Gemma4Config = serde_json::from_str(
//!     r#"{"image_token_id": 60,
//!         "text_config": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
//!             "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "vocab_size": 64, "sliding_window": 8,
//!             "max_position_embeddings": 64, "layer_types": ["sliding_attention", "full_attention"]},
//!         "vision_config": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
//!             "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 16}}"#,
//! )?;
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! // 3 x 3 patches of 4 x 4 pixels are a token.
//! let picture = Tensor::zeros((1, 3, 12, 24), DType::F32, &device)?;
//! let ids = Tensor::new(&[[2u32, 60, 60, 7]], &device)?;
//! let logits = model.forward_multimodal(&ids, Some(&[picture]), None, None, 0)?;
//! assert_eq!(logits.dims(), &[1, 1, 64]);
//! # Ok(())
//! # }
//! ```

pub mod audio;
mod audio_attention;
pub mod config;
pub mod multimodal_embedding;
mod parts;
pub mod text;
pub mod vision;

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

pub use audio::AudioModel;
pub use config::{Gemma4AudioConfig, Gemma4TextConfig, Gemma4VisionConfig};

use self::config::Gemma4Config;
use self::multimodal_embedding::MultimodalEmbedder;
use self::text::TextModel;
use self::vision::VisionTower;
use crate::blocks::vision::three_axes::{places_of, spliced};

const FAMILY: &str = "gemma4";

/// The decoder with its encoders.
#[derive(Debug, Clone)]
pub struct Model {
    /// The decoder.
    pub language_model: TextModel,
    /// The vision encoder.
    pub vision_tower: VisionTower,
    /// Projection of its vectors to tokens.
    pub embed_vision: MultimodalEmbedder,
    /// The encoder of sound, in models that hear.
    pub audio_tower: Option<AudioModel>,
    /// Projection of its vectors to tokens.
    pub embed_audio: Option<MultimodalEmbedder>,
    /// The numbers of all.
    pub cfg: Gemma4Config,
}

impl Model {
    /// Loads `model.vision_tower`, `model.embed_vision`, `model.language_model`, and if the configuration has them `model.audio_tower` and
    /// `model.embed_audio`.
    ///
    /// # Errors
    /// As [`TextModel::new`], [`VisionTower::new`] and [`AudioModel::new`].
    pub fn new(cfg: &Gemma4Config, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("model");
        let (hidden, vision) = (cfg.text_config.hidden_size, &cfg.vision_config);
        let embedder = |size, eps, name| MultimodalEmbedder::new(size, hidden, eps, vb.pp(name));
        let (audio_tower, embed_audio) = match &cfg.audio_config {
            Some(audio) => {
                let size = audio.output_proj_dims.unwrap_or(audio.hidden_size);
                (
                    Some(AudioModel::new(audio, vb.pp("audio_tower"))?),
                    Some(embedder(size, audio.rms_norm_eps, "embed_audio")?),
                )
            }
            None => (None, None),
        };
        Ok(Self {
            language_model: TextModel::new(&cfg.text_config, vb.pp("language_model"))?,
            vision_tower: VisionTower::new(vision, vb.pp("vision_tower"))?,
            embed_vision: embedder(vision.hidden_size, vision.rms_norm_eps, "embed_vision")?,
            audio_tower,
            embed_audio,
            cfg: cfg.clone(),
        })
    }

    /// [`TextModel::forward`].
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        self.language_model.forward(input_ids, seqlen_offset)
    }

    /// As [`forward`](Self::forward), of ids, (b, t), with placeholders for images and sounds: their tokens replace `image_token_id` and
    /// `audio_token_id`, row by row; the counts must match. The ids are read back.
    ///
    /// - `pixel_values`: images as [`VisionTower::forward`] takes them.
    /// - `audio_mel`, `audio_mel_mask`: spectrograms as [`AudioModel::forward`] takes them; padding frames come last.
    ///
    /// # Errors
    /// If there are more or fewer placeholders than tokens; if a sound has no mask or the model does not hear; as the encoders.
    pub fn forward_multimodal(
        &mut self,
        input_ids: &Tensor,
        pixel_values: Option<&[Tensor]>,
        audio_mel: Option<&Tensor>,
        audio_mel_mask: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        let mut embeds = self.language_model.embed_tokens(input_ids)?;
        let mut pictures = Vec::new();
        if let Some(pixels) = pixel_values {
            let tokens = self.vision_tower.forward(pixels)?;
            let tokens = self.embed_vision.forward(&tokens)?.squeeze(0)?;
            let token = self.cfg.image_token_id;
            let places = places_of(input_ids, token)?;
            embeds = replaced(&embeds, &tokens, &places, ("image", token))?;
            pictures = runs(&places, [b, t]);
        }
        match (audio_mel, audio_mel_mask) {
            (None, None) => {}
            (Some(mel), Some(mask)) => {
                let tokens = self.sounds(mel, mask)?;
                let token = self.cfg.audio_token_id;
                let places = places_of(input_ids, token)?;
                embeds = replaced(&embeds, &tokens, &places, ("audio", token))?;
            }
            (mel, _) => {
                let (given, missing) = match mel {
                    Some(_) => ("audio_mel", "audio_mel_mask"),
                    None => ("audio_mel_mask", "audio_mel"),
                };
                bail!("{FAMILY}: {given} is given without {missing}")
            }
        }
        self.language_model
            .forward_pictures(&embeds, seqlen_offset, [b, t], &pictures)
    }

    /// The tokens of what is heard of the sounds, (tokens, hidden_size).
    fn sounds(&self, mel: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (Some(tower), Some(embed)) = (&self.audio_tower, &self.embed_audio) else {
            bail!("{FAMILY}: got audio, but the model has no audio_config")
        };
        let (vectors, mask) = tower.forward(mel, mask)?;
        let mask = mask.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let mut heard = Vec::new();
        for (row, mask) in mask.to_vec2::<f32>()?.iter().enumerate() {
            let count = mask.iter().filter(|m| **m == 0.).count();
            if count > 0 {
                heard.push(vectors.get(row)?.narrow(0, 0, count)?);
            }
        }
        if heard.is_empty() {
            bail!("{FAMILY}: the masks hide all audio")
        }
        embed.forward(&Tensor::cat(&heard, 0)?)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.language_model.clear_kv_cache();
    }
}

/// `embeds` with `tokens` at the indices `places`, which are those of the id `token`.
fn replaced(
    embeds: &Tensor,
    tokens: &Tensor,
    places: &[u32],
    (kind, token): (&str, usize),
) -> Result<Tensor> {
    let found = tokens.dim(0)?;
    if places.len() != found {
        bail!(
            "{FAMILY}: {} {kind} tokens (id {token}) in the ids, but the {kind} inputs yield {found}; the numbers must match",
            places.len()
        )
    }
    spliced(embeds, &tokens.to_dtype(embeds.dtype())?, places)
}

/// The runs of neighbours in each of `b` rows of `t`; `places` are counted row by row.
fn runs(places: &[u32], [b, t]: [usize; 2]) -> Vec<Vec<(usize, usize)>> {
    let mut rows: Vec<Vec<(usize, usize)>> = vec![Vec::new(); b];
    for place in places {
        let (row, i) = (*place as usize / t, *place as usize % t);
        match rows[row].last_mut() {
            Some((_, end)) if *end == i => *end += 1,
            _ => rows[row].push((i, i + 1)),
        }
    }
    rows
}
