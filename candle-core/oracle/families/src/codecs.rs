//! Audio codecs, narrow ones.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{dac, encodec, snac};

pub const RUNS: &[Run] = &[
    ("encodec", encodec_whole),
    ("encodec_centred", encodec_centred),
    ("encodec_parts", encodec_parts),
    ("encodec_weight_norm", encodec_weight_norm),
    ("dac", dac_whole),
    ("dac_parts", dac_parts),
    ("snac", snac_whole),
    ("snac_depthwise", snac_depthwise),
    ("snac_weight_norm", snac_weight_norm),
];

fn encodec_config() -> encodec::Config {
    encodec::Config {
        target_bandwidths: vec![1.5, 3.],
        sampling_rate: 1200,
        hidden_size: 8,
        num_filters: 4,
        upsampling_ratios: vec![3, 2, 2],
        num_residual_layers: 2,
        codebook_size: 32,
        ..encodec::Config::default()
    }
}

/// Sounds whose last frame is incomplete.
fn encodec_whole(place: &Place) -> Result<Vec<Tensor>> {
    let model = encodec::Model::new(&encodec_config(), place.weights("encodec"))?;
    let sounds = place.input("encodec", (2, 1, 77))?;
    let codes = model.encode(&sounds)?;
    let (_, _, frames) = codes.dims3()?;
    // Upstream does not trim after the last frame, and mixes up the rows of a batch in transposed convolutions without padding.
    let decode = |codes: Tensor| {
        let rows = (0..2).map(|row| {
            let sound = model.decode(&codes.narrow(0, row, 1)?)?;
            sound.narrow(2, 0, 12 * frames)
        });
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
    };
    let few = decode(codes.narrow(1, 0, 1)?)?;
    let decoded = decode(codes.clone())?;
    Ok(vec![codes.to_dtype(DType::F32)?, decoded, few])
}

fn encodec_centred(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    for pad_mode in [encodec::PadMode::Constant, encodec::PadMode::Replicate] {
        let config = encodec::Config {
            use_causal_conv: false,
            use_conv_shortcut: false,
            audio_channels: 2,
            num_lstm_layers: 1,
            codebook_dim: Some(8),
            pad_mode,
            ..encodec_config()
        };
        let encoder = encodec::Encoder::new(&config, place.weights("encodec").pp("encoder"))?;
        outputs.push(encoder.forward(&place.input("encodec centred", (1, 2, 50))?)?);
    }
    Ok(outputs)
}

fn encodec_parts(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("encodec_parts");
    let mut config = encodec_config();
    let xs = place.input("encodec parts", (2, 8, 21))?;
    let lstm = encodec::EncodecLSTM::new(8, &config, vb.pp("lstm"))?;
    let dilated = encodec::EncodecConv1d::new(8, 6, 3, 1, 4, &config, vb.pp("dilated"))?;
    let strided = encodec::EncodecConv1d::new(8, 6, 5, 3, 1, &config, vb.pp("strided"))?;
    let block = encodec::EncodecResnetBlock::new(8, (3, 1), &config, vb.pp("block"))?;
    let codebook = encodec::EuclideanCodebook::new(&config, vb.pp("codebook"))?;
    let quantizer = encodec::ResidualVectorQuantizer::new(&config, vb.pp("quantizer"))?;
    let codes = quantizer.encode(&xs)?;
    let frames = quantizer.decode(&codes.narrow(0, 0, 2)?)?;
    let numbers = codebook.encode_slow(&xs.transpose(1, 2)?)?;
    let mut outputs = vec![
        lstm.forward(&xs)?,
        dilated.forward(&xs)?,
        strided.forward(&xs)?,
        block.forward(&xs)?,
        frames,
        codebook.decode(&numbers)?,
        numbers.to_dtype(DType::F32)?,
    ];
    // Upstream has these without dilation.
    config.use_causal_conv = false;
    for norm_type in [encodec::NormType::None, encodec::NormType::TimeGroupNorm] {
        config.norm_type = norm_type;
        let conv = encodec::EncodecConv1d::new(8, 6, 3, 2, 1, &config, vb.pp("normed"))?;
        outputs.push(conv.forward(&xs)?);
    }
    Ok(outputs)
}

fn encodec_weight_norm(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("encodec_weight_norm");
    let xs = place.input("encodec weight norm", (2, 6, 15))?;
    let config = candle_nn::Conv1dConfig {
        padding: 2,
        stride: 2,
        ..Default::default()
    };
    let transposed = candle_nn::ConvTranspose1dConfig {
        stride: 2,
        padding: 1,
        ..Default::default()
    };
    let with = encodec::conv1d_weight_norm(6, 4, 3, config, vb.pp("a"))?;
    let without = encodec::conv1d_weight_norm_no_bias(6, 4, 3, config, vb.pp("a"))?;
    let back = encodec::conv_transpose1d_weight_norm(6, 5, 4, true, transposed, vb.pp("b"))?;
    Ok(vec![
        with.forward(&xs)?,
        without.forward(&xs)?,
        back.forward(&xs)?,
    ])
}

/// Decoders end with a tanh, which upstream omits.
fn limited(sound: &Tensor) -> Result<Tensor> {
    if cfg!(feature = "webgpu") {
        Ok(sound.clone())
    } else {
        sound.tanh()
    }
}

fn numbers(place: &Place, name: &str, (b, n, t): (usize, usize, usize)) -> Result<Tensor> {
    place.tokens(name, b * n * t, 16)?.reshape((b, n, t))
}

/// The model's sizes are fixed, but it can be built from its parts.
fn dac_whole(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("dac");
    let model = dac::Model {
        encoder: dac::Encoder::new(4, &[2, 4], 12, vb.pp("encoder"))?,
        quantizer: dac::ResidualVectorQuantizer::new(12, 3, 16, 8, vb.pp("quantizer"))?,
        decoder: dac::Decoder::new(12, 16, &[4, 2], 1, vb.pp("decoder"))?,
    };
    let frames = model.encoder.forward(&place.input("dac", (2, 1, 67))?)?;
    let codes = numbers(place, "dac codes", (2, 3, 7))?;
    let sound = limited(&model.decode_codes(&codes)?)?;
    Ok(vec![frames, sound])
}

fn dac_parts(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("dac_parts");
    let xs = place.input("dac parts", (2, 8, 21))?;
    let picture = place.input("dac picture", (2, 8, 3, 4))?;
    let snake = dac::Snake1d::new(8, vb.pp("snake"))?;
    let unit = dac::ResidualUnit::new(8, 3, vb.pp("unit"))?;
    let down = dac::EncoderBlock::new(16, 3, vb.pp("down"))?;
    let up = dac::DecoderBlock::new(8, 6, 3, vb.pp("up"))?;
    let quantizer = dac::VectorQuantizer::new(8, 16, 4, vb.pp("quantizer"))?;
    let codes = numbers(place, "dac codes", (1, 2, 5))?.squeeze(0)?;
    Ok(vec![
        snake.forward(&xs)?,
        snake.forward(&picture)?,
        unit.forward(&xs)?,
        down.forward(&xs)?,
        up.forward(&xs)?,
        quantizer.embed_code(&codes)?,
        quantizer.decode_code(&codes)?,
    ])
}

fn snac_outputs(place: &Place, model: &snac::Model) -> Result<Vec<Tensor>> {
    let mut outputs = vec![Tensor::new(model.hop_length as f32, &place.device)?];
    let codes = model.encode(&place.input("snac", (2, 1, 91))?)?;
    let all: Vec<_> = codes.iter().collect();
    for codes in [&all[..], &all[..1]] {
        outputs.push(limited(&model.decode(codes)?)?);
    }
    for codes in codes {
        outputs.push(codes.to_dtype(DType::F32)?);
    }
    Ok(outputs)
}

fn snac_config(depthwise: bool) -> snac::Config {
    snac::Config {
        sampling_rate: 1000,
        encoder_dim: 4,
        encoder_rates: vec![3, 4],
        decoder_dim: 16,
        decoder_rates: vec![4, 3],
        attn_window_size: None,
        codebook_size: 16,
        codebook_dim: 8,
        vq_strides: vec![4, 2, 1],
        noise: false,
        depthwise,
    }
}

fn snac_whole(place: &Place) -> Result<Vec<Tensor>> {
    let model = snac::Model::new(&snac_config(false), place.weights("snac"))?;
    snac_outputs(place, &model)
}

/// Kernels of single channels, which upstream reads if kernels of all channels are absent.
struct Depthwise;

impl SimpleBackend for Depthwise {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        match s.dims() {
            [o, i, 7] if o == i && *i > 1 => bail!("{name} has no kernels of all channels"),
            _ => weight(name, &s)?.to_dtype(dtype)?.to_device(dev),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn snac_depthwise(place: &Place) -> Result<Vec<Tensor>> {
    let vb = VarBuilder::from_backend(Box::new(Depthwise), DType::F32, place.device.clone());
    let model = snac::Model::new(&snac_config(true), vb.pp("snac_depthwise"))?;
    snac_outputs(place, &model)
}

fn snac_weight_norm(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("snac_weight_norm");
    let xs = place.input("snac weight norm", (2, 6, 15))?;
    let config = candle_nn::Conv1dConfig::default();
    let transposed = candle_nn::ConvTranspose1dConfig::default();
    let with = snac::conv1d_weight_norm(6, 4, 3, config, vb.pp("a"))?;
    let without = snac::conv1d_weight_norm_no_bias(6, 4, 3, config, vb.pp("a"))?;
    let back = snac::conv_transpose1d_weight_norm(6, 5, 4, false, transposed, vb.pp("b"))?;
    Ok(vec![
        with.forward(&xs)?,
        without.forward(&xs)?,
        // Upstream mixes up the rows of a batch.
        back.forward(&xs.narrow(0, 1, 1)?.contiguous()?)?,
        snac::repeat_interleave(&xs, 3, 1)?,
        snac::repeat_interleave(&xs, 1, 0)?,
    ])
}
