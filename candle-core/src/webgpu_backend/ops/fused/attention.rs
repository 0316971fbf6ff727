//! Scaled dot-product attention with grouped heads (Vaswani et al., arXiv 1706.03762; Ainslie et al., arXiv 2305.13245).
//!
//! Few queries, as in generation, take one kernel that splits the keys over workgroups and a small one that joins the parts
//! (as in Flash-Decoding, Dao et al. 2023). Many queries go through matrix products with a causal softmax in between, some
//! hundreds of queries at a time, so that the scores stay small.

use super::super::windows::fit;
use super::super::{bind, index, matmul};
use super::softmax::{softmax, Attention};
use super::{float_elem, Shader};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Error, Layout, Result, Shape};

params!(DecodeParams {
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
    rows: u32,
    heads: u32,
    queries: u32,
    keys: u32,
    group: u32,
    splits: u32,
    chunk: u32,
    scale: f32,
    softcap: f32,
});

params!(JoinParams {
    rows: u32,
    splits: u32,
});

/// Invocations of the decode kernel, and so the keys that it looks at in one turn.
const TURN: u32 = 128;
/// The most queries that the decode kernel takes; more are quicker as matrix products.
const MAX_DECODE_QUERIES: usize = 8;
/// Workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: usize = 512;
/// Bytes of scores that a block of queries may have.
const SCORE_BYTES: usize = 256 << 20;

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

type Input<'a> = (&'a WebGpuStorage, &'a Layout);

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
    // What one binding does not reach is split by the matrix products.
    let bound = fit([q, k, v]) && (q_l.shape().elem_count() * 4) as u64 <= q.device().max_binding();
    if bound && sizes.queries <= MAX_DECODE_QUERIES && decode_fits(&sizes, elem) {
        decode((q, q_l), (k, k_l), (v, v_l), &sizes, params, elem)
    } else {
        blocks((q, q_l), (k, k_l), (v, v_l), &sizes, params)
    }
}

/// Whether the decode kernel takes this head: it handles four dimensions at once, all of them in one turn.
fn decode_fits(sizes: &Sizes, elem: Elem) -> bool {
    sizes.head_dim.is_multiple_of(4 * elem.lanes() as usize) && sizes.head_dim <= 4 * TURN as usize
}

/// WGSL that reads four elements along a head, at once where `layout` keeps them together and aligned.
fn four(name: &str, elem: Elem, wide: bool) -> String {
    let read = match (wide, elem) {
        (false, _) => format!(
            "return vec4<f32>({name}_at(i), {name}_at(i + 1u), {name}_at(i + 2u), {name}_at(i + 3u));"
        ),
        (true, Elem::F32) => format!("return {name}[i / 4u];"),
        (true, Elem::F16) => format!(
            "let w = {name}[i / 4u]; return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"
        ),
        (true, _) => format!(
            "let w = {name}[i / 4u]; return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));"
        ),
    };
    format!("fn {name}_four(i: u32) -> vec4<f32> {{ {read} }}")
}

fn aligned(layout: &Layout) -> bool {
    let stride = layout.stride();
    layout.start_offset().is_multiple_of(4) && stride[..3].iter().all(|s| s.is_multiple_of(4))
}

fn decode(
    q: Input<'_>,
    k: Input<'_>,
    v: Input<'_>,
    sizes: &Sizes,
    params: SdpaParams,
    elem: Elem,
) -> Result<WebGpuStorage> {
    let device = q.0.device();
    let rows = sizes.batch * sizes.heads * sizes.queries;
    let turns = sizes.keys.div_ceil(TURN as usize);
    let splits = turns.min(BUSY_WORKGROUPS.div_ceil(rows.max(1))).max(1);
    let chunk = turns.div_ceil(splits) * TURN as usize;
    let splits = sizes.keys.div_ceil(chunk).max(1);
    let dst = device.alloc(rows * sizes.head_dim, q.0.dtype(), "sdpa")?;
    if rows == 0 {
        return Ok(dst);
    }
    // The kernels step through a head one element after the other.
    let contiguous = |input: Input<'_>| input.1.stride()[3] == 1 || sizes.head_dim == 1;
    let partial = rows * splits * (sizes.head_dim + 2) * 4;
    let bound = partial as u64 <= device.max_binding();
    if !(bound && contiguous(q) && contiguous(k) && contiguous(v)) {
        return blocks(q, k, v, sizes, params);
    }
    let wide = aligned(q.1) && aligned(k.1) && aligned(v.1);
    let word = match (wide, elem) {
        (true, Elem::F32) => Some("vec4<f32>"),
        (true, _) => Some("vec2<u32>"),
        (false, _) => None,
    };
    let join = splits > 1;
    let softcap = params.softcap != 1. && params.softcap != 0.;
    let parts = match join {
        true => device.alloc(rows * splits * (sizes.head_dim + 2), DType::F32, "sdpa")?,
        false => device.alloc(0, DType::F32, "sdpa")?,
    };
    let key = Key::new("sdpa_decode")
        .elem(elem)
        .with(wide.into(), 1)
        .with(join.into(), 1)
        .with(softcap.into(), 1)
        .with(params.causal.into(), 1)
        .with(sizes.head_dim as u32, 16);
    let shader = || {
        let mut shader = Shader::new(format!("sdpa_decode {elem:?} d{}", sizes.head_dim));
        for name in ["q", "k", "v"] {
            shader = match word {
                Some(word) => shader.input_words(name, word),
                None => shader.input(name, elem),
            }
            .text(&four(name, elem, wide));
        }
        shader = if join {
            shader.output_words("parts_out", "f32")
        } else {
            shader.output("dst", elem)
        };
        shader
            .constant("CAUSAL", params.causal)
            .constant("SOFTCAP", softcap)
            .constant("HEAD_DIM", sizes.head_dim as u32)
            .reduction(device, TURN, 1)
            .text(include_str!("../../shaders/functions_float.wgsl"))
            .text(if join {
                include_str!("../../shaders/sdpa_part.wgsl")
            } else {
                include_str!("../../shaders/sdpa_whole.wgsl")
            })
            .body::<DecodeParams>(include_str!("../../shaders/sdpa_decode.wgsl"))
    };
    let steps = |layout: &Layout| -> Result<[u32; 4]> {
        let stride = layout.stride();
        Ok([
            index(layout.start_offset())?,
            index(stride[0])?,
            index(stride[1])?,
            index(stride[2])?,
        ])
    };
    let [q_offset, q_batch, q_head, q_seq] = steps(q.1)?;
    let [k_offset, k_batch, k_head, k_seq] = steps(k.1)?;
    let [v_offset, v_batch, v_head, v_seq] = steps(v.1)?;
    let target = if join { &parts } else { &dst };
    device.launch(
        key,
        shader,
        &[bind(q.0), bind(k.0), bind(v.0), bind(target)],
        &DecodeParams {
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
            rows: index(rows)?,
            heads: index(sizes.heads)?,
            queries: index(sizes.queries)?,
            keys: index(sizes.keys)?,
            group: index(sizes.heads / sizes.kv_heads)?,
            splits: index(splits)?,
            chunk: index(chunk)?,
            scale: params.scale,
            softcap: params.softcap,
        },
        device.grid(rows * splits, 1),
    )?;
    if !join {
        return Ok(dst);
    }
    let workgroup = 64;
    let key = Key::new("sdpa_join")
        .elem(elem)
        .with(sizes.head_dim as u32, 16);
    device.launch(
        key,
        || {
            Shader::new(format!("sdpa_join {elem:?} d{}", sizes.head_dim))
                .input_words("parts_in", "f32")
                .output("dst", elem)
                .constant("WG", workgroup)
                .constant("HEAD_DIM", sizes.head_dim as u32)
                .body::<JoinParams>(include_str!("../../shaders/sdpa_join.wgsl"))
        },
        &[bind(&parts), bind(&dst)],
        &JoinParams {
            rows: index(rows)?,
            splits: index(splits)?,
        },
        device.grid(rows * sizes.head_dim / elem.lanes() as usize, workgroup),
    )?;
    Ok(dst)
}

/// Attention as matrix products, over blocks of queries.
fn blocks(
    q: Input<'_>,
    k: Input<'_>,
    v: Input<'_>,
    sizes: &Sizes,
    params: SdpaParams,
) -> Result<WebGpuStorage> {
    let Sizes {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
    } = *sizes;
    let group = heads / kv_heads;
    let device = q.0.device();
    let dtype = q.0.dtype();
    let mut dst = device.alloc(batch * heads * queries * head_dim, dtype, "sdpa")?;
    let per_query = batch * heads * keys * 4;
    let block = (SCORE_BYTES / per_query.max(1)).max(64).min(queries.max(1));
    // Heads that share keys become a dimension over which k and v do not move.
    let grouped = |l: &Layout, seq: usize| {
        let s = l.stride();
        Layout::new(
            Shape::from((batch, kv_heads, group, seq, head_dim)),
            vec![s[0], s[1] * group, s[1], s[2], s[3]],
            l.start_offset(),
        )
    };
    let shared = |l: &Layout| {
        let s = l.stride();
        Layout::new(
            Shape::from((batch, kv_heads, group, keys, head_dim)),
            vec![s[0], s[1], 0, s[2], s[3]],
            l.start_offset(),
        )
    };
    let (k_l, v_l) = (shared(k.1).transpose(3, 4)?, shared(v.1));
    for start in (0..queries).step_by(block) {
        let count = block.min(queries - start);
        // A causal block sees the keys up to its last query only.
        let seen = match params.causal {
            true => keys - queries + start + count,
            false => keys,
        };
        let q_l = grouped(&q.1.narrow(2, start, count)?, count);
        let (k_l, v_l) = (k_l.narrow(4, 0, seen)?, v_l.narrow(3, 0, seen)?);
        let heads_all = batch * heads;
        let scores = matmul::product(
            q.0,
            k.0,
            (heads_all, count, seen, head_dim),
            &q_l,
            &k_l,
            DType::F32,
        )?;
        let attention = Attention {
            scale: params.scale,
            softcap: if params.softcap == 1. {
                0.
            } else {
                params.softcap
            },
            causal: params.causal,
        };
        let scores_l = Layout::contiguous((batch, kv_heads, group, count, seen));
        let weights = softmax(&scores, &scores_l, &attention, dtype)?;
        let out = matmul::product(
            &weights,
            v.0,
            (heads_all, count, head_dim, seen),
            &scores_l,
            &v_l,
            dtype,
        )?;
        if count == queries {
            return Ok(out);
        }
        let rows = super::super::copy2d::Rows {
            d1: heads_all,
            d2: count * head_dim,
            src_stride: count * head_dim,
            dst_stride: queries * head_dim,
            src_offset: 0,
            dst_offset: start * head_dim,
        };
        super::super::copy2d::copy2d(&out, &mut dst, rows)?;
    }
    Ok(dst)
}
