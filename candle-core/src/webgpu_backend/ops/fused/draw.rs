//! Samples a token for each row of logits.

use super::super::windows::{fit, Operand};
use super::super::{bind, index};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

const OP: &str = "draw";
/// Invocations of a row: every adapter has workgroups of this size.
const WORKGROUP: u32 = 256;
/// Maximum number of logits of a row: the loops of an invocation over 13 passes, of 37 steps for each 4,096 logits, have 62,000 steps in
/// total (`loops.rs`).
const MOST_LOGITS: usize = 1 << 19;
/// Number of sums per round of the search.
const SUMS: u32 = 14;

params!(DrawParams {
    x_offset: u32,
    draws_offset: u32,
    rows: u32,
    len: u32,
    words: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Draw {
    /// Whether rows are whole words of four logits.
    aligned: bool,
}

/// Reads a word of a row: four logits, with values too low for any token after the row's last.
const ALIGNED: &str =
    "fn word_at(start: u32, word: u32) -> vec4<f32> { return x[start / 4u + word]; }";
const UNALIGNED: &str = "fn logit_at(start: u32, i: u32) -> f32 {
  if (i < p.len) { return x_at(start + i); }
  return LEAST;
}
fn word_at(start: u32, word: u32) -> vec4<f32> {
  let i = 4u * word;
  return vec4<f32>(logit_at(start, i), logit_at(start, i + 1u), logit_at(start, i + 2u), logit_at(start, i + 3u));
}";

impl Kernel for Draw {
    type Params = DrawParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let (shader, read) = if self.aligned {
            (Shader::default().input_words("x", "vec4<f32>"), ALIGNED)
        } else {
            (Shader::default().input("x", Elem::F32), UNALIGNED)
        };
        let body = include_str!("../../shaders/draw.wgsl");
        shader
            .input("draws", Elem::U32)
            .output("dst", Elem::U32)
            .sums(caps, WORKGROUP, SUMS)
            .text(include_str!("../../shaders/philox.wgsl"))
            .body::<DrawParams>(&format!("{read}\n{body}"))
    }
}

/// See [`Fused::draw`](crate::fused::Fused::draw).
pub fn draw((x, x_l): Operand<'_>, (draws, draws_l): Operand<'_>) -> Result<WebGpuStorage> {
    let device = x.device();
    let [rows, len] = crate::fused::check_draw(x_l, x.dtype(), draws_l, draws.dtype())?;
    if len > MOST_LOGITS {
        crate::bail!(
            "{OP}: {} takes up to {MOST_LOGITS} f32 logits of a row, got {len}; draw on the CPU",
            device.name()
        )
    }
    let dst = device.alloc(2 * rows, DType::U32, OP)?;
    if !fit([x, draws, &dst]) {
        crate::bail!(
            "{OP}: logits of {rows} rows by {len} f32 are more than one binding of {} reaches; draw fewer rows at once",
            device.name()
        )
    }
    device.run(
        &Draw {
            aligned: len.is_multiple_of(4) && x_l.start_offset().is_multiple_of(4),
        },
        &[bind(x), bind(draws), bind(&dst)],
        &DrawParams {
            x_offset: index(x_l.start_offset())?,
            draws_offset: index(draws_l.start_offset())?,
            rows: index(rows)?,
            len: index(len)?,
            words: index(len.div_ceil(4))?,
        },
        device.grid(rows, 1),
    )?;
    Ok(dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shaders_are_valid() {
        for aligned in [true, false] {
            crate::webgpu_backend::kernel::assert_valid(&Draw { aligned });
        }
    }
}
