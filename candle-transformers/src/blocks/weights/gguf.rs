//! What the metadata of a GGUF file says of its model, after the
//! [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

use std::collections::HashMap;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::{bail, Context, Error, Result, Shape};
use candle_nn::ops::GatedActivation;
use candle_nn::Activation;

use super::{Names, Order, WeightSource};
use crate::blocks::{
    check_layers, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, LayerSpec,
    MlpSpec, NormSpec, PlainSpec, RopeScaling, Rotary, RotaryPairs, Routing, SharedSpec,
};

/// More positions than any model has: a file must not be able to ask for all of the memory.
const MAX_POSITIONS: usize = 1 << 22;

/// The most that any other size may be: large enough for every model, small enough that products of two fit.
const MAX_SIZE: u64 = 1 << 31;

/// The longest sequence where a file does not say.
const DEFAULT_POSITIONS: usize = 4096;

/// The metadata of a file, with the architecture that its keys begin with, and the names and shapes of its tensors.
pub struct GgufMetadata<'a> {
    values: &'a HashMap<String, Value>,
    source: &'a dyn WeightSource,
    architecture: String,
}

impl<'a> GgufMetadata<'a> {
    /// The metadata `values` of a file with the tensors of `source`. A file that names no architecture is taken for a `llama`.
    ///
    /// # Errors
    /// If `general.architecture` is not text, or the file is one of several that a model is in.
    pub fn new(values: &'a HashMap<String, Value>, source: &'a dyn WeightSource) -> Result<Self> {
        if let Some((part, count)) = gguf_file::part_of(values)? {
            bail!(
                "the file is part {} of {count} of a model; open all with gguf_file::open or MmapedContent, or join them into one file \
                 with llama-gguf-split --merge",
                part + 1
            )
        }
        let architecture = match values.get("general.architecture") {
            None => "llama".to_string(),
            Some(name) => name
                .to_string()
                .context("GGUF metadata general.architecture")?
                .clone(),
        };
        Ok(Self {
            values,
            source,
            architecture,
        })
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Checks that the architecture is one of `known`.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect(&self, known: &[&str]) -> Result<()> {
        if known.contains(&self.architecture()) {
            return Ok(());
        }
        bail!(
            "GGUF metadata general.architecture: {:?} is not supported here; supported: {}",
            self.architecture,
            known.join(", ")
        )
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The value of a key that has to be there.
    ///
    /// # Errors
    /// If it is not.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        let missing = || Error::Msg(format!("GGUF metadata {} is missing", self.name(key))).bt();
        value.ok_or_else(missing)
    }

    /// The error of a key whose value does not fit.
    ///
    /// # Errors
    /// Always.
    pub fn refuse<T>(&self, key: &str, problem: String) -> Result<T> {
        bail!("GGUF metadata {}: {problem}", self.name(key))
    }

    /// A value, if the key is there, with the key in errors. Keys are given without the architecture.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get<T>(&self, key: &str, read: impl FnOnce(&Value) -> Result<T>) -> Result<Option<T>> {
        let value = self.values.get(&self.name(key)).map(read).transpose();
        value.with_context(|| format!("GGUF metadata {}", self.name(key)))
    }

    /// The text of `key`.
    ///
    /// # Errors
    /// If the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<String>> {
        self.get(key, |value| Ok(value.to_string()?.clone()))
    }

    /// A switch.
    ///
    /// # Errors
    /// If the value is not true or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, Value::to_bool)
    }

    /// A number that counts something.
    ///
    /// # Errors
    /// If the value is not a number that counts, or a very large one.
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key, Value::to_u64)? {
            None => Ok(None),
            Some(count) if count <= MAX_SIZE => Ok(Some(count as usize)),
            Some(count) => self.refuse(key, format!("{count}; the maximum is {MAX_SIZE}")),
        }
    }

    /// A number of at least 1.
    ///
    /// # Errors
    /// As [`count`](Self::count), or it is 0.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.count(key)? {
            Some(0) => self.refuse(key, "0; it must be at least 1".into()),
            size => Ok(size),
        }
    }

    /// A number of at least 1 that has to be there.
    ///
    /// # Errors
    /// As [`size`](Self::size), or it is missing.
    pub fn required_size(&self, key: &str) -> Result<usize> {
        self.required(key, self.size(key)?)
    }

    /// One number per layer; a single number counts for all layers.
    ///
    /// # Errors
    /// If the value is not a number or a list of `layers` numbers.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        let Some(values) = self
            .get(key, |value| Ok(value.to_vec().ok().cloned()))?
            .flatten()
        else {
            return Ok(self.count(key)?.map(|one| vec![one; layers]));
        };
        let value = |value: &Value| match value {
            // Files count in signed numbers too.
            Value::I32(n) => Ok(u64::try_from(*n).unwrap_or(u64::MAX)),
            other => other.to_u64(),
        };
        let counts = values.iter().map(value).collect::<Result<Vec<_>>>();
        let counts = counts.with_context(|| format!("GGUF metadata {}", self.name(key)))?;
        if counts.len() != layers || counts.iter().any(|count| *count > MAX_SIZE) {
            return self.refuse(key, format!("{counts:?}, expected {layers} sizes"));
        }
        Ok(Some(
            counts.into_iter().map(|count| count as usize).collect(),
        ))
    }

    /// A finite number above 0.
    ///
    /// # Errors
    /// If the value is not a finite number above 0.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key, Value::to_f64)? {
            Some(number) if !(number.is_finite() && number > 0.) => {
                self.refuse(key, format!("{number}; it must be a finite number above 0"))
            }
            number => Ok(number),
        }
    }

    /// A finite number above 0 that has to be there.
    ///
    /// # Errors
    /// As [`float`](Self::float), or it is missing.
    pub fn required_float(&self, key: &str) -> Result<f64> {
        self.required(key, self.float(key)?)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: &str) -> Option<Shape> {
        self.source.shape(tensor)
    }

    /// Whether the first layer has a tensor.
    pub fn first_layer_has(&self, part: &str) -> bool {
        self.source.contains(&format!("blk.0.{part}"))
    }

    /// Decoder layers; `block_count`.
    ///
    /// # Errors
    /// If it is missing or 0, or more than any model has.
    pub fn layers(&self) -> Result<usize> {
        let count = self.required_size("block_count")?;
        check_layers(count)
            .with_context(|| format!("GGUF metadata {}", self.name("block_count")))?;
        Ok(count)
    }

    /// Size of the stream; `embedding_length`.
    ///
    /// # Errors
    /// If it is missing or 0.
    pub fn hidden(&self) -> Result<usize> {
        self.required_size("embedding_length")
    }

    /// The longest sequence; `context_length`.
    ///
    /// # Errors
    /// If it is 0, or larger than any model's.
    pub fn positions(&self) -> Result<usize> {
        let key = "context_length";
        match self.size(key)?.unwrap_or(DEFAULT_POSITIONS) {
            many if many > MAX_POSITIONS => {
                self.refuse(key, format!("{many}; the maximum is {MAX_POSITIONS}"))
            }
            positions => Ok(positions),
        }
    }

    /// The norm of the layers, without a mean.
    ///
    /// # Errors
    /// If `attention.layer_norm_rms_epsilon` is missing.
    pub fn rms_norm(&self) -> Result<NormSpec> {
        let eps = self.required_float("attention.layer_norm_rms_epsilon")?;
        Ok(NormSpec::rms(eps))
    }

    /// The norm of the layers, with a mean.
    ///
    /// # Errors
    /// If `attention.layer_norm_epsilon` is missing.
    pub fn layer_norm(&self) -> Result<NormSpec> {
        let eps = self.required_float("attention.layer_norm_epsilon")?;
        if self.first_layer_has("attn_norm.bias") {
            Ok(NormSpec::layer(eps))
        } else {
            Ok(NormSpec::layer_no_bias(eps))
        }
    }

    /// Attention with the heads, and with the biases and the layout that the first layer has.
    ///
    /// # Errors
    /// If a size is missing or does not fit.
    pub fn attention(&self) -> Result<AttentionSpec> {
        let hidden = self.hidden()?;
        let heads = self.required_size("attention.head_count")?;
        let kv_heads = self
            .per_layer("attention.head_count_kv", self.layers()?)?
            .and_then(|counts| counts.into_iter().max())
            .unwrap_or(heads);
        let head_dim = match self.size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return self.refuse(
                    "embedding_length",
                    format!("{hidden} is not a multiple of {heads} heads"),
                )
            }
        };
        let value_length = self.size("attention.value_length")?.unwrap_or(head_dim);
        if value_length != head_dim {
            return self.refuse(
                "attention.value_length",
                format!(
                    "{value_length} differs from attention.key_length, {head_dim}; they must be equal"
                ),
            );
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return self.refuse(
                "attention.head_count",
                format!("{heads} is not a multiple of attention.head_count_kv, {kv_heads}"),
            );
        }
        let joined = self.first_layer_has("attn_qkv.weight");
        Ok(AttentionSpec {
            head_dim,
            qkv_bias: self.first_layer_has("attn_q.bias") || self.first_layer_has("attn_qkv.bias"),
            o_bias: self.first_layer_has("attn_output.bias"),
            joined: joined.then_some(Order::Layers),
            ..AttentionSpec::new(hidden, heads, kv_heads)
        })
    }

    /// The rotation of heads of `head_dim` elements.
    ///
    /// # Errors
    /// If a number is missing or does not fit.
    pub fn rotary(&self, pairs: RotaryPairs, head_dim: usize) -> Result<Rotary> {
        self.scaled_rotary(pairs, head_dim, &self.rope_scaling()?)
    }

    /// The scaling of the rotation; `rope.scaling.*`.
    ///
    /// # Errors
    /// If a value is of another kind.
    pub fn rope_scaling(&self) -> Result<RopeScaling> {
        let kind = self.text("rope.scaling.type")?;
        Ok(RopeScaling {
            rope_type: kind.unwrap_or_else(|| "none".into()),
            factor: self.float("rope.scaling.factor")?,
            original_max_position_embeddings: self.size("rope.scaling.original_context_length")?,
            attention_factor: self.float("rope.scaling.attn_factor")?,
            ..RopeScaling::none()
        })
    }

    /// As [`rotary`](Self::rotary), scaled so.
    ///
    /// # Errors
    /// If a number is missing or does not fit.
    pub fn scaled_rotary(
        &self,
        pairs: RotaryPairs,
        head_dim: usize,
        scaling: &RopeScaling,
    ) -> Result<Rotary> {
        let dim = self.size("rope.dimension_count")?.unwrap_or(head_dim);
        if !dim.is_multiple_of(2) || dim > head_dim {
            return self.refuse(
                "rope.dimension_count",
                format!("{dim}; it must be even and at most the head size, {head_dim}"),
            );
        }
        let theta = self.float("rope.freq_base")?.unwrap_or(10_000.);
        scaling
            .rotary(pairs, theta, dim, self.positions()?)
            .with_context(|| format!("GGUF metadata {}", self.name("rope.scaling")))
    }

    /// A gated MLP, with the biases and the layout that the first layer has.
    ///
    /// # Errors
    /// If its size is missing.
    pub fn gated_mlp(&self, activation: GatedActivation) -> Result<FeedForwardSpec> {
        let joined = !self.first_layer_has("ffn_gate.weight");
        let mlp = MlpSpec::new(self.inner()?, activation).bias(self.has_mlp_bias());
        Ok(FeedForwardSpec::Gated(MlpSpec {
            joined: joined.then_some(Order::Layers),
            ..mlp
        }))
    }

    /// A plain MLP, with the biases that the first layer has.
    ///
    /// # Errors
    /// If its size is missing.
    pub fn plain_mlp(&self, activation: Activation) -> Result<FeedForwardSpec> {
        Ok(FeedForwardSpec::Plain(PlainSpec {
            inner: self.inner()?,
            activation,
            bias: self.has_mlp_bias(),
        }))
    }

    fn has_mlp_bias(&self) -> bool {
        self.first_layer_has("ffn_up.bias")
    }

    /// Inner size of the MLP; files of the first years do not say it.
    fn inner(&self) -> Result<usize> {
        match self.size("feed_forward_length")? {
            Some(inner) => Ok(inner),
            None => match self.shape("blk.0.ffn_down.weight") {
                Some(shape) => Ok(shape.dims2()?.1),
                None => self.required("feed_forward_length", None),
            },
        }
    }

    /// Experts, if the file has any.
    ///
    /// # Errors
    /// If one of their sizes is missing or does not fit.
    pub fn experts(
        &self,
        activation: GatedActivation,
        routing: Routing,
    ) -> Result<Option<FeedForwardSpec>> {
        let (count, used) = (
            self.count("expert_count")?,
            self.count("expert_used_count")?,
        );
        let (count, used) = match (count, used) {
            (None, _) | (Some(0 | 1), None | Some(0 | 1)) => return Ok(None),
            (Some(count), used) => (count, used.unwrap_or(0)),
        };
        if !(1..=count).contains(&used) {
            return self.refuse(
                "expert_used_count",
                format!("{used}; it must be from 1 to expert_count, {count}"),
            );
        }
        let from_shape = || {
            let stacked = self.shape("blk.0.ffn_up_exps.weight");
            let each = self.shape("blk.0.ffn_up.0.weight");
            let inner = stacked.map(|s| s.dims().get(1).copied());
            inner
                .or_else(|| each.map(|s| s.dims().first().copied()))
                .flatten()
        };
        let inner = match self.size("expert_feed_forward_length")?.or_else(from_shape) {
            Some(inner) => inner,
            None => self.required_size("feed_forward_length")?,
        };
        let shared = match self.shape("blk.0.ffn_up_shexp.weight") {
            Some(shape) => Some(SharedSpec {
                inner: shape.dims2()?.0,
                gated: self.first_layer_has("ffn_gate_inp_shexp.weight"),
                joined: None,
            }),
            None => None,
        };
        let routing = Routing { used, ..routing };
        Ok(Some(FeedForwardSpec::Experts(ExpertsSpec {
            shared,
            bias: self.first_layer_has("ffn_gate_exps.bias"),
            ..ExpertsSpec::new(count, inner, activation, routing)
        })))
    }

    /// A decoder of these layers, with the sizes that the file says, and the table of tokens as its output layer if it has no other.
    ///
    /// # Errors
    /// If a size is missing or does not fit.
    pub fn decoder(
        &self,
        family: &'static str,
        rotaries: Vec<Rotary>,
        layers: Vec<LayerSpec>,
        final_norm: NormSpec,
    ) -> Result<DecoderSpec> {
        let embedding = "token_embd.weight";
        let Some(shape) = self.shape(embedding) else {
            bail!("tensor {embedding:?} is missing")
        };
        let (vocab, _) = shape
            .dims2()
            .with_context(|| format!("tensor {embedding:?}"))?;
        let sizes = [vocab, self.hidden()?, self.positions()?];
        Ok(DecoderSpec {
            head: if self.source.contains("output.weight") {
                Head::Linear {
                    bias: self.source.contains("output.bias"),
                }
            } else {
                Head::Tied
            },
            names: Names::GGUF,
            ..DecoderSpec::new(family, sizes, rotaries, layers, final_norm)
        })
    }
}
