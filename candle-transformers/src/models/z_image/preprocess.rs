//! Texts of several lengths as one batch.

use candle_core::{bail, Device, Result, Tensor};

use super::transformer::SEQ_MULTI_OF;
use super::FAMILY;

/// The inputs of [`super::ZImageTransformer2DModel::forward`].
#[derive(Debug, Clone)]
pub struct PreparedInputs {
    /// (batch, channels, 1, height, width)
    pub latents: Tensor,
    /// Vectors of the texts' tokens, filled up with zeros to a multiple of [`SEQ_MULTI_OF`], (batch, tokens, size).
    pub cap_feats: Tensor,
    /// 1 for tokens, 0 for what was filled up, (batch, tokens) of u8.
    pub cap_mask: Tensor,
    /// Tokens of each text.
    pub text_lengths: Vec<usize>,
}

/// Number of padding tokens up to a multiple of [`SEQ_MULTI_OF`].
pub fn compute_padding_len(ori_len: usize) -> usize {
    ori_len.next_multiple_of(SEQ_MULTI_OF) - ori_len
}

/// Texts, (tokens, size) each, filled up with `pad_value` to the same multiple of [`SEQ_MULTI_OF`]: (batch, tokens, size), a mask as
/// [`PreparedInputs::cap_mask`], and the tokens of each. All are on `device`.
///
/// # Errors
/// There are no texts, or they differ in size, dtype or device.
pub fn pad_text_embeddings(
    text_embeddings: &[Tensor],
    pad_value: f32,
    device: &Device,
) -> Result<(Tensor, Tensor, Vec<usize>)> {
    let lengths = text_embeddings.iter().map(|text| match *text.dims() {
        [tokens, _] => Ok(tokens),
        _ => bail!(
            "{FAMILY}: the vectors of a text are {:?}; they must be (tokens, size)",
            text.dims()
        ),
    });
    let lengths = lengths.collect::<Result<Vec<_>>>()?;
    let Some(&longest) = lengths.iter().max() else {
        bail!("{FAMILY}: text_embeddings is empty; at least one text is required")
    };
    let padded_len = longest + compute_padding_len(longest);
    let (mut texts, mut mask) = (Vec::new(), Vec::new());
    for (text, &len) in text_embeddings.iter().zip(&lengths) {
        let missing = padded_len - len;
        texts.push(match missing {
            0 => text.clone(),
            _ => {
                let padding = Tensor::full(pad_value, (missing, text.dim(1)?), device)?;
                Tensor::cat(&[text, &padding.to_dtype(text.dtype())?], 0)?
            }
        });
        mask.extend((0..padded_len).map(|i| u8::from(i < len)));
    }
    let mask = Tensor::from_vec(mask, (lengths.len(), padded_len), device)?;
    Ok((Tensor::stack(&texts, 0)?, mask, lengths))
}

/// Latents, (batch, channels, height, width), and texts, (tokens, cap_feat_dim) each, as the model takes them.
///
/// # Errors
/// Those of [`pad_text_embeddings`].
pub fn prepare_inputs(
    latents: &Tensor,
    text_embeddings: &[Tensor],
    device: &Device,
) -> Result<PreparedInputs> {
    let (cap_feats, cap_mask, text_lengths) = pad_text_embeddings(text_embeddings, 0., device)?;
    Ok(PreparedInputs {
        latents: latents.unsqueeze(2)?,
        cap_feats,
        cap_mask,
        text_lengths,
    })
}

/// A mask of `valid_len` ones and then zeros, of `total_len` or at least `valid_len`, u8.
///
/// # Errors
/// If the device has no memory.
pub fn create_attention_mask(
    valid_len: usize,
    total_len: usize,
    device: &Device,
) -> Result<Tensor> {
    let len = total_len.max(valid_len);
    let mask: Vec<u8> = (0..len).map(|i| u8::from(i < valid_len)).collect();
    Tensor::from_vec(mask, len, device)
}

/// One text, (tokens, size), for each of a batch: (batch_size, tokens, size).
///
/// # Errors
/// The text has another rank.
pub fn batch_text_embedding(text_embedding: &Tensor, batch_size: usize) -> Result<Tensor> {
    text_embedding.dims2()?;
    text_embedding.broadcast_left(batch_size)?.contiguous()
}

/// One mask, (tokens), for each of a batch: (batch_size, tokens).
///
/// # Errors
/// The mask has another rank.
pub fn batch_mask(mask: &Tensor, batch_size: usize) -> Result<Tensor> {
    mask.dims1()?;
    mask.broadcast_left(batch_size)?.contiguous()
}
