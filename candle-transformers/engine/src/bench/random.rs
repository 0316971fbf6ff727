//! Random weights, made fast enough for models of billions of parameters.

use crate::bench::shapes::ModelShape;
use crate::format::WeightFormat;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_transformers::blocks::{
    Cut, Decoder, DecoderSpec, Reading, Stored, Wanted, WeightSource,
};
use candle_transformers::parallel::{groups, ParallelDecoder};
use half::f16;
use std::future::ready;

/// The deviation of the weights: that of a Llama before training.
const DEVIATION: f64 = 0.02;

/// The decoder of this shape for `positions` tokens.
pub(crate) fn spec(
    shape: ModelShape,
    positions: usize,
    format: WeightFormat,
) -> Result<DecoderSpec> {
    match format {
        WeightFormat::Dense(_) => shape.spec(positions),
        WeightFormat::Blocks(_) => shape.gguf_spec(positions),
    }
}

/// A model on `devices`, with activations of `dtype`.
pub(crate) fn model(
    spec: &DecoderSpec,
    format: WeightFormat,
    [dtype, kv_dtype]: [DType; 2],
    devices: &[Device],
) -> Result<ParallelDecoder> {
    if let [device] = devices {
        let decoder = with_source(format, dtype, device, |source| {
            Decoder::load(spec.clone(), source, dtype, device)
        });
        return Ok(decoder?.with_kv_dtype(kv_dtype)?.into());
    }
    ParallelDecoder::launch(devices, groups(devices)?, |device, group| {
        with_source(format, dtype, device, |source| {
            Decoder::load_rank(spec.clone(), source, dtype, device, group)?.with_kv_dtype(kv_dtype)
        })
    })
}

fn with_source<T>(
    format: WeightFormat,
    dtype: DType,
    device: &Device,
    load: impl FnOnce(&mut dyn WeightSource) -> T,
) -> T {
    match format {
        WeightFormat::Dense(_) => load(&mut RandomFloats {
            dtype,
            device: device.clone(),
        }),
        WeightFormat::Blocks(format) => load(&mut RandomBlocks::new(format)),
    }
}

/// Weights drawn on the device from a normal distribution; norms are ones.
struct RandomFloats {
    dtype: DType,
    device: Device,
}

impl RandomFloats {
    fn tensor(&self, wanted: Wanted) -> Result<Tensor> {
        if wanted.name.ends_with("norm.weight") {
            return Tensor::ones(wanted.shape, self.dtype, &self.device);
        }
        // `randn_like` takes the dtype at run time, and of its model only the shape, so one element is enough.
        Tensor::zeros((), self.dtype, &self.device)?
            .broadcast_as(wanted.shape)?
            .randn_like(0.0, DEVIATION)
    }
}

impl WeightSource for RandomFloats {
    fn contains(&self, _name: &str) -> bool {
        true
    }

    fn shape(&self, _name: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(ready(self.tensor(wanted).map(Stored::from)))
    }

    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        // A part of a random tensor is one of its shape: the rest need not be made.
        let shape = cut.dims(wanted.shape);
        let wanted = Wanted {
            shape: &shape,
            ..wanted
        };
        Box::pin(ready(self.tensor(wanted).map(Stored::from)))
    }
}

/// Blocks of random bits with scales that give the weights their deviation and a mean near 0; norms are ones. Quantising floats
/// would take minutes.
pub(super) struct RandomBlocks {
    format: GgmlDType,
    /// The state of the generator.
    state: u64,
}

impl RandomBlocks {
    pub(super) fn new(format: GgmlDType) -> Self {
        Self { format, state: 0 }
    }

    /// The next number of SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn blocks(&mut self, shape: Shape) -> Result<QTensor> {
        let (format, block) = (self.format, self.format.block_size());
        let row = shape.dims().last().copied().unwrap_or(0);
        if row % block != 0 {
            bail!(
                "{format:?} has blocks of {block}, which do not divide a row of {row} weights; try q8_0 or q4_0, which have blocks of 32"
            )
        }
        let size = self.format.type_size();
        let count = shape.elem_count() / self.format.block_size();
        let mut bytes = vec![0u8; count * size];
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        for (at, value) in scales(self.format)? {
            let value = f16::from_f64(value * DEVIATION).to_le_bytes();
            for block in bytes.chunks_exact_mut(size) {
                block[at..at + 2].copy_from_slice(&value);
            }
        }
        let storage = QStorage::from_data(bytes.into(), &Device::Cpu, self.format)?;
        QTensor::new(storage, shape)
    }
}

/// The offsets of a block's scale and minimum (f16), and the values for which random bits make weights of deviation 1 around 0.
///
/// A code of `b` bits has the mean `(2^b - 1) / 2` and the deviation `2^b / sqrt(12)`; k-quants multiply it with a random scale of 4 or
/// 6 bits, for which the factors were found by making random blocks dense.
fn scales(format: GgmlDType) -> Result<Vec<(usize, f64)>> {
    let code = |bits: i32| 12f64.sqrt() / f64::from(1 << bits);
    Ok(match format {
        GgmlDType::Q4_0 => vec![(0, code(4))],
        GgmlDType::Q4_1 => vec![(0, code(4)), (2, -7.5 * code(4))],
        GgmlDType::Q5_0 => vec![(0, code(5))],
        GgmlDType::Q5_1 => vec![(0, code(5)), (2, -15.5 * code(5))],
        GgmlDType::Q8_0 => vec![(0, code(8))],
        GgmlDType::Q2K => vec![(80, 1. / 15.), (82, 1.5 / 15.)],
        GgmlDType::Q3K => vec![(108, 1. / 42.)],
        GgmlDType::Q4K => vec![(0, 1. / 258.), (2, 7.5 / 258.)],
        GgmlDType::Q5K => vec![(0, 1. / 528.), (2, 15.5 / 528.)],
        GgmlDType::Q6K => vec![(208, 1. / 1365.)],
        other => bail!("random weights in {other:?} are not supported"),
    })
}

impl RandomBlocks {
    pub(super) fn tensor(&mut self, wanted: Wanted) -> Result<QTensor> {
        match wanted.shape {
            [_] => {
                let ones = Tensor::ones(wanted.shape, DType::F32, &Device::Cpu)?;
                QTensor::quantize(&ones, GgmlDType::F32)
            }
            shape => self.blocks(shape.into()),
        }
    }
}

impl WeightSource for RandomBlocks {
    /// Every requested tensor exists, in the current layout.
    fn contains(&self, name: &str) -> bool {
        name != "rope_freqs.weight"
    }

    fn shape(&self, _name: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(ready(self.tensor(wanted).map(Stored::from)))
    }

    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        // A part of a random tensor is one of its shape: the rest need not be made.
        let shape = cut.dims(wanted.shape);
        let wanted = Wanted {
            shape: &shape,
            ..wanted
        };
        Box::pin(ready(self.tensor(wanted).map(Stored::from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every format that can be asked for makes weights of the deviation wanted.
    #[test]
    fn deviation_and_mean() {
        use clap::ValueEnum;
        for format in WeightFormat::value_variants() {
            let WeightFormat::Blocks(format) = *format else {
                continue;
            };
            let mut weights = RandomBlocks::new(format);
            let weights = weights.blocks((768, 256).into()).unwrap();
            let weights = weights.dequantize(&Device::Cpu).unwrap();
            let weights = weights.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let mean = weights.iter().map(|w| f64::from(*w)).sum::<f64>() / weights.len() as f64;
            let square = weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>();
            let deviation = (square / weights.len() as f64 - mean * mean).sqrt();
            println!("{format:?}: mean {mean}, deviation {deviation}");
            assert!(
                (deviation / DEVIATION - 1.).abs() < 0.1,
                "{format:?}: deviation {deviation}"
            );
            assert!(mean.abs() < 0.15 * DEVIATION, "{format:?}: mean {mean}");
        }
    }
}
