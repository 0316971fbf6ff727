//! Tokens with vectors for their positions, and the layers over them.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::rotary_emb::{Pairs, Rotation};

use super::{added_mask, check_source, load_layers, Layer, LayerNames, LayerSpec, Source, Visible};
use crate::blocks::encoder::{added_to_scores, check_text};
use crate::blocks::{Norm, RotaryTables, TokenEmbedding, Weights};

/// The angles of the tokens' rotations, (t, n) each.
#[derive(Debug, Clone)]
pub(crate) struct Angles {
    cos: Tensor,
    sin: Tensor,
    pairs: Pairs,
}

impl Angles {
    /// The angles of `t` positions from `start` on.
    ///
    /// # Errors
    /// If `tables` have fewer positions, or the device fails.
    pub(crate) fn of(tables: &RotaryTables, start: usize, t: usize) -> Result<Self> {
        let (cos, sin) = tables.rows(start, t)?;
        Ok(Self {
            cos,
            sin,
            pairs: tables.rotary().pairs.into(),
        })
    }

    /// As a layer takes them.
    pub(crate) fn rotation(&self) -> Rotation<'_> {
        Rotation::new(&self.cos, &self.sin, self.pairs)
    }
}

/// The position encoding of tokens.
#[derive(Debug, Clone)]
pub(crate) enum Positions {
    /// A table, (rows, hidden), whose row `first` is that of the first position.
    Learned { table: Tensor, first: usize },
    /// Sines and cosines, made when they are needed.
    Waves {
        /// A function of a position, an element and the size of a vector.
        wave: fn(usize, usize, usize) -> f64,
        /// The index of the first position.
        first: usize,
        /// The rows computed so far: (rows, hidden).
        table: Option<Tensor>,
    },
    /// None: positions rotate queries and keys.
    Rotary(RotaryTables),
}

impl Positions {
    /// [`Positions::Waves`] with an empty table.
    pub(crate) fn waves(wave: fn(usize, usize, usize) -> f64, first: usize) -> Self {
        Self::Waves {
            wave,
            first,
            table: None,
        }
    }

    /// Those of positions from `start` on, (t, hidden), if there are any.
    fn rows(
        &mut self,
        [start, t, hidden]: [usize; 3],
        dtype: DType,
        device: &Device,
    ) -> Result<Option<Tensor>> {
        let rows = match self {
            Self::Learned { table, first } => table.narrow(0, *first + start, t),
            Self::Rotary(_) => return Ok(None),
            Self::Waves { wave, first, table } => {
                let end = start + t;
                let long_enough = |table: &&Tensor| table.dims()[0] >= end;
                if let Some(table) = table.as_ref().filter(long_enough) {
                    return table.narrow(0, start, t).map(Some);
                }
                let rows = end.next_power_of_two().max(64);
                let (wave, first) = (*wave, *first);
                let row = |row| {
                    (0..hidden).map(move |i| wave(first.saturating_add(row), i, hidden) as f32)
                };
                let waves: Vec<f32> = (0..rows).flat_map(row).collect();
                let made = Tensor::from_vec(waves, (rows, hidden), device)?.to_dtype(dtype)?;
                *table = Some(made.clone());
                made.narrow(0, start, t)
            }
        };
        rows.map(Some)
    }

    /// The angles of the tokens from `start` on, if positions are rotary.
    fn angles(&self, start: usize, t: usize) -> Result<Option<Angles>> {
        let Self::Rotary(tables) = self else {
            return Ok(None);
        };
        Angles::of(tables, start, t).map(Some)
    }
}

/// A token table and the layers over it; a norm after the last layer belongs to the model.
#[derive(Debug, Clone)]
pub(crate) struct TextStack {
    /// The model's name, for errors.
    pub(crate) family: &'static str,
    pub(crate) table: TokenEmbedding,
    /// Factor of the table's vectors.
    pub(crate) table_scale: Option<f64>,
    pub(crate) positions: Positions,
    /// The norm of the vectors with their positions.
    pub(crate) norm: Option<Norm>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) spec: LayerSpec,
    /// Whether tokens see only those before them, whose keys and values are kept from call to call.
    pub(crate) decoder: bool,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

/// The input of a stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given<'a> {
    /// (batch, t).
    pub(crate) ids: &'a Tensor,
    /// The position of the first token. With 0 a decoder begins a new text.
    pub(crate) start: usize,
    /// Added to the scores of tokens; a decoder then has no other mask. See [`added_mask`].
    pub(crate) added: Option<&'a Tensor>,
    /// The mask of an encoder's tokens, (batch, t): 0 where one is hidden.
    pub(crate) mask: Option<&'a Tensor>,
    /// The output of an encoder.
    pub(crate) source: Option<&'a Tensor>,
    /// The mask of the encoder's output, (batch, keys): 0 where it is hidden.
    pub(crate) source_mask: Option<&'a Tensor>,
}

impl<'a> Given<'a> {
    /// Tokens from this position on, and nothing else.
    pub(crate) fn tokens(ids: &'a Tensor, start: usize) -> Self {
        Self {
            ids,
            start,
            added: None,
            mask: None,
            source: None,
            source_mask: None,
        }
    }
}

impl TextStack {
    /// Loads `count` layers whose names are `prefix` and a number. Layers that attend to what an encoder returned are a decoder's.
    pub(crate) async fn load(
        family: &'static str,
        spec: LayerSpec,
        (table, positions): (TokenEmbedding, Positions),
        count: usize,
        weights: &mut Weights<'_>,
        names: &LayerNames,
        prefix: &str,
    ) -> Result<Self> {
        Ok(Self {
            family,
            table,
            table_scale: None,
            positions,
            norm: None,
            layers: load_layers(&spec, count, weights, names, prefix).await?,
            decoder: spec.source.is_some(),
            spec,
            dtype: weights.dtype(),
            device: weights.device().clone(),
        })
    }

    /// How many tokens' keys and values are kept.
    pub(crate) fn seen(&self) -> usize {
        self.layers.first().map_or(0, Layer::seen)
    }

    /// Forgets the text.
    pub(crate) fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.reset();
        }
    }

    /// The vectors of the tokens, (batch, t, hidden).
    pub(crate) fn forward(&mut self, given: &Given) -> Result<Tensor> {
        let (family, limit, start) = (self.family, self.spec.limit, given.start);
        let (b, t) = check_text(family, given.ids, limit)?;
        if start.checked_add(t).is_none_or(|end| end > limit) {
            bail!(
                "{family}: {t} tokens after {start} others exceed the model's limit of {limit}; shorten the text"
            )
        }
        let masked = |name: &str, mask: &Tensor, keys: usize| {
            if mask.dims() == [b, keys] {
                added_to_scores(family, mask, DType::F32)
            } else {
                bail!(
                "{family}: the {name} mask is {:?}; for {b} texts of {keys} it must be ({b}, {keys})",
                mask.dims()
            )
            }
        };
        let added = match (given.added, given.mask) {
            (Some(added), _) => Some(added_mask(family, added, self.spec.heads)?),
            (None, Some(mask)) => Some(masked("attention", mask, t)?),
            (None, None) => None,
        };
        let mut source_mask = None;
        if let (Some(source), Some(size)) = (given.source, self.spec.source) {
            check_source(family, source, b, size)?;
            if let Some(mask) = given.source_mask {
                source_mask = Some(masked("encoder's", mask, source.dim(1)?)?);
            }
        }

        if self.decoder && start == 0 {
            self.reset();
        }
        let mut xs = self.table.forward(given.ids)?;
        if let Some(scale) = self.table_scale {
            xs = (xs * scale)?;
        }
        let sizes = [start, t, self.spec.hidden];
        if let Some(rows) = self.positions.rows(sizes, self.dtype, &self.device)? {
            xs = xs.broadcast_add(&rows)?;
        }
        let angles = self.positions.angles(start, t)?;
        if let Some(norm) = &self.norm {
            xs = norm.forward(&xs)?;
        }
        let visible = Visible {
            bias: added.as_ref(),
            causal: self.decoder && given.added.is_none(),
            kept: self.decoder,
            rotation: angles.as_ref().map(Angles::rotation),
        };
        let source = given.source.map(|hidden| Source {
            hidden,
            bias: source_mask.as_ref(),
        });
        xs = xs.to_dtype(self.spec.stream_dtype(self.dtype))?;
        for layer in &mut self.layers {
            xs = layer.forward(xs, &visible, source.as_ref())?;
        }
        Ok(xs)
    }
}
