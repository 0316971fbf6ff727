//! Mimi beyond the comparison with Candle: pieces of every length against the whole, windows, states, and refused inputs.

use std::collections::HashMap;

use candle_core::{
    test_device, DType, Device, Module, Result, StreamTensor, StreamingModule, Tensor,
};
use candle_nn::kv_cache::RotatingKvCache;
use candle_nn::VarBuilder;
use candle_transformers::models::mimi::conv::{
    ConvDownsample1d, Norm, NormConv1d, PadMode, StreamableConv1d, StreamableConvTranspose1d,
};
use candle_transformers::models::mimi::encodec::ResampleMethod;
use candle_transformers::models::mimi::quantization::EuclideanCodebook;
use candle_transformers::models::mimi::seanet::{SeaNetEncoder, SeaNetResnetBlock};
use candle_transformers::models::mimi::transformer::{
    Config as TransformerConfig, PositionalEmbedding, ProjectedTransformer, RotaryEmbedding,
    StreamingMultiheadAttention, StreamingTransformer,
};
use candle_transformers::models::mimi::{self, Config, Model};

use super::support::{assert_close, Numbers};
use super::vision::weights;

/// 12 samples make two frames, which have codes together; a frame sees 3.
fn config() -> Config {
    let mut config = Config::v0_1(Some(3));
    config.sample_rate = 1200.;
    config.frame_rate = 100.;
    config.seanet.dimension = 16;
    config.seanet.n_filters = 4;
    config.seanet.ratios = vec![3, 2];
    config.transformer = transformer_config();
    config.quantizer_bins = 32;
    config.quantizer_dim = 8;
    config
}

fn transformer_config() -> TransformerConfig {
    TransformerConfig {
        d_model: 16,
        num_heads: 2,
        num_layers: 2,
        dim_feedforward: 24,
        context: 3,
        max_seq_len: 64,
        ..Config::v0_1(None).transformer
    }
}

/// Fails unless `result` is an error that has all of `parts`.
#[track_caller]
fn refused<T>(result: Result<T>, parts: &[&str]) {
    let err = result.err().expect("it is accepted").to_string();
    for part in parts {
        assert!(err.contains(part), "no {part:?} in: {err}");
    }
}

/// The concatenated outputs of `step` for pieces of these lengths along a dimension, where 0 means no piece, and for the rest.
fn in_pieces(
    xs: &Tensor,
    dim: usize,
    pieces: &[usize],
    mut step: impl FnMut(&StreamTensor) -> Result<StreamTensor>,
) -> Result<Tensor> {
    let (mut start, mut outputs) = (0, Vec::new());
    let rest = xs.dim(dim)? - pieces.iter().sum::<usize>();
    for &len in pieces.iter().chain([&rest]) {
        let piece = match len {
            0 => StreamTensor::empty(),
            _ => xs.narrow(dim, start, len)?.into(),
        };
        start += len;
        outputs.extend(step(&piece)?.as_option().cloned());
    }
    Tensor::cat(&outputs, dim)
}

const PIECES: [&[usize]; 4] = [&[], &[1, 1, 1, 1, 1, 1], &[0, 7, 2, 0, 1], &[11]];

fn conv_pieces(device: &Device) -> Result<()> {
    let xs = Numbers::new(3).tensor(&[2, 4, 23], 1., device)?;
    for (k, stride, dilation, groups, pad, norm) in [
        (1, 1, 1, 1, PadMode::Constant, None),
        (3, 1, 4, 2, PadMode::Replicate, None),
        (4, 2, 1, 1, PadMode::Constant, Some(Norm::WeightNorm)),
        (5, 3, 1, 1, PadMode::Reflect, None),
        (2, 2, 1, 4, PadMode::Reflect, None),
        (4, 3, 3, 1, PadMode::Replicate, None),
    ] {
        let vb = weights(DType::F32, device);
        let mut conv =
            StreamableConv1d::new(4, 8, k, stride, dilation, groups, true, true, norm, pad, vb)?;
        let whole = conv.forward(&xs)?;
        assert_eq!(whole.dim(2)?, 23usize.div_ceil(stride));
        // The last frame may lack samples, which pieces wait for.
        let whole = whole.narrow(2, 0, 23 / stride)?;
        for pieces in PIECES {
            let joined = in_pieces(&xs, 2, pieces, |xs| conv.step(xs))?;
            assert_close(&joined, &whole, 1e-5);
            conv.reset_state();
        }
    }
    Ok(())
}
test_device!(conv_pieces);

fn transposed_pieces(device: &Device) -> Result<()> {
    let xs = Numbers::new(4).tensor(&[2, 4, 17], 1., device)?;
    for (k, stride, groups, bias) in [
        (1, 1, 1, true),
        (3, 1, 2, true),
        (7, 1, 1, false),
        (4, 2, 4, true),
        (3, 3, 1, true),
        (5, 3, 1, false),
    ] {
        let vb = weights(DType::F32, device);
        let mut conv =
            StreamableConvTranspose1d::new(4, 8, k, stride, groups, bias, true, None, vb)?;
        let whole = conv.forward(&xs)?;
        assert_eq!(whole.dim(2)?, 17 * stride);
        for pieces in PIECES {
            let joined = in_pieces(&xs, 2, pieces, |xs| conv.step(xs))?;
            assert_close(&joined, &whole, 1e-5);
            conv.reset_state();
        }
    }
    Ok(())
}
test_device!(transposed_pieces);

/// A convolution with groups is that of each group, also where each channel is one.
fn transposed_groups(device: &Device) -> Result<()> {
    let xs = Numbers::new(4).tensor(&[2, 4, 5], 1., device)?;
    let vb = weights(DType::F32, device);
    let conv = StreamableConvTranspose1d::new(4, 4, 4, 2, 4, false, true, None, vb.clone())?;
    let ys = conv.forward(&xs)?;
    let kernel = vb.get((4, 1, 4), "conv.weight")?;
    for channel in 0..4 {
        let xs = xs.narrow(1, channel, 1)?;
        let alone = xs.conv_transpose1d(&kernel.narrow(0, channel, 1)?, 0, 0, 2, 1, 1)?;
        assert_close(&ys.narrow(1, channel, 1)?, &alone.narrow(2, 0, 10)?, 1e-6);
    }
    Ok(())
}
test_device!(transposed_groups);

/// Beyond the window too: pieces of a sound give the codes of the whole, and pieces of codes its sound. A model that is reset, and a copy
/// made in between, continue correctly.
fn mimi_pieces(device: &Device) -> Result<()> {
    let mut model = Model::new(config(), weights(DType::F32, device))?;
    let sound = Numbers::new(5).tensor(&[1, 1, 127], 1., device)?;
    let ids = |codes: &Tensor| codes.flatten_all()?.to_vec1::<u32>();
    let codes = model.encode(&sound)?;
    assert_eq!(codes.dims(), &[1, 3, 11]);
    // The last frame is not whole.
    let whole = codes.narrow(2, 0, 10)?;
    for pieces in [&[1, 12, 0, 30, 5][..], &[126]] {
        let joined = in_pieces(&sound, 2, pieces, |xs| model.encode_step(xs))?;
        assert_eq!(ids(&joined)?, ids(&whole)?);
        model.reset_state();
    }
    let again = model.decode(&codes)?;
    assert_eq!(again.dims(), &[1, 1, 11 * 12]);
    let first = model.decode_step(&codes.narrow(2, 0, 4)?.into())?;
    // A whole sound in between changes nothing, and neither does a copy that continues.
    model.decode(&codes)?;
    model.encode(&sound)?;
    let mut copy = model.clone();
    copy.decode_step(&codes.narrow(2, 0, 3)?.into())?;
    let mut pieces = vec![first];
    for (start, len) in [(4, 1), (5, 1), (6, 5)] {
        pieces.push(model.decode_step(&codes.narrow(2, start, len)?.into())?);
    }
    let pieces: Vec<_> = pieces.iter().filter_map(StreamTensor::as_option).collect();
    assert_close(&Tensor::cat(&pieces, 2)?, &again, 2e-5);
    Ok(())
}
test_device!(mimi_pieces);

/// After a reset nothing is left, of any layer.
fn mimi_resets(device: &Device) -> Result<()> {
    let mut model = Model::new(config(), weights(DType::F32, device))?;
    let sound = Numbers::new(6).tensor(&[1, 1, 48], 1., device)?;
    let noise = Numbers::new(7).tensor(&[1, 1, 29], 1., device)?;
    let fresh = model.encode_step(&sound.clone().into())?;
    model.reset_state();
    // What the convolutions keep for the next frame.
    model.encode_step(&noise.into())?;
    model.reset_state();
    let after = model.encode_step(&sound.into())?;
    let ids = |codes: &StreamTensor| codes.as_option().map(|t| t.flatten_all()?.to_vec1::<u32>());
    assert_eq!(ids(&after).transpose()?, ids(&fresh).transpose()?);
    assert!(model.encode_step(&().into())?.as_option().is_none());
    // Blocks whose sums wait for one side.
    let mut block = SeaNetResnetBlock::new(
        4,
        &[(3, 1), (1, 1)],
        candle_nn::Activation::Relu,
        None,
        true,
        PadMode::Reflect,
        2,
        true,
        weights(DType::F32, device),
    )?;
    let xs = Numbers::new(8).tensor(&[1, 4, 9], 1., device)?;
    // The mirror image needs three samples, so the sum waits.
    let waiting = block.step(&xs.narrow(2, 0, 2)?.into())?;
    assert!(waiting.as_option().is_none());
    block.reset_state();
    let joined = in_pieces(&xs, 2, &[2, 4], |xs| block.step(xs))?;
    assert_close(&joined, &block.forward(&xs)?, 1e-5);
    Ok(())
}
test_device!(mimi_resets);

/// Rows of a batch are alone in it, and f16 is near f32.
fn mimi_batches(device: &Device) -> Result<()> {
    let mut model = Model::new(config(), weights(DType::F32, device))?;
    let sounds = Numbers::new(9).tensor(&[2, 1, 60], 1., device)?;
    let (codes, frames) = (model.encode(&sounds)?, model.encode_pre_quantize(&sounds)?);
    let decoded = model.decode(&codes)?;
    let ids = |codes: &Tensor| codes.flatten_all()?.to_vec1::<u32>();
    for row in 0..2 {
        let sound = sounds.narrow(0, row, 1)?;
        let codes = codes.narrow(0, row, 1)?;
        assert_eq!(ids(&model.encode(&sound)?)?, ids(&codes)?);
        assert_close(
            &model.encode_pre_quantize(&sound)?,
            &frames.narrow(0, row, 1)?,
            2e-5,
        );
        assert_close(&model.decode(&codes)?, &decoded.narrow(0, row, 1)?, 2e-5);
    }
    let mut half = Model::new(config(), weights(DType::F16, device))?;
    let half_frames = half.encode_pre_quantize(&sounds.to_dtype(DType::F16)?)?;
    assert_close(&half_frames, &frames, 0.03);
    assert_close(&half.decode(&codes)?, &decoded, 0.03);
    for dims in [&[1, 2, 48][..], &[1, 1, 0], &[48]] {
        let sound = Tensor::zeros(dims, DType::F32, device)?;
        refused(
            model.encode(&sound),
            &["(batch, 1, samples)", &format!("{dims:?}")],
        );
    }
    for dims in [&[1, 2, 4][..], &[1, 4, 4], &[1, 3, 0], &[3, 4]] {
        let codes = Tensor::zeros(dims, DType::U32, device)?;
        refused(
            model.decode(&codes),
            &["(batch, 3, frames)", &format!("{dims:?}")],
        );
        refused(model.decode_step(&codes.into()), &["(batch, 3, frames)"]);
    }
    Ok(())
}
test_device!(mimi_batches);

/// A position sees `context` positions, itself included; whole, in pieces, and beyond the angles computed at loading.
fn windows(device: &Device) -> Result<()> {
    let config = TransformerConfig {
        num_layers: 1,
        max_seq_len: 4,
        ..transformer_config()
    };
    let mut model = StreamingTransformer::new(&config, weights(DType::F32, device))?;
    let xs = Numbers::new(10).tensor(&[1, 9, 16], 1., device)?;
    let other = Numbers::new(11).tensor(&[1, 1, 16], 1., device)?;
    let changed = Tensor::cat(&[&other, &xs.narrow(1, 1, 8)?], 1)?;
    let whole = model.forward(&xs)?;
    model.reset_state();
    let difference = (model.forward(&changed)? - &whole)?.abs()?;
    let difference = difference.max(2)?.get(0)?.to_vec1::<f32>()?;
    let seen: Vec<_> = difference.iter().map(|d| *d > 1e-4).collect();
    assert_eq!(
        seen,
        [true, true, true, false, false, false, false, false, false]
    );
    for pieces in [&[1; 9][..], &[4, 4], &[2, 3, 1]] {
        model.reset_state();
        let joined = in_pieces(&xs, 1, pieces, |xs| model.step(xs))?;
        assert_close(&joined, &whole, 1e-5);
    }
    // All angles from the table.
    let long = TransformerConfig {
        max_seq_len: 64,
        ..config
    };
    let mut long = StreamingTransformer::new(&long, weights(DType::F32, device))?;
    assert_close(&long.forward(&xs)?, &whole, 1e-5);
    Ok(())
}
test_device!(windows);

/// Added positions continue with the pieces, and a state can be moved to another transformer.
fn states(device: &Device) -> Result<()> {
    for positional_embedding in [PositionalEmbedding::Sin, PositionalEmbedding::Rope] {
        let config = TransformerConfig {
            positional_embedding,
            ..transformer_config()
        };
        let load = || StreamingTransformer::new(&config, weights(DType::F32, device));
        let (mut a, mut b) = (load()?, load()?);
        let xs = Numbers::new(12).tensor(&[1, 8, 16], 1., device)?;
        let whole = load()?.forward(&xs)?;
        a.forward(&xs.narrow(1, 0, 5)?)?;
        b.forward(&xs.narrow(1, 2, 3)?)?;
        b.copy_state(&a)?;
        a.forward(&xs.narrow(1, 0, 3)?)?;
        assert_close(
            &b.forward(&xs.narrow(1, 5, 3)?)?,
            &whole.narrow(1, 5, 3)?,
            1e-5,
        );
        let fewer = TransformerConfig {
            num_layers: 1,
            ..config
        };
        let mut fewer = StreamingTransformer::new(&fewer, weights(DType::F32, device))?;
        refused(fewer.copy_state(&a), &["1 layers", "state has 2"]);
    }
    Ok(())
}
test_device!(states);

/// A cache's keys and values are those of the positions before, whose ring may begin anywhere.
fn given_cache(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let config = transformer_config();
    let rope = Some(std::sync::Arc::new(RotaryEmbedding::new(
        8, 8, 100., device,
    )?));
    let mut expected = StreamingMultiheadAttention::new(&rope, &config, vb.clone())?;
    let mut given = StreamingMultiheadAttention::new(&rope, &config, vb.clone())?;
    let xs = Numbers::new(13).tensor(&[1, 7, 16], 1., device)?;
    let project = |name: &str| -> Result<Tensor> {
        let weight = vb.get((16, 16), &format!("{name}.weight"))?;
        let ys = xs.get(0)?.matmul(&weight.t()?)?;
        ys.reshape((1, 7, 2, 8))?.transpose(1, 2)?.contiguous()
    };
    let keys = rope
        .as_ref()
        .expect("a rotation")
        .apply_rotary_emb(&project("k_proj")?, 0)?;
    let values = project("v_proj")?;
    let mut cache = RotatingKvCache::new(2, 3);
    for i in 0..5 {
        expected.forward(&xs.narrow(1, i, 1)?, None)?;
        let at = |xs: &Tensor| xs.narrow(2, i, 1)?.contiguous();
        cache.append(&at(&keys)?, &at(&values)?)?;
    }
    given.forward(&xs.narrow(1, 0, 2)?, None)?;
    given.set_kv_cache(cache);
    let next = xs.narrow(1, 5, 2)?;
    assert_close(
        &given.forward(&next, None)?,
        &expected.forward(&next, None)?,
        1e-5,
    );
    given.reset_kv_cache();
    let mask = Tensor::zeros((2, 3), DType::U8, device)?;
    refused(given.forward(&next, Some(&mask)), &["(2, 2)", "[2, 3]"]);
    Ok(())
}
test_device!(given_cache);

/// Query heads that share keys and values are as heads whose keys and values are the same.
fn shared_heads(device: &Device) -> Result<()> {
    let shared = TransformerConfig {
        kv_repeat: 2,
        ..transformer_config()
    };
    let vb = weights(DType::F32, device);
    let mut tensors = HashMap::new();
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        let name = format!("{name}.weight");
        let weight = if name.starts_with(['k', 'v']) {
            vb.get((8, 16), &name)?.repeat((2, 1))?
        } else {
            vb.get((16, 16), &name)?
        };
        tensors.insert(name, weight);
    }
    let repeated = VarBuilder::from_tensors(tensors, DType::F32, device);
    let xs = Numbers::new(14).tensor(&[2, 5, 16], 1., device)?;
    let ys = StreamingMultiheadAttention::new(&None, &shared, vb)?.forward(&xs, None)?;
    let mut plain = StreamingMultiheadAttention::new(&None, &transformer_config(), repeated)?;
    assert_close(&ys, &plain.forward(&xs, None)?, 1e-5);
    Ok(())
}
test_device!(shared_heads);

/// Vectors are sums by how often they were used, which may be never.
fn codebook_usage(device: &Device) -> Result<()> {
    let tensors = [
        ("embed_sum", Tensor::new(&[[4f32, 8.], [1e-5, 0.]], device)?),
        ("cluster_usage", Tensor::new(&[4f32, 0.], device)?),
    ];
    let tensors: HashMap<_, _> = tensors.map(|(name, t)| (name.to_string(), t)).into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
    let codebook = EuclideanCodebook::new(2, 2, vb)?;
    let vectors = codebook.decode(&Tensor::new(&[0u32, 1], device)?)?;
    let expected = Tensor::new(&[[1f32, 2.], [1., 0.]], device)?;
    assert_close(&vectors, &expected, 1e-6);
    let near = Tensor::new(&[[1f32, 0.9], [1., 1.1]], device)?;
    for encode in [
        EuclideanCodebook::encode,
        EuclideanCodebook::encode_slow,
        EuclideanCodebook::encode_very_slow,
    ] {
        assert_eq!(encode(&codebook, &near)?.to_vec1::<u32>()?, [1, 0]);
    }
    Ok(())
}
test_device!(codebook_usage);

#[test]
fn mimi_refuses() -> Result<()> {
    let vb = || weights(DType::F32, &Device::Cpu);
    let load = |change: fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        Model::new(config, weights(DType::F32, &Device::Cpu))
    };
    assert!(load(|_| {}).is_ok());
    refused(
        load(|c| c.resample_method = ResampleMethod::Interpolate),
        &["Interpolate"],
    );
    refused(load(|c| c.frame_rate = 0.), &["frame_rate of 0"]);
    refused(load(|c| c.frame_rate = 300.), &["0.66", "at least 1"]);
    refused(load(|c| c.sample_rate = f64::NAN), &["NaN"]);
    refused(load(|c| c.quantizer_n_q = 0), &["at least 1 codebook"]);
    refused(load(|c| c.quantizer_bins = 0), &["codebook of 0 vectors"]);
    refused(load(|c| c.seanet.lstm = 1), &["lstm is 1; it must be 0"]);
    refused(load(|c| c.seanet.ratios = vec![0, 6]), &["frame_rate"]);
    refused(load(|c| c.seanet.n_filters = usize::MAX), &["too many"]);
    refused(
        load(|c| c.seanet.norm = Norm::SpectralNorm),
        &["spectral norm"],
    );
    refused(
        load(|c| c.seanet.norm = Norm::TimeGroupNorm),
        &["group norm", "causal"],
    );
    refused(
        load(|c| c.transformer.num_layers = 0),
        &["num_layers", "not 0"],
    );
    refused(load(|c| c.transformer.num_heads = 0), &["num_heads 0"]);
    refused(
        load(|c| c.transformer.num_heads = 3),
        &["num_heads 3", "d_model 16"],
    );
    refused(load(|c| c.transformer.kv_repeat = 3), &["kv_repeat 3"]);
    refused(
        load(|c| c.transformer.num_heads = 16),
        &["rotary head is 1", "even"],
    );
    refused(load(|c| c.transformer.context = 0), &["context"]);
    refused(load(|c| c.transformer.causal = false), &["causal"]);
    refused(load(|c| c.transformer.norm_first = false), &["norm_first"]);
    refused(
        load(|c| c.transformer.use_conv_block = true),
        &["use_conv_block"],
    );
    refused(
        load(|c| c.transformer.dim_feedforward = 0),
        &["dim_feedforward 0"],
    );
    refused(
        ConvDownsample1d::new(2, 4, true, false, vb()),
        &["`learnt`"],
    );
    refused(ConvDownsample1d::new(0, 4, true, true, vb()), &["not 0"]);
    refused(
        ProjectedTransformer::new(16, &[], &transformer_config(), vb()),
        &["at least 1 output"],
    );
    let sines = TransformerConfig {
        d_model: 2,
        positional_embedding: PositionalEmbedding::Sin,
        ..transformer_config()
    };
    refused(
        StreamingTransformer::new(&sines, vb()),
        &["d_model is 2", "at least 4"],
    );
    let groups = candle_nn::Conv1dConfig {
        groups: 3,
        ..Default::default()
    };
    refused(
        NormConv1d::new(4, 6, 3, true, None, true, groups, vb()),
        &["3 groups"],
    );
    let constant = PadMode::Constant;
    let wide = StreamableConv1d::new(4, 4, 2, 3, 1, 1, true, true, None, constant, vb());
    refused(wide, &["2 samples", "stride 3"]);
    let gaps = StreamableConvTranspose1d::new(4, 4, 2, 3, 1, true, true, None, vb());
    refused(gaps, &["2 samples", "stride 3"]);
    let piece = StreamTensor::from(Tensor::zeros((1, 4, 5), DType::F32, &Device::Cpu)?);
    let mut centred = StreamableConv1d::new(4, 4, 3, 1, 1, 1, true, false, None, constant, vb())?;
    refused(centred.step(&piece), &["only causal"]);
    let mut back = StreamableConvTranspose1d::new(4, 4, 3, 1, 1, true, false, None, vb())?;
    refused(back.step(&piece), &["only causal"]);
    refused(
        SeaNetEncoder::new(&config().seanet, vb())?.step(&piece),
        &["conv1d"],
    );
    refused(
        mimi::load("no/such.safetensors", None, &Device::Cpu),
        &["no/such.safetensors"],
    );
    Ok(())
}
