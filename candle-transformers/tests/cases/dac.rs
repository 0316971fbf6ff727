//! DAC beyond what is compared with Candle: codes of sounds, training, and what is refused.

use candle_core::{test_device, DType, Device, Module, Result, Tensor, Var, D};
use candle_nn::{Conv1dConfig, VarBuilder};
use candle_transformers::models::dac::{
    Config, Decoder, DecoderBlock, Encoder, Model, ResidualVectorQuantizer, Snake1d,
};
use candle_transformers::models::encodec::conv1d_weight_norm;

use super::support::{assert_close, Numbers};
use super::vision::weights;

/// 8 samples make a frame, and there are 3 codebooks of 16 codes.
fn model(vb: VarBuilder) -> Result<Model> {
    Ok(Model {
        encoder: Encoder::new(4, &[2, 4], 12, vb.pp("encoder"))?,
        quantizer: ResidualVectorQuantizer::new(12, 3, 16, 8, vb.pp("quantizer"))?,
        decoder: Decoder::new(12, 16, &[4, 2], 1, vb.pp("decoder"))?,
    })
}

fn ids(tensor: &Tensor) -> Result<Vec<u32>> {
    tensor.flatten_all()?.to_vec1()
}

/// Rows of a batch are alone in it, f16 is near f32, and sounds and codes of other shapes are refused.
fn dac_batches(device: &Device) -> Result<()> {
    let codec = model(weights(DType::F32, device))?;
    let sounds = Numbers::new(3).tensor(&[2, 1, 37], 1., device)?;
    let codes = codec.encode(&sounds)?;
    assert_eq!((codes.dims(), codes.dtype()), (&[2, 3, 5][..], DType::U32));
    let decoded = codec.decode_codes(&codes)?;
    assert_eq!(decoded.dims(), &[2, 1, 40]);
    let loudest = decoded.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(loudest <= 1. && loudest > 0.1, "{loudest}");
    for row in 0..2 {
        let codes = codes.narrow(0, row, 1)?;
        assert_eq!(
            ids(&codec.encode(&sounds.narrow(0, row, 1)?)?)?,
            ids(&codes)?
        );
        assert_close(
            &codec.decode_codes(&codes)?,
            &decoded.narrow(0, row, 1)?,
            2e-5,
        );
    }
    let half = model(weights(DType::F16, device))?.decode_codes(&codes)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &decoded, 0.05);
    for dims in [&[1, 2, 37][..], &[1, 1, 0], &[37]] {
        let err = codec.encode(&Tensor::zeros(dims, DType::F32, device)?);
        let err = err.expect_err("the sound is accepted").to_string();
        assert!(err.contains(&format!("{dims:?}")), "{err}");
    }
    for dims in [&[1, 2, 5][..], &[1, 4, 5], &[1, 3, 0], &[3, 5]] {
        let err = codec.decode_codes(&Tensor::zeros(dims, DType::U32, device)?);
        let err = err.expect_err("the codes are accepted").to_string();
        assert!(
            err.contains("(batch, 3, frames)") && err.contains(&format!("{dims:?}")),
            "{err}"
        );
    }
    Ok(())
}
test_device!(dac_batches);

/// Each codebook gives the entry at the smallest angle to what the ones before it left.
fn dac_codes(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let codec = model(vb.clone())?;
    let sounds = Numbers::new(8).tensor(&[2, 1, 40], 1., device)?;
    let mut residual = codec.encoder.forward(&sounds)?;
    let codes = codec.encode(&sounds)?;
    let unit = |xs: &Tensor| xs.broadcast_div(&xs.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?);
    for book in 0..3 {
        let vb = vb.pp("quantizer.quantizers").pp(book);
        let project =
            |a, b, name: &str| conv1d_weight_norm(a, b, 1, Conv1dConfig::default(), vb.pp(name));
        let entries = vb.get((16, 8), "codebook.weight")?;
        let vectors = project(12, 8, "in_proj")?
            .forward(&residual)?
            .transpose(1, 2)?;
        let vectors = unit(&vectors.contiguous()?.reshape((10, 8))?)?;
        let angles = vectors.matmul(&unit(&entries)?.t()?)?;
        let nearest = angles.argmax(1)?;
        assert_eq!(
            ids(&codes.narrow(1, book, 1)?)?,
            ids(&nearest)?,
            "codebook {book}"
        );
        let values = entries
            .index_select(&nearest, 0)?
            .reshape((2, 5, 8))?
            .transpose(1, 2)?;
        residual = (residual - project(8, 12, "out_proj")?.forward(&values.contiguous()?)?)?;
    }
    Ok(())
}
test_device!(dac_codes);

/// Snake is its formula, and follows an `alpha` that is trained.
fn dac_snake(device: &Device) -> Result<()> {
    let alpha = Var::from_tensor(&Tensor::new(&[0.5f32, 2.], device)?.reshape((1, 2, 1))?)?;
    let tensors = [("alpha".to_string(), alpha.as_tensor().clone())].into();
    let snake = Snake1d::new(2, VarBuilder::from_tensors(tensors, DType::F32, device))?;
    let xs = Numbers::new(2).tensor(&[1, 2, 4], 2., device)?;
    let expected = |alpha: [f32; 2]| -> Result<Tensor> {
        let rows = xs.get(0)?.to_vec2::<f32>()?;
        let snake = |(row, alpha): (&Vec<f32>, f32)| -> Vec<f32> {
            row.iter()
                .map(|x| x + (alpha * x).sin().powi(2) / alpha)
                .collect()
        };
        let rows: Vec<f32> = rows.iter().zip(alpha).flat_map(snake).collect();
        Tensor::from_vec(rows, (1, 2, 4), device)
    };
    assert_close(&snake.forward(&xs)?, &expected([0.5, 2.])?, 1e-6);
    let gradients = snake.forward(&xs)?.sum_all()?.backward()?;
    assert!(gradients.get(&alpha).is_some(), "alpha has no gradient");
    alpha.set(&(alpha.as_tensor() * 2.)?)?;
    assert_close(&snake.forward(&xs)?, &expected([1., 4.])?, 1e-6);
    assert!(snake.forward(&xs.get(0)?).is_err());
    Ok(())
}
test_device!(dac_snake);

#[test]
fn dac_configurations() {
    let vb = || weights(DType::F32, &Device::Cpu);
    let refused = |err: Option<candle_core::Error>, part: &str| {
        let err = err.expect("it is accepted").to_string();
        assert!(err.contains(part), "no {part:?} in: {err}");
    };
    let config = Config {
        num_codebooks: 0,
        model_bitrate: 8,
        codebook_size: 16,
        latent_dim: 8,
        frame_rate: 86,
        sampling_rate: 44_100,
    };
    refused(Model::new(&config, vb()).err(), "at least 1 codebook");
    let empty = Config {
        num_codebooks: 1,
        codebook_size: 0,
        ..config
    };
    refused(Model::new(&empty, vb()).err(), "codebook of 0 vectors");
    refused(Encoder::new(4, &[2, 0], 8, vb()).err(), "strides");
    refused(Encoder::new(0, &[2], 8, vb()).err(), "not [1, 0, 7]");
    refused(DecoderBlock::new(4, 2, 0, vb()).err(), "strides");
    refused(
        Decoder::new(4, 6, &[2, 2], 1, vb()).err(),
        "6 channels cannot be halved 2 times",
    );
}
