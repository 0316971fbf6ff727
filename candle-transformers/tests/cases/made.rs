//! Weights for any model.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::quantized_var_builder;

use super::support::Numbers;

/// Makes any weight that a model asks for, and notes it; those whose names contain `large.0` are `large.1` times as large. Of those whose
/// names contain one of `lacking`, it says that they are not there.
#[derive(Clone, Default)]
pub(super) struct Made {
    pub(super) large: Option<(&'static str, f32)>,
    pub(super) lacking: &'static [&'static str],
    pub(super) asked: Arc<Mutex<Vec<(String, Tensor)>>>,
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut numbers = Numbers::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        let mut scale = match s.dims() {
            [_] if name.ends_with("bias") => 0.2,
            [_] => 1.,
            _ => 0.4,
        };
        if let Some((_, times)) = self.large.filter(|(part, _)| name.contains(part)) {
            scale *= times;
        }
        let tensor = numbers.tensor(s.dims(), scale, &Device::Cpu)?;
        let mut asked = self.asked.lock().expect("no thread panicked");
        asked.push((name.to_string(), tensor.clone()));
        tensor.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.lacking.iter().any(|lacking| name.contains(lacking))
    }
}

impl Made {
    pub(super) fn vb(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, device.clone())
    }

    /// The requested tensors as a GGUF file: matrices with rows of blocks in `format`, the others unchanged.
    pub(super) fn gguf(
        &self,
        format: GgmlDType,
        device: &Device,
    ) -> Result<quantized_var_builder::VarBuilder> {
        let asked = self.asked.lock().expect("no thread panicked");
        let quantized = asked.iter().map(|(name, tensor)| {
            let format = match tensor.dims() {
                [_, k] if k.is_multiple_of(32) => format,
                _ => GgmlDType::F32,
            };
            Ok((name.as_str(), QTensor::quantize(tensor, format)?))
        });
        let quantized: Vec<(&str, QTensor)> = quantized.collect::<Result<_>>()?;
        let tensors: Vec<(&str, &QTensor)> = quantized.iter().map(|(n, t)| (*n, t)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &[], &tensors)?;
        quantized_var_builder::VarBuilder::from_gguf_buffer(file.get_ref(), device)
    }
}
