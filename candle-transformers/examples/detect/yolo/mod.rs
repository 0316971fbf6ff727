//! The networks, and what they find.

pub mod conv;
pub mod found;
pub mod v3;
pub mod v8;

use candle_core::{bail, Result, Tensor};

/// What the sides of a picture have to be multiples of: the last layers see it that much smaller.
pub const MULTIPLE: usize = 32;

/// Fails unless `xs` is (batch, 3, height, width) with sides that fit.
fn check(xs: &Tensor) -> Result<()> {
    let fits = |side: usize| side > 0 && side.is_multiple_of(MULTIPLE);
    match *xs.dims() {
        [_, 3, h, w] if fits(h) && fits(w) => Ok(()),
        _ => bail!(
            "the pictures are {:?}; they must be (batch, 3, height, width) with sides that are multiples of {MULTIPLE}",
            xs.dims()
        ),
    }
}
