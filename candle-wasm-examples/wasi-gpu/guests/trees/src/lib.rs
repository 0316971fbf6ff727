//! Decision trees and random forests, trained with the kernels of `wasi:gpu`.
//!
//! A wait for the device costs more than a small kernel. So [`train`] grows all trees at once, level by level: it queues every split of a
//! level, has the scores copied into one buffer, and reads that once. A forest of 200 trees and depth 16 waits 17 times on 353 rows,
//! not once for each of some 160,000 candidate splits.

pub mod gpu;
mod model;
mod predict;
mod random;
mod ranks;
mod train;

pub use model::{Model, Node, LEAF};
pub use predict::{predict, predict_by_average};
pub use random::{below, hash};
pub use train::{train, Params, Task, Trained};

/// An error that ends the training or the prediction.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refused a call.
    #[error("{call}: {error:?}")]
    Gpu {
        call: &'static str,
        error: gpu::compute::GpuError,
    },
    /// Data, labels or parameters that no forest can be made of.
    #[error("{0}")]
    Input(String),
    /// Bytes that are not a model.
    #[error("not a model: {0}")]
    Model(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// The number of rows of `data`. Refuses a partial row and values that are not finite.
fn rows(data: &[f32], features: u32) -> Result<usize> {
    let width = features as usize;
    if width == 0 || !data.len().is_multiple_of(width) {
        return Err(Error::Input(format!(
            "{} values of data are not rows of {features} features",
            data.len()
        )));
    }
    if let Some(at) = data.iter().position(|value| !value.is_finite()) {
        return Err(Error::Input(format!(
            "row {}, feature {} of the data is {}; only finite values can be sorted",
            at / width,
            at % width,
            data[at]
        )));
    }
    Ok(data.len() / width)
}
