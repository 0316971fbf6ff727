//! The layers between the embeddings and what a model is used for.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::{
    conv1d, layer_norm, linear, Activation, Conv1d, Conv1dConfig, LayerNorm, Linear, VarBuilder,
};

use super::attention::AddNorm;
use super::{Config, DebertaV2Attention};

/// An activation, as a layer.
#[derive(Debug, Clone)]
pub struct HiddenActLayer(pub(super) Activation);

impl HiddenActLayer {
    pub(super) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// The first half of a feed-forward block.
#[derive(Debug, Clone)]
pub struct DebertaV2Intermediate {
    dense: Linear,
    act: HiddenActLayer,
}

impl DebertaV2Intermediate {
    /// Loads `intermediate.dense`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            dense: linear(hidden, inner, vb.pp("intermediate").pp("dense"))?,
            act: HiddenActLayer(config.hidden_act.into()),
        })
    }

    /// From (.., hidden_size) to (.., intermediate_size).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor) -> Result<Tensor> {
        self.act.forward(&self.dense.forward(hidden_states)?)
    }
}

/// The second half of a feed-forward block, with its residual and norm.
#[derive(Debug, Clone)]
pub struct DebertaV2Output(AddNorm);

impl DebertaV2Output {
    /// Loads `output.dense` and `output.LayerNorm`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        AddNorm::load(config.intermediate_size, vb.pp("output"), config).map(Self)
    }

    /// From what the first half gives, (.., intermediate_size), and what it was given, (.., hidden_size), to the latter shape.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor, input_tensor: &Tensor) -> Result<Tensor> {
        self.0.forward(hidden_states, input_tensor)
    }
}

/// Attention and a feed-forward block.
#[derive(Debug, Clone)]
pub struct DebertaV2Layer {
    attention: DebertaV2Attention,
    intermediate: DebertaV2Intermediate,
    output: DebertaV2Output,
}

impl DebertaV2Layer {
    /// Loads `attention`, `intermediate` and `output`.
    ///
    /// # Errors
    /// Those of [`DebertaV2Attention::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            attention: DebertaV2Attention::load(vb.clone(), config)?,
            intermediate: DebertaV2Intermediate::load(vb.clone(), config)?,
            output: DebertaV2Output::load(vb, config)?,
        })
    }

    fn forward(
        &self,
        hidden_states: &Tensor,
        attention_mask: &Tensor,
        query_states: Option<&Tensor>,
        relative_pos: Option<&Tensor>,
        rel_embeddings: Option<&Tensor>,
    ) -> Result<Tensor> {
        let xs = self.attention.forward(
            hidden_states,
            attention_mask,
            query_states,
            relative_pos,
            rel_embeddings,
        )?;
        self.output.forward(&self.intermediate.forward(&xs)?, &xs)
    }
}

/// A convolution along the text, beside the first layer.
#[derive(Debug, Clone)]
pub struct ConvLayer {
    conv: Conv1d,
    /// `None` for tanh.
    act: Option<Activation>,
    norm: LayerNorm,
}

impl ConvLayer {
    /// Loads `conv` and `LayerNorm`.
    ///
    /// # Errors
    /// If `conv_kernel_size` is not odd, `conv_groups` does not divide the hidden size, `conv_act` is not known, or a weight is missing or
    /// has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let (kernel, groups) = (
            config.conv_kernel_size.unwrap_or(3),
            config.conv_groups.unwrap_or(1),
        );
        if kernel % 2 == 0 {
            bail!("debertav2: conv_kernel_size is {kernel}; it must be odd")
        }
        if groups == 0 || !hidden.is_multiple_of(groups) {
            bail!("debertav2: conv_groups {groups} does not divide hidden_size {hidden}")
        }
        let act = match config.conv_act.as_deref() {
            None | Some("tanh") => None,
            Some("gelu") => Some(Activation::Gelu),
            Some("relu") => Some(Activation::Relu),
            Some(other) => {
                bail!("debertav2: conv_act {other:?} is not supported; expected tanh, gelu or relu")
            }
        };
        let options = Conv1dConfig {
            padding: (kernel - 1) / 2,
            groups,
            ..Conv1dConfig::default()
        };
        Ok(Self {
            conv: conv1d(hidden, hidden, kernel, options, vb.pp("conv"))?,
            act,
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?,
        })
    }

    /// The convolution of `hidden_states` added to `residual_states`, (batch, seq, hidden_size) both, normed; zeros where `input_mask`,
    /// (batch, seq), is 0.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        hidden_states: &Tensor,
        residual_states: &Tensor,
        input_mask: &Tensor,
    ) -> Result<Tensor> {
        let mask = input_mask.to_dtype(residual_states.dtype())?.unsqueeze(2)?;
        let xs = hidden_states.transpose(1, 2)?.contiguous()?;
        let xs = self.conv.forward(&xs)?.transpose(1, 2)?;
        let xs = xs.broadcast_mul(&mask)?;
        let xs = match self.act {
            None => xs.tanh()?,
            Some(act) => act.forward(&xs)?,
        };
        let xs = self.norm.forward(&(residual_states + xs)?)?;
        xs.broadcast_mul(&mask)
    }
}

/// All layers.
#[derive(Debug, Clone)]
pub struct DebertaV2Encoder {
    layers: Vec<DebertaV2Layer>,
    /// The vectors of distances, (2 * span, hidden_size), and their norm.
    distances: Option<(Tensor, Option<LayerNorm>)>,
    conv: Option<ConvLayer>,
}

impl DebertaV2Encoder {
    /// Loads `layer.N`, and where the configuration asks for them `rel_embeddings`, `LayerNorm` and `conv`.
    ///
    /// # Errors
    /// Those of [`DebertaV2Layer::load`] and [`ConvLayer::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let layers = (0..config.num_hidden_layers)
            .map(|i| DebertaV2Layer::load(vb.pp("layer").pp(i), config));
        let layers = layers.collect::<Result<_>>()?;
        let distances = match config.distances() {
            Some(distances) => {
                let vb_table = vb.pp("rel_embeddings");
                let table = candle_nn::embedding(2 * distances.span(), hidden, vb_table)?;
                let kind = config.norm_rel_ebd.as_deref().unwrap_or("none").trim();
                let norm = match kind {
                    "layer_norm" => Some(layer_norm(
                        hidden,
                        config.layer_norm_eps,
                        vb.pp("LayerNorm"),
                    )?),
                    _ => None,
                };
                Some((table.embeddings().clone(), norm))
            }
            None => None,
        };
        let conv = match config.conv_kernel_size.unwrap_or(0) {
            0 => None,
            _ => Some(ConvLayer::load(vb.pp("conv"), config)?),
        };
        Ok(Self {
            layers,
            distances,
            conv,
        })
    }

    /// From (batch, seq, hidden_size) to the same shape.
    ///
    /// `attention_mask` is 1 for tokens and 0 for padding, (batch, seq), or (batch, seq, seq) with a row for each token that attends.
    /// `query_states`, of the shape of `hidden_states`, attend to these in each layer instead of to themselves. `relative_pos` are the
    /// numbers of the distances; see [`DebertaV2DisentangledSelfAttention::forward`](super::DebertaV2DisentangledSelfAttention::forward).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        hidden_states: &Tensor,
        attention_mask: &Tensor,
        query_states: Option<&Tensor>,
        relative_pos: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mask = attention_mask.to_dtype(DType::F32)?;
        // Of tokens, and of pairs of them.
        let (tokens, pairs) = match mask.rank() {
            2 => {
                let pairs = mask.unsqueeze(1)?.broadcast_mul(&mask.unsqueeze(2)?)?;
                (mask, pairs.unsqueeze(1)?)
            }
            3 => {
                let tokens = mask.sum(1)?.gt(0f64)?;
                (tokens, mask.unsqueeze(1)?)
            }
            _ => bail!(
                "debertav2: attention_mask is {:?}; it must be (batch, seq) or (batch, seq, seq)",
                mask.dims()
            ),
        };
        let vectors = match &self.distances {
            Some((table, Some(norm))) => Some(norm.forward(table)?),
            Some((table, None)) => Some(table.clone()),
            None => None,
        };
        let (mut states, mut queries) = (hidden_states.clone(), query_states.cloned());
        let mut output = states.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            output = layer.forward(
                &states,
                &pairs,
                queries.as_ref(),
                relative_pos,
                vectors.as_ref(),
            )?;
            if let (0, Some(conv)) = (i, &self.conv) {
                output = conv.forward(hidden_states, &output, &tokens)?;
            }
            match queries {
                Some(_) => queries = Some(output.clone()),
                None => states = output.clone(),
            }
        }
        Ok(output)
    }
}
