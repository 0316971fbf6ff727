//! Where a kernel puts its result: at once, or as parts over some of the keys each, which are joined by a second kernel.

use super::super::super::{bind, index};
use super::super::finish;
use super::unroll::unrolled;
use super::Call;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

params!(JoinParams {
    rows: u32,
    splits: u32,
});

/// How the keys are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) splits: usize,
    /// Keys in a part.
    pub(super) chunk: usize,
}

impl Parts {
    /// About `splits` parts of whole turns of `turn` keys; none is empty.
    pub(super) fn new(keys: usize, splits: usize, turn: usize) -> Self {
        let turns = keys.div_ceil(turn);
        let chunk = turns.div_ceil(splits.max(1)) * turn;
        Self {
            splits: keys.div_ceil(chunk).max(1),
            chunk,
        }
    }
}

/// From this many parts on, a workgroup joins those of a row.
const MANY: usize = 8;
/// The most parts that it takes, and the most rows that are few.
const MOST: usize = 1024;
/// Invocations of such a workgroup, and the parts that each has on their way at once.
const ROW_WORKGROUP: u32 = 256;
const AHEAD: u32 = 4;
const FEW_ROWS: usize = 4096;

/// WGSL of what sums are divided by: the sum of weights, and 1 for a row without any.
pub(super) fn divisor(blind: bool) -> &'static str {
    match blind {
        true => "fn divisor(sum: f32) -> f32 { return select(sum, 1.0, sum == 0.0); }",
        false => "fn divisor(sum: f32) -> f32 { return sum; }",
    }
}

/// The result of a call, and the parts that it is joined from.
pub(super) struct Destination {
    dst: WebGpuStorage,
    out: Elem,
    dtype: DType,
    v_dim: usize,
    /// Whether a row may see nothing.
    blind: bool,
    rows: usize,
    splits: usize,
    /// From how many parts on a workgroup takes a row.
    many: usize,
    parts: Option<WebGpuStorage>,
}

impl Destination {
    /// `out` is what the result is made in: another than the inputs' where a head would end within a word.
    pub(super) fn new(call: &Call<'_>, parts: Parts, out: Elem) -> Result<Self> {
        const OP: &str = "sdpa";
        let device = call.inputs[0].0.device();
        let (rows, v_dim) = (call.sizes.rows(), call.sizes.v_dim);
        let dtype = call.inputs[0].0.dtype();
        let made = if out == call.elem { dtype } else { DType::F32 };
        let parts_len = rows * parts.splits * (v_dim + 2);
        Ok(Self {
            dst: device.alloc(rows * v_dim, made, OP)?,
            out,
            dtype,
            v_dim,
            blind: call.rules.blind,
            rows,
            splits: parts.splits,
            many: MANY,
            parts: match parts.splits {
                1 => None,
                _ => Some(device.alloc(parts_len, DType::F32, OP)?),
            },
        })
    }

    /// With a workgroup to each row, however few its parts are: parts that count for nothing do not change a bit then.
    pub(super) fn by_row(self) -> Self {
        Self { many: 2, ..self }
    }

    pub(super) fn joins(&self) -> bool {
        self.parts.is_some()
    }

    /// What the kernel writes.
    pub(super) fn target(&self) -> &WebGpuStorage {
        self.parts.as_ref().unwrap_or(&self.dst)
    }

    /// The binding of [`target`](Self::target): `dst`, or `parts_out`, a head, its maximum and its sum of weights a part.
    pub(super) fn declare(&self, shader: Shader) -> Shader {
        match self.joins() {
            true => shader.output_words("parts_out", "f32"),
            false => shader.output("dst", self.out),
        }
    }

    /// Whether a workgroup takes a row, because parts are many and rows are few: an invocation would wait for one part after the other.
    fn takes_rows(&self) -> bool {
        let quads = self.v_dim.is_multiple_of(4) && self.v_dim <= 4 * ROW_WORKGROUP as usize;
        let few = self.rows <= FEW_ROWS || self.many < MANY;
        quads && few && (self.many..=MOST).contains(&self.splits)
    }

    /// Joins the parts, once the kernel is on its way.
    pub(super) fn finish(self) -> Result<WebGpuStorage> {
        const WORKGROUP: u32 = 64;
        let by_row = self.takes_rows();
        let Some(parts) = self.parts else {
            return finish(self.dst, self.dtype);
        };
        let (out, v_dim, blind) = (self.out, self.v_dim, self.blind);
        let key = Key::new("sdpa_join")
            .elem(out)
            .with(v_dim as u32, 16)
            .with(blind.into(), 1)
            .with(by_row.into(), 1);
        let device = self.dst.device();
        let shader = || {
            let shader = Shader::new(format!("sdpa_join {out:?} d{v_dim}"))
                .input_words("parts_in", "f32")
                .output("dst", out)
                .constant("V_DIM", v_dim as u32)
                .text(divisor(blind));
            match by_row {
                true => shader
                    .constant("MOST_SPLITS", MOST as u32)
                    .constant("AHEAD", AHEAD)
                    .reduction(device, ROW_WORKGROUP, 1)
                    .text(&unrolled(
                        include_str!("../../../shaders/sdpa_join_row.wgsl"),
                        &[("AHEAD", AHEAD)],
                        &["parts"],
                    )),
                false => shader
                    .constant("WG", WORKGROUP)
                    .text(include_str!("../../../shaders/sdpa_join.wgsl")),
            }
            .body::<JoinParams>("")
        };
        let grid = match by_row {
            true => device.grid(self.rows, 1),
            false => device.grid(self.rows * v_dim / out.lanes() as usize, WORKGROUP),
        };
        let params = JoinParams {
            rows: index(self.rows)?,
            splits: index(self.splits)?,
        };
        device.launch(key, shader, &[bind(&parts), bind(&self.dst)], &params, grid)?;
        finish(self.dst, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    fn parts_are_whole_turns_and_none_is_empty() {
        for (keys, splits, turn, expected) in [
            (1, 16, 128, (1, 128)),
            (128, 4, 128, (1, 128)),
            (129, 16, 128, (2, 128)),
            (1000, 3, 32, (3, 352)),
            (1000, 30, 32, (16, 64)),
        ] {
            let parts = Parts::new(keys, splits, turn);
            assert_eq!(
                (parts.splits, parts.chunk),
                expected,
                "{keys} {splits} {turn}"
            );
            assert!(parts.chunk * (parts.splits - 1) < keys && parts.chunk * parts.splits >= keys);
        }
    }
}
