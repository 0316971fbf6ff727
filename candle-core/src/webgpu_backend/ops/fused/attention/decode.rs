//! Few queries: a workgroup takes one query and a part of the keys.

use super::super::super::bind;
use super::join::{Destination, Parts};
use super::{AttentionParams, Call, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Invocations of the kernel, and so the keys that it looks at in one turn.
const TURN: u32 = 128;
/// The most queries that it takes; more share their keys better in tiles.
const MAX_QUERIES: usize = 8;
/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 512;

/// Whether the decode kernel takes this head: it handles four dimensions at once, all of them in one turn.
pub(super) fn fits(sizes: &Sizes, elem: Elem) -> bool {
    sizes.queries <= MAX_QUERIES
        && sizes.head_dim.is_multiple_of(4 * elem.lanes() as usize)
        && sizes.head_dim <= 4 * TURN as usize
}

impl Call<'_> {
    pub(super) fn decode(&self) -> Result<WebGpuStorage> {
        let Self { sizes, elem, .. } = *self;
        let device = self.inputs[0].0.device();
        let turns = sizes.keys.div_ceil(TURN as usize);
        let splits = turns.min(BUSY_WORKGROUPS.div_ceil(sizes.rows())).max(1);
        let parts = Parts::new(sizes.keys, splits.min(self.most_parts()), TURN as usize);
        let destination = Destination::new(self, parts, elem)?;
        let (wide, softcap) = (self.wide(), self.softcap());
        let key = Key::new("sdpa_decode")
            .elem(elem)
            .with(wide.into(), 1)
            .with(destination.joins().into(), 1)
            .with(softcap.into(), 1)
            .with(self.params.causal.into(), 1)
            .with(sizes.head_dim as u32, 16);
        let shader = || {
            let shader = Shader::new(format!("sdpa_decode {elem:?} d{}", sizes.head_dim))
                .constant("HEAD_DIM", sizes.head_dim as u32)
                .heads(elem, wide);
            destination
                .declare(shader)
                .constant("CAUSAL", self.params.causal)
                .constant("SOFTCAP", softcap)
                .reduction(device, TURN, 1)
                .text(include_str!("../../../shaders/functions_float.wgsl"))
                .text(match destination.joins() {
                    true => include_str!("../../../shaders/sdpa_part.wgsl"),
                    false => include_str!("../../../shaders/sdpa_whole.wgsl"),
                })
                .body::<AttentionParams>(include_str!("../../../shaders/sdpa_decode.wgsl"))
        };
        let [q, k, v] = self.inputs.map(|(storage, _)| bind(storage));
        device.launch(
            key,
            shader,
            &[q, k, v, bind(destination.target())],
            &self.kernel_params(parts.splits, parts.chunk)?,
            device.grid(sizes.rows() * parts.splits, 1),
        )?;
        destination.finish()
    }
}
