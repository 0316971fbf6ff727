//! Sound as the tokens of several codebooks: a vector that is the sum of a position's tokens', and logits for each book.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::init;

use super::weights::StoredLinear;
use super::{Projection, TokenEmbedding, Weights};

/// A table of vectors for each codebook.
#[derive(Debug, Clone)]
pub(crate) struct CodebookEmbeddings {
    family: &'static str,
    tables: Vec<TokenEmbedding>,
}

impl CodebookEmbeddings {
    /// Loads tables whose names are `prefix` and a number, of vectors of size `hidden`; `vocabs` are their rows.
    ///
    /// # Errors
    /// If there is no codebook, or a weight is missing or has another shape.
    pub(crate) async fn load(
        family: &'static str,
        vocabs: &[usize],
        hidden: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        if vocabs.is_empty() {
            bail!("{family}: no codebooks; at least one is required")
        }
        let mut tables = Vec::with_capacity(vocabs.len());
        for (i, vocab) in vocabs.iter().enumerate() {
            let name = format!("{prefix}.{i}");
            tables.push(weights.embedding(&name, *vocab, hidden).await?);
        }
        Ok(Self { family, tables })
    }

    /// The number of codebooks.
    pub(crate) fn count(&self) -> usize {
        self.tables.len()
    }

    /// From ids of the first codebooks, (batch, books, t), to the sums of their vectors, (batch, t, hidden).
    ///
    /// # Errors
    /// If the shape is another, there are no ids or fewer books than tables, or an id is outside its table (where the device can tell).
    pub(crate) fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (family, books) = (self.family, self.count());
        match *ids.dims() {
            [b, found, t] if b > 0 && t > 0 && found >= books => {}
            _ => bail!(
                "{family}: the tokens are {:?}; they must be (batch, {books}, t), each at least 1",
                ids.dims()
            ),
        }
        let mut sum: Option<Tensor> = None;
        for (i, table) in self.tables.iter().enumerate() {
            let xs = table.forward(&ids.narrow(1, i, 1)?.squeeze(1)?.contiguous()?)?;
            sum = Some(match sum {
                Some(sum) => (sum + xs)?,
                None => xs,
            });
        }
        match sum {
            Some(sum) => Ok(sum),
            None => bail!("{family}: no codebooks"),
        }
    }
}

/// A linear layer without bias for each codebook, all over one input: one product, unless the weights are variables.
#[derive(Debug, Clone)]
pub(crate) struct CodebookHeads {
    layers: Vec<Projection>,
    vocabs: Vec<usize>,
}

impl CodebookHeads {
    /// Loads layers whose names are `prefix` and a number, over vectors of size `hidden`; `vocabs` are their outputs.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub(crate) async fn load(
        vocabs: &[usize],
        hidden: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        let mut stored = Vec::with_capacity(vocabs.len());
        for (i, vocab) in vocabs.iter().enumerate() {
            let name = format!("{prefix}.{i}.weight");
            let weight = weights
                .stored(&name, &[*vocab, hidden], init::DEFAULT_KAIMING_NORMAL)
                .await?;
            stored.push(StoredLinear {
                weight,
                bias: None,
                beside: None,
            });
        }
        let layers = if stored.iter().all(|layer| layer.merges(&device)) {
            vec![StoredLinear::stack(stored, dtype, &device)?]
        } else {
            let one = |layer| StoredLinear::stack(vec![layer], dtype, &device);
            stored.into_iter().map(one).collect::<Result<_>>()?
        };
        Ok(Self {
            layers,
            vocabs: vocabs.to_vec(),
        })
    }

    /// The logits of each codebook, (batch, t, vocab), of vectors (batch, t, hidden). They may be views into one tensor.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub(crate) fn forward(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let outputs = self.layers.iter().map(|layer| layer.forward(xs));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let [all] = outputs.as_slice() else {
            return Ok(outputs);
        };
        let mut start = 0;
        let mut part = |len: &usize| {
            start += len;
            all.narrow(D::Minus1, start - len, *len)
        };
        self.vocabs.iter().map(&mut part).collect()
    }
}
