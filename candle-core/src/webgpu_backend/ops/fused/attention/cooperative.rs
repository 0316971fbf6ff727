//! Many queries, with keys and values in f16, on adapters with cooperative matrices: the flash kernel with these matrices for the products
//! of a tile.

use super::join::Parts;
use super::{first_filled, AttentionParams, Call, Heads, Sizes};
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Number of workgroups below which keys are split into parts.
const BUSY_WORKGROUPS: usize = 256;
/// Minimum number of keys in a part: computing fewer takes less time than joining the parts.
const LEAST_CHUNK: usize = 512;
/// Maximum `head_dim` whose sums stay in registers.
const MAX_HEAD_DIM: usize = 128;

/// Maximum number of elements of a key and a value for which an invocation of 32 rows has registers to prefetch the next of both.
const MAX_AHEAD: u32 = 128;

/// A workgroup: subgroups, keys per iteration, and number of 16-row fragments per subgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CoopTile {
    subgroups: u32,
    keys: u32,
    fragments: u32,
    /// Subgroups that share rows, each with a part of the keys and of the values.
    columns: u32,
}

impl CoopTile {
    /// Best first, as measured on an H200; the last one is for few rows.
    const ALL: [Self; 5] = [
        Self::of(8, 32, 2, 2),
        Self::of(4, 32, 2, 1),
        Self::of(4, 64, 1, 1),
        Self::of(4, 32, 1, 1),
        Self::of(2, 32, 1, 1),
    ];

    const fn of(subgroups: u32, keys: u32, fragments: u32, columns: u32) -> Self {
        Self {
            subgroups,
            keys,
            fragments,
            columns,
        }
    }

    fn rows(self) -> usize {
        (16 * self.fragments * self.subgroups / self.columns) as usize
    }

    /// Whether the invocations and the columns divide heads of this length evenly.
    fn divides(self, dim: usize) -> bool {
        let quads = self.keys as usize * dim / 4;
        quads.is_multiple_of(32 * self.subgroups as usize)
            && dim.is_multiple_of(16 * self.columns as usize)
    }

    /// Quads of keys and values in workgroup memory, which first holds the queries.
    fn tile_len(self, head_dim: usize, v_dim: usize) -> usize {
        let (pitch, v_pitch) = (head_dim / 4 + 2, v_dim / 4 + 2);
        let teams = (self.subgroups / self.columns) as usize;
        (self.keys as usize * (pitch + v_pitch)).max(16 * teams * pitch)
    }

    /// Bytes of workgroup memory in the kernel's layout: keys and values, scores in f32, weights, two iterations.
    fn shared_bytes(self, head_dim: usize, v_dim: usize) -> usize {
        let (quads, halves) = (
            self.keys as usize / 4,
            (2 * self.columns / self.fragments) as usize,
        );
        let rows = self.rows() * ((quads + halves) * 16 + (quads + 2) * 8);
        self.tile_len(head_dim, v_dim) * 8 + rows + 32
    }

    /// The first tile that the adapter supports and that is not mostly empty; `None` for heads that are not whole matrices or too large.
    pub(super) fn choose(sizes: &Sizes, caps: &Caps) -> Option<Self> {
        let dim_fits = |dim: usize| dim.is_multiple_of(16) && dim <= MAX_HEAD_DIM;
        if !caps.cooperative_attention || !dim_fits(sizes.head_dim) || !dim_fits(sizes.v_dim) {
            return None;
        }
        let limit = caps.limits.max_compute_workgroup_storage_size as usize;
        let fits = |tile: &Self| {
            tile.divides(sizes.head_dim)
                && tile.divides(sizes.v_dim)
                && tile.shared_bytes(sizes.head_dim, sizes.v_dim) <= limit
        };
        let filled = |tile: &Self| tile.rows() < 2 * sizes.sharing();
        first_filled(&Self::ALL, fits, filled)
    }
}

impl Call<'_> {
    pub(super) fn cooperative(&self, tile: CoopTile) -> Result<WebGpuStorage> {
        let sizes = self.sizes;
        let workgroups = sizes.blocks(tile.rows());
        let keys = self.span(tile.rows().div_ceil(sizes.group()) + 1);
        let splits = (BUSY_WORKGROUPS / workgroups).min(keys / LEAST_CHUNK);
        let parts = Parts::new(keys, splits.min(self.most_parts()), tile.keys as usize);
        self.in_parts(tile, parts, |kernel| kernel)
    }

    /// `kernel` is a parameter for the tests' variant, in which loops replace matrices.
    fn in_parts<K: Kernel<Params = AttentionParams>>(
        &self,
        tile: CoopTile,
        parts: Parts,
        kernel: impl FnOnce(SdpaCooperative) -> K,
    ) -> Result<WebGpuStorage> {
        let workgroups = self.sizes.blocks(tile.rows());
        self.run(parts, self.elems[0], workgroups, |heads| {
            kernel(SdpaCooperative { tile, heads })
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaCooperative {
    tile: CoopTile,
    heads: Heads,
}

impl Kernel for SdpaCooperative {
    type Params = AttentionParams;

    fn shader(&self, _: &Caps) -> Shader {
        let half = |shader: Shader, name: &str| {
            shader.input_words(name, "vec4<f16>").text(&format!(
                "fn {name}_quad(start: u32, quad: u32) -> vec4<f16> {{ return {name}[start / 4u + quad]; }}"
            ))
        };
        let shader = self.heads.shader(|shader| {
            let shader = match self.heads.elem {
                Elem::F16 => half(shader, "q"),
                elem => shader.head("q", elem, true, "HEAD_DIM"),
            };
            half(half(shader, "k"), "v").text(
                "alias Four = vec4<f16>;\n\
                 fn other_half(x: f32, local: u32) -> f32 { return subgroupShuffleXor(x, 1u); }",
            )
        });
        self.body(
            shader,
            include_str!("../../../shaders/sdpa_cooperative.wgsl"),
        )
        .directive("enable f16;\nenable wgpu_cooperative_matrix;\n")
    }
}

impl SdpaCooperative {
    /// The kernel `text`, with its constants. `shader` declares q, k and v as `name_quad(start, quad)`, k and v in quads of type `Four`, q
    /// in that type or in `vec4<f32>`; and `other_half`, the value of the neighbour with the other half of a row's keys.
    fn body(&self, shader: Shader, text: &str) -> Shader {
        let Self { tile, heads } = self;
        let Heads {
            head_dim, v_dim, ..
        } = *heads;
        let CoopTile {
            subgroups,
            keys,
            fragments,
            columns,
        } = *tile;
        let tile_len = tile.tile_len(head_dim as usize, v_dim as usize);
        let along = head_dim / 16;
        let (outer, inner) = match fragments {
            1 => (along, 1),
            _ => (1, along),
        };
        shader
            .constant("SCALED", heads.elem != Elem::F16)
            .constant("SUBGROUPS", subgroups)
            .constant("KEYS", keys)
            .constant("COLUMNS", columns)
            .constant("AHEAD", fragments == 1 || head_dim + v_dim <= MAX_AHEAD)
            .constant("TILE_LEN", tile_len as u32)
            .unrolled::<AttentionParams>(
                text,
                &[
                    ("FRAGMENTS", fragments),
                    ("ALONG", along),
                    ("OUTER", outer),
                    ("INNER", inner),
                    ("V_ALONG", v_dim / 16 / columns),
                    ("ACROSS", keys / 16 / columns),
                    ("ALL_ACROSS", keys / 16),
                    ("ROUNDS", v_dim.div_ceil(keys)),
                    ("KEY_LOADS", keys * head_dim / 128 / subgroups),
                    ("VALUE_LOADS", keys * v_dim / 128 / subgroups),
                    ("OWN_QUADS", keys * fragments / columns / 8),
                ],
            )
    }
}

#[cfg(test)]
#[path = "cooperative_tests.rs"]
pub(super) mod tests;
