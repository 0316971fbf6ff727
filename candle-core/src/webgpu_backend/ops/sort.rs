//! The sorting order of each row's elements: a bitonic network over (key, index), where equal keys keep the order of their indexes.
//!
//! Keys are the elements as unsigned numbers of the same order. A row is padded to a power of two; runs of a tile are sorted in workgroup
//! memory, then longer runs are merged by steps through global memory until the rest of a merge fits a tile. A row whose keys exceed a
//! binding is sorted in windows; the remaining steps of longer merges are between two windows. Reference: Batcher, "Sorting networks and
//! their applications", AFIPS 1968.

use super::copy2d::{copy2d, Rows};
use super::elementwise;
use super::windows::{reach, window_bytes, Operand, Split};
use super::{bind, index, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result};

/// Maximum number of elements that a workgroup sorts in workgroup memory.
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
    first: u32,
});

params!(StepParams {
    run: u32,
    step: u32,
    padded: u32,
    len: u32,
    first: u32,
});

/// Sorts or merges tiles in workgroup memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SortTile {
    load: Option<Load>,
    /// Whether keys are 64 bits.
    wide: bool,
    tile: usize,
}

/// The source of a tile's elements, if it was not loaded before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Load {
    elem: Elem,
    ascending: bool,
    rank: usize,
}

impl SortTile {
    fn workgroup(&self) -> u32 {
        (self.tile / 2).clamp(1, 256) as u32
    }
}

impl Kernel for SortTile {
    type Params = SortParams;

    fn shader(&self, _: &Caps) -> Shader {
        let shader = match self.load {
            Some(Load {
                elem,
                ascending,
                rank,
            }) => Shader::default()
                .view("src", elem, rank)
                .constant("ASCENDING", ascending)
                .text(order_of(elem))
                .text(include_str!("../shaders/sort_load.wgsl")),
            None => Shader::default().text("fn key_at(i: u32) -> key_t { return LAST; }"),
        };
        shader
            .sorted_words("keys", "ids")
            .text(keys(self.wide))
            .constant("WG", self.workgroup())
            .constant("TILE", self.tile as u32)
            .constant("LOAD", self.load.is_some())
            .body::<SortParams>(include_str!("../shaders/sort.wgsl"))
    }
}

/// A step of a merge through global memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SortStep {
    wide: bool,
}

impl Kernel for SortStep {
    type Params = StepParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .sorted_words("keys", "ids")
            .text(keys(self.wide))
            .constant("WG", WG)
            .body::<StepParams>(include_str!("../shaders/sort_step.wgsl"))
    }
}

/// A step of a merge between two windows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SortWindows {
    wide: bool,
}

impl Kernel for SortWindows {
    type Params = StepParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .sorted_words("keys", "ids")
            .sorted_words("high_keys", "high_ids")
            .text(keys(self.wide))
            .constant("WG", WG)
            .body::<StepParams>(include_str!("../shaders/sort_windows.wgsl"))
    }
}

impl Shader {
    fn sorted_words(self, keys: &str, ids: &str) -> Self {
        self.output_words(keys, "key_t").output_words(ids, "u32")
    }
}

/// WGSL for keys and their order.
fn keys(wide: bool) -> &'static str {
    if wide {
        include_str!("../shaders/sort_keys64.wgsl")
    } else {
        include_str!("../shaders/sort_keys32.wgsl")
    }
}

/// WGSL for the key of an element.
fn order_of(elem: Elem) -> &'static str {
    match elem.arithmetic() {
        "f32" => include_str!("../shaders/order_float.wgsl"),
        "f64" => concat!(
            include_str!("../shaders/functions_float64.wgsl"),
            include_str!("../shaders/order_float64.wgsl")
        ),
        "u32" => "fn order_of(x: u32) -> key_t { return x; }",
        "i32" => "fn order_of(x: i32) -> key_t { return bitcast<u32>(x) ^ 0x80000000u; }",
        _ => "fn order_of(x: vec2<u32>) -> key_t { return x ^ vec2<u32>(0u, 0x80000000u); }",
    }
}

/// The comparison of elements.
#[derive(Clone, Copy)]
struct Order {
    elem: Elem,
    ascending: bool,
    op: &'static str,
}

impl Order {
    /// Whether keys are 64 bits.
    fn wide(self) -> bool {
        self.elem.word_bytes() == 8
    }

    /// The dtype of a storage for keys.
    fn key_dtype(self) -> DType {
        if self.wide() {
            DType::I64
        } else {
            DType::U32
        }
    }
}

/// Invocations of the kernels that process one pair of elements each.
const WG: u32 = 256;

/// The keys and indexes of rows during sorting, or those of a window of one row.
struct Network<'a> {
    device: &'a WebGpuDevice,
    order: Order,
    keys: WebGpuStorage,
    ids: WebGpuStorage,
    rows: usize,
    n: usize,
    padded: usize,
    tile: usize,
    /// The index at which a window begins in its row.
    first: usize,
}

impl<'a> Network<'a> {
    fn new(
        device: &'a WebGpuDevice,
        order: Order,
        (rows, n, padded): (usize, usize, usize),
        first: usize,
    ) -> Result<Self> {
        Ok(Self {
            device,
            order,
            keys: device.alloc(rows * padded, order.key_dtype(), order.op)?,
            ids: device.alloc(rows * padded, DType::U32, order.op)?,
            rows,
            n,
            padded,
            tile: padded.min(MAX_TILE),
            first,
        })
    }

    /// Loads the rows and sorts them.
    fn sort(&self, src: Operand<'_>) -> Result<()> {
        self.in_tiles(Some(src), (2, self.tile))?;
        let mut run = self.tile * 2;
        while run <= self.padded {
            self.merge(run)?;
            run *= 2;
        }
        Ok(())
    }

    /// The steps of merging runs of `run` elements that stay within a row or a window.
    fn merge(&self, run: usize) -> Result<()> {
        let mut step = run.min(self.padded) / 2;
        while step >= self.tile {
            self.step(run, step)?;
            step /= 2;
        }
        self.in_tiles(None, (run, run))
    }

    /// Sorts or merges in workgroup memory: all runs from `first_run` to `last_run` elements, of `src` or of the current keys.
    fn in_tiles(
        &self,
        src: Option<Operand<'_>>,
        (first_run, last_run): (usize, usize),
    ) -> Result<()> {
        let empty = Layout::contiguous(0);
        let views = Views::new([src.map_or(&empty, |(_, layout)| layout)])?;
        let Order {
            elem, ascending, ..
        } = self.order;
        let tiles = self.rows * (self.padded / self.tile);
        let kernel = SortTile {
            load: src.map(|_| Load {
                elem,
                ascending,
                rank: views.rank,
            }),
            wide: self.order.wide(),
            tile: self.tile,
        };
        let mut bindings: Vec<_> = src.iter().map(|(src, _)| bind(src)).collect();
        bindings.extend([bind(&self.keys), bind(&self.ids)]);
        self.device.run(
            &kernel,
            &bindings,
            &SortParams {
                dims: views.dims,
                src_stride: views.strides[0],
                src_offset: views.offsets[0],
                n: index(self.n)?,
                padded: index(self.padded)?,
                tiles: index(tiles)?,
                first_run: index(first_run)?,
                last_run: index(last_run)?,
                first: index(self.first)?,
            },
            self.device.grid(tiles, 1),
        )
    }

    /// One step of a merge through global memory: swaps elements `step` apart if necessary.
    fn step(&self, run: usize, step: usize) -> Result<()> {
        let pairs = self.rows * self.padded / 2;
        let wide = self.order.wide();
        self.device.run(
            &SortStep { wide },
            &[bind(&self.keys), bind(&self.ids)],
            &StepParams {
                run: index(run)?,
                step: index(step)?,
                padded: index(self.padded)?,
                len: index(pairs)?,
                first: index(self.first)?,
            },
            self.device.grid(pairs, WG),
        )
    }

    /// One step of a merge between this window and a later one of the same row.
    fn step_between(&self, high: &Self, run: usize) -> Result<()> {
        let wide = self.order.wide();
        self.device.run(
            &SortWindows { wide },
            &[
                bind(&self.keys),
                bind(&self.ids),
                bind(&high.keys),
                bind(&high.ids),
            ],
            &StepParams {
                run: index(run)?,
                step: index(high.first - self.first)?,
                padded: index(self.padded)?,
                len: index(self.padded)?,
                first: index(self.first)?,
            },
            self.device.grid(self.padded, WG),
        )
    }
}

/// The indexes of each row's elements along the last dimension in ascending or descending order, as u32.
///
/// The order is total: NaN is greater than any number, the zeros are equal, and equal elements keep the order of their indexes.
pub(crate) fn arg_sort(
    src: &WebGpuStorage,
    layout: &Layout,
    ascending: bool,
    op: &'static str,
) -> Result<WebGpuStorage> {
    let device = src.device();
    let elem = device.elem(src.dtype(), op)?;
    let order = Order {
        elem,
        ascending,
        op,
    };
    let len = layout.shape().elem_count();
    let n = layout.dims().last().copied().unwrap_or(1);
    let dst = device.alloc(len, DType::U32, op)?;
    if len == 0 {
        return Ok(dst);
    }
    let row_bytes = n.next_power_of_two().max(2) * order.key_dtype().size_in_bytes();
    let whole = (len / n * row_bytes) as u64 <= device.max_binding();
    if whole && src.fits_binding() {
        sort_into(&dst, (src, layout), order)?;
        return Ok(dst);
    }
    if row_bytes > window_bytes(device) {
        let (src, first) = elementwise::in_order((src, layout))?;
        for row in (0..len).step_by(n) {
            let row_l = Layout::contiguous_with_offset(n, first + row);
            sort_long_row(&dst, row, (&src, &row_l), order)?;
        }
        return Ok(dst);
    }
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
        sort_into(&part.dst, (src, layout), order)
    })?;
    Ok(dst)
}

fn sort_into(dst: &WebGpuStorage, (src, layout): Operand<'_>, order: Order) -> Result<()> {
    let n = layout.dims().last().copied().unwrap_or(1);
    let rows = layout.shape().elem_count() / n;
    let padded = n.next_power_of_two().max(2);
    let network = Network::new(src.device(), order, (rows, n, padded), 0)?;
    network.sort((src, layout))?;
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

/// One row whose keys exceed a binding; the result is written to `dst` from element `at` on.
fn sort_long_row(
    dst: &WebGpuStorage,
    at: usize,
    (src, layout): Operand<'_>,
    order: Order,
) -> Result<()> {
    let device = src.device();
    let n = layout.dims()[0];
    let most = device.max_binding() as usize / order.key_dtype().size_in_bytes();
    let window = 1usize << most.ilog2();
    let mut windows = Vec::new();
    for first in (0..n.next_power_of_two()).step_by(window) {
        let len = n.saturating_sub(first).min(window);
        let network = Network::new(device, order, (1, len, window), first)?;
        // Nothing is read past the row's end.
        let part = layout.narrow(0, first.min(n - 1), len.max(1))?;
        let (src, part) = reach((src, &part))?;
        network.sort((&src, &part))?;
        windows.push(network);
    }
    let mut run = 2;
    while run <= windows.len() {
        let mut step = run / 2;
        while step > 0 {
            for low in (0..windows.len()).filter(|low| low & step == 0) {
                windows[low].step_between(&windows[low + step], run * window)?;
            }
            step /= 2;
        }
        for network in &windows {
            network.merge(run * window)?;
        }
        run *= 2;
    }
    for network in windows {
        let ids = Rows::range(network.n, 0, at + network.first);
        copy2d(&network.ids, &mut dst.share(), ids)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Load, SortStep, SortTile, SortWindows};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        for elem in Elem::ALL {
            let load = Load {
                elem,
                ascending: elem.is_float(),
                rank: 2,
            };
            let wide = elem.word_bytes() == 8;
            for load in [Some(load), None] {
                assert_valid(&SortTile {
                    load,
                    wide,
                    tile: 1024,
                });
            }
            assert_valid(&SortStep { wide });
            assert_valid(&SortWindows { wide });
        }
    }
}
