//! Linear layers and embeddings whose weight is dense or quantised.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QMatMul};
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::{gated, linear_with, rms_norm, LinearExtras};
use candle_nn::{Embedding, Linear};

use super::{Blocks, LowRank, Stored};

/// A linear layer over a dense or a quantised weight, `(out_dim, in_dim)`.
#[derive(Debug, Clone)]
pub enum Projection {
    /// Over a dense weight, in the dtype of what it is applied to.
    Dense(Linear),
    /// Over a quantised weight. The bias, `(out_dim)`, has the dtype of what the layer is applied to.
    Quantized {
        /// The weight.
        weight: QMatMul,
        /// The bias, added last.
        bias: Option<Tensor>,
    },
    /// A layer, and what is added to its results.
    Beside {
        /// The layer.
        layer: Box<Self>,
        /// The low-rank term that is added.
        low_rank: LowRank,
    },
}

impl Projection {
    /// A layer from its weights: `(out_dim, in_dim)` and `(out_dim)`. They are checked when the layer is applied.
    pub fn new(weight: QMatMul, bias: Option<Tensor>) -> Self {
        match weight {
            QMatMul::Tensor(weight) => Self::Dense(Linear::new(weight, bias)),
            weight => Self::Quantized { weight, bias },
        }
    }

    /// The weight, if it is dense.
    pub(crate) fn dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(linear) => Some(linear.weight()),
            Self::Quantized { .. } | Self::Beside { .. } => None,
        }
    }

    /// The layer for arguments of `dtype`. A quantised weight is for all.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let to_dtype = |bias: &Tensor| bias.to_dtype(dtype);
        Ok(match self {
            Self::Dense(linear) => {
                let bias = linear.bias().map(to_dtype).transpose()?;
                Self::Dense(Linear::new(linear.weight().to_dtype(dtype)?, bias))
            }
            Self::Quantized { weight, bias } => Self::Quantized {
                weight: weight.clone(),
                bias: bias.as_ref().map(to_dtype).transpose()?,
            },
            Self::Beside { layer, low_rank } => Self::Beside {
                layer: Box::new(layer.to_dtype(dtype)?),
                low_rank: low_rank.to_dtype(dtype)?,
            },
        })
    }

    /// As [`forward`](Module::forward), with a norm before the layer, or a gate or a sum after it. `extras` has no bias.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_with(&self, xs: &Tensor, extras: LinearExtras<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(linear) => {
                let bias = linear.bias();
                linear_with(xs, linear.weight(), LinearExtras { bias, ..extras })
            }
            Self::Quantized { weight, bias } => {
                let bias = bias.as_ref();
                linear_with(xs, weight, LinearExtras { bias, ..extras })
            }
            Self::Beside { layer, low_rank } => {
                let normed = match extras.norm {
                    Some((alpha, eps)) => Some(rms_norm(xs, alpha, eps)?),
                    None => None,
                };
                let xs = normed.as_ref().unwrap_or(xs);
                let mut ys = (layer.forward(xs)? + low_rank.forward(xs)?)?;
                if let Some(act) = extras.gate {
                    ys = gated(&ys, act)?;
                }
                if let Some(act) = extras.activation {
                    ys = act.forward(&ys)?;
                }
                match extras.residual {
                    Some(residual) => ys + residual,
                    None => Ok(ys),
                }
            }
        }
    }
}

impl From<Linear> for Projection {
    fn from(linear: Linear) -> Self {
        Self::Dense(linear)
    }
}

/// From `(.., n, in_dim)` to `(.., n, out_dim)`.
impl Module for Projection {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            // On a GPU the bias is a part of the product.
            Self::Dense(linear) if linear.bias().is_none() || xs.device().is_cpu() => {
                linear.forward(xs)
            }
            Self::Quantized { weight, bias: None } => weight.forward(xs),
            Self::Dense(_) | Self::Quantized { .. } | Self::Beside { .. } => {
                self.forward_with(xs, LinearExtras::default())
            }
        }
    }
}

/// The vectors of tokens, from a dense or a quantised table `(vocab, hidden)`. Of a quantised one, the rows asked for are made
/// dense.
#[derive(Debug, Clone)]
pub struct TokenEmbedding {
    table: QMatMul,
    dtype: DType,
}

impl TokenEmbedding {
    /// A layer from its table, giving vectors of `dtype`.
    pub fn new(table: QMatMul, dtype: DType) -> Self {
        Self { table, dtype }
    }

    /// The output layer that shares the table: from a vector to a logit for each token.
    pub fn tied(&self) -> Projection {
        Projection::new(self.table.clone(), None)
    }

    /// As [`tied`](Self::tied), with a bias of the logits.
    pub fn tied_with(&self, bias: Tensor) -> Projection {
        Projection::new(self.table.clone(), Some(bias))
    }

    /// The table, if it is dense.
    pub fn dense(&self) -> Option<&Tensor> {
        match &self.table {
            QMatMul::Tensor(table) => Some(table),
            _ => None,
        }
    }
}

impl From<Embedding> for TokenEmbedding {
    fn from(embedding: Embedding) -> Self {
        let table = embedding.embeddings().clone();
        let dtype = table.dtype();
        Self::new(QMatMul::Tensor(table), dtype)
    }
}

/// From token ids of any shape to that shape with `hidden` appended.
impl Module for TokenEmbedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.table.embedding(ids)?.to_dtype(self.dtype)
    }
}

/// The weights of a linear layer as their source has them.
#[derive(Debug, Clone)]
pub struct StoredLinear {
    /// `(out_dim, in_dim)`.
    pub weight: Stored,
    /// `(out_dim)`.
    pub bias: Option<Stored>,
    /// The low-rank addition to the weight.
    pub beside: Option<LowRank>,
}

impl From<Linear> for StoredLinear {
    fn from(linear: Linear) -> Self {
        Self {
            weight: linear.weight().clone().into(),
            bias: linear.bias().cloned().map(Stored::from),
            beside: None,
        }
    }
}

impl StoredLinear {
    /// The layer whose outputs are those of `parts`, concatenated, on `device`, for arguments of `dtype`.
    ///
    /// # Errors
    /// As [`place`], or some parts have a bias and others none.
    pub fn stack(parts: Vec<Self>, dtype: DType, device: &Device) -> Result<Projection> {
        let count = parts.len();
        let outputs = |part: &Self| part.weight.shape().dims().first().copied().unwrap_or(0);
        let besides = parts
            .iter()
            .map(|part| (outputs(part), part.beside.clone()));
        let beside = LowRank::stack(besides.collect())?;
        let (weights, biases): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .map(|part| (part.weight, part.bias))
            .unzip();
        let biases = biases.into_iter().flatten().collect::<Vec<_>>();
        let bias = match biases.len() {
            0 => None,
            n if n == count => Some(place_dense(biases, dtype, device)?),
            n => bail!("{n} of {count} linear layers have a bias; only layers with equal biases can be merged"),
        };
        let layer = Projection::new(place(weights, dtype, device)?, bias);
        Ok(match beside {
            Some(beside) => Projection::Beside {
                layer: Box::new(layer),
                low_rank: beside.place(dtype, device)?,
            },
            None => layer,
        })
    }

    /// Whether its weight is worth a copy, so that it can be one with its neighbours'. Variables and results of tracked ops are not: an
    /// optimizer would keep updating tensors that are no longer read. Nor are blocks on the CPU: a launch costs nothing there, and a
    /// weight that is mapped from a file would have to be copied.
    pub(crate) fn merges(&self, device: &Device) -> bool {
        let tracked = |stored: &Stored| matches!(stored, Stored::Dense(t) if t.track_op());
        if tracked(&self.weight) || self.bias.as_ref().is_some_and(tracked) {
            return false;
        }
        !device.is_cpu() || self.weight.format().is_none()
    }

    /// Layers of one kind can be merged.
    pub(super) fn kind(&self) -> (Option<GgmlDType>, bool) {
        (self.weight.format(), self.bias.is_some())
    }
}

impl Stored {
    /// The format of its blocks; `None` where it has none, whatever it is stored in.
    fn format(&self) -> Option<GgmlDType> {
        match self {
            Self::Dense(_) => None,
            Self::Quantized(tensor) => Some(tensor.dtype()).filter(|f| dense_dtype(*f).is_none()),
        }
    }

    /// As numbers of `dtype` on `device`.
    fn to_dense(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        match self {
            Self::Dense(tensor) => tensor.to_device(device)?.to_dtype(dtype),
            Self::Quantized(tensor) => match dense_dtype(tensor.dtype()) {
                // In its stored dtype: through f32, a table of 16 bits would temporarily take three times its size.
                Some(stored) => {
                    let dims = tensor.shape().dims();
                    Tensor::from_raw_buffer(&tensor.data()?, stored, dims, device)?.to_dtype(dtype)
                }
                None => tensor
                    .dequantize(&tensor.device())?
                    .to_device(device)?
                    .to_dtype(dtype),
            },
        }
    }
}

/// The rows of `parts`, concatenated as one weight on `device`, whatever devices they are on. Numbers become a dense tensor of `dtype`,
/// blocks stay blocks; the environment variables of [`QMatMul::from_arc`] apply here too.
///
/// A single part of blocks that is already on the device is not copied: on the CPU, it stays in the pages of its file.
///
/// # Errors
/// If the parts differ in format or in the size of a row, or the device refuses them.
pub fn place(parts: Vec<Stored>, dtype: DType, device: &Device) -> Result<QMatMul> {
    place_as(parts, dtype, device, None)
}

/// As [`place`], with a shape of as many elements.
pub(super) fn place_as(
    parts: Vec<Stored>,
    dtype: DType,
    device: &Device,
    dims: Option<&[usize]>,
) -> Result<QMatMul> {
    if parts.iter().all(|part| part.format().is_none()) {
        let dense = place_dense(parts, dtype, device)?;
        return Ok(QMatMul::Tensor(match dims {
            Some(dims) => dense.reshape(dims)?,
            None => dense,
        }));
    }
    let blocks = parts.into_iter().map(|part| match part {
        Stored::Quantized(tensor) => Ok(tensor),
        Stored::Dense(tensor) => bail!("cannot merge {tensor:?} with quantised weights"),
    });
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    QMatMul::from_arc(
        match blocks.as_slice() {
            [part] if part.device().same_device(device) && dims.is_none() => part.clone(),
            parts => on_device(parts, device, dims)?,
        }
        .into_tensor(),
    )
}

/// As [`place`], but a dense tensor for every format.
///
/// # Errors
/// As [`place`].
pub fn place_dense(parts: Vec<Stored>, dtype: DType, device: &Device) -> Result<Tensor> {
    let parts = parts.iter().map(|part| part.to_dense(dtype, device));
    match parts.collect::<Result<Vec<_>>>()?.as_slice() {
        [] => bail!("no tensors to place on a device; at least one is required"),
        [one] => Ok(one.clone()),
        parts => Tensor::cat(parts, 0),
    }
}

/// The parts go from where they are to their places on the device: no copy of all is made on the host.
fn on_device(parts: &[Blocks], device: &Device, dims: Option<&[usize]>) -> Result<Blocks> {
    let Some(first) = parts.first() else {
        bail!("no tensors to place on a device; at least one is required")
    };
    let stacked = stacked_shape(first, parts)?;
    let dims = dims.map_or(stacked, <[usize]>::to_vec);
    let bytes = parts.iter().map(|part| part.data());
    let bytes = bytes.collect::<Result<Vec<Cow<'_, [u8]>>>>()?;
    let parts: Vec<&[u8]> = bytes.iter().map(|part| &**part).collect();
    first.like_parts(&parts, device, dims)
}

/// The shape of the concatenation of the parts.
fn stacked_shape(first: &Blocks, parts: &[Blocks]) -> Result<Vec<usize>> {
    let mut dims = first.shape().dims().to_vec();
    for part in &parts[1..] {
        let others = part.shape().dims();
        if others.len() != dims.len() || others[1..] != dims[1..] || part.dtype() != first.dtype() {
            bail!("cannot merge {first:?} and {part:?}: their formats and rows must match")
        }
        dims[0] += others[0];
    }
    Ok(dims)
}

/// The tensor dtype with the same bytes, for a format without blocks.
fn dense_dtype(format: GgmlDType) -> Option<DType> {
    match format {
        GgmlDType::F32 => Some(DType::F32),
        GgmlDType::F16 => Some(DType::F16),
        GgmlDType::BF16 => Some(DType::BF16),
        _ => None,
    }
}
