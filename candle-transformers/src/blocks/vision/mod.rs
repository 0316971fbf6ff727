//! Parts that models of images share: convolutions with their batch norm, and vision transformers.
//!
//! Images are (batch, channels, height, width), tokens (batch, count, size).

mod contrastive;
mod conv;
mod grid;
pub(crate) mod names;
mod parts;
pub(crate) mod patch_grids;
pub(crate) mod three_axes;
mod transformer;
mod windows;

pub(crate) use contrastive::{
    at_largest, blocks, scores, unit_length, Blocks, ClipVision, ClipVisionSpec, PictureEmbeddings,
    PoolingHead, TextEmbeddings,
};
pub(crate) use conv::{merged, Branch, ConvNorm, ConvSpec};
pub(crate) use grid::{side, Grid, PatchEmbedding};
pub(crate) use parts::{
    channel_scale, channels_first, channels_last, make_divisible, optional, pointwise, SameConv,
    Shift, SqueezeExcite,
};
pub(crate) use transformer::{
    heads, intermediate_layers, join_heads, Taken, VitActivation, VitAttention, VitBlock, VitMlp,
    VitSpec,
};
pub(crate) use windows::Windows;

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::{linear, Func, Linear, VarBuilder};

/// Tokens that are the same for each image, (1, n, size), before those of the images, (batch, count, size): (batch, n + count, size).
pub(crate) fn with_first(first: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let (b, _, size) = tokens.dims3()?;
    let first = first.expand((b, first.dim(1)?, size))?;
    Tensor::cat(&[&first, tokens], 1)
}

/// The required shape of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picture {
    /// The model's name, for the error.
    pub(crate) family: &'static str,
    pub(crate) channels: usize,
    /// Its height and width, if they are fixed.
    pub(crate) size: Option<(usize, usize)>,
    /// The number of which height and width are multiples.
    pub(crate) multiple: usize,
}

impl Picture {
    /// A colour image of any size.
    pub(crate) fn any(family: &'static str) -> Self {
        Self {
            family,
            channels: 3,
            size: None,
            multiple: 1,
        }
    }

    /// The batch, height and width of `xs`.
    pub(crate) fn check(&self, xs: &Tensor) -> Result<(usize, usize, usize)> {
        let m = self.multiple.max(1);
        if let [b, c, h, w] = *xs.dims() {
            let fits = match self.size {
                Some(size) => size == (h, w),
                None => h > 0 && w > 0 && h % m == 0 && w % m == 0,
            };
            if fits && c == self.channels {
                return Ok((b, h, w));
            }
        }
        let (family, channels) = (self.family, self.channels);
        let sides = match self.size {
            Some((h, w)) => format!("{h}, {w})"),
            None if m == 1 => "height, width)".to_string(),
            None => format!("height, width) with sides that are multiples of {m}"),
        };
        bail!(
            "{family}: the pictures are {:?}; they must be (batch, {channels}, {sides}; resize them",
            xs.dims()
        )
    }

    /// That the sides of `xs`, which passed [`Picture::check`], are not below `least`: of smaller ones a network leaves nothing.
    pub(crate) fn at_least(&self, least: usize, xs: &Tensor) -> Result<()> {
        let (_, _, h, w) = xs.dims4()?;
        if h.min(w) < least {
            bail!(
                "{}: the pictures are {:?}; their sides must be at least {least}; resize them",
                self.family,
                xs.dims()
            )
        }
        Ok(())
    }
}

/// The mean of each channel: from (batch, channels, height, width) to (batch, channels).
pub(crate) fn pooled(xs: &Tensor) -> Result<Tensor> {
    mean(xs, |xs| xs.mean((2, 3)))
}

/// A mean that does not overflow: in f16 the sum of a large image may.
pub(crate) fn mean(xs: &Tensor, mean: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match xs.dtype() {
        DType::F16 => mean(&xs.to_dtype(DType::F32)?)?.to_dtype(DType::F16),
        _ => mean(xs),
    }
}

/// A classifier's last layer, or none, as in the models that give features.
pub(crate) fn head(size: usize, classes: Option<usize>, vb: VarBuilder) -> Result<Option<Linear>> {
    classes.map(|n| linear(size, n, vb)).transpose()
}

/// The model that checks the images, runs `body`, and ends in `head`.
pub(crate) fn classifier(
    picture: Picture,
    head: Option<Linear>,
    body: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Func<'static> {
    Func::new(move |xs| {
        picture.check(xs)?;
        let features = body(xs)?;
        match &head {
            Some(head) => head.forward(&features),
            None => Ok(features),
        }
    })
}

/// The modules in sequence, for closures that run a list of them.
pub(crate) fn run_all<M: Module>(modules: &[M], xs: &Tensor) -> Result<Tensor> {
    modules
        .iter()
        .try_fold(xs.clone(), |xs, module| module.forward(&xs))
}

/// `tensor` of the stream's dtype as f32, for arithmetic at load.
fn in_f32(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::F32)
}
