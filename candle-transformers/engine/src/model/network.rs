//! What a model's files say of the network, whichever files they are.

use super::gguf::GgufContent;
use super::split::Parts;
use super::weights::{Headers, Mapped, Weights};
use crate::error::Doing;
use crate::format::WeightFormat;
use crate::Result;
use candle_core::{DType, Device, Shape};
use candle_transformers::blocks::{Decoder, DecoderPart, DecoderSpec, Reread, WeightSource};
use candle_transformers::lora::Plan;
use std::fmt;
use std::sync::Arc;

/// The network and its weights, which are still in their files. Every tensor's name and shape has been checked.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) spec: DecoderSpec,
    /// The tensors of the network.
    pub(super) tensors: Vec<String>,
    pub(super) files: Arc<Files>,
    /// Changes by adapters.
    pub(super) plan: Option<Arc<Plan>>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.tensors.len();
        write!(f, "Network({}, {tensors} tensors)", self.spec.family)
    }
}

/// The weights of a model whose first layers are on the CPU, for prompts that run elsewhere.
#[derive(Debug)]
struct Again {
    network: Network,
    /// The dtype and the device of copies.
    to: (DType, Device),
}

impl Reread for Again {
    fn reread(
        &self,
        load: &mut dyn FnMut(&mut dyn WeightSource) -> candle_core::Result<()>,
    ) -> candle_core::Result<()> {
        let (dtype, device) = &self.to;
        // An adapter changes weights where they are: copies have to be equal to those on the CPU.
        let to = self.network.plan.is_none().then_some((*dtype, device));
        self.network.load(to, &|_| (), load)
    }
}

/// The source of the weights.
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
        match &*self.files {
            Files::Safetensors(weights) => weights.bytes(name),
            Files::Gguf(content) => content.bytes(name),
        }
    }

    /// The size of a tensor on a device where activations are of `dtype`: blocks stay blocks.
    pub(super) fn placed_bytes(&self, name: &str, dtype: DType) -> u64 {
        let numbers = |shape: Option<Shape>| shape.map_or(0, |shape| shape.elem_count() as u64);
        let dense = |shape| numbers(shape) * dtype.size_in_bytes() as u64;
        match &*self.files {
            Files::Safetensors(weights) => dense(Headers(weights).shape(name)),
            Files::Gguf(content) => match content.tensor_infos.get(name) {
                Some(info) if info.ggml_dtype.block_size() > 1 => content.bytes(name),
                info => dense(info.map(|info| info.shape.clone())),
            },
        }
    }

    /// The names of the tensors, each with the part of the decoder that it belongs to.
    pub(super) fn weights_of_parts(&self) -> Result<Vec<(DecoderPart, String)>> {
        let spec = self.spec.clone();
        let parts = match &*self.files {
            Files::Safetensors(weights) => Decoder::weights_of_parts(spec, &mut Headers(weights)),
            Files::Gguf(content) => Decoder::weights_of_parts(spec, &mut &*content),
        };
        parts.doing("checking the weights")
    }

    /// The stored size of all tensors.
    pub(super) fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|name| self.bytes(name)).sum()
    }

    /// The storage format of the weights; if they differ, that of most bytes.
    pub(super) fn format(&self) -> WeightFormat {
        let mut sums: Vec<(WeightFormat, u64)> = Vec::new();
        for name in &self.tensors {
            let format = match &*self.files {
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

    /// Whether a matrix is stored as floats, and not as blocks.
    pub(super) fn has_dense_matrices(&self) -> bool {
        let Files::Gguf(content) = &*self.files else {
            return true;
        };
        self.tensors.iter().any(|name| {
            let info = &content.tensor_infos[name];
            let format = WeightFormat::from(info.ggml_dtype);
            info.shape.rank() > 1 && matches!(format, WeightFormat::Dense(_))
        })
    }

    /// The default dtype of activations on a GPU.
    pub(super) fn activations(&self) -> DType {
        self.format().activations()
    }

    /// The network on `device` with activations of `dtype`, with some parts elsewhere.
    pub(super) fn place(
        &self,
        dtype: DType,
        device: &Device,
        parts: Option<Parts>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Decoder> {
        let spec = self.spec.clone();
        let loaded = match parts {
            None => self.load(Some((dtype, device)), progress, |source| {
                Decoder::load(spec, source, dtype, device)
            }),
            // Each part goes from the file to its device.
            Some(Parts { offload, streamed }) => {
                let loaded = self.load(None, progress, |source| {
                    Decoder::load_offloaded(spec, source, dtype, device, offload)
                });
                loaded.map(|decoder| match streamed {
                    true => decoder.with_streamed_layers(Arc::new(Again {
                        network: self.clone(),
                        to: (dtype, device.clone()),
                    })),
                    false => decoder,
                })
            }
        };
        loaded.doing("loading the weights")
    }

    /// The share of one rank of `group`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn place_rank(
        &self,
        dtype: DType,
        device: &Device,
        group: Arc<dyn candle_core::distributed::Communicator>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> candle_core::Result<Decoder> {
        self.load(Some((dtype, device)), progress, |source| {
            Decoder::load_rank(self.spec.clone(), source, dtype, device, group)
        })
    }

    /// Loads dense weights onto a device, or with none as they are stored.
    fn load<T>(
        &self,
        to: Option<(DType, &Device)>,
        progress: &(dyn Fn(u64) + Send + Sync),
        load: impl FnOnce(&mut dyn WeightSource) -> T,
    ) -> T {
        let load = |source: &mut dyn WeightSource| match &self.plan {
            Some(plan) => load(&mut plan.over(source)),
            None => load(source),
        };
        match &*self.files {
            Files::Safetensors(weights) => load(&mut Mapped {
                weights,
                to,
                progress,
            }),
            Files::Gguf(content) => load(&mut super::gguf::Reported { content, progress }),
        }
    }
}
