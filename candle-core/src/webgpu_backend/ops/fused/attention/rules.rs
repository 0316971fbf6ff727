//! The mask rules and score terms of attention, as WGSL that all attention kernels share.

use super::join::divisor;
use crate::fused::attention::{self, FAR};
use crate::webgpu_backend::kernel::{Elem, Shader};

pub(super) type Rules = attention::Rules<Elem>;

impl Rules {
    /// Whether there are no rules except `causal` and `softcap`.
    pub(super) fn plain(self) -> bool {
        let Self {
            softcap: _,
            causal: _,
            left,
            right,
            starts: _,
            lens,
            page: _,
            slopes,
            sinks,
            bias,
            blind: _,
        } = self;
        !(left || right || lens || slopes || sinks || bias.is_some())
    }

    /// Whether the visible keys of a row depend on more than `causal`.
    fn ranged(self) -> bool {
        self.left || self.right || self.lens
    }

    /// Declares the bindings of rules, after all others, and
    /// - `position_of(batch, at)`, the position of a row's query `at`,
    /// - `seen_begin(batch, at)` and `seen_end(batch, at)`, the range of its visible keys,
    /// - `slope_of(head)` and `sink_of(head)`,
    /// - `biased(score, batch, head, at, key, position)`, the score of a key that is seen, `LEAST` if its bias hides it,
    /// - `key_place(batch, key)`, where a row's key is among those of k and v,
    /// - `divisor(sum)`, what a row's sums are divided by.
    pub(super) fn declare(self, mut shader: Shader) -> Shader {
        if let Some(elem) = self.bias {
            shader = shader.input("bias", elem);
        }
        if self.slopes || self.sinks {
            shader = shader.input("by_head", Elem::F32);
        }
        if self.starts {
            shader = shader.input("starts", Elem::U32);
        }
        if self.lens {
            shader = shader.input("lens", Elem::U32);
        }
        if self.page.is_some() {
            shader = shader.input("pages", Elem::U32);
        }
        let place = match self.page {
            // A page that does not exist is the last one: nothing is read past the pool.
            Some(page) => format!(
                "min(pages_at(p.pages_offset + batch * p.pages_columns + key / {page}u), p.pages_last) * {page}u + key % {page}u"
            ),
            None => "key".into(),
        };
        let position = match self.starts {
            true => format!("i32(min(starts_at(p.starts_offset + batch), {FAR}u) + at)"),
            false => "i32(p.keys + at) - i32(p.queries)".into(),
        };
        let begin = if self.left {
            "u32(max(position_of(batch, at) - i32(p.left), 0))"
        } else {
            "0u"
        };
        let keys = if self.lens {
            "min(p.keys, lens_at(p.lens_offset + batch))"
        } else {
            "p.keys"
        };
        let end = match (self.causal, self.right) {
            (true, _) if self.lens => format!("min({keys}, p.keys - p.queries + at + 1u)"),
            (true, _) => "p.keys - p.queries + at + 1u".into(),
            (false, true) => {
                format!("u32(clamp(position_of(batch, at) + i32(p.right) + 1, 0, i32({keys})))")
            }
            (false, false) => keys.into(),
        };
        let by_head = |used: bool, offset: &str| {
            if used {
                format!("by_head_at(p.{offset} + head)")
            } else {
                "0.0".into()
            }
        };
        let (slope, sink) = (
            by_head(self.slopes, "slopes_offset"),
            by_head(self.sinks, "sinks_offset"),
        );
        let mut biased = String::from("var s = score;");
        if self.bias.is_some() {
            // The bits of -infinity: a compiler may assume that infinities do not occur.
            biased.push_str(
                " let b = bias_at(p.bias_offset + batch * p.bias_batch + head * p.bias_head + at * p.bias_seq + key * p.bias_key);\n\
                 if ((bitcast<u32>(b) & 0xff800000u) == 0xff800000u) { return LEAST; }\ns += b;",
            );
        }
        if self.slopes {
            biased.push_str("\ns -= slope_of(head) * f32(abs(i32(key) - position));");
        }
        if self.bias.is_some() || self.slopes {
            // A key whose bias is the least number is visible: LEAST is for hidden ones.
            biased.push_str("\ns = max(s, -0x1.fffffcp+127f);");
        }
        shader
            .constant("CAUSAL", self.causal)
            .constant("SOFTCAP", self.softcap)
            .constant("LEFT", self.left)
            .constant("PLAIN", self.plain())
            .constant("RANGED", self.ranged())
            .constant("BIASED", self.bias.is_some() || self.slopes)
            .constant("SLOPES", self.slopes)
            .constant("SINKS", self.sinks)
            .text(divisor(self.blind))
            .text(&format!(
                "const LEAST = -0x1.fffffep+127f;\n\
                 fn key_place(batch: u32, key: u32) -> u32 {{ return {place}; }}\n\
                 fn position_of(batch: u32, at: u32) -> i32 {{ return {position}; }}\n\
                 fn seen_begin(batch: u32, at: u32) -> u32 {{ return {begin}; }}\n\
                 fn seen_end(batch: u32, at: u32) -> u32 {{ return {end}; }}\n\
                 fn slope_of(head: u32) -> f32 {{ return {slope}; }}\n\
                 fn sink_of(head: u32) -> f32 {{ return {sink}; }}\n\
                 fn biased(score: f32, batch: u32, head: u32, at: u32, key: u32, position: i32) -> f32 {{ {biased}\nreturn s; }}"
            ))
    }
}
