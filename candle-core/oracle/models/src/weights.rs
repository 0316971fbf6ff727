//! Weights that depend only on a tensor's name and shape, so that both sides have the same.

use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The tensors that models read, in a folder of outputs: the contents of a checkpoint.
const NAMES: &str = "names.txt";

static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// SplitMix64 (Steele, Lea, Flood 2014), from the FNV-1a hash of a name.
pub struct Numbers(u64);

impl Numbers {
    pub fn of(name: &str) -> Self {
        let hash = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        Self(name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.
    }
}

/// Numbers around 0, scaled to keep the activations of a layer near 1; around 1 for scales and variances.
pub fn weight(name: &str, shape: &Shape) -> Result<Tensor> {
    let mut numbers = Numbers::of(name);
    let dims = shape.dims();
    let (centre, spread) = match dims {
        [] | [_] if name.ends_with("bias") || name.ends_with("mean") => (0., 0.1),
        [] | [_] => (1., 0.1),
        _ => {
            let inputs: usize = dims[1..].iter().product();
            (0., (3. / inputs.max(1) as f32).sqrt())
        }
    };
    let values: Vec<_> = (0..shape.elem_count())
        .map(|_| centre + spread * numbers.unit())
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// The device and inputs of a model.
pub struct Place<'a> {
    /// The folder of its files.
    pub folder: &'a Path,
    pub device: Device,
}

impl Place<'_> {
    /// Weights by their names.
    pub fn weights(&self, model: &str) -> VarBuilder<'static> {
        let names = std::fs::read_to_string(self.folder.join(NAMES)).ok();
        let names = names.map(|text| text.lines().map(str::to_string).collect());
        let made = Made { names };
        VarBuilder::from_backend(Box::new(made), DType::F32, self.device.clone()).pp(model)
    }

    /// Writes the names of the weights that models have read. From then on [`weights`](Self::weights) contains only these, so that a model
    /// does not find an output layer that the other side did not read.
    #[allow(dead_code)]
    pub fn keep_names(&self) -> Result<()> {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<&str> = read.iter().map(String::as_str).collect();
        std::fs::write(self.folder.join(NAMES), names.join("\n"))?;
        Ok(())
    }

    /// An input from -1 to 1.
    pub fn input<S: Into<Shape>>(&self, name: &str, shape: S) -> Result<Tensor> {
        let (mut numbers, shape) = (Numbers::of(name), shape.into());
        let values: Vec<_> = (0..shape.elem_count()).map(|_| numbers.unit()).collect();
        Tensor::from_vec(values, shape, &self.device)
    }

    /// Token ids below `vocabulary`, shape `(1, count)`.
    pub fn tokens(&self, name: &str, count: usize, vocabulary: u64) -> Result<Tensor> {
        let mut numbers = Numbers::of(name);
        let ids: Vec<_> = (0..count)
            .map(|_| (numbers.next() % vocabulary) as u32)
            .collect();
        Tensor::from_vec(ids, (1, count), &self.device)
    }
}

/// Generates every weight that a model reads.
struct Made {
    names: Option<BTreeSet<String>>,
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(name.to_string());
        weight(name, &s)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is read without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let names = self.names.as_ref();
        names.is_none_or(|names| names.contains(name))
    }
}
