//! A decoder on two devices: its first layers, or the experts of all, are where there is more memory.
//!
//! The stream crosses from the first layers to the rest once a call, and to experts and back once a layer. What a call tells the layers,
//! such as cosines and masks, is made where the first layer is, and copied with the stream.

use candle_core::{bail, DType, Device, Result, Tensor};

use super::{DecoderSpec, RotaryRows, Step};
use crate::blocks::Rows;

/// A part of a decoder's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecoderPart {
    /// The table of tokens, and that of positions.
    Embedding,
    /// A layer, without its experts.
    Layer(usize),
    /// The experts of a layer, with their router and what all tokens share.
    Experts(usize),
    /// The last norm and the output layer.
    Head,
}

/// The device of weights, and the dtype of activations there.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The device.
    pub device: Device,
    /// The dtype of activations.
    pub dtype: DType,
}

impl Placement {
    /// That of a tensor.
    pub(super) fn of(xs: &Tensor) -> Self {
        Self {
            device: xs.device().clone(),
            dtype: xs.dtype(),
        }
    }

    /// Activations, which are copied there.
    pub(super) fn moved(&self, xs: &Tensor) -> Result<Tensor> {
        xs.to_device(&self.device)?.to_dtype(self.dtype)
    }
}

/// The parts of a decoder that are not on its device, but on another one: most often the CPU.
#[derive(Debug, Clone)]
pub struct Offload {
    /// The device of these parts.
    pub to: Placement,
    /// Number of layers, from the first on. With one or more, the token table is included. The output layer never is.
    pub layers: usize,
    /// Whether the experts of the other layers are.
    pub experts: bool,
}

impl Offload {
    /// Whether this part is one of them.
    pub fn has(&self, part: DecoderPart) -> bool {
        match part {
            DecoderPart::Embedding => self.layers > 0,
            DecoderPart::Layer(layer) => layer < self.layers,
            DecoderPart::Experts(layer) => self.experts || layer < self.layers,
            DecoderPart::Head => false,
        }
    }

    pub(super) fn check(&self, spec: &DecoderSpec) -> Result<()> {
        let (layers, of) = (self.layers, spec.layers.len());
        if layers > of {
            bail!(
                "{}: {layers} layers were to be on {:?}, but the model has {of}",
                spec.family,
                self.to.device.location()
            )
        }
        Ok(())
    }
}

/// A [`Step`] on another device.
pub(super) struct MovedStep {
    rotations: Vec<RotaryRows>,
    mask: Option<Tensor>,
    windows: bool,
    rows: Option<Rows>,
    growth: Option<Tensor>,
}

impl MovedStep {
    pub(super) fn new(step: &Step, to: &Placement) -> Result<Self> {
        let rotation = |rows: &RotaryRows| {
            Ok(RotaryRows {
                cos: to.moved(&rows.cos)?,
                sin: to.moved(&rows.sin)?,
                pairs: rows.pairs,
            })
        };
        let moved = |xs: &Tensor| to.moved(xs);
        let rows = |rows: &Rows| -> Result<Rows> {
            Ok(Rows {
                starts: rows.starts.to_device(&to.device)?,
                ..rows.clone()
            })
        };
        Ok(Self {
            rotations: step.rotations.iter().map(rotation).collect::<Result<_>>()?,
            mask: step.mask.map(moved).transpose()?,
            windows: step.windows,
            rows: step.rows.map(rows).transpose()?,
            growth: step.growth.as_ref().map(moved).transpose()?,
        })
    }

    pub(super) fn step(&self) -> Step<'_> {
        Step {
            rotations: self.rotations.clone(),
            mask: self.mask.as_ref(),
            windows: self.windows,
            rows: self.rows.as_ref(),
            growth: self.growth.clone(),
        }
    }
}
