//! Many queries: a workgroup computes a tile of queries that share keys, and iterates over the keys in tiles (Dao et al., arXiv
//! 2205.14135).

use super::super::super::MOST_STEPS;
use super::join::{Parts, MOST_KEYS};
use super::{first_filled, AttentionParams, Call, Heads, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 256;
/// Minimum number of keys in a part.
const LEAST_CHUNK: usize = 64;

/// The shape of a workgroup and of its tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Invocations along the keys, and along the rows.
    x: u32,
    y: u32,
    /// Rows and keys of an invocation.
    rows: u32,
    keys: u32,
    /// Whether keys and values are staged through workgroup memory.
    staged: bool,
}

impl Tile {
    /// Best first, as measured on an H200; the last ones need little workgroup memory.
    const ALL: [Self; 8] = [
        Self::of(16, 8, 4, 2, true),
        Self::of(16, 8, 4, 1, true),
        Self::of(16, 8, 2, 1, true),
        Self::of(16, 4, 1, 1, true),
        Self::of(16, 8, 1, 1, false),
        Self::of(16, 4, 1, 1, false),
        Self::of(16, 2, 1, 1, false),
        Self::of(16, 1, 1, 1, false),
    ];

    const fn of(x: u32, y: u32, rows: u32, keys: u32, staged: bool) -> Self {
        Self {
            x,
            y,
            rows,
            keys,
            staged,
        }
    }

    fn rows(self) -> usize {
        (self.y * self.rows) as usize
    }

    fn keys(self) -> usize {
        (self.x * self.keys) as usize
    }

    /// Quads of workgroup memory: the queries' rows, the keys' or values', and the scores.
    fn memory(self, head_dim: usize, v_dim: usize) -> [usize; 3] {
        let pitch = head_dim.div_ceil(4) | 1;
        let v_pitch = v_dim.div_ceil(4) | 1;
        let staged = if self.staged {
            self.keys() * pitch.max(v_pitch)
        } else {
            1
        };
        [self.rows() * pitch, staged, self.rows() * self.keys() / 4]
    }

    /// The best tile that fits the adapter's workgroup memory and is not mostly empty.
    pub(super) fn choose(sizes: &Sizes, caps: &Caps) -> Option<Self> {
        let limit = caps.limits.max_compute_workgroup_storage_size as usize;
        let fits = |tile: &Self| {
            16 * tile
                .memory(sizes.head_dim, sizes.v_dim)
                .iter()
                .sum::<usize>()
                <= limit
        };
        let filled = |tile: &Self| tile.rows() < 2 * sizes.sharing();
        first_filled(&Self::ALL, fits, filled)
    }
}

impl Call<'_> {
    /// Maximum number of keys for one workgroup. An iteration covers the quads of a head in nested loops. Hardware tolerates that; a
    /// software adapter counts the steps, and a browser does not report which of them it uses.
    fn most_flash_keys(&self, tile: Tile) -> usize {
        if self.inputs[0].0.device().is_hardware() {
            return MOST_KEYS;
        }
        let Sizes {
            head_dim, v_dim, ..
        } = self.sizes;
        let quads = head_dim.div_ceil(4) + v_dim.div_ceil(4);
        let nested = (tile.rows + tile.keys) as usize + 1;
        (MOST_STEPS / (nested * quads + 2 * tile.keys())).max(1) * tile.keys()
    }

    pub(super) fn flash(&self, tile: Tile) -> Result<WebGpuStorage> {
        let (sizes, elem) = (self.sizes, self.elems[0]);
        let workgroups = sizes.blocks(tile.rows());
        let keys = self.span(tile.rows().div_ceil(sizes.group()) + 1);
        let splits = (BUSY_WORKGROUPS / workgroups).min(keys / LEAST_CHUNK);
        let splits = splits.max(keys.div_ceil(self.most_flash_keys(tile)));
        let parts = Parts::new(keys, splits.min(self.most_parts()), tile.keys());
        // A head that ends within a word of a packed dtype is written in f32 first.
        let out = if sizes.v_dim.is_multiple_of(elem.lanes() as usize) {
            elem
        } else {
            Elem::F32
        };
        self.run(parts, out, workgroups, |heads| SdpaFlash { tile, heads })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaFlash {
    tile: Tile,
    heads: Heads,
}

impl Kernel for SdpaFlash {
    type Params = AttentionParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { tile, heads } = self;
        let [_, staged, _] = tile.memory(heads.head_dim as usize, heads.v_dim as usize);
        heads
            .by_quads()
            .constant("STAGED", tile.staged)
            .constant("TX", tile.x)
            .constant("TY", tile.y)
            .constant("TILE_LEN", staged as u32)
            .unrolled::<AttentionParams>(
                include_str!("../../../shaders/sdpa_flash.wgsl"),
                &[
                    ("OWN_ROWS", tile.rows),
                    ("OWN_KEYS", tile.keys),
                    ("OWN_QUADS", heads.v_dim.div_ceil(4).div_ceil(tile.x)),
                    ("FOUR", 4),
                ],
            )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ragged_forms;
    use super::{Caps, Kernel, SdpaFlash, Sizes, Tile};

    #[test]
    fn every_form_is_valid_wgsl() {
        let dims = [[64, 64], [80, 36], [1, 300]].into_iter().cycle();
        for (tile, dims) in Tile::ALL.into_iter().zip(dims) {
            for heads in ragged_forms(dims) {
                SdpaFlash { tile, heads }
                    .shader(&Caps::default())
                    .assert_valid();
            }
        }
    }

    fn chosen(queries: usize, head_dim: usize, memory: u32) -> Option<Tile> {
        let sizes = Sizes {
            batch: 1,
            heads: 8,
            kv_heads: 2,
            queries,
            keys: 512,
            head_dim,
            v_dim: head_dim,
        };
        let limits = wgpu::Limits {
            max_compute_workgroup_storage_size: memory,
            ..Default::default()
        };
        let caps = Caps {
            limits,
            ..Caps::default()
        };
        Tile::choose(&sizes, &caps)
    }

    #[test]
    fn tiles_fit_the_workgroup_memory() {
        const BROWSER: u32 = 16 << 10;
        const LARGE: u32 = 48 << 10;
        assert_eq!(chosen(512, 64, LARGE), Some(Tile::ALL[0]));
        assert_eq!(chosen(512, 64, BROWSER), Some(Tile::ALL[1]));
        assert_eq!(chosen(512, 256, LARGE), Some(Tile::ALL[2]));
        assert_eq!(chosen(512, 256, BROWSER), Some(Tile::ALL[4]));
        // Four heads of three queries: twelve rows.
        assert_eq!(chosen(3, 64, LARGE), Some(Tile::ALL[2]));
        assert_eq!(chosen(512, 8192, BROWSER), None);
    }
}
