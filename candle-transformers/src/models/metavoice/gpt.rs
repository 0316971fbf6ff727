//! The second stage: an encoder that reads the first two codebooks, and writes the others.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::{Activation, Init, VarBuilder};

use super::FAMILY;
use crate::blocks::codebooks::{CodebookEmbeddings, CodebookHeads};
use crate::blocks::encoder::{
    head_dim, EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec, MlpActivation, MlpNames,
    NormPlace, Seen,
};
use crate::blocks::{at_once, Norm, NormSpec, Weights};
use crate::utils::build_additive_causal_mask;

/// The norms of a model.
#[derive(Debug, Clone, Copy, Eq, PartialEq, Hash)]
pub enum NormType {
    /// Layer norm, with a bias if [`Config::bias`] is set; epsilon is 1e-5.
    LayerNorm,
    /// RMS norm with the epsilon [`Config::rmsnorm_eps`].
    RMSNorm,
}

/// The program that computed attention in training. The numbers are the same.
#[derive(Debug, Clone, Copy, Eq, PartialEq, Hash)]
pub enum AttnKernelType {
    /// Flash attention; not supported.
    Fa2,
    /// PyTorch's.
    TorchAttn,
    /// Single products; not supported.
    Hand,
}

/// The feed-forward block of a model.
#[derive(Debug, Clone, Copy, Eq, PartialEq, Hash)]
pub enum NonLinearityType {
    /// Four times as wide as the stream, with the approximation of GELU by tanh.
    Gelu,
    /// With a gate, about two thirds of that; see [`Config::swiglu_multiple_of`].
    Swiglu,
}

/// The sizes of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// Maximum sequence length, in tokens.
    pub block_size: usize,
    /// Tokens of each input codebook.
    pub vocab_sizes: Vec<usize>,
    /// Tokens of each generated codebook.
    pub target_vocab_sizes: Vec<usize>,
    /// Layers.
    pub n_layer: usize,
    /// Heads, which divide `n_embd`.
    pub n_head: usize,
    /// Size of the residual stream.
    pub n_embd: usize,
    /// Whether linear layers and layer norms have biases; the layers over the tokens have none.
    pub bias: bool,
    /// Whether positions see only those before them.
    pub causal: bool,
    /// Not used: the voice is not read.
    pub spk_emb_on_text: bool,
    /// The norms.
    pub norm_type: NormType,
    /// RMS norm epsilon, added to the mean square.
    pub rmsnorm_eps: f64,
    /// The feed-forward blocks.
    pub nonlinearity_type: NonLinearityType,
    /// The inner size of a gated block is rounded up to a multiple of this.
    pub swiglu_multiple_of: Option<usize>,
    /// Only [`AttnKernelType::TorchAttn`] is supported.
    pub attn_kernel_type: AttnKernelType,
    /// Only `false` is supported: all of a sequence is given at once.
    pub kv_cache_enabled: bool,
}

impl Config {
    /// MetaVoice-1B v0.1.
    pub fn cfg1b_v0_1() -> Self {
        Self {
            n_layer: 6,
            n_head: 6,
            n_embd: 384,
            block_size: 1024,
            bias: false,
            vocab_sizes: vec![1538, 1025],
            causal: false,
            target_vocab_sizes: vec![1025; 6],
            swiglu_multiple_of: Some(256),
            norm_type: NormType::LayerNorm,
            kv_cache_enabled: false,
            attn_kernel_type: AttnKernelType::TorchAttn,
            spk_emb_on_text: true,
            nonlinearity_type: NonLinearityType::Gelu,
            rmsnorm_eps: 1e-5,
        }
    }

    fn check(&self) -> Result<()> {
        if self.attn_kernel_type != AttnKernelType::TorchAttn {
            bail!(
                "{FAMILY} config: attn_kernel_type is {:?}; only TorchAttn is supported",
                self.attn_kernel_type
            )
        }
        if self.kv_cache_enabled {
            bail!("{FAMILY} config: kv_cache_enabled is true; only false is supported: pass the whole sequence at once")
        }
        let smallest = |sizes: &[usize]| sizes.iter().copied().min().unwrap_or(0);
        for (name, size) in [
            ("block_size", self.block_size),
            ("n_layer", self.n_layer),
            ("the least of vocab_sizes", smallest(&self.vocab_sizes)),
            (
                "the least of target_vocab_sizes",
                smallest(&self.target_vocab_sizes),
            ),
        ] {
            if size == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        Ok(())
    }

    fn norm(&self) -> NormSpec {
        match self.norm_type {
            NormType::RMSNorm => NormSpec::rms(self.rmsnorm_eps),
            NormType::LayerNorm if self.bias => NormSpec::layer(1e-5),
            NormType::LayerNorm => NormSpec::layer_no_bias(1e-5),
        }
    }

    /// The inner size of feed-forward blocks.
    fn inner(&self) -> Result<usize> {
        let multiple = match (self.nonlinearity_type, self.swiglu_multiple_of) {
            (NonLinearityType::Gelu, _) => None,
            (NonLinearityType::Swiglu, Some(multiple)) if multiple > 0 => Some(multiple),
            (NonLinearityType::Swiglu, multiple) => bail!(
                "{FAMILY} config: swiglu_multiple_of is {multiple:?}; Swiglu needs a number that is at least 1"
            ),
        };
        let inner = match multiple {
            None => self.n_embd.checked_mul(4),
            Some(multiple) => {
                let inner = self.n_embd.checked_mul(8).map(|of| of / 3);
                inner.and_then(|inner| inner.checked_next_multiple_of(multiple))
            }
        };
        match inner {
            Some(inner) => Ok(inner),
            None => bail!(
                "{FAMILY} config: n_embd is {}, which is too large",
                self.n_embd
            ),
        }
    }

    /// A layer. `renamed` says whether gates have the names of Candle's files, not those of the original's checkpoints.
    fn layer(&self, renamed: bool) -> Result<EncoderSpec> {
        let gated = MlpActivation::Gated(GatedActivation::Silu);
        let (activation, [gate, up]) = match self.nonlinearity_type {
            NonLinearityType::Gelu => {
                let plain = MlpActivation::Plain(Activation::NewGelu);
                (plain, ["", "mlp.c_fc"])
            }
            NonLinearityType::Swiglu if renamed => (gated, ["mlp.w1", "mlp.w3"]),
            NonLinearityType::Swiglu => (gated, ["mlp.swiglu.w1", "mlp.swiglu.w3"]),
        };
        Ok(EncoderSpec {
            hidden: self.n_embd,
            inner: self.inner()?,
            heads: self.n_head,
            head_dim: head_dim(FAMILY, ("n_embd", self.n_embd), ("n_head", self.n_head))?,
            activation,
            bias: EncoderBiases::all(self.bias),
            norm: self.norm(),
            place: NormPlace::Before,
            names: EncoderNames {
                qkv: &["attn.c_attn"],
                joined: "attn.c_proj",
                mlp: MlpNames {
                    gate,
                    up,
                    down: "mlp.c_proj",
                },
                norms: ["ln_1", "ln_2"],
            },
        })
    }
}

/// The encoder.
pub struct Model {
    wtes: CodebookEmbeddings,
    /// The embeddings of positions, (block_size, n_embd).
    wpe: Tensor,
    h: Vec<EncoderLayer>,
    ln_f: Norm,
    lm_heads: CodebookHeads,
    cfg: Config,
}

impl Model {
    /// Loads what is below `transformer`, and `lm_heads`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or asks for what is not supported, or a weight is missing or has another shape than the
    /// configuration says.
    pub fn new(cfg: Config, vb: VarBuilder) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        at_once(Self::load(cfg, &mut Weights::new(&mut vb, dtype, &device)))
    }

    async fn load(cfg: Config, weights: &mut Weights<'_>) -> Result<Self> {
        cfg.check()?;
        let size = cfg.n_embd;
        head_dim(FAMILY, ("n_embd", size), ("n_head", cfg.n_head))?;
        cfg.inner()?;
        let tables = "transformer.wtes";
        let wtes = CodebookEmbeddings::load(FAMILY, &cfg.vocab_sizes, size, weights, tables);
        let wtes = wtes.await?;
        let init = Init::Randn {
            mean: 0.,
            stdev: 1.,
        };
        let shape = [cfg.block_size, size];
        let wpe = weights
            .dense("transformer.wpe.weight", &shape, init)
            .await?;
        let layer = cfg.layer(weights.has("transformer.h.0.mlp.w1.weight"))?;
        let h = layer.load(cfg.n_layer, weights, "transformer.h").await?;
        let heads = CodebookHeads::load(&cfg.target_vocab_sizes, size, weights, "lm_heads");
        Ok(Self {
            wtes,
            wpe,
            h,
            lm_heads: heads.await?,
            ln_f: weights.norm("transformer.ln_f", size, cfg.norm()).await?,
            cfg,
        })
    }

    /// The sizes.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// The logits of each codebook that is written, (batch, t, target vocab size), of the tokens of those that are read, (batch, books, t).
    ///
    /// # Errors
    /// If there are no tokens or more than `block_size`, fewer codebooks than `vocab_sizes`, or an id is outside its table (where the
    /// device can tell).
    pub fn forward(&self, idx: &Tensor) -> Result<Vec<Tensor>> {
        let xs = self.wtes.forward(idx)?;
        let (t, limit) = (xs.dim(1)?, self.cfg.block_size);
        if t > limit {
            bail!("{FAMILY}: {t} positions exceed the model's block_size of {limit}; shorten the sound")
        }
        let mask = if self.cfg.causal {
            Some(build_additive_causal_mask(
                t,
                0,
                None,
                xs.device(),
                DType::F32,
            )?)
        } else {
            None
        };
        let seen = Seen {
            mask: mask.as_ref(),
            ..Seen::default()
        };
        let mut xs = xs.broadcast_add(&self.wpe.narrow(0, 0, t)?)?;
        for layer in &self.h {
            xs = layer.forward(xs, &seen)?;
        }
        self.lm_heads.forward(&self.ln_f.forward(&xs)?)
    }
}
