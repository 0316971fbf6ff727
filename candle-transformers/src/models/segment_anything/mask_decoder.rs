//! The decoder: from embeddings of an image and of prompts to masks, and how good they are.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{
    conv_transpose2d, embedding, Activation, ConvTranspose2d, ConvTranspose2dConfig, VarBuilder,
};

use super::transformer::TwoWayTransformer;
use super::{linear, LayerNorm2d, Linear, EPS, FAMILY};

/// Layers, heads and inner size of the transformer.
const DEPTH: usize = 2;
const HEADS: usize = 8;
const INNER: usize = 2048;
/// Linear layers of what makes a mask of a token.
const MASK_DEPTH: usize = 3;
const GELU: Activation = Activation::GeluPytorchTanh;

/// Linear layers with a ReLU between them.
#[derive(Debug)]
struct Layers(Vec<Linear>);

impl Layers {
    /// `depth` layers from `inputs` through `inner` to `outputs`.
    fn load([inputs, inner, outputs]: [usize; 3], depth: usize, vb: VarBuilder) -> Result<Self> {
        let layer = |i| {
            let from = if i == 0 { inputs } else { inner };
            let to = if i + 1 == depth { outputs } else { inner };
            linear(vb.pp("layers").pp(i), from, to, true)
        };
        (0..depth).map(layer).collect::<Result<_>>().map(Self)
    }
}

impl Module for Layers {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut layers = self.0.iter();
        let first = match layers.next() {
            Some(first) => first.forward(xs)?,
            None => xs.clone(),
        };
        layers.try_fold(first, |xs, layer| layer.forward(&xs.relu()?))
    }
}

/// The decoder of masks.
#[derive(Debug)]
pub struct MaskDecoder {
    /// The tokens before a prompt's, that of the quality and those of the masks: (1, 1 + masks, transformer_dim).
    tokens: Tensor,
    transformer: TwoWayTransformer,
    upscaling1: ConvTranspose2d,
    upscaling_norm: LayerNorm2d,
    upscaling2: ConvTranspose2d,
    /// The layers that turn each mask's token into a mask.
    masks: Vec<Layers>,
    quality: Layers,
}

impl MaskDecoder {
    /// Loads `iou_token`, `mask_tokens`, `transformer`, `output_upscaling`, `output_hypernetworks_mlps.N` and `iou_prediction_head`, which
    /// has `iou_head_depth` layers of size `iou_head_hidden_dim`. There are `num_multimask_outputs` masks and one more.
    ///
    /// # Errors
    /// `transformer_dim` is not a multiple of 16, `iou_head_depth` is 0, or a weight is missing or has another shape.
    pub fn new(
        transformer_dim: usize,
        num_multimask_outputs: usize,
        iou_head_depth: usize,
        iou_head_hidden_dim: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (size, count) = (transformer_dim, num_multimask_outputs + 1);
        if size == 0 || size % (2 * HEADS) != 0 || iou_head_depth == 0 {
            bail!(
                "{FAMILY}: transformer_dim is {size} and iou_head_depth {iou_head_depth}; the first must be a multiple of {}, the second at \
                 least 1",
                2 * HEADS
            )
        }
        let iou_token = embedding(1, size, vb.pp("iou_token"))?;
        let mask_tokens = embedding(count, size, vb.pp("mask_tokens"))?;
        let tokens = [iou_token.embeddings(), mask_tokens.embeddings()];
        let larger = |inputs, outputs, vb| {
            let config = ConvTranspose2dConfig {
                stride: 2,
                ..Default::default()
            };
            conv_transpose2d(inputs, outputs, 2, config, vb)
        };
        let vb_larger = vb.pp("output_upscaling");
        let mask = |i| {
            let vb = vb.pp("output_hypernetworks_mlps").pp(i);
            Layers::load([size, size, size / 8], MASK_DEPTH, vb)
        };
        let quality = [size, iou_head_hidden_dim, count];
        let vb_quality = vb.pp("iou_prediction_head");
        Ok(Self {
            tokens: Tensor::cat(&tokens, 0)?.unsqueeze(0)?,
            transformer: TwoWayTransformer::new(DEPTH, size, HEADS, INNER, vb.pp("transformer"))?,
            upscaling1: larger(size, size / 4, vb_larger.pp(0))?,
            upscaling_norm: LayerNorm2d::new(size / 4, EPS, vb_larger.pp(1))?,
            upscaling2: larger(size / 4, size / 8, vb_larger.pp(3))?,
            masks: (0..count).map(mask).collect::<Result<_>>()?,
            quality: Layers::load(quality, iou_head_depth, vb_quality)?,
        })
    }

    /// Masks, (batch, masks, 4 * height, 4 * width), logits that are positive inside, and what their intersection over union with what is
    /// meant is thought to be, (batch, masks). With `multimask_output` all masks but the first one, otherwise the first one alone.
    ///
    /// `image_embeddings` and its positions `image_pe` are (batch, transformer_dim, height, width), as are `dense_prompt_embeddings`;
    /// `sparse_prompt_embeddings` is (batch, tokens, transformer_dim). One row of any but the last goes for all prompts.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        image_embeddings: &Tensor,
        image_pe: &Tensor,
        sparse_prompt_embeddings: &Tensor,
        dense_prompt_embeddings: &Tensor,
        multimask_output: bool,
    ) -> Result<(Tensor, Tensor)> {
        let (b, _, size) = sparse_prompt_embeddings.dims3()?;
        let (rows, channels, h, w) = image_embeddings.dims4()?;
        let wanted = self.tokens.dim(2)?;
        if [size, channels] != [wanted; 2] || (rows != 1 && rows != b) {
            bail!(
                "{FAMILY}: the embeddings of the picture are {:?} and those of the prompts {:?}; they must be (1 or batch, {wanted}, height, \
                 width) and (batch, tokens, {wanted})",
                image_embeddings.dims(),
                sparse_prompt_embeddings.dims()
            )
        }
        let taken = if multimask_output {
            1..self.masks.len()
        } else {
            0..1
        };
        if taken.is_empty() {
            bail!("{FAMILY}: the decoder has one mask; disable `multimask_output`")
        }
        let own = self.tokens.expand((b, self.tokens.dim(1)?, size))?;
        let tokens = Tensor::cat(&[&own, sparse_prompt_embeddings], 1)?;
        let places = image_embeddings.broadcast_add(dense_prompt_embeddings)?;
        let places = places.broadcast_as((b, size, h, w))?;
        let (tokens, places) = self.transformer.forward(&places, image_pe, &tokens)?;

        let places = places.transpose(1, 2)?.reshape((b, size, h, w))?;
        let larger = self
            .upscaling_norm
            .forward(&self.upscaling1.forward(&places)?)?;
        let larger = self.upscaling2.forward(&GELU.forward(&larger)?)?;
        let larger = GELU.forward(&larger)?.flatten_from(2)?;

        // The first token is that of the quality.
        let weights = self.masks[taken.clone()].iter().zip(taken.clone());
        let weights = weights.map(|(mask, i)| mask.forward(&tokens.narrow(1, 1 + i, 1)?));
        let weights = Tensor::cat(&weights.collect::<Result<Vec<_>>>()?, 1)?;
        let masks = weights.matmul(&larger)?;
        let masks = masks.reshape((b, taken.len(), 4 * h, 4 * w))?;
        let quality = self.quality.forward(&tokens.narrow(1, 0, 1)?.squeeze(1)?)?;
        Ok((masks, quality.narrow(1, taken.start, taken.len())?))
    }
}
