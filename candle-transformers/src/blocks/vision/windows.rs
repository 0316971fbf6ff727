//! Square windows of an image's patches, within which attention stays.

use candle_core::{Result, Tensor};

/// Windows of `side` rows and columns. Those at the bottom and the right are filled with zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) side: usize,
}

impl Windows {
    /// From (batch, rows, columns, size) to (batch * windows, side * side, size).
    pub(crate) fn split(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, rows, columns, size) = xs.dims4()?;
        let (down, across) = (rows.div_ceil(self.side), columns.div_ceil(self.side));
        let mut padded = xs.clone();
        for (dim, missing) in [
            (1, down * self.side - rows),
            (2, across * self.side - columns),
        ] {
            if missing > 0 {
                padded = padded.pad_with_zeros(dim, 0, missing)?;
            }
        }
        padded
            .reshape((b * down, self.side, across, self.side * size))?
            .transpose(1, 2)?
            .reshape((b * down * across, self.side * self.side, size))
    }

    /// Back from [`split`](Self::split) to (batch, rows, columns, size).
    pub(crate) fn join(&self, windows: &Tensor, [b, rows, columns]: [usize; 3]) -> Result<Tensor> {
        let (down, across) = (rows.div_ceil(self.side), columns.div_ceil(self.side));
        let size = windows.dim(2)?;
        windows
            .reshape((b * down, across, self.side, self.side * size))?
            .transpose(1, 2)?
            .reshape((b, down * self.side, across * self.side, size))?
            .narrow(1, 0, rows)?
            .narrow(2, 0, columns)?
            .contiguous()
    }
}
