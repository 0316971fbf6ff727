//! WGSL that reads eight elements of blocks from their planes, for every kernel over a quantised weight.
//!
//! The functions are `rhs_word(e)`, which loads the data of elements `e .. e + 8` and nothing more, so that several loads can be in flight
//! at once; `rhs_values(word)`, their codes as floats with `scale` and `offset`; and `rhs_elements(word)`, the elements themselves, rounded
//! as on the CPU.
//!
//! A code becomes a float without an integer conversion, which is slow on GPUs: after the exponent of an f16, `B` bits of code are `2^B +
//! code`, two per word. `rhs_values` keeps `2^B` and the code of zero (`BIAS`); a sum of products subtracts it once, with the sum of the
//! other side.

use std::fmt::Write;

use super::format::{Format, Scales};
use crate::webgpu_backend::kernel::Shader;

/// Component `i` of a vector of four. An index that is not constant would put the vector into memory, even where `i` becomes constant when a
/// function is inlined.
fn component(vector: &str, i: &str) -> String {
    format!("select(select({vector}.x, {vector}.y, {i} == 1u), select({vector}.z, {vector}.w, {i} == 3u), {i} >= 2u)")
}

/// The type that `rhs_values` returns.
const VALUES: &str =
    "struct RhsValues { low: vec4<f32>, high: vec4<f32>, scale: f32, offset: f32 }\n";

impl Format {
    /// Bias of the stored codes.
    pub(in crate::webgpu_backend) fn bias(self) -> u32 {
        if self.table.is_some() {
            return 0;
        }
        (1 << (self.low + self.high)) + self.zero
    }

    /// Adds the bindings of the planes and the functions over them.
    pub(in crate::webgpu_backend) fn load(self, mut shader: Shader) -> Shader {
        let word = if self.low == 8 { "vec2<u32>" } else { "u32" };
        shader = shader.input_words("rhs_codes", word);
        if self.high > 0 {
            shader = shader.input_words("rhs_high", "u32");
        }
        if self.has_sub_scales() {
            shader = shader.input_words("rhs_sub", "u32");
        }
        shader = shader.input_words("rhs_scales", "u32");
        shader.text(&self.word()).text(&self.values())
    }

    /// Elements of a load of 16 bytes of codes.
    pub(in crate::webgpu_backend) fn wide(self) -> u32 {
        128 / self.low
    }

    /// Like [`Self::load`], with loads of [`Self::wide`] elements: `rhs_wide(e)`, and `rhs_word_of(wide, i)`, the data of its elements
    /// `8 * i .. 8 * i + 8`.
    pub(in crate::webgpu_backend) fn load_wide(self, shader: Shader) -> Shader {
        let wide = self.wide();
        let mut shader = shader.input_words("rhs_codes", "vec4<u32>");
        let mut fields = String::from("at: u32, codes: vec4<u32>");
        let mut load = format!("e, rhs_codes[e / {wide}u]");
        let mut word = match self.low {
            8 => "select(w.codes.xy, w.codes.zw, i == 1u)".to_string(),
            4 => component("w.codes", "i"),
            _ => component("w.codes", "(i / 2u)"),
        };
        if self.high > 0 {
            // A word has the further bits of 32 / high elements.
            let (words, own) = match wide * self.high / 32 {
                1 => ("u32", "w.high".to_string()),
                _ => (
                    "vec2<u32>",
                    format!("select(w.high.x, w.high.y, i >= {}u)", 4 / self.high),
                ),
            };
            shader = shader.input_words("rhs_high", words);
            let _ = write!(fields, ", high: {words}");
            let _ = write!(load, ", rhs_high[e / {wide}u]");
            let _ = write!(word, ", {own}");
        }
        if self.has_sub_scales() {
            shader = shader.input_words("rhs_sub", "u32");
            fields.push_str(", sub: u32");
            word.push_str(", w.sub");
        }
        let text = format!(
            "struct RhsWide {{ {fields}, scales: u32 }}\n\
             fn rhs_wide(e: u32) -> RhsWide {{ return RhsWide({load}{}); }}\n\
             fn rhs_word_of(w: RhsWide, i: u32) -> RhsWord {{\n\
             \x20 return RhsWord(w.at + 8u * i, {word}, w.scales);\n}}",
            self.load_scales()
        );
        shader
            .input_words("rhs_scales", "u32")
            .text(&self.word_type())
            .text(&text)
            .text(&self.values())
    }

    fn word(self) -> String {
        let mut load = format!("e, rhs_codes[e / {}u]", (32 / self.low).max(8));
        if let Some(elements) = 32u32.checked_div(self.high) {
            let _ = write!(load, ", rhs_high[e / {elements}u]");
        }
        format!(
            "{}\nfn rhs_word(e: u32) -> RhsWord {{ return RhsWord({load}{}); }}",
            self.word_type(),
            self.load_scales()
        )
    }

    fn word_type(self) -> String {
        let codes = if self.low == 8 { "vec2<u32>" } else { "u32" };
        let mut fields = format!("at: u32, codes: {codes}");
        if self.high > 0 {
            fields.push_str(", high: u32");
        }
        if self.has_sub_scales() {
            fields.push_str(", sub: u32");
        }
        format!("struct RhsWord {{ {fields}, scales: u32 }}")
    }

    /// WGSL for the last fields of the loaded data of elements from `e` on.
    fn load_scales(self) -> String {
        let sub = if self.has_sub_scales() {
            ", rhs_sub[e / 64u]"
        } else {
            ""
        };
        let elements = self.block() as usize * self.unit();
        format!("{sub}, rhs_scales[e / {elements}u]")
    }

    /// WGSL for the codes as pairs of f16, and for scale and offset.
    fn values(self) -> String {
        match self.table {
            Some(table) => self.looked_up(table),
            None => self.computed(),
        }
    }

    /// The same for codes of four bits that are looked up in a table.
    fn looked_up(self, table: [i8; 16]) -> String {
        let words = table.as_chunks::<4>().0.iter();
        let words = words.map(|four| format!("{:#x}u", u32::from_le_bytes(four.map(|v| v as u8))));
        let words = words.collect::<Vec<_>>().join(", ");
        let four = |first: u32| {
            let value = |i: u32| format!("rhs_value(w.codes >> {}u)", 4 * (first + i));
            (0..4).map(value).collect::<Vec<_>>().join(", ")
        };
        let (before, scale, offset) = self.scale();
        format!(
            "{VALUES}const RHS_TABLE = vec4<u32>({words});\n\
             fn rhs_value(code: u32) -> f32 {{\n\
             \x20 let four = RHS_TABLE[(code >> 2u) & 3u];\n\
             \x20 return f32(i32(four << (24u - 8u * (code & 3u))) >> 24u);\n}}\n\
             fn rhs_values(w: RhsWord) -> RhsValues {{\n\
             \x20 {before}\n  return RhsValues(vec4<f32>({}), vec4<f32>({}), {scale}, {offset});\n}}\n\
             const BIAS = 0.0;\n\
             fn rhs_elements(w: RhsWord) -> array<vec4<f32>, 2> {{\n\
             \x20 let v = rhs_values(w);\n  return array<vec4<f32>, 2>(v.scale * v.low, v.scale * v.high);\n}}",
            four(0),
            four(4),
        )
    }

    fn computed(self) -> String {
        let bits = self.low + self.high;
        // The lowest bit of a code in an f16's mantissa of 10 bits.
        let shift = 10 - bits as i32;
        let twice = |half: u32| half << 16 | half;
        // Codes of 8 bits are signed: flipping their sign bit adds 128.
        let sign = if self.low == 8 { 0x200 } else { 0 };
        let magic = twice((15 + bits) << 10 ^ sign);
        let part = |from: &str, at: i32, to: i32, bits: u32| {
            let mask = twice(((1u32 << bits) - 1) << to);
            let moved = match to - at {
                0 => from.to_string(),
                up @ 1.. => format!("({from} << {up}u)"),
                down => format!("({from} >> {}u)", -down),
            };
            format!("({moved} & {mask:#x}u)")
        };
        let mut text = format!("{VALUES}fn rhs_values(w: RhsWord) -> RhsValues {{\n");
        if self.low == 2 {
            text.push_str("  let codes = w.codes >> (w.at & 8u);\n");
        } else {
            text.push_str("  let codes = w.codes;\n");
        }
        match self.high {
            1 => text.push_str("  let further = w.high >> ((w.at / 2u) & 12u);\n"),
            2 => text.push_str("  let further = w.high >> (w.at & 8u);\n"),
            _ => (),
        }
        for j in 0..4 {
            let pair = if self.low == 8 {
                // Bytes 0 and 2, then 1 and 3, of either word.
                let word = ["codes.x", "codes.y"][j / 2];
                part(word, 8 * (j as i32 % 2), shift, 8)
            } else {
                let low = part("codes", (self.low * j as u32) as i32, shift, self.low);
                match self.high {
                    0 => low,
                    high => {
                        let to = shift + self.low as i32;
                        let further = part("further", (high * j as u32) as i32, to, high);
                        format!("({low} | {further})")
                    }
                }
            };
            let _ = writeln!(text, "  let p{j} = unpack2x16float({pair} ^ {magic:#x}u);");
        }
        let (low, high) = if self.low == 8 {
            ("p0.x, p1.x, p0.y, p1.y", "p2.x, p3.x, p2.y, p3.y")
        } else {
            ("p0.x, p1.x, p2.x, p3.x", "p0.y, p1.y, p2.y, p3.y")
        };
        let (before, scale, offset) = self.scale();
        let _ = write!(
            text,
            "  {before}\n  return RhsValues(vec4<f32>({low}), vec4<f32>({high}), {scale}, {offset});\n}}\n"
        );
        let bias = self.bias();
        let exact = if offset == "0.0" {
            // Without adding zero, which would change -0 to 0.
            "v.scale * (v.low - BIAS), v.scale * (v.high - BIAS)"
        } else {
            "v.scale * (v.low - BIAS) + v.offset, v.scale * (v.high - BIAS) + v.offset"
        };
        let _ = write!(
            text,
            "const BIAS = {bias}.0;\n\
             fn rhs_elements(w: RhsWord) -> array<vec4<f32>, 2> {{\n\
             \x20 let v = rhs_values(w);\n  return array<vec4<f32>, 2>({exact});\n}}"
        );
        text
    }

    /// WGSL for the inputs of scale and offset, for the scale, and for the offset.
    fn scale(self) -> (String, &'static str, &'static str) {
        // The second block's is in the upper half.
        let half_a_block = format!(
            "let own = unpack2x16float(w.scales >> ((w.at & {}u) / {}u)).x;",
            self.block(),
            self.block() / 16
        );
        let halves = "let d = unpack2x16float(w.scales);";
        let byte = "let sub = w.sub >> ((w.at / 2u) & 24u);";
        match self.scales {
            Scales::Half => (half_a_block, "own", "0.0"),
            Scales::HalfOffset => (halves.into(), "d.x", "d.y"),
            Scales::HalfSum => (halves.into(), "d.x", "0.0"),
            Scales::Single => (String::new(), "bitcast<f32>(w.scales)", "0.0"),
            Scales::Nibbles => (
                format!("{halves} {byte}"),
                "d.x * f32(sub & 15u)",
                "-(d.y * f32((sub >> 4u) & 15u))",
            ),
            Scales::Bytes => (
                format!("{halves} let sub = w.sub >> ((w.at / 2u) & 16u);"),
                "d.x * f32(sub & 63u)",
                "-(d.y * f32((sub >> 8u) & 63u))",
            ),
            Scales::Biased => (
                format!("{half_a_block} {byte}"),
                "own * f32(i32(sub & 63u) - 32)",
                "0.0",
            ),
            Scales::Signed => (
                format!("{half_a_block} {byte}"),
                "own * f32(i32(sub << 24u) >> 24u)",
                "0.0",
            ),
            Scales::SingleSigned => (
                byte.into(),
                "bitcast<f32>(w.scales) * f32(i32(sub << 24u) >> 24u)",
                "0.0",
            ),
        }
    }
}

/// The access of matmul_blocks.wgsl to a format: vectors, whose codes are 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::webgpu_backend) struct Pieces {
    format: Format,
    /// Elements of a vector.
    pub(in crate::webgpu_backend) piece: u32,
    /// Elements of a vector that share a scale.
    pub(in crate::webgpu_backend) run: u32,
}

impl Pieces {
    /// The vectors of a format; `None` for codes of two bits and formats with tables.
    pub(in crate::webgpu_backend) fn of(format: Format) -> Option<Self> {
        if format.table.is_some() {
            return None;
        }
        let run = match (format.low, format.scales) {
            (2, _) => return None,
            (8, _) | (_, Scales::Signed) => 16,
            _ => 32,
        };
        Some(Self {
            format,
            piece: 128 / format.low,
            run,
        })
    }

    /// Bytes of workgroup memory for the other side of a vector.
    pub(in crate::webgpu_backend) fn lhs_bytes(self) -> u32 {
        self.piece + self.piece / self.run * 8
    }

    /// Adds the bindings of the planes and the functions over vectors, whose codes become bytes.
    pub(in crate::webgpu_backend) fn load(self, shader: Shader) -> Shader {
        let format = self.format;
        let mut shader = shader.input_words("rhs_codes", "vec4<u32>");
        let mut fields = String::from("at: u32, codes: vec4<u32>");
        let mut load = format!("e, rhs_codes[e / {}u]", self.piece);
        if format.high > 0 {
            let word = if format.high == 2 { "vec2<u32>" } else { "u32" };
            shader = shader.input_words("rhs_high", word);
            let _ = write!(fields, ", high: {word}");
            load.push_str(", rhs_high[e / 32u]");
        }
        if format.has_sub_scales() {
            shader = shader.input_words("rhs_sub", "u32");
            fields.push_str(", sub: u32");
        }
        let piece = format!(
            "struct RhsPiece {{ {fields}, scales: u32 }}\n\
             fn rhs_piece(e: u32) -> RhsPiece {{ return RhsPiece({load}{}); }}",
            format.load_scales()
        );
        self.constants(shader.input_words("rhs_scales", "u32"))
            .text(&piece)
            .text(&self.scale_of_run())
            .text(&format.eight_bytes())
    }

    /// The constants of vectors, which the conversion of the other side to bytes needs as well.
    pub(in crate::webgpu_backend) fn constants(self, shader: Shader) -> Shader {
        shader
            .constant("PIECE", self.piece)
            .constant("RUN", self.run)
            .constant("NIBBLES", self.format.low == 4)
    }

    /// `rhs_scale(piece, run)`: the factor of a run's products with codes, and the factor of the sum of the other side.
    fn scale_of_run(self) -> String {
        let format = self.format;
        let (before, scale, offset) = format.scale();
        // Bytes of 8 bits are signed.
        let zero = if format.low == 8 { 0 } else { format.zero };
        let offset = match (zero, offset) {
            (0, offset) => offset.to_string(),
            (zero, "0.0") => format!("-{zero}.0 * scale"),
            (zero, offset) => format!("{offset} - {zero}.0 * scale"),
        };
        format!(
            "fn rhs_scale(piece: RhsPiece, run: u32) -> vec2<f32> {{\n\
             \x20 var w = piece;\n  w.at += run * RUN;\n  {before}\n\
             \x20 let scale = {scale};\n  return vec2<f32>(scale, {offset});\n}}"
        )
    }
}

impl Format {
    /// `rhs_eight(piece, i)`: codes as bytes. Codes of at least four bits are those of every second element, then the others.
    fn eight_bytes(self) -> String {
        let codes = match self.low {
            8 => "select(w.codes.xy, w.codes.zw, i == 1u)",
            _ => "vec2<u32>(codes, codes >> 4u) & vec2<u32>(0x0f0f0f0fu)",
        };
        let further = match self.high {
            0 => "",
            // An element's further bits are placed above its four; `Format::plane` defines their position.
            1 => {
                "let f = w.high >> (4u * i);\n\
                 \x20 bytes |= vec2<u32>(((f & 0x10001u) << 4u) | ((f & 0x40004u) << 10u), \
                   ((f & 0x20002u) << 3u) | ((f & 0x80008u) << 9u));\n"
            }
            _ => {
                "let f = select(w.high.x, w.high.y, i >= 2u) >> (8u * (i % 2u));\n\
                 \x20 bytes |= vec2<u32>(((f & 0x30003u) << 4u) | ((f & 0x300030u) << 8u), \
                   ((f & 0xc000cu) << 2u) | ((f & 0xc000c0u) << 6u));\n"
            }
        };
        format!(
            "fn rhs_eight(w: RhsPiece, i: u32) -> vec2<u32> {{\n\
             \x20 let codes = {};\n  var bytes = {codes};\n  {further}  return bytes;\n}}",
            component("w.codes", "i")
        )
    }
}
