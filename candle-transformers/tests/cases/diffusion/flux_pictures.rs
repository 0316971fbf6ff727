//! FLUX.1's autoencoder and sampling.

use std::sync::Mutex;

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::flux::{autoencoder, sampling, WithForward};

use super::{assert_close, check, every_weight_learns, module, refused, weights, Forward, Numbers};

fn small_autoencoder() -> autoencoder::Config {
    autoencoder::Config {
        ch: 32,
        ch_mult: vec![1, 2],
        num_res_blocks: 1,
        z_channels: 4,
        ..autoencoder::Config::schnell()
    }
}

fn encoder(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        Ok(module(autoencoder::Encoder::new(&small_autoencoder(), vb)?))
    };
    check(device, load, [3, 12, 9], &[&[1, 3, 12], &[1, 3, 0, 8]])
}
test_device!(encoder);

fn decoder(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        Ok(module(autoencoder::Decoder::new(&small_autoencoder(), vb)?))
    };
    check(device, load, [4, 3, 5], &[])
}
test_device!(decoder);

/// Latents are samples around their means, in the numbers of the training and back.
fn samples(device: &Device) -> Result<()> {
    let sample = autoencoder::DiagonalGaussian::new(true, 1)?;
    let count = 20_000;
    let mean = Tensor::full(2f32, (1, 1, count), device)?;
    let variance = Tensor::full(9f32.ln(), (1, 1, count), device)?;
    let drawn = sample.forward(&Tensor::cat(&[&mean, &variance], 1)?)?;
    assert_eq!(drawn.dims(), &[1, 1, count]);
    let drawn = drawn.flatten_all()?.to_vec1::<f32>()?;
    let mean = drawn.iter().sum::<f32>() / count as f32;
    let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count as f32;
    assert!((mean - 2.).abs() < 0.15, "a mean of {mean} instead of 2");
    assert!(
        (variance - 9.).abs() < 0.6,
        "a variance of {variance} instead of 9"
    );

    let odd = Tensor::zeros((1, 3, 2, 2), DType::F32, device)?;
    refused(sample.forward(&odd), &["[1, 3, 2, 2]", "dimension 1"]);

    let cfg = autoencoder::Config {
        scale_factor: 2.,
        shift_factor: 5.,
        ..small_autoencoder()
    };
    let vb = weights(DType::F32, device);
    let model = autoencoder::AutoEncoder::new(&cfg, vb.clone())?;
    let latents = Numbers::new(9).tensor(&[1, 4, 3, 4], 1., device)?;
    let decoder = autoencoder::Decoder::new(&cfg, vb.pp("decoder"))?;
    let expected = decoder.forward(&((&latents / 2.)? + 5.)?)?;
    assert_close(&model.decode(&latents)?, &expected, 1e-5);
    let picture = Numbers::new(4).tensor(&[1, 3, 6, 8], 1., device)?;
    let encoder = autoencoder::Encoder::new(&cfg, vb.pp("encoder"))?;
    let moments = encoder.forward(&picture)?;
    // Every sample is some deviations from its mean.
    let around = ((model.encode(&picture)? / 2.)? + 5.)?;
    let away = (around - moments.narrow(1, 0, 4)?)?;
    let away = (away / (moments.narrow(1, 4, 4)? * 0.5)?.exp()?)?;
    let farthest = away.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(farthest > 0.1 && farthest < 6., "{farthest} deviations");
    assert_eq!(model.forward(&picture)?.dims(), picture.dims());
    Ok(())
}
test_device!(samples);

#[test]
fn weights_learn() -> Result<()> {
    let picture = Numbers::new(4).tensor(&[1, 3, 6, 8], 1., &Device::Cpu)?;
    every_weight_learns(|vb| {
        autoencoder::AutoEncoder::new(&small_autoencoder(), vb)?.forward(&picture)
    })
}

#[test]
fn bad_autoencoders() {
    type Break = fn(&mut autoencoder::Config);
    let cases: [(Break, &[&str]); 5] = [
        (|c| c.ch = 48, &["48 channels", "32 groups"]),
        (|c| c.ch = 0, &["0 channels"]),
        (|c| c.ch_mult.clear(), &["no levels"]),
        (|c| c.num_res_blocks = 0, &["0 residual blocks"]),
        (|c| c.z_channels = 0, &["0 channels of latents"]),
    ];
    for (change, words) in cases {
        let mut cfg = small_autoencoder();
        change(&mut cfg);
        let vb = || weights(DType::F32, &Device::Cpu);
        refused(autoencoder::Encoder::new(&cfg, vb()), words);
        refused(autoencoder::Decoder::new(&cfg, vb()), words);
    }
}

#[test]
fn schedules() {
    assert_eq!(sampling::get_schedule(4, None), [1., 0.75, 0.5, 0.25, 0.]);
    assert_eq!(sampling::get_schedule(0, None), [1.]);
    assert_eq!(sampling::get_schedule(0, Some((256, 0.5, 1.15))), [1.]);
    let shifted = sampling::get_schedule(2, Some((256, 0.5, 1.15)));
    let e = 0.5f64.exp();
    assert_eq!((shifted[0], shifted[2]), (1., 0.));
    assert!((shifted[1] - e / (e + 1.)).abs() < 1e-12, "{shifted:?}");
}

/// Latents as patches and back, with texts for all or for each.
fn patches(device: &Device) -> Result<()> {
    let noise = sampling::get_noise(2, 33, 48, device)?;
    assert_eq!(
        (noise.dims(), noise.dtype()),
        (&[2, 16, 6, 6][..], DType::F32)
    );
    let deviation = noise.sqr()?.mean_all()?.to_scalar::<f32>()?;
    assert!(
        (deviation - 1.).abs() < 0.3,
        "noise with a variance of {deviation}"
    );
    let (t5, clip) = (
        Numbers::new(1).tensor(&[2, 3, 8], 1., device)?,
        Numbers::new(2).tensor(&[2, 4], 1., device)?,
    );
    let noise = noise.to_dtype(DType::F16)?;
    let state = sampling::State::new(&t5, &clip, &noise)?;
    assert_eq!(state.img.dims(), &[2, 9, 64]);
    assert_eq!(state.img_ids.dtype(), DType::F16);
    assert_close(&sampling::unpack(&state.img, 33, 48)?, &noise, 0.);
    assert_close(&state.txt, &t5, 0.);
    let one = sampling::State::new(&t5.narrow(0, 1, 1)?, &clip.narrow(0, 1, 1)?, &noise)?;
    assert_eq!(
        (one.txt.dims(), one.vec.dims()),
        (&[2, 3, 8][..], &[2, 4][..])
    );
    assert_close(&one.vec.get(0)?, &clip.get(1)?, 0.);
    assert_close(&one.vec.get(1)?, &clip.get(1)?, 0.);

    refused(sampling::unpack(&state.img, 48, 64), &["[2, 9, 64]", "12"]);
    let odd = noise.narrow(2, 0, 5)?;
    refused(
        sampling::State::new(&t5, &clip, &odd),
        &["[2, 16, 5, 6]", "even"],
    );
    let three = Tensor::cat(&[&clip, &clip.narrow(0, 0, 1)?], 0)?;
    refused(
        sampling::State::new(&t5, &three, &noise),
        &["clip_emb", "[3, 4]"],
    );
    Ok(())
}
test_device!(patches);

/// A model whose direction is the time, and its recorded calls.
struct Times(Mutex<Vec<(f32, f32)>>);

impl WithForward for Times {
    fn forward(
        &self,
        img: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        timesteps: &Tensor,
        _: &Tensor,
        guidance: Option<&Tensor>,
    ) -> Result<Tensor> {
        let guidance = guidance.expect("guidance").to_vec1::<f32>()?;
        let asked = (timesteps.to_vec1::<f32>()?[1], guidance[1]);
        self.0.lock().expect("no panic elsewhere").push(asked);
        timesteps.reshape(((), 1, 1))?.broadcast_as(img.shape())
    }
}

fn steps(device: &Device) -> Result<()> {
    let (model, img) = (
        Times(Mutex::default()),
        Tensor::ones((2, 3, 4), DType::F32, device)?,
    );
    let run = |times: &[f64]| sampling::denoise(&model, &img, &img, &img, &img, &img, times, 2.5);
    // From 1: half a step down at time 1, another at time 1/2.
    let expected = Tensor::full(1f32 - 0.5 - 0.25, (2, 3, 4), device)?;
    assert_close(&run(&[1., 0.5, 0.])?, &expected, 1e-6);
    let asked = model.0.lock().expect("no panic elsewhere").clone();
    assert_eq!(asked, [(1., 2.5), (0.5, 2.5)]);
    assert_close(&run(&[1.])?, &img, 0.);
    Ok(())
}
test_device!(steps);
