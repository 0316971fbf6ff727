//! Products of three to [`MAX_BLOCKS_ROWS`](super::plan::MAX_BLOCKS_ROWS) rows with quantised weights: the arithmetic of `blocks.rs`, with
//! rows that a pass before converted to 8 bits.
//!
//! For one row, a conversion in each workgroup is cheaper than another dispatch. It is the same work for every row, though, and the
//! workgroup's other work, loads of weights, is not: with eight rows on an H200, 28,672 columns of 4,096 elements in Q4_0 took 92 us with
//! conversions, and take 61 here. The loops over rows and columns are unrolled: their sums are then registers.

use super::blocks::BlocksShape;
use super::extras::Input;
use super::rows_as_f16::Rows;
use super::{Form, MatmulParams, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::quantized::Pieces;
use crate::webgpu_backend::ops::{bind, index};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

/// Minimum number of rows that are converted by a pass before the product.
pub(super) const LEAST_ROWS: usize = 3;

params!(BytesParams {
    rows: u32,
    k: u32,
    src_offset: u32,
    src_row: u32,
    alpha_offset: u32,
    eps: f32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RowsAsBytes {
    elem: Elem,
    pieces: Pieces,
    subgroup: u32,
    workgroup: u32,
    norm: bool,
}

impl Kernel for RowsAsBytes {
    type Params = BytesParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .bytes_of_rows(self.elem, self.pieces)
            .output_words("bytes", "vec2<u32>")
            .output_words("runs", "vec2<f32>")
            .norm_weights_in_eights(self.norm, self.elem)
            .constant("WG", self.workgroup)
            .constant("SUBGROUP", self.subgroup)
            .constant("NORMED", self.norm)
            .body::<BytesParams>(include_str!("../../shaders/rows_as_bytes.wgsl"))
    }
}

/// `src (m, k)` in 8 bits in the order of the product's loads; and for each run the scale of a byte with the sum of the run, then for each
/// row the factor of `norm`, if there is one. Products of `shape` read them.
pub(super) fn rows_as_bytes(
    src: Rows<'_>,
    (m, k): (usize, usize),
    norm: Option<(Input<'_>, f32)>,
    shape: BlocksShape,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    const OP: &str = "qmatmul";
    let device = src.floats.device();
    let pieces = shape.pieces;
    let bytes = device.alloc(m * k, DType::U8, OP)?;
    let runs = m * k / pieces.run as usize + m;
    let runs = device.alloc(2 * runs, DType::F32, OP)?;
    let mut bindings = vec![bind(src.floats), bind(&bytes), bind(&runs)];
    bindings.extend(norm.map(|((alpha, _), _)| bind(alpha)));
    let kernel = RowsAsBytes {
        elem: device.elem(src.floats.dtype(), OP)?,
        pieces,
        subgroup: shape.subgroup,
        workgroup: shape.workgroup,
        norm: norm.is_some(),
    };
    let params = BytesParams {
        rows: index(m)?,
        k: index(k)?,
        src_offset: index(src.offset)?,
        src_row: index(src.row)?,
        alpha_offset: index(norm.map_or(0, |((_, layout), _)| layout.start_offset()))?,
        eps: norm.map_or(0., |(_, eps)| eps),
    };
    device.run(&kernel, &bindings, &params, device.grid(m, 1))?;
    Ok((bytes, runs))
}

/// The specialisation constants of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowsShape {
    pub(super) blocks: BlocksShape,
    pub(super) rows: u32,
    /// Whether the rows' norms have factors.
    pub(super) norm: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulRows {
    form: Form,
    shape: RowsShape,
}

impl Kernel for MatmulRows {
    type Params = MatmulParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { form, shape } = self;
        let RowsShape { blocks, rows, norm } = *shape;
        let pieces = blocks.pieces;
        let scale = if norm { "norm_scale(row)" } else { "1.0" };
        Shader::default()
            .bytes_and_pieces(pieces)
            .input_words("lhs_runs", "vec2<f32>")
            .output("dst", form.out)
            .finish(form.extras.epilogue)
            .vector_value(scale, &form.extras)
            .constant("COLS", blocks.cols)
            .constant("WG", blocks.workgroup)
            .constant("SUBGROUP", blocks.subgroup)
            .unrolled::<MatmulParams>(
                include_str!("../../shaders/matmul_rows.wgsl"),
                &[
                    ("ROWS", rows),
                    ("SUMS", blocks.cols * form.extras.sums()),
                    ("RUNS", pieces.piece / pieces.run),
                    ("RUN_EIGHTS", pieces.run / 8),
                    ("RUN_WORDS", pieces.run / 16),
                ],
            )
    }
}

impl Run<'_> {
    pub(super) fn rows(&self, shape: RowsShape) -> Result<()> {
        let blocks = shape.blocks;
        let kernel = MatmulRows {
            form: self.form(),
            shape,
        };
        let columns = (blocks.workgroup / blocks.subgroup * blocks.cols) as usize;
        self.launch(&kernel, self.problem.n.div_ceil(columns))
    }
}
