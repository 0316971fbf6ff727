//! From noise to latents, along a straight path: rectified flow, [arXiv 2209.03003](https://arxiv.org/abs/2209.03003).

use candle_core::{bail, Device, Result, Tensor};

use super::{WithForward, FAMILY};
use crate::blocks::diffusion::{schedule, shift_of};

/// Channels of the latents.
const CHANNELS: usize = 16;

/// Noise with the shape of the latents of images of `height` and `width` pixels, (num_samples, 16, 2 * ceil(height / 16), 2 * ceil(width /
/// 16)) of f32.
///
/// # Errors
/// If the device has no memory.
pub fn get_noise(
    num_samples: usize,
    height: usize,
    width: usize,
    device: &Device,
) -> Result<Tensor> {
    let (rows, columns) = (2 * height.div_ceil(16), 2 * width.div_ceil(16));
    Tensor::randn(0f32, 1., (num_samples, CHANNELS, rows, columns), device)
}

/// The inputs of a model other than times and guidance.
#[derive(Debug, Clone)]
pub struct State {
    /// Patches of 2x2 positions, (batch, patches, 4 * channels).
    pub img: Tensor,
    /// Their positions: 0, row and column, (batch, patches, 3).
    pub img_ids: Tensor,
    /// Vectors of the text's tokens, (batch, tokens, size).
    pub txt: Tensor,
    /// Their positions, all 0, (batch, tokens, 3).
    pub txt_ids: Tensor,
    /// The vector of the whole text, (batch, size).
    pub vec: Tensor,
}

impl State {
    /// From T5's vectors of a text, (1, tokens, size), CLIP's, (1, size), and latents or noise, (batch, channels, rows, columns). The text
    /// is shared by the batch; or there is one per image, with the batch size instead of 1.
    ///
    /// # Errors
    /// The latents have another rank or an odd number of rows or columns, or there are texts for another batch.
    pub fn new(t5_emb: &Tensor, clip_emb: &Tensor, img: &Tensor) -> Result<Self> {
        let (batch, channels, rows, columns) = match *img.dims() {
            [b, c, h, w] if h % 2 == 0 && w % 2 == 0 => (b, c, h / 2, w / 2),
            _ => bail!(
                "{FAMILY}: the latents are {:?}; they must be (batch, channels, rows, columns) with even rows and columns",
                img.dims()
            ),
        };
        let (dtype, device) = (img.dtype(), img.device());
        let patches = img
            .reshape((batch, channels, rows, 2, columns, 2))?
            .permute((0, 2, 4, 1, 3, 5))?
            .reshape((batch, rows * columns, 4 * channels))?;
        let places = (0..rows * columns).flat_map(|i| [0, i / columns, i % columns]);
        let places: Vec<f32> = places.map(|place| place as f32).collect();
        let places = Tensor::from_vec(places, (1, rows * columns, 3), device)?.to_dtype(dtype)?;
        let txt = for_each("t5_emb", t5_emb, batch)?;
        Ok(Self {
            img: patches,
            img_ids: places.repeat((batch, 1, 1))?,
            txt_ids: Tensor::zeros((batch, txt.dim(1)?, 3), dtype, device)?,
            txt,
            vec: for_each("clip_emb", clip_emb, batch)?,
        })
    }
}

/// `xs` with a row for each of the batch.
fn for_each(name: &str, xs: &Tensor, batch: usize) -> Result<Tensor> {
    match xs.dims().first() {
        Some(&rows) if rows == batch => Ok(xs.clone()),
        Some(1) => xs.repeat(batch),
        _ => bail!(
            "{FAMILY}: {name} is {:?}; its first dimension must be 1 or the batch, {batch}",
            xs.dims()
        ),
    }
}

/// The times of `num_steps` steps, from 1, noise, to 0: one more than steps. They are equally far from each other, or with `shift`,
/// `(patches, base_shift, max_shift)`, moved to noise: by `base_shift` for 256 patches and by `max_shift` for 4096, as the exponents of e
/// by which the ratio of noise to image grows. No steps are the one time 1.
pub fn get_schedule(num_steps: usize, shift: Option<(usize, f64, f64)>) -> Vec<f64> {
    let mu = shift.map(|(patches, base, max)| shift_of(patches, [256, 4096], [base, max]));
    schedule(num_steps, mu)
}

/// Patches as latents: from (batch, patches, 4 * channels) to (batch, channels, 2 * ceil(height / 16), 2 * ceil(width / 16)), where
/// `height` and `width` are those of the image in pixels.
///
/// # Errors
/// There are more or fewer patches, or their size is not a multiple of 4.
pub fn unpack(xs: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (rows, columns) = (height.div_ceil(16), width.div_ceil(16));
    let (batch, channels) = match *xs.dims() {
        [b, n, c] if n == rows * columns && c % 4 == 0 => (b, c / 4),
        _ => bail!(
            "{FAMILY}: the patches are {:?}; they must be (batch, {}, 4 * channels) for a picture of {height} x {width} pixels",
            xs.dims(),
            rows * columns
        ),
    };
    xs.reshape((batch, rows, columns, channels, 2, 2))?
        .permute((0, 3, 1, 4, 2, 5))?
        .reshape((batch, channels, 2 * rows, 2 * columns))
}

/// Runs `model` along `timesteps`, as [`get_schedule`] makes them, by Euler's method: from noise, `img`, to patches of latents of the same
/// shape. The other arguments are those of [`State`] and [`WithForward::forward`].
///
/// # Errors
/// Those of the model.
#[allow(clippy::too_many_arguments)]
pub fn denoise<M: WithForward>(
    model: &M,
    img: &Tensor,
    img_ids: &Tensor,
    txt: &Tensor,
    txt_ids: &Tensor,
    vec_: &Tensor,
    timesteps: &[f64],
    guidance: f64,
) -> Result<Tensor> {
    let (batch, device) = (img.dim(0)?, img.device());
    let for_all = |number: f64| Tensor::full(number as f32, batch, device);
    let guidance = for_all(guidance)?;
    let mut img = img.clone();
    for (now, next) in timesteps.iter().zip(timesteps.iter().skip(1)) {
        let times = for_all(*now)?;
        let towards = model.forward(&img, img_ids, txt, txt_ids, &times, vec_, Some(&guidance))?;
        img = (img + (towards * (next - now))?)?;
    }
    Ok(img)
}
