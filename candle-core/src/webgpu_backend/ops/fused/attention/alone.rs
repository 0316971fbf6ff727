//! On processors: an invocation takes one query and a part of the keys, and waits for no other.

use super::super::super::bind;
use super::join::{Destination, Parts};
use super::{AttentionParams, Call, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Shader, Team};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// The keys that the kernel looks at in one turn.
const BLOCK: usize = 8;
/// Keys in a part at the least: joining a part costs about as much as two keys.
const LEAST_CHUNK: usize = 32;
/// Invocations that keep a processor's cores and their lanes busy.
const BUSY_INVOCATIONS: usize = 128;
/// Longer heads would not stay in the nearest cache.
const MAX_HEAD_DIM: usize = 512;

/// Whether the kernel takes this head, with so many parts at most: it handles four dimensions at once, and writes whole words.
pub(super) fn fits(sizes: &Sizes, elem: Elem, most: usize, most_turns: usize) -> bool {
    let head_dim = sizes.head_dim;
    head_dim.is_multiple_of(4 * elem.lanes() as usize)
        && head_dim <= MAX_HEAD_DIM
        && parts(sizes, most, most_turns).splits <= most
}

/// As many as keep a processor busy, and so many that an invocation gets to the end of its keys in as many turns as it can have.
fn parts(sizes: &Sizes, most: usize, most_turns: usize) -> Parts {
    // Each score and each sum of a block is a loop within a loop.
    let turns_of_block = 2 * (BLOCK + 2) * (sizes.head_dim / 4 + 2);
    let most_keys = most_turns / turns_of_block * BLOCK;
    let wanted = BUSY_INVOCATIONS / sizes.rows().max(1);
    let splits = wanted.min(sizes.keys / LEAST_CHUNK).min(most);
    Parts::new(
        sizes.keys,
        splits.max(sizes.keys.div_ceil(most_keys)),
        BLOCK,
    )
}

impl Call<'_> {
    pub(super) fn alone(&self) -> Result<WebGpuStorage> {
        let Self { sizes, elem, .. } = *self;
        let device = self.inputs[0].0.device();
        let team = Team::ALONE;
        let parts = parts(
            &sizes,
            self.most_parts(),
            device.kernels().caps.most_turns(),
        );
        let destination = Destination::new(self, parts, elem)?;
        let (wide, softcap) = (self.wide(), self.softcap());
        let shader = || {
            let shader = Shader::new(format!("sdpa_alone {elem:?} d{}", sizes.head_dim))
                .constant("HEAD_DIM", sizes.head_dim as u32)
                .heads(elem, wide);
            destination
                .declare(shader)
                .constant("CAUSAL", self.params.causal)
                .constant("SOFTCAP", softcap)
                .constant("QUADS", sizes.head_dim as u32 / 4)
                .reduction(device, team, 1)
                .text(include_str!("../../../shaders/functions_float.wgsl"))
                .text(match destination.joins() {
                    true => include_str!("../../../shaders/sdpa_part.wgsl"),
                    false => include_str!("../../../shaders/sdpa_whole.wgsl"),
                })
                .body::<AttentionParams>(include_str!("../../../shaders/sdpa_alone.wgsl"))
        };
        let [q, k, v] = self.inputs.map(|(storage, _)| bind(storage));
        device.launch(
            self.key("sdpa_alone", destination.joins()),
            shader,
            &[q, k, v, bind(destination.target())],
            &self.kernel_params(parts.splits, parts.chunk)?,
            device.grid(sizes.rows() * parts.splits, team.teams),
        )?;
        destination.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{parts, Sizes};

    #[test]
    fn few_queries_cut_the_keys_and_long_ones_too() {
        for (queries, keys, most_turns, splits) in [
            (1, 31, usize::MAX, 1),
            (1, 128, usize::MAX, 4),
            (1, 4096, usize::MAX, 32),
            (512, 512, usize::MAX, 1),
            // 360 turns to eight keys.
            (512, 512, 360 * 64, 1),
            (512, 513, 360 * 64, 2),
        ] {
            let sizes = Sizes {
                batch: 1,
                heads: 4,
                kv_heads: 2,
                queries,
                keys,
                head_dim: 64,
            };
            let parts = parts(&sizes, usize::MAX, most_turns);
            assert_eq!(parts.splits, splits, "{queries} {keys}");
        }
    }
}
