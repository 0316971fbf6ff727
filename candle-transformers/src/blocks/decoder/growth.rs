//! Queries that grow with their position, so that attention stays sharp over many keys.

use candle_core::{DType, Result, Tensor};

/// `1 + beta * ln(1 + floor(position / positions))`, what queries are multiplied with (Llama 4, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// The factor.
    pub beta: f64,
    /// The positions of a step; the first have a factor of 1.
    pub positions: usize,
}

impl QueryGrowth {
    /// The factors of `t` positions from each of `starts` on, u32 of the shape `(b)`: `(b, 1, t, 1)`. `None` where all are 1: `end` is past the
    /// last position.
    pub(super) fn factors(
        &self,
        starts: &Tensor,
        t: usize,
        end: usize,
        dtype: DType,
    ) -> Result<Option<Tensor>> {
        if end <= self.positions {
            return Ok(None);
        }
        let wide = DType::F32;
        let b = starts.dim(0)?;
        let after = Tensor::arange(0u32, t as u32, starts.device())?;
        let positions = starts.to_dtype(wide)?.reshape((b, 1, 1, 1))?;
        let positions = positions.broadcast_add(&after.to_dtype(wide)?.reshape((1, 1, t, 1))?)?;
        let steps = (positions / self.positions as f64)?.floor()?;
        let factors = (((steps + 1.)?.log()? * self.beta)? + 1.)?;
        factors.to_dtype(dtype).map(Some)
    }
}
