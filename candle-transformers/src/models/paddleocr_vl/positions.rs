//! Positions of tokens on three axes, as tensors.

use candle_core::{bail, DType, Device, Result, Tensor};

use super::FAMILY;
use crate::blocks::vision::patch_grids::PatchGrid;
use crate::blocks::vision::three_axes::{positions, Position, Span};

/// An image in tokens.
#[derive(Debug, Clone)]
pub struct ImageGrid {
    /// Rows of tokens.
    pub grid_h: usize,
    /// Columns of tokens.
    pub grid_w: usize,
}

/// A video in tokens.
#[derive(Debug, Clone)]
pub struct VideoGrid {
    /// Frames.
    pub grid_t: usize,
    /// Rows of tokens.
    pub grid_h: usize,
    /// Columns of tokens.
    pub grid_w: usize,
}

/// The rows of `ids`, (b, t) of integers, on the host.
pub(super) fn rows(ids: &Tensor) -> Result<Vec<Vec<u32>>> {
    ids.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec2()
}

/// The ranges of the runs of `token` in a row.
pub(super) fn runs(ids: &[u32], token: u32) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (i, _) in ids.iter().enumerate().filter(|(_, id)| **id == token) {
        match runs.last_mut() {
            Some((_, end)) if *end == i => *end += 1,
            _ => runs.push((i, i + 1)),
        }
    }
    runs
}

/// Positions of the tokens of all rows as (3, b, t) of i64: time, row and column.
pub(super) fn as_tensor(all: &[Position], [b, t]: [usize; 2], device: &Device) -> Result<Tensor> {
    let axis = |axis: usize| all.iter().map(move |position| i64::from(position[axis]));
    let values: Vec<i64> = (0..3).flat_map(axis).collect();
    Tensor::from_vec(values, (3, b, t), device)
}

/// The positions, (3, b, t) of i64 for time, row and column, of token ids, (b, t). The first `grid_h * grid_w` ids of each row that are
/// `image_token_id` are an image of this many rows and columns. Other tokens are text.
///
/// # Errors
/// If the ids are not integers of (b, t), or cannot be read.
pub fn compute_mrope_position_ids(
    input_ids: &Tensor,
    image_token_id: u32,
    grid_h: usize,
    grid_w: usize,
    device: &Device,
) -> Result<Tensor> {
    let (b, t) = input_ids.dims2()?;
    let mut all = Vec::with_capacity(b * t);
    for ids in rows(input_ids)? {
        let (mut next, mut first, mut seen) = (0u32, 0, 0);
        for id in ids {
            if id != image_token_id || seen == grid_h * grid_w {
                all.push([next; 3]);
                next += 1;
                continue;
            }
            if seen == 0 {
                first = next;
            }
            let (row, column) = ((seen / grid_w) as u32, (seen % grid_w) as u32);
            all.push([first, first + row, first + column]);
            next = next.max(first + row.max(column) + 1);
            seen += 1;
        }
    }
    as_tensor(&all, [b, t], device)
}

/// As [`compute_mrope_position_ids`], of several images in each row: each run of `image_token_id` is the next of `image_grids`.
///
/// # Errors
/// As [`compute_mrope_position_ids`]; if a row has more or fewer runs than there are images, or one is of another length.
pub fn compute_mrope_position_ids_multi(
    input_ids: &Tensor,
    image_token_id: u32,
    image_grids: &[ImageGrid],
    device: &Device,
) -> Result<Tensor> {
    let (b, t) = input_ids.dims2()?;
    let mut all = Vec::with_capacity(b * t);
    for ids in rows(input_ids)? {
        let found = runs(&ids, image_token_id);
        if found.len() != image_grids.len() {
            bail!(
                "{FAMILY}: found {} runs of image tokens for {} grids; each grid needs one",
                found.len(),
                image_grids.len()
            )
        }
        let mut spans = Vec::with_capacity(found.len());
        for (i, ((start, end), grid)) in found.into_iter().zip(image_grids).enumerate() {
            let (rows, columns) = (grid.grid_h, grid.grid_w);
            if end - start != rows * columns {
                bail!("{FAMILY}: picture {i} has {} tokens in the text, but its grid is {rows} x {columns}", end - start)
            }
            let grids = vec![PatchGrid {
                frames: 1,
                rows,
                columns,
            }];
            spans.push(Span { start, end, grids });
        }
        all.extend(positions(0, t, &spans).0);
    }
    as_tensor(&all, [b, t], device)
}

/// As [`compute_mrope_position_ids`], of a video: the first run of `video_token_id` in each row, if there is one. Its frames are
/// `second_per_grid_t * tokens_per_second` positions apart, rounded down.
///
/// # Errors
/// As [`compute_mrope_position_ids`]; if the run is of another length than the video.
pub fn compute_mrope_position_ids_video(
    input_ids: &Tensor,
    video_token_id: u32,
    video_grid: &VideoGrid,
    second_per_grid_t: f32,
    tokens_per_second: usize,
    device: &Device,
) -> Result<Tensor> {
    let (b, t) = input_ids.dims2()?;
    let VideoGrid {
        grid_t,
        grid_h,
        grid_w,
    } = *video_grid;
    let time = |frame: usize| (frame as f32 * second_per_grid_t * tokens_per_second as f32) as u32;
    let mut all: Vec<Position> = Vec::with_capacity(b * t);
    for ids in rows(input_ids)? {
        let run = runs(&ids, video_token_id).into_iter().next();
        let (start, end) = run.unwrap_or((t, t));
        let tokens = grid_t * grid_h * grid_w;
        if run.is_some() && end - start != tokens {
            bail!(
                "{FAMILY}: the video has {} tokens in the text, but its grid is {grid_t} x {grid_h} x {grid_w}",
                end - start
            )
        }
        all.extend((0..start as u32).map(|i| [i; 3]));
        let (first, mut next) = (start as u32, start as u32);
        for token in 0..end - start {
            let (frame, place) = (token / (grid_h * grid_w), token % (grid_h * grid_w));
            let place = [
                time(frame),
                (place / grid_w) as u32,
                (place % grid_w) as u32,
            ];
            all.push(place.map(|i| first + i));
            next = place
                .into_iter()
                .fold(next, |next, i| next.max(first + i + 1));
        }
        all.extend((0..(t - end) as u32).map(|i| [next + i; 3]));
    }
    as_tensor(&all, [b, t], device)
}
