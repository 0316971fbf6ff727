//! Random weights of a model whose first layers are on the CPU. Those layers' blocks stay in memory: prompts copy them to the device.

use super::random::RandomBlocks;
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Shape};
use candle_transformers::blocks::{
    Decoder, DecoderSpec, Offload, Placement, Reading, Reread, Stored, Wanted, WeightSource,
};
use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

/// A model on `device` whose first `layers` are on the CPU, with activations of `dtype`.
pub(super) fn model(
    spec: &DecoderSpec,
    format: GgmlDType,
    dtype: DType,
    device: &Device,
    layers: usize,
) -> Result<Decoder> {
    let mut source = Keeping {
        blocks: RandomBlocks::new(format),
        layers,
        kept: HashMap::new(),
    };
    let to = Placement {
        device: Device::Cpu,
        dtype: DType::F32,
    };
    let offload = Offload {
        to,
        layers,
        experts: false,
    };
    let decoder = Decoder::load_offloaded(spec.clone(), &mut source, dtype, device, offload)?;
    Ok(decoder.with_streamed_layers(Arc::new(Kept(source.kept))))
}

/// Makes blocks, and keeps those of the first layers.
struct Keeping {
    blocks: RandomBlocks,
    layers: usize,
    kept: HashMap<String, Stored>,
}

impl Keeping {
    fn keeps(&self, name: &str) -> bool {
        let layer = name.strip_prefix("blk.").and_then(|rest| {
            let (layer, _) = rest.split_once('.')?;
            layer.parse::<usize>().ok()
        });
        layer.is_some_and(|layer| layer < self.layers)
    }

    fn stored(&mut self, wanted: Wanted) -> Result<Stored> {
        let stored = Stored::from(self.blocks.tensor(wanted)?);
        if self.keeps(wanted.name) {
            self.kept.insert(wanted.name.to_string(), stored.clone());
        }
        Ok(stored)
    }
}

impl WeightSource for Keeping {
    fn contains(&self, name: &str) -> bool {
        self.blocks.contains(name)
    }

    fn shape(&self, _name: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(ready(self.stored(wanted)))
    }
}

/// The blocks of the first layers.
#[derive(Debug)]
struct Kept(HashMap<String, Stored>);

impl Reread for Kept {
    fn reread(&self, load: &mut dyn FnMut(&mut dyn WeightSource) -> Result<()>) -> Result<()> {
        load(&mut &*self)
    }
}

impl WeightSource for &Kept {
    fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        self.0.get(name).map(|stored| stored.shape().clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(ready(match self.0.get(wanted.name) {
            Some(stored) => Ok(stored.clone()),
            None => missing(wanted.name),
        }))
    }
}

fn missing(name: &str) -> Result<Stored> {
    bail!("tensor {name:?} is not one of a layer on the CPU")
}
