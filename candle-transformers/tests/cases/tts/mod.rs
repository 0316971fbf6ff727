//! Models that speak a text, each with tiny weights that depend on their names alone.

mod metavoice;
mod parler_tts;
mod tokens;
mod voices;

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{bail, DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::quantized_var_builder;

use super::support::{assert_close, Numbers};

/// f32 sums in another order.
const F32_TOLERANCE: f32 = 2e-5;

/// Replacement weights, by name and shape.
type Instead = fn(&str, &[usize]) -> Option<Vec<f32>>;

/// Makes any weight that a model asks for, and notes it.
#[derive(Clone, Default)]
struct Made {
    /// The weights are variables, as in training.
    vars: bool,
    /// Parts of the names of missing weights.
    lacking: &'static [&'static str],
    instead: Option<Instead>,
    asked: Arc<Mutex<Vec<(String, Tensor)>>>,
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut numbers = Numbers::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        let dims = s.dims();
        let (centre, spread) = match dims {
            [_] if name.ends_with("bias") => (0., 0.1),
            [_] => (1., 0.1),
            _ => (0., (3. / dims[dims.len() - 1] as f32).sqrt()),
        };
        let values = match self.instead.and_then(|instead| instead(name, dims)) {
            Some(values) => values,
            None => (0..s.elem_count())
                .map(|_| centre + numbers.next(spread))
                .collect(),
        };
        let weight = Tensor::from_vec(values, s, &Device::Cpu)?;
        let placed = weight.to_dtype(dtype)?.to_device(dev)?;
        let placed = if self.vars {
            Var::from_tensor(&placed)?.as_tensor().clone()
        } else {
            placed
        };
        let noted = if self.vars { placed.clone() } else { weight };
        self.asked().push((name.to_string(), noted));
        Ok(placed)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.lacking.iter().any(|lacking| name.contains(lacking))
    }
}

impl Made {
    fn vb(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, device.clone())
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Vec<(String, Tensor)>> {
        self.asked.lock().expect("no thread panicked")
    }

    /// The requested tensors as a GGUF file: matrices with rows of blocks in `format`, the others unchanged.
    fn gguf(
        &self,
        format: GgmlDType,
        device: &Device,
    ) -> Result<quantized_var_builder::VarBuilder> {
        let asked = self.asked();
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

    fn names(&self) -> Vec<String> {
        self.asked().iter().map(|(name, _)| name.clone()).collect()
    }
}

/// Numbers from -1 to 1.
fn vectors(shape: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    Numbers::new(seed).tensor(shape, 1., device)
}

/// Ids below `vocab`, different for each `seed`.
fn ids(shape: &[usize], vocab: usize, seed: usize, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let id = |i: usize| ((i * 17 + i / 7 + seed * 29 + 3) % vocab) as u32;
    Tensor::from_vec((0..count).map(id).collect::<Vec<_>>(), shape, device)
}

/// Added to scores, the rule that the last `t` of `end` positions see those before them.
fn causal(t: usize, end: usize, device: &Device) -> Result<Tensor> {
    let hidden = |i: usize| {
        if i % end > i / end + end - t {
            f32::NEG_INFINITY
        } else {
            0.
        }
    };
    let mask = (0..t * end).map(hidden).collect::<Vec<_>>();
    Tensor::from_vec(mask, (t, end), device)
}

fn change(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a - b)?.abs()?.max_all()?.to_scalar()
}

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error, {parts:?} are expected in one")
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: without {part:?}");
    }
}
