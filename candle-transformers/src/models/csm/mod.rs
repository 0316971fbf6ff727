//! CSM, which speaks in a conversation: [SesameAILabs/csm](https://github.com/SesameAILabs/csm). Weight names are those of `sesame/csm-1b` on
//! the Hugging Face Hub.
//!
//! A backbone reads text and sound, one frame of [`mimi`](super::mimi) per position, and predicts the token of a frame's first codebook.
//! From the same vector a smaller decoder generates those of the other codebooks in sequence.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::generation::{LogitsProcessor, Sampling};
//! use candle_transformers::models::csm::{Config, Flavor, Model};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config {
//!     audio_num_codebooks: 32,
//!     audio_vocab_size: 2051,
//!     backbone_flavor: Flavor::Llama1B,
//!     decoder_flavor: Flavor::Llama100M,
//!     text_vocab_size: 128_256,
//! };
//! let device = Device::Cpu;
//! // SAFETY: nothing changes the file while it is mapped.
//! let vb = unsafe { VarBuilder::from_mmaped_safetensors(&["model.safetensors"], DType::F32, &device)? };
//! let mut model = Model::new(&config, vb)?;
//! let mut sampler = LogitsProcessor::from_sampling(1, Sampling::TopK { k: 50, temperature: 0.9 });
//! let (mut tokens, mut mask) = model.text_tokens_and_mask(&[128_000, 58, 15, 60, 15339, 128_001])?;
//! let (mut position, mut frames) = (0, Vec::new());
//! loop {
//!     let frame = model.generate_frame(&tokens, &mask, position, &mut sampler)?;
//!     if frame.iter().all(|token| *token == 0) {
//!         break;
//!     }
//!     position += tokens.dim(1)?;
//!     (tokens, mask) = model.audio_tokens_and_mask(frame.clone())?;
//!     frames.push(frame);
//! }
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Device, Module, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::{embedding, linear_no_bias, Embedding, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::head_dim;
use crate::blocks::{
    at_once, AttentionSpec, FeedForwardSpec, GrowingKvCache, Layer, LayerSpec, LayerState, MlpSpec,
    Names, Norm, NormSpec, Residual, RopeScaling, Rotary, RotaryPairs, RotaryRows, RotaryTables,
    Step, Weights,
};
use crate::generation::LogitsProcessor;

const FAMILY: &str = "csm";

/// Norms' weights are called `scale`, see [`LlamaModel::new`].
const NAMES: Names = Names {
    layers: "layers",
    final_norm: "norm",
    attn_norm: "sa_norm",
    q: "attn.q_proj",
    k: "attn.k_proj",
    v: "attn.v_proj",
    o: "attn.output_proj",
    mlp_norm: "mlp_norm",
    gate: "mlp.w1",
    up: "mlp.w3",
    down: "mlp.w2",
    ..Names::HUGGING_FACE
};

/// The sizes that backbone and decoder come in.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// 16 layers of size 2048; `llama-1B` in a `config.json`.
    #[serde(rename = "llama-1B")]
    Llama1B,
    /// 4 layers of size 1024; `llama-100M` in a `config.json`.
    #[serde(rename = "llama-100M")]
    Llama100M,
}

/// The fields of a checkpoint's `config.json`.
#[derive(Deserialize, Debug, Clone)]
pub struct Config {
    /// Codebooks of a frame, at least two.
    pub audio_num_codebooks: usize,
    /// Tokens of a codebook.
    pub audio_vocab_size: usize,
    /// The size of the backbone, which reads text and sound.
    pub backbone_flavor: Flavor,
    /// The size of the decoder, which generates a frame's other tokens.
    pub decoder_flavor: Flavor,
    /// Tokens of text.
    pub text_vocab_size: usize,
}

/// The sizes of a decoder.
#[derive(Debug, Clone)]
pub struct LlamaConfig {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    hidden: usize,
    positions: usize,
    inner: usize,
    norm_eps: f64,
    rope_theta: f64,
    /// Factor by which the context is longer than in training.
    rope_factor: f64,
}

impl LlamaConfig {
    /// The sizes of that name, for 2048 positions.
    pub fn from_flavor(flavor: Flavor) -> Self {
        let (layers, heads, kv_heads, hidden) = match flavor {
            Flavor::Llama1B => (16, 32, 8, 2048),
            Flavor::Llama100M => (4, 8, 2, 1024),
        };
        Self {
            layers,
            heads,
            kv_heads,
            hidden,
            positions: 2048,
            inner: 8192,
            norm_eps: 1e-5,
            rope_theta: 500_000.,
            rope_factor: 32.,
        }
    }

    fn rotary(&self) -> Result<Rotary> {
        let scaling = RopeScaling {
            rope_type: "llama3".to_string(),
            factor: Some(self.rope_factor),
            low_freq_factor: Some(1.),
            high_freq_factor: Some(4.),
            original_max_position_embeddings: Some(8192),
            ..RopeScaling::default()
        };
        let head_dim = head_dim(FAMILY, ("hidden", self.hidden), ("heads", self.heads))?;
        let pairs = RotaryPairs::Neighbours;
        scaling.rotary(pairs, self.rope_theta, head_dim, self.positions)
    }

    fn layer(&self) -> LayerSpec {
        LayerSpec::pre_norm(
            AttentionSpec::new(self.hidden, self.heads, self.kv_heads),
            FeedForwardSpec::Gated(MlpSpec::new(self.inner, GatedActivation::Silu)),
            NormSpec::rms(self.norm_eps),
        )
    }
}

/// The layers of a decoder, over vectors instead of tokens.
#[derive(Debug, Clone)]
pub struct LlamaModel {
    layers: Vec<Layer>,
    states: Vec<LayerState>,
    norm: Norm,
    rotary: RotaryTables,
    hidden: usize,
    positions: usize,
    device: Device,
}

impl LlamaModel {
    /// Loads `layers` and `norm`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &LlamaConfig, vb: VarBuilder) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        let mut vb = vb.rename_f(|name| match name.strip_suffix("norm.weight") {
            Some(start) => format!("{start}norm.scale"),
            None => name.to_string(),
        });
        let mut weights = Weights::new(&mut vb, dtype, &device);
        at_once(Self::load(cfg, &mut weights))
    }

    async fn load(cfg: &LlamaConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let (spec, rotary, hidden) = (cfg.layer(), cfg.rotary()?, cfg.hidden);
        let mut layers = Vec::new();
        for i in 0..cfg.layers {
            let prefix = NAMES.layer(i);
            layers.push(Layer::load(&spec, hidden, weights, &NAMES, &prefix).await?);
        }
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        // Each a new one: clones share their buffer, and copy it when they are written to.
        let empty = || LayerState::Attention(GrowingKvCache::new(cfg.positions));
        Ok(Self {
            states: layers.iter().map(|_| empty()).collect(),
            layers,
            norm: weights.norm(NAMES.final_norm, hidden, spec.norm).await?,
            rotary: RotaryTables::new(&rotary, cfg.positions, dtype, &device),
            hidden,
            positions: cfg.positions,
            device,
        })
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.states.iter_mut().for_each(LayerState::reset);
    }

    /// The vector after the last of the vectors `xs`, (batch, t, size): (batch, 1, size). The first has the position `seqlen_offset`; at 0 a
    /// new sequence begins, elsewhere they continue the one before.
    ///
    /// # Errors
    /// If there are no vectors, more than the positions that there are, or they have another size.
    pub fn forward(&mut self, xs: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        let (hidden, limit) = (self.hidden, self.positions);
        let t = match *xs.dims() {
            [b, t, size] if b > 0 && t > 0 && size == hidden => t,
            _ => bail!(
                "{FAMILY}: the vectors are {:?}; they must be (batch, t, {hidden})",
                xs.dims()
            ),
        };
        if seqlen_offset.checked_add(t).is_none_or(|end| end > limit) {
            bail!(
                "{FAMILY}: {t} positions from {seqlen_offset} exceed the model's {limit}; shorten the conversation or say less"
            )
        }
        if seqlen_offset == 0 {
            self.clear_kv_cache();
        }
        let (cos, sin) = self.rotary.rows(seqlen_offset, t)?;
        let pairs = self.rotary.rotary().pairs;
        let step = Step {
            rotations: vec![RotaryRows { cos, sin, pairs }],
            mask: None,
            windows: false,
            rows: None,
            growth: None,
        };
        let mut xs = Residual::new(xs.clone());
        for (layer, state) in self.layers.iter().zip(&mut self.states) {
            xs = layer.forward(xs, &step, Some(state))?;
        }
        let (_, last) = xs.last_position()?.normed(Some(&self.norm))?;
        Ok(last)
    }
}

/// Backbone and decoder, with their tables of tokens and heads.
#[derive(Debug, Clone)]
pub struct Model {
    backbone: LlamaModel,
    decoder: LlamaModel,
    codebook0_head: Linear,
    /// The tables of all codebooks, concatenated.
    audio_embeddings: Embedding,
    text_embeddings: Embedding,
    projection: Linear,
    /// (audio_num_codebooks - 1, decoder's size, audio_vocab_size).
    audio_head: Tensor,
    config: Config,
}

impl Model {
    /// Loads `backbone`, `decoder`, `audio_embeddings`, `text_embeddings`, `projection`, `codebook0_head` and `audio_head`.
    ///
    /// # Errors
    /// If there are fewer than two codebooks or a codebook has no tokens, or a weight is missing or has another shape than the configuration
    /// says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let of = LlamaConfig::from_flavor;
        Self::of_sizes(cfg, &of(cfg.backbone_flavor), &of(cfg.decoder_flavor), vb)
    }

    fn of_sizes(
        cfg: &Config,
        backbone: &LlamaConfig,
        decoder: &LlamaConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (books, vocab) = (cfg.audio_num_codebooks, cfg.audio_vocab_size);
        if books < 2 {
            bail!("{FAMILY} config: audio_num_codebooks is {books}; it must be at least 2")
        }
        for (name, size) in [
            ("audio_vocab_size", vocab),
            ("text_vocab_size", cfg.text_vocab_size),
        ] {
            if size == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        let Some(sounds) = books
            .checked_mul(vocab)
            .filter(|all| u32::try_from(*all).is_ok())
        else {
            bail!("{FAMILY} config: audio_num_codebooks {books} times audio_vocab_size {vocab} exceeds 32-bit token ids")
        };
        let (size, of_decoder) = (backbone.hidden, decoder.hidden);
        Ok(Self {
            backbone: LlamaModel::new(backbone, vb.pp("backbone"))?,
            decoder: LlamaModel::new(decoder, vb.pp("decoder"))?,
            audio_embeddings: embedding(sounds, size, vb.pp("audio_embeddings"))?,
            text_embeddings: embedding(cfg.text_vocab_size, size, vb.pp("text_embeddings"))?,
            projection: linear_no_bias(size, of_decoder, vb.pp("projection"))?,
            codebook0_head: linear_no_bias(size, vocab, vb.pp("codebook0_head"))?,
            audio_head: vb.get((books - 1, of_decoder, vocab), "audio_head")?,
            config: cfg.clone(),
        })
    }

    /// Forgets the conversation.
    pub fn clear_kv_cache(&mut self) {
        self.backbone.clear_kv_cache();
        self.decoder.clear_kv_cache();
    }

    /// The tokens of the frame that follows: one of each codebook.
    ///
    /// `tokens` are (1, t, audio_num_codebooks + 1), at each position those of a frame and that of a text; `tokens_mask`, of the same shape,
    /// is 1 for those that count and 0 for the others. Tokens of sound are below `audio_vocab_size`.
    ///
    /// The first of them is at position `input_pos`; 0 starts a new conversation, any other position continues the current one.
    ///
    /// # Errors
    /// If the shapes are others, there are more positions than 2048, an id is outside its table (where the device can tell), or `lp` cannot
    /// draw.
    pub fn generate_frame(
        &mut self,
        tokens: &Tensor,
        tokens_mask: &Tensor,
        input_pos: usize,
        lp: &mut LogitsProcessor,
    ) -> Result<Vec<u32>> {
        let embeds = self.embed(tokens, tokens_mask)?;
        let hidden = self.backbone.forward(&embeds, input_pos)?;
        let logits = self.codebook0_head.forward(&hidden)?;
        let mut frame = vec![lp.sample(&logits.flatten_all()?)?];
        // The decoder's positions: the backbone's vector, and the tokens that were drawn.
        let mut xs = Tensor::cat(&[hidden, self.sound(0, frame[0])?], 1)?;
        let mut position = 0;
        for book in 1..self.config.audio_num_codebooks {
            let projected = self.projection.forward(&xs)?;
            let hidden = self.decoder.forward(&projected, position)?;
            position += xs.dim(1)?;
            let head = self.audio_head.narrow(0, book - 1, 1)?;
            let token = lp.sample(&hidden.matmul(&head)?.flatten_all()?)?;
            frame.push(token);
            xs = self.sound(book, token)?;
        }
        Ok(frame)
    }

    /// The vectors of positions, (1, t, size): the sums of those of their tokens that count.
    fn embed(&self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (books, vocab) = (
            self.config.audio_num_codebooks,
            self.config.audio_vocab_size,
        );
        match *tokens.dims() {
            [1, t, each] if t > 0 && each == books + 1 => {}
            _ => bail!(
                "{FAMILY}: the tokens are {:?}; they must be (1, t, {}): {books} codebook tokens and a text token at each position",
                tokens.dims(),
                books + 1
            ),
        }
        if mask.dims() != tokens.dims() {
            bail!(
                "{FAMILY}: the mask is {:?} and the tokens are {:?}; they must have one shape",
                mask.dims(),
                tokens.dims()
            )
        }
        let first = (0..books).map(|book| (book * vocab) as u32);
        let first = Tensor::from_iter(first, tokens.device())?.to_dtype(tokens.dtype())?;
        let sound = tokens.narrow(2, 0, books)?.broadcast_add(&first)?;
        let sound = self.audio_embeddings.forward(&sound)?;
        let text = tokens.narrow(2, books, 1)?;
        let text = self.text_embeddings.forward(&text)?;
        let all = Tensor::cat(&[sound, text], 2)?;
        // A sum over tokens as a product: (1, t, 1, tokens) by (1, t, tokens, size).
        let mask = mask.to_dtype(all.dtype())?.unsqueeze(2)?;
        mask.matmul(&all)?.squeeze(2)
    }

    /// The vector of a token of a codebook, (1, 1, size).
    fn sound(&self, book: usize, token: u32) -> Result<Tensor> {
        let row = (book * self.config.audio_vocab_size) as u32 + token;
        let row = Tensor::new(&[[row]], &self.decoder.device)?;
        self.audio_embeddings.forward(&row)
    }

    /// The tokens and the mask of a frame for [`generate_frame`](Self::generate_frame), (1, 1, audio_num_codebooks + 1), u32 and u8.
    ///
    /// # Errors
    /// If `frame` does not have a token of each codebook.
    pub fn audio_tokens_and_mask(&self, frame: Vec<u32>) -> Result<(Tensor, Tensor)> {
        let books = self.config.audio_num_codebooks;
        if frame.len() != books {
            bail!(
                "{FAMILY}: a frame of {} tokens; expected one for each of {books} codebooks",
                frame.len()
            )
        }
        let tokens = [frame, vec![0]].concat();
        let mask = [vec![1u8; books], vec![0]].concat();
        self.tokens_and_mask(tokens, mask, 1)
    }

    /// The tokens and the mask of a text for [`generate_frame`](Self::generate_frame), (1, ids, audio_num_codebooks + 1), u32 and u8.
    ///
    /// # Errors
    /// If there are no `ids`.
    pub fn text_tokens_and_mask(&self, ids: &[u32]) -> Result<(Tensor, Tensor)> {
        let books = self.config.audio_num_codebooks;
        if ids.is_empty() {
            bail!("{FAMILY}: a text has no tokens; at least one is required")
        }
        let tokens = ids
            .iter()
            .flat_map(|id| [vec![0; books], vec![*id]].concat());
        let mask = ids
            .iter()
            .flat_map(|_| [vec![0u8; books], vec![1]].concat());
        self.tokens_and_mask(tokens.collect(), mask.collect(), ids.len())
    }

    fn tokens_and_mask(
        &self,
        tokens: Vec<u32>,
        mask: Vec<u8>,
        positions: usize,
    ) -> Result<(Tensor, Tensor)> {
        let shape = (1, positions, self.config.audio_num_codebooks + 1);
        let device = &self.backbone.device;
        Ok((
            Tensor::from_vec(tokens, shape, device)?,
            Tensor::from_vec(mask, shape, device)?,
        ))
    }
}

#[cfg(test)]
mod tests;
