//! The small Llamas of [llama2.c](https://github.com/karpathy/llama2.c), which rotate neighbours.

use candle_core::{bail, DType, Result, Tensor, TensorId};
use candle_nn::{Activation, VarBuilder};

use crate::blocks::family::LlamaLike;
use crate::blocks::{
    Decoder, DecoderSpec, DecoderState, Head, LayerState, NormSpec, Rotary, RotaryPairs,
    RotaryTables,
};
use crate::utils::build_causal_mask;

/// Base of the rotary frequencies.
const THETA: f64 = 10_000.;

/// The fields of a file's header.
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of the residual stream.
    pub dim: usize,
    /// Inner size of the MLP.
    pub hidden_dim: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum sequence length, in tokens.
    pub seq_len: usize,
    /// RMS norm epsilon, added to the mean square.
    pub norm_eps: f64,
}

impl Config {
    /// 260 thousand weights.
    pub fn tiny_260k() -> Self {
        Self {
            dim: 64,
            n_layers: 5,
            n_heads: 8,
            n_kv_heads: 4,
            seq_len: 512,
            ..Self::tiny_15m()
        }
    }

    /// 15 million weights.
    pub fn tiny_15m() -> Self {
        Self {
            dim: 288,
            hidden_dim: 768,
            n_layers: 6,
            n_heads: 6,
            n_kv_heads: 6,
            vocab_size: 32000,
            seq_len: 256,
            norm_eps: 1e-5,
        }
    }

    /// 42 million weights.
    pub fn tiny_42m() -> Self {
        Self {
            dim: 512,
            n_layers: 8,
            n_heads: 8,
            n_kv_heads: 8,
            seq_len: 1024,
            ..Self::tiny_15m()
        }
    }

    /// 110 million weights.
    pub fn tiny_110m() -> Self {
        Self {
            dim: 768,
            n_layers: 12,
            n_heads: 12,
            n_kv_heads: 12,
            seq_len: 1024,
            ..Self::tiny_15m()
        }
    }

    /// Size of a head.
    pub fn head_size(&self) -> usize {
        self.dim / self.n_heads.max(1)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: "llama2_c",
            vocab: self.vocab_size,
            hidden: self.dim,
            inner: self.hidden_dim,
            layers: self.n_layers,
            heads: self.n_heads,
            kv_heads: self.n_kv_heads,
            head_dim: None,
            positions: self.seq_len,
            rope_theta: THETA,
            norm_eps: self.norm_eps,
            activation: Activation::Silu,
            head: Head::tied(false),
        };
        let rotary = self.rotary();
        sizes.spec_with(vec![rotary], NormSpec::rms(self.norm_eps), |_, _, _| ())
    }

    fn rotary(&self) -> Rotary {
        Rotary::new(RotaryPairs::Neighbours, THETA, self.head_size())
    }
}

/// The per-sequence state between steps, with public fields: a caller may read keys and values, and replace them. A clone is independent.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Whether keys and values are cached. Otherwise every call needs the whole sequence.
    pub use_kv_cache: bool,
    /// Keys and values of each layer, `(b, positions, kv_heads, head_size)`.
    pub kvs: Vec<Option<(Tensor, Tensor)>>,
    /// The cosines of each position's angles, `(seq_len, head_size / 2, 1)`.
    pub cos: Tensor,
    /// Their sines.
    pub sin: Tensor,
    state: DecoderState,
    /// The entries of `kvs` that this module wrote.
    known: Vec<Option<[TensorId; 2]>>,
}

impl Cache {
    /// An empty cache, with the angles `freq_cis_real` and `freq_cis_imag` of `vb`, where it has them, on its device.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the angles have another shape.
    pub fn new(use_kv_cache: bool, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device());
        let spec = cfg.spec()?;
        let (cos, sin) = RotaryTables::new(&spec.rotaries[0], cfg.seq_len, dtype, device)
            .rows(0, cfg.seq_len)?;
        let shape = (cfg.seq_len, cfg.head_size() / 2);
        let angles = |name: &str, made: Tensor| {
            if vb.contains_tensor(name) {
                vb.get(shape, name)?.unsqueeze(2)
            } else {
                made.contiguous()?.unsqueeze(2)
            }
        };
        Ok(Self {
            use_kv_cache,
            kvs: vec![None; cfg.n_layers],
            cos: angles("freq_cis_real", cos)?,
            sin: angles("freq_cis_imag", sin)?,
            state: DecoderState::new(&spec, dtype, device),
            known: vec![None; cfg.n_layers],
        })
    }

    /// 1 where one of `seq_len` positions from `index_pos` on does not see a position, `(seq_len, index_pos + seq_len)` in u8.
    ///
    /// # Errors
    /// If the device fails.
    pub fn mask(&mut self, seq_len: usize, index_pos: usize) -> Result<Tensor> {
        build_causal_mask(seq_len, index_pos, self.cos.device())
    }

    /// The state, with what the caller has changed.
    fn state(&mut self) -> Result<&mut DecoderState> {
        self.state.use_cache = self.use_kv_cache;
        let (cos, sin) = (self.cos.squeeze(2)?, self.sin.squeeze(2)?);
        self.state.set_rotary(0, cos, sin);
        if self.kvs.len() != self.known.len() {
            bail!(
                "llama2_c: the cache has {} layers, but the model has {}",
                self.kvs.len(),
                self.known.len()
            )
        }
        for (i, (kv, known)) in self.kvs.iter().zip(&self.known).enumerate() {
            if ids(kv) == *known {
                continue;
            }
            if let Some(LayerState::Attention(cache)) = self.state.layer_mut(i) {
                cache.reset();
                if let Some((k, v)) = kv {
                    let kv = Tensor::cat(&[k, v], 2)?;
                    cache.append(&kv.transpose(1, 2)?)?;
                }
            }
        }
        Ok(&mut self.state)
    }

    /// Shows the caller what the state holds.
    fn show(&mut self) -> Result<()> {
        if !self.use_kv_cache {
            return Ok(());
        }
        for (i, kv) in self.kvs.iter_mut().enumerate() {
            let Some(LayerState::Attention(cache)) = self.state.layer_mut(i) else {
                continue;
            };
            *kv = match cache.contents()? {
                Some(both) => {
                    let heads = both.dim(1)? / 2;
                    let part = |start| both.narrow(1, start, heads)?.transpose(1, 2);
                    Some((part(0)?, part(heads)?))
                }
                None => None,
            };
            self.known[i] = ids(kv);
        }
        Ok(())
    }
}

fn ids(kv: &Option<(Tensor, Tensor)>) -> Option<[TensorId; 2]> {
    kv.as_ref().map(|(k, v)| [k.id(), v.id()])
}

/// The logits of all positions, `(b, t, vocab)` in f32.
pub(super) fn logits(
    decoder: &Decoder,
    ids: &Tensor,
    index_pos: usize,
    cache: &mut Cache,
) -> Result<Tensor> {
    let hidden = decoder.forward(ids, index_pos, cache.state()?)?;
    cache.show()?;
    hidden.logits()?.to_dtype(DType::F32)
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Llama {
    decoder: Decoder,
    /// The configuration of the model.
    pub config: Config,
}

impl Llama {
    /// Loads `model.*` and `lm_head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn load(mut vb: VarBuilder, cfg: Config) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        Ok(Self {
            decoder: Decoder::load(cfg.spec()?, &mut vb, dtype, &device)?,
            config: cfg,
        })
    }

    /// The logits of what follows each of the token ids `x`, `(b, t)`: `(b, t, vocab)` in f32. The ids are at the positions from
    /// `index_pos` on. With a KV cache they continue what `cache` holds; without, they have to be the whole sequence.
    ///
    /// # Errors
    /// If `x` holds no ids, or more than fit; if `cache` does not fit the model.
    pub fn forward(&self, x: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        logits(&self.decoder, x, index_pos, cache)
    }
}
