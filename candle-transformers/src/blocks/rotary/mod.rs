//! Rotary position embeddings, RoPE: [arXiv 2104.09864](https://arxiv.org/abs/2104.09864).

mod axes;
mod scaling;
mod tables;

pub(crate) use axes::cos_sin;
pub use axes::{Axes, Position};
pub use scaling::RopeScaling;
pub use tables::RotaryTables;

use std::borrow::Cow;

use candle_nn::rotary_emb::Pairs;

/// The pairs of a head's elements that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `i` and `i + head_dim / 2`, as Hugging Face's checkpoints have them.
    Halves,
    /// `2 i` and `2 i + 1`, as Llama's own checkpoints and GGUF files have them.
    Neighbours,
}

impl From<RotaryPairs> for Pairs {
    fn from(pairs: RotaryPairs) -> Self {
        match pairs {
            RotaryPairs::Halves => Self::Halves,
            RotaryPairs::Neighbours => Self::Neighbours,
        }
    }
}

/// The angle per position of each pair of a head's rotated elements: `theta^(-2i / dim)` for `i` in `0 .. dim / 2`.
pub fn inverse_frequencies(theta: f64, dim: usize) -> Vec<f32> {
    (0..dim / 2)
        .map(|i| theta.powf(-(2. * i as f64) / dim as f64) as f32)
        .collect()
}

/// The rotation of a kind of layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// The pairs of elements that are rotated together.
    pub pairs: RotaryPairs,
    /// The angle per position of each pair. Heads may have more elements than twice as many: those are not rotated.
    pub frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub factor: f32,
    /// Other angles for sequences that are longer than this many positions.
    pub long: Option<(usize, Vec<f32>)>,
    /// Angles that shrink as a sequence grows past the model's context.
    pub dynamic: Option<Dynamic>,
    /// The axis of each pair, where tokens can have positions on three.
    pub axes: Option<Axes>,
}

/// Angles by the length of the sequence: the base grows with what is past `positions`. Transformers' `dynamic`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dynamic {
    /// The base within the context.
    pub theta: f64,
    /// Its growth factor.
    pub factor: f64,
    /// The context.
    pub positions: usize,
}

impl Rotary {
    /// Unscaled angles for the first `dim` elements of a head.
    pub fn new(pairs: RotaryPairs, theta: f64, dim: usize) -> Self {
        Self {
            pairs,
            frequencies: inverse_frequencies(theta, dim),
            factor: 1.,
            long: None,
            dynamic: None,
            axes: None,
        }
    }

    /// The index of the angles for a sequence of `len` positions: sequences of one kind share them.
    pub(crate) fn kind(&self, len: usize) -> usize {
        match (&self.long, self.dynamic) {
            (Some((short, _)), _) if len > *short => 1,
            (_, Some(dynamic)) if len > dynamic.positions => len,
            _ => 0,
        }
    }

    /// Whether a sequence of `len` positions keeps its angles however it grows.
    pub(crate) fn is_settled(&self, len: usize) -> bool {
        self.dynamic.is_none() && self.long.as_ref().is_none_or(|(short, _)| len > *short)
    }

    /// Whether sequences of different lengths have different angles.
    pub(crate) fn positions_of_one_kind(&self) -> usize {
        match (&self.long, self.dynamic) {
            (Some((short, _)), _) => *short,
            (_, Some(dynamic)) => dynamic.positions,
            _ => usize::MAX,
        }
    }

    pub(crate) fn by_length(&self) -> bool {
        self.long.is_some() || self.dynamic.is_some()
    }

    /// The angles of a sequence of `len` positions.
    pub(super) fn frequencies_of(&self, len: usize) -> Cow<'_, [f32]> {
        match (&self.long, self.dynamic) {
            (Some((short, long)), _) if len > *short => long.into(),
            (_, Some(dynamic)) if len > dynamic.positions => {
                let dim = 2 * self.frequencies.len();
                let times = dynamic.factor * len as f64 / dynamic.positions as f64;
                let grown = times - (dynamic.factor - 1.);
                let power = dim as f64 / (dim as f64 - 2.);
                inverse_frequencies(dynamic.theta * grown.powf(power), dim).into()
            }
            _ => (&self.frequencies).into(),
        }
    }

    /// Divides the angles of short sequences by `short`, those of long ones by `long`.
    pub(super) fn divide_by_length(&mut self, short: &[f32], long: &[f32]) {
        self.divide(short);
        if let Some((_, frequencies)) = &mut self.long {
            for (frequency, factor) in frequencies.iter_mut().zip(long) {
                *frequency /= factor;
            }
        }
    }

    /// Divides each angle by its factor, as `rope_freqs.weight` of GGUF files says.
    pub(super) fn divide(&mut self, factors: &[f32]) {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }
}
