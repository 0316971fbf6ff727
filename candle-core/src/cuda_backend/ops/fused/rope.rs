//! Rotary position embedding (Su et al., arXiv 2104.09864), with the norms of heads before it and a cache after it.

use super::{address, address_or_null, aligned, float_type, Operand};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::index_type;
use crate::cuda_backend::CudaStorage;
use crate::fused::RopeKind;
use crate::{Layout, Result};

/// A rotation of heads, with norms before it.
pub type Rotation<'a> = crate::fused::Rotation<'a, CudaStorage>;
/// The index in a cache at which a sequence continues.
pub type RopePosition<'a> = crate::fused::RopePosition<'a, CudaStorage>;
/// The destination of the keys and values of a rotation.
pub type RopeCache<'a> = crate::fused::RopeCache<'a, CudaStorage>;

const OP: &str = "rope";
/// The op's name in errors about positions on the device.
const APPEND: &str = "rope-append";

/// `struct Steps` of `kernels/rope.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Steps {
    batch: u64,
    head: u64,
    seq: u64,
    dim: u64,
}

/// `struct Rope` of `kernels/rope.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u64,
    heads: u64,
    queries: u64,
    rotated: u64,
    seq: u64,
    dim: u64,
    rotary: u64,
    x: Steps,
    cos: Steps,
    sin: Steps,
    norms_head: u64,
    norms_dim: u64,
    capacity: u64,
    position: u64,
    positions_step: u64,
    eps: f64,
    fault: u64,
}

/// The indices of the heads' and the positions' dimensions.
fn axes(kind: RopeKind) -> (usize, usize) {
    match kind {
        RopeKind::Thd => (2, 1),
        _ => (1, 2),
    }
}

/// Strides of `cos` or `sin`, `(seq, n)` or `(batch, seq, n)`.
fn angle_steps(layout: &Layout) -> Result<Steps> {
    let [batch, seq, dim] = match *layout.stride() {
        [seq, dim] => [0, seq, dim],
        [batch, seq, dim] => [batch, seq, dim],
        _ => crate::bail!(
            "rope needs cos and sin of shape (seq, dim / 2) or (batch, seq, dim / 2), got {:?}",
            layout.shape()
        ),
    };
    Ok(Steps {
        batch: batch as u64,
        head: 0,
        seq: seq as u64,
        dim: dim as u64,
    })
}

/// Applies `rotation` to `[x, cos, sin]`. `x` is 4D, any strides; the result is contiguous in its shape.
///
/// # Errors
/// If sizes do not match, or the dtype is not a float that kernels compute with.
pub fn rope(inputs: [Operand<'_>; 3], rotation: Rotation<'_>) -> Result<CudaStorage> {
    let (x, layout) = inputs[0];
    let dst = x
        .device()
        .new_storage(layout.shape().elem_count(), x.dtype(), OP)?;
    rope_into(&dst, inputs, rotation, None)?;
    Ok(dst)
}

/// Whether [`rope_append`] supports these storages: `x`, cos, sin and the cache. It supports all.
pub fn rope_append_fits(_: [&CudaStorage; 4]) -> bool {
    true
}

/// Like [`rope`] on `[x, cos, sin]`, but returns only the queries, `(batch, queries, seq, dim)`; keys and values are written to a cache, in
/// place. The host's arguments to the kernel do not depend on positions on the device.
///
/// # Errors
/// As for [`rope`], or if the cache does not fit. A position on the device that exceeds the cache is reported when results are read back.
pub fn rope_append(
    inputs: [Operand<'_>; 3],
    rotation: Rotation<'_>,
    into: RopeCache<'_>,
) -> Result<CudaStorage> {
    let (x, x_l) = inputs[0];
    let shape = into.check((x, x_l), &rotation)?;
    let len = shape.iter().product();
    let dst = x.device().new_storage(len, x.dtype(), OP)?;
    rope_into(&dst, inputs, rotation, Some(into))?;
    Ok(dst)
}

/// Number of elements that are loaded at once: the greatest to which all parts of a head and all operands are aligned.
fn lanes(
    [x, cos, sin]: [Operand<'_>; 3],
    rotation: &Rotation<'_>,
    cache: Option<Operand<'_>>,
) -> usize {
    let dim = x.1.dims()[3];
    let widest = [Some(x), cache].into_iter().flatten();
    let size = widest.map(|(storage, _)| storage.dtype().size_in_bytes());
    let contiguous = |operand: Operand<'_>, lanes: usize| match operand.1.stride() {
        [before @ .., 1] => aligned(operand, before.len(), lanes),
        _ => false,
    };
    let fits = |lanes: &usize| {
        let angles = rotation.rotary == 0 || contiguous(cos, *lanes) && contiguous(sin, *lanes);
        let rest = [rotation.norms.map(|(norms, _)| norms), cache];
        let rest = rest
            .into_iter()
            .flatten()
            .all(|operand| contiguous(operand, *lanes));
        let parts = [rotation.rotary / 2, dim];
        parts.iter().all(|part| part.is_multiple_of(*lanes))
            && contiguous(x, *lanes)
            && angles
            && rest
    };
    let most = 16 / size.max().unwrap_or(16);
    [most, most / 2].into_iter().find(fits).unwrap_or(1).max(1)
}

fn rope_into(
    dst: &CudaStorage,
    inputs: [Operand<'_>; 3],
    rotation: Rotation<'_>,
    into: Option<RopeCache<'_>>,
) -> Result<()> {
    let [x, cos, sin] = inputs;
    let device = x.0.device();
    let c_type = float_type(device, x.0.dtype(), OP)?;
    let (_, _, _, dim) = x.1.shape().dims4()?;
    if !dim.is_multiple_of(2) || rotation.rotary > dim || !rotation.rotary.is_multiple_of(2) {
        crate::bail!(
            "rope rotates pairs: the last dimension and its rotated part must be even, got {dim} and {}",
            rotation.rotary
        );
    }
    let (head_axis, seq_axis) = axes(rotation.kind);
    let (dims, stride) = (x.1.dims(), x.1.stride());
    let count = dims[..3].iter().product::<usize>();
    if count * dim == 0 {
        return Ok(());
    }
    let mut params = Params {
        count: count as u64,
        heads: dims[head_axis] as u64,
        queries: rotation.queries as u64,
        rotated: (rotation.queries + rotation.keys) as u64,
        seq: dims[seq_axis] as u64,
        dim: dim as u64,
        rotary: rotation.rotary as u64,
        x: Steps {
            batch: stride[0] as u64,
            head: stride[head_axis] as u64,
            seq: stride[seq_axis] as u64,
            dim: stride[3] as u64,
        },
        fault: faults::code(APPEND).into(),
        ..bytemuck::Zeroable::zeroed()
    };
    if rotation.rotary > 0 {
        for (name, (storage, layout)) in [("cos", cos), ("sin", sin)] {
            let half = layout.dims().last().copied().unwrap_or(0);
            if storage.dtype() != x.0.dtype() || half != rotation.rotary / 2 {
                crate::bail!(
                    "rope: {name} is {:?} of {:?}; for {} rotated elements of {:?}, its last dimension must be half of that",
                    layout.shape(),
                    storage.dtype(),
                    rotation.rotary,
                    x.0.dtype()
                )
            }
        }
        params.cos = angle_steps(cos.1)?;
        params.sin = angle_steps(sin.1)?;
    }
    if let Some(((_, layout), eps)) = rotation.norms {
        let [head, dim] = layout.stride() else {
            crate::bail!(
                "rope: the norm weights are {:?}; they must be (2, dim)",
                layout.shape()
            )
        };
        (params.norms_head, params.norms_dim) = (*head as u64, *dim as u64);
        params.eps = eps.into();
    }
    let mut positions = None;
    if let Some(into) = into {
        params.capacity = into.cache.1.dims()[2] as u64;
        match into.position {
            RopePosition::Same(position) => params.position = position as u64,
            RopePosition::PerRow((storage, layout)) | RopePosition::Each((storage, layout)) => {
                params.positions_step = layout.stride()[0] as u64;
                positions = Some((storage, layout));
            }
        }
    }
    let cache = into.map(|into| into.cache);
    let cache_type = match cache {
        Some((storage, _)) => float_type(device, storage.dtype(), APPEND)?,
        None => c_type,
    };
    let lanes = lanes(inputs, &rotation, cache);
    let group = (dim / 2).div_ceil(lanes).next_power_of_two().min(32);
    let kernel = Kernel::new(source!("functions", => "rope"))
        .define("T", c_type)
        .define("CACHE", cache_type)
        .define("APPEND", cache.is_some())
        .define("KIND", rotation.kind as u32)
        .define("NORMS", rotation.norms.is_some())
        .define("POSITIONS", positions.is_some())
        .define(
            "EACH",
            into.is_some_and(|into| matches!(into.position, RopePosition::Each(_))),
        )
        .define("LANES", lanes)
        .define("GROUP", group)
        .define("INDEX", index_type(count > u32::MAX as usize >> 6));
    let args = Args::new()
        .value(address(x))
        .storage(dst)
        .value(address(cos))
        .value(address(sin))
        .value(address_or_null(rotation.norms.map(|(norms, _)| norms)))
        .value(address_or_null(cache))
        .value(address_or_null(positions))
        .value(device.faults().address())
        .value(params);
    device.launch(&kernel, Grid::of_threads(count * group), args)
}
