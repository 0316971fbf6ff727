//! Z-Image's encoder of texts, and texts of several lengths.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::z_image::{preprocess, TextEncoderConfig, ZImageTextEncoder};

use super::{assert_close, refused, weights, weights_without};

fn text_config() -> TextEncoderConfig {
    TextEncoderConfig {
        vocab_size: 40,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 6,
        max_position_embeddings: 8,
        ..TextEncoderConfig::z_image()
    }
}

fn text_encoder(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let encoder = ZImageTextEncoder::new(&text_config(), vb.clone())?;
    assert_eq!(encoder.hidden_size(), 16);
    let ids = Tensor::new(&[[3u32, 9, 1, 30, 7], [8, 2, 11, 0, 0]], device)?;
    let both = encoder.forward(&ids)?;
    assert_eq!(both.dims(), &[2, 5, 16]);
    // Tokens after a text do not change it, and the next text starts again.
    let short = encoder.forward(&ids.narrow(0, 1, 1)?.narrow(1, 0, 3)?)?;
    assert_close(&short, &both.narrow(0, 1, 1)?.narrow(1, 0, 3)?, 2e-5);
    assert_close(&encoder.forward(&ids)?, &both, 1e-6);
    // The last layer and the last norm are not there, the one before is.
    for without in ["layers.2.", "model.norm"] {
        let vb = weights_without(without, DType::F32, device);
        let same = ZImageTextEncoder::new(&text_config(), vb)?.forward(&ids)?;
        assert_close(&same, &both, 0.);
    }
    let missing = weights_without("layers.1.", DType::F32, device);
    refused(
        ZImageTextEncoder::new(&text_config(), missing),
        &["layers.1."],
    );

    let half = ZImageTextEncoder::new(&text_config(), weights(DType::F16, device))?;
    assert_close(&half.forward(&ids)?, &both, 0.03);

    refused(
        encoder.forward(&Tensor::zeros((1, 9), DType::U32, device)?),
        &["9", "8"],
    );
    let one = TextEncoderConfig {
        num_hidden_layers: 1,
        ..text_config()
    };
    refused(
        ZImageTextEncoder::new(&one, vb.clone()),
        &["num_hidden_layers is 1"],
    );
    let odd = TextEncoderConfig {
        num_key_value_heads: 3,
        ..text_config()
    };
    refused(
        ZImageTextEncoder::new(&odd, vb),
        &["4 query heads", "3 key heads"],
    );
    Ok(())
}
test_device!(text_encoder);

#[test]
fn texts_of_several_lengths() -> Result<()> {
    let device = &Device::Cpu;
    assert_eq!(
        [0, 1, 31, 32, 33].map(preprocess::compute_padding_len),
        [0, 31, 1, 0, 31]
    );
    let text = |len: usize| Tensor::ones((len, 3), DType::F16, device);
    let (padded, mask, lens) =
        preprocess::pad_text_embeddings(&[text(2)?, text(33)?], 0.5, device)?;
    assert_eq!(
        (padded.dims(), padded.dtype()),
        (&[2, 64, 3][..], DType::F16)
    );
    assert_eq!(
        (mask.dims(), mask.dtype(), lens),
        (&[2, 64][..], DType::U8, vec![2, 33])
    );
    assert_eq!(
        mask.to_dtype(DType::F32)?.sum(1)?.to_vec1::<f32>()?,
        [2., 33.]
    );
    let sums = padded.to_dtype(DType::F32)?.sum((1, 2))?.to_vec1::<f32>()?;
    assert_eq!(sums, [6. + 62. * 1.5, 99. + 31. * 1.5]);
    refused(
        preprocess::pad_text_embeddings(&[], 0., device),
        &["text_embeddings", "empty"],
    );
    let flat = Tensor::ones(3, DType::F16, device)?;
    refused(
        preprocess::pad_text_embeddings(&[flat], 0., device),
        &["[3]", "(tokens, size)"],
    );
    let latents = Tensor::zeros((2, 4, 2, 2), DType::F32, device)?;
    let inputs = preprocess::prepare_inputs(&latents, &[text(2)?, text(40)?], device)?;
    assert_eq!(inputs.latents.dims(), &[2, 4, 1, 2, 2]);
    assert_eq!(inputs.text_lengths, [2, 40]);
    let whole = preprocess::create_attention_mask(3, 2, device)?;
    assert_eq!(whole.to_vec1::<u8>()?, [1, 1, 1]);
    refused(preprocess::batch_mask(&mask, 2), &["[2, 64]"]);
    Ok(())
}
