//! MetaVoice's encoder of voices.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::metavoice::speaker_encoder;
use candle_transformers::models::whisper::audio::mel_filters;

use super::{assert_close, assert_error, vectors, Made, F32_TOLERANCE};

fn voice_config() -> speaker_encoder::Config {
    speaker_encoder::Config {
        partial_n_frames: 6,
        model_hidden_size: 5,
        model_embedding_size: 7,
        model_num_layers: 2,
        mel_n_channels: 8,
        ..speaker_encoder::Config::cfg()
    }
}

/// An LSTM written out, over frames of one spectrogram, and what comes after it.
fn vector_of(made: &Made, frames: &[Vec<f32>], names: fn(usize) -> String) -> Result<Vec<f32>> {
    let asked = made.asked();
    let get = |name: String| {
        let found = asked.iter().find(|(n, _)| *n == name);
        &found.unwrap_or_else(|| panic!("{name} is not asked for")).1
    };
    let dot = |row: &[f32], xs: &[f32]| row.iter().zip(xs).map(|(a, b)| a * b).sum::<f32>();
    let mut xs = frames.to_vec();
    for layer in 0..2 {
        let part = |part: &str| get(format!("{}{part}_l{layer}", names(layer)));
        let (w, u) = (
            part("weight_ih").to_vec2::<f32>()?,
            part("weight_hh").to_vec2::<f32>()?,
        );
        let bias = (part("bias_ih") + part("bias_hh"))?.to_vec1::<f32>()?;
        let (mut h, mut c) = (vec![0f32; 5], vec![0f32; 5]);
        for xs in &mut xs {
            let gate = |i: usize| dot(&w[i], xs) + dot(&u[i], &h) + bias[i];
            let gates: Vec<f32> = (0..20).map(gate).collect();
            let sigmoid = |x: f32| 1. / (1. + (-x).exp());
            for i in 0..5 {
                c[i] = sigmoid(gates[5 + i]) * c[i] + sigmoid(gates[i]) * gates[10 + i].tanh();
                h[i] = sigmoid(gates[15 + i]) * c[i].tanh();
            }
            *xs = h.clone();
        }
    }
    let last = &xs[xs.len() - 1];
    let weight = get("linear.weight".to_string()).to_vec2::<f32>()?;
    let bias = get("linear.bias".to_string()).to_vec1::<f32>()?;
    let ys = weight
        .iter()
        .zip(bias)
        .map(|(row, b)| (dot(row, last) + b).max(0.));
    let ys: Vec<f32> = ys.collect();
    let length = ys.iter().map(|y| y * y).sum::<f32>().sqrt();
    Ok(ys.iter().map(|y| y / length).collect())
}

/// Vectors of spectrograms are those of an LSTM written out, under the names of both checkpoints.
fn vectors_of_voices(device: &Device) -> Result<()> {
    type Names = fn(usize) -> String;
    let both: [(&'static [&'static str], Names); 2] = [
        (&[], |_| "lstm.".to_string()),
        (&["lstm.weight"], |layer| format!("lstm.{layer}.")),
    ];
    for (lacking, names) in both {
        let made = Made {
            lacking,
            ..Made::default()
        };
        let model = speaker_encoder::Model::new(voice_config(), made.vb(DType::F32, device))?;
        let mel = vectors(&[3, 4, 8], 1, device)?;
        let found = model.forward(&mel)?;
        let host = mel.to_vec3::<f32>()?;
        let expected: Result<Vec<_>> = host
            .iter()
            .map(|mel| vector_of(&made, mel, names))
            .collect();
        assert_close(&found, &Tensor::new(expected?, &Device::Cpu)?, 1e-4);
        // A view.
        let turned = mel.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
        assert_close(&model.forward(&turned)?, &found, F32_TOLERANCE);
        for dims in [&[4, 8][..], &[3, 4, 7], &[3, 0, 8]] {
            let wrong = Tensor::zeros(dims, DType::F32, device)?;
            assert_error(model.forward(&wrong), &["(batch, frames, 8)"]);
        }
    }
    Ok(())
}
test_device!(vectors_of_voices);

/// The spectrogram of a part by its definition: frames centred at multiples of 10 ms, silence around the recording.
fn spectrogram(wav: &[f32], filters: &[f32], first: usize) -> Vec<Vec<f32>> {
    use std::f64::consts::PI;
    let frame = |frame: usize| {
        let sample = |i: usize| {
            let at = (frame * 160 + i) as i64 - 200;
            let sample = usize::try_from(at).ok().and_then(|at| wav.get(at));
            let hann = 0.5 - 0.5 * (2. * PI * i as f64 / 400.).cos();
            f64::from(sample.copied().unwrap_or(0.)) * hann
        };
        let power = |bin: usize| {
            let (mut re, mut im) = (0., 0.);
            for i in 0..400 {
                let angle = 2. * PI * (bin * i) as f64 / 400.;
                re += sample(i) * angle.cos();
                im += sample(i) * angle.sin();
            }
            re * re + im * im
        };
        let powers: Vec<f64> = (0..201).map(power).collect();
        let band = |weights: &[f32]| {
            let sum = weights.iter().zip(&powers).map(|(w, p)| f64::from(*w) * p);
            sum.sum::<f64>() as f32
        };
        filters.chunks(201).map(band).collect()
    };
    (first..first + 6).map(frame).collect()
}

/// The vector of a recording is the mean over its parts; the last part counts if it is long enough.
fn recordings(device: &Device) -> Result<()> {
    let made = Made::default();
    let model = speaker_encoder::Model::new(voice_config(), made.vb(DType::F32, device))?;
    let filters = mel_filters(8);
    let sample = |i: usize| (i as f32 * 0.3).sin() * 0.4 + (i as f32 * 0.011).sin() * 0.3;
    // Parts of 960 samples, 50 of which begin per second: at every second frame.
    for (samples, coverage, starts) in [
        (0, 0.75, &[0][..]),
        (500, 0.75, &[0]),
        (960, 0.75, &[0]),
        (960, 0.5, &[0, 2]),
        (1300, 0.75, &[0, 2]),
        (1300, 0.1, &[0, 2, 4]),
    ] {
        let wav: Vec<f32> = (0..samples).map(sample).collect();
        let found = model.embed_utterance(&wav, &filters, 50., coverage, device)?;
        assert_eq!(found.dims(), &[7]);
        let mut mean = [0f32; 7];
        for start in starts {
            let part = vector_of(&made, &spectrogram(&wav, &filters, *start), |_| {
                "lstm.".to_string()
            });
            for (mean, x) in mean.iter_mut().zip(part?) {
                *mean += x;
            }
        }
        let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
        let expected: Vec<f32> = mean.iter().map(|x| x / length).collect();
        println!("{samples} samples, {coverage}");
        assert_close(&found, &Tensor::new(expected, &Device::Cpu)?, 1e-4);
    }
    Ok(())
}
test_device!(recordings);

#[test]
fn speaker_encoders_that_cannot_be() -> Result<()> {
    let (made, cpu, plain) = (Made::default(), Device::Cpu, voice_config);
    for (config, part) in [
        (
            speaker_encoder::Config {
                model_num_layers: 0,
                ..plain()
            },
            "model_num_layers",
        ),
        (
            speaker_encoder::Config {
                mel_n_channels: 0,
                ..plain()
            },
            "mel_n_channels",
        ),
        (
            speaker_encoder::Config {
                partial_n_frames: 0,
                ..plain()
            },
            "partial_n_frames",
        ),
        (
            speaker_encoder::Config {
                sampling_rate: 99,
                ..plain()
            },
            "mel_window_step",
        ),
        (
            speaker_encoder::Config {
                mel_window_length: 0,
                ..plain()
            },
            "mel_window_length",
        ),
    ] {
        let model = speaker_encoder::Model::new(config, made.vb(DType::F32, &cpu));
        assert_error(model, &[part, "is 0"]);
    }
    let model = speaker_encoder::Model::new(plain(), made.vb(DType::F32, &cpu))?;
    let filters = mel_filters(8);
    let few = model.embed_utterance(&[0.; 900], &filters[1..], 1.3, 0.75, &cpu);
    assert_error(few, &["1607", "8 rows of 201"]);
    for rate in [1e6, 0., -1., f64::NAN, f64::INFINITY] {
        let found = model.embed_utterance(&[0.; 900], &filters, rate, 0.75, &cpu);
        assert_error(found, &["parts per second"]);
    }
    Ok(())
}
