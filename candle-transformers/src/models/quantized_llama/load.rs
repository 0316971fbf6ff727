//! From tensors to a model.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use candle_core::quantized::{QMatMul, QStorage, QTensor};
use candle_core::{bail, Context as _, DType, Device, Error, Result, Shape};
use candle_nn::RmsNorm;

use super::source::Reading;
use super::{AsyncWeightSource, Config, Experts, WeightSource};
use crate::blocks::{
    place, place_dense, CausalSelfAttention, DecoderLayer, FeedForward, GatedMlp, MergedLinear,
    Projection, RotaryTables, SparseMoe, StoredLinear, TokenEmbedding,
};
use crate::models::llama::{Cache, Llama};

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Reads the model of `config` out of `source` onto `device`, with activations of `dtype`, and makes an empty cache for it.
///
/// Weights keep their formats, except that F32, F16 and BF16 become `dtype`. Without an `output.weight` the embedding's table is the
/// output layer too. All names and shapes are checked before anything is read.
///
/// # Errors
/// If a tensor is missing, has another shape than the configuration asks for, cannot be read, or `device` refuses it; with its name.
pub fn load(
    config: &Config,
    source: &mut dyn WeightSource,
    dtype: DType,
    device: &Device,
) -> Result<(Llama, Cache)> {
    let mut source = AtOnce(source);
    let loading = pin!(load_async(config, &mut source, dtype, device));
    match loading.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(loaded) => loaded,
        Poll::Pending => bail!("a source that has its tensors at once made the loader wait"),
    }
}

/// As [`load`], from a source whose tensors have to be waited for.
///
/// # Errors
/// As [`load`].
pub async fn load_async(
    config: &Config,
    source: &mut dyn AsyncWeightSource,
    dtype: DType,
    device: &Device,
) -> Result<(Llama, Cache)> {
    config.check_tensors(&Shapes(source))?;
    let mut loader = Loader {
        config,
        source,
        dtype,
        device,
    };
    let embed_tokens = TokenEmbedding::new(loader.weight(EMBEDDING).await?, dtype);
    let mut layers = Vec::with_capacity(config.layers);
    for layer in 0..config.layers {
        layers.push(loader.layer(&format!("blk.{layer}")).await?);
    }
    let norm = loader.norm(OUTPUT_NORM).await?;
    let lm_head = if loader.has(OUTPUT) {
        loader.projection("output").await?
    } else {
        embed_tokens.tied()
    };
    let factors = match loader.has(ROPE_FACTORS) {
        true => {
            let stored = vec![loader.read(ROPE_FACTORS).await?];
            Some(place_dense(stored, DType::F32, &Device::Cpu)?.to_vec1()?)
        }
        false => None,
    };
    let positions = config.context_length;
    let frequencies = config.inverse_frequencies(factors.as_deref());
    let rotary = RotaryTables::new(&frequencies, positions, dtype, device)?;
    let model = Llama {
        embed_tokens,
        layers,
        norm,
        lm_head,
        max_position_embeddings: positions,
    };
    Ok((model, Cache::from_parts(config.layers, positions, rotary)))
}

/// A source that is never waited for.
struct AtOnce<'a>(&'a mut dyn WeightSource);

impl AsyncWeightSource for AtOnce<'_> {
    fn shape(&self, name: &str) -> Option<Shape> {
        self.0.shape(name)
    }

    fn read<'a>(&'a mut self, name: &'a str) -> Reading<'a> {
        Box::pin(std::future::ready(self.0.read(name)))
    }
}

/// The shapes of a source, which are there before its tensors.
struct Shapes<'a>(&'a dyn AsyncWeightSource);

impl WeightSource for Shapes<'_> {
    fn shape(&self, name: &str) -> Option<Shape> {
        self.0.shape(name)
    }

    fn read(&mut self, name: &str) -> Result<QTensor> {
        bail!("tensor {name:?} was read while shapes were checked")
    }
}

impl Config {
    /// Checks that every tensor of this model is there in its shape, and gives their names. `rope_freqs.weight`, biases and
    /// `output.weight` may be missing.
    ///
    /// # Errors
    /// The first that is missing, or has another shape.
    pub fn check_tensors(&self, source: &dyn WeightSource) -> Result<Vec<String>> {
        let attention = self.attention;
        let hidden = attention.hidden_size;
        let mut check = Check {
            source,
            found: Vec::new(),
        };
        let vocab = check.first_dim(EMBEDDING)?;
        check.required(EMBEDDING, &[vocab, hidden])?;
        check.required(OUTPUT_NORM, &[hidden])?;
        check.optional(OUTPUT, &[vocab, hidden])?;
        check.optional(ROPE_FACTORS, &[self.rope_dim / 2])?;
        let (q, kv) = (
            attention.heads * attention.head_dim,
            attention.kv_heads * attention.head_dim,
        );
        for layer in 0..self.layers {
            let prefix = format!("blk.{layer}");
            let name = |part: &str| format!("{prefix}.{part}.weight");
            check.required(&name("attn_norm"), &[hidden])?;
            check.required(&name("ffn_norm"), &[hidden])?;
            for (part, dims) in [
                ("attn_q", [q, hidden]),
                ("attn_k", [kv, hidden]),
                ("attn_v", [kv, hidden]),
                ("attn_output", [hidden, q]),
            ] {
                check.required(&name(part), &dims)?;
                check.optional(&format!("{prefix}.{part}.bias"), &dims[..1])?;
            }
            match self.experts {
                None => {
                    let inner = check.first_dim(&name("ffn_up"))?;
                    check.required(&name("ffn_gate"), &[inner, hidden])?;
                    check.required(&name("ffn_up"), &[inner, hidden])?;
                    check.required(&name("ffn_down"), &[hidden, inner])?;
                }
                Some(Experts { count, .. }) => {
                    check.required(&name("ffn_gate_inp"), &[count, hidden])?;
                    check.experts(&prefix, count, hidden)?;
                }
            }
        }
        Ok(check.found)
    }
}

/// Holds a source against expected shapes.
struct Check<'a> {
    source: &'a dyn WeightSource,
    found: Vec<String>,
}

impl Check<'_> {
    fn shape(&self, name: &str) -> Result<Shape> {
        let missing = || Error::Msg(format!("tensor {name:?} is missing")).bt();
        self.source.shape(name).ok_or_else(missing)
    }

    fn first_dim(&self, name: &str) -> Result<usize> {
        let shape = self.shape(name)?;
        Ok(shape.dims().first().copied().unwrap_or(0))
    }

    fn required(&mut self, name: &str, expected: &[usize]) -> Result<()> {
        let shape = self.shape(name)?;
        if shape.dims() != expected || shape.elem_count() == 0 {
            bail!(
                "tensor {name:?} has shape {:?}, the model needs {expected:?}",
                shape.dims()
            )
        }
        self.found.push(name.to_string());
        Ok(())
    }

    fn optional(&mut self, name: &str, expected: &[usize]) -> Result<()> {
        match self.source.shape(name) {
            None => Ok(()),
            Some(_) => self.required(name, expected),
        }
    }

    /// The experts of a layer: in one tensor, or each in its own as older files have them.
    fn experts(&mut self, prefix: &str, count: usize, hidden: usize) -> Result<()> {
        let up = expert_name(prefix, "ffn_up", None);
        if let Some(shape) = self.source.shape(&up) {
            let inner = shape.dims().get(1).copied().unwrap_or(0);
            self.required(
                &expert_name(prefix, "ffn_gate", None),
                &[count, inner, hidden],
            )?;
            self.required(&up, &[count, inner, hidden])?;
            return self.required(
                &expert_name(prefix, "ffn_down", None),
                &[count, hidden, inner],
            );
        }
        let inner = self.first_dim(&expert_name(prefix, "ffn_up", Some(0)))?;
        for expert in 0..count {
            for (part, dims) in [
                ("ffn_gate", [inner, hidden]),
                ("ffn_up", [inner, hidden]),
                ("ffn_down", [hidden, inner]),
            ] {
                self.required(&expert_name(prefix, part, Some(expert)), &dims)?;
            }
        }
        Ok(())
    }
}

/// The tensor of one expert, or that of all.
fn expert_name(prefix: &str, part: &str, expert: Option<usize>) -> String {
    match expert {
        Some(expert) => format!("{prefix}.{part}.{expert}.weight"),
        None => format!("{prefix}.{part}_exps.weight"),
    }
}

struct Loader<'a> {
    config: &'a Config,
    source: &'a mut dyn AsyncWeightSource,
    dtype: DType,
    device: &'a Device,
}

impl Loader<'_> {
    fn has(&self, name: &str) -> bool {
        self.source.shape(name).is_some()
    }

    async fn read(&mut self, name: &str) -> Result<QTensor> {
        let tensor = self.source.read(name).await;
        tensor.with_context(|| format!("reading tensor {name:?}"))
    }

    /// A weight on the device.
    async fn weight(&mut self, name: &str) -> Result<QMatMul> {
        let stored = self.read(name).await?;
        place(vec![stored], self.dtype, self.device)
            .with_context(|| format!("placing tensor {name:?}"))
    }

    async fn norm(&mut self, name: &str) -> Result<RmsNorm> {
        let stored = self.read(name).await?;
        let weight = place_dense(vec![stored], self.dtype, self.device)
            .with_context(|| format!("placing tensor {name:?}"))?;
        Ok(RmsNorm::new(weight, self.config.rms_norm_eps))
    }

    async fn stored(&mut self, name: &str) -> Result<StoredLinear> {
        let bias = format!("{name}.bias");
        Ok(StoredLinear {
            weight: self.read(&format!("{name}.weight")).await?,
            bias: if self.has(&bias) {
                Some(self.read(&bias).await?)
            } else {
                None
            },
        })
    }

    async fn projection(&mut self, name: &str) -> Result<Projection> {
        let stored = self.stored(name).await?;
        StoredLinear::stack(vec![stored], self.dtype, self.device)
            .with_context(|| format!("placing tensor {name:?}"))
    }

    async fn merged<const N: usize>(
        &mut self,
        prefix: &str,
        parts: [&str; N],
    ) -> Result<MergedLinear<N>> {
        let mut stored = Vec::with_capacity(N);
        for part in parts {
            stored.push(self.stored(&format!("{prefix}.{part}")).await?);
        }
        let Ok(stored) = <[StoredLinear; N]>::try_from(stored) else {
            bail!("{prefix}: not {N} parts")
        };
        MergedLinear::from_stored(stored, self.dtype, self.device)
            .with_context(|| format!("placing {} of {prefix}", parts.join(", ")))
    }

    async fn layer(&mut self, prefix: &str) -> Result<DecoderLayer> {
        let qkv = self.merged(prefix, ["attn_q", "attn_k", "attn_v"]).await?;
        let o_proj = self.projection(&format!("{prefix}.attn_output")).await?;
        let mlp = match self.config.experts {
            None => {
                let gate_up = self.merged(prefix, ["ffn_gate", "ffn_up"]).await?;
                let down = self.projection(&format!("{prefix}.ffn_down")).await?;
                FeedForward::Dense(GatedMlp::new(gate_up, down))
            }
            Some(experts) => FeedForward::Sparse(self.experts(prefix, experts).await?),
        };
        Ok(DecoderLayer::new(
            self.norm(&format!("{prefix}.attn_norm.weight")).await?,
            CausalSelfAttention::new(self.config.attention, qkv, o_proj),
            self.norm(&format!("{prefix}.ffn_norm.weight")).await?,
            mlp,
        ))
    }

    async fn experts(&mut self, prefix: &str, experts: Experts) -> Result<SparseMoe> {
        let router = self.projection(&format!("{prefix}.ffn_gate_inp")).await?;
        let count = experts.count;
        let gate = self.expert_weights(prefix, "ffn_gate", count).await?;
        let up = self.expert_weights(prefix, "ffn_up", count).await?;
        let down = self.expert_weights(prefix, "ffn_down", count).await?;
        SparseMoe::new(router, gate, up, down, experts.used)
    }

    /// The weights of all experts, `(experts, n, k)`.
    async fn expert_weights(&mut self, prefix: &str, part: &str, count: usize) -> Result<QMatMul> {
        let stacked = expert_name(prefix, part, None);
        if self.has(&stacked) {
            return self.weight(&stacked).await;
        }
        let mut parts = Vec::with_capacity(count);
        for expert in 0..count {
            let name = expert_name(prefix, part, Some(expert));
            let part = self.read(&name).await?;
            let (n, k) = part.shape().dims2()?;
            let storage = QStorage::from_data(part.data()?, &Device::Cpu, part.dtype())?;
            parts.push(QTensor::new(storage, (1, n, k))?);
        }
        place(parts, self.dtype, self.device).with_context(|| format!("placing {stacked}"))
    }
}
