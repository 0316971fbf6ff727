//! Ops on operands that exceed one binding.
//!
//! A kernel binds at most `max_storage_buffer_binding_size` bytes of one buffer. If an op's operands are larger, its result is computed in
//! parts: boxes over the leading dimensions of the result, each so small that a *window* of every operand covers what the box needs. The op
//! then runs on windows as it does on whole storages: the same kernels, with layouts that are narrowed and whose offsets count from the
//! window's start. Boxes are found by halving, along the dimension that makes an extent longest.
//!
//! Operands that span two buffers, or are small but spread too far for a window, are made contiguous first. A part of the result that is
//! not an aligned range is written to a temporary buffer and copied.

use super::copy2d::{copy2d, Rows};
use super::elementwise;
use crate::backend::BackendStorage;
use crate::webgpu_backend::limits::WINDOW_ALIGN;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{Error, Layout, Result, Shape};

/// A storage and the layout of the elements that an op reads.
pub(super) type Operand<'a> = (&'a WebGpuStorage, &'a Layout);

/// Whether kernels can bind all of these directly: the common case, in which nothing is split.
pub(super) fn fit<const N: usize>(storages: [&WebGpuStorage; N]) -> bool {
    storages.iter().all(|storage| storage.fits_binding())
}

/// Minimum number of bytes that a window holds, wherever they start.
pub(super) fn window_bytes(device: &WebGpuDevice) -> usize {
    (device
        .max_binding()
        .saturating_sub(WINDOW_ALIGN)
        .max(WINDOW_ALIGN)) as usize
}

/// An op whose result can be computed in parts.
pub(super) struct Split<'a, const N: usize> {
    pub(super) op: &'static str,
    /// The leading dimensions of the result, along which it may be split. It is contiguous.
    pub(super) dims: &'a [usize],
    /// Elements of the result at each index of `dims`.
    pub(super) unit: usize,
    /// Bytes of the largest buffer that a part needs, for each index.
    pub(super) bytes: usize,
    /// The inputs. Their leading dimensions are `dims`; all of the dimensions after them are needed at each index.
    pub(super) inputs: [Operand<'a>; N],
    /// Whether the kernel writes from any element of a buffer on and preserves others. Its inputs have no dimensions beyond `dims`, so that
    /// copies, which use such a kernel, need no copies themselves.
    pub(super) anywhere: bool,
}

/// A part of a result, and windows of its inputs.
pub(super) struct Part<const N: usize> {
    /// The start of the box.
    pub(super) start: Vec<usize>,
    /// The size of the box.
    pub(super) dims: Vec<usize>,
    /// The destination of the part, contiguous, from element `offset` on.
    pub(super) dst: WebGpuStorage,
    /// 0 unless `anywhere` is set.
    pub(super) offset: usize,
    /// The inputs, narrowed to the box.
    pub(super) inputs: [(WebGpuStorage, Layout); N],
}

/// The distance from the first element to the end of the last.
pub(super) fn extent(dims: &[usize], strides: &[usize]) -> usize {
    let steps = dims.iter().zip(strides);
    1 + steps
        .map(|(len, stride)| len.saturating_sub(1) * stride)
        .sum::<usize>()
}

/// The dimension with the largest extent, if any has one.
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

/// The distinct elements of a layout, each once.
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

/// A window that covers the elements of `layout`, and the layout within it.
pub(super) fn window((storage, layout): Operand<'_>) -> Option<(WebGpuStorage, Layout)> {
    let extent = extent(layout.dims(), layout.stride());
    let (window, offset) = storage.window(layout.start_offset(), extent)?;
    Some((window, moved(layout, offset)))
}

/// Copies the elements of an operand contiguously to a separate storage.
fn together((storage, layout): Operand<'_>) -> Result<(WebGpuStorage, Layout)> {
    let once = distinct(layout);
    let copy = elementwise::copy(storage, &once)?;
    let steps = Layout::contiguous(once.shape());
    let stride = steps.stride().iter().zip(layout.stride());
    let stride = stride.map(|(new, old)| if *old == 0 { 0 } else { *new });
    let layout = Layout::new(layout.shape().clone(), stride.collect(), 0);
    Ok((copy, layout))
}

/// A window that covers the elements of `layout`, or a copy if there is none.
pub(super) fn reach(operand: Operand<'_>) -> Result<(WebGpuStorage, Layout)> {
    match window(operand) {
        Some(window) => Ok(window),
        None => together(operand),
    }
}

/// Runs `f` on windows that together cover the elements of `layout`, each index once.
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

/// The first and the second half of a layout along `dim`, which has at least two elements.
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
    /// Computes the result in `dst`, from element `offset` on, with one call of `f` for each part.
    ///
    /// # Errors
    /// If the inputs of a single index exceed a binding; errors of `f` and of the device.
    pub(super) fn run(
        &self,
        dst: &WebGpuStorage,
        offset: usize,
        f: &mut dyn FnMut(Part<N>) -> Result<()>,
    ) -> Result<()> {
        if self.dims.contains(&0) || self.unit == 0 {
            return Ok(());
        }
        // If the inputs of each single index exceed a binding, every part would have to be copied, in chunks that suit the result badly.
        // One copy of everything is better.
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

/// A split in progress.
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

    /// Stride of the result along `dim`, in elements.
    fn stride(&self, dim: usize) -> usize {
        self.split.unit * self.split.dims[dim + 1..].iter().product::<usize>()
    }

    /// Half of `len`, or a number near it after which the result is aligned.
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

    /// The dimension along which to split a box, if it is too large for one part.
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
            // A result in two buffers is split between them.
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

    /// Whether a box is one contiguous range of the result.
    fn is_range(&self, dims: &[usize]) -> bool {
        let mut whole = dims.iter().zip(self.split.dims).rev();
        whole.by_ref().find(|(len, all)| len != all);
        whole.all(|(len, _)| *len == 1)
    }

    /// The offset of a box in `dst`, and its number of elements.
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

    /// Copies a box, contiguous in `made`, to its position in the result; its first element goes to `first`.
    fn place(&self, made: &WebGpuStorage, first: usize, dims: &[usize]) -> Result<()> {
        // Complete dimensions can be merged with the one before them.
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
    fn spans_include_gaps() {
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
