//! Operands with the channels of a position adjacent, as tiles load them.

use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK};
use crate::cuda_backend::ops::elementwise::Ordered;
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Bytes that are loaded at once.
pub(super) const COPY: usize = 16;
/// Channels that a block packs, and maximum number of positions.
const CHUNK: usize = 64;
const POSITIONS: usize = 64;

/// A tensor `(outer, inner, channels, rows, columns)` of any strides: for an input, images and groups; for a kernel, groups and channels of
/// the result.
pub(super) struct Unpacked<'a> {
    pub(super) storage: &'a CudaStorage,
    pub(super) offset: usize,
    pub(super) dims: [usize; 5],
    pub(super) strides: [usize; 5],
}

/// The same with channels of stride 1, padded to whole copies, each of which is aligned.
pub(super) struct Packed<'a> {
    pub(super) storage: Ordered<'a>,
    pub(super) offset: usize,
    pub(super) outer: usize,
    pub(super) inner: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) channels: usize,
}

impl<'a> Unpacked<'a> {
    /// The operand without a copy if it is already packed; otherwise a copy.
    pub(super) fn pack(&self, op: &'static str) -> Result<Packed<'a>> {
        let size = self.storage.dtype().size_in_bytes();
        let unit = COPY / size;
        let [_, _, channels, _, width] = self.dims;
        let whole = |n: usize| n.is_multiple_of(unit);
        let [outer, inner, channel, row, column] = self.strides;
        let steps = [(0, outer), (1, inner), (3, row), (4, column)];
        let steps_fit = steps
            .iter()
            .all(|(d, step)| self.dims[*d] == 1 || whole(*step));
        let start = self.storage.address() + (self.offset * size) as u64;
        if channel == 1 && whole(channels) && steps_fit && start.is_multiple_of(COPY as u64) {
            return Ok(Packed {
                storage: Ordered::Given(self.storage),
                offset: self.offset,
                outer,
                inner,
                row,
                column,
                channels,
            });
        }
        let channels = channels.next_multiple_of(unit);
        let positions = self.dims[3] * width;
        Ok(Packed {
            storage: Ordered::Made(self.copy(channels, op)?),
            offset: 0,
            outer: self.dims[1] * positions * channels,
            inner: positions * channels,
            row: width * channels,
            column: channels,
            channels,
        })
    }

    fn copy(&self, channels: usize, op: &'static str) -> Result<CudaStorage> {
        let device = self.storage.device();
        let [outers, inners, c, height, width] = self.dims;
        let [outer, inner, channel, row, column] = self.strides;
        let positions = height * width;
        let images = outers * inners;
        let dtype = self.storage.dtype();
        let dst = device.new_storage(images * positions * channels, dtype, op)?;
        let together = positions.min(POSITIONS);
        let kernel = Kernel::new(source!("conv_pack"))
            .define("T", bits_type(dtype.size_in_bytes()))
            .define("CHUNK", CHUNK)
            .define("POSITIONS", together)
            .define("LINEAR", height == 1 || row == width * column);
        let numbers = [
            self.offset,
            outer,
            inner,
            channel,
            row,
            column,
            inners,
            positions,
            width,
            c,
            channels,
        ];
        let blocks = positions.div_ceil(together) * channels.div_ceil(CHUNK) * images;
        let args = Args::new()
            .storage(self.storage)
            .storage(&dst)
            .value(numbers.map(|n| n as u64));
        device.launch(&kernel, Grid::of_rows(blocks, BLOCK), args)?;
        Ok(dst)
    }
}
