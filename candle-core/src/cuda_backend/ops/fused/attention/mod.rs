//! Scaled dot-product attention with grouped heads (Vaswani et al., arXiv 1706.03762; Ainslie et al., arXiv 2305.13245).
//!
//! Few queries, as in generation, use a kernel that reads each key once for all heads that share it ([`decode`]); more use tiles of queries
//! and keys: with matrix instructions if dtypes and heads allow it ([`flash`]), else in f32 ([`tiles`]). All keep a running maximum and sum
//! instead of a row of scores (Milakov and Gimelshein, arXiv 1805.02867). With too few blocks, they split the keys into parts, which a
//! small kernel joins (Flash-Decoding, Dao et al. 2023). Memory does not grow with queries times keys. The host's arguments depend only on
//! the sizes of the tensors, not on positions or lengths on the device.

mod decode;
mod flash;
mod rules;
mod tiles;

use super::{address, address_or_null, aligned, float_type, Operand, SdpaParams};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::ops::elementwise;
use crate::cuda_backend::CudaStorage;
use crate::fused::attention::FAR;
use crate::{DType, Result};
use rules::bits;

const OP: &str = "sdpa";

/// `struct HeadSteps` of `kernels/attention.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct HeadSteps {
    batch: u64,
    head: u64,
    seq: u64,
}

/// `struct Attention` of `kernels/attention.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    q: u64,
    k: u64,
    v: u64,
    dst: u64,
    parts: u64,
    counters: u64,
    bias: u64,
    slopes: u64,
    sinks: u64,
    starts: u64,
    lens: u64,
    pages: u64,
    q_step: HeadSteps,
    k_step: HeadSteps,
    v_step: HeadSteps,
    bias_batch: u64,
    bias_head: u64,
    bias_seq: u64,
    bias_key: u64,
    batch: u32,
    heads: u32,
    group: u32,
    queries: u32,
    keys: u32,
    splits: u32,
    chunk: u32,
    left: u32,
    right: u32,
    scale: f32,
    softcap: f32,
    pages_columns: u32,
    pages_last: u32,
    unused: u32,
}

/// The kernels of a call.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Decode(decode::Form),
    Flash(flash::Shape),
    Tiles(tiles::Tile),
}

/// Whether [`sdpa`] has kernels for these inputs: there are none for f64, or if a head is too large for shared memory.
///
/// # Errors
/// If sizes or dtypes do not match.
pub fn has_sdpa(inputs: [Operand<'_>; 3], params: SdpaParams<'_>) -> Result<bool> {
    Ok(call(inputs, params)?.plan().is_some())
}

/// `softmax(q kᵀ * scale) v` for `q (batch, heads, queries, dim)`, `k (batch, kv_heads, keys, dim)` and `v (batch, kv_heads, keys, v_dim)`,
/// any strides, with the rules of `params`. The result is contiguous, `(batch, heads, queries, v_dim)` in the dtype of `q`; rows without a
/// visible key are 0.
///
/// # Errors
/// If sizes or dtypes do not match, or [`has_sdpa`] returns `false`.
pub fn sdpa(inputs: [Operand<'_>; 3], params: SdpaParams<'_>) -> Result<CudaStorage> {
    let call = call(inputs, params)?;
    let q = inputs[0].0;
    if call.sizes.rows() * call.sizes.v_dim == 0 {
        return q.device().new_storage(0, q.dtype(), OP);
    }
    call.with_contiguous_heads(elementwise::copy, |call| match call.plan() {
        Some(Plan::Decode(form)) => call.decode(form),
        Some(Plan::Flash(shape)) => call.flash(shape),
        Some(Plan::Tiles(tile)) => call.tiles(tile),
        None => Err(q.device().unsupported(
            OP,
            q.dtype(),
            "no kernel for this dtype or head size: compose it from tensor ops",
        )),
    })
}

/// The division of the keys into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    splits: usize,
    /// Keys in a part.
    chunk: usize,
}

impl Parts {
    /// About `splits` parts of whole iterations of `turn` keys; none is empty.
    fn new(keys: usize, splits: usize, turn: usize) -> Self {
        let turns = keys.div_ceil(turn);
        let chunk = turns.div_ceil(splits.max(1)) * turn;
        Self {
            splits: keys.div_ceil(chunk).max(1),
            chunk,
        }
    }
}

/// A call on CUDA storages.
type Call<'a> = crate::fused::attention::Call<'a, CudaStorage, &'static str>;

fn call<'a>(inputs: [Operand<'a>; 3], params: SdpaParams<'a>) -> Result<Call<'a>> {
    let device = inputs[0].0.device();
    Call::new(inputs, params, |dtype| float_type(device, dtype, OP))
}

impl Call<'_> {
    /// Dtypes of the queries and the result, and of keys and values.
    fn dtypes(&self) -> [DType; 2] {
        let [(q, _), (k, _), _] = self.inputs;
        [q.dtype(), k.dtype()]
    }

    fn plan(&self) -> Option<Plan> {
        // Kernels count rows and keys in 32 bits, and sum in f32.
        let countable = self.sizes.rows().max(self.sizes.keys) <= FAR;
        if self.dtypes().contains(&DType::F64) || !countable {
            return None;
        }
        let decode = decode::Form::choose(self).map(Plan::Decode);
        let flash = || flash::Shape::choose(self).map(Plan::Flash);
        decode
            .or_else(flash)
            .or_else(|| tiles::Tile::choose(self).map(Plan::Tiles))
    }

    /// Whether `lanes` elements of a head of an input can be read at once.
    fn wide(&self, input: usize, lanes: usize) -> bool {
        let operand = self.inputs[input];
        operand.1.dims()[3].is_multiple_of(lanes) && aligned(operand, 3, lanes)
    }

    /// `kernel` for these dtypes, sizes and rules.
    fn kernel(&self, kernel: Kernel, parts: Parts) -> Kernel {
        kernel
            .define("T", self.elems[0])
            .define("K", self.elems[1])
            .define("HEAD_DIM", self.sizes.head_dim)
            .define("V_DIM", self.sizes.v_dim)
            .define("RULES", bits(self.rules))
            .define("PAGE", self.rules.page.unwrap_or(0))
            .define("BIAS", self.rules.bias.unwrap_or("f32"))
            .define("JOINS", parts.splits > 1)
    }

    /// Runs a kernel of `blocks` blocks for each part, and joins the parts, unless the kernel does so itself.
    fn run(
        &self,
        kernel: Kernel,
        parts: Parts,
        (blocks, grid): (usize, Grid),
        joins_itself: bool,
    ) -> Result<CudaStorage> {
        let device = self.inputs[0].0.device();
        let (rows, v_dim) = (self.sizes.rows(), self.sizes.v_dim);
        let dst = device.new_storage(rows * v_dim, self.dtypes()[0], OP)?;
        let kernel = self.kernel(kernel, parts);
        let grid = Grid {
            blocks: [(blocks * parts.splits) as u32, 1, 1],
            ..grid
        };
        if parts.splits == 1 {
            device.launch(
                &kernel,
                grid,
                Args::new().value(self.params(&dst, None, parts)),
            )?;
            return Ok(dst);
        }
        let len = rows * parts.splits * (v_dim + 4);
        let between = device.new_storage(len, DType::F32, OP)?;
        let params = self.params(&dst, Some(&between), parts);
        device.launch(&kernel, grid, Args::new().value(params))?;
        if joins_itself {
            return Ok(dst);
        }
        let join = Kernel::new(source!("sdpa_join"))
            .define("T", self.elems[0])
            .define("V_DIM", v_dim)
            .define("BLIND", self.rules.blind);
        let args = Args::new()
            .storage(&between)
            .storage(&dst)
            .size(rows)
            .value(parts.splits as u32);
        device.launch(&join, Grid::of_threads(rows * v_dim), args)?;
        Ok(dst)
    }

    fn params(&self, dst: &CudaStorage, between: Option<&CudaStorage>, parts: Parts) -> Params {
        let [q, k, v] = self.inputs;
        let steps = |(_, layout): Operand<'_>| {
            let stride = layout.stride();
            HeadSteps {
                batch: stride[0] as u64,
                head: stride[1] as u64,
                seq: stride[2] as u64,
            }
        };
        let given = &self.params;
        let bias = given.bias.map_or([0; 4], |(_, layout)| {
            let stride = layout.stride();
            [stride[0], stride[1], stride[2], stride[3]].map(|step| step as u64)
        });
        Params {
            q: address(q),
            k: address(k),
            v: address(v),
            dst: dst.address(),
            parts: between.map_or(0, CudaStorage::address),
            counters: q.0.device().counters(),
            bias: address_or_null(given.bias),
            slopes: address_or_null(given.slopes),
            sinks: address_or_null(given.sinks),
            starts: address_or_null(given.starts),
            lens: address_or_null(given.lens),
            pages: address_or_null(given.pages.map(|pages| pages.table)),
            q_step: steps(q),
            k_step: steps(k),
            v_step: steps(v),
            bias_batch: bias[0],
            bias_head: bias[1],
            bias_seq: bias[2],
            bias_key: bias[3],
            batch: self.sizes.batch as u32,
            heads: self.sizes.heads as u32,
            group: self.sizes.group() as u32,
            queries: self.sizes.queries as u32,
            keys: self.sizes.keys as u32,
            splits: parts.splits as u32,
            chunk: parts.chunk as u32,
            left: Self::distance(given.left),
            right: Self::distance(given.right),
            scale: given.scale,
            softcap: given.softcap.unwrap_or(1.),
            pages_columns: given
                .pages
                .map_or(0, |pages| pages.table.1.dims()[1] as u32),
            pages_last: given.pages.map_or(0, |pages| pages.count as u32 - 1),
            unused: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    fn parts_are_whole_turns_and_none_is_empty() {
        for (keys, splits, turn, expected) in [
            (1, 16, 128, (1, 128)),
            (129, 16, 128, (2, 128)),
            (1000, 3, 32, (3, 352)),
            (1000, 30, 32, (16, 64)),
        ] {
            let parts = Parts::new(keys, splits, turn);
            assert_eq!(
                (parts.splits, parts.chunk),
                expected,
                "{keys} {splits} {turn}"
            );
            assert!(parts.chunk * (parts.splits - 1) < keys && parts.chunk * parts.splits >= keys);
        }
    }
}
