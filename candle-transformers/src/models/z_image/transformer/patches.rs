//! Latents as patches, and the positions of these.

use candle_core::{bail, Device, Result, Tensor};

use crate::models::z_image::FAMILY;

/// Numbers of patches along frames, height and width.
pub(super) fn counts(
    (f, h, w): (usize, usize, usize),
    patch: usize,
    f_patch: usize,
) -> Result<(usize, usize, usize)> {
    let whole = |size: usize, patch: usize| size > 0 && patch > 0 && size.is_multiple_of(patch);
    if !whole(f, f_patch) || !whole(h, patch) || !whole(w, patch) {
        bail!(
            "{FAMILY}: latents of {f} frames of {h} x {w} cannot be split into patches of {f_patch} frames of {patch} x {patch}; their sizes \
             must be multiples of the patch's"
        )
    }
    Ok((f / f_patch, h / patch, w / patch))
}

/// From latents (batch, channels, frames, height, width) to patches, (batch, patches, f_patch_size * patch_size * patch_size * channels),
/// and (frames, height, width). Patches are in the order of frames, rows and columns, and so are the positions in a patch, each with its
/// channels.
///
/// # Errors
/// The latents have another rank, or sizes that are not multiples of the patch's.
pub fn patchify(
    x: &Tensor,
    patch_size: usize,
    f_patch_size: usize,
) -> Result<(Tensor, (usize, usize, usize))> {
    let (b, c, f, h, w) = x.dims5()?;
    let (p, pf) = (patch_size, f_patch_size);
    let (frames, rows, columns) = counts((f, h, w), p, pf)?;
    // Frame by frame, and then the frames of a patch together: tensors of six dimensions at most.
    let patches = x
        .transpose(1, 2)?
        .reshape((b * f, c, rows, p, columns, p))?
        .permute((0, 2, 4, 3, 5, 1))?
        .reshape((b, frames, pf, rows * columns, p * p * c))?
        .transpose(2, 3)?
        .reshape((b, frames * rows * columns, pf * p * p * c))?;
    Ok((patches, (f, h, w)))
}

/// Back from [`patchify`], with the first of the patches, those that `size`, (frames, height, width), has:
/// (batch, out_channels, frames, height, width).
///
/// # Errors
/// There are fewer patches or they have another size, or `size` is not a multiple of the patch's.
pub fn unpatchify(
    x: &Tensor,
    size: (usize, usize, usize),
    patch_size: usize,
    f_patch_size: usize,
    out_channels: usize,
) -> Result<Tensor> {
    let ((f, h, w), p, pf, c) = (size, patch_size, f_patch_size, out_channels);
    let (frames, rows, columns) = counts(size, p, pf)?;
    let (count, patch) = (frames * rows * columns, pf * p * p * c);
    let b = match *x.dims() {
        [b, n, s] if n >= count && s == patch => b,
        _ => bail!(
            "{FAMILY}: the patches are {:?}; they must be (batch, {count}, {patch}) for {f} frames of {h} x {w}",
            x.dims()
        ),
    };
    x.narrow(1, 0, count)?
        .reshape((b, frames, rows * columns, pf, p * p * c))?
        .transpose(2, 3)?
        .reshape((b * f, rows, columns, p, p, c))?
        .permute((0, 5, 1, 3, 2, 4))?
        .reshape((b, f, c, h, w))?
        .transpose(1, 2)
}

/// The positions of a grid of `size`, frames, rows and columns, the first of which is `start`: (frames * rows * columns, 3) of u32.
///
/// # Errors
/// If the device has no memory.
pub fn create_coordinate_grid(
    size: (usize, usize, usize),
    start: (usize, usize, usize),
    device: &Device,
) -> Result<Tensor> {
    let ((frames, rows, columns), (f, h, w)) = (size, start);
    let count = frames * rows * columns;
    let places = (0..count).flat_map(|i| {
        let (frame, place) = (i / (rows * columns), i % (rows * columns));
        [f + frame, h + place / columns, w + place % columns].map(|at| at as u32)
    });
    Tensor::from_vec(places.collect::<Vec<_>>(), (count, 3), device)
}
