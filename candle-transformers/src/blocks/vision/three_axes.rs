//! Positions of text, images and videos in one sequence, on three axes: time, row and column. Of text all three are equal. M-RoPE,
//! [arXiv 2409.12191](https://arxiv.org/abs/2409.12191).

use candle_core::{bail, DType, Device, Result, Tensor};

use super::patch_grids::PatchGrid;
pub use crate::blocks::{Axes, Position};

/// Tokens of a text that are those of images.
#[derive(Debug, Clone)]
pub struct Span {
    /// The first token.
    pub start: usize,
    /// Index after the last token.
    pub end: usize,
    /// The grids of tokens of images and videos; `None` if they are unknown, which counts as text.
    pub grids: Vec<PatchGrid>,
}

/// The positions of the tokens `0 .. count`, the first at `first`, and the position after them. An image begins at the next position after
/// the preceding token, and the token after it follows the largest of its positions. `spans` are in order.
pub fn positions(first: u32, count: usize, spans: &[Span]) -> (Vec<Position>, u32) {
    let mut positions = Vec::with_capacity(count);
    let mut next = first;
    let text = |positions: &mut Vec<Position>, next: &mut u32, until: usize| {
        while positions.len() < until {
            positions.push([*next; 3]);
            *next += 1;
        }
    };
    for span in spans {
        text(&mut positions, &mut next, span.start);
        for grid in &span.grids {
            for patch in 0..grid.patches() {
                let (frame, place) = (patch / grid.area(), patch % grid.area());
                let (row, column) = (place / grid.columns, place % grid.columns);
                positions.push([frame, row, column].map(|i| next + i as u32));
            }
            next += grid.frames.max(grid.rows).max(grid.columns) as u32;
        }
    }
    text(&mut positions, &mut next, count);
    (positions, next)
}

/// The frames of grids, handed out span by span.
#[derive(Debug)]
pub struct Frames<'a> {
    family: &'a str,
    /// The grids of tokens that are left.
    left: Vec<PatchGrid>,
    taken: usize,
}

impl<'a> Frames<'a> {
    /// All frames of `grids` of patches; `merge` x `merge` patches are a token.
    pub fn new(family: &'a str, grids: &[PatchGrid], merge: usize) -> Self {
        Self {
            family,
            left: grids.iter().map(|grid| grid.merged(merge)).collect(),
            taken: 0,
        }
    }

    /// The next frames, which have `tokens` tokens.
    ///
    /// # Errors
    /// If that is not a whole number of frames.
    pub fn take(&mut self, tokens: usize) -> Result<Vec<PatchGrid>> {
        let (mut found, mut missing) = (Vec::new(), tokens);
        while missing > 0 {
            let Some(grid) = self.left.get_mut(self.taken) else {
                bail!(
                    "{}: {missing} of {tokens} placeholder tokens exceed those of the grids",
                    self.family
                )
            };
            let frames = grid.frames.min(missing / grid.area());
            if frames == 0 {
                bail!(
                    "{}: {missing} placeholder tokens in a row are left for a frame of {} x {} tokens; a span must hold whole frames",
                    self.family,
                    grid.rows,
                    grid.columns
                )
            }
            missing -= frames * grid.area();
            found.push(PatchGrid { frames, ..*grid });
            grid.frames -= frames;
            if grid.frames == 0 {
                self.taken += 1;
            }
        }
        Ok(found)
    }
}

/// `embeds`, (b, t, size), with the vectors `features`, (n, size), at the indices `at` in their order, counted row by row.
pub fn spliced(embeds: &Tensor, features: &Tensor, at: &[u32]) -> Result<Tensor> {
    let (b, t, size) = embeds.dims3()?;
    let mut from: Vec<u32> = (0..(b * t) as u32).collect();
    for (i, place) in at.iter().enumerate() {
        let Some(from) = from.get_mut(*place as usize) else {
            bail!("position {place} is outside {b} rows of {t} tokens")
        };
        *from = (b * t + i) as u32;
    }
    let from = Tensor::from_vec(from, b * t, embeds.device())?;
    let all = Tensor::cat(&[&embeds.reshape((b * t, size))?, features], 0)?;
    all.index_select(&from, 0)?.reshape((b, t, size))
}

/// The indices of `token` among `ids`, (b, t) of integers, counted row by row. The ids are read back.
pub fn places_of(ids: &Tensor, token: usize) -> Result<Vec<u32>> {
    let (b, t) = ids.dims2()?;
    let ids = ids.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
    let ids = ids.reshape(b * t)?.to_vec1::<i64>()?;
    let found = ids
        .into_iter()
        .zip(0..)
        .filter(|(id, _)| usize::try_from(*id) == Ok(token));
    Ok(found.map(|(_, place)| place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(frames: usize, rows: usize, columns: usize) -> PatchGrid {
        PatchGrid {
            frames,
            rows,
            columns,
        }
    }

    /// The example of Qwen2-VL's documentation: a video of 3 frames of 2 x 2 tokens, then a text.
    #[test]
    fn a_video_before_a_text() {
        let span = Span {
            start: 0,
            end: 12,
            grids: vec![grid(3, 2, 2)],
        };
        let (positions, next) = positions(0, 17, &[span]);
        let axis = |axis: usize| positions.iter().map(|p| p[axis]).collect::<Vec<_>>();
        let text = [3, 4, 5, 6, 7];
        assert_eq!(
            axis(0),
            [&[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2][..], &text].concat()
        );
        assert_eq!(
            axis(1),
            [&[0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1][..], &text].concat()
        );
        assert_eq!(
            axis(2),
            [&[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1][..], &text].concat()
        );
        assert_eq!(next, 8);
    }

    #[test]
    fn pictures_between_texts() {
        let spans = [(1, 4, grid(1, 1, 3)), (5, 7, grid(1, 2, 1))];
        let spans = spans.map(|(start, end, grid)| Span {
            start,
            end,
            grids: vec![grid],
        });
        let (positions, next) = positions(10, 8, &spans);
        let expected: [Position; 8] = [
            [10; 3],
            [11, 11, 11],
            [11, 11, 12],
            [11, 11, 13],
            [14; 3],
            [15, 15, 15],
            [15, 16, 15],
            [17; 3],
        ];
        assert_eq!(positions, expected);
        assert_eq!(next, 18);
    }

    #[test]
    fn spans_hold_whole_frames() -> Result<()> {
        let grids = [grid(3, 4, 4), grid(1, 2, 4)];
        let mut frames = Frames::new("test", &grids, 2);
        assert_eq!(frames.take(8)?, [grid(2, 2, 2)]);
        assert_eq!(frames.take(6)?, [grid(1, 2, 2), grid(1, 1, 2)]);
        assert!(frames.take(1).is_err());
        assert!(Frames::new("test", &grids, 2).take(5).is_err());
        Ok(())
    }
}
