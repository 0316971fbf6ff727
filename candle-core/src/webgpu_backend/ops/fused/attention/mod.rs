//! Scaled dot-product attention with grouped heads (Vaswani et al., arXiv 1706.03762; Ainslie et al., arXiv 2305.13245).
//!
//! Few queries, as in generation, take a kernel with a workgroup to a query ([`decode`]); more go through tiles of queries and
//! keys ([`flash`]). Both keep a running maximum and sum in place of a row of scores (Milakov and Gimelshein, arXiv 1805.02867),
//! and cut the keys into parts where there are too few workgroups, which a small kernel joins (Flash-Decoding, Dao et al. 2023).
//! Where there are cooperative matrices, tiles of f16 are multiplied by them ([`cooperative`]). Memory does not grow with queries
//! times keys. Only where cooperative matrices make products much faster, and that kernel does not take the heads, are the scores
//! of some hundreds of queries at a time written out ([`blocks`]).

mod blocks;
mod cooperative;
mod decode;
mod flash;
mod join;

use super::super::windows::fit;
use super::super::{elementwise, index};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Error, Layout, Result};

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
    // Parts that the keys are cut into, and how long each is.
    splits: u32,
    chunk: u32,
    scale: f32,
    softcap: f32,
});

/// How attention weighs keys.
#[derive(Debug, Clone, Copy)]
pub struct SdpaParams {
    /// Factor of the scores, commonly `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Whether query `i` sees only keys up to `i + keys - queries`.
    pub causal: bool,
    /// Scores become `softcap * tanh(score / softcap)`; 1 means no cap.
    pub softcap: f32,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
}

fn sizes(q_l: &Layout, k_l: &Layout, v_l: &Layout, causal: bool) -> Result<Sizes> {
    let (batch, heads, queries, head_dim) = q_l.shape().dims4()?;
    let (k_batch, kv_heads, keys, k_dim) = k_l.shape().dims4()?;
    if v_l.dims() != k_l.dims()
        || (k_batch, k_dim) != (batch, head_dim)
        || kv_heads == 0
        || !heads.is_multiple_of(kv_heads)
    {
        crate::bail!(
            "sdpa takes q (batch, heads, queries, dim) and k, v (batch, kv_heads, keys, dim), heads a multiple of kv_heads; \
             got {:?}, {:?} and {:?}",
            q_l.shape(),
            k_l.shape(),
            v_l.shape()
        );
    }
    if causal && keys < queries {
        crate::bail!(
            "causal sdpa needs as many keys as queries at least, got {keys} and {queries}"
        );
    }
    if keys == 0 && queries * batch * heads > 0 {
        return Err(Error::EmptyTensor { op: "sdpa" }.bt());
    }
    Ok(Sizes {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
    })
}

/// `softmax(q kᵀ * scale) v` for `q (batch, heads, queries, dim)` and `k`, `v` `(batch, kv_heads, keys, dim)`, any strides.
/// The result is contiguous in `q`'s shape.
pub fn sdpa(
    q: &WebGpuStorage,
    q_l: &Layout,
    k: &WebGpuStorage,
    k_l: &Layout,
    v: &WebGpuStorage,
    v_l: &Layout,
    params: SdpaParams,
) -> Result<WebGpuStorage> {
    const OP: &str = "sdpa";
    let sizes = sizes(q_l, k_l, v_l, params.causal)?;
    let elem = float_elem(q.device(), q.dtype(), OP)?;
    if k.dtype() != q.dtype() || v.dtype() != q.dtype() {
        let (lhs, rhs) = (q.dtype(), k.dtype());
        return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
    }
    if q_l.shape().elem_count() == 0 {
        return q.device().alloc(0, q.dtype(), OP);
    }
    // The kernels step through a head one element after the other.
    let inputs = [(q, q_l), (k, k_l), (v, v_l)];
    if let Some(place) = inputs
        .iter()
        .position(|(_, l)| l.stride()[3] != 1 && l.dims()[3] != 1)
    {
        let (storage, layout) = inputs[place];
        let copy = elementwise::copy(storage, layout)?;
        let copy_l = Layout::contiguous(layout.shape());
        let mut inputs = inputs;
        inputs[place] = (&copy, &copy_l);
        let [(q, q_l), (k, k_l), (v, v_l)] = inputs;
        return sdpa(q, q_l, k, k_l, v, v_l, params);
    }
    let call = Call {
        inputs,
        sizes,
        params,
        elem,
    };
    // What one binding does not reach is split by the matrix products.
    let bound = fit([q, k, v]) && (q_l.shape().elem_count() * 4) as u64 <= q.device().max_binding();
    if !bound || call.most_parts() == 0 {
        return call.blocks();
    }
    if decode::fits(&sizes, elem) {
        return call.decode();
    }
    let caps = &q.device().kernels().caps;
    let f16 = elem == Elem::F16;
    if let Some(tile) = cooperative::CoopTile::choose(&sizes, caps).filter(|_| f16 && call.wide()) {
        return call.cooperative(tile);
    }
    match flash::Tile::choose(&sizes, caps) {
        Some(tile) if !(caps.cooperative && f16 && blocks::fits(&sizes)) => call.flash(tile),
        _ => call.blocks(),
    }
}

/// One call, its inputs with heads whose elements are contiguous.
struct Call<'a> {
    /// q, k, v.
    inputs: [Input<'a>; 3],
    sizes: Sizes,
    params: SdpaParams,
    elem: Elem,
}

impl Call<'_> {
    fn softcap(&self) -> bool {
        self.params.softcap != 1. && self.params.softcap != 0.
    }

    /// Into how many parts the keys can be cut before a binding does not reach all of them.
    fn most_parts(&self) -> usize {
        let part = self.sizes.rows() * (self.sizes.head_dim + 2) * 4;
        self.inputs[0].0.device().max_binding() as usize / part
    }

    /// Whether four elements of a head can be read at once.
    fn wide(&self) -> bool {
        let aligned = |(_, layout): &Input<'_>| {
            let stride = layout.stride();
            layout.start_offset().is_multiple_of(4)
                && stride[..3].iter().all(|s| s.is_multiple_of(4))
        };
        self.sizes.head_dim.is_multiple_of(4) && self.inputs.iter().all(aligned)
    }

    /// What the keys of all kernels have; `joins` if it makes parts.
    fn key(&self, kernel: &'static str, joins: bool) -> Key {
        Key::new(kernel)
            .elem(self.elem)
            .with(self.wide().into(), 1)
            .with(joins.into(), 1)
            .with(self.softcap().into(), 1)
            .with(self.params.causal.into(), 1)
            .with(self.sizes.head_dim as u32, 16)
    }

    fn kernel_params(&self, splits: usize, chunk: usize) -> Result<AttentionParams> {
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
            splits: index(splits)?,
            chunk: index(chunk)?,
            scale: self.params.scale,
            softcap: self.params.softcap,
        })
    }
}

impl Sizes {
    /// Query heads that share keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Queries that share keys and values: the rows that tiles are cut from.
    fn sharing(&self) -> usize {
        self.group() * self.queries
    }

    /// Workgroups that take `tile` of those rows each.
    fn workgroups(&self, tile: usize) -> usize {
        self.batch * self.kv_heads * self.sharing().div_ceil(tile)
    }

    /// Queries over all heads.
    fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }
}

impl Shader {
    /// q, k and v: `name_quad(start, quad)` gives elements `4 quad .. 4 quad + 4` of the head that starts at `start`, zeros
    /// past its end.
    fn heads(mut self, elem: Elem, wide: bool) -> Self {
        let word = match (wide, elem) {
            (true, Elem::F32) => Some("vec4<f32>"),
            (true, _) => Some("vec2<u32>"),
            (false, _) => None,
        };
        for name in ["q", "k", "v"] {
            let read = match (wide, elem) {
                (false, _) => format!(
                    "var r = vec4<f32>(0.0); for (var i = 0u; i < 4u; i++) {{ \
                     if (quad * 4u + i < HEAD_DIM) {{ r[i] = {name}_at(start + quad * 4u + i); }} }} return r;"
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
            self = match word {
                Some(word) => self.input_words(name, word),
                None => self.input(name, elem),
            }
            .text(&format!(
                "fn {name}_quad(start: u32, quad: u32) -> vec4<f32> {{ {read} }}"
            ));
        }
        self
    }
}
