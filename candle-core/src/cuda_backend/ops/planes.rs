//! Images: tensors `(batch, channels, height, width)` of any strides.

use crate::cuda_backend::views::index_type;
use crate::Layout;

/// Images in the kernels' form; a signal `(batch, channels, length)` has a height of 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    pub(super) batch: usize,
    pub(super) channels: usize,
    /// Height and width.
    pub(super) size: [usize; 2],
    pub(super) offset: usize,
    /// Strides of batch, channels, height and width.
    pub(super) strides: [usize; 4],
}

impl Planes {
    /// The tensor's methods ensure three or four dimensions.
    pub(super) fn new(layout: &Layout) -> Self {
        let (dims, strides) = match (layout.dims(), layout.stride()) {
            (&[b, c, h, w], &[sb, sc, sh, sw]) => ([b, c, h, w], [sb, sc, sh, sw]),
            (&[b, c, w], &[sb, sc, sw]) => ([b, c, 1, w], [sb, sc, 0, sw]),
            _ => ([0; 4], [0; 4]),
        };
        Self {
            batch: dims[0],
            channels: dims[1],
            size: [dims[2], dims[3]],
            offset: layout.start_offset(),
            strides,
        }
    }

    /// Number of planes in all images.
    pub(super) fn count(&self) -> usize {
        self.batch * self.channels
    }

    /// The offset of the first element and the strides, in the order of the kernels' declarations.
    pub(super) fn places(&self) -> [u64; 5] {
        let [batch, channel, row, column] = self.strides;
        [self.offset, batch, channel, row, column].map(|n| n as u64)
    }

    /// The integer type that covers every element and counts to `count`, with room for one block more.
    pub(super) fn index(&self, count: usize) -> &'static str {
        let dims = [self.batch, self.channels, self.size[0], self.size[1]];
        let steps = dims.iter().zip(self.strides);
        let last = steps.fold(self.offset, |last, (size, stride)| {
            last.saturating_add(size.saturating_sub(1).saturating_mul(stride))
        });
        index_type(last.max(count) > (u32::MAX >> 1) as usize)
    }
}
