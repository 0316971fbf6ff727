//! Mimi and its parts, narrow ones.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{
    bail, DType, Device, Module, Result, Shape, StreamTensor, StreamingModule, Tensor,
};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Activation, Init, VarBuilder};
use candle_transformers::models::mimi::conv::{
    ConvDownsample1d, ConvTrUpsample1d, Norm, NormConv1d, NormConvTranspose1d, PadMode,
    StreamableConv1d, StreamableConvTranspose1d,
};
use candle_transformers::models::mimi::quantization::{
    ResidualVectorQuantization, ResidualVectorQuantizer, SplitResidualVectorQuantizer,
    VectorQuantization,
};
use candle_transformers::models::mimi::seanet::{SeaNetDecoder, SeaNetEncoder};
use candle_transformers::models::mimi::transformer::{
    Config as TransformerConfig, LayerScale, PositionalEmbedding, ProjectedTransformer,
    RotaryEmbedding, StreamingMultiheadAttention, StreamingMultiheadCrossAttention,
    StreamingTransformer, StreamingTransformerLayer,
};
use candle_transformers::models::mimi::{Config, Model, NormType};

pub const RUNS: &[Run] = &[
    ("mimi", whole),
    ("mimi_steps", steps),
    ("mimi_weight_norm", weight_norm),
    ("mimi_conv", convs),
    ("mimi_seanet", seanet),
    ("mimi_transformer", transformers),
    ("mimi_attention", attention),
    ("mimi_quantization", quantization),
];

/// 12 samples are two frames, which share codes.
fn config() -> Config {
    let mut config = Config::v0_1(Some(3));
    config.sample_rate = 1200.;
    config.frame_rate = 100.;
    config.seanet.dimension = 16;
    config.seanet.n_filters = 4;
    config.seanet.ratios = vec![3, 2];
    config.seanet.n_residual_layers = 2;
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
        context: 64,
        max_seq_len: 64,
        ..Config::v0_1(None).transformer
    }
}

fn whole(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = Model::new(config(), place.weights("mimi"))?;
    let sounds = place.input("mimi", (2, 1, 75))?;
    let frames = model.encode_pre_quantize(&sounds)?;
    let codes = model.encode(&sounds)?;
    // Upstream mixes up the rows of a batch in transposed convolutions without padding.
    let sound = model.decode(&codes.narrow(0, 0, 1)?)?;
    let one = Config {
        quantizer_n_q: 1,
        ..config()
    };
    let mut one = Model::new(one, place.weights("mimi"))?;
    let first = one.encode(&sounds)?;
    let of_first = one.decode(&first.narrow(0, 0, 1)?)?;
    let codes = [codes, first].map(|codes| codes.to_dtype(DType::F32));
    let [codes, first] = codes;
    Ok(vec![frames, codes?, sound, first?, of_first])
}

/// The results of `step` for chunks of these lengths along the last dimension, and for an empty one, concatenated.
fn in_pieces(
    xs: &Tensor,
    dim: usize,
    pieces: &[usize],
    mut step: impl FnMut(&StreamTensor) -> Result<StreamTensor>,
) -> Result<Tensor> {
    let (mut start, mut outputs) = (0, Vec::new());
    for &len in pieces {
        let piece = match len {
            0 => StreamTensor::empty(),
            _ => xs.narrow(dim, start, len)?.contiguous()?.into(),
        };
        start += len;
        outputs.extend(step(&piece)?.as_option().cloned());
    }
    Tensor::cat(&outputs, dim)
}

fn steps(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = Model::new(config(), place.weights("mimi"))?;
    let sound = place.input("mimi steps", (1, 1, 80))?;
    let pieces = [5, 0, 13, 1, 1, 30, 24, 6];
    let codes = in_pieces(&sound, 2, &pieces, |xs| model.encode_step(xs))?;
    let again = in_pieces(&codes, 2, &[1, 2, 0, 1, 2], |xs| model.decode_step(xs))?;
    Ok(vec![codes.to_dtype(DType::F32)?, again])
}

/// Kernels in two parts.
struct InParts;

impl SimpleBackend for InParts {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        weight(name, &s)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.ends_with("conv.weight")
    }
}

fn weight_norm(place: &Place) -> Result<Vec<Tensor>> {
    let vb = VarBuilder::from_backend(Box::new(InParts), DType::F32, place.device.clone());
    let config = config().seanet;
    let encoder = SeaNetEncoder::new(&config, vb.pp("encoder"))?;
    let decoder = SeaNetDecoder::new(&config, vb.pp("decoder"))?;
    let frames = encoder.forward(&place.input("mimi weight norm", (1, 1, 31))?)?;
    let sound = decoder.forward(&frames)?;
    Ok(vec![frames, sound])
}

fn convs(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mimi_conv");
    let xs = place.input("mimi conv", (2, 4, 23))?;
    let one = xs.narrow(0, 0, 1)?.contiguous()?;
    let mut outputs = Vec::new();
    let group = Some(Norm::TimeGroupNorm);
    for (i, norm, causal, pad) in [
        (0, None, true, PadMode::Replicate),
        (1, Some(Norm::WeightNorm), true, PadMode::Constant),
        (2, group, false, PadMode::Constant),
        (3, None, false, PadMode::Replicate),
    ] {
        let groups = if norm.is_none() { 2 } else { 1 };
        let vb = vb.pp(i);
        let (k, stride, dilation) = (5, i + 1, 3 - i.min(2));
        let conv = StreamableConv1d::new(
            4,
            6,
            k,
            stride,
            dilation,
            groups,
            causal,
            causal,
            norm,
            pad,
            vb.pp("conv"),
        )?;
        let back = StreamableConvTranspose1d::new(
            4,
            6,
            k,
            stride,
            1,
            causal,
            causal,
            norm,
            vb.pp("back"),
        )?;
        outputs.extend([conv.forward(&xs)?, back.forward(&one)?]);
        if causal {
            let (mut conv, mut back) = (conv, back);
            for _ in 0..2 {
                let pieces = [1, 4, 0, 11, 6, 1];
                outputs.push(in_pieces(&xs, 2, &pieces, |xs| conv.step(xs))?);
                outputs.push(in_pieces(&one, 2, &pieces, |xs| back.step(xs))?);
                conv.reset_state();
                back.reset_state();
            }
        }
    }
    let config = candle_nn::Conv1dConfig {
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    let plain = NormConv1d::new(4, 6, 3, false, group, true, config, vb.pp("plain"))?;
    let back = NormConvTranspose1d::new(4, 6, 3, false, group, true, 2, 1, vb.pp("plain back"))?;
    let down = ConvDownsample1d::new(2, 4, true, true, vb.pp("down"))?;
    let up = ConvTrUpsample1d::new(3, 4, true, true, vb.pp("up"))?;
    outputs.extend([
        plain.forward(&xs)?,
        back.forward(&one)?,
        down.forward(&xs)?,
        up.forward(&one)?,
    ]);
    Ok(outputs)
}

fn seanet(place: &Place) -> Result<Vec<Tensor>> {
    let mut config = config().seanet;
    config.true_skip = false;
    config.disable_norm_outer_blocks = 2;
    config.norm = Norm::WeightNorm;
    config.pad_mode = PadMode::Replicate;
    config.activation = Activation::Silu;
    config.final_activation = Some(Activation::Sigmoid);
    let vb = VarBuilder::from_backend(Box::new(InParts), DType::F32, place.device.clone());
    let mut encoder = SeaNetEncoder::new(&config, vb.pp("skip_encoder"))?;
    let mut decoder = SeaNetDecoder::new(&config, vb.pp("skip_decoder"))?;
    let sound = place.input("mimi seanet", (1, 1, 36))?;
    let frames = encoder.forward(&sound)?;
    let again = decoder.forward(&frames)?;
    let in_steps = in_pieces(&sound, 2, &[7, 1, 17, 11], |xs| encoder.step(xs))?;
    let again_in_steps = in_pieces(&frames, 2, &[1, 3, 2], |xs| decoder.step(xs))?;
    Ok(vec![frames, again, in_steps, again_in_steps])
}

fn transformers(place: &Place) -> Result<Vec<Tensor>> {
    let xs = place.input("mimi transformer", (2, 9, 16))?;
    let other = place.input("mimi other", (2, 5, 16))?;
    let mut outputs = Vec::new();
    for (name, positions, norm, gating, dim_feedforward) in [
        (
            "rope",
            PositionalEmbedding::Rope,
            NormType::RmsNorm,
            None,
            24,
        ),
        (
            "sin",
            PositionalEmbedding::Sin,
            NormType::LayerNorm,
            Some(Activation::Silu),
            64,
        ),
        (
            "none",
            PositionalEmbedding::None,
            NormType::LayerNorm,
            Some(Activation::Gelu),
            24,
        ),
    ] {
        let config = TransformerConfig {
            positional_embedding: positions,
            norm,
            gating,
            dim_feedforward,
            bias_attn: name == "sin",
            bias_ff: name == "rope",
            cross_attention: name != "none",
            layer_scale: (name != "none").then_some(0.01),
            ..transformer_config()
        };
        let mut model = StreamingTransformer::new(&config, place.weights(name))?;
        outputs.push(model.forward_ca(&xs, Some(&other))?);
        model.reset_state();
        outputs.push(in_pieces(&xs, 1, &[4, 1, 0, 1, 3], |xs| model.step(xs))?);
    }
    let config = TransformerConfig {
        conv_layout: true,
        ..transformer_config()
    };
    let vb = place.weights("mimi_projected");
    // Upstream mixes up the rows of a batch that are transposed before a projection.
    let xs = place.input("mimi projected", (1, 10, 7))?;
    let mut model = ProjectedTransformer::new(10, &[12, 16], &config, vb)?;
    outputs.extend(model.forward(&xs)?);
    model.reset_state();
    outputs.push(in_pieces(&xs, 2, &[3, 1, 3], |xs| model.step(xs))?);
    Ok(outputs)
}

fn attention(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mimi_attention");
    let config = transformer_config();
    let xs = place.input("mimi attention", (2, 6, 16))?;
    let other = place.input("mimi other", (2, 5, 16))?;
    let rope = RotaryEmbedding::new(8, 32, 10_000., &place.device)?;
    let heads = place.input("mimi heads", (1, 3, 4, 8))?;
    let turned = rope.apply_rotary_emb(&heads, 5)?;
    let rope = Some(std::sync::Arc::new(rope));
    let mask: Vec<u8> = (0..36).map(|i| u8::from(i % 6 > i / 6)).collect();
    let mask = Tensor::from_vec(mask, (6, 6), &place.device)?;
    let over: Vec<u8> = (0..30).map(|i| u8::from(i % 7 == 2)).collect();
    let over = Tensor::from_vec(over, (6, 5), &place.device)?;
    let mut attention = StreamingMultiheadAttention::new(&rope, &config, vb.pp("self"))?;
    let cross = StreamingMultiheadCrossAttention::new(&config, vb.pp("cross"))?;
    let mut layer = StreamingTransformerLayer::new(&rope, &config, vb.pp("layer"))?;
    let scale = LayerScale::new(16, 0.01, vb.pp("scale"))?;
    Ok(vec![
        turned,
        attention.forward(&xs, Some(&mask))?,
        attention.forward(&xs.narrow(1, 2, 2)?, None)?,
        cross.forward(&xs, &other, Some(&over))?,
        layer.forward(&xs, None, Some(&mask))?,
        scale.forward(&xs)?,
    ])
}

fn quantization(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("mimi_quantization");
    let xs = place.input("mimi quantization", (2, 8, 6))?;
    let mut outputs = Vec::new();
    for (i, dim) in [None, Some(5)].into_iter().enumerate() {
        let vq = VectorQuantization::new(8, 16, dim, vb.pp(i))?;
        // Upstream mixes up the rows of a batch that are transposed before a projection.
        let codes = vq.encode(&xs.narrow(0, 0, 1)?)?;
        outputs.extend([vq.decode(&codes)?, codes.to_dtype(DType::F32)?]);
    }
    let residual = ResidualVectorQuantization::new(3, 8, 16, None, vb.pp("residual"))?;
    let codes = residual.encode(&xs)?;
    outputs.extend([residual.decode(&codes)?, codes.to_dtype(DType::F32)?]);
    for force in [false, true] {
        let dims = if force { Some(8) } else { None };
        let vb = vb.pp("projected");
        let projected = ResidualVectorQuantizer::new(8, dims, Some(6), 2, 16, force, vb)?;
        let codes = projected.encode(&xs)?;
        outputs.extend([projected.decode(&codes)?, codes.to_dtype(DType::F32)?]);
    }
    let split = SplitResidualVectorQuantizer::new(5, Some(8), Some(8), 3, 16, vb.pp("split"))?;
    let codes = split.encode(&xs)?;
    outputs.extend([split.decode(&codes)?, codes.to_dtype(DType::F32)?]);
    Ok(outputs)
}
