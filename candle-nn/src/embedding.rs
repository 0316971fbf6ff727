//! The embedding layer: a row of a table for each index.

use crate::{Init, VarBuilder};
use candle_core::{Module, Result, Tensor};

/// A table of vectors, looked up by index.
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// A layer from its table, of shape (entries, hidden_size).
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self {
            embeddings,
            hidden_size,
        }
    }

    /// The table, of shape (entries, hidden_size).
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The length of a vector.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

/// From integer indexes of any shape to that shape with `hidden_size` appended.
impl Module for Embedding {
    fn forward(&self, indexes: &Tensor) -> Result<Tensor> {
        let mut dims = indexes.dims().to_vec();
        dims.push(self.hidden_size);
        self.embeddings
            .index_select(&indexes.flatten_all()?, 0)?
            .reshape(dims)
    }
}

/// A layer from the tensor `weight` of `vb`, of shape (in_size, out_size). A new one is normal with deviation 1.
///
/// # Errors
/// The tensor is missing or has another shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let init = Init::Randn {
        mean: 0.,
        stdev: 1.,
    };
    let embeddings = vb.get_with_hints((in_size, out_size), "weight", init)?;
    Ok(Embedding::new(embeddings, out_size))
}
