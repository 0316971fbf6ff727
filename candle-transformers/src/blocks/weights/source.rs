//! Sources of a model's tensors.

use std::borrow::Cow;
use std::future::{ready, Future};
use std::io::{Read, Seek};
use std::ops::Deref;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use candle_core::quantized::gguf_file::{Content, MmapedContent};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{bail, Device, Result, Shape, Tensor};
use candle_nn::var_builder::ShardedVarBuilder;
use candle_nn::{Init, VarBuilder};

use super::cut::{part_of, Cut};
use super::LowRank;
use crate::quantized_var_builder;

/// A tensor as its source has it, most often on the CPU.
#[derive(Debug, Clone)]
pub enum Stored {
    /// Numbers.
    Dense(Tensor),
    /// Blocks, or numbers in a file that also holds blocks.
    Quantized(Blocks),
}

/// Functions that know all formats.
#[derive(Debug)]
struct Formats {
    of_bytes: fn(Cow<'_, [u8]>, &Device, GgmlDType) -> Result<QStorage>,
    of_parts: fn(&[&[u8]], &Device, GgmlDType) -> Result<QStorage>,
}

static FORMATS: Formats = Formats {
    of_bytes: QStorage::from_data,
    of_parts: QStorage::from_parts,
};

/// A tensor of blocks. It brings the functions that make others of its format, the only ones here that know all formats: a program that
/// loads no blocks is linked without their kernels. In the browser's module of speech these were a seventh of the code.
#[derive(Debug, Clone)]
pub struct Blocks {
    tensor: Arc<QTensor>,
    formats: &'static Formats,
}

impl Blocks {
    /// Blocks of this format on `device`.
    ///
    /// # Errors
    /// As for [`QStorage::from_data`] and [`QTensor::new`].
    pub(super) fn like(
        &self,
        bytes: Cow<'_, [u8]>,
        device: &Device,
        shape: impl Into<Shape>,
    ) -> Result<Self> {
        let storage = (self.formats.of_bytes)(bytes, device, self.tensor.dtype())?;
        self.with(storage, shape.into())
    }

    /// As [`like`](Self::like), of parts that follow each other.
    ///
    /// # Errors
    /// As for [`QStorage::from_parts`] and [`QTensor::new`].
    pub(super) fn like_parts(
        &self,
        parts: &[&[u8]],
        device: &Device,
        shape: impl Into<Shape>,
    ) -> Result<Self> {
        let storage = (self.formats.of_parts)(parts, device, self.tensor.dtype())?;
        self.with(storage, shape.into())
    }

    fn with(&self, storage: QStorage, shape: Shape) -> Result<Self> {
        Ok(Self {
            tensor: Arc::new(QTensor::new(storage, shape)?),
            formats: self.formats,
        })
    }

    /// The tensor.
    pub(super) fn into_tensor(self) -> Arc<QTensor> {
        self.tensor
    }
}

impl Deref for Blocks {
    type Target = QTensor;

    fn deref(&self) -> &QTensor {
        &self.tensor
    }
}

impl From<Arc<QTensor>> for Blocks {
    fn from(tensor: Arc<QTensor>) -> Self {
        Self {
            tensor,
            formats: &FORMATS,
        }
    }
}

impl Stored {
    /// The shape.
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Dense(tensor) => tensor.shape(),
            Self::Quantized(tensor) => tensor.shape(),
        }
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Dense(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Self::Quantized(tensor) => tensor.storage_size_in_bytes(),
        };
        bytes as u64
    }
}

impl From<QTensor> for Stored {
    fn from(tensor: QTensor) -> Self {
        Self::Quantized(Arc::new(tensor).into())
    }
}

/// A model's request for a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The whole name, such as `model.layers.0.mlp.up_proj.weight`.
    pub name: &'a str,
    /// The shape, slowest dimension first.
    pub shape: &'a [usize],
    /// The initial values from a source that makes new tensors.
    pub init: Init,
}

/// A pending read of a tensor.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Result<Stored>> + 'a>>;

/// Tensors by name. Names are those of the files: Hugging Face's or llama.cpp's.
///
/// Reading is asynchronous for the sake of browsers, where a part of a file has to be waited for. Sources that have their tensors at
/// once return a future that is ready, and [`at_once`] runs what is built on them.
pub trait WeightSource {
    /// Whether there is a tensor of that name.
    fn contains(&self, name: &str) -> bool;

    /// Whether a tensor that is not there is made when it is read, as in training from the beginning.
    fn makes_tensors(&self) -> bool {
        false
    }

    /// The shape of a tensor; `None` if there is none of that name, or the source cannot tell before it is read.
    fn shape(&self, name: &str) -> Option<Shape>;

    /// The location of a tensor, for messages, such as ` of model.safetensors`.
    fn whereabouts(&self, _name: &str) -> String {
        String::new()
    }

    /// Reads a tensor. Each tensor is read at most once.
    ///
    /// # Errors
    /// If there is no tensor of that name, its shape differs, or its data cannot be read.
    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a>;

    /// The low-rank addition to a linear layer's weight, which [`read`](Self::read) does not include.
    ///
    /// # Errors
    /// If it does not fit the weight.
    fn beside(&self, _name: &str) -> Result<Option<LowRank>> {
        Ok(None)
    }

    /// Reads a part of a tensor; `wanted` has the shape of the whole. A source that can leave the rest unread does so; otherwise the
    /// tensor is read and then cut.
    ///
    /// # Errors
    /// As [`read`](Self::read); if the tensor has no part like that.
    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        Box::pin(async move {
            let whole = self.read(wanted).await?;
            part_of(&whole, wanted, cut)
        })
    }
}

/// Runs a future that never has to wait.
///
/// # Errors
/// Those of the future, or it waited.
pub fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => {
            bail!("a read that must not wait is pending; use the asynchronous form")
        }
    }
}

fn now<'a>(stored: Result<impl Into<Stored>>) -> Reading<'a> {
    Box::pin(ready(stored.map(Into::into)))
}

impl From<Tensor> for Stored {
    fn from(tensor: Tensor) -> Self {
        Self::Dense(tensor)
    }
}

impl From<Arc<QTensor>> for Stored {
    fn from(tensor: Arc<QTensor>) -> Self {
        Self::Quantized(tensor.into())
    }
}

impl WeightSource for VarBuilder<'_> {
    fn contains(&self, name: &str) -> bool {
        self.contains_tensor(name)
    }

    fn makes_tensors(&self) -> bool {
        VarBuilder::makes_tensors(self)
    }

    fn shape(&self, _name: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        now(self.get_with_hints(wanted.shape, wanted.name, wanted.init))
    }
}

/// Reads no more of a tensor than the part that is wanted.
impl WeightSource for ShardedVarBuilder<'_> {
    fn contains(&self, name: &str) -> bool {
        self.contains_tensor(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        ShardedVarBuilder::shape(self, name)
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        now(self.get(wanted.shape, wanted.name))
    }

    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        match cut.ranges() {
            Some((dim, ranges)) => now(self.get_ranges(wanted.name, dim, ranges)),
            None => self.read(wanted),
        }
    }
}

impl WeightSource for quantized_var_builder::VarBuilder {
    fn contains(&self, name: &str) -> bool {
        self.get_no_shape(name).is_ok()
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let tensor = self.get_no_shape(name).ok()?;
        Some(tensor.shape().clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        now(self.get(wanted.shape, wanted.name))
    }
}

/// A mapped file. On the CPU its tensors stay in the file's pages; of a tensor that is cut, the part alone is read, and copied.
impl WeightSource for &MmapedContent {
    fn contains(&self, name: &str) -> bool {
        self.tensor_infos.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        now(self.tensor(wanted.name, &Device::Cpu))
    }
}

/// A GGUF file that is read tensor by tensor.
#[derive(Debug)]
pub struct GgufReader<'a, R> {
    /// The header.
    pub content: Content,
    /// The stream that it was read from.
    pub reader: &'a mut R,
}

impl<R: Read + Seek> WeightSource for GgufReader<'_, R> {
    fn contains(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.content.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        now(self.content.tensor(self.reader, wanted.name, &Device::Cpu))
    }
}
