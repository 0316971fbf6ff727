//! Blocks of GGML: packed in planes on upload, dequantised, looked up by row. Products with them are in `ops/matmul`.

mod format;
mod loader;

use super::copy2d::{copy2d, Rows};
use super::indexing::{ids_elem, number, reads_ids};
use super::windows::{fit, Operand, Split};
use super::{bind, index, WORKGROUP};
use crate::backend::{BackendDevice, BackendStorage};
use crate::parts::chunks_of;
use crate::quantized::GgmlDType;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::quantized::QWebGpuStorage;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Error, Layout, Result};

pub(in crate::webgpu_backend) use format::Format;
#[cfg(test)]
pub(in crate::webgpu_backend) use format::FORMATS;
pub(in crate::webgpu_backend) use loader::Pieces;

params!(RepackParams {
    words: u32,
    bytes: u32,
});

params!(DequantizeParams {
    len: u32,
    first: u32,
    factor: f32,
    hidden: u32,
    rows_first: u32,
    rows: u32,
    ids_offset: u32,
    ids_step: u32,
    size: u32,
    op: u32,
});

/// Packs one plane of blocks, one unit at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Repack {
    /// Number of bits that stay together.
    piece: u32,
    unit_words: usize,
    unit_bytes: usize,
}

impl Kernel for Repack {
    type Params = RepackParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input_words("blocks", "u32")
            .input_words("places", "u32")
            .output_words("plane", "u32")
            .constant("WG", WORKGROUP)
            .constant("PIECE", self.piece)
            .constant("UNIT_WORDS", self.unit_words as u32)
            .constant("UNIT_BYTES", self.unit_bytes as u32)
            .body::<RepackParams>(include_str!("../../shaders/repack.wgsl"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Dequantize {
    format: Format,
    out: Elem,
    converts: bool,
}

impl Kernel for Dequantize {
    type Params = DequantizeParams;

    fn shader(&self, _: &Caps) -> Shader {
        self.format
            .load(Shader::default())
            .stores_eight(self.out, self.converts)
            .constant("WG", WORKGROUP)
            .text("fn source(e: u32) -> u32 { return p.first + e; }")
            .body::<DequantizeParams>(include_str!("../../shaders/dequantize.wgsl"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct QuantizedEmbedding {
    format: Format,
    ids: Elem,
}

impl Kernel for QuantizedEmbedding {
    type Params = DequantizeParams;

    fn shader(&self, _: &Caps) -> Shader {
        self.format
            .load(Shader::default())
            .input("ids", self.ids)
            .stores_eight(Elem::F32, false)
            .status()
            .constant("WG", WORKGROUP)
            .text(&reads_ids(self.ids, false))
            .text(include_str!("../../shaders/dequantize_rows.wgsl"))
            .body::<DequantizeParams>(include_str!("../../shaders/dequantize.wgsl"))
    }
}

/// Bytes of blocks that are uploaded before they are packed: memory that the device needs in addition to the planes.
const PIECE_BYTES: usize = 32 << 20;

/// The planes of blocks, as storages of words, and an upper bound on the elements' magnitude. The blocks are the concatenation of `parts`,
/// each of whole blocks.
///
/// # Errors
/// If a plane is larger than the device supports.
pub(in crate::webgpu_backend) fn upload(
    device: &WebGpuDevice,
    format: Format,
    dtype: GgmlDType,
    parts: &[&[u8]],
) -> Result<(Vec<WebGpuStorage>, f32)> {
    const OP: &str = "quantized upload";
    let block_bytes = format.bytes_of_block() as usize;
    let unit_bytes = format.unit() * block_bytes;
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let units = (bytes / dtype.type_size()).div_ceil(format.unit());
    let planes = format.planes();
    let mut storages = Vec::with_capacity(planes.len());
    let mut places = Vec::with_capacity(planes.len());
    for plane in &planes {
        storages.push(device.alloc(units * plane.words(), DType::U32, OP)?);
        places.push(device.storage_from_slice(&plane.places)?);
    }
    // A plane's part of an upload fits a binding, and begins where one can.
    let piece_bytes = PIECE_BYTES.min(device.max_binding() as usize / 2);
    let piece_units = match piece_bytes / unit_bytes {
        units @ ..64 => units.max(1),
        units => units / 64 * 64,
    };
    let file_bytes = piece_units * format.unit() * dtype.type_size();
    let mut reach = 0f32;
    let mut arranged = Vec::new();
    for (piece, mut parts) in chunks_of(parts, file_bytes).enumerate() {
        if format.is_rearranged() {
            arranged.clear();
            for part in parts.drain(..) {
                format.arrange(part, &mut arranged);
            }
            parts.push(&arranged);
        }
        reach = parts
            .iter()
            .fold(reach, |reach, part| reach.max(format.reach(part)));
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let blocks = device.upload_parts(&parts, DType::U8)?;
        for ((plane, storage), places) in planes.iter().zip(&storages).zip(&places) {
            let unit_words = plane.words();
            let words = bytes.div_ceil(unit_bytes) * unit_words;
            let first = piece * piece_units * unit_words;
            let target = Target::new(storage, first, words, OP)?;
            device.run(
                &Repack {
                    piece: plane.piece,
                    unit_words,
                    unit_bytes,
                },
                &[bind(&blocks), bind(places), bind(&target.part)],
                &RepackParams {
                    words: index(words)?,
                    bytes: index(bytes)?,
                },
                device.grid(words, WORKGROUP),
            )?;
            target.finish()?;
        }
    }
    Ok((storages, reach))
}

/// The destination of a kernel: a window of a storage, or a buffer that is then copied, if there is no window.
struct Target<'a> {
    dst: &'a WebGpuStorage,
    first: usize,
    part: WebGpuStorage,
    copied: bool,
}

impl<'a> Target<'a> {
    fn new(dst: &'a WebGpuStorage, first: usize, len: usize, op: &'static str) -> Result<Self> {
        let window = if first == 0 && len == dst.len() && dst.fits_binding() {
            Some(dst.share())
        } else {
            dst.aligned_window(first, len)
        };
        let copied = window.is_none();
        let part = match window {
            Some(window) => window,
            None => dst.device().alloc(len, dst.dtype(), op)?,
        };
        Ok(Self {
            dst,
            first,
            part,
            copied,
        })
    }

    /// Must be called after the kernel is queued.
    fn finish(self) -> Result<()> {
        if !self.copied {
            return Ok(());
        }
        let rows = Rows::range(self.part.len(), 0, self.first);
        copy2d(&self.part, &mut self.dst.share(), rows)
    }
}

/// The bytes of the blocks of these planes. Waits for the GPU.
pub(in crate::webgpu_backend) fn download(
    format: Format,
    planes: &[WebGpuStorage],
    blocks: usize,
) -> Result<Vec<u8>> {
    let planes = planes.iter().map(|plane| {
        let crate::CpuStorage::U32(words) = plane.to_cpu_storage()? else {
            return Err(Error::WebGpu("a plane of blocks is not words".into()).bt());
        };
        Ok(words)
    });
    Ok(format.join(&planes.collect::<Result<Vec<_>>>()?, blocks))
}

impl Shader {
    /// Declares the output `dst`: `store_eight(i, a, b)` writes elements `8 i .. 8 i + 8` in few stores. With `converts` the GPU converts to f16
    /// with its own rounding in one instruction; exact rounding takes about ten.
    pub(in crate::webgpu_backend) fn stores_eight(self, elem: Elem, converts: bool) -> Self {
        let (word, store) = match (elem, converts) {
            (Elem::F16, true) => (
                "vec4<f16>",
                "dst[2u * i] = vec4<f16>(a); dst[2u * i + 1u] = vec4<f16>(b);",
            ),
            (Elem::F16, false) => (
                "vec4<u32>",
                "dst[i] = vec4<u32>(pack_f16(a.x, a.y), pack_f16(a.z, a.w), pack_f16(b.x, b.y), pack_f16(b.z, b.w));",
            ),
            (Elem::BF16, _) => (
                "vec4<u32>",
                "dst[i] = vec4<u32>(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));",
            ),
            _ => ("vec4<f32>", "dst[2u * i] = a; dst[2u * i + 1u] = b;"),
        };
        let shader = self.output_words("dst", word).text(&format!(
            "fn store_eight(i: u32, a: vec4<f32>, b: vec4<f32>) {{ {store} }}"
        ));
        if converts {
            shader.directive("enable f16;\n")
        } else {
            shader
        }
    }
}

/// Returns elements `first .. first + elements` times a power of two, in dtype `to`: f32, f16 or bf16. `first` and `elements` are multiples
/// of 32. With `converts`, which needs shader-f16, the GPU converts to f16 with its own rounding.
pub(in crate::webgpu_backend) fn dequantize(
    src: &QWebGpuStorage,
    format: Format,
    (first, elements): (usize, usize),
    factor: f32,
    (to, converts): (DType, bool),
) -> Result<WebGpuStorage> {
    const OP: &str = "dequantize";
    let device = src.device();
    let dst = device.alloc(elements, to, OP)?;
    let out = device.elem(to, OP)?;
    let kernel = Dequantize {
        format,
        out,
        converts,
    };
    let piece = if src.fits_binding() && dst.fits_binding() {
        elements.max(1)
    } else {
        src.window_elements(format, to.size_in_bytes())
    };
    for start in (0..elements).step_by(piece) {
        let len = piece.min(elements - start);
        let target = Target::new(&dst, start, len, OP)?;
        let window = src.window(format, first + start, len)?;
        let mut bindings = window.bindings();
        bindings.push(bind(&target.part));
        let params = DequantizeParams {
            len: index(len)?,
            first: index(window.offset)?,
            factor,
            ..bytemuck::Zeroable::zeroed()
        };
        let grid = device.grid(len / 8, WORKGROUP);
        device.run(&kernel, &bindings, &params, grid)?;
        target.finish()?;
    }
    Ok(dst)
}

/// Rows of a table `(rows, hidden)` at the given ids, as f32.
pub(in crate::webgpu_backend) fn embedding(
    src: &QWebGpuStorage,
    format: Format,
    (ids, ids_l): (&WebGpuStorage, &Layout),
    (rows, hidden): (usize, usize),
) -> Result<WebGpuStorage> {
    let device = src.device();
    let count = ids_l.shape().elem_count();
    let dst = device.alloc(count * hidden, DType::F32, EMBEDDING)?;
    if fit([ids, &dst]) {
        embedding_into(&dst, src, format, (ids, ids_l), (rows, hidden))?;
        return Ok(dst);
    }
    let split = Split {
        op: EMBEDDING,
        dims: &[count],
        unit: hidden,
        bytes: hidden * DType::F32.size_in_bytes(),
        inputs: [(ids, ids_l)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(ids, ids_l)] = &part.inputs;
        embedding_into(&part.dst, src, format, (ids, ids_l), (rows, hidden))
    })?;
    Ok(dst)
}

const EMBEDDING: &str = "quantized embedding";

fn embedding_into(
    dst: &WebGpuStorage,
    src: &QWebGpuStorage,
    format: Format,
    (ids, ids_l): Operand<'_>,
    (rows, hidden): (usize, usize),
) -> Result<()> {
    let device = src.device();
    let kernel = QuantizedEmbedding {
        format,
        ids: ids_elem(device, ids, EMBEDDING)?,
    };
    let count = ids_l.shape().elem_count();
    // Other windows write the rows outside of this one.
    let step = src.window_rows(format, hidden).min(rows).max(1);
    for rows_first in (0..rows).step_by(step) {
        let here = step.min(rows - rows_first);
        let window = src.window(format, rows_first * hidden, here * hidden)?;
        let mut bindings = window.bindings();
        bindings.extend([bind(ids), bind(dst), Binding::Status]);
        let params = DequantizeParams {
            len: index(count * hidden)?,
            first: index(window.offset)?,
            factor: 1.,
            hidden: index(hidden)?,
            rows_first: index(rows_first)?,
            rows: index(here)?,
            ids_offset: index(ids_l.start_offset())?,
            ids_step: index(ids_l.stride().last().copied().unwrap_or(1))?,
            size: index(rows)?,
            op: number(EMBEDDING),
        };
        let grid = device.grid(count * hidden / 8, WORKGROUP);
        device.run(&kernel, &bindings, &params, grid)?;
    }
    Ok(())
}
