//! Quantised tensors: their blocks as bytes, dequantisation, and products with them.

use super::candle::quantized::{gguf_file, GgmlDType, QMatMul, QStorage, QTensor};
use super::candle::{Device, Module, Result};
use super::{guarded, tensor, value};
use crate::case::{Block, Input, Outcome};
use crate::value::Value;
use std::borrow::Cow;
use std::path::Path;

fn dtype(block: Block) -> GgmlDType {
    match block {
        Block::F32 => GgmlDType::F32,
        Block::F16 => GgmlDType::F16,
        Block::BF16 => GgmlDType::BF16,
        Block::Q4_0 => GgmlDType::Q4_0,
        Block::Q4_1 => GgmlDType::Q4_1,
        Block::Q5_0 => GgmlDType::Q5_0,
        Block::Q5_1 => GgmlDType::Q5_1,
        Block::Q8_0 => GgmlDType::Q8_0,
        Block::Q8_1 => GgmlDType::Q8_1,
        Block::Q2K => GgmlDType::Q2K,
        Block::Q3K => GgmlDType::Q3K,
        Block::Q4K => GgmlDType::Q4K,
        Block::Q5K => GgmlDType::Q5K,
        Block::Q6K => GgmlDType::Q6K,
        Block::Q8K => GgmlDType::Q8K,
    }
}

fn from_bytes(block: Block, dims: &[usize], bytes: &[u8]) -> Result<QTensor> {
    let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype(block))?;
    QTensor::new(storage, dims)
}

/// The blocks of the quantised input.
pub fn quantize(block: Block, input: &Input) -> Outcome {
    guarded(|| {
        let quantized = QTensor::quantize(&tensor(input)?, dtype(block))?;
        Result::Ok(vec![Value::Bytes(quantized.data()?.into_owned())])
    })
}

/// Like [`quantize`], with the weight of each column.
pub fn quantize_imatrix(block: Block, input: &Input, weights: &[f32]) -> Outcome {
    guarded(|| {
        let quantized = QTensor::quantize_imatrix(&tensor(input)?, weights, dtype(block))?;
        Result::Ok(vec![Value::Bytes(quantized.data()?.into_owned())])
    })
}

/// The dequantised elements, in f32 and in f16.
pub fn dequantize(block: Block, dims: &[usize], bytes: &[u8]) -> Outcome {
    guarded(|| {
        let quantized = from_bytes(block, dims, bytes)?;
        Result::Ok(vec![
            value(&quantized.dequantize(&Device::Cpu)?)?,
            value(&quantized.dequantize_f16(&Device::Cpu)?)?,
        ])
    })
}

/// The input times the transposed blocks.
pub fn multiply(block: Block, dims: &[usize], bytes: &[u8], input: &Input) -> Outcome {
    guarded(|| {
        let product = QMatMul::from_qtensor(from_bytes(block, dims, bytes)?)?;
        Result::Ok(vec![value(&product.forward(&tensor(input)?)?)?])
    })
}

/// Writes quantised tensors `t0`, `t1`, … into a GGUF file, with numbers and text in its metadata.
pub fn save_gguf(tensors: &[(Block, Vec<usize>, Vec<u8>)], path: &Path) -> Outcome {
    guarded(|| {
        let metadata = [
            ("some.text", gguf_file::Value::String("ten µ".into())),
            ("some.number", gguf_file::Value::F64(0.1)),
            ("a.count", gguf_file::Value::U8(200)),
            ("a.flag", gguf_file::Value::Bool(true)),
            (
                "a.list",
                gguf_file::Value::Array(vec![gguf_file::Value::I32(-3), gguf_file::Value::I32(4)]),
            ),
        ];
        let metadata: Vec<_> = metadata.iter().map(|(name, v)| (*name, v)).collect();
        let quantized: Result<Vec<_>> = tensors
            .iter()
            .enumerate()
            .map(|(i, (block, dims, bytes))| {
                Ok((format!("t{i}"), from_bytes(*block, dims, bytes)?))
            })
            .collect();
        let quantized = quantized?;
        let named: Vec<_> = quantized
            .iter()
            .map(|(name, t)| (name.as_str(), t))
            .collect();
        gguf_file::write(&mut std::fs::File::create(path)?, &metadata, &named)?;
        Result::Ok(Vec::new())
    })
}

/// Metadata and tensors of a GGUF file, in the order of their names. Not its version: ours writes 3, upstream 2.
pub fn load_gguf(path: &Path) -> Outcome {
    guarded(|| {
        let mut file = std::fs::File::open(path)?;
        let content = gguf_file::Content::read(&mut file)?;
        let mut metadata: Vec<_> = content.metadata.iter().collect();
        metadata.sort_by_key(|(name, _)| name.as_str());
        let mut values = vec![Value::Text(format!("{metadata:?}"))];
        let mut names: Vec<_> = content.tensor_infos.keys().cloned().collect();
        names.sort();
        for name in names {
            let t = content.tensor(&mut file, &name, &Device::Cpu)?;
            values.push(Value::Text(format!(
                "{name} {:?} {:?}",
                t.shape(),
                t.dtype()
            )));
            values.push(Value::Bytes(t.data()?.into_owned()));
        }
        Result::Ok(values)
    })
}
