//! What the kernels of products read their operands with, in WGSL: by dtype, by format of quantised blocks, by an
//! operand's layout.
//!
//! | kernel | functions |
//! |---|---|
//! | vector | `lhs_word(i)` and `rhs_word(i)` load `GROUP` elements from `i` on; `lhs_values`, `rhs_values` make numbers of them; `fma_values(a, b, sum)` adds the products to a `Sum`, and `sum_of` ends it |
//! | with a norm | `alpha_word(i)` as `lhs_word(i)`; `normed_values(lhs, alpha)` in place of `lhs_values(lhs)`; `fma_squares(lhs, sum)` adds squares to a `Sum` |
//! | tile | `name_block(base, outer, k, outer_len)`: four elements of each of four rows or columns |
//!
//! Loads are apart from the rest so that a kernel can have many of them on their way.

use std::fmt::Write;

use super::{elem_bytes, Access, Rhs};
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::ops::quantized::Pieces;

impl Shader {
    /// Both operands of the vector kernel; `wide` if dense ones can be read in words of 16 bytes.
    pub(super) fn vector_operands(self, lhs: Elem, rhs: Rhs, wide: bool) -> Self {
        match rhs {
            Rhs::Blocks(format) => {
                let bias = format!("const LHS_BIAS = f32({});", format.bias());
                let shader = self
                    .input_words("lhs", wide_word(lhs))
                    .constant("GROUP", 8u32);
                format
                    .load(shader)
                    .text(&bias)
                    .text(eight(lhs))
                    .text(&eight_word("lhs", lhs))
                    .text(BLOCKS_FMA)
            }
            Rhs::Dense(elem) if wide => self
                .input_words("lhs", wide_word(elem))
                .input_words("rhs", wide_word(elem))
                .constant("GROUP", 16 / elem_bytes(elem) as u32)
                .text(wide_fma(elem))
                .text(VEC4_SUM),
            Rhs::Dense(elem) => self
                .input("lhs", lhs)
                .input("rhs", elem)
                .constant("GROUP", 1u32)
                .text(NARROW_FMA)
                .text(F32_SUM),
        }
    }

    /// Both operands of the kernel with pieces of blocks.
    pub(super) fn piece_operands(self, lhs: Elem, pieces: Pieces) -> Self {
        let shader = self.input_words("lhs", wide_word(lhs));
        pieces
            .load(shader)
            .text(eight(lhs))
            .text(&eight_word("lhs", lhs))
            .text(include_str!("../../shaders/matmul_blocks_int8.wgsl"))
    }

    /// The weights of a norm for it; without one, what stands in their place.
    pub(super) fn piece_norm(self, lhs: Elem, normed: bool) -> Self {
        match normed {
            true => self
                .input_words("alpha", wide_word(lhs))
                .text(&eight_word("alpha", lhs)),
            false => self.text("fn alpha_word(i: u32) -> LhsWord { return LhsWord(); }"),
        }
    }

    /// The weights of a norm for the vector kernel, which have the layout of a row of lhs.
    pub(super) fn norm_weights(self, lhs: Elem, rhs: Rhs, wide: bool) -> Self {
        if let Rhs::Blocks(_) = rhs {
            return self
                .input_words("alpha", wide_word(lhs))
                .text(&eight_word("alpha", lhs))
                .text(BLOCKS_NORM);
        }
        if !wide {
            let load = "fn alpha_word(i: u32) -> f32 { return alpha_at(i); }\n";
            let norm = dense_norm("f32", "f32", "v * a");
            return self.input("alpha", lhs).text(&format!("{load}{norm}"));
        }
        let word = wide_word(lhs);
        let norm = match lhs {
            Elem::F32 => dense_norm(word, word, "v * a"),
            Elem::F16 => dense_norm(word, "Eight", "Eight(v.low * a.low, v.high * a.high)"),
            _ => dense_norm(word, "Eight", "Eight(v.even * a.even, v.odd * a.odd)"),
        };
        self.input_words("alpha", word).text(&format!(
            "fn alpha_word(i: u32) -> {word} {{ return alpha[i / GROUP]; }}\n{norm}"
        ))
    }

    /// An operand of the tile kernel: `name_block(base, outer, k, outer_len)` gives the four elements `outer .. outer + 4` for
    /// each of `k .. k + 4`, with zeros past the ends.
    pub(super) fn tile_operand(self, name: &str, rhs: Rhs, access: Access) -> Self {
        let shader = match rhs {
            Rhs::Blocks(format) => format.load(self).text(BLOCKS_FOUR),
            Rhs::Dense(elem) if access == Access::Strided => self.input(name, elem),
            Rhs::Dense(elem) => dense_four(self, name, elem),
        };
        shader.text(&block(name, access))
    }
}

/// What sums are multiplied by, as operands were before: powers of two, in bindings after the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    None,
    /// One for each row of lhs.
    Rows,
    /// And one for each column of rhs.
    Both,
}

impl Shader {
    /// `scaled(sum, row, col)`: an element of the product from its sum.
    pub(super) fn scales(self, scales: Scales) -> Self {
        let value = match scales {
            Scales::None => "sum",
            Scales::Rows => "sum * lhs_scales[row]",
            // The smaller one first: the other way a product in range could overflow between the two.
            Scales::Both => {
                "sum * min(lhs_scales[row], rhs_scales[col]) * max(lhs_scales[row], rhs_scales[col])"
            }
        };
        let names = ["lhs_scales", "rhs_scales"];
        names[..scales as usize]
            .iter()
            .fold(self, |shader, name| shader.input_words(name, "f32"))
            .text(&format!(
                "fn scaled(sum: f32, row: u32, col: u32) -> f32 {{ return {value}; }}"
            ))
    }

    /// The operands of the cooperative kernel: eight elements of lhs at `lhs[e / 8u]`; of rhs `rhs_load(e)`, which `rhs_eight`
    /// makes f16 of.
    pub(super) fn cooperative_operands(self, rhs: Rhs) -> Self {
        let shader = self.input_words("lhs", "Eight");
        let shader = match rhs {
            Rhs::Dense(_) => shader.input_words("rhs", "Eight").text(DENSE_EIGHT),
            Rhs::Blocks(format) => format.load(shader).text(BLOCKS_EIGHT),
        };
        shader.text("struct Eight { @align(16) low: vec4<Half>, high: vec4<Half> }")
    }

    /// Eight elements of a dense input: `name_word(i)` loads them, `lhs_eight(word)` makes f32 of them.
    pub(super) fn input_eight(self, name: &str, elem: Elem) -> Self {
        self.input_words(name, wide_word(elem))
            .text(eight(elem))
            .text(&eight_word(name, elem))
    }
}

const DENSE_EIGHT: &str = "alias RhsLoad = Eight;\n\
    fn rhs_load(e: u32) -> RhsLoad { return rhs[e / 8u]; }\n\
    fn rhs_eight(load: RhsLoad) -> Eight { return load; }";

/// Scale and offset are few, so what is the same for eight elements is worked out for them: an element takes one instruction.
const BLOCKS_EIGHT: &str = "alias RhsLoad = RhsWord;\n\
    fn rhs_load(e: u32) -> RhsLoad { return rhs_word(e); }\n\
    fn rhs_eight(load: RhsLoad) -> Eight {\n\
    \x20 let v = rhs_values(load);\n\
    \x20 let scale = vec4<f32>(v.scale * p.factor);\n\
    \x20 let offset = vec4<f32>(fma(v.scale, -BIAS, v.offset) * p.factor);\n\
    \x20 return Eight(vec4<Half>(fma(v.low, scale, offset)), vec4<Half>(fma(v.high, scale, offset)));\n}";

/// A word of 16 bytes.
fn wide_word(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "vec4<f32>",
        _ => "vec4<u32>",
    }
}

const VEC4_SUM: &str = "alias Sum = vec4<f32>;\n\
    fn sum_of(s: Sum) -> f32 { return dot(s, vec4<f32>(1.0)); }";

const F32_SUM: &str = "alias Sum = f32;\nfn sum_of(s: Sum) -> f32 { return s; }";

/// WGSL for sums of products of two words.
fn wide_fma(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => {
            "fn lhs_word(i: u32) -> vec4<f32> { return lhs[i / 4u]; }\n\
             fn rhs_word(i: u32) -> vec4<f32> { return rhs[i / 4u]; }\n\
             fn lhs_values(w: vec4<f32>) -> vec4<f32> { return w; }\n\
             fn rhs_values(w: vec4<f32>) -> vec4<f32> { return w; }\n\
             fn fma_values(a: vec4<f32>, b: vec4<f32>, sum: Sum) -> Sum { return fma(a, b, sum); }"
        }
        Elem::F16 => {
            "fn lhs_word(i: u32) -> vec4<u32> { return lhs[i / 8u]; }\n\
             fn rhs_word(i: u32) -> vec4<u32> { return rhs[i / 8u]; }\n\
             struct Eight { low: vec4<f32>, high: vec4<f32> }\n\
             fn lhs_values(w: vec4<u32>) -> Eight { return Eight(\
               vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), \
               vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w))); }\n\
             fn rhs_values(w: vec4<u32>) -> Eight { return lhs_values(w); }\n\
             fn fma_values(a: Eight, b: Eight, sum: Sum) -> Sum { return fma(a.high, b.high, fma(a.low, b.low, sum)); }"
        }
        // The order of elements does not matter, as it is the same on both sides.
        _ => {
            "fn lhs_word(i: u32) -> vec4<u32> { return lhs[i / 8u]; }\n\
             fn rhs_word(i: u32) -> vec4<u32> { return rhs[i / 8u]; }\n\
             struct Eight { even: vec4<f32>, odd: vec4<f32> }\n\
             fn lhs_values(w: vec4<u32>) -> Eight { return Eight(\
               bitcast<vec4<f32>>(w << vec4<u32>(16u)), bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u))); }\n\
             fn rhs_values(w: vec4<u32>) -> Eight { return lhs_values(w); }\n\
             fn fma_values(a: Eight, b: Eight, sum: Sum) -> Sum { return fma(a.odd, b.odd, fma(a.even, b.even, sum)); }"
        }
    }
}

/// The same for single elements.
const NARROW_FMA: &str = "fn lhs_word(i: u32) -> f32 { return lhs_at(i); }\n\
    fn rhs_word(i: u32) -> f32 { return rhs_at(i); }\n\
    fn lhs_values(w: f32) -> f32 { return w; }\n\
    fn rhs_values(w: f32) -> f32 { return w; }\n\
    fn fma_values(a: f32, b: f32, sum: Sum) -> Sum { return fma(a, b, sum); }";

/// What a norm does to a dense lhs whose words are of type `word` and their numbers of type `values`.
fn dense_norm(word: &str, values: &str, product: &str) -> String {
    format!(
        "fn normed_values(lhs: {word}, alpha: {word}) -> {values} {{\n\
         \x20 let v = lhs_values(lhs);\n  let a = lhs_values(alpha);\n  return {product};\n}}\n\
         fn fma_squares(lhs: {word}, sum: Sum) -> Sum {{\n\
         \x20 let v = lhs_values(lhs);\n  return fma_values(v, v, sum);\n}}"
    )
}

/// Eight elements of a dense operand, in order, for products with blocks: how they are loaded, and as numbers.
fn eight(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => {
            "alias LhsWord = array<vec4<f32>, 2>;\n\
             fn lhs_eight(w: LhsWord) -> array<vec4<f32>, 2> { return w; }"
        }
        Elem::F16 => {
            "alias LhsWord = vec4<u32>;\n\
             fn lhs_eight(w: LhsWord) -> array<vec4<f32>, 2> { return array<vec4<f32>, 2>(\
               vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), \
               vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w))); }"
        }
        _ => {
            "alias LhsWord = vec4<u32>;\n\
             fn lhs_eight(w: LhsWord) -> array<vec4<f32>, 2> { return array<vec4<f32>, 2>(\
               bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u)), \
               bitcast<vec4<f32>>(vec4<u32>(w.z << 16u, w.z & 0xffff0000u, w.w << 16u, w.w & 0xffff0000u))); }"
        }
    }
}

/// `name_word(i)`: the elements `i .. i + 8` of a binding, as they are loaded.
fn eight_word(name: &str, elem: Elem) -> String {
    let load = match elem {
        Elem::F32 => format!("LhsWord({name}[i / 4u], {name}[i / 4u + 1u])"),
        _ => format!("{name}[i / 8u]"),
    };
    format!("fn {name}_word(i: u32) -> LhsWord {{ return {load}; }}")
}

/// Products with blocks: codes are multiplied as they come, scale, offset and what codes are too large by are applied to
/// eight products at once. The sum of lhs that this needs is made once for all columns.
const BLOCKS_FMA: &str = "alias Sum = f32;\nfn sum_of(s: Sum) -> f32 { return s; }\n\
    struct LhsValues { low: vec4<f32>, high: vec4<f32>, sum: f32, bias: f32 }\n\
    fn with_sums(low: vec4<f32>, high: vec4<f32>) -> LhsValues {\n\
    \x20 let four = low + high;\n\
    \x20 let sum = (four.x + four.y) + (four.z + four.w);\n\
    \x20 return LhsValues(low, high, sum, sum * LHS_BIAS);\n}\n\
    fn lhs_values(w: LhsWord) -> LhsValues {\n\
    \x20 let v = lhs_eight(w);\n  return with_sums(v[0], v[1]);\n}\n\
    fn fma_values(a: LhsValues, b: RhsValues, sum: Sum) -> Sum {\n\
    \x20 let product = dot(a.low, b.low) + dot(a.high, b.high) - a.bias;\n\
    \x20 return fma(b.scale, product, fma(b.offset, a.sum, sum));\n}";

/// What a norm does to lhs in products with blocks.
const BLOCKS_NORM: &str = "fn normed_values(lhs: LhsWord, alpha: LhsWord) -> LhsValues {\n\
    \x20 let v = lhs_eight(lhs);\n  let a = lhs_eight(alpha);\n\
    \x20 return with_sums(v[0] * a[0], v[1] * a[1]);\n}\n\
    fn fma_squares(lhs: LhsWord, sum: Sum) -> Sum {\n\
    \x20 let v = lhs_eight(lhs);\n  return sum + (dot(v[0], v[0]) + dot(v[1], v[1]));\n}";

/// Four elements of blocks in f32, from a place that is a multiple of four.
const BLOCKS_FOUR: &str = "fn rhs_four(i: u32) -> vec4<f32> {\n\
    \x20 let values = rhs_elements(rhs_word(i & 0xfffffff8u));\n\
    \x20 return select(values[0], values[1], (i & 4u) != 0u);\n}";

/// Binds a dense operand that is read in groups of four: `name_four(i)`.
fn dense_four(shader: Shader, name: &str, elem: Elem) -> Shader {
    let (word, unpack) = match elem {
        Elem::F32 => ("vec4<f32>", "w"),
        Elem::F16 => (
            "vec2<u32>",
            "vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))",
        ),
        _ => (
            "vec2<u32>",
            "bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))",
        ),
    };
    shader.input_words(name, word).text(&format!(
        "fn {name}_four(i: u32) -> vec4<f32> {{ let w = {name}[i / 4u]; return {unpack}; }}"
    ))
}

/// `name_block` over `name_four`, or for any strides over `name_at`.
fn block(name: &str, access: Access) -> String {
    let (row, col) = (format!("p.{name}_row"), format!("p.{name}_col"));
    let mut text = format!(
        "fn {name}_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {{\n"
    );
    let zero = "vec4<f32>(0.0)";
    match access {
        Access::Strided => {
            let _ = write!(
                text,
                "  var m: mat4x4<f32>;\n\
                 \x20 for (var j = 0u; j < 4u; j++) {{\n\
                 \x20   for (var i = 0u; i < 4u; i++) {{\n\
                 \x20     if (outer + i < outer_len && k + j < p.k) {{\n\
                 \x20       m[j][i] = {name}_at(base + (outer + i) * {row} + (k + j) * {col});\n\
                 \x20     }}\n    }}\n  }}\n  return m;\n}}"
            );
        }
        Access::Inner => {
            let _ = writeln!(text, "  if (k >= p.k) {{ return mat4x4<f32>(); }}");
            for i in 0..4 {
                let _ = writeln!(
                    text,
                    "  var r{i} = {zero}; if (outer + {i}u < outer_len) {{ r{i} = {name}_four(base + (outer + {i}u) * {row} + k); }}"
                );
            }
            text.push_str("  return transpose(mat4x4<f32>(r0, r1, r2, r3));\n}");
        }
        Access::Outer => {
            let _ = writeln!(
                text,
                "  if (outer >= outer_len) {{ return mat4x4<f32>(); }}"
            );
            for j in 0..4 {
                let _ = writeln!(
                    text,
                    "  var c{j} = {zero}; if (k + {j}u < p.k) {{ c{j} = {name}_four(base + outer + (k + {j}u) * {col}); }}"
                );
            }
            text.push_str("  return mat4x4<f32>(c0, c1, c2, c3);\n}");
        }
    }
    text
}
