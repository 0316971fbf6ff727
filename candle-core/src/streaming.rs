//! Running a model over a stream: tensors that come in pieces along one dimension, such as time.
//!
//! A step takes the next piece and returns what can be computed so far, possibly nothing. [`StreamTensor`] is such a
//! piece; a [`StreamingModule`] keeps its state between steps.

use crate::{Module, Result, Shape, Tensor, D};

/// A dimension that can be named again and again: an index, or [`D`] counted from the end.
pub trait Dim: crate::shape::Dim + Copy {}

impl<T: crate::shape::Dim + Copy> Dim for T {}

/// A piece of a stream: a tensor, or nothing.
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
    /// Nothing.
    pub fn empty() -> Self {
        Self(None)
    }

    /// A piece that is a tensor.
    pub fn from_tensor(tensor: Tensor) -> Self {
        Self(Some(tensor))
    }

    /// The tensor's shape, if there is one.
    pub fn shape(&self) -> Option<&Shape> {
        self.0.as_ref().map(Tensor::shape)
    }

    /// Both pieces, one after the other along `dim`.
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

    /// The size along `dim`; 0 for nothing.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn seq_len<D: Dim>(&self, dim: D) -> Result<usize> {
        self.0.as_ref().map_or(Ok(0), |tensor| tensor.dim(dim))
    }

    /// Forgets the tensor.
    pub fn reset(&mut self) {
        self.0 = None;
    }

    /// At most `len` indices of `dim` from `offset` on: fewer where the piece ends before, nothing where it ends at `offset`.
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

    /// The first `lhs_len` indices of `dim` and the rest. A side that gets no index is nothing.
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

    /// Applies a layer that keeps nothing between steps; nothing stays nothing.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn apply<M: Module>(&self, m: &M) -> Result<Self> {
        let tensor = self.0.as_ref().map(|tensor| tensor.apply(m));
        Ok(Self(tensor.transpose()?))
    }
}

/// A layer over a stream. It may keep what it needs of the pieces so far.
pub trait StreamingModule {
    /// Takes the next piece and gives the next piece of the result, as far as it is known.
    ///
    /// # Errors
    /// When the piece does not fit the layer or the pieces before.
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor>;

    /// Forgets the stream so far: the next step begins another one.
    fn reset_state(&mut self);
}

/// What [`StreamingBinOp`] computes of two streams.
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

/// An elementwise op over two streams whose pieces may differ in length: the excess of one side is kept for the next
/// step.
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
    /// The dimension along which the streams go on.
    pub dim: D,
}

impl StreamingBinOp {
    /// An op over streams along `dim` that have not begun.
    pub fn new(op: BinOp, dim: D) -> Self {
        Self {
            prev_lhs: StreamTensor::empty(),
            prev_rhs: StreamTensor::empty(),
            op,
            dim,
        }
    }

    /// Forgets both streams so far.
    pub fn reset_state(&mut self) {
        self.prev_lhs.reset();
        self.prev_rhs.reset();
    }

    /// The op on two whole tensors of one shape.
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

    /// Takes the next piece of each side and gives the result for all indices that both sides have reached; nothing if there are
    /// none.
    ///
    /// # Errors
    /// When a piece does not fit the ones before, or the other side's. What was kept from earlier steps is then still there.
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

/// A [`Module`] over a stream: it sees each piece by itself and keeps nothing.
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
    /// A layer over a stream out of one over tensors.
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
