//! SNAC beyond what is compared with Candle: attention, noise, rates, and what is refused.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::snac::{repeat_interleave, Config, Model};

use super::support::{assert_close, Numbers};
use super::vision::weights;

/// 12 samples make a frame; four frames go together.
fn config() -> Config {
    Config {
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
        depthwise: true,
    }
}

/// With heads, which have 64 channels, and windows of 6 frames.
fn with_attention() -> Config {
    Config {
        encoder_dim: 16,
        encoder_rates: vec![2, 2],
        decoder_dim: 64,
        decoder_rates: vec![2, 2],
        attn_window_size: Some(6),
        vq_strides: vec![2, 1],
        ..config()
    }
}

fn ids(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    tensors
        .iter()
        .map(|codes| codes.flatten_all()?.to_vec1())
        .collect()
}

fn decode(model: &Model, codes: &[Tensor]) -> Result<Tensor> {
    model.decode(&codes.iter().collect::<Vec<_>>())
}

fn row(tensors: &[Tensor], row: usize) -> Result<Vec<Tensor>> {
    tensors
        .iter()
        .map(|codes| codes.narrow(0, row, 1))
        .collect()
}

/// Rows of a batch are alone in it, f16 is near f32, and a sound is filled up with silence.
fn batches(config: &Config, device: &Device) -> Result<()> {
    let model = Model::new(config, weights(DType::F32, device))?;
    let sounds = Numbers::new(3).tensor(&[2, 1, 50], 1., device)?;
    let codes = model.encode(&sounds)?;
    assert_eq!(codes.len(), model.num_codebooks());
    let decoded = decode(&model, &codes)?;
    let frames = decoded.dim(2)? / model.hop_length;
    for (codes, stride) in codes.iter().zip(&model.config().vq_strides) {
        assert_eq!(codes.dims(), &[2, frames / stride]);
        assert_eq!(codes.dtype(), DType::U32);
    }
    for i in 0..2 {
        let alone = model.encode(&sounds.narrow(0, i, 1)?)?;
        assert_eq!(ids(&alone)?, ids(&row(&codes, i)?)?);
        assert_close(&decode(&model, &alone)?, &decoded.narrow(0, i, 1)?, 2e-5);
    }
    let silence = sounds.pad_with_zeros(2, 0, decoded.dim(2)? - 50)?;
    assert_eq!(ids(&model.encode(&silence)?)?, ids(&codes)?);
    let half = decode(&Model::new(config, weights(DType::F16, device))?, &codes)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &decoded, 0.05);
    Ok(())
}

fn snac_batches(device: &Device) -> Result<()> {
    batches(&config(), device)
}
test_device!(snac_batches);

fn snac_attention_batches(device: &Device) -> Result<()> {
    batches(&with_attention(), device)
}
test_device!(snac_attention_batches);

/// Frames hear those of their window, however far, and no others but through convolutions.
fn snac_windows(device: &Device) -> Result<()> {
    let config = Config {
        encoder_rates: vec![],
        encoder_dim: 64,
        attn_window_size: Some(24),
        depthwise: false,
        vq_strides: vec![1],
        ..with_attention()
    };
    let model = Model::new(&config, weights(DType::F32, device))?;
    let sound = Numbers::new(6).tensor(&[1, 1, 48], 1., device)?;
    let mut changed = sound.flatten_all()?.to_vec1::<f32>()?;
    // The convolutions reach three samples each.
    changed[1] += 1.;
    let changed = Tensor::from_vec(changed, (1, 1, 48), device)?;
    let frames = model.encoder.forward(&sound)?;
    let difference = (model.encoder.forward(&changed)? - frames)?.abs()?;
    let at = |i| difference.narrow(2, i, 1)?.max_all()?.to_scalar::<f32>();
    assert!(
        at(20)? > 1e-4,
        "frame 20 does not hear sample 1: {}",
        at(20)?
    );
    assert!(
        at(26)? > 1e-4,
        "frame 26 does not hear frame 23: {}",
        at(26)?
    );
    assert_eq!([at(27)?, at(40)?], [0., 0.]);
    Ok(())
}
test_device!(snac_windows);

/// Noise is another each time.
fn snac_noise(device: &Device) -> Result<()> {
    let with = |noise| {
        let config = Config { noise, ..config() };
        Model::new(&config, weights(DType::F32, device))
    };
    let (plain, noisy) = (with(false)?, with(true)?);
    let codes = plain.encode(&Numbers::new(3).tensor(&[1, 1, 50], 1., device)?)?;
    assert_close(&decode(&plain, &codes)?, &decode(&plain, &codes)?, 0.);
    let (a, b) = (decode(&noisy, &codes)?, decode(&noisy, &codes)?);
    assert_eq!(a.dims(), decode(&plain, &codes)?.dims());
    let difference = (a - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference > 1e-3, "twice the same noise: {difference}");
    Ok(())
}
test_device!(snac_noise);

fn snac_refuses(device: &Device) -> Result<()> {
    let model = Model::new(&config(), weights(DType::F32, device))?;
    let codes = |lens: &[usize]| -> Result<Vec<Tensor>> {
        let codes = |len: &usize| Tensor::zeros((1, *len), DType::U32, device);
        lens.iter().map(codes).collect()
    };
    // Fewer codebooks are enough.
    assert_eq!(decode(&model, &codes(&[1, 2])?)?.dims(), &[1, 1, 48]);
    for lens in [&[][..], &[1, 2, 4, 8], &[2, 2], &[1, 2, 3], &[0]] {
        let err = decode(&model, &codes(lens)?).expect_err("the codes are accepted");
        assert!(err.to_string().contains("snac"), "{err}");
    }
    let err = model.encode(&Tensor::zeros((1, 2, 48), DType::F32, device)?);
    let err = err.expect_err("two channels are accepted").to_string();
    assert!(
        err.contains("(batch, 1, samples)") && err.contains("[1, 2, 48]"),
        "{err}"
    );
    let attention = Model::new(&with_attention(), weights(DType::F32, device))?;
    let err = decode(&attention, &codes(&[2, 4])?).expect_err("4 frames are accepted");
    assert!(
        err.to_string()
            .contains("4 frames are not a multiple of the window size 6"),
        "{err}"
    );
    let refused = |change: fn(&mut Config), part: &str| {
        let mut config = config();
        change(&mut config);
        let err = Model::new(&config, weights(DType::F32, device)).err();
        let err = err.expect("it is accepted").to_string();
        assert!(err.contains(part), "no {part:?} in: {err}");
    };
    refused(|c| c.vq_strides = vec![], "vq_strides");
    refused(|c| c.vq_strides = vec![4, 3], "[4, 3]");
    refused(|c| c.vq_strides = vec![4, 0], "[4, 0]");
    refused(|c| c.encoder_rates = vec![2, 0], "strides");
    refused(|c| c.encoder_dim = 0, "encoder_dim of 0");
    refused(|c| c.decoder_dim = 6, "6 channels cannot be halved");
    refused(|c| c.codebook_size = 0, "codebook of 0");
    refused(|c| c.attn_window_size = Some(0), "attn_window_size");
    refused(
        |c| c.attn_window_size = Some(2),
        "multiple of 64 channels, but there are 16",
    );
    Ok(())
}
test_device!(snac_refuses);

fn repeats(device: &Device) -> Result<()> {
    let xs = Tensor::new(&[[1u32, 2], [3, 4]], device)?;
    assert_eq!(
        repeat_interleave(&xs, 2, 1)?.to_vec2::<u32>()?,
        [[1, 1, 2, 2], [3, 3, 4, 4]]
    );
    assert_eq!(
        repeat_interleave(&xs.t()?, 2, 0)?.to_vec2::<u32>()?,
        [[1, 3], [1, 3], [2, 4], [2, 4]]
    );
    assert_eq!(repeat_interleave(&xs, 0, 1)?.dims(), &[2, 0]);
    assert!(repeat_interleave(&xs, 1, 2).is_err());
    Ok(())
}
test_device!(repeats);
