//! Neural-network layers built on `candle-core`, with the public interface of Hugging Face's `candle-nn` 0.11.1.
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
//! # Usage
//!
//! A [`VarBuilder`] supplies layers with weights by name: from safetensors, `.npz` and PyTorch files, from a map of tensors, or from a
//! [`VarMap`] of trainable weights. An [`Optimizer`] updates the variables of a [`VarMap`] to minimise a [`loss`]:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{linear, loss, Module, Optimizer, VarBuilder, VarMap, SGD};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let vars = VarMap::new();
//! let layer = linear(1, 1, VarBuilder::from_varmap(&vars, DType::F32, &device))?;
//! let mut optimizer = SGD::new(vars.all_vars(), 0.1)?;
//! let xs = Tensor::new(&[[0f32], [1.], [2.]], &device)?;
//! let ys = Tensor::new(&[[1f32], [3.], [5.]], &device)?; // 2x + 1
//! for _ in 0..200 {
//!     let loss = loss::mse(&layer.forward(&xs)?, &ys)?;
//!     optimizer.backward_step(&loss)?;
//! }
//! let slope = layer.weight().flatten_all()?.to_vec1::<f32>()?[0];
//! assert!((slope - 2.).abs() < 0.01, "{slope}");
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `webgpu` enables the layers' WebGPU kernels, which `metal` uses too. It is candle-core's feature, and enabling it there is sufficient.
//! `mkl`, `accelerate`, `cuda`, `cudnn` and `metal` forward to candle-core, whose front page describes them.
//!
//! # Devices
//!
//! Everything runs and trains on the CPU and on WebGPU. Norms, softmax, rotary embeddings, attention and linear layers of few rows have
//! fused WebGPU kernels. Each fused op (one kernel) has a plain form `*_slow`, built from tensor ops. The plain form is the fused op's
//! test oracle, and runs if a gradient is needed. Gradients are therefore never detached silently.
//!
//! # Errors
//!
//! As in candle-core, functions return [`candle_core::Result`], whose error names the op, the shapes or the weight. A missing weight,
//! or one whose shape differs from the layer's, is an error with its full name.
//!
//! # Untrusted input
//!
//! candle-core's readers load the weights and return an error for damaged or hostile files. Layers check shapes before use.
//!
//! # Modules
//!
//! - One layer per file: [`linear`](mod@linear), [`embedding`](mod@embedding), [`conv`], [`rnn`], [`moe`], the norms
//!   [`layer_norm`](mod@layer_norm), [`batch_norm`](mod@batch_norm) and [`group_norm`](mod@group_norm), [`activation`],
//!   [`func`](mod@func), [`sequential`].
//! - [`var_builder`]: weights by name; [`init`]: initialisation of new ones. [`loss`] and [`optim`]: training.
//! - [`ops`] and [`rotary_emb`]: functions. [`attention`]: batches and packed sequences, with masks, windows and ALiBi; [`kv_cache`]:
//!   keys and values of past tokens.
#![deny(missing_docs)]

pub mod activation;
pub mod attention;
pub mod batch_norm;
mod compat;
pub mod conv;
pub mod embedding;
pub mod encoding;
pub mod func;
mod fused_cpu;
pub mod group_norm;
pub mod init;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod moe;
pub mod ops;
pub mod optim;
pub mod rnn;
pub mod rotary_emb;
pub mod sampling;
pub mod sequential;
pub mod var_builder;
pub mod var_map;

pub use activation::{prelu, Activation, PReLU};
pub use batch_norm::{batch_norm, BatchNorm, BatchNormConfig};
pub use candle_core::{Module, ModuleT};
// Upstream's former paths to functions of [`attention`].
pub use compat::{cpu_flash_attention, varlen_attention};
pub use conv::{
    conv1d, conv1d_no_bias, conv2d, conv2d_no_bias, conv_transpose1d, conv_transpose1d_no_bias,
    conv_transpose2d, conv_transpose2d_no_bias, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig,
    ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig,
};
pub use embedding::{embedding, Embedding};
pub use func::{func, func_t, Func, FuncT};
pub use group_norm::{group_norm, GroupNorm};
pub use init::Init;
pub use layer_norm::{
    layer_norm, layer_norm_no_bias, rms_norm, LayerNorm, LayerNormConfig, RmsNorm,
};
pub use linear::{linear, linear_b, linear_no_bias, Linear};
pub use ops::Dropout;
pub use optim::{AdamW, Optimizer, ParamsAdamW, SGD};
pub use rnn::{gru, lstm, GRUConfig, LSTMConfig, GRU, LSTM, RNN};
pub use sequential::{seq, Sequential};
pub use var_builder::VarBuilder;
pub use var_map::VarMap;

/// Doc tests of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
