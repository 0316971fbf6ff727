//! The choice of a resolution for an image among a model's.

/// Number of tiles of `patch_size` pixels in the image's resolution: across and down. `image_size` and `grid_pinpoints` are (width,
/// height); (0, 0) if there are no resolutions or the tile size is 0.
pub fn get_anyres_image_grid_shape(
    image_size: (u32, u32),
    grid_pinpoints: &[(u32, u32)],
    patch_size: u32,
) -> (u32, u32) {
    let (width, height) = select_best_resolution(image_size, grid_pinpoints);
    let tiles = |side: u32| side.checked_div(patch_size).unwrap_or(0);
    (tiles(width), tiles(height))
}

/// The resolution in which most pixels of the image are kept, and of those the one with the least area left over. All are (width,
/// height); (0, 0) if there are none.
///
/// An image is scaled to fit into a resolution. It has no more pixels then than before: what is enlarged shows nothing new.
pub fn select_best_resolution(
    original_size: (u32, u32),
    possible_resolutions: &[(u32, u32)],
) -> (u32, u32) {
    let (width, height) = (f64::from(original_size.0), f64::from(original_size.1));
    let pixels = |(w, h): (u32, u32)| u64::from(w) * u64::from(h);
    let (mut best, mut most, mut least_left) = ((0, 0), 0, u64::MAX);
    for resolution in possible_resolutions {
        let scale = (f64::from(resolution.0) / width).min(f64::from(resolution.1) / height);
        let scaled = ((width * scale) as u32, (height * scale) as u32);
        let kept = pixels(scaled).min(pixels(original_size));
        let left = pixels(*resolution).saturating_sub(kept);
        if kept > most || kept == most && left < least_left {
            (best, most, least_left) = (*resolution, kept, left);
        }
    }
    best
}
