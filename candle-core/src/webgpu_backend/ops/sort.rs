//! The order of each row's elements: a bitonic network over (key, place), where equal keys keep the order of their places.
//!
//! Keys are the elements as unsigned numbers of the same order. A row is filled up to a power of two; runs of a tile are
//! sorted in workgroup memory, then longer runs are merged by steps through global memory until the rest of a merge fits a tile.
//! Reference: Batcher, "Sorting networks and their applications", AFIPS 1968.

use super::copy2d::{copy2d, Rows};
use super::elementwise::functions;
use super::windows::{Operand, Split};
use super::{bind, index, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result};

/// The most elements that a workgroup sorts in its own memory.
const MAX_TILE: usize = 1024;

params!(SortParams {
    dims: Dims,
    src_stride: Dims,
    src_offset: u32,
    n: u32,
    padded: u32,
    tiles: u32,
    first_run: u32,
    last_run: u32,
});

params!(StepParams {
    run: u32,
    step: u32,
    padded: u32,
    len: u32,
});

/// WGSL for a key and its order. NaN comes last, and the two zeros are equal.
fn key_functions(elem: Elem, ascending: bool) -> String {
    let of = match elem.arithmetic() {
        "f32" => {
            "let bits = bitcast<u32>(x); \
             if (is_nan(x)) { return 0xffffffffu; } \
             if ((bits << 1u) == 0u) { return 0x80000000u; } \
             return select(bits ^ 0x80000000u, ~bits, (bits >> 31u) == 1u);"
        }
        "f64" => {
            "let bits = vec2<u32>(u32(bitcast<u64>(x) & 0xfffffffflu), u32(bitcast<u64>(x) >> 32u)); \
             if (is_nan64(x)) { return vec2<u32>(0xffffffffu, 0xffffffffu); } \
             if ((bits.x | (bits.y << 1u)) == 0u) { return vec2<u32>(0u, 0x80000000u); } \
             return select(bits ^ vec2<u32>(0u, 0x80000000u), ~bits, (bits.y >> 31u) == 1u);"
        }
        "i32" => "return bitcast<u32>(x) ^ 0x80000000u;",
        "u32" => "return x;",
        _ => "return vec2<u32>(x.x, x.y ^ 0x80000000u);",
    };
    let key = key_word(elem);
    let wide = elem.word_bytes() == 8;
    let less = match wide {
        true => "a.y < b.y || (a.y == b.y && a.x < b.x)",
        false => "a < b",
    };
    let direction = if ascending { "" } else { "~" };
    let last = match wide {
        true => "vec2<u32>(0xffffffffu, 0xffffffffu)",
        false => "0xffffffffu",
    };
    let is_nan64 = match elem {
        Elem::F64 => functions(elem),
        _ => "",
    };
    is_nan64.to_string()
        + &format!(
            "alias key_t = {key};\n\
         const LAST = {last};\n\
         fn order_of(x: src_t) -> key_t {{ {of} }}\n\
         fn key_of(x: src_t) -> key_t {{ return {direction}order_of(x); }}\n\
         fn key_less(a: key_t, b: key_t) -> bool {{ return {less}; }}\n"
        )
}

/// The word that a key is stored in.
fn key_word(elem: Elem) -> &'static str {
    match elem.word_bytes() {
        8 => "vec2<u32>",
        _ => "u32",
    }
}

/// The rows' keys and places on their way to the right order.
struct Network<'a> {
    device: &'a WebGpuDevice,
    elem: Elem,
    ascending: bool,
    keys: WebGpuStorage,
    ids: WebGpuStorage,
    rows: usize,
    n: usize,
    padded: usize,
    tile: usize,
}

impl Network<'_> {
    fn key(&self, kernel: &'static str) -> Key {
        Key::new(kernel)
            .elem(self.elem)
            .with(self.ascending.into(), 1)
    }

    /// Sorts or merges in workgroup memory: all runs from `first_run` to `last_run` elements.
    fn in_tiles(
        &self,
        src: &WebGpuStorage,
        layout: &Layout,
        (first_run, last_run): (usize, usize),
    ) -> Result<()> {
        let views = Views::new([layout])?;
        let load = first_run == 2;
        let size = (self.tile / 2).clamp(1, 256) as u32;
        let tiles = self.rows * (self.padded / self.tile);
        let key = self
            .key("sort")
            .with(load.into(), 1)
            .with(self.tile.ilog2(), 4)
            .with(views.rank as u32, 4);
        self.device.launch(
            key,
            || {
                Shader::new(format!(
                    "sort {:?} load:{load} tile:{}",
                    self.elem, self.tile
                ))
                .input("src", self.elem)
                .output_words("keys", key_word(self.elem))
                .output_words("ids", "u32")
                .strided("src", views.rank)
                .constant("WG", size)
                .constant("TILE", self.tile as u32)
                .constant("LOAD", load)
                .text(&key_functions(self.elem, self.ascending))
                .body::<SortParams>(include_str!("../shaders/sort.wgsl"))
            },
            &[bind(src), bind(&self.keys), bind(&self.ids)],
            &SortParams {
                dims: views.dims,
                src_stride: views.strides[0],
                src_offset: views.offsets[0],
                n: index(self.n)?,
                padded: index(self.padded)?,
                tiles: index(tiles)?,
                first_run: index(first_run)?,
                last_run: index(last_run)?,
            },
            self.device.grid(tiles, 1),
        )
    }

    /// One step of a merge through global memory: elements `step` apart change places where they must.
    fn step(&self, src: &WebGpuStorage, run: usize, step: usize) -> Result<()> {
        const WG: u32 = 256;
        let pairs = self.rows * self.padded / 2;
        self.device.launch(
            self.key("sort step"),
            || {
                Shader::new(format!("sort step {:?}", self.elem))
                    .input("src", self.elem)
                    .output_words("keys", key_word(self.elem))
                    .output_words("ids", "u32")
                    .constant("WG", WG)
                    .text(&key_functions(self.elem, self.ascending))
                    .body::<StepParams>(include_str!("../shaders/sort_step.wgsl"))
            },
            &[bind(src), bind(&self.keys), bind(&self.ids)],
            &StepParams {
                run: index(run)?,
                step: index(step)?,
                padded: index(self.padded)?,
                len: index(pairs)?,
            },
            self.device.grid(pairs, WG),
        )
    }
}

/// For each row along the last dimension, the places of its elements in ascending or descending order, as u32.
///
/// The order is total: NaN is greater than any number, the zeros are equal, and equal elements stay in the order of their
/// places.
pub(crate) fn arg_sort(
    src: &WebGpuStorage,
    layout: &Layout,
    ascending: bool,
    op: &'static str,
) -> Result<WebGpuStorage> {
    let device = src.device();
    let elem = device.elem(src.dtype(), op)?;
    let len = layout.shape().elem_count();
    let n = layout.dims().last().copied().unwrap_or(1);
    let dst = device.alloc(len, DType::U32, op)?;
    if len == 0 {
        return Ok(dst);
    }
    let key_dtype = match elem.word_bytes() {
        8 => DType::I64,
        _ => DType::U32,
    };
    let row_bytes = n.next_power_of_two().max(2) * key_dtype.size_in_bytes();
    let whole = (len / n * row_bytes) as u64 <= device.max_binding();
    if whole && src.fits_binding() {
        sort_into(&dst, (src, layout), ascending, key_dtype, op)?;
        return Ok(dst);
    }
    // By rows. A row takes part in a merge as a whole, so one whose keys a binding does not reach is an error: on a phone's 128 MiB
    // that is a row of more than 2^24 elements.
    let rank = layout.dims().len().saturating_sub(1);
    let split = Split {
        op,
        dims: &layout.dims()[..rank],
        unit: n,
        bytes: row_bytes,
        inputs: [(src, layout)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(src, layout)] = &part.inputs;
        sort_into(&part.dst, (src, layout), ascending, key_dtype, op)
    })?;
    Ok(dst)
}

fn sort_into(
    dst: &WebGpuStorage,
    (src, layout): Operand<'_>,
    ascending: bool,
    key_dtype: DType,
    op: &'static str,
) -> Result<()> {
    let device = src.device();
    let n = layout.dims().last().copied().unwrap_or(1);
    let rows = layout.shape().elem_count() / n;
    let padded = n.next_power_of_two().max(2);
    let network = Network {
        device,
        elem: device.elem(src.dtype(), op)?,
        ascending,
        keys: device.alloc(rows * padded, key_dtype, op)?,
        ids: device.alloc(rows * padded, DType::U32, op)?,
        rows,
        n,
        padded,
        tile: padded.min(MAX_TILE),
    };
    network.in_tiles(src, layout, (2, network.tile))?;
    let mut run = network.tile * 2;
    while run <= padded {
        let mut step = run / 2;
        while step >= network.tile {
            network.step(src, run, step)?;
            step /= 2;
        }
        network.in_tiles(src, layout, (run, run))?;
        run *= 2;
    }
    let rows = Rows {
        d1: rows,
        d2: n,
        src_stride: padded,
        dst_stride: n,
        src_offset: 0,
        dst_offset: 0,
    };
    copy2d(&network.ids, &mut dst.share(), rows)
}
