//! All these models behind one interface.

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::quantized_var_builder;
use serde_json::Value;

use super::Made;

/// A model behind one interface.
pub(super) trait Writer {
    /// The encoder's output, for ids of a text or of an image's vectors.
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor>;
    /// The logits after the last of `ids`, (batch, vocab); `start` tokens came before.
    fn decode(
        &mut self,
        ids: &Tensor,
        encoded: &Tensor,
        mask: Option<&Tensor>,
        start: usize,
    ) -> Result<Tensor>;
    fn reset(&mut self);
}

/// The logits after each of `pieces`, consecutive parts of a text with these lengths.
pub(super) fn in_pieces(
    model: &mut dyn Writer,
    ids: &Tensor,
    encoded: &Tensor,
    mask: Option<&Tensor>,
    pieces: &[usize],
) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let mut logits = Vec::new();
    for &piece in pieces {
        let input = ids.narrow(1, start, piece)?;
        logits.push(model.decode(&input, encoded, mask, start)?);
        start += piece;
    }
    Ok(logits)
}

/// A model of images, and the dtype that it computes in.
pub(super) struct OfPicture<M>(pub(super) M, pub(super) DType);

pub(super) type Loaded = Result<Box<dyn Writer>>;

pub(super) struct Model {
    /// The family, as errors have it.
    pub(super) name: &'static str,
    pub(super) json: fn() -> Value,
    pub(super) load: fn(&Value, &Made, DType, &Device) -> Loaded,
    /// From a GGUF file, where there is a form for it.
    pub(super) quantized: Option<fn(&Value, quantized_var_builder::VarBuilder) -> Loaded>,
    /// Whether it reads texts, which can be hidden in part.
    pub(super) texts: bool,
    /// A field of the configuration that cannot be 0.
    pub(super) size: &'static str,
}

impl Model {
    pub(super) fn f32(&self, device: &Device) -> Loaded {
        (self.load)(&(self.json)(), &Made::default(), DType::F32, device)
    }
}
