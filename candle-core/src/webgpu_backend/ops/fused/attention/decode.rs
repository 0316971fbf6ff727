//! Few queries: a workgroup takes one query and a part of the keys.

use std::fmt::Write;

use super::join::{Destination, Parts};
use super::{AttentionParams, Call, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// The keys that the kernel looks at in one turn.
const TURN: u32 = 128;
/// Invocations that share a key, where the adapter's workgroups are large enough: each has fewer loads to wait for.
const SHARERS: u32 = 4;
/// Loads of a key that an invocation has on their way at once.
const LOADS: u32 = 8;
/// The most queries that it takes; more share their keys better in tiles.
const MAX_QUERIES: usize = 8;
/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 512;

/// Whether the decode kernel takes this head: it handles four dimensions at once, all of them in one turn.
pub(super) fn fits(sizes: &Sizes, elem: Elem) -> bool {
    let dim_fits =
        |dim: usize| dim.is_multiple_of(4 * elem.lanes() as usize) && dim <= 4 * TURN as usize;
    sizes.queries <= MAX_QUERIES && dim_fits(sizes.head_dim) && dim_fits(sizes.v_dim)
}

impl Call<'_> {
    pub(super) fn decode(&self) -> Result<WebGpuStorage> {
        let Self { sizes, elem, .. } = *self;
        let device = self.inputs[0].0.device();
        let keys = self.span(1);
        let turns = keys.div_ceil(TURN as usize);
        let splits = turns.min(BUSY_WORKGROUPS.div_ceil(sizes.rows())).max(1);
        let parts = Parts::new(keys, splits.min(self.most_parts()), TURN as usize);
        let destination = Destination::new(self, parts, elem)?;
        let limits = &device.kernels().caps.limits;
        let largest = limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x);
        let sharers = SHARERS.min(largest / TURN).max(1);
        let quads = sizes.head_dim as u32 / 4;
        let key = self
            .key("sdpa_decode", destination.joins())
            .with(sharers, 3);
        let shader = || {
            let label = format!("sdpa_decode {elem:?} d{}", sizes.head_dim);
            let shader = destination.declare(self.heads(Shader::new(label)));
            self.rules
                .declare(shader)
                .constant("QUADS", quads)
                .constant("V_QUADS", sizes.v_dim as u32 / 4)
                .constant("SHARERS", sharers)
                .reduction(device, TURN * sharers, 1)
                .text(&key_part(quads, sharers))
                .text(include_str!("../../../shaders/functions_float.wgsl"))
                .text(match destination.joins() {
                    true => include_str!("../../../shaders/sdpa_part.wgsl"),
                    false => include_str!("../../../shaders/sdpa_whole.wgsl"),
                })
                .body::<AttentionParams>(include_str!("../../../shaders/sdpa_decode.wgsl"))
        };
        device.launch(
            key,
            shader,
            &self.bindings(destination.target()),
            &self.kernel_params(parts.splits, parts.chunk)?,
            device.grid(sizes.rows() * parts.splits, 1),
        )?;
        destination.finish()
    }
}

/// WGSL of the product of the query with a sharer's part of the key that starts at `start`: quads `part`, `part + sharers` and so on.
/// The query has zeros for quads past the head.
fn key_part(quads: u32, sharers: u32) -> String {
    let count = quads.div_ceil(sharers);
    let mut text = format!(
        "const QUERY_QUADS = {}u;\nvar<workgroup> query: array<vec4<f32>, QUERY_QUADS>;\n\
         fn key_part(start: u32, part: u32) -> f32 {{\n  var sum = vec4<f32>(0.0);\n",
        count * sharers
    );
    let steps: Vec<u32> = (0..count).collect();
    for steps in steps.chunks(LOADS as usize) {
        for step in steps {
            let quad = format!("part + {}u", step * sharers);
            let _ = writeln!(
                text,
                "  let k{step} = k_quad(start, min({quad}, {}u));",
                quads - 1
            );
        }
        for step in steps {
            let quad = format!("part + {}u", step * sharers);
            let _ = writeln!(text, "  sum = fma(query[{quad}], k{step}, sum);");
        }
    }
    text.push_str("  return dot(sum, vec4<f32>(1.0));\n}");
    text
}
