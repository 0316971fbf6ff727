//! What a model's files say of the network, whichever files they are.

use super::gguf::GgufContent;
use super::weights::{Mapped, Weights};
use crate::error::Doing;
use crate::format::WeightFormat;
use crate::Result;
use candle_core::{DType, Device};
use candle_transformers::blocks::{Decoder, DecoderSpec, WeightSource};

/// The network and its weights, which are still in their files. Every tensor's name and shape has been checked.
pub(super) struct Network {
    pub(super) spec: DecoderSpec,
    /// The tensors of the network.
    pub(super) tensors: Vec<String>,
    pub(super) files: Files,
}

/// Where the weights are.
pub(super) enum Files {
    /// In safetensors files.
    Safetensors(Weights),
    /// In a GGUF file.
    Gguf(GgufContent),
}

impl Network {
    /// The longest sequence.
    pub(super) fn max_positions(&self) -> usize {
        self.spec.positions
    }

    /// The stored size of a tensor, in bytes.
    fn bytes(&self, name: &str) -> u64 {
        match &self.files {
            Files::Safetensors(weights) => weights.bytes(name),
            Files::Gguf(content) => content.bytes(name),
        }
    }

    /// The stored size of all tensors.
    pub(super) fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|name| self.bytes(name)).sum()
    }

    /// What the weights are stored as; where they differ, most of them by size.
    pub(super) fn format(&self) -> WeightFormat {
        let mut sums: Vec<(WeightFormat, u64)> = Vec::new();
        for name in &self.tensors {
            let format = match &self.files {
                Files::Safetensors(weights) => WeightFormat::Dense(weights.dtype(name)),
                Files::Gguf(content) => content.tensor_infos[name].ggml_dtype.into(),
            };
            match sums.iter_mut().find(|(other, _)| *other == format) {
                Some((_, sum)) => *sum += self.bytes(name),
                None => sums.push((format, self.bytes(name))),
            }
        }
        let largest = sums.into_iter().max_by_key(|(_, sum)| *sum);
        largest.map_or(WeightFormat::Dense(DType::F32), |(format, _)| format)
    }

    /// What activations on a GPU are, unless something else is asked for.
    pub(super) fn activations(&self) -> DType {
        self.format().activations()
    }

    /// The network on `device` with activations of `dtype`.
    pub(super) fn place(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Decoder> {
        self.load(dtype, device, progress, |source| {
            Decoder::load(self.spec.clone(), source, dtype, device)
        })
        .doing("loading the weights")
    }

    /// The share of one rank of `group`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn place_rank(
        &self,
        dtype: DType,
        device: &Device,
        group: std::sync::Arc<dyn candle_core::distributed::Communicator>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> candle_core::Result<Decoder> {
        self.load(dtype, device, progress, |source| {
            Decoder::load_rank(self.spec.clone(), source, dtype, device, group)
        })
    }

    fn load<T>(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
        load: impl FnOnce(&mut dyn WeightSource) -> T,
    ) -> T {
        match &self.files {
            Files::Safetensors(weights) => load(&mut Mapped {
                weights,
                dtype,
                device,
                progress,
            }),
            Files::Gguf(content) => load(&mut super::gguf::Reported { content, progress }),
        }
    }
}
