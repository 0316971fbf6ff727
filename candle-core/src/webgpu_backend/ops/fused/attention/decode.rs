//! Few queries: a workgroup computes one query over a part of the keys.

use super::join::Parts;
use super::{AttentionParams, Call, Heads, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Number of keys per iteration of the kernel.
const TURN: u32 = 128;
/// Invocations that share a key, if the adapter's workgroups are large enough: each has fewer loads to wait for.
const SHARERS: u32 = 4;
/// Quads of a key, and of values, that an invocation has in flight at once.
const AHEAD: u32 = 8;
/// Maximum number of queries; more share their keys better in tiles.
const MAX_QUERIES: usize = 8;
/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 512;

/// Whether the decode kernel supports this head: it reads four dimensions at once, all of a head in one iteration.
pub(super) fn fits(sizes: &Sizes, elem: Elem) -> bool {
    let dim_fits =
        |dim: usize| dim.is_multiple_of(4 * elem.lanes() as usize) && dim <= 4 * TURN as usize;
    sizes.queries <= MAX_QUERIES && dim_fits(sizes.head_dim) && dim_fits(sizes.v_dim)
}

impl Call<'_> {
    pub(super) fn decode(&self) -> Result<WebGpuStorage> {
        let (sizes, elem) = (self.sizes, self.elems[0]);
        let turns = self.span(1).div_ceil(TURN as usize);
        let splits = turns.min(BUSY_WORKGROUPS.div_ceil(sizes.rows())).max(1);
        let parts = Parts::new(self.span(1), splits.min(self.most_parts()), TURN as usize);
        let limits = &self.inputs[0].0.device().kernels().caps.limits;
        let largest = limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x);
        let sharers = SHARERS.min(largest / TURN).max(1);
        self.run(parts, elem, sizes.rows(), |heads| SdpaDecode {
            sharers,
            heads,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaDecode {
    /// Invocations that share a key.
    sharers: u32,
    heads: Heads,
}

impl Kernel for SdpaDecode {
    type Params = AttentionParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let batches = self
            .heads
            .head_dim
            .div_ceil(4 * self.sharers)
            .div_ceil(AHEAD);
        self.heads
            .by_quads()
            .constant("SHARERS", self.sharers)
            .sums(caps, TURN * self.sharers, 1)
            .unrolled::<AttentionParams>(
                include_str!("../../../shaders/sdpa_decode.wgsl"),
                &[("BATCHES", batches), ("AHEAD", AHEAD)],
            )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ragged_forms;
    use super::SdpaDecode;
    use crate::webgpu_backend::kernel::assert_valid;

    #[test]
    fn every_form_is_valid_wgsl() {
        for dims in [[64, 64], [72, 512], [8, 8]] {
            for heads in ragged_forms(dims) {
                for sharers in [1, 4] {
                    assert_valid(&SdpaDecode { sharers, heads });
                }
            }
        }
    }
}
