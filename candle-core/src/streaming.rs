//! Running a model on a stream: tensors that arrive in chunks along one dimension, such as time.
//!
//! A step takes the next chunk and returns the elements that can be computed so far, possibly none. A chunk is a [`StreamTensor`]; a
//! [`StreamingModule`] keeps its state between steps.

use crate::{Module, Result, Shape, Tensor, D};

/// A dimension that can be used repeatedly: an index, or [`D`] counted from the end.
pub trait Dim: crate::shape::Dim + Copy {}

impl<T: crate::shape::Dim + Copy> Dim for T {}

/// A chunk of a stream: a tensor, or nothing.
///
/// ```
/// use candle_core::{Device, StreamTensor, Tensor, D};
/// # fn main() -> candle_core::Result<()> {
/// let piece = StreamTensor::from(Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?);
/// let (now, later) = piece.split(D::Minus1, 1)?;
/// assert_eq!((now.seq_len(0)?, later.seq_len(0)?), (1, 2));
/// assert_eq!(now.cat2(&later, 0)?.as_option().unwrap().to_vec1::<f32>()?, [1., 2., 3.]);
/// assert_eq!(StreamTensor::empty().cat2(&now, 0)?.seq_len(0)?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StreamTensor(Option<Tensor>);

impl std::fmt::Debug for StreamTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(tensor) => write!(f, "{:?}", tensor.shape()),
            None => write!(f, "Empty"),
        }
    }
}

impl From<Option<Tensor>> for StreamTensor {
    fn from(tensor: Option<Tensor>) -> Self {
        Self(tensor)
    }
}

impl From<Tensor> for StreamTensor {
    fn from(tensor: Tensor) -> Self {
        Self(Some(tensor))
    }
}

impl From<()> for StreamTensor {
    fn from((): ()) -> Self {
        Self::empty()
    }
}

impl StreamTensor {
    /// The empty chunk.
    pub fn empty() -> Self {
        Self(None)
    }

    /// A chunk that is a tensor.
    pub fn from_tensor(tensor: Tensor) -> Self {
        Self(Some(tensor))
    }

    /// The tensor's shape, if there is one.
    pub fn shape(&self) -> Option<&Shape> {
        self.0.as_ref().map(Tensor::shape)
    }

    /// Concatenates both chunks along `dim`.
    ///
    /// # Errors
    /// When both are tensors whose other dimensions, dtypes or devices differ.
    pub fn cat2<D: Dim>(&self, rhs: &Self, dim: D) -> Result<Self> {
        match (&self.0, &rhs.0) {
            (Some(lhs), Some(rhs)) => Ok(Self::from_tensor(Tensor::cat(&[lhs, rhs], dim)?)),
            (Some(piece), None) | (None, Some(piece)) => Ok(Self::from_tensor(piece.clone())),
            (None, None) => Ok(Self::empty()),
        }
    }

    /// The size along `dim`; 0 for an empty chunk.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn seq_len<D: Dim>(&self, dim: D) -> Result<usize> {
        self.0.as_ref().map_or(Ok(0), |tensor| tensor.dim(dim))
    }

    /// Drops the tensor.
    pub fn reset(&mut self) {
        self.0 = None;
    }

    /// At most `len` indices of `dim` from `offset` on: fewer if the chunk ends before, an empty chunk if it ends at `offset`.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn narrow<D: Dim>(&self, dim: D, offset: usize, len: usize) -> Result<StreamTensor> {
        let Some(tensor) = &self.0 else {
            return Ok(Self::empty());
        };
        let rest = tensor.dim(dim)?.saturating_sub(offset);
        match rest {
            0 => Ok(Self::empty()),
            _ => Ok(Self::from_tensor(tensor.narrow(
                dim,
                offset,
                len.min(rest),
            )?)),
        }
    }

    /// The first `lhs_len` indices of `dim` and the rest. A side without indices is an empty chunk.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn split<D: Dim>(&self, dim: D, lhs_len: usize) -> Result<(Self, Self)> {
        if lhs_len == 0 {
            return Ok((Self::empty(), self.clone()));
        }
        let lhs = self.narrow(dim, 0, lhs_len)?;
        let rhs = self.narrow(dim, lhs_len, usize::MAX)?;
        Ok((lhs, rhs))
    }

    /// The tensor, if there is one.
    pub fn as_option(&self) -> Option<&Tensor> {
        self.0.as_ref()
    }

    /// Applies a stateless layer; an empty chunk stays empty.
    ///
    /// # Errors
    /// Errors of the layer.
    pub fn apply<M: Module>(&self, m: &M) -> Result<Self> {
        let tensor = self.0.as_ref().map(|tensor| tensor.apply(m));
        Ok(Self(tensor.transpose()?))
    }
}

/// A layer over a stream. It may keep state from earlier chunks.
pub trait StreamingModule {
    /// Takes the next chunk and returns the part of the result that it completes.
    ///
    /// # Errors
    /// If the chunk does not fit the layer or the earlier chunks.
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor>;

    /// Resets the state: the next step begins another stream.
    fn reset_state(&mut self);
}

/// The operation of a [`StreamingBinOp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinOp {
    /// `lhs + rhs`
    Add,
    /// `lhs * rhs`
    Mul,
    /// `lhs - rhs`
    Sub,
    /// `lhs / rhs`
    Div,
}

/// An elementwise op over two streams whose chunks may differ in length: the excess of one side is kept for the next step.
///
/// ```
/// use candle_core::streaming::{BinOp, StreamTensor, StreamingBinOp};
/// use candle_core::{Device, Tensor, D};
/// # fn main() -> candle_core::Result<()> {
/// let piece = |vs: &[f32]| Tensor::new(vs, &Device::Cpu).map(StreamTensor::from);
/// let mut add = StreamingBinOp::new(BinOp::Add, D::Minus1);
/// let sum = add.step(&piece(&[1., 2., 3.])?, &piece(&[10.])?)?;
/// assert_eq!(sum.as_option().unwrap().to_vec1::<f32>()?, [11.]);
/// let sum = add.step(&().into(), &piece(&[20., 30., 40.])?)?;
/// assert_eq!(sum.as_option().unwrap().to_vec1::<f32>()?, [22., 33.]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StreamingBinOp {
    prev_lhs: StreamTensor,
    prev_rhs: StreamTensor,
    /// The op.
    pub op: BinOp,
    /// The dimension of the streams.
    pub dim: D,
}

impl StreamingBinOp {
    /// An op over new streams along `dim`.
    pub fn new(op: BinOp, dim: D) -> Self {
        Self {
            prev_lhs: StreamTensor::empty(),
            prev_rhs: StreamTensor::empty(),
            op,
            dim,
        }
    }

    /// Resets the state of both streams.
    pub fn reset_state(&mut self) {
        self.prev_lhs.reset();
        self.prev_rhs.reset();
    }

    /// The op on two complete tensors of the same shape.
    ///
    /// # Errors
    /// When shapes, dtypes or devices differ.
    pub fn forward(&self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        match self.op {
            BinOp::Add => lhs + rhs,
            BinOp::Mul => lhs * rhs,
            BinOp::Sub => lhs - rhs,
            BinOp::Div => lhs / rhs,
        }
    }

    /// Takes the next chunk of each side and returns the result for all indices that both sides have reached; an empty chunk if there are
    /// none.
    ///
    /// # Errors
    /// If a chunk does not fit the earlier ones, or those of the other side. The elements kept from earlier steps are then unchanged.
    pub fn step(&mut self, lhs: &StreamTensor, rhs: &StreamTensor) -> Result<StreamTensor> {
        let lhs = self.prev_lhs.cat2(lhs, self.dim)?;
        let rhs = self.prev_rhs.cat2(rhs, self.dim)?;
        let len = lhs.seq_len(self.dim)?.min(rhs.seq_len(self.dim)?);
        let (lhs, later_lhs) = lhs.split(self.dim, len)?;
        let (rhs, later_rhs) = rhs.split(self.dim, len)?;
        let result = match (&lhs.0, &rhs.0) {
            (Some(lhs), Some(rhs)) => Some(self.forward(lhs, rhs)?),
            _ => None,
        };
        (self.prev_lhs, self.prev_rhs) = (later_lhs, later_rhs);
        Ok(result.into())
    }
}

/// A [`Module`] over a stream: it processes each chunk separately and keeps no state.
///
/// ```
/// use candle_core::streaming::{Map, StreamTensor, StreamingModule};
/// use candle_core::{Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let mut relu = Map::new(Tensor::relu);
/// let piece = StreamTensor::from(Tensor::new(&[-1f32, 2.], &Device::Cpu)?);
/// assert_eq!(relu.step(&piece)?.as_option().unwrap().to_vec1::<f32>()?, [0., 2.]);
/// # Ok(())
/// # }
/// ```
pub struct Map<T: Module>(T);

impl<T: Module> Map<T> {
    /// Wraps a layer over tensors as a layer over a stream.
    pub fn new(module: T) -> Self {
        Self(module)
    }
}

impl<T: Module> StreamingModule for Map<T> {
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        xs.apply(&self.0)
    }

    fn reset_state(&mut self) {}
}
