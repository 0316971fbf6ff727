//! Many queries: a workgroup takes a tile of queries that share keys, and goes through the keys in tiles (Dao et al., arXiv
//! 2205.14135).

use std::fmt::Write;

use super::join::{Destination, Parts};
use super::{first_filled, AttentionParams, Call, Rules, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 256;
/// Keys in a part at the least.
const LEAST_CHUNK: usize = 64;

/// The shape of a workgroup and of what it works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Invocations along the keys, and along the rows.
    x: u32,
    y: u32,
    /// Rows and keys of an invocation.
    rows: u32,
    keys: u32,
    /// Whether keys and values go through workgroup memory.
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
    pub(super) fn flash(&self, tile: Tile) -> Result<WebGpuStorage> {
        let Self { sizes, elem, .. } = *self;
        let device = self.inputs[0].0.device();
        let workgroups = sizes.blocks(tile.rows());
        let keys = self.span(tile.rows().div_ceil(sizes.group()) + 1);
        let splits = (BUSY_WORKGROUPS / workgroups).min(keys / LEAST_CHUNK);
        let parts = Parts::new(keys, splits.min(self.most_parts()), tile.keys());
        // A head that ends within a word of a packed dtype is written in f32 first.
        let out = match sizes.v_dim.is_multiple_of(elem.lanes() as usize) {
            true => elem,
            false => Elem::F32,
        };
        let destination = Destination::new(self, parts, out)?;
        let key = self
            .key("sdpa_flash", destination.joins())
            .with(tile.y, 5)
            .with(tile.rows, 3)
            .with(tile.keys, 2)
            .with(tile.staged.into(), 1);
        let shader = || {
            let label = format!(
                "sdpa_flash {elem:?} d{} {}x{}",
                sizes.head_dim,
                tile.rows(),
                tile.keys()
            );
            let shader = destination.declare(self.heads(Shader::new(label)));
            self.rules
                .declare(shader)
                .constant("STAGED", tile.staged)
                .constant("TX", tile.x)
                .constant("TY", tile.y)
                .constant("ROWS", tile.rows() as u32)
                .constant("KEYS", tile.keys() as u32)
                .constant(
                    "TILE_LEN",
                    tile.memory(sizes.head_dim, sizes.v_dim)[1] as u32,
                )
                .text(include_str!("../../../shaders/functions_float.wgsl"))
                .text(match destination.joins() {
                    true => include_str!("../../../shaders/sdpa_flash_part.wgsl"),
                    false => include_str!("../../../shaders/sdpa_flash_whole.wgsl"),
                })
                .body::<AttentionParams>(&body(tile, sizes.v_dim, self.rules))
        };
        device.launch(
            key,
            shader,
            &self.bindings(destination.target()),
            &self.kernel_params(parts.splits, parts.chunk)?,
            device.grid(workgroups * parts.splits, 1),
        )?;
        destination.finish()
    }
}

/// The kernel with an invocation's rows, keys and quads unrolled, so that they stay in registers.
fn body(tile: Tile, v_dim: usize, rules: Rules) -> String {
    let quads = (v_dim.div_ceil(4) as u32).div_ceil(tile.x);
    let (mut declare, mut begin, mut products) = (String::new(), String::new(), String::new());
    let (mut put_scores, mut maxima, mut weights) = (String::new(), String::new(), String::new());
    let (mut sums, mut store) = (String::new(), String::new());
    let key_quad = match tile.staged {
        true => "tile[key * PITCH + d]",
        false => "k_quad(k_start + min(turn + key, end - 1u) * p.k_seq, d)",
    };
    for j in 0..tile.keys {
        let _ = writeln!(
            products,
            "var k{j}: vec4<f32>; {{ let key = x + {}u; k{j} = {key_quad}; }}",
            j * tile.x
        );
    }
    for i in 0..tile.rows {
        let row = format!("(y + {}u)", i * tile.y);
        let _ = writeln!(
            declare,
            "let row{i} = first_row + {row}; var most{i} = LEAST; var sum{i} = 0.0; var limit{i} = end;"
        );
        if rules.plain() && rules.causal {
            let _ = writeln!(
                declare,
                "limit{i} = min(end, p.keys - p.queries + row{i} / p.group + 1u);"
            );
        }
        if !rules.plain() {
            let _ = writeln!(
                declare,
                "let at{i} = row{i} / p.group; let head{i} = kv_head * p.group + row{i} % p.group;\n\
                 let position{i} = position_of(batch, at{i}); let from{i} = seen_begin(batch, at{i});\n\
                 limit{i} = select(0u, min(end, seen_end(batch, at{i})), row{i} < rows);\n\
                 if (SINKS && split == 0u) {{ most{i} = sink_of(head{i}); sum{i} = 1.0; }}"
            );
        }
        for q in 0..quads {
            let _ = writeln!(declare, "var acc{i}_{q} = vec4<f32>(0.0);");
        }
        let _ = writeln!(products, "let q{i} = queries[{row} * PITCH + d];");
        let _ = writeln!(
            maxima,
            "var higher{i} = most{i};\n\
             for (var c = 0u; c < KEY_QUADS; c++) {{\n\
             let s = scores[{row} * KEY_QUADS + c];\n\
             higher{i} = max(higher{i}, max(max(s.x, s.y), max(s.z, s.w)));\n}}"
        );
        let _ = writeln!(
            weights,
            "{{ let correction = exp(most{i} - higher{i}); most{i} = higher{i}; sum{i} *= correction;"
        );
        for q in 0..quads {
            let _ = writeln!(weights, "acc{i}_{q} *= correction;");
        }
        weights.push_str("}\n");
        for j in 0..tile.keys {
            let key = format!("(x + {}u)", j * tile.x);
            let place = format!("scores[{row} * KEY_QUADS + {key} / 4u][{key} % 4u]");
            let _ = writeln!(begin, "var s{i}_{j} = vec4<f32>(0.0);");
            let _ = writeln!(products, "s{i}_{j} = fma(q{i}, k{j}, s{i}_{j});");
            let _ = writeln!(put_scores, "var t{i}_{j} = dot(s{i}_{j}, vec4<f32>(1.0));");
            if rules.softcap {
                let _ = writeln!(
                    put_scores,
                    "t{i}_{j} = p.softcap * f_tanh(t{i}_{j} / p.softcap);"
                );
            }
            if rules.plain() {
                let _ = writeln!(
                    put_scores,
                    "if (turn + {key} >= limit{i}) {{ t{i}_{j} = LEAST; }}\n{place} = t{i}_{j};"
                );
                // A row that sees none of these keys has no maximum, and no weights.
                let _ = writeln!(
                    weights,
                    "t{i}_{j} = select(0.0, exp(t{i}_{j} - most{i}), turn + {key} < limit{i});\n{place} = t{i}_{j};"
                );
            } else {
                let _ = writeln!(
                    put_scores,
                    "if (turn + {key} < limit{i} && turn + {key} >= from{i}) {{\n\
                     t{i}_{j} = biased(t{i}_{j}, batch, head{i}, at{i}, turn + {key}, position{i});\n\
                     }} else {{ t{i}_{j} = LEAST; }}\n{place} = t{i}_{j};"
                );
                let _ = writeln!(
                    weights,
                    "t{i}_{j} = select(0.0, exp(t{i}_{j} - most{i}), t{i}_{j} > LEAST);\n{place} = t{i}_{j};"
                );
            }
        }
        let _ = writeln!(
            sums,
            "let w{i} = scores[{row} * KEY_QUADS + c];\n\
             sum{i} += dot(w{i}, vec4<f32>(1.0));"
        );
    }
    for lane in 0..4 {
        let weight = ["x", "y", "z", "w"][lane];
        for q in 0..quads {
            // Past the last quad a value is read that nobody stores.
            let quad = format!("min(x + {}u, V_QUADS - 1u)", q * tile.x);
            let value = match tile.staged {
                true => format!("tile[(c * 4u + {lane}u) * V_PITCH + {quad}]"),
                false => format!(
                    "v_quad(v_start + min(turn + c * 4u + {lane}u, end - 1u) * p.v_seq, {quad})"
                ),
            };
            let _ = writeln!(sums, "let v{lane}_{q} = {value};");
            for i in 0..tile.rows {
                let _ = writeln!(
                    sums,
                    "acc{i}_{q} = fma(vec4<f32>(w{i}.{weight}), v{lane}_{q}, acc{i}_{q});"
                );
            }
        }
    }
    for i in 0..tile.rows {
        let _ = writeln!(
            store,
            "if (row{i} < rows) {{\n\
             let dst_row = (batch * p.heads + kv_head * p.group + row{i} % p.group) * p.queries + row{i} / p.group;"
        );
        for q in 0..quads {
            let _ = writeln!(
                store,
                "if (x + {0}u < V_QUADS) {{ store(dst_row, split, x + {0}u, acc{i}_{q}, most{i}, sum{i}); }}",
                q * tile.x
            );
        }
        store.push_str("}\n");
    }
    include_str!("../../../shaders/sdpa_flash.wgsl")
        .replace("DECLARE;", &declare)
        .replace("BEGIN_SCORES;", &begin)
        .replace("PRODUCTS;", &products)
        .replace("PUT_SCORES;", &put_scores)
        .replace("MAXIMA;", &maxima)
        .replace("PUT_WEIGHTS;", &weights)
        .replace("SUMS;", &sums)
        .replace("STORE;", &store)
}

#[cfg(test)]
mod tests {
    use super::{Caps, Sizes, Tile};

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
