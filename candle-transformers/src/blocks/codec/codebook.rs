//! Vector quantisation: a codebook gives a vector the number of the entry that is most like it. Residual quantisation has several, each for
//! what the ones before it left.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::Embedding;

use super::wide;

/// Entries with numbers.
#[derive(Debug, Clone)]
pub struct Codebook {
    table: Embedding,
    /// The transposed entries, for products with vectors: (dim, entries).
    columns: Tensor,
    /// Half of each entry's squared length, (entries); the same for all if lengths do not count.
    halves: Option<Tensor>,
}

impl Codebook {
    /// A vector's entry is the one at the smallest distance. `entries` is (entries, dim).
    ///
    /// # Errors
    /// The device fails.
    pub fn by_distance(entries: Tensor) -> Result<Self> {
        // Scores in 16 bits would confuse neighbours.
        let rows = entries.to_dtype(wide(entries.dtype()))?;
        let halves = (rows.sqr()?.sum(D::Minus1)? / 2.)?;
        Ok(Self {
            columns: rows.t()?,
            halves: Some(halves),
            table: table(entries)?,
        })
    }

    /// A vector's entry is the one at the smallest angle. `entries` is (entries, dim).
    ///
    /// # Errors
    /// The device fails.
    pub fn by_angle(entries: Tensor) -> Result<Self> {
        let rows = entries.to_dtype(wide(entries.dtype()))?;
        let lengths = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
        // An entry of zeros has no direction, and is never nearer than one that has the vector's.
        let lengths = lengths.maximum(1e-12)?;
        Ok(Self {
            columns: rows.broadcast_div(&lengths)?.t()?,
            halves: None,
            table: table(entries)?,
        })
    }

    /// The entries, (entries, dim).
    pub fn entries(&self) -> &Tensor {
        self.table.embeddings()
    }

    /// The numbers, u32 of shape (…), of the entries for vectors (…, dim).
    ///
    /// # Errors
    /// The vectors have another size.
    pub fn nearest(&self, xs: &Tensor) -> Result<Tensor> {
        let (dims, dim) = match xs.dims() {
            [dims @ .., dim] if *dim == self.entries().dim(1)? => (dims, *dim),
            dims => bail!(
                "codebook: the vectors are {dims:?}; they must be (…, {})",
                self.entries().dim(1)?
            ),
        };
        let rows = xs.reshape(((), dim))?.to_dtype(self.columns.dtype())?;
        let products = rows.matmul(&self.columns)?;
        let numbers = match &self.halves {
            Some(halves) => halves.broadcast_sub(&products)?.argmin(D::Minus1)?,
            None => products.argmax(D::Minus1)?,
        };
        numbers.reshape(dims)
    }

    /// The entries (…, dim) with numbers (…).
    ///
    /// # Errors
    /// The numbers are not integers, or one is not below the number of entries.
    pub fn lookup(&self, numbers: &Tensor) -> Result<Tensor> {
        self.table.forward(numbers)
    }
}

fn table(entries: Tensor) -> Result<Embedding> {
    let dim = entries.dim(1)?;
    Ok(Embedding::new(entries, dim))
}

/// One of several quantisers of a residual.
pub trait Stage {
    /// The numbers (batch, frames) of `xs` (batch, channels, time).
    fn numbers(&self, xs: &Tensor) -> Result<Tensor>;

    /// The vectors of the numbers (batch, frames): (batch, channels, time).
    fn values(&self, numbers: &Tensor) -> Result<Tensor>;
}

/// Each stage's numbers (batch, frames) for `xs` (batch, channels, time) minus the vectors of the earlier stages.
///
/// # Errors
/// Those of the stages.
pub fn residual_encode<S: Stage>(stages: &[S], xs: &Tensor) -> Result<Vec<Tensor>> {
    let mut residual = xs.clone();
    let mut numbers = Vec::with_capacity(stages.len());
    for (i, stage) in stages.iter().enumerate() {
        let found = stage.numbers(&residual)?;
        if i + 1 < stages.len() {
            residual = (residual - stage.values(&found)?)?;
        }
        numbers.push(found);
    }
    Ok(numbers)
}

/// The sum of the vectors of the first stages' `numbers`, (batch, frames) each: (batch, channels, time).
///
/// # Errors
/// There are no numbers, or numbers of more stages than there are, or those of the stages.
pub fn residual_decode<S: Stage>(family: &str, stages: &[S], numbers: &[Tensor]) -> Result<Tensor> {
    if numbers.is_empty() || numbers.len() > stages.len() {
        bail!(
            "{family}: codes of {1} codebooks, but the model has {0}; at least 1 is required",
            stages.len(),
            numbers.len()
        )
    }
    let mut values = stages.iter().zip(numbers).map(|(s, n)| s.values(n));
    let first = values.next().transpose()?;
    let sum = first.map(|first| values.try_fold(first, |sum, value| sum + value));
    sum.unwrap_or_else(|| bail!("{family}: no codes"))
}
