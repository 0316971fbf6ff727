//! Many queries, beside keys and values in f16, where there are cooperative matrices: the flash kernel with the products of a tile left to them.

use std::fmt::Write;

use super::join::{Destination, Parts};
use super::{first_filled, AttentionParams, Call, Rules, Sizes};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Workgroups below which keys are cut into parts.
const BUSY_WORKGROUPS: usize = 256;
/// Keys in a part at the least: fewer take less time than joining their parts.
const LEAST_CHUNK: usize = 512;
/// The largest head whose sums stay in registers.
const MAX_HEAD_DIM: usize = 128;

/// Elements of a key and a value up to which an invocation of 32 rows has registers for the next of both.
const MAX_AHEAD: u32 = 128;

/// A workgroup: subgroups, the keys of a turn, and how often 16 rows a subgroup has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CoopTile {
    subgroups: u32,
    keys: u32,
    fragments: u32,
}

/// What the products are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matrices {
    Cooperative,
    /// Loops in f32: no adapter without cooperative matrices could run what is around them otherwise.
    #[cfg(test)]
    Plain,
}

impl CoopTile {
    /// Best first; the last one is for few rows.
    const ALL: [Self; 4] = [
        Self::of(4, 32, 2),
        Self::of(4, 64, 1),
        Self::of(4, 32, 1),
        Self::of(2, 32, 1),
    ];

    const fn of(subgroups: u32, keys: u32, fragments: u32) -> Self {
        Self {
            subgroups,
            keys,
            fragments,
        }
    }

    fn rows(self) -> usize {
        (16 * self.fragments * self.subgroups) as usize
    }

    /// Quads of keys and values in workgroup memory, which before them has the queries.
    fn tile_len(self, head_dim: usize, v_dim: usize) -> usize {
        let (pitch, v_pitch) = (head_dim / 4 + 2, v_dim / 4 + 2);
        (self.keys as usize * (pitch + v_pitch)).max(16 * self.subgroups as usize * pitch)
    }

    /// Bytes of workgroup memory, as the kernel lays them out: keys and values, scores in f32, weights, two turns.
    fn shared_bytes(self, head_dim: usize, v_dim: usize) -> usize {
        let (quads, halves) = (self.keys as usize / 4, 2 / self.fragments as usize);
        let rows = self.rows() * ((quads + halves) * 16 + (quads + 2) * 8);
        self.tile_len(head_dim, v_dim) * 8 + rows + 32
    }

    /// The first tile that the adapter takes and that is not mostly empty; none for heads that are not whole matrices or too large.
    pub(super) fn choose(sizes: &Sizes, caps: &Caps) -> Option<Self> {
        let dim_fits = |dim: usize| dim.is_multiple_of(16) && dim <= MAX_HEAD_DIM;
        if !caps.cooperative_attention || !dim_fits(sizes.head_dim) || !dim_fits(sizes.v_dim) {
            return None;
        }
        let limit = caps.limits.max_compute_workgroup_storage_size as usize;
        let fits = |tile: &Self| tile.shared_bytes(sizes.head_dim, sizes.v_dim) <= limit;
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
        self.with_matrices(tile, parts, Matrices::Cooperative)
    }

    fn with_matrices(
        &self,
        tile: CoopTile,
        parts: Parts,
        matrices: Matrices,
    ) -> Result<WebGpuStorage> {
        let Self { sizes, elem, .. } = *self;
        let device = self.inputs[0].0.device();
        let destination = Destination::new(self, parts, elem)?;
        let form = Form {
            tile,
            matrices,
            elem,
            head_dim: sizes.head_dim as u32,
            v_dim: sizes.v_dim as u32,
            rules: self.rules,
        };
        let kernel = match matrices {
            Matrices::Cooperative => "sdpa_cooperative",
            #[cfg(test)]
            Matrices::Plain => "sdpa_plain",
        };
        let key = self
            .key(kernel, destination.joins())
            .with(tile.subgroups, 3)
            .with(tile.keys, 7)
            .with(tile.fragments, 2);
        device.launch(
            key,
            || form.shader(|shader| destination.declare(shader), destination.joins()),
            &self.bindings(destination.target()),
            &self.kernel_params(parts.splits, parts.chunk)?,
            device.grid(sizes.blocks(tile.rows()) * parts.splits, 1),
        )?;
        destination.finish()
    }
}

/// What a shader is specialised for.
#[derive(Clone, Copy)]
struct Form {
    tile: CoopTile,
    matrices: Matrices,
    /// Of the queries and the result.
    elem: Elem,
    head_dim: u32,
    v_dim: u32,
    rules: Rules,
}

impl Form {
    /// `destination` adds the binding of what is written.
    fn shader(self, destination: impl FnOnce(Shader) -> Shader, joins: bool) -> Shader {
        let CoopTile {
            subgroups,
            keys,
            fragments,
        } = self.tile;
        let label = format!(
            "sdpa_cooperative {:?} d{} {}x{keys}",
            self.elem,
            self.head_dim,
            self.tile.rows()
        );
        let (head_dim, v_dim) = (self.head_dim as usize, self.v_dim as usize);
        let shader = Shader::new(label)
            .constant("HEAD_DIM", self.head_dim)
            .constant("V_DIM", self.v_dim);
        let shader = destination(self.matrices.inputs(shader, self.elem))
            .constant("SCALED", self.elem != Elem::F16);
        let shader = self
            .rules
            .declare(shader)
            .constant("SUBGROUPS", subgroups)
            .constant("KEYS", keys)
            .constant("FRAGMENTS", fragments)
            .constant(
                "AHEAD",
                fragments == 1 || self.head_dim + self.v_dim <= MAX_AHEAD,
            )
            .constant("TILE_LEN", self.tile.tile_len(head_dim, v_dim) as u32)
            .text(include_str!("../../../shaders/functions_float.wgsl"))
            .text(match joins {
                true => include_str!("../../../shaders/sdpa_flash_part.wgsl"),
                false => include_str!("../../../shaders/sdpa_flash_whole.wgsl"),
            })
            .body::<AttentionParams>(&self.body());
        match self.matrices {
            Matrices::Cooperative => {
                shader.directive("enable f16;\nenable wgpu_cooperative_matrix;\n")
            }
            #[cfg(test)]
            Matrices::Plain => shader,
        }
    }

    /// The kernel with a subgroup's matrices and an invocation's loads unrolled: naga takes no arrays of cooperative matrices.
    fn body(self) -> String {
        let matrices = self.matrices;
        let CoopTile {
            subgroups,
            keys,
            fragments,
        } = self.tile;
        let halves = 2 / fragments;
        let (wg, key_quads) = (32 * subgroups, keys / 4);
        // Matrices along a head, along a value, and along the keys.
        let (along, v_along, across) = (self.head_dim / 16, self.v_dim / 16, keys / 16);
        let mut declare = String::new();
        let (mut fetch, mut stage) = (
            [String::new(), String::new()],
            [String::new(), String::new()],
        );
        for (which, (name, dim)) in [("key", self.head_dim), ("value", self.v_dim)]
            .into_iter()
            .enumerate()
        {
            let (start, place) = (["k_start", "v_start"][which], ["tile", "value"][which]);
            for i in 0..keys * dim / 4 / wg {
                let quad = format!("local + {}u", i * wg);
                let _ = writeln!(declare, "var {name}{i} = Four();");
                let _ = writeln!(
                    fetch[which],
                    "{name}{i} = {name}_at({start}, NEXT, end, {quad});"
                );
                let _ = writeln!(stage[which], "tile[{place}_place({quad})] = {name}{i};");
            }
        }
        let mut queries = String::new();
        let (mut scores, mut sums) = (String::new(), String::new());
        for r in 0..fragments {
            for d in 0..v_along {
                let _ = writeln!(declare, "var sum{r}_{d} = {};", matrices.zero());
            }
            let _ = writeln!(
                queries,
                "stage_queries(q_start, first_row, rows, {r}u, local);\nworkgroupBarrier();"
            );
            for d in 0..along {
                let left = matrices.left("tile", &format!("tile_row + {}u", 4 * d));
                let _ = writeln!(queries, "let query{r}_{d} = {left};");
            }
            queries.push_str("workgroupBarrier();\n");
        }
        // The first places of a fragment's rows, of a subgroup's scores and weights.
        let scores_at =
            |r: u32, quads: u32| format!("score_row + {}u * SCORE_PITCH + {quads}u", 16 * r);
        let weights_at =
            |r: u32, quads: u32| format!("key_row + {}u * KEY_PITCH + {quads}u", 16 * r);
        for j in 0..across {
            for r in 0..fragments {
                let _ = writeln!(scores, "var score{r}_{j} = {};", matrices.zero());
            }
        }
        // Sums that do not wait for each other come next to each other; of two fragments there are enough for that, and registers are not.
        let mut steps: Vec<(u32, u32)> = (0..across)
            .flat_map(|j| (0..along).map(move |d| (j, d)))
            .collect();
        if fragments == 1 {
            steps.sort_by_key(|(j, d)| (*d, *j));
        }
        for (j, d) in steps {
            let right = matrices.keys(&format!("{}u * PITCH + {}u", 16 * j, 4 * d));
            let _ = writeln!(scores, "let key{j}_{d} = {right};");
            for r in 0..fragments {
                let product = matrices.product(&format!("query{r}_{d}, key{j}_{d}, score{r}_{j}"));
                let _ = writeln!(scores, "score{r}_{j} = {product};");
                if d + 1 == along {
                    scores += &matrices.store(&format!("score{r}_{j}"), &scores_at(r, 4 * j));
                }
            }
        }
        for j in 0..across {
            for r in 0..fragments {
                let left = matrices.left("weights", &weights_at(r, 4 * j));
                let _ = writeln!(sums, "let weight{r}_{j} = {left};");
            }
            for d in 0..v_along {
                let right =
                    matrices.values(&format!("VALUES + {}u * V_PITCH + {}u", 16 * j, 4 * d));
                let _ = writeln!(sums, "let value{j}_{d} = {right};");
                for r in 0..fragments {
                    let operands = format!("weight{r}_{j}, value{j}_{d}, sum{r}_{d}");
                    let product = matrices.product(&operands);
                    let _ = writeln!(sums, "sum{r}_{d} = {product};");
                }
            }
        }
        let (mut load_scores, mut put_weights) = (String::new(), String::new());
        for c in 0..key_quads / halves {
            let _ = writeln!(
                load_scores,
                "let s{c} = shown(scores[mine + {}u], first_key + {}u, own); highest = max(highest, s{c});",
                halves * c,
                4 * halves * c
            );
            let _ = writeln!(
                put_weights,
                "let w{c} = exp2(s{c} - most); turn_sum += w{c}; weights[my_weights + {}u] = Four(w{c});",
                halves * c
            );
        }
        let (mut correct, mut store) = (String::new(), String::new());
        // Sums pass through the scores' memory, as many at a time as fit.
        for first in (0..v_along).step_by(across as usize) {
            let round = first..v_along.min(first + across);
            let round_quads = 4 * (round.end - round.start);
            for r in 0..fragments {
                for d in round.clone() {
                    let put =
                        matrices.store(&format!("sum{r}_{d}"), &scores_at(r, 4 * (d - first)));
                    correct.push_str(&put);
                    store.push_str(&put);
                }
            }
            correct.push_str("workgroupBarrier();\n");
            store.push_str("workgroupBarrier();\n");
            let _ = writeln!(
                correct,
                "for (var c = 0u; c < {round_quads}u; c += HALVES) {{ scores[mine + c] *= correction; }}\nworkgroupBarrier();"
            );
            for r in 0..fragments {
                for d in round.clone() {
                    let sums = matrices.sums(&scores_at(r, 4 * (d - first)));
                    let _ = writeln!(correct, "sum{r}_{d} = {sums};");
                }
            }
            correct.push_str("workgroupBarrier();\n");
            let _ = writeln!(
                store,
                "if (row < rows) {{ for (var c = 0u; c < {round_quads}u; c += HALVES) {{\n\
                 store(dst_row, split, {}u + half + c, scores[mine + c], most * LN_2, whole_sum);\n}} }}\n\
                 workgroupBarrier();",
                4 * first
            );
        }
        let [fetch_keys, fetch_values] = fetch;
        let [stage_keys, stage_values] = stage;
        let mut body = include_str!("../../../shaders/sdpa_cooperative.wgsl").to_string();
        for (name, next) in [
            ("begin", "begin"),
            ("begin + KEYS", "begin + KEYS"),
            ("turn + KEYS", "turn + KEYS"),
            ("turn + 2u * KEYS", "turn + 2u * KEYS"),
        ] {
            body = body
                .replace(
                    &format!("FETCH_KEYS({name});"),
                    &fetch_keys.replace("NEXT", next),
                )
                .replace(
                    &format!("FETCH_VALUES({name});"),
                    &fetch_values.replace("NEXT", next),
                );
        }
        let (inputs, find) = matrices.subgroup();
        body.replace("SUBGROUP_INPUTS", inputs)
            .replace("SUBGROUP;", find)
            .replace("LOAD_QUERIES;", &queries)
            .replace("STAGE_KEYS;", &stage_keys)
            .replace("STAGE_VALUES;", &stage_values)
            .replace("LOAD_SCORES;", &load_scores)
            .replace("PUT_WEIGHTS;", &put_weights)
            .replace("IF_CORRECTED", matrices.corrected())
            .replace("CORRECT;", &correct)
            .replace("SCORES;", &scores)
            .replace("SUMS;", &sums)
            .replace("DECLARE;", &declare)
            .replace("STORE;", &store)
    }
}

/// The parts of the kernel that differ, as WGSL.
impl Matrices {
    /// The condition for correcting the sums, the same in all invocations. Browsers, which have no cooperative matrices, only believe
    /// that of a load that costs barriers.
    fn corrected(self) -> &'static str {
        match self {
            Self::Cooperative => "if (turns[1].x == turns[0].x)",
            #[cfg(test)]
            Self::Plain => {
                "let marks = workgroupUniformLoad(&turns);\n    if (marks[1].x == marks[0].x)"
            }
        }
    }

    /// q, k and v as `name_quad(start, quad)`, k and v in quads of type `Four`, q in those or in `vec4<f32>`; and `other_half`.
    fn inputs(self, mut shader: Shader, elem: Elem) -> Shader {
        match self {
            Self::Cooperative => {
                let f16 = match elem {
                    Elem::F16 => &["q", "k", "v"][..],
                    _ => {
                        shader = shader.head("q", elem, true, "HEAD_DIM");
                        &["k", "v"]
                    }
                };
                for name in f16 {
                    shader = shader.input_words(name, "vec4<f16>").text(&format!(
                        "fn {name}_quad(start: u32, quad: u32) -> vec4<f16> {{ return {name}[start / 4u + quad]; }}"
                    ));
                }
                shader.text(
                    "alias Four = vec4<f16>;\n\
                     fn other_half(x: f32, local: u32) -> f32 { return subgroupShuffleXor(x, 1u); }",
                )
            }
            #[cfg(test)]
            Self::Plain => [("q", "HEAD_DIM"), ("k", "HEAD_DIM"), ("v", "V_DIM")]
                .into_iter()
                .fold(shader, |shader, (name, dim)| {
                    shader.head(name, Elem::F32, true, dim)
                })
                .text(include_str!("../../../shaders/sdpa_matrices_plain.wgsl")),
        }
    }

    /// The builtins of which subgroup and lane an invocation is, or what stands for them.
    fn subgroup(self) -> (&'static str, &'static str) {
        match self {
            Self::Cooperative => (
                "@builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32",
                "",
            ),
            #[cfg(test)]
            Self::Plain => ("", "let subgroup = local / 32u; let lane = local % 32u;"),
        }
    }

    /// Sums of nothing.
    fn zero(self) -> &'static str {
        match self {
            Self::Cooperative => "coop_mat16x16<f32, C>()",
            #[cfg(test)]
            Self::Plain => "PlainSums()",
        }
    }

    /// The left side of a product: rows of `tile` or `weights`.
    fn left(self, array: &str, at: &str) -> String {
        let pitch = match array {
            "tile" => "PITCH",
            _ => "KEY_PITCH",
        };
        match self {
            Self::Cooperative => {
                format!("coopLoadT<coop_mat16x16<f16, A>>(&{array}[{at}], {pitch})")
            }
            #[cfg(test)]
            Self::Plain => format!("left_of_{array}({at}, lane)"),
        }
    }

    /// The right side of a product: keys, transposed.
    fn keys(self, at: &str) -> String {
        match self {
            Self::Cooperative => format!("coopLoad<coop_mat16x16<f16, B>>(&tile[{at}], PITCH)"),
            #[cfg(test)]
            Self::Plain => format!("right_of_keys({at}, lane)"),
        }
    }

    /// The right side of a product: values.
    fn values(self, at: &str) -> String {
        match self {
            Self::Cooperative => format!("coopLoadT<coop_mat16x16<f16, B>>(&tile[{at}], V_PITCH)"),
            #[cfg(test)]
            Self::Plain => format!("right_of_values({at}, lane)"),
        }
    }

    /// `left, right, sums`: the sums with the product added.
    fn product(self, operands: &str) -> String {
        match self {
            Self::Cooperative => format!("coopMultiplyAdd({operands})"),
            #[cfg(test)]
            Self::Plain => format!("multiply_add({operands})"),
        }
    }

    /// Puts sums into the scores' memory.
    fn store(self, sums: &str, at: &str) -> String {
        match self {
            // naga 30 does not emit a store's operands by itself: they must have names.
            Self::Cooperative => format!(
                "{{ let whole = {sums}; let slot = &scores[{at}]; let pitch = SCORE_PITCH; coopStoreT(whole, slot, pitch); }}\n"
            ),
            #[cfg(test)]
            Self::Plain => format!("put_scores({sums}, {at}, lane);\n"),
        }
    }

    /// Takes sums back from there.
    fn sums(self, at: &str) -> String {
        match self {
            Self::Cooperative => {
                format!("coopLoadT<coop_mat16x16<f32, C>>(&scores[{at}], SCORE_PITCH)")
            }
            #[cfg(test)]
            Self::Plain => format!("sums_of_scores({at}, lane)"),
        }
    }
}

#[cfg(test)]
#[path = "cooperative_tests.rs"]
pub(super) mod tests;
