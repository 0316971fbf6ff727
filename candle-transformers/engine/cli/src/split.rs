//! The devices that a model is divided over, as arguments of several commands.

use crate::Result;
use candle_engine::model::{GpuLayers, Split};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct SplitArgs {
    /// Split each layer across N devices of this kind (tensor parallelism). NVIDIA GPUs communicate over NCCL, other devices through the
    /// host; ranks on the CPU share its cores and are only for tests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) gpus: usize,
    /// Layers on the GPU: `all`, `auto` for the largest number that fits, or a number. Those are the last ones, with the output layer; the others run on
    /// the CPU, which is slower
    #[arg(long, value_name = "N", default_value_t)]
    gpu_layers: GpuLayers,
    /// Keep the experts of all layers on the CPU
    #[arg(long)]
    cpu_experts: bool,
    /// Memory that `--gpu-layers auto` may use, such as 8GB [default: what is free on the GPU]
    #[arg(long, value_name = "SIZE", value_parser = candle_engine::size::parse)]
    gpu_memory: Option<u64>,
}

impl SplitArgs {
    /// # Errors
    /// None or more than 64 devices.
    pub(super) fn check(&self) -> Result<()> {
        crate::check_gpus(self.gpus)
    }

    /// With room for `texts` texts of `context` tokens, of whose prompts `prompt` are read at once.
    pub(super) fn with_room(&self, texts: usize, context: usize, prompt: usize) -> Split {
        Split {
            gpu_layers: self.gpu_layers,
            cpu_experts: self.cpu_experts,
            gpu_memory: self.gpu_memory,
            texts,
            context,
            prompt,
        }
    }
}
