//! The split of a model's layers between a GPU and the CPU, and the number that fit.

use super::network::Network;
use crate::device::describe;
use crate::error::Doing;
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_transformers::blocks::{
    Decoder, DecoderPart, DecoderSpec, FeedForwardSpec, MixerSpec, Offload, Placement,
};
use std::fmt;
use std::str::FromStr;

/// Number of layers on the GPU: the last ones. The token table is on the first layer's device, the output layer on the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// All of them.
    #[default]
    All,
    /// The largest number that fits.
    Auto,
    /// This many.
    Count(usize),
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "auto" => Ok(Self::Auto),
            number => match number.parse() {
                Ok(count) => Ok(Self::Count(count)),
                Err(_) => Err("expected a number, auto or all".to_string()),
            },
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

/// The split of a model between a GPU and the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Layers on the GPU.
    pub gpu_layers: GpuLayers,
    /// Whether experts are on the CPU, those of the GPU's layers too.
    pub cpu_experts: bool,
    /// Bytes that [`GpuLayers::Auto`] may use, where not all that is free.
    pub gpu_memory: Option<u64>,
    /// Texts at once that [`GpuLayers::Auto`] leaves room for.
    pub texts: usize,
    /// Tokens of a text that it leaves room for.
    pub context: usize,
    /// Tokens of a prompt, read at once, that it leaves room for.
    pub prompt: usize,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            gpu_layers: GpuLayers::All,
            cpu_experts: false,
            gpu_memory: None,
            texts: 1,
            context: 4096,
            prompt: 512,
        }
    }
}

/// Bytes of a layer on the GPU.
#[derive(Debug, Default, Clone, Copy)]
struct LayerBytes {
    weights: u64,
    experts: u64,
    kept: u64,
}

/// Memory of a model on a GPU: weights as they are stored, a cache, and room to compute in.
#[derive(Debug)]
pub struct Needs {
    /// Bytes of the token table, if the first layer is on the GPU.
    table: u64,
    layers: Vec<LayerBytes>,
    /// The output layer.
    head: u64,
    /// Bytes of a call's own tensors, and the copy of a layer's cache as it grows.
    computing: u64,
    cpu_experts: bool,
    /// Texts that the cache is for.
    texts: usize,
    /// The largest number of first layers on the CPU whose weights are copied to the GPU for a prompt; `None` if no prompt is that long.
    streamed: Option<usize>,
}

/// The parts of a model that are not on its device.
pub(super) struct Parts {
    pub(super) offload: Offload,
    /// Whether prompts run on the device in the layers elsewhere too.
    pub(super) streamed: bool,
}

impl Needs {
    /// Number of the model's layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Bytes of all weights.
    pub fn weights(&self) -> u64 {
        let layers = self
            .layers
            .iter()
            .map(|layer| layer.weights + layer.experts);
        self.table + self.head + layers.sum::<u64>()
    }

    /// Bytes of the cache of all layers.
    pub fn cache(&self) -> u64 {
        self.layers.iter().map(|layer| layer.kept).sum()
    }

    /// Bytes of what a call computes.
    pub fn computing(&self) -> u64 {
        self.computing
    }

    /// Bytes on the GPU with the last `count` layers there.
    pub fn with(&self, count: usize) -> u64 {
        let layers = &self.layers[self.layers.len() - count.min(self.layers.len())..];
        let layer = |layer: &LayerBytes| {
            if self.cpu_experts {
                layer.weights + layer.kept
            } else {
                layer.weights + layer.kept + layer.experts
            }
        };
        let table = if count >= self.layers.len() {
            self.table
        } else {
            0
        };
        let here = layers.iter().map(layer).sum::<u64>();
        self.head + self.computing + table + here + self.streaming(self.layers.len() - layers.len())
    }

    /// Bytes for a prompt to pass through the first `count` layers, which are on the CPU, and through experts there: the weights of one that
    /// runs and of the next, and the cache that one of these layers has of one text. 0 if prompts run on the CPU.
    fn streaming(&self, count: usize) -> u64 {
        if self.streamed.is_none_or(|most| count > most) {
            return 0;
        }
        let first = self.layers.iter().take(count);
        let kept = first.map(|layer| layer.kept).max().unwrap_or(0);
        let copied = match self.cpu_experts {
            true => self.layers.len(),
            false => count,
        };
        let copied = self.layers.iter().take(copied);
        let weights = copied.map(|layer| layer.weights + layer.experts);
        let mut weights: Vec<u64> = weights.collect();
        weights.sort_unstable();
        weights.iter().rev().take(2).sum::<u64>() + kept / self.texts.max(1) as u64
    }

    /// Bytes on the CPU with the last `count` layers on the GPU.
    pub fn on_cpu(&self, count: usize) -> u64 {
        let here = self.without_streaming().with(count);
        self.with(self.layers()).saturating_sub(here)
    }

    /// The same, if prompts run on the CPU in the layers that are there.
    fn without_streaming(&self) -> Self {
        Self {
            streamed: None,
            layers: self.layers.clone(),
            ..*self
        }
    }

    /// Whether prompts run on the GPU in the layers and experts that are on the CPU, with the last `count` layers on the GPU.
    fn streams(&self, count: usize) -> bool {
        let first = self.layers.len() - count.min(self.layers.len());
        let has_some = first > 0 || self.cpu_experts;
        has_some && self.streamed.is_some_and(|most| first <= most)
    }

    /// The number of layers that fit into `bytes`, and whether prompts of the others run on the GPU too, which takes room: only where
    /// one layer is left beside it. `None` if not even the output layer fits.
    fn split(&self, bytes: u64) -> Option<(usize, bool)> {
        match self.fitting_streamed(bytes) {
            Some(count) if count > 0 => Some((count, self.streams(count))),
            _ => {
                let count = self.without_streaming().fitting_streamed(bytes)?;
                Some((count, false))
            }
        }
    }

    /// Number of layers that fit into `bytes`; `None` if not even the output layer does.
    pub fn fitting(&self, bytes: u64) -> Option<usize> {
        self.split(bytes).map(|(count, _)| count)
    }

    fn fitting_streamed(&self, bytes: u64) -> Option<usize> {
        (0..=self.layers.len())
            .rev()
            .find(|count| self.with(*count) <= bytes)
    }
}

impl Split {
    /// Whether everything is on one device.
    pub fn is_whole(&self) -> bool {
        self.gpu_layers == GpuLayers::All && !self.cpu_experts
    }

    /// The parts that are not on `device`, with activations of `dtype` and keys and values of `kv` there.
    pub(super) fn offload(
        &self,
        network: &Network,
        device: &Device,
        dtype: DType,
        kv: DType,
    ) -> Result<Option<Parts>> {
        let layers = network.spec.layers.len();
        if self.is_whole() {
            return Ok(None);
        }
        if device.is_cpu() {
            // With no GPU there, no layer fits on it.
            return match (self.gpu_layers, self.cpu_experts) {
                (GpuLayers::Auto | GpuLayers::Count(0), _) | (GpuLayers::All, true) => Ok(None),
                (count, _) => Err(Error::Parameter {
                    name: "gpu_layers",
                    value: count.to_string(),
                    expected: "0, auto or all for a model on the CPU",
                }),
            };
        }
        let has_experts = |layer: &candle_transformers::blocks::LayerSpec| {
            matches!(layer.feed_forward, FeedForwardSpec::Experts(_))
        };
        if self.cpu_experts && !network.spec.layers.iter().any(has_experts) {
            return Err(Error::Parameter {
                name: "cpu_experts",
                value: "true".to_string(),
                expected: "a model with experts: this one has none",
            });
        }
        let free = match self.gpu_memory {
            Some(bytes) => Some(bytes),
            None => free_memory(device)?,
        };
        let (count, streamed) = match self.gpu_layers {
            GpuLayers::Count(count) if count > layers => {
                return Err(Error::TooManyLayers { count, layers })
            }
            GpuLayers::All | GpuLayers::Count(_) => {
                let count = match self.gpu_layers {
                    GpuLayers::Count(count) => count,
                    _ => layers,
                };
                let needs = self.needs(network, dtype, kv)?;
                let has_room = free.is_none_or(|free| needs.with(count) <= free);
                (count, has_room && needs.streams(count))
            }
            GpuLayers::Auto => {
                let free = free.ok_or_else(|| Error::Parameter {
                    name: "gpu_layers",
                    value: "auto".to_string(),
                    expected: "a number of layers, or gpu_memory beside it: this device does not say how much memory is free",
                })?;
                let needs = self.needs(network, dtype, kv)?;
                needs.split(free).ok_or_else(|| Error::TooLarge {
                    device: describe(device),
                    needed: needs.without_streaming().with(0),
                    free,
                    fits: None,
                    layers,
                })?
            }
        };
        let to = Placement {
            device: Device::Cpu,
            dtype: DType::F32,
        };
        Ok((count < layers || self.cpu_experts).then_some(Parts {
            offload: Offload {
                to,
                layers: layers - count,
                experts: self.cpu_experts,
            },
            streamed,
        }))
    }

    /// The error of a model that failed to load and is larger than what was free before; `None` if it is not.
    pub(super) fn too_large(
        &self,
        network: &Network,
        device: &Device,
        dtype: DType,
        kv: DType,
        free: Option<u64>,
    ) -> Option<Error> {
        let (free, needs) = (free?, self.needs(network, dtype, kv).ok()?);
        let layers = network.spec.layers.len();
        let needed = needs.without_streaming().with(match self.gpu_layers {
            GpuLayers::Count(count) => count,
            _ => layers,
        });
        (needed > free).then(|| Error::TooLarge {
            device: describe(device),
            needed,
            free,
            fits: needs.fitting(free),
            layers,
        })
    }

    /// The memory that the model takes on the GPU.
    pub(super) fn needs(&self, network: &Network, dtype: DType, kv: DType) -> Result<Needs> {
        let spec = &network.spec;
        let mut table = 0;
        let mut head = 0;
        let mut layers = vec![LayerBytes::default(); spec.layers.len()];
        for (part, name) in network.weights_of_parts()? {
            let bytes = network.placed_bytes(&name, dtype);
            match part {
                DecoderPart::Embedding => table += bytes,
                DecoderPart::Layer(i) => layers[i].weights += bytes,
                DecoderPart::Experts(i) => layers[i].experts += bytes,
                DecoderPart::Head => head += bytes,
            }
        }
        // A tied output layer is on the GPU, whether the table's first use is there or not.
        if head < table / 2 {
            (head, table) = (head + table, 0);
        }
        for (bytes, layer) in layers.iter_mut().zip(&spec.layers) {
            let numbers = layer.mixer.kept_numbers(self.context, spec.positions);
            let size = match layer.mixer {
                MixerSpec::Attention(_) | MixerSpec::Both(..) => kv.size_in_bytes(),
                _ => 4,
            };
            bytes.kept = (numbers * size * self.texts) as u64;
        }
        // A cache is copied into a larger one as it grows.
        let growth = layers.iter().map(|layer| layer.kept).max().unwrap_or(0) / 2;
        Ok(Needs {
            table,
            layers,
            head,
            computing: growth + self.scratch(network, dtype),
            cpu_experts: self.cpu_experts,
            texts: self.texts,
            streamed: self.streamed(spec),
        })
    }

    /// The largest number of first layers on the CPU that a prompt passes through on the GPU.
    fn streamed(&self, spec: &DecoderSpec) -> Option<usize> {
        let can = |count: &usize| spec.can_stream(*count);
        let most = (0..=spec.layers.len()).rev().find(can);
        most.filter(|_| self.prompt >= Decoder::STREAMED_FROM)
    }

    /// About what a call's own tensors take: those of the widest layer for each token of a prompt, and logits.
    fn scratch(&self, network: &Network, dtype: DType) -> u64 {
        let spec = &network.spec;
        let width = |layer: &candle_transformers::blocks::LayerSpec| {
            let inner = match &layer.feed_forward {
                FeedForwardSpec::Gated(mlp) => 3 * mlp.inner,
                FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => 2 * mlp.inner,
                FeedForwardSpec::Experts(experts) => {
                    let shared = experts.shared.as_ref().map_or(0, |shared| shared.inner);
                    experts.count
                        + 3 * shared
                        + experts.routing.used * (3 * experts.inner + spec.hidden)
                }
            };
            let heads = match &layer.mixer {
                MixerSpec::Attention(attention) | MixerSpec::Both(attention, _) => {
                    (3 * attention.heads + 2 * attention.kv_heads) * attention.head_dim
                }
                _ => 4 * spec.hidden,
            };
            inner.max(heads)
        };
        let widest = spec.layers.iter().map(width).max().unwrap_or(0);
        let token = (2 * spec.hidden + widest) * dtype.size_in_bytes();
        let tokens = self.prompt.min(self.context).max(self.texts);
        let logits = 3 * spec.vocab * 4 * self.texts;
        (token * tokens + logits) as u64
    }
}

/// Free bytes on a GPU, if its driver says it.
pub(super) fn free_memory(device: &Device) -> Result<Option<u64>> {
    device.free_memory().doing("asking for free memory")
}

/// The devices of a decoder's layers, for messages.
pub(crate) fn where_layers_are(decoder: &Decoder) -> String {
    let device = describe(decoder.device());
    let Some(offload) = decoder.offload() else {
        return device;
    };
    let (of, count) = (decoder.spec().layers.len(), offload.layers);
    let other = describe(&offload.to.device);
    let here = of - count;
    let prompts = match decoder.streams_prompts() {
        true if count == 0 => " (their experts too for prompts)",
        true => " (all for prompts)",
        false => "",
    };
    match (count, offload.experts) {
        (_, false) => format!(
            "{device} with {here} of {of} layers{prompts}, and {other} with the first {count}"
        ),
        (0, true) => format!("{device} with all layers{prompts}, and {other} with their experts"),
        (_, true) => format!(
            "{device} with {here} of {of} layers{prompts}, and {other} with the first {count} and all experts"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!("all".parse(), Ok(GpuLayers::All));
        assert_eq!("auto".parse(), Ok(GpuLayers::Auto));
        assert_eq!("0".parse(), Ok(GpuLayers::Count(0)));
        for wrong in ["", "-1", "some", "1.5"] {
            assert!(wrong.parse::<GpuLayers>().is_err(), "{wrong}");
        }
        for layers in [GpuLayers::All, GpuLayers::Auto, GpuLayers::Count(7)] {
            assert_eq!(layers.to_string().parse(), Ok(layers));
        }
    }

    #[test]
    fn what_fits() {
        let layer = LayerBytes {
            weights: 10,
            experts: 100,
            kept: 1,
        };
        let mut needs = Needs {
            table: 50,
            layers: vec![layer; 3],
            head: 3,
            computing: 4,
            cpu_experts: false,
            texts: 1,
            streamed: None,
        };
        assert_eq!((needs.weights(), needs.cache()), (50 + 3 + 330, 3));
        assert_eq!(needs.with(0), 7);
        assert_eq!(needs.with(2), 7 + 2 * 111);
        assert_eq!(needs.with(3), 7 + 3 * 111 + 50);
        assert_eq!(needs.fitting(6), None);
        assert_eq!(needs.fitting(7), Some(0));
        assert_eq!(needs.fitting(117), Some(0));
        assert_eq!(needs.fitting(118), Some(1));
        assert_eq!(needs.fitting(389), Some(2));
        assert_eq!(needs.fitting(390), Some(3));
        needs.cpu_experts = true;
        assert_eq!(needs.fitting(7 + 3 * 11 + 50), Some(3));
        // Two layers' weights and one's cache, while layers are on the CPU.
        needs.cpu_experts = false;
        needs.streamed = Some(3);
        assert_eq!(needs.with(1), 7 + 111 + 2 * 110 + 1);
        assert_eq!(needs.with(2), 7 + 2 * 111 + 110 + 1);
        assert_eq!(needs.with(3), 390);
        assert_eq!(needs.split(390), Some((3, false)));
        assert_eq!(needs.split(389), Some((2, true)));
        // Less room is for the layers alone.
        assert_eq!(needs.split(338), Some((2, false)));
        assert_eq!(needs.split(7), Some((0, false)));
        assert_eq!(needs.split(6), None);
        assert_eq!(needs.on_cpu(2), 111 + 50);
        needs.streamed = Some(1);
        assert_eq!(needs.with(1), 7 + 111);
        needs.cpu_experts = true;
        assert_eq!(needs.with(3), 7 + 3 * 11 + 50 + 2 * 110);
    }
}
