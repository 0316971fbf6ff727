//! Few queries, without subgroups: a workgroup computes the rows that share keys and values, over a part of the keys, so that these are
//! read once for all heads of a group.

use super::join::{self, Parts};
use super::{decode, AttentionParams, Call, Heads};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// Invocations of a workgroup: few enough that several workgroups, with all their registers, fit a multiprocessor at once.
pub(super) const WORKGROUP: u32 = 128;
/// Invocations that share a key.
const SHARERS: u32 = 8;
/// Maximum number of rows of a workgroup.
const MOST_ROWS: usize = 8;
/// Maximum number of keys that an invocation has a share of per iteration.
const MOST_KEYS: u32 = 4;
/// Vectors of keys that an invocation has in flight at once.
const LOADS: u32 = 8;
/// Number of sums that an invocation computes before it shares them.
const MOST_SUMS: u32 = 16;
/// Number of rows whose sums are added over crews at once.
const FOLD: u32 = 2;
/// Keys of a part, independent of the rest of the batch: a sequence must have the same result alone and in a batch, bit for bit. Few enough
/// that one sequence of some thousands of keys keeps a large GPU busy, and enough that joining parts takes little time in comparison.
const PART: usize = 256;
/// Maximum number of parts, while these may get longer.
const MOST_SPLITS: usize = 8192;

/// Elements in 16 bytes of keys and values. `None` if heads are not whole vectors of them, with a bias, which may be far below the kernels'
/// value for "no score", and if the adapter has no workgroups of [`WORKGROUP`] invocations.
pub(super) fn piece(call: &Call<'_>) -> Option<u32> {
    let limits = &call.inputs[0].0.device().kernels().caps.limits;
    let largest = limits
        .max_compute_invocations_per_workgroup
        .min(limits.max_compute_workgroup_size_x);
    let piece = if call.elems[1] == Elem::F32 { 4 } else { 8 };
    let whole = |place: usize| {
        let layout = call.inputs[place].1;
        let steps = layout.stride()[..3].iter().chain(&layout.dims()[3..]);
        layout.start_offset().is_multiple_of(piece)
            && steps.into_iter().all(|step| step.is_multiple_of(piece))
    };
    let in_vectors = decode::fits(&call.sizes, call.elems[0]) && whole(1) && whole(2);
    let fits = in_vectors && largest >= WORKGROUP;
    (fits && call.rules.bias.is_none() && call.sizes.sharing() > 0).then_some(piece as u32)
}

/// Specialisation constants of the kernel, in addition to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Rows of a workgroup.
    rows: u32,
    /// Elements in 16 bytes of keys and values.
    piece: u32,
    head_dim: u32,
    v_dim: u32,
}

impl Form {
    /// The maximum number of rows for which the adapter has enough workgroup memory.
    pub(super) fn choose(call: &Call<'_>) -> Option<Self> {
        let (sizes, caps) = (&call.sizes, &call.inputs[0].0.device().kernels().caps);
        let piece = piece(call)?;
        // Blocks of rows of nearly equal size.
        let sharing = sizes.sharing();
        let blocks = sharing.div_ceil(MOST_ROWS)..=sharing;
        let mut forms = blocks.map(|blocks| Self {
            rows: sharing.div_ceil(blocks) as u32,
            piece,
            head_dim: sizes.head_dim as u32,
            v_dim: sizes.v_dim as u32,
        });
        forms.find(|form| form.shared_bytes() <= caps.limits.max_compute_workgroup_storage_size)
    }

    /// Vectors of a key per invocation.
    fn steps(self) -> u32 {
        (self.head_dim / self.piece).div_ceil(SHARERS)
    }

    /// Keys that an invocation has a share of per iteration.
    fn own_keys(self) -> u32 {
        let (loads, sums) = (LOADS / self.steps(), MOST_SUMS / self.rows);
        MOST_KEYS.min(loads).min(sums).max(1)
    }

    fn sums(self) -> u32 {
        self.own_keys() * self.rows
    }

    /// Keys per iteration.
    fn turn(self) -> u32 {
        WORKGROUP / SHARERS * self.own_keys()
    }

    fn crews(self) -> u32 {
        WORKGROUP / (self.v_dim / self.piece)
    }

    fn fold(self) -> u32 {
        FOLD.min(self.rows)
    }

    /// Number of elements of `partials`.
    fn partials(self) -> u32 {
        WORKGROUP * self.sums().max(self.fold() * self.piece)
    }

    /// Bytes of workgroup memory in the kernel's layout.
    fn shared_bytes(self) -> u32 {
        let quads = self.piece / 4;
        let query = self.rows * self.steps() * quads * SHARERS * 16;
        let by_row = self.rows * (16 + 8 + 8 * self.turn() + 8 * self.crews());
        query + by_row + self.partials() * 4
    }
}

impl Call<'_> {
    pub(super) fn grouped(&self, form: Form) -> Result<WebGpuStorage> {
        let turn = form.turn() as usize;
        let keys = self.span((form.rows as usize).div_ceil(self.sizes.group()) + 1);
        let mut chunk = PART.next_multiple_of(turn);
        let most = self.most_parts().min(MOST_SPLITS);
        while keys.div_ceil(chunk) > most && 2 * chunk <= join::MOST_KEYS {
            chunk *= 2;
        }
        let parts = Parts {
            splits: keys.div_ceil(chunk).max(1),
            chunk,
            // Even for few parts: parts without weight then do not change a bit.
            many: 2,
        };
        let workgroups = self.sizes.blocks(form.rows as usize);
        self.run(parts, self.elems[0], workgroups, |heads| SdpaGrouped {
            form,
            heads,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaGrouped {
    form: Form,
    heads: Heads,
}

impl Kernel for SdpaGrouped {
    type Params = AttentionParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { form, heads } = self;
        heads
            .shader(|shader| {
                shader
                    .head("q", heads.elem, heads.wide, "HEAD_DIM")
                    .input_words("k", "vec4<u32>")
                    .input_words("v", "vec4<u32>")
            })
            .constant("WG", WORKGROUP)
            .constant("PIECE", form.piece)
            .constant("PARTIALS", form.partials())
            .constant("KV_BF16", heads.kv_elem == Elem::BF16)
            .unrolled::<AttentionParams>(
                include_str!("../../../shaders/sdpa_grouped.wgsl"),
                &[
                    ("ROWS", form.rows),
                    ("PIECE_QUADS", form.piece / 4),
                    ("SHARERS", SHARERS),
                    ("STEPS", form.steps()),
                    ("OWN_KEYS", form.own_keys()),
                    ("OUTPUTS", form.sums().div_ceil(SHARERS)),
                    ("CREW_KEYS", form.turn().div_ceil(form.crews())),
                    ("FOLD", form.fold()),
                    ("FOLDS", form.rows.div_ceil(form.fold())),
                    ("FOUR", 4),
                ],
            )
    }
}

#[cfg(test)]
#[path = "grouped_tests.rs"]
pub(super) mod tests;
