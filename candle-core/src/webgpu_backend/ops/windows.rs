//! Ops on what one binding does not reach.
//!
//! A kernel binds at most `max_storage_buffer_binding_size` bytes of one buffer. Where an op's operands are larger, its result is made
//! in parts: boxes over the leading dimensions of the result, each so small that a *window* of every operand reaches what the box
//! needs. The op then runs on windows as it does on whole storages: the same kernels, with layouts that are narrowed and whose
//! offsets count from the window's start. Boxes are found by halving, along the dimension that makes a span longest.
//!
//! What spans two buffers, or is small but spread too far for a window, is made contiguous first. A part of the result that is no aligned
//! range goes through a temporary buffer.

use super::copy2d::{copy2d, Rows};
use super::elementwise;
use crate::backend::BackendStorage;
use crate::webgpu_backend::limits::WINDOW_ALIGN;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{Error, Layout, Result, Shape};

/// A storage and what of it an op reads.
pub(super) type Operand<'a> = (&'a WebGpuStorage, &'a Layout);

/// Whether kernels can bind all of these as they are: the common case, in which there is nothing to split.
pub(super) fn fit<const N: usize>(storages: [&WebGpuStorage; N]) -> bool {
    storages.iter().all(|storage| storage.fits_binding())
}

/// The bytes that a window holds at least, wherever they start.
pub(super) fn window_bytes(device: &WebGpuDevice) -> usize {
    (device
        .max_binding()
        .saturating_sub(WINDOW_ALIGN)
        .max(WINDOW_ALIGN)) as usize
}

/// An op whose result can be made in parts.
pub(super) struct Split<'a, const N: usize> {
    pub(super) op: &'static str,
    /// The leading dimensions of the result, along which it may be cut. It is contiguous.
    pub(super) dims: &'a [usize],
    /// Elements of the result at each place of `dims`.
    pub(super) unit: usize,
    /// Bytes of the largest buffer that a part takes, for each place.
    pub(super) bytes: usize,
    /// What is read. The leading dimensions are `dims`; all of those after them are needed at each place.
    pub(super) inputs: [Operand<'a>; N],
    /// Whether the kernel writes from any element of a buffer on and leaves others as they are. Its inputs have no dimensions
    /// beyond `dims`, so that copies, which are made by such a kernel, need no copies themselves.
    pub(super) anywhere: bool,
}

/// A part of a result, and windows of what it is made of.
pub(super) struct Part<const N: usize> {
    /// Where the box starts.
    pub(super) start: Vec<usize>,
    /// How many places it has.
    pub(super) dims: Vec<usize>,
    /// Where the part goes, contiguous, from element `offset` on.
    pub(super) dst: WebGpuStorage,
    /// 0 unless the op writes anywhere.
    pub(super) offset: usize,
    /// The inputs, narrowed to the box.
    pub(super) inputs: [(WebGpuStorage, Layout); N],
}

/// The distance from the first to behind the last element.
pub(super) fn extent(dims: &[usize], strides: &[usize]) -> usize {
    let steps = dims.iter().zip(strides);
    1 + steps
        .map(|(len, stride)| len.saturating_sub(1) * stride)
        .sum::<usize>()
}

/// The dimension whose elements reach furthest, if any does.
pub(super) fn longest(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let reach = |dim: usize| dims[dim].saturating_sub(1) * strides[dim];
    let longest = (0..dims.len()).rev().max_by_key(|dim| reach(*dim))?;
    (reach(longest) > 0).then_some(longest)
}

/// A layout narrowed in its leading dimensions.
fn boxed(layout: &Layout, start: &[usize], dims: &[usize]) -> Layout {
    let steps = start.iter().zip(layout.stride());
    let offset = steps.map(|(start, stride)| start * stride).sum::<usize>();
    let mut narrowed = layout.dims().to_vec();
    narrowed[..dims.len()].copy_from_slice(dims);
    Layout::new(
        Shape::from(narrowed),
        layout.stride().to_vec(),
        layout.start_offset() + offset,
    )
}

fn moved(layout: &Layout, offset: usize) -> Layout {
    Layout::new(layout.shape().clone(), layout.stride().to_vec(), offset)
}

/// The elements that are there once, however often a layout shows them.
fn distinct(layout: &Layout) -> Layout {
    let dims = layout.dims().iter().zip(layout.stride());
    let dims: Vec<_> = dims
        .map(|(len, stride)| if *stride == 0 { 1 } else { *len })
        .collect();
    Layout::new(
        Shape::from(dims),
        layout.stride().to_vec(),
        layout.start_offset(),
    )
}

/// A window of what `layout` covers, and the layout in it.
pub(super) fn window((storage, layout): Operand<'_>) -> Option<(WebGpuStorage, Layout)> {
    let extent = extent(layout.dims(), layout.stride());
    let (window, offset) = storage.window(layout.start_offset(), extent)?;
    Some((window, moved(layout, offset)))
}

/// The elements of an operand side by side in a storage of their own.
fn together((storage, layout): Operand<'_>) -> Result<(WebGpuStorage, Layout)> {
    let once = distinct(layout);
    let copy = elementwise::copy(storage, &once)?;
    let steps = Layout::contiguous(once.shape());
    let stride = steps.stride().iter().zip(layout.stride());
    let stride = stride.map(|(new, old)| if *old == 0 { 0 } else { *new });
    let layout = Layout::new(layout.shape().clone(), stride.collect(), 0);
    Ok((copy, layout))
}

/// A window of what `layout` covers, or a copy where there is none.
pub(super) fn reach(operand: Operand<'_>) -> Result<(WebGpuStorage, Layout)> {
    match window(operand) {
        Some(window) => Ok(window),
        None => together(operand),
    }
}

/// Runs `f` on windows that together cover what `layout` does, each place once.
pub(super) fn each(
    storage: &WebGpuStorage,
    layout: &Layout,
    f: &mut dyn FnMut(&WebGpuStorage, &Layout) -> Result<()>,
) -> Result<()> {
    if let Some((window, layout)) = window((storage, layout)) {
        return f(&window, &layout);
    }
    let Some(dim) = longest(layout.dims(), layout.stride()) else {
        return Err(too_long("window", storage.device(), storage.len()));
    };
    let [low, high] = halves(layout, dim)?;
    each(storage, &low, f)?;
    each(storage, &high, f)
}

/// The first and the second half of a layout along `dim`, which has two elements at least.
pub(super) fn halves(layout: &Layout, dim: usize) -> Result<[Layout; 2]> {
    let len = layout.dims()[dim];
    Ok([
        layout.narrow(dim, 0, len / 2)?,
        layout.narrow(dim, len / 2, len - len / 2)?,
    ])
}

fn too_long(op: &str, device: &WebGpuDevice, bytes: usize) -> Error {
    Error::WebGpu(format!(
        "{op}: a row (or plane) that cannot be split takes {bytes} bytes, but {} binds at most {}: use a smaller dtype or shape",
        device.name(),
        window_bytes(device)
    ))
    .bt()
}

impl<const N: usize> Split<'_, N> {
    /// Makes the result in `dst`, from element `offset` on, by `f` for each part.
    ///
    /// # Errors
    /// What is needed for a single place is more than a binding reaches, and what `f` and the device give.
    pub(super) fn run(
        &self,
        dst: &WebGpuStorage,
        offset: usize,
        f: &mut dyn FnMut(Part<N>) -> Result<()>,
    ) -> Result<()> {
        if self.dims.contains(&0) || self.unit == 0 {
            return Ok(());
        }
        // Where each single place is spread further than a binding reaches, every part would have to be copied together, in
        // pieces that fit the result badly. One copy of all does it better.
        let mut copies = [const { None }; N];
        let cuts = self.dims.len();
        for (copy, (storage, layout)) in copies.iter_mut().zip(self.inputs) {
            let size = storage.dtype().size_in_bytes();
            let spread = extent(&layout.dims()[cuts..], &layout.stride()[cuts..]) * size;
            if !storage.fits_binding() && spread > window_bytes(dst.device()) {
                *copy = Some(together((storage, layout))?);
            }
        }
        let inputs = std::array::from_fn(|i| match &copies[i] {
            Some((storage, layout)) => (storage, layout),
            None => self.inputs[i],
        });
        let target = Target {
            split: self,
            inputs,
            dst,
            offset,
        };
        target.halve(vec![0; cuts], self.dims.to_vec(), f)
    }
}

/// A split on its way.
struct Target<'a, const N: usize> {
    split: &'a Split<'a, N>,
    inputs: [Operand<'a>; N],
    dst: &'a WebGpuStorage,
    offset: usize,
}

impl<const N: usize> Target<'_, N> {
    fn halve(
        &self,
        start: Vec<usize>,
        dims: Vec<usize>,
        f: &mut dyn FnMut(Part<N>) -> Result<()>,
    ) -> Result<()> {
        let Some(dim) = self.cut(&start, &dims)? else {
            return self.make(start, dims, f);
        };
        let first = self.middle(dim, dims[dim]);
        let (mut low, mut high, mut high_start) = (dims.clone(), dims, start.clone());
        low[dim] = first;
        high[dim] -= first;
        high_start[dim] += first;
        self.halve(start, low, f)?;
        self.halve(high_start, high, f)
    }

    /// Elements of the result from one place of `dim` to the next.
    fn stride(&self, dim: usize) -> usize {
        self.split.unit * self.split.dims[dim + 1..].iter().product::<usize>()
    }

    /// The half of `len`, or near it a number after which the result is aligned.
    fn middle(&self, dim: usize, len: usize) -> usize {
        let step = (self.stride(dim) * self.dst.dtype().size_in_bytes()) as u64;
        // 256 over the greatest common divisor: the lowest set bit, up to 256.
        let aligned = (WINDOW_ALIGN >> step.trailing_zeros().min(WINDOW_ALIGN.ilog2())) as usize;
        if len > aligned {
            let last = (len - 1) / aligned * aligned;
            return (len / 2).next_multiple_of(aligned).min(last);
        }
        len / 2
    }

    /// The dimension to cut a box along, if it is too large for one part.
    fn cut(&self, start: &[usize], dims: &[usize]) -> Result<Option<usize>> {
        let Split { op, anywhere, .. } = *self.split;
        let device = self.dst.device();
        let most = window_bytes(device);
        let count: usize = dims.iter().product();
        let outermost = dims.iter().position(|len| *len > 1);
        if count * self.split.bytes > most {
            return match outermost {
                None => Err(too_long(op, device, self.split.bytes)),
                some => Ok(some),
            };
        }
        if anywhere && outermost.is_some() && self.is_range(dims) {
            // A result in two buffers is cut between them.
            let (first, len) = self.range(start, dims);
            if self.dst.window(first, len).is_none() {
                return Ok(outermost);
            }
        }
        for (storage, layout) in self.inputs {
            let layout = boxed(layout, start, dims);
            if window((storage, &layout)).is_some() {
                continue;
            }
            let size = storage.dtype().size_in_bytes();
            let in_two_buffers = extent(layout.dims(), layout.stride()) * size <= most;
            if in_two_buffers && !anywhere {
                continue;
            }
            let cuts = dims.len();
            if let Some(dim) = longest(dims, &layout.stride()[..cuts]) {
                return Ok(Some(dim));
            }
            let bytes = distinct(&layout).shape().elem_count() * size;
            if anywhere || bytes > most {
                return Err(too_long(op, device, bytes));
            }
        }
        Ok(None)
    }

    /// Whether a box is one range of the result.
    fn is_range(&self, dims: &[usize]) -> bool {
        let mut whole = dims.iter().zip(self.split.dims).rev();
        whole.by_ref().find(|(len, all)| len != all);
        whole.all(|(len, _)| *len == 1)
    }

    /// The first element of a box in `dst`, and how many it has.
    fn range(&self, start: &[usize], dims: &[usize]) -> (usize, usize) {
        let first = (0..start.len()).map(|dim| start[dim] * self.stride(dim));
        let len = dims.iter().product::<usize>() * self.split.unit;
        (self.offset + first.sum::<usize>(), len)
    }

    /// Runs `f` on one box.
    fn make(
        &self,
        start: Vec<usize>,
        dims: Vec<usize>,
        f: &mut dyn FnMut(Part<N>) -> Result<()>,
    ) -> Result<()> {
        let mut inputs = Vec::with_capacity(N);
        for (storage, layout) in self.inputs {
            inputs.push(reach((storage, &boxed(layout, &start, &dims)))?);
        }
        let Ok(inputs) = <[_; N]>::try_from(inputs) else {
            return Err(Error::Msg("an input for each operand".into()).bt());
        };
        let (first, len) = self.range(&start, &dims);
        let direct = match (self.is_range(&dims), self.split.anywhere) {
            (true, true) => self.dst.window(first, len),
            (true, false) => self.dst.aligned_window(first, len).map(|dst| (dst, 0)),
            (false, _) => None,
        };
        if let Some((dst, offset)) = direct {
            return f(Part {
                start,
                dims,
                dst,
                offset,
                inputs,
            });
        }
        let device = self.dst.device();
        let made = device.alloc(len, self.dst.dtype(), self.split.op)?;
        f(Part {
            start: start.clone(),
            dims: dims.clone(),
            dst: made.share(),
            offset: 0,
            inputs,
        })?;
        self.place(&made, first, &dims)
    }

    /// Copies a box, contiguous in `made`, to where it belongs; its first element goes to `first`.
    fn place(&self, made: &WebGpuStorage, first: usize, dims: &[usize]) -> Result<()> {
        // Dimensions that are there in full are one with the one before them.
        let inner = (0..dims.len())
            .rev()
            .find(|dim| dims[*dim] != self.split.dims[*dim])
            .unwrap_or(0);
        let run = dims[inner..].iter().product::<usize>() * self.split.unit;
        let (outer, rows) = match dims[..inner].split_last() {
            Some((rows, outer)) => (outer, *rows),
            None => (&[][..], 1),
        };
        let step = match inner.checked_sub(1) {
            Some(dim) => self.stride(dim),
            None => run,
        };
        for block in 0..outer.iter().product() {
            let mut rest: usize = block;
            let mut dst_offset = first;
            for dim in (0..outer.len()).rev() {
                dst_offset += rest % outer[dim] * self.stride(dim);
                rest /= outer[dim];
            }
            let rows = Rows {
                d1: rows,
                d2: run,
                src_stride: run,
                dst_stride: step,
                src_offset: block * rows * run,
                dst_offset,
            };
            copy2d(made, &mut self.dst.share(), rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{distinct, extent, longest};
    use crate::Layout;

    #[test]
    fn spans_count_what_lies_between() {
        let l = Layout::contiguous((4, 6)).transpose(0, 1).unwrap();
        assert_eq!(extent(l.dims(), l.stride()), 24);
        assert_eq!(longest(l.dims(), l.stride()), Some(1));
        let row = l.narrow(1, 2, 1).unwrap();
        assert_eq!(extent(row.dims(), row.stride()), 6);
        assert_eq!(longest(&[1, 1], &[6, 1]), None);
        let wide = Layout::contiguous((1, 6)).broadcast_as((5, 6)).unwrap();
        assert_eq!(distinct(&wide).dims(), [1, 6]);
        assert_eq!(longest(wide.dims(), wide.stride()), Some(1));
    }
}
