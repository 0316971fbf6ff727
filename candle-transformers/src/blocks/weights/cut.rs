//! A part of a tensor, for one of several ranks.

use std::collections::HashMap;
use std::future::ready;
use std::ops::Range;

use candle_core::quantized::GgmlDType;
use candle_core::{bail, Context as _, DType, Device, Result, Shape, Tensor};

use super::{Blocks, LowRank, Reading, Stored, Wanted, WeightSource};

/// A part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// Ranges of one dimension, concatenated.
    Ranges {
        /// The dimension, from 0.
        dim: usize,
        /// The ranges, in the order in which the part has them.
        ranges: Vec<Range<usize>>,
    },
    /// Zeros instead of the tensor: a bias that another rank adds.
    Zeros,
}

impl Cut {
    /// Ranges of the first dimension.
    pub fn rows(ranges: Vec<Range<usize>>) -> Self {
        Self::Ranges { dim: 0, ranges }
    }

    /// Ranges of the second dimension.
    pub fn columns(ranges: Vec<Range<usize>>) -> Self {
        Self::Ranges { dim: 1, ranges }
    }

    /// The part's shape, from that of the tensor.
    pub fn dims(&self, whole: &[usize]) -> Vec<usize> {
        let mut dims = whole.to_vec();
        if let Some((dim, ranges)) = self.ranges() {
            if let Some(size) = dims.get_mut(dim) {
                *size = ranges.iter().map(Range::len).sum();
            }
        }
        dims
    }

    /// The dimension that is cut, and its ranges; of [`Cut::Zeros`] none.
    pub fn ranges(&self) -> Option<(usize, &[Range<usize>])> {
        match self {
            Self::Ranges { dim, ranges } => Some((*dim, ranges)),
            Self::Zeros => None,
        }
    }

    /// The part of a tensor that is there as a whole, as a copy.
    ///
    /// # Errors
    /// If the tensor has no such part. The last dimension of a tensor of blocks can only be cut between them.
    pub fn of(&self, whole: &Stored) -> Result<Stored> {
        let Some((dim, ranges)) = self.ranges() else {
            return zeros(whole.shape().dims());
        };
        let dims = whole.shape().dims();
        let has = |r: &Range<usize>| r.start <= r.end && dims.get(dim).is_some_and(|n| r.end <= *n);
        if !ranges.iter().all(has) {
            bail!("{ranges:?} of dimension {dim} of a tensor of shape {dims:?}")
        }
        match whole {
            Stored::Dense(tensor) => {
                let part = |range: &Range<usize>| tensor.narrow(dim, range.start, range.len());
                let parts = ranges.iter().map(part).collect::<Result<Vec<_>>>()?;
                // A view would keep the whole tensor in memory.
                Ok(match parts.as_slice() {
                    [part] => part.copy()?,
                    parts => Tensor::cat(parts, dim)?,
                }
                .into())
            }
            Stored::Quantized(tensor) => blocks(tensor, dim, ranges, self.dims(dims)),
        }
    }
}

fn zeros(dims: &[usize]) -> Result<Stored> {
    Ok(Tensor::zeros(dims, DType::F32, &Device::Cpu)?.into())
}

/// Ranges of a dimension of a tensor of blocks, which are copied as they are.
fn blocks(
    tensor: &Blocks,
    dim: usize,
    ranges: &[Range<usize>],
    part: Vec<usize>,
) -> Result<Stored> {
    let format = tensor.dtype();
    let dims = tensor.shape().dims();
    let is_last = dim + 1 == dims.len();
    if is_last {
        check_blocks(format, ranges)?;
    }
    let data = tensor.data()?;
    // What one step in the dimension is: a block of elements, or all blocks of the dimensions behind it.
    let (per_unit, unit) = if is_last {
        (format.block_size(), format.type_size())
    } else {
        let inner = dims[dim + 1..].iter().product::<usize>();
        (1, inner / format.block_size() * format.type_size())
    };
    let outer = dims[dim] / per_unit * unit;
    let mut bytes = Vec::with_capacity(
        part.iter().product::<usize>() / format.block_size() * format.type_size(),
    );
    for outer in data.chunks_exact(outer.max(1)) {
        for range in ranges {
            let (start, end) = (range.start / per_unit * unit, range.end / per_unit * unit);
            bytes.extend_from_slice(&outer[start..end]);
        }
    }
    let part = tensor.like(bytes.into(), &Device::Cpu, part)?;
    Ok(Stored::Quantized(part))
}

fn check_blocks(format: GgmlDType, ranges: &[Range<usize>]) -> Result<()> {
    let block = format.block_size();
    let inside = |at: usize| !at.is_multiple_of(block);
    match ranges.iter().find(|r| inside(r.start) || inside(r.end)) {
        Some(range) => bail!(
            "{format:?} has blocks of {block} columns, which the part {range:?} of {} columns would split; \
             the columns must be a multiple of {block} times the number of ranks: use fewer ranks, or a format with smaller blocks",
            range.len()
        ),
        None => Ok(()),
    }
}

/// The parts of tensors that a rank has, by name, each with the shape of the whole tensor. It has all of the others.
pub(in crate::blocks) type Cuts = HashMap<String, (Vec<usize>, Cut)>;

/// A source that gives the parts of one rank.
pub(in crate::blocks) struct RankSource<'a> {
    pub(in crate::blocks) source: &'a mut dyn WeightSource,
    pub(in crate::blocks) cuts: Cuts,
}

impl WeightSource for RankSource<'_> {
    fn contains(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let whole = self.source.shape(name)?;
        Some(match self.cuts.get(name) {
            Some((_, cut)) => Shape::from(cut.dims(whole.dims())),
            None => whole,
        })
    }

    fn whereabouts(&self, name: &str) -> String {
        self.source.whereabouts(name)
    }

    fn beside(&self, name: &str) -> Result<Option<LowRank>> {
        let beside = self.source.beside(name)?;
        match (beside, self.cuts.get(name)) {
            (Some(beside), Some((_, cut))) => beside.cut(cut).map(Some),
            (beside, _) => Ok(beside),
        }
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        match self.cuts.get(wanted.name) {
            None => self.source.read(wanted),
            Some((whole, Cut::Zeros)) => Box::pin(ready(zeros(whole))),
            Some((whole, cut)) => {
                let wanted = Wanted {
                    shape: whole,
                    ..wanted
                };
                self.source.read_part(wanted, cut)
            }
        }
    }
}

/// As [`Cut::of`], with the tensor's name in errors.
pub(super) fn part_of(whole: &Stored, wanted: Wanted, cut: &Cut) -> Result<Stored> {
    let part = cut.of(whole);
    part.with_context(|| format!("the part of one rank of tensor {:?}", wanted.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::QTensor;

    /// The parts of a tensor, dense or of blocks, put together again.
    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn parts_are_the_whole() -> Result<()> {
        let whole = Tensor::arange(0f32, 6. * 512., &Device::Cpu)?;
        let whole = ((whole * 0.37)?.sin()? * 3.)?.reshape((6, 512))?;
        for format in [
            GgmlDType::F32,
            GgmlDType::F16,
            GgmlDType::Q8_0,
            GgmlDType::Q4_0,
            GgmlDType::Q4K,
            GgmlDType::Q6K,
        ] {
            let tensor = QTensor::quantize(&whole, format)?;
            let exact = tensor.dequantize(&Device::Cpu)?;
            let dense = |stored: &Stored| match stored {
                Stored::Dense(tensor) => Ok(tensor.clone()),
                Stored::Quantized(tensor) => tensor.dequantize(&Device::Cpu),
            };
            for stored in [Stored::from(tensor), exact.clone().into()] {
                let halves = [0..256, 256..512].map(|range| Cut::columns(vec![range]).of(&stored));
                let halves = halves.into_iter().map(|half| dense(&half?));
                let halves = halves.collect::<Result<Vec<_>>>()?;
                let columns = Tensor::cat(&halves, 1)?;
                assert_eq!(
                    columns.to_vec2::<f32>()?,
                    exact.to_vec2::<f32>()?,
                    "{format:?}"
                );
                let rows = dense(&Cut::rows(vec![4..6, 1..2]).of(&stored)?)?;
                let expected = exact.index_select(&Tensor::new(&[4u32, 5, 1], &Device::Cpu)?, 0)?;
                assert_eq!(
                    rows.to_vec2::<f32>()?,
                    expected.to_vec2::<f32>()?,
                    "{format:?}"
                );
                for cut in [Cut::columns(vec![0..513]), Cut::rows(vec![0..1, 6..7])] {
                    assert!(cut.of(&stored).is_err(), "{cut:?}");
                }
            }
        }
        let tensor = Stored::from(QTensor::quantize(&whole, GgmlDType::Q4K)?);
        let err = Cut::columns(vec![0..128])
            .of(&tensor)
            .unwrap_err()
            .to_string();
        assert!(
            err.contains("blocks of 256") && err.contains("0..128"),
            "{err}"
        );
        assert_eq!(Cut::Zeros.of(&tensor)?.shape().dims(), [6, 512]);
        Ok(())
    }
}
