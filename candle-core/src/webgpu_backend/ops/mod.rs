//! From layouts to dispatches: kernel selection, workgroup counts, parameters. One file per op family, with its shader of the same name in
//! `shaders/`.

pub(super) mod conv;
pub(super) mod copy2d;
pub(super) mod elementwise;
pub(super) mod fill;
pub mod fused;
pub(super) mod indexing;
pub(super) mod matmul;
pub(super) mod pool;
pub(super) mod quantized;
pub(super) mod random;
pub(super) mod reduce;
pub(crate) mod scan;
pub(super) mod scatter;
pub(crate) mod sort;
pub(super) mod upsample;
mod windows;

use super::device::WebGpuDevice;
use super::kernel::{Dims, Elem, Params, Shader};
use super::queue::Binding;
use super::storage::WebGpuStorage;
use crate::fault_codes::EXPERT_ROWS;
use crate::{Error, Layout, Result};

/// Invocations in a workgroup of kernels without a reason for another number.
const WORKGROUP: u32 = 256;

/// Maximum number of steps of a loop over a size that the caller chooses, in one invocation. Mesa's llvmpipe ends all loops of an
/// invocation after 65,535 iterations in total, without an error, and browsers lose a device whose dispatch takes too long. `loops.rs` has
/// the bound of each loop.
const MOST_STEPS: usize = 1 << 15;

/// Splits `0..len` into ranges of at most `most`.
fn ranges(len: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let most = most.max(1);
    (0..len)
        .step_by(most)
        .map(move |first| first..len.min(first + most))
}

/// Splits a window of `[height, width]` into parts of at most `most` elements, by their rows and columns.
fn window_parts([height, width]: [usize; 2], most: usize) -> Vec<[std::ops::Range<usize>; 2]> {
    let columns = || ranges(width, most);
    let rows = ranges(height, most / width.clamp(1, most));
    rows.flat_map(|rows| columns().map(move |columns| [rows.clone(), columns]))
        .collect()
}

impl Shader {
    /// A kernel that computes each element of `dst` independently: `body` has the function `element_at(i)`, `p.len` is the number of
    /// elements.
    fn each_element<P: Params>(self, body: &str) -> Self {
        let main = include_str!("../shaders/each_element.wgsl");
        self.constant("WG", WORKGROUP)
            .body::<P>(&(body.to_string() + main))
    }
}

impl WebGpuDevice {
    /// The grid of a kernel whose invocations each write a word of `len` elements.
    fn grid_of_words(&self, len: usize, elem: Elem) -> [u32; 3] {
        self.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP)
    }
}

/// `N` operands of the same shape, in the fewest dimensions that their strides allow.
///
/// Dimensions of size 1 are dropped, and neighbours that can be merged in every operand are merged, so that most layouts end up with one
/// dimension.
#[derive(Debug, Clone, Copy)]
struct Views<const N: usize> {
    /// The number of elements.
    len: u32,
    /// Dimensions used; 0 if every operand is contiguous.
    rank: usize,
    dims: Dims,
    strides: [Dims; N],
    offsets: [u32; N],
}

impl<const N: usize> Views<N> {
    /// # Errors
    /// More than eight dimensions that cannot be merged, or offsets beyond u32.
    fn new(layouts: [&Layout; N]) -> Result<Self> {
        let shape = layouts[0].dims();
        debug_assert!(layouts.iter().all(|l| l.dims() == shape));
        let mut dims: Vec<usize> = Vec::with_capacity(shape.len());
        let mut strides: [Vec<usize>; N] = std::array::from_fn(|_| Vec::with_capacity(shape.len()));
        for (axis, &size) in shape.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let merges = !dims.is_empty()
                && (0..N)
                    .all(|n| strides[n].last().copied() == Some(layouts[n].stride()[axis] * size));
            if merges {
                *dims.last_mut().expect("not empty") *= size;
                for n in 0..N {
                    *strides[n].last_mut().expect("not empty") = layouts[n].stride()[axis];
                }
            } else {
                dims.push(size);
                for n in 0..N {
                    strides[n].push(layouts[n].stride()[axis]);
                }
            }
        }
        if dims.len() > 8 {
            return Err(Error::WebGpu(format!(
                "a layout of shape {shape:?} has {} dimensions that cannot be merged; the limit is 8: \
                 call contiguous() on part of it first",
                dims.len()
            ))
            .bt());
        }
        let contiguous = match dims.len() {
            0 => true,
            1 => strides.iter().all(|s| s[0] == 1),
            _ => false,
        };
        let mut views = Self {
            len: index(shape.iter().product())?,
            rank: if contiguous { 0 } else { dims.len() },
            dims: [1; 8],
            strides: [[0; 8]; N],
            offsets: [0; N],
        };
        for (axis, size) in dims.iter().enumerate() {
            views.dims[axis] = index(*size)?;
        }
        for (n, layout) in layouts.iter().enumerate() {
            views.offsets[n] = index(layout.start_offset())?;
            for (axis, stride) in strides[n].iter().enumerate() {
                views.strides[n][axis] = index(*stride)?;
            }
        }
        Ok(views)
    }
}

/// A count or offset as kernels' type.
fn index(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| {
        Error::WebGpu(format!(
            "a tensor reaches element {value}, past the WebGPU backend's limit of {}",
            u32::MAX
        ))
        .bt()
    })
}

/// A tensor as `(rows, len)`, rows of its last dimension: a view if the rows have a single stride, else a copy.
fn as_rows(
    (x, layout): (&WebGpuStorage, &Layout),
    (rows, len): (usize, usize),
) -> Result<(WebGpuStorage, Layout)> {
    let Some(step) = layout.row_step() else {
        return Ok((
            elementwise::copy(x, layout)?,
            Layout::contiguous((rows, len)),
        ));
    };
    let last = layout.stride().last().copied().unwrap_or(1);
    let strides = vec![step, last];
    let layout = Layout::new((rows, len).into(), strides, layout.start_offset());
    Ok((x.share(), layout))
}

/// A storage as a kernel's binding.
pub(super) fn bind(storage: &WebGpuStorage) -> Binding<'_> {
    storage.binding()
}

#[cfg(test)]
mod tests {
    use super::Views;
    use crate::{Layout, Shape};

    fn layout(dims: &[usize], stride: &[usize], offset: usize) -> Layout {
        Layout::new(Shape::from(dims), stride.to_vec(), offset)
    }

    #[test]
    fn contiguous_layouts_merge_to_nothing() {
        let plain = layout(&[2, 1, 3, 4], &[12, 12, 4, 1], 5);
        let views = Views::new([&plain, &plain]).unwrap();
        assert_eq!((views.rank, views.len, views.offsets), (0, 24, [5, 5]));
    }

    #[test]
    fn dimensions_merge_only_where_all_operands_agree() {
        let plain = layout(&[2, 3, 4], &[12, 4, 1], 0);
        let broadcast = layout(&[2, 3, 4], &[0, 0, 1], 0);
        let views = Views::new([&plain, &broadcast]).unwrap();
        assert_eq!(views.rank, 2);
        assert_eq!(&views.dims[..2], &[6, 4]);
        assert_eq!(&views.strides[0][..2], &[4, 1]);
        assert_eq!(&views.strides[1][..2], &[0, 1]);
        let transposed = layout(&[4, 3], &[1, 4], 0);
        assert_eq!(Views::new([&transposed]).unwrap().rank, 2);
    }
}
