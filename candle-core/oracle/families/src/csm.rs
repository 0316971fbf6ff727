//! CSM, whose smallest size has 111 million weights: its numbers are generated quickly.

use crate::weights::Place;
use crate::Run;
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::csm::{Config, Flavor, LlamaConfig, LlamaModel, Model};

pub const RUNS: &[Run] = &[("csm layers", layers), ("csm", frames)];

/// Weights that repeat after a prime number of them, from an offset that depends on their names.
struct Repeated(Vec<f32>);

impl Repeated {
    fn vb(place: &Place) -> Result<VarBuilder<'static>> {
        let numbers = place.input("csm weights", 65_521)?;
        let backend = Self(numbers.to_vec1()?);
        let device = place.device.clone();
        Ok(VarBuilder::from_backend(
            Box::new(backend),
            DType::F32,
            device,
        ))
    }
}

impl SimpleBackend for Repeated {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let first = name
            .bytes()
            .fold(7, |h, b| (h * 31 + usize::from(b)) % self.0.len());
        let (centre, spread) = match s.dims() {
            [_] => (1., 0.1),
            dims => (0., (3. / dims[dims.len() - 1] as f32).sqrt()),
        };
        let from_first = self.0[first..].iter().chain(self.0.iter().cycle());
        let values = from_first.take(s.elem_count()).map(|x| centre + spread * x);
        Tensor::from_vec(values.collect::<Vec<_>>(), s, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn layers(place: &Place) -> Result<Vec<Tensor>> {
    let config = LlamaConfig::from_flavor(Flavor::Llama100M);
    let mut model = LlamaModel::new(&config, Repeated::vb(place)?)?;
    let xs = place.input("csm layers", (1, 6, 1024))?;
    let mut outputs = vec![model.forward(&xs.narrow(1, 0, 3)?, 0)?];
    outputs.push(model.forward(&xs.narrow(1, 3, 2)?, 3)?);
    outputs.push(model.forward(&xs.narrow(1, 5, 1)?, 5)?);
    Ok(outputs)
}

fn frames(place: &Place) -> Result<Vec<Tensor>> {
    let config = Config {
        audio_num_codebooks: 4,
        audio_vocab_size: 40,
        backbone_flavor: Flavor::Llama100M,
        decoder_flavor: Flavor::Llama100M,
        text_vocab_size: 50,
    };
    let mut model = Model::new(&config, Repeated::vb(place)?)?;
    let mut sampler = LogitsProcessor::from_sampling(5, Sampling::All { temperature: 1. });
    let (mut tokens, mut mask) = model.text_tokens_and_mask(&[3, 49, 7, 20, 11])?;
    let (mut position, mut all) = (0, Vec::new());
    for _ in 0..3 {
        let frame = model.generate_frame(&tokens, &mask, position, &mut sampler)?;
        position += tokens.dim(1)?;
        all.extend(frame.iter().map(|token| *token as f32));
        (tokens, mask) = model.audio_tokens_and_mask(frame)?;
    }
    Ok(vec![Tensor::new(all, &place.device)?])
}
