//! Generation of WGSL for dtypes and layouts.
//!
//! A shader is a prelude plus a body from `shaders/*.wgsl`. The prelude, written here, is specific to the call: the bindings with their
//! accessors by dtype, the parameter struct, and constants. The body defines the kernel in terms of `lhs_at(i)`, `dst_put(word, lanes)`,
//! `p.len` and named constants, and asserts its requirements on the constants.

use std::fmt::Write;

use super::adapter::Caps;
use super::elem::Elem;
use super::kernel::{Kernel, Params};
use super::limits::{MAX_BUFFERS, PARAM_BYTES};

/// WGSL under construction. A kernel begins with the default, which is empty.
#[derive(Default)]
pub(super) struct Shader {
    pub(super) text: String,
    pub(super) label: String,
    pub(super) bindings: Vec<wgpu::BufferBindingType>,
    pub(super) foreign: bool,
}

impl Shader {
    /// The shader of a kernel, with the kernel's name.
    pub(super) fn of(kernel: &impl Kernel, caps: &Caps) -> Self {
        let shader = kernel.shader(caps);
        Self {
            text: zeroed(&shader.text),
            label: short(format!("{kernel:?}")),
            ..shader
        }
    }

    /// A complete module from another crate: it is compiled with all checks, and workgroup memory is initialised to zeros.
    pub(super) fn foreign(source: &str, inputs: usize, outputs: usize) -> Self {
        let storage = |i| wgpu::BufferBindingType::Storage {
            read_only: i < inputs,
        };
        Self {
            text: source.into(),
            label: String::new(),
            bindings: (0..inputs + outputs).map(storage).collect(),
            foreign: true,
        }
    }

    fn binding(&mut self, name: &str, word: &str, read_only: bool) {
        let index = self.bindings.len();
        assert!(
            index < MAX_BUFFERS,
            "kernels have at most {MAX_BUFFERS} buffers"
        );
        let access = if read_only { "read" } else { "read_write" };
        let _ = writeln!(
            self.text,
            "@group(0) @binding({index}) var<storage, {access}> {name}: array<{word}>;"
        );
        self.bindings
            .push(wgpu::BufferBindingType::Storage { read_only });
    }

    /// A tensor to read: `name_at(i)` returns element `i` as `name_t`.
    pub(super) fn input(mut self, name: &str, elem: Elem) -> Self {
        self.binding(name, elem.word(), true);
        let (ty, read) = (elem.arithmetic(), elem.read(name));
        let _ = writeln!(
            self.text,
            "alias {name}_t = {ty};\nfn {name}_at(i: u32) -> {ty} {{ {read} }}"
        );
        self
    }

    /// A tensor to read as words of another type than its dtype's: for kernels that load many elements at once.
    pub(super) fn input_words(mut self, name: &str, word: &str) -> Self {
        self.binding(name, word, true);
        self
    }

    /// A tensor to write: `name_put(word, lanes)` writes the `NAME_LANES` elements of a word; `name_at(i)` reads; `name_rounded(lanes)`
    /// returns the lanes as a store and a load round them.
    pub(super) fn output(mut self, name: &str, elem: Elem) -> Self {
        self.binding(name, elem.word(), false);
        let (ty, read, pack) = (elem.arithmetic(), elem.read(name), elem.pack());
        let round = elem.round();
        let (upper, lanes) = (name.to_uppercase(), elem.lanes());
        let _ = writeln!(
            self.text,
            "alias {name}_t = {ty};\nconst {upper}_LANES = {lanes}u;\n\
             fn {name}_at(i: u32) -> {ty} {{ {read} }}\n\
             fn {name}_put(word: u32, lanes: array<{name}_t, {lanes}>) {{ var v = lanes; {name}[word] = {pack}; }}\n\
             fn {name}_rounded(lanes: array<{name}_t, {lanes}>) -> array<{name}_t, {lanes}> {{ var v = lanes; {round} return v; }}"
        );
        self
    }

    /// A tensor to write as words of another type than its dtype's.
    pub(super) fn output_words(mut self, name: &str, word: &str) -> Self {
        self.binding(name, word, false);
        self
    }

    /// The status buffer, in which a kernel reports an index that is out of range.
    pub(super) fn status(mut self) -> Self {
        self.binding("status", "atomic<u32>", false);
        self
    }

    /// `name_offset(i)`: the offset of element `i` of the shape `p.dims` in the tensor `name`, by `p.name_stride` and `p.name_offset`; for
    /// `rank` 0 the tensor is contiguous and strides are not used.
    pub(super) fn strided(mut self, name: &str, rank: usize) -> Self {
        let mut body = String::new();
        if rank == 0 {
            let _ = write!(body, "return p.{name}_offset + i;");
        } else {
            let _ = write!(body, "var rest = i; var at = p.{name}_offset;");
            for dim in (0..rank).rev() {
                let place = format!("[{}][{}]", dim / 4, dim % 4);
                if dim == 0 {
                    let _ = write!(body, " at += rest * p.{name}_stride{place};");
                } else {
                    let _ = write!(
                        body,
                        " at += (rest % p.dims{place}) * p.{name}_stride{place}; rest /= p.dims{place};"
                    );
                }
            }
            body.push_str(" return at;");
        }
        let _ = writeln!(self.text, "fn {name}_offset(i: u32) -> u32 {{ {body} }}");
        self
    }

    /// A tensor to read in any layout: [`Shader::input`] and [`Shader::strided`].
    pub(super) fn view(self, name: &str, elem: Elem, rank: usize) -> Self {
        self.input(name, elem).strided(name, rank)
    }

    /// A named constant.
    pub(super) fn constant(mut self, name: &str, value: impl Into<Constant>) -> Self {
        let value = match value.into() {
            Constant::U32(v) => format!("{v}u"),
            Constant::Bool(v) => v.to_string(),
        };
        let _ = writeln!(self.text, "const {name} = {value};");
        self
    }

    /// Appends any WGSL.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self.text.push('\n');
        self
    }

    /// WGSL that must precede everything else, such as `enable f16;`.
    pub(super) fn directive(mut self, text: &str) -> Self {
        self.text.insert_str(0, text);
        self
    }

    /// Panics with the compiler's message unless naga accepts the shader and can write it for Vulkan.
    #[cfg(test)]
    pub(super) fn assert_valid(self) {
        let text = self.text;
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
        let flags = naga::valid::ValidationFlags::all();
        let info = naga::valid::Validator::new(flags, naga::valid::Capabilities::all())
            .validate(&module)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
        let options = naga::back::spv::Options {
            lang_version: (1, 6),
            ..Default::default()
        };
        naga::back::spv::write_vec(&module, &info, &options, None)
            .unwrap_or_else(|err| panic!("{err}\n{text}"));
    }

    /// The parameter struct as `p`, then the body. Includes the prelude that all kernels share.
    pub(super) fn body<P: Params>(mut self, body: &str) -> Self {
        assert!(size_of::<P>() <= PARAM_BYTES);
        let index = self.bindings.len();
        self.text.push_str(P::WGSL);
        let _ = writeln!(
            self.text,
            "@group(0) @binding({index}) var<uniform> p: Params;"
        );
        self.text.push_str(include_str!("shaders/prelude.wgsl"));
        self.text.push_str(body);
        self
    }
}

/// Writes the zero initialisers of function variables, `var name: T;`, explicitly. WGSL initialises them in every iteration of a loop in
/// which they are declared, but Chromium 156 keeps the previous iteration's value: attention to more keys than one iteration covers was
/// wrong.
fn zeroed(text: &str) -> String {
    let mut done = String::with_capacity(text.len() + text.len() / 16);
    let mut rest = text;
    while let Some((before, declared)) = rest.split_once("var ") {
        done.push_str(before);
        done.push_str("var ");
        rest = declared;
        let Some((head, after)) = declared.split_once(';') else {
            continue;
        };
        // Matrices of several invocations have no zero value, and no browser supports those.
        let ty = head.split_once(": ").filter(|(name, ty)| {
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            is_name && !ty.contains(['=', '{', '\n']) && !ty.contains("coop_mat")
        });
        if let Some((name, ty)) = ty {
            let _ = write!(done, "{name}: {ty} = {ty}();");
            rest = after;
        }
    }
    done.push_str(rest);
    done
}

/// A kernel's `Debug` form without the fields that are `false` or `None`, and only the names of those that are `true`.
fn short(mut label: String) -> String {
    for value in [": false", ": None"] {
        while let Some(at) = label.find(value) {
            let first = label[..at].rfind([' ', '{']).map_or(0, |space| space + 1);
            let end = at + value.len();
            let comma = if label[end..].starts_with(", ") { 2 } else { 0 };
            label.replace_range(first..end + comma, "");
        }
    }
    label.replace(": true", "").replace(",  }", " }")
}

/// Panics unless naga accepts the kernel's shader, for an adapter with subgroups and for one without.
#[cfg(test)]
pub(super) fn assert_valid(kernel: &impl Kernel) {
    for subgroup in [None, Some(32)] {
        let caps = Caps {
            subgroup,
            ..Caps::default()
        };
        Shader::of(kernel, &caps).assert_valid();
    }
}

/// A value that a shader is specialised for.
pub(super) enum Constant {
    U32(u32),
    Bool(bool),
}

impl From<u32> for Constant {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<bool> for Constant {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn zeros_are_written_down() {
        let text = "var<workgroup> w: array<f32, 4>;\nfn f() { var a: f32; for (var i = 0u; i < 4u; i++) { var b: array<vec4<f32>, N>; var c: u32 = 1u; } var d = 1; }\n\
                    fn g() { var m: coop_mat16x16<f32, C>; var v = lanes; var s: Found; }";
        let expected = text
            .replace("a: f32;", "a: f32 = f32();")
            .replace(
                "b: array<vec4<f32>, N>;",
                "b: array<vec4<f32>, N> = array<vec4<f32>, N>();",
            )
            .replace("s: Found;", "s: Found = Found();");
        assert_eq!(super::zeroed(text), expected);
    }

    #[test]
    fn labels_say_what_there_is() {
        for (label, expected) in [
            ("Cast { from: F32, to: F16 }", "Cast { from: F32, to: F16 }"),
            ("A { b: false, c: true, d: None }", "A { c }"),
            (
                "A { b: B { c: false }, d: Some(2), e: false }",
                "A { b: B {  }, d: Some(2) }",
            ),
        ] {
            assert_eq!(short(label.into()), expected);
        }
    }
}
