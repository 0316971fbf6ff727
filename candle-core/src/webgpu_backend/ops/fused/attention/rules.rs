//! Which keys a query sees and what is added to their scores, as WGSL that all attention kernels share.

use super::super::float_elem;
use super::join::divisor;
use super::{SdpaParams, Sizes, OP};
use crate::webgpu_backend::kernel::{Elem, Key, Shader};
use crate::webgpu_backend::WebGpuDevice;
use crate::{DType, Result};

/// The largest distance and position that kernels tell from others, so that sums of them stay in an i32.
pub(super) const FAR: usize = 0x1fff_ffff;

/// What a kernel is specialised for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) softcap: bool,
    /// The last query is at the last key, and keys after a query are hidden.
    pub(super) causal: bool,
    /// Keys too far back are hidden.
    pub(super) left: bool,
    /// Keys too far ahead are hidden, in other ways than `causal`.
    pub(super) right: bool,
    pub(super) starts: bool,
    pub(super) lens: bool,
    pub(super) slopes: bool,
    pub(super) sinks: bool,
    pub(super) bias: Option<Elem>,
    /// A row may see no key.
    pub(super) blind: bool,
}

impl Rules {
    pub(super) fn new(
        params: &SdpaParams<'_>,
        sizes: &Sizes,
        device: &WebGpuDevice,
    ) -> Result<Self> {
        use crate::backend::BackendStorage;
        let at_the_end = params.starts.is_none() && sizes.queries <= sizes.keys;
        let causal = at_the_end && params.right == Some(0);
        let dims = [sizes.batch, sizes.heads, sizes.queries, sizes.keys];
        let bias = match params.bias {
            Some((bias, layout)) if layout.dims() == dims => {
                Some(float_elem(device, bias.dtype(), OP)?)
            }
            Some((_, layout)) => crate::bail!("sdpa: a bias of {:?} for {dims:?}", layout.shape()),
            None => None,
        };
        for (name, vector, len, dtype) in [
            ("slopes", params.slopes, sizes.heads, DType::F32),
            ("sinks", params.sinks, sizes.heads, DType::F32),
            ("starts", params.starts, sizes.batch, DType::U32),
            ("lens", params.lens, sizes.batch, DType::U32),
        ] {
            let Some((storage, layout)) = vector else {
                continue;
            };
            let fits = layout.dims() == [len] && layout.is_contiguous();
            if !fits || storage.dtype() != dtype {
                crate::bail!(
                    "sdpa: {name} are {:?} of {:?}, they have to be {len} contiguous elements of {dtype:?}",
                    layout.shape(),
                    storage.dtype()
                )
            }
        }
        if let (Some((slopes, _)), Some((sinks, _))) = (params.slopes, params.sinks) {
            if !std::ptr::eq(slopes, sinks) {
                crate::bail!("sdpa: slopes and sinks have to be parts of one storage")
            }
        }
        // One query at the last key sees all that is behind it.
        let to_the_end = at_the_end && sizes.queries == 1 && params.right.is_some();
        let by_distance = params.left.is_some() || params.right.is_some();
        Ok(Self {
            softcap: params.softcap.is_some(),
            causal,
            left: params.left.is_some(),
            right: params.right.is_some() && !causal && !to_the_end,
            starts: params.starts.is_some(),
            lens: params.lens.is_some(),
            slopes: params.slopes.is_some(),
            sinks: params.sinks.is_some(),
            bias,
            blind: bias.is_some() || params.lens.is_some() || by_distance && !at_the_end,
        })
    }

    /// Whether there are no rules but `causal` and `softcap`.
    pub(super) fn plain(self) -> bool {
        let Self {
            softcap: _,
            causal: _,
            left,
            right,
            starts: _,
            lens,
            slopes,
            sinks,
            bias,
            blind: _,
        } = self;
        !(left || right || lens || slopes || sinks || bias.is_some())
    }

    /// Whether the keys that a row sees depend on more than `causal`.
    fn ranged(self) -> bool {
        self.left || self.right || self.lens
    }

    pub(super) fn key(self, key: Key) -> Key {
        let flags = [
            self.softcap,
            self.causal,
            self.left,
            self.right,
            self.starts,
            self.lens,
            self.slopes,
            self.sinks,
            self.bias.is_some(),
            self.blind,
        ];
        let key = flags
            .into_iter()
            .fold(key, |key, flag| key.with(flag.into(), 1));
        key.elem(self.bias.unwrap_or(Elem::F32))
    }

    /// The bindings of rules, after all others; and
    /// - `position_of(batch, at)`, the position of a row's query `at`,
    /// - `seen_begin(batch, at)` and `seen_end(batch, at)`, the keys that it sees,
    /// - `slope_of(head)` and `sink_of(head)`,
    /// - `biased(score, batch, head, at, key, position)`, the score of a key that is seen, `LEAST` if its bias hides it,
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
        let position = match self.starts {
            true => format!("i32(min(starts_at(p.starts_offset + batch), {FAR}u) + at)"),
            false => "i32(p.keys + at) - i32(p.queries)".into(),
        };
        let begin = match self.left {
            true => "u32(max(position_of(batch, at) - i32(p.left), 0))",
            false => "0u",
        };
        let keys = match self.lens {
            true => "min(p.keys, lens_at(p.lens_offset + batch))",
            false => "p.keys",
        };
        let end = match (self.causal, self.right) {
            (true, _) if self.lens => format!("min({keys}, p.keys - p.queries + at + 1u)"),
            (true, _) => "p.keys - p.queries + at + 1u".into(),
            (false, true) => {
                format!("u32(clamp(position_of(batch, at) + i32(p.right) + 1, 0, i32({keys})))")
            }
            (false, false) => keys.into(),
        };
        let by_head = |used: bool, offset: &str| match used {
            true => format!("by_head_at(p.{offset} + head)"),
            false => "0.0".into(),
        };
        let (slope, sink) = (
            by_head(self.slopes, "slopes_offset"),
            by_head(self.sinks, "sinks_offset"),
        );
        let mut biased = String::from("var s = score;");
        if self.bias.is_some() {
            // The bits of -infinity, which a compiler may assume not to be there.
            biased.push_str(
                " let b = bias_at(p.bias_offset + batch * p.bias_batch + head * p.bias_head + at * p.bias_seq + key * p.bias_key);\n\
                 if ((bitcast<u32>(b) & 0xff800000u) == 0xff800000u) { return LEAST; }\ns += b;",
            );
        }
        if self.slopes {
            biased.push_str("\ns -= slope_of(head) * f32(abs(i32(key) - position));");
        }
        if self.bias.is_some() || self.slopes {
            // A key with the least number for a bias is seen: LEAST is for hidden ones.
            biased.push_str("\ns = max(s, -0x1.fffffcp+127f);");
        }
        shader
            .constant("CAUSAL", self.causal)
            .constant("SOFTCAP", self.softcap)
            .constant("LEFT", self.left)
            .constant("RANGED", self.ranged())
            .constant("BIASED", self.bias.is_some() || self.slopes)
            .constant("SLOPES", self.slopes)
            .constant("SINKS", self.sinks)
            .text(divisor(self.blind))
            .text(&format!(
                "const LEAST = -0x1.fffffep+127f;\n\
                 fn position_of(batch: u32, at: u32) -> i32 {{ return {position}; }}\n\
                 fn seen_begin(batch: u32, at: u32) -> u32 {{ return {begin}; }}\n\
                 fn seen_end(batch: u32, at: u32) -> u32 {{ return {end}; }}\n\
                 fn slope_of(head: u32) -> f32 {{ return {slope}; }}\n\
                 fn sink_of(head: u32) -> f32 {{ return {sink}; }}\n\
                 fn biased(score: f32, batch: u32, head: u32, at: u32, key: u32, position: i32) -> f32 {{ {biased}\nreturn s; }}"
            ))
    }
}
