//! Dense and quantised weights. A model over either is one type, whose parameter says from which builder it is loaded.

use std::fmt::Debug;

use candle_core::{DType, Device, Result};
use candle_nn::VarBuilder;

use super::{WeightSource, Weights};
use crate::quantized_var_builder;

/// A kind of weights: [`Dense`] or [`Quantized`].
pub trait WeightKind: Debug + Clone + 'static {
    /// The builder that has the tensors.
    type Builder<'a>: WeightSource;

    /// The builder of what is below `name`.
    fn below<'a>(vb: &Self::Builder<'a>, name: &str) -> Self::Builder<'a>;

    /// The dtype of activations, and the device.
    fn placement(vb: &Self::Builder<'_>) -> (DType, Device);

    /// The model that `load` makes of the weights of `vb`, in its dtype and on its device.
    ///
    /// # Errors
    /// Those of `load`.
    fn load<T>(
        mut vb: Self::Builder<'_>,
        load: impl FnOnce(&mut Weights<'_>) -> Result<T>,
    ) -> Result<T> {
        let (dtype, device) = Self::placement(&vb);
        load(&mut Weights::new(&mut vb, dtype, &device))
    }
}

/// Dense weights, in the dtype of their builder.
#[derive(Debug, Clone, Copy)]
pub enum Dense {}

impl WeightKind for Dense {
    type Builder<'a> = VarBuilder<'a>;

    fn below<'a>(vb: &Self::Builder<'a>, name: &str) -> Self::Builder<'a> {
        vb.pp(name)
    }

    fn placement(vb: &VarBuilder<'_>) -> (DType, Device) {
        (vb.dtype(), vb.device().clone())
    }
}

/// Quantised weights of a GGUF file. Activations are f32.
#[derive(Debug, Clone, Copy)]
pub enum Quantized {}

impl WeightKind for Quantized {
    type Builder<'a> = quantized_var_builder::VarBuilder;

    fn below<'a>(vb: &Self::Builder<'a>, name: &str) -> Self::Builder<'a> {
        vb.pp(name)
    }

    fn placement(vb: &Self::Builder<'_>) -> (DType, Device) {
        (DType::F32, vb.device().clone())
    }
}
