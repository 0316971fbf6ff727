//! Neural-network layers over `candle-core`, with the public interface of Hugging Face's `candle-nn` 0.11.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{linear, Activation, Module, VarBuilder, VarMap};
//! # fn main() -> candle_core::Result<()> {
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let layer = linear(3, 2, vb.pp("proj"))?;
//! let xs = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
//! let ys = xs.apply(&layer)?.apply(&Activation::Relu)?;
//! assert_eq!(ys.dims(), &[4, 2]);
//! # Ok(())
//! # }
//! ```
//!
//! # Where things are
//! - A layer a file: [`linear`](mod@linear), [`embedding`](mod@embedding), [`layer_norm`](mod@layer_norm), [`activation`],
//!   [`func`](mod@func), [`sequential`].
//! - [`var_builder`]: weights by name, from safetensors files, a map, or a [`VarMap`]; [`init`]: how new ones are filled.
//! - [`ops`] and [`rotary_emb`]: functions. A fused op (one kernel) sits beside its plain form, made of tensor ops and
//!   named `*_slow`. The plain form is what the fused one is tested against, and what runs where a gradient is wanted.
//! - [`kv_cache`]: keys and values of past tokens.
#![deny(missing_docs)]

pub mod activation;
mod cpu;
pub mod embedding;
pub mod encoding;
pub mod func;
pub mod init;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod ops;
pub mod rotary_emb;
pub mod sampling;
pub mod sequential;
pub mod var_builder;
pub mod var_map;

pub use activation::{prelu, Activation, PReLU};
pub use candle_core::{Module, ModuleT};
pub use embedding::{embedding, Embedding};
pub use func::{func, func_t, Func, FuncT};
pub use init::Init;
pub use layer_norm::{
    layer_norm, layer_norm_no_bias, rms_norm, LayerNorm, LayerNormConfig, RmsNorm,
};
pub use linear::{linear, linear_b, linear_no_bias, Linear};
pub use ops::Dropout;
pub use sequential::{seq, Sequential};
pub use var_builder::VarBuilder;
pub use var_map::VarMap;
