//! Images and videos of any size as patches, in models that are given a grid (frames, rows, columns) for each: which patch is where, and
//! what follows from that.

use candle_core::{bail, DType, Device, Result, Tensor};

pub(crate) use crate::blocks::cos_sin;

/// A picture or a video in patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchGrid {
    /// 1 for an image.
    pub frames: usize,
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
}

impl PatchGrid {
    /// The grids of `grid_thw`, integers (grids, 3), whose sides are multiples of `merge`.
    ///
    /// # Errors
    /// If the shape is another one, a side is 0 or not a multiple.
    pub fn read(family: &str, grid_thw: &Tensor, merge: usize) -> Result<Vec<Self>> {
        if grid_thw.rank() != 2 || grid_thw.dim(1)? != 3 {
            bail!(
                "{family}: the grids are {:?}; they must be (pictures, 3): frames, rows and columns of patches",
                grid_thw.dims()
            )
        }
        let numbers = grid_thw.to_device(&Device::Cpu)?.to_dtype(DType::U32)?;
        let grids = numbers.to_vec2::<u32>()?;
        let checked = grids.into_iter().map(|grid| {
            let sides: Vec<_> = grid.iter().map(|side| *side as usize).collect();
            let &[frames, rows, columns] = sides.as_slice() else {
                bail!("{family}: a grid has {} sides; it must have 3", sides.len())
            };
            let merge = merge.max(1);
            if frames * rows * columns == 0 || rows % merge != 0 || columns % merge != 0 {
                bail!(
                    "{family}: a grid of {frames} frames, {rows} rows and {columns} columns; each must be at least 1, and rows and \
                     columns multiples of {merge}, as that many patches on a side become a token"
                )
            }
            Ok(Self {
                frames,
                rows,
                columns,
            })
        });
        checked.collect()
    }

    /// Patches of a frame.
    pub fn area(&self) -> usize {
        self.rows * self.columns
    }

    /// Patches of all frames.
    pub fn patches(&self) -> usize {
        self.frames * self.area()
    }

    /// The grid of the tokens that `merge` x `merge` patches become.
    pub fn merged(&self, merge: usize) -> Self {
        Self {
            frames: self.frames,
            rows: self.rows / merge.max(1),
            columns: self.columns / merge.max(1),
        }
    }

    /// The row and column of each patch of a frame, in blocks of `merge` x `merge` patches, row by row inside and out.
    pub fn places(&self, merge: usize) -> Vec<[usize; 2]> {
        let merge = merge.max(1);
        let blocks = self.merged(merge);
        let mut places = Vec::with_capacity(self.area());
        for block in 0..blocks.area() {
            let (row, column) = (block / blocks.columns, block % blocks.columns);
            for inside in 0..merge * merge {
                let (below, beside) = (inside / merge, inside % merge);
                places.push([row * merge + below, column * merge + beside]);
            }
        }
        places
    }
}

/// Neighbours among `grids` whose frames have one shape, with the number of their frames: these are a batch, as frames do not see each
/// other.
pub fn alike(grids: &[PatchGrid]) -> Vec<PatchGrid> {
    let mut groups: Vec<PatchGrid> = Vec::new();
    for grid in grids {
        match groups.last_mut() {
            Some(last) if (last.rows, last.columns) == (grid.rows, grid.columns) => {
                last.frames += grid.frames;
            }
            _ => groups.push(*grid),
        }
    }
    groups
}

/// Cosines and sines, (places, head_dim / 2) each, for heads whose first quarter of the pairs rotates by the row and the next by the
/// column. `head_dim` is a multiple of 4.
pub fn rotation(
    places: &[[usize; 2]],
    head_dim: usize,
    theta: f64,
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let frequencies = crate::blocks::inverse_frequencies(theta, head_dim / 2);
    let angles = places.iter().flat_map(|place| {
        let of_side = |side: usize| frequencies.iter().map(move |f| side as f32 * f);
        let [row, column] = *place;
        of_side(row).chain(of_side(column))
    });
    cos_sin(
        angles,
        &[places.len(), 2 * frequencies.len()],
        dtype,
        device,
    )
}

/// Where a grid's rows, or columns, are between those that positions were learned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The first and the last are the first and the last.
    Meet,
    /// They are areas, whose outer borders meet: PyTorch's `align_corners=False`.
    Areas,
}

/// Learned vectors of the positions of a square grid, for grids of any size, by linear interpolation.
#[derive(Debug, Clone)]
pub struct LinearGrid {
    /// (side * side, size)
    table: Tensor,
    side: usize,
    ends: Ends,
}

impl LinearGrid {
    /// A grid from a table (side * side, size).
    pub fn new(table: Tensor, side: usize, ends: Ends) -> Self {
        Self { table, side, ends }
    }

    /// The dtype of the vectors.
    pub fn dtype(&self) -> DType {
        self.table.dtype()
    }

    /// The device of the vectors.
    pub fn device(&self) -> &Device {
        self.table.device()
    }

    /// The vectors of the positions `places` of a grid of `rows` and `columns`: (places, size).
    pub fn at(&self, places: &[[usize; 2]], [rows, columns]: [usize; 2]) -> Result<Tensor> {
        let (count, side) = (places.len(), self.side);
        let mut near = vec![0u32; 4 * count];
        let mut shares = vec![0f32; 4 * count];
        for (i, [row, column]) in places.iter().enumerate() {
            let (row, below) = self.learned(*row, rows);
            let (column, beside) = self.learned(*column, columns);
            let corners = [
                (row, column, (1. - below) * (1. - beside)),
                (row, column + 1, (1. - below) * beside),
                (row + 1, column, below * (1. - beside)),
                (row + 1, column + 1, below * beside),
            ];
            for (corner, (row, column, share)) in corners.into_iter().enumerate() {
                let (row, column) = (row.min(side - 1), column.min(side - 1));
                near[corner * count + i] = (row * side + column) as u32;
                shares[corner * count + i] = share;
            }
        }
        let near = Tensor::from_vec(near, 4 * count, self.table.device())?;
        let shares = Tensor::from_vec(shares, (4, count, 1), self.table.device())?;
        let vectors = self.table.index_select(&near, 0)?.to_dtype(DType::F32)?;
        let vectors = vectors.reshape((4, count, ()))?;
        vectors
            .broadcast_mul(&shares)?
            .sum(0)?
            .to_dtype(self.dtype())
    }

    /// The learned position at or before the `i`th of `count`, and the fraction of the distance to the next.
    fn learned(&self, i: usize, count: usize) -> (usize, f32) {
        let last = (self.side - 1) as f32;
        let at = match self.ends {
            Ends::Meet if count == 1 => 0.,
            Ends::Meet => i as f32 * (last / (count - 1) as f32),
            Ends::Areas => {
                let scale = self.side as f64 / count as f64;
                (((i as f64 + 0.5) * scale - 0.5) as f32).clamp(0., last)
            }
        };
        (at.floor() as usize, at - at.floor())
    }
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

    #[test]
    fn places_are_in_blocks() {
        let places = grid(1, 2, 4).places(2);
        let blocks = [
            [0, 0],
            [0, 1],
            [1, 0],
            [1, 1],
            [0, 2],
            [0, 3],
            [1, 2],
            [1, 3],
        ];
        assert_eq!(places, blocks);
        assert_eq!(grid(1, 2, 2).places(1), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    }

    #[test]
    fn neighbours_of_one_shape_are_a_batch() {
        let grids = [grid(1, 2, 4), grid(2, 2, 4), grid(1, 4, 2), grid(1, 2, 4)];
        let groups = [grid(3, 2, 4), grid(1, 4, 2), grid(1, 2, 4)];
        assert_eq!(alike(&grids), groups);
    }

    /// Three learned rows and columns 0, 1, 2 (times 10 and 1), interpolated at five positions as by PyTorch's `linspace` and
    /// `interpolate`.
    #[test]
    fn linear_between_learned_places() -> Result<()> {
        let table: Vec<f32> = (0..9).map(|i| (i / 3 * 10 + i % 3) as f32).collect();
        let table = Tensor::from_vec(table, (9, 1), &Device::Cpu)?;
        let along = |ends, sides, places: &[[usize; 2]]| {
            let grid = LinearGrid::new(table.clone(), 3, ends);
            grid.at(places, sides)?.flatten_all()?.to_vec1::<f32>()
        };
        let line: Vec<_> = (0..5).map(|i| [1, i]).collect();
        assert_eq!(
            along(Ends::Meet, [3, 5], &line)?,
            [10., 10.5, 11., 11.5, 12.]
        );
        assert_eq!(along(Ends::Meet, [3, 1], &line[..1])?, [10.]);
        let areas = along(Ends::Areas, [3, 6], &line)?;
        let expected = [10., 10.25, 10.75, 11.25, 11.75];
        assert!(
            areas
                .iter()
                .zip(expected)
                .all(|(a, e)| (a - e).abs() < 1e-5),
            "{areas:?}"
        );
        Ok(())
    }

    #[test]
    fn grids_that_do_not_fit_are_errors() -> Result<()> {
        let read = |grid: &[u32]| {
            let grid = Tensor::from_vec(grid.to_vec(), (1, grid.len()), &Device::Cpu)?;
            PatchGrid::read("test", &grid, 2)
        };
        assert_eq!(read(&[1, 2, 4])?, [grid(1, 2, 4)]);
        for (wrong, text) in [
            (&[1, 3, 4][..], "3 rows"),
            (&[0, 2, 2], "0 frames"),
            (&[2, 2], "(pictures, 3)"),
        ] {
            let message = read(wrong).expect_err("a wrong grid").to_string();
            assert!(message.contains(text), "{message}");
        }
        Ok(())
    }
}
