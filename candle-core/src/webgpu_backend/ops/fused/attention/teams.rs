//! Few queries, with subgroups: a workgroup computes the rows that share keys and values, over a part of the keys, and teams of a subgroup's
//! lanes take these in turns, without barriers.

use std::fmt::Write;

use super::grouped::{piece, WORKGROUP};
use super::join::{self, Parts};
use super::{AttentionParams, Call, Heads};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Lanes of a team: at least one for each row, at most those of the subgroups that most adapters have.
const LEAST_TEAM: u32 = 8;
const MOST_TEAM: u32 = 32;
/// Maximum number of rows of a workgroup.
const MOST_ROWS: usize = 8;
/// Maximum number of elements that a lane keeps of its rows: of the queries, and again of the sums.
const MOST_KEPT: u32 = 64;
/// Vectors of keys that a lane has in flight at once, and of values.
const LOADS: u32 = 8;
/// Number of sums that a lane computes before its team adds them; two per lane of the team, if it keeps little of its rows.
const MOST_SUMS: u32 = 16;
const LITTLE_KEPT: u32 = 32;
/// Quads of workgroup memory for the sums of subgroups.
const PARTIALS: u32 = 512;

/// Maximum number of keys in a part that is the only one, and minimum number of keys in one of several: computing fewer takes less time
/// than joining the parts.
const SINGLE_PART: usize = 256;
const LEAST_PART: usize = 128;
/// Workgroups of a text that keep a large GPU busy; more keys make parts longer.
const BUSY_WORKGROUPS: usize = 512;

/// Specialisation constants of the kernel, in addition to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Rows of a workgroup.
    rows: u32,
    /// Elements in 16 bytes of keys and values.
    piece: u32,
    head_dim: u32,
    v_dim: u32,
    subgroup: u32,
}

impl Form {
    /// The maximum number of rows for which lanes have registers. `None` if the adapter has no subgroups of [`LEAST_TEAM`] lanes, or heads
    /// are too large.
    pub(super) fn choose(call: &Call<'_>) -> Option<Self> {
        let (sizes, caps) = (&call.sizes, &call.inputs[0].0.device().kernels().caps);
        let piece = piece(call)?;
        let subgroup = caps
            .subgroup
            .filter(|size| *size >= LEAST_TEAM && WORKGROUP.is_multiple_of(*size))?;
        // Blocks of rows of nearly equal size.
        let sharing = sizes.sharing();
        let blocks = sharing.div_ceil(MOST_ROWS)..=sharing;
        let mut forms = blocks.map(|blocks| Self {
            rows: sharing.div_ceil(blocks) as u32,
            piece,
            head_dim: sizes.head_dim as u32,
            v_dim: sizes.v_dim as u32,
            subgroup,
        });
        let memory = caps.limits.max_compute_workgroup_storage_size;
        forms.find(|form| form.kept() <= MOST_KEPT && form.shared_bytes() <= memory)
    }

    /// Lanes that share a key.
    fn team(self) -> u32 {
        let pieces = self.head_dim.max(self.v_dim) / self.piece;
        pieces
            .next_power_of_two()
            .clamp(LEAST_TEAM, MOST_TEAM.min(self.subgroup))
    }

    /// Vectors of a key per lane.
    fn packs(self) -> u32 {
        (self.head_dim.max(self.v_dim) / self.piece).div_ceil(self.team())
    }

    fn kept(self) -> u32 {
        self.rows * self.packs() * self.piece
    }

    fn row_slots(self) -> u32 {
        self.rows.next_power_of_two()
    }

    /// Keys of a team per iteration.
    fn ahead(self) -> u32 {
        let most_sums = match self.kept() {
            ..=LITTLE_KEPT => MOST_SUMS.max(2 * self.team()),
            _ => MOST_SUMS,
        };
        let sums = most_sums / self.row_slots();
        let most = (LOADS / self.packs()).min(sums);
        1 << most.max(1).ilog2()
    }

    /// Scores that a lane has after the sums over a team.
    fn outputs(self) -> u32 {
        (self.row_slots() * self.ahead() / self.team()).max(1)
    }

    /// Keys per iteration.
    fn turn(self) -> u32 {
        WORKGROUP / self.team() * self.ahead()
    }

    /// Number of rows whose sums are joined at once.
    fn fold(self) -> u32 {
        let row = WORKGROUP / self.subgroup * self.v_dim / 4;
        (PARTIALS / row).clamp(1, self.rows)
    }

    /// Bytes of workgroup memory in the kernel's layout.
    fn shared_bytes(self) -> u32 {
        let subgroups = WORKGROUP / self.subgroup;
        subgroups * (self.rows * 8 + self.fold() * self.v_dim * 4)
    }

    /// WGSL that adds `sums` over the lanes of a team: while there are several, lanes exchange halves of them.
    fn sums_over_team(self) -> String {
        let (mut text, mut step) = (String::new(), self.team() / 2);
        let mut len = self.row_slots() * self.ahead();
        while step > 0 {
            len /= 2;
            for i in 0..len {
                let other = i + len;
                let _ = writeln!(
                    text,
                    "sums[{i}] = exchanged(sums[{i}], sums[{other}], place, {step}u);"
                );
            }
            if len == 0 {
                let _ = writeln!(text, "sums[0] += subgroupShuffleXor(sums[0], {step}u);");
            }
            step /= 2;
        }
        text
    }
}

impl Call<'_> {
    pub(super) fn teams(&self, form: Form) -> Result<WebGpuStorage> {
        let keys = self.span((form.rows as usize).div_ceil(self.sizes.group()) + 1);
        let parts = self.team_parts(form, keys);
        let workgroups = self.sizes.blocks(form.rows as usize);
        self.run(parts, self.elems[0], workgroups, |heads| SdpaTeams {
            form,
            heads,
        })
    }

    /// The division of at most `keys` keys. The kernel doubles the length of parts until a text has no more than `splits`: the division of
    /// a text must not depend on others.
    fn team_parts(&self, form: Form, keys: usize) -> Parts {
        let text = self.sizes.blocks(form.rows as usize) / self.sizes.batch;
        let chunk = LEAST_PART.next_multiple_of(form.turn() as usize);
        let most = BUSY_WORKGROUPS.div_ceil(text).min(self.most_parts());
        let splits = match keys {
            ..=SINGLE_PART => 1,
            _ => keys
                .div_ceil(chunk)
                .min(most.max(keys.div_ceil(join::MOST_KEYS))),
        };
        Parts {
            splits,
            chunk,
            many: 2,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaTeams {
    form: Form,
    heads: Heads,
}

impl Kernel for SdpaTeams {
    type Params = AttentionParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { form, heads } = self;
        let text = include_str!("../../../shaders/sdpa_teams.wgsl");
        let quads = form.piece / 4;
        heads
            .shader(|shader| {
                shader
                    .head("q", heads.elem, heads.wide, "HEAD_DIM")
                    .input_words("k", "vec4<u32>")
                    .input_words("v", "vec4<u32>")
            })
            .constant("WG", WORKGROUP)
            .constant("SINGLE", SINGLE_PART as u32)
            .constant("SUBGROUP", form.subgroup)
            .constant("TEAM", form.team())
            .constant("PIECE", form.piece)
            .constant("KV_BF16", heads.kv_elem == Elem::BF16)
            .unrolled::<AttentionParams>(
                &text.replace("SUMS_OVER_TEAM", &form.sums_over_team()),
                &[
                    ("ROWS", form.rows),
                    ("ROW_SLOTS", form.row_slots()),
                    ("PIECE_QUADS", quads),
                    ("PACKS", form.packs()),
                    ("PACKS_QUADS", form.packs() * quads),
                    ("AHEAD", form.ahead()),
                    ("OUTPUTS", form.outputs()),
                    ("SPREAD", form.ahead() / form.outputs()),
                    ("FOLD", form.fold()),
                    ("FOLDS", form.rows.div_ceil(form.fold())),
                ],
            )
    }
}

#[cfg(test)]
#[path = "teams_tests.rs"]
mod tests;
