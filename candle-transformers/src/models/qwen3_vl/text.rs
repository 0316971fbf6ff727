//! The decoder: Qwen3 with positions on three axes, and features of images added behind its first layers.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::config::TextConfig;
use crate::blocks::vision::three_axes::{Axes, Position};
use crate::blocks::{
    at_once, DecoderSpec, Head, Layer, LayerSpec, LayerState, LinearSpec, Norm, Projection,
    Residual, RotaryPairs, RotaryRows, RotaryTables, Rows, Step, TokenEmbedding, Weights,
};

/// The decoder with its weights.
#[derive(Debug, Clone)]
pub(super) struct TextModel {
    spec: DecoderSpec,
    axes: Axes,
    tables: RotaryTables,
    embedding: TokenEmbedding,
    layers: Vec<Layer>,
    norm: Norm,
    head: Projection,
}

/// Features of images for the stream.
#[derive(Debug)]
pub(super) struct Deep<'a> {
    /// The tokens that they are of, counted row by row: (n) in u32.
    pub at: Tensor,
    /// Vectors of each of the first layers: (n, hidden_size).
    pub levels: &'a [Tensor],
}

/// The positions of tokens.
#[derive(Debug)]
pub(super) enum Places<'a> {
    /// Consecutive, from a position for each row of the batch on.
    From(&'a [usize]),
    /// Those of each row, one row after another.
    At(&'a [Position]),
}

impl TextModel {
    /// Loads `model.language_model.*`, and `lm_head` unless it is tied.
    pub fn new(cfg: &TextConfig, mut vb: VarBuilder) -> Result<Self> {
        let spec = cfg.spec(vb.contains_tensor("lm_head.bias"))?;
        let axes = cfg.axes()?;
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        at_once(Self::load(&spec, &axes, &mut Weights::check(&mut vb)))?;
        let mut weights = Weights::new(&mut vb, dtype, &device);
        at_once(Self::load(&spec, &axes, &mut weights))
    }

    async fn load(spec: &DecoderSpec, axes: &Axes, weights: &mut Weights<'_>) -> Result<Self> {
        let (names, hidden) = (spec.names, spec.hidden);
        let embedding = weights
            .embedding(names.embedding, spec.vocab, hidden)
            .await?;
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            layers.push(Layer::load(layer, hidden, weights, &names, &names.layer(i)).await?);
        }
        let head = match spec.head {
            Head::Linear { bias } => {
                let head = LinearSpec {
                    name: names.head.to_string(),
                    in_dim: hidden,
                    out_dim: spec.vocab,
                    bias,
                };
                weights.linear(&head).await?
            }
            Head::Tied | Head::TiedWithBias | Head::Found { .. } | Head::None => embedding.tied(),
        };
        let norm = weights.norm(names.final_norm, hidden, spec.final_norm);
        let norm = norm.await?;
        let (dtype, device) = (weights.dtype(), weights.device());
        Ok(Self {
            tables: RotaryTables::new(&spec.rotaries[0], spec.positions, dtype, device),
            spec: spec.clone(),
            axes: axes.clone(),
            embedding,
            layers,
            norm,
            head,
        })
    }

    /// The specification of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The layers' state of an empty sequence.
    pub fn new_state(&self) -> Vec<LayerState> {
        let state = |layer: &LayerSpec| LayerState::new(&layer.mixer, self.spec.positions);
        self.spec.layers.iter().map(state).collect()
    }

    /// From ids (b, t) to (b, t, hidden_size).
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        self.embedding.forward(ids)
    }

    /// The rotary rows of the positions of a batch of `t` tokens in each row.
    fn rotation(&self, places: &Places, [b, t]: [usize; 2], xs: &Tensor) -> Result<RotaryRows> {
        let (cos, sin) = match places {
            Places::From([first, others @ ..]) if others.iter().all(|other| other == first) => {
                self.tables.rows(*first, t)?
            }
            Places::From(starts) => self.tables.rows_from(starts, t)?,
            Places::At(positions) => {
                let frequencies = &self.tables.rotary().frequencies;
                let (dtype, device) = (xs.dtype(), xs.device());
                self.axes.angles(positions, b, frequencies, dtype, device)?
            }
        };
        Ok(RotaryRows {
            cos,
            sin,
            pairs: RotaryPairs::Halves,
        })
    }

    /// The logits, (b, vocab), after the tokens `last`, one of each row, counted row by row; without it, the last of each. `rows` gives the
    /// rows' positions in `state`, if they differ.
    pub fn forward(
        &self,
        embeds: Tensor,
        places: &Places,
        rows: Option<&Rows>,
        deep: Option<&Deep>,
        last: Option<&Tensor>,
        state: &mut [LayerState],
    ) -> Result<Tensor> {
        let (b, t, hidden) = embeds.dims3()?;
        let step = Step {
            rotations: vec![self.rotation(places, [b, t], &embeds)?],
            mask: None,
            windows: false,
            rows,
            growth: None,
        };
        let mut xs = Residual::new(embeds);
        for (i, (layer, state)) in self.layers.iter().zip(state).enumerate() {
            xs = layer.forward(xs, &step, Some(state))?;
            if let Some((deep, level)) = deep.and_then(|deep| Some((deep, deep.levels.get(i)?))) {
                let (_, stream) = xs.normed(None)?;
                let stream = stream.reshape((b * t, hidden))?;
                let stream = stream.index_add(&deep.at, level, 0)?;
                xs = Residual::new(stream.reshape((b, t, hidden))?);
            }
        }
        let xs = match last {
            Some(last) => xs.of_tokens(last)?,
            None => xs.last_position()?,
        };
        let (_, logits) = xs.project(Some(&self.norm), &self.head)?;
        logits.reshape((b, self.spec.vocab))
    }
}
