//! The destination of a kernel: the result, or parts over some of the keys each, which a second kernel joins.

use super::super::super::{bind, index, MOST_STEPS};
use super::super::finish;
use super::Call;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

params!(JoinParams {
    rows: u32,
    splits: u32,
});

/// Maximum number of keys of a workgroup, in iterations of 8 or more, each with separate loops.
pub(super) const MOST_KEYS: usize = MOST_STEPS / 2;

/// The division of the keys into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) splits: usize,
    /// Keys in a part.
    pub(super) chunk: usize,
    /// Minimum number of parts for which a workgroup joins those of a row.
    pub(super) many: usize,
}

impl Parts {
    /// About `splits` parts of whole iterations of `turn` keys, or more parts if these would be too long; none is empty.
    pub(super) fn new(keys: usize, splits: usize, turn: usize) -> Self {
        let splits = splits.max(keys.div_ceil(MOST_KEYS));
        let turns = keys.div_ceil(turn);
        let chunk = turns.div_ceil(splits.max(1)) * turn;
        Self {
            splits: keys.div_ceil(chunk).max(1),
            chunk,
            many: MANY,
        }
    }
}

/// Minimum number of parts for which a workgroup joins those of a row; a single invocation would wait for each part in sequence.
const MANY: usize = 8;
/// Maximum number of parts that it joins, and maximum number of rows that count as few.
const MOST: usize = 1024;
/// Invocations of such a workgroup, and parts that each has in flight at once.
const ROW_WORKGROUP: u32 = 256;
const AHEAD: u32 = 4;
const FEW_ROWS: usize = 4096;
/// Invocations of any other workgroup.
const WORKGROUP: u32 = 64;

/// WGSL for the divisor of sums: the sum of weights, and 1 for a row without any.
pub(super) fn divisor(blind: bool) -> &'static str {
    if blind {
        "fn divisor(sum: f32) -> f32 { return select(sum, 1.0, sum == 0.0); }"
    } else {
        "fn divisor(sum: f32) -> f32 { return sum; }"
    }
}

/// The destination of a kernel's stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The result.
    Whole(Elem),
    Parts,
}

impl Target {
    /// `dst`, or `parts_out`: a head, its maximum and its sum of weights per part; and `store(dst_row, split, quad, value, most, sum)`,
    /// which writes four sums.
    pub(super) fn declare(self, shader: Shader) -> Shader {
        match self {
            Self::Whole(out) => shader
                .output("dst", out)
                .text(include_str!("../../../shaders/sdpa_whole.wgsl")),
            Self::Parts => shader
                .output_words("parts_out", "f32")
                .text(include_str!("../../../shaders/sdpa_part.wgsl")),
        }
    }
}

/// The result of a call, and the parts that are joined into it.
pub(super) struct Destination {
    dst: WebGpuStorage,
    dtype: DType,
    rows: usize,
    splits: usize,
    join: SdpaJoin,
    parts: Option<WebGpuStorage>,
}

impl Destination {
    /// `out` is the dtype of the result's storage: not the inputs' if a head would end within a word.
    pub(super) fn new(call: &Call<'_>, parts: Parts, out: Elem) -> Result<Self> {
        const OP: &str = "sdpa";
        let Parts { splits, many, .. } = parts;
        let device = call.inputs[0].0.device();
        let (rows, v_dim) = (call.sizes.rows(), call.sizes.v_dim);
        let dtype = call.inputs[0].0.dtype();
        let made = if out == call.elems[0] {
            dtype
        } else {
            DType::F32
        };
        let quads = v_dim.is_multiple_of(4) && v_dim <= 4 * ROW_WORKGROUP as usize;
        let few = rows <= FEW_ROWS || many < MANY;
        Ok(Self {
            dst: device.alloc(rows * v_dim, made, OP)?,
            dtype,
            rows,
            splits,
            join: SdpaJoin {
                out,
                v_dim: v_dim as u32,
                blind: call.rules.blind,
                by_row: quads && few && (many..=MOST).contains(&splits),
            },
            parts: match splits {
                1 => None,
                _ => Some(device.alloc(rows * splits * (v_dim + 2), DType::F32, OP)?),
            },
        })
    }

    pub(super) fn target(&self) -> Target {
        match self.parts {
            Some(_) => Target::Parts,
            None => Target::Whole(self.join.out),
        }
    }

    /// The storage that the kernel writes.
    pub(super) fn storage(&self) -> &WebGpuStorage {
        self.parts.as_ref().unwrap_or(&self.dst)
    }

    /// Joins the parts, after the kernel is queued.
    pub(super) fn finish(self) -> Result<WebGpuStorage> {
        let Self { dst, join, .. } = self;
        if let Some(parts) = self.parts {
            let device = dst.device();
            let grid = if join.by_row {
                device.grid(self.rows, 1)
            } else {
                device.grid(dst.len() / join.out.lanes() as usize, WORKGROUP)
            };
            let params = JoinParams {
                rows: index(self.rows)?,
                splits: index(self.splits)?,
            };
            device.run(&join, &[bind(&parts), bind(&dst)], &params, grid)?;
        }
        finish(dst, self.dtype)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SdpaJoin {
    out: Elem,
    v_dim: u32,
    /// Whether a row may see no key.
    blind: bool,
    /// Whether a workgroup joins a row, because there are many parts and few rows.
    by_row: bool,
}

impl Kernel for SdpaJoin {
    type Params = JoinParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let shader = Shader::default()
            .input_words("parts_in", "f32")
            .output("dst", self.out)
            .constant("V_DIM", self.v_dim)
            .text(divisor(self.blind));
        if self.by_row {
            shader
                .constant("MOST_SPLITS", MOST as u32)
                .sums(caps, ROW_WORKGROUP, 1)
                .unrolled::<JoinParams>(
                    include_str!("../../../shaders/sdpa_join_row.wgsl"),
                    &[("AHEAD", AHEAD)],
                )
        } else {
            shader
                .constant("WG", WORKGROUP)
                .body::<JoinParams>(include_str!("../../../shaders/sdpa_join.wgsl"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Parts, SdpaJoin};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        for out in [Elem::F32, Elem::F16, Elem::BF16] {
            for flags in 0..4 {
                assert_valid(&SdpaJoin {
                    out,
                    v_dim: 72,
                    blind: flags & 1 == 1,
                    by_row: flags & 2 == 2,
                });
            }
        }
    }

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
