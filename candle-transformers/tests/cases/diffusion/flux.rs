//! FLUX.1's transformer. What it returns is held against Candle's by the oracle; here is what that cannot show.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{test_device, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::flux::{model, quantized_model, sampling, WithForward};
use candle_transformers::quantized_var_builder;

use super::{assert_close, difference, every_weight_learns, refused, weights, Made, Numbers};

fn config() -> model::Config {
    model::Config {
        in_channels: 16,
        vec_in_dim: 32,
        context_in_dim: 32,
        hidden_size: 32,
        mlp_ratio: 2.,
        num_heads: 2,
        depth: 1,
        depth_single_blocks: 1,
        axes_dim: vec![4, 4, 8],
        ..model::Config::dev()
    }
}

/// The inputs of a model: two images of six patches, two texts of five tokens.
#[derive(Clone)]
struct Inputs {
    state: sampling::State,
    times: Tensor,
    guidance: Option<Tensor>,
}

impl Inputs {
    fn new(device: &Device) -> Result<Self> {
        let mut numbers = Numbers::new(3);
        let mut some = |shape: &[usize]| numbers.tensor(shape, 1., device);
        let (t5, clip) = (some(&[2, 5, 32])?, some(&[2, 32])?);
        Ok(Self {
            state: sampling::State::new(&t5, &clip, &some(&[2, 4, 4, 6])?)?,
            times: Tensor::new(&[0.9f32, 0.35], device)?,
            guidance: Some(Tensor::new(&[3.5f32, 2.], device)?),
        })
    }

    fn run(&self, model: &impl WithForward) -> Result<Tensor> {
        let s = &self.state;
        let guidance = self.guidance.as_ref();
        model.forward(
            &s.img,
            &s.img_ids,
            &s.txt,
            &s.txt_ids,
            &self.times,
            &s.vec,
            guidance,
        )
    }

    /// Every tensor changed; not times and guidance with `times` false.
    fn map(&self, times: bool, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let s = &self.state;
        let time = |t: &Tensor| if times { f(t) } else { Ok(t.clone()) };
        Ok(Self {
            state: sampling::State {
                img: f(&s.img)?,
                img_ids: f(&s.img_ids)?,
                txt: f(&s.txt)?,
                txt_ids: f(&s.txt_ids)?,
                vec: f(&s.vec)?,
            },
            times: time(&self.times)?,
            guidance: self.guidance.as_ref().map(time).transpose()?,
        })
    }
}

fn transformer(device: &Device) -> Result<()> {
    let flux = model::Flux::new(&config(), weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let results = both.run(&flux)?;
    assert_eq!(results.dims(), &[2, 6, 16]);
    for i in 0..2 {
        let alone = both.map(true, |t| t.narrow(0, i, 1))?.run(&flux)?;
        assert_close(&alone, &results.narrow(0, i, 1)?, 2e-5);
    }
    // Columns first, in a larger tensor.
    let strided = both.map(true, |t| match t.rank() {
        1 => Tensor::cat(&[t, t], 0)?.narrow(0, 0, 2),
        rank => {
            let wide = Tensor::cat(&[t, t], rank - 1)?;
            let wide = wide.t()?.contiguous()?.t()?;
            wide.narrow(rank - 1, 0, t.dim(rank - 1)?)
        }
    })?;
    assert_close(&strided.run(&flux)?, &results, 1e-5);
    // One position, time and vector for the whole batch.
    let s = &both.state;
    let first = |t: &Tensor| t.narrow(0, 0, 1);
    let shared = Inputs {
        state: sampling::State {
            img_ids: first(&s.img_ids)?,
            txt_ids: first(&s.txt_ids)?,
            vec: first(&s.vec)?,
            ..s.clone()
        },
        times: first(&both.times)?,
        guidance: None,
    };
    let repeated = Inputs {
        state: sampling::State {
            vec: first(&s.vec)?.repeat(2)?,
            ..s.clone()
        },
        times: first(&both.times)?.repeat(2)?,
        guidance: None,
    };
    assert_close(&shared.run(&flux)?, &repeated.run(&flux)?, 1e-5);

    let half = model::Flux::new(&config(), weights(DType::F16, device))?;
    let half = both.map(false, |t| t.to_dtype(DType::F16))?.run(&half)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &results, 0.03);
    Ok(())
}
test_device!(transformer);

/// The order of tokens matters only through their positions, and every input changes the result.
fn every_input_matters(device: &Device) -> Result<()> {
    let flux = model::Flux::new(&config(), weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let results = both.run(&flux)?;
    let last_first = Tensor::new(&[5u32, 4, 3, 2, 1, 0], device)?;
    let mut moved = both.clone();
    moved.state.img = both.state.img.index_select(&last_first, 1)?;
    let other = moved.run(&flux)?.index_select(&last_first, 1)?;
    assert!(difference(&other, &results)? > 1e-4, "places do not matter");
    moved.state.img_ids = both.state.img_ids.index_select(&last_first, 1)?;
    let same = moved.run(&flux)?.index_select(&last_first, 1)?;
    assert_close(&same, &results, 2e-5);

    type Change = fn(&mut Inputs) -> Result<()>;
    let changes: [(&str, Change); 5] = [
        ("txt", |i| {
            i.state.txt = (&i.state.txt * 0.5)?;
            Ok(())
        }),
        ("txt_ids", |i| {
            // Places of single tokens; those of all tokens together would only shift them against the image.
            let far = i.state.txt_ids.narrow(1, 0, 1)?;
            let far = (far + 3.)?;
            let rest = i.state.txt_ids.narrow(1, 1, 4)?;
            i.state.txt_ids = Tensor::cat(&[far, rest], 1)?;
            Ok(())
        }),
        ("times", |i| {
            i.times = (&i.times - 0.3)?;
            Ok(())
        }),
        ("y", |i| {
            i.state.vec = (&i.state.vec * 0.5)?;
            Ok(())
        }),
        ("guidance", |i| {
            i.guidance = None;
            Ok(())
        }),
    ];
    for (name, change) in changes {
        let mut changed = both.clone();
        change(&mut changed)?;
        let found = difference(&changed.run(&flux)?, &results)?;
        assert!(found > 1e-4, "{name} changes the result by {found}");
    }

    let schnell = model::Config {
        guidance_embed: false,
        ..config()
    };
    let schnell = model::Flux::new(&schnell, weights(DType::F32, device))?;
    let without = Inputs {
        guidance: None,
        ..both.clone()
    };
    assert_close(&both.run(&schnell)?, &without.run(&schnell)?, 0.);
    Ok(())
}
test_device!(every_input_matters);

/// Positions in 16 bits give the angles of f32, and integer positions work too.
fn places(device: &Device) -> Result<()> {
    let embed = model::EmbedNd::new(8, 10_000, vec![4, 4]);
    let ids = Tensor::new(&[[[0u32, 5], [200, 63]]], device)?;
    let found = embed.forward(&ids)?;
    assert_eq!(
        (found.dims(), found.dtype()),
        (&[1, 1, 2, 4, 2, 2][..], DType::F32)
    );
    let found = found.flatten_all()?.to_vec1::<f32>()?;
    let mut expected = Vec::new();
    for [row, column] in [[0f32, 5.], [200., 63.]] {
        for angle in [row, row * 0.01, column, column * 0.01] {
            expected.extend([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]);
        }
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (found - expected).abs() < 1e-4,
            "{found}, expected {expected}"
        );
    }
    let half = embed.forward(&ids.to_dtype(DType::F16)?)?;
    assert_eq!(half.dtype(), DType::F16);
    let half = half.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    for (half, expected) in half.iter().zip(&expected) {
        assert!(
            (half - expected).abs() < 1e-3,
            "{half}, expected {expected}"
        );
    }
    refused(
        embed.forward(&Tensor::zeros((1, 2, 3), DType::F32, device)?),
        &["[1, 2, 3]", "2 rotated axes"],
    );
    let odd = model::EmbedNd::new(8, 10_000, vec![4, 3]);
    refused(odd.forward(&ids), &["3 elements"]);
    Ok(())
}
test_device!(places);

/// Weights that are recorded at each request.
struct Recorded(Arc<Mutex<BTreeMap<String, Tensor>>>);

impl SimpleBackend for Recorded {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let made = Made {
            vars: false,
            without: "",
            gain: 1.,
        };
        let tensor = made.get(s, name, h, dtype, dev)?;
        let mut all = self.0.lock().expect("no panic elsewhere");
        all.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn quantized(device: &Device) -> Result<()> {
    let recorded = Arc::default();
    let backend = Box::new(Recorded(Arc::clone(&recorded)));
    let vb = VarBuilder::from_backend(backend, DType::F32, Device::Cpu);
    let dense = model::Flux::new(&config(), vb)?;
    let expected = Inputs::new(&Device::Cpu)?.run(&dense)?;
    let load = |format: GgmlDType, without: &str| {
        let all = recorded.lock().expect("no panic elsewhere");
        let mut tensors = Vec::new();
        for (name, tensor) in all.iter().filter(|(name, _)| *name != without) {
            let format = match tensor.dims() {
                [_, k] if k % 32 == 0 => format,
                _ => GgmlDType::F32,
            };
            tensors.push((name.as_str(), QTensor::quantize(tensor, format)?));
        }
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (*name, tensor))
            .collect();
        let mut buffer = Cursor::new(Vec::new());
        gguf_file::write(&mut buffer, &[], &tensors)?;
        let vb = quantized_var_builder::VarBuilder::from_gguf_buffer(buffer.get_ref(), device)?;
        quantized_model::Flux::new(&config(), vb)
    };
    let inputs = Inputs::new(device)?;
    let exact = inputs.run(&load(GgmlDType::F32, "")?)?;
    assert_close(&exact, &expected, 1e-4);
    let rounded = inputs.run(&load(GgmlDType::Q8_0, "")?)?;
    assert_close(&rounded, &expected, 0.05);
    let changed = difference(&rounded, &exact)?;
    assert!(changed > 1e-5, "Q8_0 changes the result by {changed}");
    let name = "double_blocks.0.txt_attn.norm.key_norm.scale";
    refused(load(GgmlDType::F32, name), &[name]);
    Ok(())
}
test_device!(quantized);

#[test]
fn weights_learn() -> Result<()> {
    let inputs = Inputs::new(&Device::Cpu)?;
    every_weight_learns(|vb| inputs.run(&model::Flux::new(&config(), vb)?))
}

#[test]
fn bad_configurations() {
    type Break = fn(&mut model::Config);
    let cases: [(Break, &[&str]); 7] = [
        (|c| c.num_heads = 0, &["num_heads", "0"]),
        (|c| c.num_heads = 3, &["3 heads", "32"]),
        (|c| c.hidden_size = 0, &["hidden_size"]),
        (|c| c.mlp_ratio = f64::NAN, &["mlp_ratio"]),
        (|c| c.axes_dim = vec![4, 4, 4], &["[4, 4, 4]", "16"]),
        (|c| c.axes_dim = vec![3, 5, 8], &["[3, 5, 8]", "even"]),
        (|c| c.theta = 0, &["theta"]),
    ];
    for (change, words) in cases {
        let mut cfg = config();
        change(&mut cfg);
        refused(
            model::Flux::new(&cfg, weights(DType::F32, &Device::Cpu)),
            words,
        );
    }
}

#[test]
fn bad_inputs() -> Result<()> {
    let device = &Device::Cpu;
    let flux = model::Flux::new(&config(), weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    type Break = fn(&mut sampling::State) -> Result<()>;
    let cases: [(Break, &[&str]); 6] = [
        (
            |s| {
                s.img = s.img.narrow(2, 0, 8)?;
                Ok(())
            },
            &["img is [2, 6, 8]", "patches, 16"],
        ),
        (
            |s| {
                s.img = s.img.get(0)?;
                Ok(())
            },
            &["img is [6, 16]"],
        ),
        (
            |s| {
                s.txt = s.txt.narrow(0, 0, 1)?;
                Ok(())
            },
            &["txt is [1, 5, 32]", "(2, tokens"],
        ),
        (
            |s| {
                s.img_ids = s.img_ids.narrow(1, 0, 5)?;
                Ok(())
            },
            &["img_ids is [2, 5, 3]", "(2, 6, 3)"],
        ),
        (
            |s| {
                s.txt_ids = s.txt_ids.narrow(2, 0, 2)?;
                Ok(())
            },
            &["txt_ids is [2, 5, 2]", "(2, 5, 3)"],
        ),
        (
            |s| {
                s.vec = Tensor::cat(&[&s.vec, &s.vec.narrow(0, 0, 1)?], 0)?;
                Ok(())
            },
            &["y is [3, 32]", "(2, vec_in_dim)"],
        ),
    ];
    for (change, words) in cases {
        let mut inputs = both.clone();
        change(&mut inputs.state)?;
        refused(inputs.run(&flux), words);
    }
    Ok(())
}
