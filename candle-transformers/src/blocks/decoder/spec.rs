//! What a decoder is made of, as data: a family's configuration becomes a [`DecoderSpec`], and everything else follows from that.

use candle_core::{bail, Result};

use super::super::weights::{WeightFactors, Weights};
use super::super::{
    AttentionSpec, DeltaSpec, FeedForwardSpec, GrowingKvCache, LatentSpec, Names, NormSpec,
    RecurrentSpec, Rotary, ShortConvSpec, StateSpaceSpec,
};
use super::growth::QueryGrowth;

/// More layers than any model has: a file must not be able to ask for all of the memory.
const MAX_LAYERS: usize = 1 << 12;

/// `count` layers, the specification of each by its index.
///
/// # Errors
/// If there are more than any model has; what `layer` says.
pub fn layers(
    count: usize,
    layer: impl FnMut(usize) -> Result<LayerSpec>,
) -> Result<Vec<LayerSpec>> {
    check_layers(count)?;
    (0..count).map(layer).collect()
}

/// Checks a number of layers, before anything is made for each.
///
/// # Errors
/// If there are more than any model has.
pub(crate) fn check_layers(count: usize) -> Result<()> {
    if count > MAX_LAYERS {
        bail!("{count} layers; the maximum is {MAX_LAYERS}")
    } else {
        Ok(())
    }
}

/// A decoder before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The family's name, for messages.
    pub family: &'static str,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Size of the residual stream.
    pub hidden: usize,
    /// Maximum sequence length, in tokens.
    pub positions: usize,
    /// The rotations that layers refer to.
    pub rotaries: Vec<Rotary>,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// Factor of the embeddings.
    pub embedding_scale: Option<f64>,
    /// Rows of a table of learned positions that is added to the embeddings.
    pub learned_positions: Option<usize>,
    /// The growth of queries with their position.
    pub query_growth: Option<QueryGrowth>,
    /// The norm after the last layer.
    pub final_norm: NormSpec,
    /// The output layer.
    pub head: Head,
    /// Factor of the logits.
    pub logit_scale: Option<f64>,
    /// Replaces a logit by `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f64>,
    /// The names of the weights in files.
    pub names: Names,
    /// The names in other files: those count whose table of tokens is there.
    pub other_names: Vec<Names>,
    /// The factors of the weights of a layer's projections, which are multiplied as they are read.
    pub factors: Vec<WeightFactors>,
    /// Whether files have the weights of the layers' projections as `(inputs, outputs)` (GPT-2).
    pub transposed: bool,
}

/// From the stream to logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// A layer with a separate weight.
    Linear {
        /// Whether it has a bias.
        bias: bool,
    },
    /// The table of tokens, unless the file has an output layer with another weight.
    Tied,
    /// As [`Tied`](Self::Tied), with a bias.
    TiedWithBias,
    /// A layer with a separate weight if the file has one, else the table of tokens: where a configuration says neither.
    Found {
        /// Whether it has a bias.
        bias: bool,
    },
    /// None: the model gives the stream.
    None,
}

impl Head {
    /// The table of tokens if `tied` says so, else a layer without bias.
    pub fn tied(tied: bool) -> Self {
        if tied {
            Self::Tied
        } else {
            Self::Linear { bias: false }
        }
    }

    /// The head of the family, given a file's `tie_word_embeddings`; `None` if the file has no such field.
    pub fn said(self, tied: Option<bool>) -> Self {
        let bias = match self {
            Self::None => return Self::None,
            Self::Linear { bias } | Self::Found { bias } => bias,
            Self::Tied => false,
            Self::TiedWithBias => true,
        };
        match (tied, self) {
            (Some(true), _) if bias => Self::TiedWithBias,
            (Some(true), _) => Self::Tied,
            (Some(false), _) => Self::Linear { bias },
            (None, Self::Linear { bias }) => Self::Found { bias },
            (None, other) => other,
        }
    }
}

/// A layer before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The token mixer.
    pub mixer: MixerSpec,
    /// The feed-forward block after the mixer.
    pub feed_forward: FeedForwardSpec,
    /// All norms of the layer.
    pub norm: NormSpec,
    /// The wiring of norms and residual connections.
    pub wiring: Wiring,
    /// Factor of the output of each block before it is added to the stream.
    pub residual_scale: Option<f64>,
}

impl LayerSpec {
    /// A layer whose blocks have a norm before each.
    pub fn pre_norm(
        mixer: impl Into<MixerSpec>,
        feed_forward: FeedForwardSpec,
        norm: NormSpec,
    ) -> Self {
        Self {
            mixer: mixer.into(),
            feed_forward,
            norm,
            wiring: Wiring::Pre,
            residual_scale: None,
        }
    }

    /// Its attention, to set what a file says beyond the family's configuration; `None` if something else mixes positions.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match &mut self.mixer {
            MixerSpec::Attention(attention) | MixerSpec::Both(attention, _) => Some(attention),
            _ => None,
        }
    }
}

/// The token mixer of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerSpec {
    /// Causal attention.
    Attention(AttentionSpec),
    /// Causal attention to short vectors.
    Latent(LatentSpec),
    /// A gated short convolution.
    ShortConv(ShortConvSpec),
    /// A state of fixed size.
    Recurrent(RecurrentSpec),
    /// The gated delta rule.
    Delta(DeltaSpec),
    /// Mamba 2's state space.
    StateSpace(StateSpaceSpec),
    /// Attention and a state space in parallel, whose results are added (Falcon-H1).
    Both(AttentionSpec, StateSpaceSpec),
}

impl MixerSpec {
    /// About how many numbers a layer keeps of a sequence of `len` positions: keys and values, with the capacity that a cache takes for them,
    /// or the state of a recurrence.
    pub fn kept_numbers(&self, len: usize, positions: usize) -> usize {
        let cached = |window: Option<usize>, each: usize| {
            let len = window.map_or(len, |window| len.min(window));
            GrowingKvCache::capacity_for(len, positions, window).saturating_mul(each)
        };
        let keys = |attention: &AttentionSpec| {
            let each = 2 * attention.kv_heads * attention.head_dim;
            cached(attention.window, each)
        };
        let space = |space: &StateSpaceSpec| {
            let heads = &space.heads;
            heads.inner() * heads.state + heads.channels() * space.kernel
        };
        match self {
            Self::Attention(attention) => keys(attention),
            Self::Latent(latent) => cached(None, latent.kv_rank + latent.rotated_dim),
            Self::Delta(delta) => delta.value_heads * delta.key_dim * delta.value_dim,
            Self::StateSpace(spec) => space(spec),
            Self::Both(attention, spec) => keys(attention) + space(spec),
            // A few vectors.
            Self::ShortConv(_) | Self::Recurrent(_) => 0,
        }
    }
}

impl From<StateSpaceSpec> for MixerSpec {
    fn from(spec: StateSpaceSpec) -> Self {
        Self::StateSpace(spec)
    }
}

impl From<DeltaSpec> for MixerSpec {
    fn from(spec: DeltaSpec) -> Self {
        Self::Delta(spec)
    }
}

impl From<LatentSpec> for MixerSpec {
    fn from(spec: LatentSpec) -> Self {
        Self::Latent(spec)
    }
}

impl From<ShortConvSpec> for MixerSpec {
    fn from(spec: ShortConvSpec) -> Self {
        Self::ShortConv(spec)
    }
}

impl From<RecurrentSpec> for MixerSpec {
    fn from(spec: RecurrentSpec) -> Self {
        Self::Recurrent(spec)
    }
}

impl From<AttentionSpec> for MixerSpec {
    fn from(spec: AttentionSpec) -> Self {
        Self::Attention(spec)
    }
}

/// The wiring of a layer's norms. `x` is the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// `x += block(norm(x))`, for both blocks (Llama).
    Pre,
    /// `x += norm(block(norm(x)))` (Gemma 2).
    Sandwich,
    /// `x += norm(block(x))` (OLMo 2).
    PostInside,
    /// `x = norm(x + block(x))` (BERT).
    PostOutside,
    /// `n = norm(x); x += attention(n) + mlp(n)` (Phi).
    Parallel,
    /// `x += attention(norm(x)) + mlp(other_norm(x))` (Falcon 40B).
    ParallelTwoNorms,
}

impl DecoderSpec {
    /// A decoder of these layers, with a separate output layer, and nothing else; names are those of the Hugging Face Hub.
    pub fn new(
        family: &'static str,
        [vocab, hidden, positions]: [usize; 3],
        rotaries: Vec<Rotary>,
        layers: Vec<LayerSpec>,
        final_norm: NormSpec,
    ) -> Self {
        Self {
            family,
            vocab,
            hidden,
            positions,
            rotaries,
            layers,
            embedding_scale: None,
            learned_positions: None,
            query_growth: None,
            final_norm,
            head: Head::Linear { bias: false },
            logit_scale: None,
            logit_softcap: None,
            names: Names::HUGGING_FACE,
            other_names: Vec::new(),
            factors: Vec::new(),
            transposed: false,
        }
    }

    /// The same in a checkpoint that may have encoders of images or sound too, under the names of either version of Transformers or alone.
    pub fn beside_encoders(self) -> Self {
        let [names, others @ ..] = self.names.beside_encoders();
        Self {
            names,
            other_names: others.to_vec(),
            ..self
        }
    }

    /// The same for a checkpoint in which the language model is `text_model`, with an encoder of images or alone.
    pub(crate) fn into_text_model(self) -> Self {
        let names = Names {
            embedding: "model.text_model.embed_tokens",
            layers: "model.text_model.layers",
            final_norm: "model.text_model.norm",
            ..self.names
        };
        Self {
            other_names: vec![self.names],
            names,
            ..self
        }
    }

    /// The same with the names that the file has.
    pub(super) fn named(mut self, weights: &Weights<'_>) -> Self {
        let table = |names: &Names| weights.has(&format!("{}.weight", names.embedding));
        let others = std::mem::take(&mut self.other_names);
        // If no table exists, the error names the first.
        if let (false, Some(names)) = (table(&self.names), others.into_iter().find(table)) {
            self.names = names;
        }
        self
    }

    /// Checks the layers' assumptions, so that a bad configuration is an error before weights are read.
    ///
    /// # Errors
    /// The first assumption that does not hold.
    pub fn check(&self) -> Result<()> {
        let family = self.family;
        if self.vocab == 0 || self.hidden == 0 || self.positions == 0 {
            bail!(
                "{family}: vocabulary size {}, hidden size {} and {} positions; each must be at least 1",
                self.vocab,
                self.hidden,
                self.positions
            )
        }
        for layer in &self.layers {
            match &layer.mixer {
                MixerSpec::Attention(attention) => attention.check(&self.rotaries)?,
                MixerSpec::Latent(attention) => attention.check(&self.rotaries)?,
                MixerSpec::ShortConv(conv) => conv.check()?,
                MixerSpec::Recurrent(recurrent) => recurrent.check(self.hidden)?,
                MixerSpec::Delta(delta) => delta.check()?,
                MixerSpec::StateSpace(space) => space.check()?,
                MixerSpec::Both(attention, space) => {
                    attention.check(&self.rotaries)?;
                    space.check()?;
                }
            }
            if let FeedForwardSpec::Experts(experts) = &layer.feed_forward {
                experts.check()?;
            }
        }
        Ok(())
    }
}
