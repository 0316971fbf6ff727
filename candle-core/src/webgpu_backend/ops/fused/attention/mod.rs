//! Scaled dot-product attention with grouped heads (Vaswani et al., arXiv 1706.03762; Ainslie et al., arXiv 2305.13245).
//!
//! Few queries, as in generation, use a kernel in which queries that share keys are together, in teams of a subgroup's lanes ([`teams`]) or
//! without subgroups ([`grouped`]), or one with a workgroup per query ([`decode`]) if heads have odd sizes or there is a bias. More queries
//! use tiles of queries and keys ([`flash`]). All keep a running maximum and sum instead of a row of scores (Milakov and Gimelshein, arXiv
//! 1805.02867). With too few workgroups, they split the keys into parts, which a small kernel joins (Flash-Decoding, Dao et al. 2023). With
//! cooperative matrices, these multiply tiles of keys in f16, with queries of any dtype ([`cooperative`]). Memory does not grow with
//! queries times keys. Only if cooperative matrices make products much faster, and that kernel does not support the heads, are the scores
//! of some hundreds of queries at a time stored ([`blocks`]).
//!
//! A kernel is a struct with [`Heads`], the specialisation that all share, and its own fields; a `.wgsl`; and a call of [`Call::run`].

mod blocks;
mod cooperative;
mod decode;
mod flash;
mod grouped;
mod join;
mod rules;
mod teams;

use super::super::windows::fit;
use super::super::{bind, elementwise, index};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::fused::attention::Sizes;
use crate::webgpu_backend::kernel::{params, Elem, Kernel, Shader};
use crate::webgpu_backend::limits::MAX_BUFFERS;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};
use join::{Destination, Parts, Target};
use rules::Rules;

params!(AttentionParams {
    q_offset: u32,
    q_batch: u32,
    q_head: u32,
    q_seq: u32,
    k_offset: u32,
    k_batch: u32,
    k_head: u32,
    k_seq: u32,
    v_offset: u32,
    v_batch: u32,
    v_head: u32,
    v_seq: u32,
    batch: u32,
    heads: u32,
    // Query heads that share keys and values.
    group: u32,
    queries: u32,
    keys: u32,
    // Number of parts of the keys, and keys per part.
    splits: u32,
    chunk: u32,
    scale: f32,
    softcap: f32,
    // Maximum distances back and ahead that a query sees.
    left: u32,
    right: u32,
    // Offsets of the bindings of `Rules`.
    starts_offset: u32,
    lens_offset: u32,
    slopes_offset: u32,
    sinks_offset: u32,
    bias_offset: u32,
    bias_batch: u32,
    bias_head: u32,
    bias_seq: u32,
    bias_key: u32,
    // Of the table of pages, and the last page.
    pages_offset: u32,
    pages_columns: u32,
    pages_last: u32,
});

/// Parameters of attention on WebGPU storages.
pub type SdpaParams<'a> = crate::fused::SdpaParams<'a, WebGpuStorage>;

/// The first tile that fits and is not mostly empty, else the last that fits.
fn first_filled<T: Copy>(
    tiles: &[T],
    fits: impl Fn(&T) -> bool,
    filled: impl Fn(&T) -> bool,
) -> Option<T> {
    let fitting = || tiles.iter().filter(|tile| fits(tile));
    let tile = fitting().find(|tile| filled(tile));
    tile.or_else(|| fitting().next_back()).copied()
}

type Input<'a> = (&'a WebGpuStorage, &'a Layout);

/// The kernels of a call.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Teams(teams::Form),
    Grouped(grouped::Form),
    Decode,
    Cooperative(cooperative::CoopTile),
    Flash(flash::Tile),
    Blocks,
}

/// Whether [`sdpa`] has kernels for these inputs. If an input exceeds a binding, or a head is too large for workgroup memory, there are
/// none for rules beyond causal ones, nor for keys of another dtype. Non-contiguous heads are judged by their layout after the copy.
pub fn has_sdpa(inputs: [Input<'_>; 3], params: SdpaParams<'_>) -> Result<bool> {
    Ok(call(inputs, params)?.plan().is_some())
}

/// `softmax(q kᵀ * scale) v` for `q (batch, heads, queries, dim)`, `k (batch, kv_heads, keys, dim)` and `v (batch, kv_heads, keys, v_dim)`,
/// any strides, with the rules of `params`. The result is contiguous, `(batch, heads, queries, v_dim)` in the dtype of `q`; rows without a
/// visible key are 0. An error if [`has_sdpa`] returns `false`.
pub fn sdpa(inputs: [Input<'_>; 3], params: SdpaParams<'_>) -> Result<WebGpuStorage> {
    let call = call(inputs, params)?;
    if call.sizes.rows() * call.sizes.v_dim == 0 {
        let q = inputs[0].0;
        return q.device().alloc(0, q.dtype(), OP);
    }
    call.with_contiguous_heads(elementwise::copy, |call| match call.plan() {
        Some(Plan::Teams(form)) => call.teams(form),
        Some(Plan::Grouped(form)) => call.grouped(form),
        Some(Plan::Decode) => call.decode(),
        Some(Plan::Cooperative(tile)) => call.cooperative(tile),
        Some(Plan::Flash(tile)) => call.flash(tile),
        Some(Plan::Blocks) => call.blocks(),
        None => crate::bail!(
            "sdpa of {:?} with {:?} keys and these options has no WebGPU kernel: an input exceeds the binding size, or a head is too large; \
             compose it from tensor ops",
            call.sizes,
            call.inputs[1].0.dtype()
        ),
    })
}

const OP: &str = "sdpa";

/// A call on WebGPU storages.
type Call<'a> = crate::fused::attention::Call<'a, WebGpuStorage, Elem>;

fn call<'a>(inputs: [Input<'a>; 3], params: SdpaParams<'a>) -> Result<Call<'a>> {
    let device = inputs[0].0.device();
    Call::new(inputs, params, |dtype| float_elem(device, dtype, OP))
}

impl<'a> Call<'a> {
    fn plan(&self) -> Option<Plan> {
        let sizes = &self.sizes;
        let [(q, _), (k, _), (v, _)] = self.inputs;
        let device = q.device();
        let out = (sizes.rows() * sizes.v_dim * 4) as u64;
        // The matrix products split inputs that exceed a binding.
        let bound = fit([q, k, v])
            && self.rules_fit()
            && 4 + self.rule_tensors().count() <= MAX_BUFFERS
            && out <= device.max_binding()
            && self.most_parts() >= sizes.keys.div_ceil(join::MOST_KEYS).max(1);
        // Those read k and v as they are.
        let [elem, kv_elem] = self.elems;
        let in_blocks = self.rules.plain() && elem == kv_elem && self.rules.page.is_none();
        if !bound {
            return in_blocks.then_some(Plan::Blocks);
        }
        if let Some(form) = teams::Form::choose(self) {
            return Some(Plan::Teams(form));
        }
        if let Some(form) = grouped::Form::choose(self) {
            return Some(Plan::Grouped(form));
        }
        if decode::fits(sizes, elem) {
            return Some(Plan::Decode);
        }
        let caps = &device.kernels().caps;
        let f16 = self.elems == [Elem::F16; 2];
        // A bias may be far below the kernel's value for "no score".
        let fast = kv_elem == Elem::F16 && self.wide(&[0, 1, 2]) && self.rules.bias.is_none();
        if let Some(tile) = cooperative::CoopTile::choose(sizes, caps).filter(|_| fast) {
            return Some(Plan::Cooperative(tile));
        }
        match flash::Tile::choose(sizes, caps) {
            Some(tile) if !(caps.cooperative && f16 && in_blocks && blocks::fits(sizes)) => {
                Some(Plan::Flash(tile))
            }
            _ => in_blocks.then_some(Plan::Blocks),
        }
    }

    /// Maximum number of parts of the keys such that a binding covers all of them.
    fn most_parts(&self) -> usize {
        let part = (self.sizes.rows() * (self.sizes.v_dim + 2) * 4).max(1);
        self.inputs[0].0.device().max_binding() as usize / part
    }

    /// Whether four elements of a head of these inputs can be read at once.
    fn wide(&self, inputs: &[usize]) -> bool {
        inputs.iter().all(|input| {
            let layout = self.inputs[*input].1;
            let stride = layout.stride();
            layout.dims()[3].is_multiple_of(4)
                && layout.start_offset().is_multiple_of(4)
                && stride[..3].iter().all(|s| s.is_multiple_of(4))
        })
    }

    /// Runs a kernel in `workgroups` for each of `parts`, and joins the parts. `out` is the dtype of the result's storage: not the queries'
    /// if a head would end within a word.
    fn run<K: Kernel<Params = AttentionParams>>(
        &self,
        parts: Parts,
        out: Elem,
        workgroups: usize,
        kernel: impl FnOnce(Heads) -> K,
    ) -> Result<WebGpuStorage> {
        let device = self.inputs[0].0.device();
        let destination = Destination::new(self, parts, out)?;
        let heads = Heads {
            elem: self.elems[0],
            kv_elem: self.elems[1],
            wide: self.wide(&[0]),
            kv_wide: self.wide(&[1, 2]),
            head_dim: self.sizes.head_dim as u32,
            v_dim: self.sizes.v_dim as u32,
            rules: self.rules,
            target: destination.target(),
        };
        device.run(
            &kernel(heads),
            &self.bindings(destination.storage()),
            &self.kernel_params(parts)?,
            device.grid(workgroups * parts.splits, 1),
        )?;
        destination.finish()
    }

    /// The buffers of a kernel that reads heads and rules, in the order of their declarations.
    fn bindings<'b>(&'b self, target: &'b WebGpuStorage) -> Vec<Binding<'b>> {
        let heads = self.inputs.map(|(storage, _)| bind(storage));
        let rules = self.rule_tensors().map(|(storage, _)| bind(storage));
        heads
            .into_iter()
            .chain([bind(target)])
            .chain(rules)
            .collect()
    }

    /// The tensors of the rules that have a binding, in its order.
    fn rule_tensors(&self) -> impl Iterator<Item = Input<'a>> {
        let SdpaParams {
            bias,
            slopes,
            sinks,
            starts,
            lens,
            pages,
            ..
        } = self.params;
        let table = pages.map(|pages| pages.table);
        let all = [bias, slopes.or(sinks), starts, lens, table];
        all.into_iter().flatten()
    }

    fn rules_fit(&self) -> bool {
        self.rule_tensors().all(|(storage, _)| fit([storage]))
    }

    fn kernel_params(&self, parts: Parts) -> Result<AttentionParams> {
        let steps = |input: usize| -> Result<[u32; 4]> {
            let layout = self.inputs[input].1;
            let stride = layout.stride();
            Ok([
                index(layout.start_offset())?,
                index(stride[0])?,
                index(stride[1])?,
                index(stride[2])?,
            ])
        };
        let [q_offset, q_batch, q_head, q_seq] = steps(0)?;
        let [k_offset, k_batch, k_head, k_seq] = steps(1)?;
        let [v_offset, v_batch, v_head, v_seq] = steps(2)?;
        let params = &self.params;
        let offset = |input: Option<Input<'_>>| index(input.map_or(0, |(_, l)| l.start_offset()));
        let bias = params.bias.map_or([0; 4], |(_, l)| {
            let stride = l.stride();
            [stride[0], stride[1], stride[2], stride[3]]
        });
        Ok(AttentionParams {
            q_offset,
            q_batch,
            q_head,
            q_seq,
            k_offset,
            k_batch,
            k_head,
            k_seq,
            v_offset,
            v_batch,
            v_head,
            v_seq,
            batch: index(self.sizes.batch)?,
            heads: index(self.sizes.heads)?,
            group: index(self.sizes.group())?,
            queries: index(self.sizes.queries)?,
            keys: index(self.sizes.keys)?,
            splits: index(parts.splits)?,
            chunk: index(parts.chunk)?,
            scale: params.scale,
            softcap: params.softcap.unwrap_or(1.),
            left: Self::distance(params.left),
            right: Self::distance(params.right),
            starts_offset: offset(params.starts)?,
            lens_offset: offset(params.lens)?,
            slopes_offset: offset(params.slopes)?,
            sinks_offset: offset(params.sinks)?,
            bias_offset: offset(params.bias)?,
            bias_batch: index(bias[0])?,
            bias_head: index(bias[1])?,
            bias_seq: index(bias[2])?,
            bias_key: index(bias[3])?,
            pages_offset: offset(params.pages.map(|pages| pages.table))?,
            pages_columns: match params.pages {
                Some(pages) => index(pages.table.1.dims()[1])?,
                None => 0,
            },
            pages_last: match params.pages {
                Some(pages) => index(pages.count - 1)?,
                None => 0,
            },
        })
    }
}

/// The specialisation that all kernels share: a field of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Heads {
    /// Element types of the queries, and of keys and values.
    elem: Elem,
    kv_elem: Elem,
    /// Whether four elements of a head are read at once, for the queries, and for keys and values.
    wide: bool,
    kv_wide: bool,
    head_dim: u32,
    v_dim: u32,
    target: Target,
    rules: Rules,
}

impl Heads {
    /// The beginning of every kernel's shader. `inputs` declares q, k and v; the outputs and the rules follow them.
    fn shader(&self, inputs: impl FnOnce(Shader) -> Shader) -> Shader {
        let shader = Shader::default()
            .constant("HEAD_DIM", self.head_dim)
            .constant("V_DIM", self.v_dim);
        let shader = self.target.declare(inputs(shader));
        self.rules
            .declare(shader)
            .text(include_str!("../../../shaders/functions_float.wgsl"))
    }

    /// Like [`shader`](Self::shader), with q, k and v as [`Shader::head`]s.
    fn by_quads(&self) -> Shader {
        self.shader(|shader| {
            shader
                .head("q", self.elem, self.wide, "HEAD_DIM")
                .head("k", self.kv_elem, self.kv_wide, "HEAD_DIM")
                .head("v", self.kv_elem, self.kv_wide, "V_DIM")
        })
    }
}

impl Shader {
    /// `name_quad(start, quad)`: elements `4 quad .. 4 quad + 4` of the head that starts at `start`, zeros past its end. The length of
    /// heads is the constant `dim`.
    fn head(self, name: &str, elem: Elem, wide: bool, dim: &str) -> Self {
        let word = match (wide, elem) {
            (true, Elem::F32) => Some("vec4<f32>"),
            (true, _) => Some("vec2<u32>"),
            (false, _) => None,
        };
        let read = match (wide, elem) {
            (false, _) => format!(
                "var r = vec4<f32>(0.0); for (var i = 0u; i < 4u; i++) {{ \
                 if (quad * 4u + i < {dim}) {{ r[i] = {name}_at(start + quad * 4u + i); }} }} return r;"
            ),
            (true, Elem::F32) => format!("return {name}[start / 4u + quad];"),
            (true, Elem::F16) => format!(
                "let w = {name}[start / 4u + quad]; return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"
            ),
            (true, _) => format!(
                "let w = {name}[start / 4u + quad]; \
                 return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));"
            ),
        };
        let shader = match word {
            Some(word) => self.input_words(name, word),
            None => self.input(name, elem),
        };
        shader.text(&format!(
            "fn {name}_quad(start: u32, quad: u32) -> vec4<f32> {{ {read} }}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{Elem, Heads, Rules, Target};
    use crate::webgpu_backend::WebGpuDevice;

    /// The stride through a list of cases: by default `step` on a software adapter, which compiles a kernel for each, and 1 with
    /// `CANDLE_EVERY_CASE=1` and on other adapters.
    pub(super) fn by_day(device: &WebGpuDevice, step: usize) -> usize {
        if device.is_software() && std::env::var_os("CANDLE_EVERY_CASE").is_none() {
            step
        } else {
            1
        }
    }

    /// Heads of these sizes, with keys in f16, for all choices of rules without a bias.
    pub(super) fn forms([head_dim, v_dim]: [u32; 2]) -> impl Iterator<Item = Heads> {
        (0..64).map(move |choices: usize| {
            let chosen = |bit: u32| choices & 1 << bit != 0;
            let elem = [Elem::F16, Elem::F32, Elem::BF16][choices % 3];
            Heads {
                elem,
                kv_elem: Elem::F16,
                wide: true,
                kv_wide: true,
                head_dim,
                v_dim,
                rules: Rules {
                    softcap: chosen(0),
                    causal: chosen(1),
                    left: chosen(2),
                    right: chosen(2) && !chosen(1),
                    starts: chosen(3),
                    lens: chosen(4),
                    page: (choices % 5 == 2 && !chosen(4)).then_some(32),
                    slopes: chosen(3),
                    sinks: chosen(5),
                    bias: None,
                    blind: chosen(4),
                },
                target: match choices / 3 % 2 {
                    0 => Target::Parts,
                    _ => Target::Whole(elem),
                },
            }
        })
    }

    /// The same, one element at a time if heads are not multiples of four, and some of them with a bias.
    pub(super) fn ragged_forms(dims: [u32; 2]) -> impl Iterator<Item = Heads> {
        forms(dims).step_by(5).enumerate().map(|(i, heads)| Heads {
            wide: i % 2 == 0,
            kv_wide: i % 3 == 0,
            kv_elem: [Elem::BF16, Elem::F32][i % 2],
            rules: Rules {
                bias: (i % 2 == 1).then_some(heads.elem),
                ..heads.rules
            },
            ..heads
        })
    }
}
