//! WGSL functions with which the kernels of products read their operands: by dtype, by format of quantised blocks, by an operand's layout.
//!
//! | kernel | functions |
//! |---|---|
//! | vector | `lhs_word(i)` and `rhs_word(i)` load `GROUP` elements from `i` on; `lhs_values`, `rhs_values` make numbers of them; `fma_values(a, b, sum)` adds the products to a `Sum`, and `sum_of` ends it |
//! | with a norm | `alpha_word(i)` as `lhs_word(i)`; `normed_values(lhs, alpha)` instead of `lhs_values(lhs)`; `fma_squares(lhs, sum)` adds squares to a `Sum` |
//! | tile | `name_block(base, outer, k, outer_len)`: four elements of each of four rows or columns |
//!
//! Loads are separate from the rest, so that a kernel can have several in flight.

use super::{elem_bytes, Access, Rhs};
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::ops::quantized::Pieces;
use crate::webgpu_backend::unroll::unrolled;

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
                    .text(include_str!("../../shaders/matmul_vector_blocks.wgsl"))
            }
            Rhs::Dense(elem) if wide => {
                let word = wide_word(elem);
                let values = match elem {
                    Elem::F32 => include_str!("../../shaders/matmul_vector_f32.wgsl"),
                    _ => include_str!("../../shaders/matmul_vector_halves.wgsl"),
                };
                self.input_words("lhs", word)
                    .input_words("rhs", word)
                    .constant("GROUP", 16 / elem_bytes(elem) as u32)
                    .text(&format!(
                        "alias Word = {word};\nalias Sum = vec4<f32>;\n\
                         fn sum_of(s: Sum) -> f32 {{ return dot(s, vec4<f32>(1.0)); }}\n\
                         fn lhs_word(i: u32) -> Word {{ return lhs[i / GROUP]; }}\n\
                         fn rhs_word(i: u32) -> Word {{ return rhs[i / GROUP]; }}"
                    ))
                    .text(halves(elem))
                    .text(values)
            }
            Rhs::Dense(elem) => self
                .input("lhs", lhs)
                .input("rhs", elem)
                .constant("GROUP", 1u32)
                .text(
                    "alias Word = f32;\nalias Sum = f32;\n\
                     fn sum_of(s: Sum) -> f32 { return s; }\n\
                     fn lhs_word(i: u32) -> Word { return lhs_at(i); }\n\
                     fn rhs_word(i: u32) -> Word { return rhs_at(i); }",
                )
                .text(include_str!("../../shaders/matmul_vector_f32.wgsl")),
        }
    }

    /// Both operands of the kernel for vectors of blocks.
    pub(super) fn piece_operands(self, lhs: Elem, pieces: Pieces) -> Self {
        let shader = self.input_words("lhs", wide_word(lhs));
        pieces
            .load(shader)
            .text(eight(lhs))
            .text(&eight_word("lhs", lhs))
            .text(include_str!("../../shaders/matmul_blocks_int8.wgsl"))
    }

    /// The same for lhs in 8 bits, 16 at once.
    pub(super) fn bytes_and_pieces(self, pieces: Pieces) -> Self {
        pieces
            .load(self.input_words("lhs", "vec4<u32>"))
            .text(include_str!("../../shaders/matmul_blocks_int8.wgsl"))
    }

    /// lhs of a kernel that converts it to 8 bits for such vectors.
    pub(super) fn bytes_of_rows(self, lhs: Elem, pieces: Pieces) -> Self {
        pieces
            .constants(self.input_eight("lhs", lhs))
            .text(include_str!("../../shaders/matmul_blocks_int8.wgsl"))
    }

    /// `alpha_word(i)` of kernels of few rows: the weights of a norm, which have the layout of a row of lhs, or a replacement.
    pub(super) fn norm_weights(self, normed: bool, lhs: Elem, rhs: Rhs, wide: bool) -> Self {
        match rhs {
            _ if !normed => self.norm_weights_in_eights(false, lhs),
            Rhs::Blocks(_) => self.norm_weights_in_eights(true, lhs),
            Rhs::Dense(_) if wide => self
                .input_words("alpha", wide_word(lhs))
                .text("fn alpha_word(i: u32) -> Word { return alpha[i / GROUP]; }"),
            Rhs::Dense(_) => self
                .input("alpha", lhs)
                .text("fn alpha_word(i: u32) -> Word { return alpha_at(i); }"),
        }
    }

    /// The same for kernels that read lhs by [`Self::input_eight`] or with blocks.
    pub(super) fn norm_weights_in_eights(self, normed: bool, lhs: Elem) -> Self {
        match normed {
            true => self
                .input_words("alpha", wide_word(lhs))
                .text(&eight_word("alpha", lhs)),
            false => self.text("fn alpha_word(i: u32) -> LhsWord { return LhsWord(); }"),
        }
    }

    /// An operand of the tile kernel: `name_block(base, outer, k, outer_len)` gives the four elements `outer .. outer + 4` for
    /// each of `k .. k + 4`, with zeros past the ends.
    pub(super) fn tile_operand(self, name: &str, rhs: Rhs, access: Access) -> Self {
        let shader = match rhs {
            Rhs::Blocks(format) => format
                .load(self)
                .text(include_str!("../../shaders/matmul_tile_blocks.wgsl")),
            Rhs::Dense(elem) if access == Access::Strided => self.input(name, elem),
            Rhs::Dense(elem) => dense_four(self, name, elem),
        };
        let block = match access {
            Access::Strided => include_str!("../../shaders/matmul_tile_strided.wgsl"),
            Access::Inner => include_str!("../../shaders/matmul_tile_inner.wgsl"),
            Access::Outer => include_str!("../../shaders/matmul_tile_outer.wgsl"),
        };
        shader.text(&unrolled(block, &[("FOUR", 4)]).replace("NAME", name))
    }
}

/// The factors of sums that undo the scaling of operands: powers of two, in bindings after the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scales {
    None,
    /// One for each row of lhs.
    Rows,
    /// One for each row of lhs and one for each column of rhs.
    Both,
}

impl Shader {
    /// `scaled(sum, row, col)`: an element of the product from its sum.
    pub(super) fn scales(self, scales: Scales) -> Self {
        let value = match scales {
            Scales::None => "sum",
            Scales::Rows => "sum * lhs_scales[row]",
            // The smaller factor first: in the other order a product in range could overflow in between.
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

    /// The operands of the cooperative kernel: eight elements of lhs at `lhs[e / 8u]`; for rhs `rhs_load(e)`, a load of `eights` times eight
    /// elements, of which `rhs_eight(load, i)` converts eight to f16.
    pub(super) fn cooperative_operands(self, rhs: Rhs, eights: u32) -> Self {
        let shader = self.input_words("lhs", "Eight");
        let shader = match rhs {
            Rhs::Dense(_) => shader.input_words("rhs", "Eight").text(
                "alias RhsLoad = Eight;\n\
                 fn rhs_load(e: u32) -> RhsLoad { return rhs[e / 8u]; }\n\
                 fn rhs_eight(load: RhsLoad, i: u32) -> Eight { return load; }",
            ),
            Rhs::Blocks(format) => match eights {
                1 => format.load(shader).text(
                    "alias RhsLoad = RhsWord;\n\
                     fn rhs_load(e: u32) -> RhsLoad { return rhs_word(e); }\n\
                     fn rhs_word_of(load: RhsLoad, i: u32) -> RhsWord { return load; }",
                ),
                _ => format.load_wide(shader).text(
                    "alias RhsLoad = RhsWide;\n\
                     fn rhs_load(e: u32) -> RhsLoad { return rhs_wide(e); }",
                ),
            }
            .text(include_str!("../../shaders/matmul_cooperative_blocks.wgsl")),
        };
        shader.text("struct Eight { @align(16) low: vec4<Half>, high: vec4<Half> }")
    }

    /// Eight elements of a dense input: `name_word(i)` loads them, `lhs_eight(word)` converts them to f32.
    pub(super) fn input_eight(self, name: &str, elem: Elem) -> Self {
        self.input_words(name, wide_word(elem))
            .text(eight(elem))
            .text(&eight_word(name, elem))
    }
}

/// A word of 16 bytes.
fn wide_word(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "vec4<f32>",
        _ => "vec4<u32>",
    }
}

/// `halves_of(w)`: the eight elements of a word of 16 bytes in two parts. Their order does not matter, as it is the same on both sides.
fn halves(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "",
        Elem::F16 => {
            "fn halves_of(w: Word) -> Halves { return Halves(\
               vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), \
               vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w))); }"
        }
        _ => {
            "fn halves_of(w: Word) -> Halves { return Halves(\
               bitcast<vec4<f32>>(w << vec4<u32>(16u)), bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u))); }"
        }
    }
}

/// Eight elements of a dense operand, in order, for products with blocks: loads, and conversions to numbers.
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

/// `name_word(i)`: loads the elements `i .. i + 8` of a binding.
fn eight_word(name: &str, elem: Elem) -> String {
    let load = match elem {
        Elem::F32 => format!("LhsWord({name}[i / 4u], {name}[i / 4u + 1u])"),
        _ => format!("{name}[i / 8u]"),
    };
    format!("fn {name}_word(i: u32) -> LhsWord {{ return {load}; }}")
}

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
