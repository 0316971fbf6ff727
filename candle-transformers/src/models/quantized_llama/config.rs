//! What a file's metadata says of its model.

use std::collections::HashMap;

use candle_core::quantized::ggml_file::HParams;
use candle_core::quantized::gguf_file::Value;
use candle_core::{bail, Context, Error, Result};

use super::MAX_SEQ_LEN;
use crate::blocks::{inverse_frequencies, AttentionConfig, RotaryPairs};

/// Architectures whose graph is Llama's, and how their files have the elements of a head.
const ARCHITECTURES: [(&str, RotaryPairs); 2] = [
    ("llama", RotaryPairs::Neighbours),
    ("qwen2", RotaryPairs::Halves),
];

const EPSILON: &str = "attention.layer_norm_rms_epsilon";

/// More positions than any model has. The tables of the rotary embedding grow with them, so a file must not be able to ask for all
/// of the memory.
const MAX_POSITIONS: usize = 1 << 22;

/// The most that any other size may be: large enough for every model, small enough that products of two fit.
const MAX_SIZE: u64 = 1 << 31;

/// The sizes of a model, from the metadata of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Sizes of the heads; `embedding_length`, `attention.head_count`, `attention.head_count_kv` and `attention.key_length`.
    pub attention: AttentionConfig,
    /// Decoder layers; `block_count`.
    pub layers: usize,
    /// Added to the mean square in the norms; `attention.layer_norm_rms_epsilon`.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies; `rope.freq_base`, 10000 where missing.
    pub rope_theta: f32,
    /// Elements of a head that are rotated; `rope.dimension_count`, all where missing.
    pub rope_dim: usize,
    /// What rotary frequencies are divided by; `rope.scaling.factor` where `rope.scaling.type` is `linear`, else 1.
    pub rope_scale: f32,
    /// The longest sequence; `context_length`, [`MAX_SEQ_LEN`] where missing.
    pub context_length: usize,
    /// Experts in place of one MLP; `expert_count` and `expert_used_count`.
    pub experts: Option<Experts>,
}

/// How many experts there are in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// In all.
    pub count: usize,
    /// For each token.
    pub used: usize,
}

impl Config {
    /// Reads the metadata of a GGUF file. A file that names no architecture is taken for a `llama`.
    ///
    /// # Errors
    /// Which key is missing, or has a value that does not fit; an architecture that is not supported.
    pub fn read(metadata: &HashMap<String, Value>) -> Result<Self> {
        let name = match metadata.get("general.architecture") {
            None => "llama",
            Some(name) => name
                .to_string()
                .context("GGUF metadata general.architecture")?,
        };
        let known = ARCHITECTURES.iter().find(|(known, _)| known == &name);
        let Some(&(architecture, rotary_pairs)) = known else {
            let known = ARCHITECTURES.map(|(known, _)| known).join(", ");
            bail!("GGUF metadata general.architecture: {name:?} is not supported, supported are {known}")
        };
        let keys = Keys {
            metadata,
            architecture,
        };
        let hidden_size = keys.required_size("embedding_length")?;
        let heads = keys.required_size("attention.head_count")?;
        let kv_heads = keys.size("attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = match keys.size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                return keys.refuse(
                    "embedding_length",
                    format!("{hidden_size} is no multiple of {heads} heads"),
                )
            }
        };
        let value_length = keys.size("attention.value_length")?.unwrap_or(head_dim);
        if value_length != head_dim {
            return keys.refuse(
                "attention.value_length",
                format!(
                    "{value_length} is not attention.key_length, {head_dim}; both have to agree"
                ),
            );
        }
        let used = keys.count("expert_used_count")?;
        let experts = keys.count("expert_count")?.map(|count| (count, used));
        let config = Self {
            attention: AttentionConfig {
                hidden_size,
                heads,
                kv_heads,
                head_dim,
                rotary_pairs,
            },
            layers: keys.required_size("block_count")?,
            rms_norm_eps: keys.required(EPSILON, keys.float(EPSILON)?)?,
            rope_theta: keys.float("rope.freq_base")?.unwrap_or(10_000.) as f32,
            rope_dim: keys.size("rope.dimension_count")?.unwrap_or(head_dim),
            rope_scale: keys.rope_scale()?,
            context_length: keys.size("context_length")?.unwrap_or(MAX_SEQ_LEN),
            experts: match experts {
                None | Some((0 | 1, None | Some(0 | 1))) => None,
                Some((count, used)) => Some(Experts {
                    count,
                    used: used.unwrap_or(0),
                }),
            },
        };
        config.check()?;
        Ok(config)
    }

    /// The sizes of a GGML file's model; `gqa` query heads share a key and value head.
    pub(super) fn of_ggml(sizes: &HParams, gqa: usize) -> Result<Self> {
        let (hidden_size, heads) = (sizes.n_embd as usize, sizes.n_head as usize);
        if heads == 0
            || gqa == 0
            || !heads.is_multiple_of(gqa)
            || !hidden_size.is_multiple_of(heads)
        {
            bail!("GGML hyperparameters: {hidden_size} wide with {heads} heads, of which {gqa} share keys and values")
        }
        let head_dim = hidden_size / heads;
        let config = Self {
            attention: AttentionConfig {
                hidden_size,
                heads,
                kv_heads: heads / gqa,
                head_dim,
                rotary_pairs: RotaryPairs::Neighbours,
            },
            layers: sizes.n_layer as usize,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.,
            rope_dim: head_dim,
            rope_scale: 1.,
            context_length: MAX_SEQ_LEN,
            experts: None,
        };
        config.check()?;
        Ok(config)
    }

    /// Checks what the layers take for granted.
    fn check(&self) -> Result<()> {
        let AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            rotary_pairs,
            ..
        } = self.attention;
        if !heads.is_multiple_of(kv_heads) {
            bail!("GGUF metadata: attention.head_count, {heads}, is no multiple of attention.head_count_kv, {kv_heads}")
        }
        let rope_dim = self.rope_dim;
        if !head_dim.is_multiple_of(2) || !rope_dim.is_multiple_of(2) || rope_dim > head_dim {
            bail!(
                "GGUF metadata: rope.dimension_count, {rope_dim}, of a head of {head_dim} elements cannot be rotated: both are \
                 even and the first is at most the second"
            )
        }
        if rotary_pairs == RotaryPairs::Halves && rope_dim != head_dim {
            bail!("GGUF metadata: rope.dimension_count is {rope_dim}, only whole heads of {head_dim} can be rotated in halves")
        }
        if self.context_length > MAX_POSITIONS {
            let found = self.context_length;
            bail!("GGUF metadata: context_length is {found}, at most {MAX_POSITIONS} are supported")
        }
        if let Some(Experts { count, used }) = self.experts {
            if !(1..=count).contains(&used) {
                bail!("GGUF metadata: expert_used_count is {used}, it has to be from 1 to expert_count, {count}")
            }
        }
        Ok(())
    }

    /// The rotary angle per position of each pair of a head's elements, `head_dim / 2` values; 0 for those that are not rotated.
    /// `factors`, which divide them, are those of `rope_freqs.weight`.
    pub(super) fn inverse_frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let mut frequencies = inverse_frequencies(self.rope_theta, self.rope_dim);
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            *frequency /= self.rope_scale * factors.map_or(1., |factors| factors[i]);
        }
        frequencies.resize(self.attention.head_dim / 2, 0.);
        frequencies
    }
}

/// The entries of one architecture.
struct Keys<'a> {
    metadata: &'a HashMap<String, Value>,
    architecture: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The value of a key that has to be there.
    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        let missing = || Error::Msg(format!("GGUF metadata {} is missing", self.name(key))).bt();
        value.ok_or_else(missing)
    }

    fn refuse<T>(&self, key: &str, problem: String) -> Result<T> {
        bail!("GGUF metadata {}: {problem}", self.name(key))
    }

    /// A value, if the key is there, with the key in errors.
    fn get<T>(&self, key: &str, read: impl FnOnce(&Value) -> Result<T>) -> Result<Option<T>> {
        let value = self.metadata.get(&self.name(key)).map(read).transpose();
        value.with_context(|| format!("GGUF metadata {}", self.name(key)))
    }

    fn count(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key, Value::to_u64)? {
            None => Ok(None),
            Some(count) if count <= MAX_SIZE => Ok(Some(count as usize)),
            Some(count) => self.refuse(key, format!("{count}, at most {MAX_SIZE} is supported")),
        }
    }

    /// A number of at least 1.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.count(key)? {
            Some(0) => self.refuse(key, "0, it has to be at least 1".into()),
            size => Ok(size),
        }
    }

    fn required_size(&self, key: &str) -> Result<usize> {
        self.required(key, self.size(key)?)
    }

    /// A finite number above 0.
    fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key, Value::to_f64)? {
            Some(number) if !(number.is_finite() && number > 0.) => self.refuse(
                key,
                format!("{number}, it has to be a finite number above 0"),
            ),
            number => Ok(number),
        }
    }

    fn rope_scale(&self) -> Result<f32> {
        let kind = self.get("rope.scaling.type", |value| Ok(value.to_string()?.clone()))?;
        match kind.as_deref() {
            None | Some("none") => Ok(1.),
            Some("linear") => {
                let key = "rope.scaling.factor";
                Ok(self.required(key, self.float(key)?)? as f32)
            }
            Some(other) => self.refuse(
                "rope.scaling.type",
                format!("{other:?} is not supported, supported are none and linear"),
            ),
        }
    }
}
