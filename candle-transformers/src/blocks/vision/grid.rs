//! Images as tokens, and where in the image these are.

use candle_core::{bail, Device, Module, Result, Tensor};
use candle_nn::{Conv2d, VarBuilder};

use super::{ConvSpec, Picture};

/// Square patches of an image, each a token.
#[derive(Debug, Clone)]
pub(crate) struct PatchEmbedding {
    conv: Conv2d,
    picture: Picture,
    patch: usize,
}

impl PatchEmbedding {
    /// Patches of `patch` x `patch` as tokens of `size`, from the convolution at `vb`. `picture` is checked.
    pub(crate) fn load(
        picture: Picture,
        patch: usize,
        size: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            conv: ConvSpec::patches(picture.channels, size, patch).load(vb)?,
            picture: Picture {
                multiple: patch,
                ..picture
            },
            patch,
        })
    }

    /// Patches by the convolution `conv`, whose kernel and stride are `patch`. Images need not be multiples of it: the remainder is
    /// cropped.
    pub(crate) fn of(conv: Conv2d, picture: Picture, patch: usize) -> Self {
        Self {
            conv,
            picture,
            patch,
        }
    }

    /// From (batch, channels, height, width) to tokens (batch, rows * columns, size), row by row, and the rows and columns.
    pub(crate) fn forward(&self, xs: &Tensor) -> Result<(Tensor, [usize; 2])> {
        let (_, h, w) = self.picture.check(xs)?;
        let tokens = self.conv.forward(xs)?.flatten_from(2)?.transpose(1, 2)?;
        Ok((tokens, [h / self.patch, w / self.patch]))
    }
}

/// Learned vectors of the positions of a grid, for grids of any size.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    /// (rows * columns, size)
    table: Tensor,
    places: [usize; 2],
}

impl Grid {
    /// A grid from a table (rows * columns, size).
    pub(crate) fn new(table: Tensor, rows: usize, columns: usize) -> Self {
        Self {
            table,
            places: [rows, columns],
        }
    }

    /// The vectors of a grid of `rows` and `columns`, (rows * columns, size): between those learned by cubic convolution (Keys 1981, with
    /// a = -3/4), as PyTorch's `bicubic` with pixels as areas.
    pub(crate) fn at(&self, [rows, columns]: [usize; 2]) -> Result<Tensor> {
        if [rows, columns] == self.places {
            return Ok(self.table.clone());
        }
        let ([h, w], size) = (self.places, self.table.dim(1)?);
        let along = |from, to| -> Result<Tensor> {
            cubic(from, to, self.table.device())?.to_dtype(self.table.dtype())
        };
        let wide = self.table.reshape((h, w * size))?;
        let wide = along(h, rows)?.matmul(&wide)?.reshape((rows, w, size))?;
        let columns_of = along(w, columns)?.broadcast_left(rows)?;
        columns_of.matmul(&wide)?.reshape((rows * columns, size))
    }

    /// As [`at`](Self::at), where each vector is that of the nearest learned position.
    pub(crate) fn nearest(&self, [rows, columns]: [usize; 2]) -> Result<Tensor> {
        if [rows, columns] == self.places {
            return Ok(self.table.clone());
        }
        let ([h, w], size) = (self.places, self.table.dim(1)?);
        let as_picture = self.table.t()?.reshape((1, size, h, w))?;
        let resized = as_picture.upsample_nearest2d(rows, columns)?;
        resized.reshape((size, rows * columns))?.t()
    }
}

/// Number of patches on the side of an image.
pub(crate) fn side(family: &str, image: usize, patch: usize) -> Result<usize> {
    if patch == 0 || image < patch {
        bail!("{family} config: patch_size {patch} does not fit image_size {image}")
    }
    Ok(image / patch)
}

/// The matrix (to, from) that makes `to` samples of `from` samples.
fn cubic(from: usize, to: usize, device: &Device) -> Result<Tensor> {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.) * x - (A + 3.)) * x * x + 1.;
    let far = |x: f64| ((A * x - 5. * A) * x + 8. * A) * x - 4. * A;
    let mut matrix = vec![0f32; to * from];
    for (i, row) in matrix.chunks_exact_mut(from.max(1)).enumerate() {
        let at = (i as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let (first, t) = (at.floor(), at - at.floor());
        let weights = [far(1. + t), near(t), near(1. - t), far(2. - t)];
        for (tap, weight) in weights.into_iter().enumerate() {
            // Beyond the border its last sample is repeated.
            let sample = (first + tap as f64 - 1.).clamp(0., (from - 1) as f64);
            row[sample as usize] += weight as f32;
        }
    }
    Tensor::from_vec(matrix, (to, from), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constants stay constant on larger and smaller grids, and a grid of the same size is unchanged.
    #[test]
    fn interpolation_keeps_constants() -> Result<()> {
        let device = Device::Cpu;
        for to in [1, 5, 12, 31] {
            for weights in cubic(12, to, &device)?.to_vec2::<f32>()? {
                let sum: f32 = weights.iter().sum();
                assert!((sum - 1.).abs() < 1e-5, "to {to}: {sum}");
            }
        }
        let line = Tensor::arange(0f32, 12., &device)?.reshape((12, 1))?;
        let same = cubic(12, 12, &device)?.matmul(&line)?;
        assert_eq!(same.to_vec2::<f32>()?, line.to_vec2::<f32>()?);
        Ok(())
    }

    /// PyTorch's `interpolate([0, 1, 4, 9], size=6, mode="bicubic")` along one side, from the formula by hand at one sample: the third of
    /// six is at 1.1667.
    #[test]
    fn interpolation_of_a_square() -> Result<()> {
        let device = Device::Cpu;
        let squares = Tensor::new(&[[0f32], [1.], [4.], [9.]], &device)?;
        let six = cubic(4, 6, &device)?.matmul(&squares)?.flatten_all()?;
        let t = 1f32 / 6.;
        let near = |x: f32| 1.25 * x * x * x - 2.25 * x * x + 1.;
        let far = |x: f32| -0.75 * x * x * x + 3.75 * x * x - 6. * x + 3.;
        let expected = near(t) + 4. * near(1. - t) + 9. * far(2. - t);
        assert!((six.to_vec1::<f32>()?[2] - expected).abs() < 1e-5);
        Ok(())
    }

    /// PyTorch's `nearest`: twice as many rows repeat each, and two columns of three are the first and the second.
    #[test]
    fn nearest_places() -> Result<()> {
        let places = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((6, 1))?;
        let grid = Grid::new(places, 2, 3);
        let resized = grid.nearest([4, 2])?.flatten_all()?;
        assert_eq!(resized.to_vec1::<f32>()?, [0., 1., 0., 1., 3., 4., 3., 4.]);
        Ok(())
    }
}
