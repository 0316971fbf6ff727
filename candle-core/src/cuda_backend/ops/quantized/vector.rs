//! Few rows times blocks, by bytes.

use super::{c_format, Input, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::{CudaDevice, CudaStorage};
use crate::quantized::GgmlDType;
use crate::{DType, Layout, Result};

/// Rows as bytes with a scale for every 32 elements: `kernels/ggml_activations.cu`.
pub(super) struct Activations {
    codes: CudaStorage,
    scales: CudaStorage,
}

impl Activations {
    /// Elements in order, a multiple of 32 a row.
    pub(super) fn new((x, x_l): Input<'_>) -> Result<Self> {
        let device = x.device();
        let count = x_l.shape().elem_count();
        let this = Self {
            codes: device.new_storage(count, DType::U8, MATMUL)?,
            scales: device.new_storage(count / 32, DType::F32, MATMUL)?,
        };
        let walk = Walk::new([x_l])?;
        let four = 4 * x.dtype().size_in_bytes() as u64;
        let start = x.address() + walk.views.offsets[0] * four / 4;
        let kernel = Kernel::new(source!("ggml_activations"))
            .define("SRC", device.c_type(x.dtype(), MATMUL)?)
            .define("RANK", walk.rank)
            .define("LANES", walk.rank == 0 && start.is_multiple_of(four));
        let args = Args::new()
            .storage(x)
            .storage(&this.codes)
            .storage(&this.scales)
            .value(walk.views);
        device.launch(&kernel, Grid::of_threads(count / 4), args)?;
        Ok(this)
    }
}

/// What is added to a product: a bias `(n)`, and a residual whose rows of `n` elements are so many elements apart. Both have the
/// result's dtype.
#[derive(Clone, Copy, Default)]
pub(in crate::cuda_backend) struct Added<'a> {
    pub(in crate::cuda_backend) bias: Option<(&'a CudaStorage, usize)>,
    pub(in crate::cuda_backend) residual: Option<(&'a CudaStorage, usize, usize)>,
}

/// Which matrix of a stack each row of the result comes from.
pub(super) struct Choice<'a> {
    pub(super) ids: Input<'a>,
    /// Matrices in the stack.
    pub(super) count: usize,
    /// Rows of the result for a row of x.
    pub(super) per: usize,
}

/// A product of at most eight rows, or with a choice of any number.
pub(super) struct Product<'a> {
    pub(super) weight: &'a QCudaStorage,
    /// The weight's first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) added: Added<'a>,
    pub(super) choice: Option<Choice<'a>>,
}

/// `struct Sizes` of `kernels/ggml_vector.cu`.
type Sizes = [u64; 5];

/// Warps of a block.
const WARPS: usize = 4;

/// Elements that a lane reads at once: `Unit` of `kernels/ggml_units.cu`.
fn unit_elements(dtype: GgmlDType) -> usize {
    match dtype {
        GgmlDType::Q8_0 | GgmlDType::Q8_1 | GgmlDType::Q8K => 8,
        GgmlDType::Q6K => 16,
        _ => 32,
    }
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Rows of the weight that a warp has.
    rows: usize,
    /// Warps that share the columns of their rows.
    split: usize,
}

impl Cut {
    /// Enough warps to fill the card, then as few as keep its lanes busy: a warp with many rows reads x once for all of them.
    fn choose(product: &Product<'_>, multiprocessors: usize) -> Self {
        let units = product.k / unit_elements(product.weight.dtype());
        let m = if product.choice.is_some() {
            1
        } else {
            product.rows
        };
        let outputs = match product.choice {
            Some(_) => product.n * product.rows,
            None => product.n,
        };
        let wanted = multiprocessors * 32;
        let rows = match m {
            1 if outputs / 4 >= 2 * wanted => 4,
            1 | 2 if outputs / 2 >= wanted / 2 => 2,
            3.. if outputs / 2 >= wanted / 2 => 2,
            _ => 1,
        };
        let mut split = 1;
        while split < WARPS && outputs / rows * split < wanted && units >= 64 * split {
            split *= 2;
        }
        Self { rows, split }
    }
}

impl Product<'_> {
    /// The result, `(rows, n)` in `dtype`.
    pub(super) fn run(&self, x: &Activations, dtype: DType) -> Result<CudaStorage> {
        let device = self.weight.device();
        let dst = device.new_storage(self.rows * self.n, dtype, MATMUL)?;
        self.launch(device, x, &dst)?;
        Ok(dst)
    }

    fn launch(&self, device: &CudaDevice, x: &Activations, dst: &CudaStorage) -> Result<()> {
        let format = self.weight.dtype();
        let cut = Cut::choose(self, device.card().multiprocessors);
        let none = Layout::contiguous(0);
        let (ids, ids_l) = match &self.choice {
            Some(choice) => (Some(choice.ids.0), choice.ids.1),
            None => (None, &none),
        };
        let walk = Walk::new([ids_l])?;
        let ids_type = ids.map_or(Ok("u32"), |ids| device.c_type(ids.dtype(), MATMUL))?;
        let m = if ids.is_some() { 1 } else { self.rows };
        let kernel = Kernel::new(source!("ggml", "ggml_units", => "ggml_vector"))
            .define("FORMAT", c_format(format))
            .define("DST", device.c_type(dst.dtype(), MATMUL)?)
            .define("M", m)
            .define("ROWS", cut.rows)
            .define("WARPS", WARPS)
            .define("SPLIT", cut.split)
            .define("BIAS", self.added.bias.is_some())
            .define("RESIDUAL", self.added.residual.is_some())
            .define("CHOOSES", ids.is_some())
            .define("IDS", ids_type)
            .define("RANK", walk.rank)
            .define("FAULT", faults::code("expert-rows"));
        let sizes: Sizes = [
            self.rows,
            self.n,
            self.k,
            self.choice.as_ref().map_or(1, |choice| choice.per),
            self.choice.as_ref().map_or(1, |choice| choice.count),
        ]
        .map(|size| size as u64);
        let size = dst.dtype().size_in_bytes() as u64;
        let offset = self.first * self.k / format.block_size() * format.type_size();
        let at = |storage: &CudaStorage, first: usize| storage.address() + first as u64 * size;
        let bias = self.added.bias.map_or(0, |(bias, first)| at(bias, first));
        let residual = self.added.residual;
        let args = Args::new()
            .value(self.weight.address() + offset as u64)
            .storage(&x.codes)
            .storage(&x.scales)
            .storage(dst)
            .value(sizes)
            .value(bias)
            .value(residual.map_or(0, |(residual, first, _)| at(residual, first)))
            .size(residual.map_or(0, |(_, _, row)| row))
            .storage_or_null(ids)
            .value(walk.views)
            .value(device.faults().address());
        let blocks = self.n.div_ceil(WARPS / cut.split * cut.rows);
        let blocks = if ids.is_some() {
            blocks * self.rows
        } else {
            blocks
        };
        device.launch(&kernel, Grid::of_rows(blocks, WARPS as u32 * 32), args)
    }
}

/// `x (.., k)` times rows of a weight transposed, `(.., n)`, for at most eight rows and nothing of size 0.
pub(super) fn matmul(
    x: Input<'_>,
    (weight, first): (&QCudaStorage, usize),
    (rows, n, k): (usize, usize, usize),
) -> Result<CudaStorage> {
    let product = Product {
        weight,
        first,
        rows,
        n,
        k,
        added: Added::default(),
        choice: None,
    };
    product.run(&Activations::new(x)?, x.0.dtype())
}
