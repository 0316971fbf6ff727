//! EnCodec beyond what is compared with Candle: trimming, paddings, norms, names of kernels, and what is refused.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{Conv1dConfig, VarBuilder};
use candle_transformers::models::encodec::{
    self, Config, Decoder, EncodecConv1d, EncodecLSTM, Encoder, EuclideanCodebook, Model, NormType,
    PadMode, ResidualVectorQuantizer,
};

use super::support::{assert_close, Numbers};
use super::vision::weights;

/// 12 samples make a frame, and there are 3 codebooks.
fn config() -> Config {
    Config {
        target_bandwidths: vec![1.5, 3.],
        sampling_rate: 1200,
        hidden_size: 8,
        num_filters: 4,
        upsampling_ratios: vec![3, 2, 2],
        num_lstm_layers: 1,
        codebook_size: 16,
        pad_mode: PadMode::Reflect,
        ..Config::default()
    }
}

fn ids(tensor: &Tensor) -> Result<Vec<u32>> {
    tensor.flatten_all()?.to_vec1()
}

/// Fails unless `result` is an error that has all of `parts`.
#[track_caller]
fn refused<T>(result: Result<T>, parts: &[&str]) {
    let err = result.err().expect("it is accepted").to_string();
    for part in parts {
        assert!(err.contains(part), "no {part:?} in: {err}");
    }
}

/// Rows of a batch are alone in it, f16 is near f32, and sounds and codes of other shapes are refused.
fn encodec_batches(device: &Device) -> Result<()> {
    let model = Model::new(&config(), weights(DType::F32, device))?;
    let sounds = Numbers::new(3).tensor(&[2, 1, 62], 1., device)?;
    let codes = model.encode(&sounds)?;
    assert_eq!((codes.dims(), codes.dtype()), (&[2, 3, 6][..], DType::U32));
    assert_ne!(ids(&codes.get(0)?)?, ids(&codes.get(1)?)?);
    let decoded = model.decode(&codes)?;
    assert_eq!(decoded.dims(), &[2, 1, 6 * 12]);
    for row in 0..2 {
        let codes = codes.narrow(0, row, 1)?;
        assert_eq!(
            ids(&model.encode(&sounds.narrow(0, row, 1)?)?)?,
            ids(&codes)?
        );
        assert_close(&model.decode(&codes)?, &decoded.narrow(0, row, 1)?, 2e-5);
    }
    // As views that are not contiguous.
    let strided = sounds.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    assert_eq!(ids(&model.encode(&strided)?)?, ids(&codes)?);
    let half = Model::new(&config(), weights(DType::F16, device))?.decode(&codes)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &decoded, 0.03);
    for dims in [&[1, 2, 62][..], &[1, 1, 0], &[1, 62]] {
        let sound = Tensor::zeros(dims, DType::F32, device)?;
        refused(
            model.encode(&sound),
            &["(batch, 1, samples)", &format!("{dims:?}")],
        );
    }
    for dims in [&[1, 4, 5][..], &[1, 0, 5], &[1, 3, 0], &[3, 5]] {
        let codes = Tensor::zeros(dims, DType::U32, device)?;
        refused(model.decode(&codes), &["encodec", "codes"]);
    }
    Ok(())
}
test_device!(encodec_batches);

/// A causal decoder gives the same sound for the first frames whatever follows, and nothing behind the last one.
fn encodec_prefixes(device: &Device) -> Result<()> {
    // Others look at what follows the first frame.
    let config = Config {
        pad_mode: PadMode::Replicate,
        ..config()
    };
    let model = Model::new(&config, weights(DType::F32, device))?;
    let codes: Vec<u32> = (0..3 * 9).map(|i| i * 7 % 16).collect();
    let codes = Tensor::from_vec(codes, (1, 3, 9), device)?;
    let whole = model.decode(&codes)?;
    for frames in [1, 4, 9] {
        let part = model.decode(&codes.narrow(2, 0, frames)?)?;
        assert_close(&part, &whole.narrow(2, 0, frames * 12)?, 1e-5);
    }
    let late = Config {
        trim_right_ratio: 0.,
        ..config
    };
    let late = Model::new(&late, weights(DType::F32, device))?.decode(&codes)?;
    assert_eq!(late.dims(), whole.dims());
    Ok(())
}
test_device!(encodec_prefixes);

/// The samples that a convolution reads beyond the ends of `sound`: with a kernel of 3 samples, as its digits.
fn seen(sound: &[f32], causal: bool, pad_mode: PadMode, device: &Device) -> Result<Vec<f32>> {
    let tensors = [
        ("conv.weight", Tensor::new(&[[[100f32, 10., 1.]]], device)?),
        ("conv.bias", Tensor::new(&[0f32], device)?),
    ];
    let tensors: HashMap<_, _> = tensors.map(|(name, t)| (name.to_string(), t)).into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
    let config = Config {
        norm_type: NormType::None,
        use_causal_conv: causal,
        pad_mode,
        ..config()
    };
    let conv = EncodecConv1d::new(1, 1, 3, 1, 1, &config, vb)?;
    let sound = Tensor::from_slice(sound, (1, 1, sound.len()), device)?;
    conv.forward(&sound)?.flatten_all()?.to_vec1()
}

fn encodec_paddings(device: &Device) -> Result<()> {
    let sound = [1., 2., 3., 4.];
    for (causal, mode, expected) in [
        (true, PadMode::Constant, [1., 12., 123., 234.]),
        (true, PadMode::Replicate, [111., 112., 123., 234.]),
        (true, PadMode::Reflect, [321., 212., 123., 234.]),
        (false, PadMode::Constant, [12., 123., 234., 340.]),
        (false, PadMode::Replicate, [112., 123., 234., 344.]),
        (false, PadMode::Reflect, [212., 123., 234., 343.]),
    ] {
        assert_eq!(
            seen(&sound, causal, mode, device)?,
            expected,
            "{causal}, {mode:?}"
        );
    }
    // Too short for a mirror image: 5 0 0, mirrored.
    assert_eq!(seen(&[5.], true, PadMode::Reflect, device)?, [5.]);
    assert_eq!(
        seen(&[5., 6.], true, PadMode::Reflect, device)?,
        [65., 656.]
    );
    assert_eq!(seen(&[5.], false, PadMode::Reflect, device)?, [50.]);
    Ok(())
}
test_device!(encodec_paddings);

/// The last frame is there if it has begun.
fn encodec_frames(device: &Device) -> Result<()> {
    let encoder = Encoder::new(&config(), weights(DType::F32, device).pp("encoder"))?;
    for (samples, frames) in [(1, 1), (11, 1), (12, 1), (13, 2), (24, 2), (25, 3)] {
        let sound = Tensor::ones((1, 1, samples), DType::F32, device)?;
        assert_eq!(
            encoder.forward(&sound)?.dim(2)?,
            frames,
            "of {samples} samples"
        );
    }
    Ok(())
}
test_device!(encodec_frames);

/// Kernels are the same under each of their names, and large ones in f16.
fn kernel_names(device: &Device) -> Result<()> {
    let mut numbers = Numbers::new(9);
    let length = (numbers.tensor(&[4, 1, 1], 0.5, device)? + 1.)?;
    let direction = numbers.tensor(&[4, 3, 5], 300., device)?;
    let norm = direction.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
    let product = direction.broadcast_mul(&length.div(&norm)?)?;
    let bias = numbers.tensor(&[4], 1., device)?;
    let conv = |tensors: &[(&str, &Tensor)], dtype| {
        let tensors = tensors
            .iter()
            .map(|(name, t)| (name.to_string(), (*t).clone()));
        let tensors = tensors
            .chain([("bias".to_string(), bias.clone())])
            .collect();
        let vb = VarBuilder::from_tensors(tensors, dtype, device);
        encodec::conv1d_weight_norm(3, 4, 5, Conv1dConfig::default(), vb)
    };
    for tensors in [
        &[("weight_g", &length), ("weight_v", &direction)][..],
        &[
            ("parametrizations.weight.original0", &length),
            ("parametrizations.weight.original1", &direction),
        ],
        &[("weight", &product)],
    ] {
        assert_close(conv(tensors, DType::F32)?.weight(), &product, 1e-6);
        assert_close(conv(tensors, DType::F16)?.weight(), &product, 2e-3);
    }
    refused(conv(&[("weight_g", &length)], DType::F32), &["weight_v"]);
    Ok(())
}
test_device!(kernel_names);

/// Group norm is behind transposed convolutions too, and does not change dilations.
fn encodec_group_norm(device: &Device) -> Result<()> {
    let config = Config {
        norm_type: NormType::TimeGroupNorm,
        use_causal_conv: false,
        ..config()
    };
    let decoder = Decoder::new(&config, weights(DType::F32, device).pp("decoder"))?;
    let frames = Numbers::new(4).tensor(&[1, 8, 5], 1., device)?;
    let sound = decoder.forward(&frames)?;
    assert_eq!(sound.dims(), &[1, 1, 60]);
    // One channel over the whole time, so its mean is the bias of the norm and its variance the square of the weight.
    let norm = weights(DType::F32, device).pp("decoder.layers.12.norm");
    let mean = sound.mean_all()?.to_scalar::<f32>()?;
    let bias = norm.get(1, "bias")?.to_vec1::<f32>()?[0];
    assert!((mean - bias).abs() < 1e-4, "{mean} is not {bias}");
    let conv = EncodecConv1d::new(2, 2, 3, 1, 4, &config, weights(DType::F32, device))?;
    // The reach of an impulse is the dilation.
    let mut impulse = vec![0f32; 2 * 21];
    impulse[10] = 1.;
    let impulse = Tensor::from_vec(impulse, (1, 2, 21), device)?;
    let ys = conv.forward(&impulse)?.get(0)?.get(0)?.to_vec1::<f32>()?;
    let differs = |i: usize| (ys[i] - ys[0]).abs() > 1e-3;
    assert_eq!(
        [6, 7, 9, 10, 11, 14].map(differs),
        [true, false, false, true, false, true]
    );
    Ok(())
}
test_device!(encodec_group_norm);

/// Codes are those of the nearest vectors, the first of several, also of vectors that are not contiguous.
fn encodec_codebook(device: &Device) -> Result<()> {
    let codebook = EuclideanCodebook::new(&config(), weights(DType::F32, device))?;
    let rows: Vec<Vec<f32>> = weights(DType::F32, device)
        .get((16, 8), "embed")?
        .to_vec2()?;
    let vectors = Numbers::new(5)
        .tensor(&[2, 8, 7], 1., device)?
        .transpose(1, 2)?;
    let distance =
        |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum() };
    let mut expected = Vec::new();
    for vector in vectors.contiguous()?.reshape((14, 8))?.to_vec2::<f32>()? {
        let distances: Vec<_> = rows.iter().map(|row| distance(row, &vector)).collect();
        let nearest = (0..16).min_by(|a, b| distances[*a].total_cmp(&distances[*b]));
        expected.push(nearest.expect("16 rows") as u32);
    }
    let codes = codebook.encode(&vectors)?;
    assert_eq!(codes.dims(), &[2, 7]);
    assert_eq!(ids(&codes)?, expected);
    assert_eq!(ids(&codebook.encode_slow(&vectors)?)?, expected);
    assert_eq!(ids(&codebook.encode(&codebook.decode(&codes)?)?)?, expected);
    refused(
        codebook.encode(&vectors.narrow(2, 0, 7)?),
        &["(…, 8)", "[2, 7, 7]"],
    );
    let quantizer = ResidualVectorQuantizer::new(&config(), weights(DType::F32, device))?;
    let codes = Tensor::zeros((4, 1, 2), DType::U32, device)?;
    refused(quantizer.decode(&codes), &["model has 3", "codes of 4"]);
    Ok(())
}
test_device!(encodec_codebook);

#[test]
fn encodec_configurations() -> Result<()> {
    // The text of facebook/encodec_24khz, without what says nothing about the model.
    let json = r#"{"audio_channels": 1, "chunk_length_s": null, "codebook_dim": 128, "codebook_size": 1024, "compress": 2,
        "dilation_growth_rate": 2, "hidden_size": 128, "kernel_size": 7, "last_kernel_size": 7, "model_type": "encodec",
        "norm_type": "weight_norm", "normalize": false, "num_filters": 32, "num_lstm_layers": 2, "num_residual_layers": 1,
        "overlap": null, "pad_mode": "reflect", "residual_kernel_size": 3, "sampling_rate": 24000,
        "target_bandwidths": [1.5, 3.0, 6.0, 12.0, 24.0], "trim_right_ratio": 1.0, "upsampling_ratios": [8, 5, 4, 2],
        "use_causal_conv": true, "use_conv_shortcut": true}"#;
    let of_json: Config = serde_json::from_str(json).map_err(candle_core::Error::wrap)?;
    let expected = Config {
        pad_mode: PadMode::Reflect,
        codebook_dim: Some(128),
        ..Config::default()
    };
    assert_eq!(of_json, expected);
    let load = |change: fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        Model::new(&config, weights(DType::F32, &Device::Cpu))
    };
    assert!(load(|_| {}).is_ok());
    refused(
        load(|c| c.target_bandwidths = vec![]),
        &["target_bandwidths is empty"],
    );
    refused(
        load(|c| c.target_bandwidths = vec![0.5]),
        &["0.5 kbit/s", "100 codes"],
    );
    refused(load(|c| c.sampling_rate = 0), &["sampling rate of 0"]);
    refused(load(|c| c.upsampling_ratios = vec![2, 0]), &["[2, 0]"]);
    refused(
        load(|c| c.codebook_dim = Some(9)),
        &["codebook_dim is 9", "hidden_size, 8"],
    );
    refused(load(|c| c.codebook_size = 0), &["codebook of 0 vectors"]);
    refused(
        load(|c| c.num_lstm_layers = 0),
        &["num_lstm_layers", "not 0"],
    );
    refused(load(|c| c.num_filters = 0), &["output channels", "not 0"]);
    refused(load(|c| c.kernel_size = 0), &["kernel", "not 0"]);
    refused(load(|c| c.compress = 0), &["`compress` 0"]);
    refused(load(|c| c.compress = 5), &["4 channels", "`compress` 5"]);
    refused(load(|c| c.trim_right_ratio = 1.5), &["1.5"]);
    refused(
        load(|c| c.norm_type = NormType::TimeGroupNorm),
        &["group norm", "causal"],
    );
    refused(
        load(|c| (c.dilation_growth_rate, c.num_residual_layers) = (usize::MAX, 3)),
        &["is too wide"],
    );
    let vb = weights(DType::F32, &Device::Cpu);
    refused(
        EncodecConv1d::new(2, 2, 3, 4, 1, &config(), vb.clone()),
        &["3 samples", "stride 4"],
    );
    let lstm = Config {
        num_lstm_layers: 0,
        ..config()
    };
    refused(EncodecLSTM::new(4, &lstm, vb), &["num_lstm_layers"]);
    Ok(())
}
