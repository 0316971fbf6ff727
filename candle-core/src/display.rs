//! Printing tensors: all elements of small ones, the edges of large ones, then shape, dtype and device.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let t = Tensor::new(&[[1f32, 2.5], [-3., 4.]], &Device::Cpu)?;
//! assert_eq!(t.to_string(), "[[ 1.0000,  2.5000],\n [-3.0000,  4.0000]]\nTensor[[2, 2], f32]");
//! assert_eq!(format!("{t:?}"), "Tensor[dims 2, 2; f32]");
//! # Ok(())
//! # }
//! ```

use std::fmt::{Debug, Display, Formatter, Write};
use std::sync::Mutex;

use crate::{CpuStorage, DType, DeviceLocation, Result, Tensor};

/// Options for printing tensors.
#[derive(Debug, Clone)]
pub struct PrinterOptions {
    /// Digits after the point.
    pub precision: usize,
    /// Tensors with more elements are printed by their edges only.
    pub threshold: usize,
    /// Elements at each edge.
    pub edge_items: usize,
    /// Approximate characters per line.
    pub line_width: usize,
    /// Whether floats are printed as `1.2e3`; `None` decides by their range.
    pub sci_mode: Option<bool>,
}

impl PrinterOptions {
    const fn standard() -> Self {
        Self {
            precision: 4,
            threshold: 1000,
            edge_items: 3,
            line_width: 80,
            sci_mode: None,
        }
    }

    const fn short() -> Self {
        Self {
            precision: 2,
            edge_items: 2,
            ..Self::standard()
        }
    }

    const fn full() -> Self {
        Self {
            threshold: usize::MAX,
            ..Self::standard()
        }
    }
}

static OPTIONS: Mutex<PrinterOptions> = Mutex::new(PrinterOptions::standard());

/// The options in use, for all threads.
pub fn print_options() -> &'static Mutex<PrinterOptions> {
    &OPTIONS
}

/// Changes the options. They hold no invariant, so a panic elsewhere does not matter.
fn change(f: impl FnOnce(&mut PrinterOptions)) {
    f(&mut OPTIONS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Sets all options.
pub fn set_print_options(options: PrinterOptions) {
    change(|o| *o = options)
}

/// Resets the options to the defaults.
pub fn set_print_options_default() {
    change(|o| *o = PrinterOptions::standard())
}

/// Fewer digits and edges.
pub fn set_print_options_short() {
    change(|o| *o = PrinterOptions::short())
}

/// All elements, whatever their number.
pub fn set_print_options_full() {
    change(|o| *o = PrinterOptions::full())
}

/// Sets the number of characters in a line.
pub fn set_line_width(line_width: usize) {
    change(|o| o.line_width = line_width)
}

/// Sets the number of digits after the point.
pub fn set_precision(precision: usize) {
    change(|o| o.precision = precision)
}

/// Sets the number of elements at each edge.
pub fn set_edge_items(edge_items: usize) {
    change(|o| o.edge_items = edge_items)
}

/// Sets the number of elements above which only the edges are printed.
pub fn set_threshold(threshold: usize) {
    change(|o| o.threshold = threshold)
}

/// Sets whether floats are printed as `1.2e3`; `None` decides by their range.
pub fn set_sci_mode(sci_mode: Option<bool>) {
    change(|o| o.sci_mode = sci_mode)
}

/// The device in short form, with a comma; empty for the CPU.
fn device_suffix(t: &Tensor) -> String {
    match t.device().location() {
        DeviceLocation::Cpu => String::new(),
        DeviceLocation::Cuda { gpu_id } => format!(", cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!(", metal:{gpu_id}"),
        #[cfg(feature = "webgpu")]
        DeviceLocation::WebGpu { gpu_id } => format!(", webgpu:{gpu_id}"),
    }
}

/// The elements unscaled, each in its shortest form.
fn plain(storage: &CpuStorage) -> Vec<String> {
    fn each<T: Display>(data: &[T]) -> Vec<String> {
        data.iter().map(T::to_string).collect()
    }
    match storage {
        CpuStorage::U8(data) => each(data),
        CpuStorage::U32(data) => each(data),
        CpuStorage::I16(data) => each(data),
        CpuStorage::I32(data) => each(data),
        CpuStorage::I64(data) => each(data),
        CpuStorage::BF16(data) => each(data),
        CpuStorage::F16(data) => each(data),
        CpuStorage::F32(data) => each(data),
        CpuStorage::F64(data) => each(data),
        CpuStorage::F8E4M3(data) => each(data),
        CpuStorage::F6E2M3(bytes)
        | CpuStorage::F6E3M2(bytes)
        | CpuStorage::F4(bytes)
        | CpuStorage::F8E8M0(bytes) => each(bytes),
    }
}

/// Whether elements of the dtype can be printed: packed dtypes are opaque bytes here.
fn is_printable(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0
    )
}

/// The elements of a float dtype; `None` for the others.
fn floats(storage: &CpuStorage) -> Option<Vec<f64>> {
    match storage {
        CpuStorage::BF16(data) => Some(data.iter().map(|x| x.to_f64()).collect()),
        CpuStorage::F16(data) => Some(data.iter().map(|x| x.to_f64()).collect()),
        CpuStorage::F32(data) => Some(data.iter().map(|&x| x.into()).collect()),
        CpuStorage::F64(data) => Some(data.clone()),
        CpuStorage::F8E4M3(data) => Some(data.iter().map(|x| x.to_f64()).collect()),
        _ => None,
    }
}

/// Writes all floats in one format, which depends on their range.
fn format_floats(data: &[f64], options: &PrinterOptions) -> Vec<String> {
    let finite = || data.iter().copied().filter(|x| x.is_finite());
    let nonzero = || finite().map(f64::abs).filter(|x| *x > 0.);
    let greatest = nonzero().fold(0., f64::max);
    let least = nonzero().fold(f64::INFINITY, f64::min);
    let integers = finite().all(|x| x == x.trunc());
    let scientific = options.sci_mode.unwrap_or_else(|| {
        let wide_range = greatest > 1e8 || greatest / least > 1000.;
        wide_range || (!integers && least < 1e-4)
    });
    let precision = options.precision;
    let one = |x: &f64| match x {
        x if !x.is_finite() => format!("{x}"),
        x if scientific => format!("{x:.precision$e}"),
        x if integers => format!("{x:.0}."),
        x => format!("{x:.precision$}"),
    };
    data.iter().map(one).collect()
}

/// The part of a tensor that is printed.
struct Shown {
    dims: Vec<usize>,
    /// The dimensions whose middle is left out.
    cut: Vec<bool>,
    elements: Vec<String>,
    options: PrinterOptions,
}

impl Shown {
    fn new(t: &Tensor) -> Result<Self> {
        let mut options = PrinterOptions::standard();
        change(|o| options = o.clone());
        let mut part = t.detach();
        let mut cut = vec![false; t.rank()];
        if t.elem_count() > options.threshold {
            // Only the edges are copied from the device.
            let edge = options.edge_items;
            for (dim, cut) in cut.iter_mut().enumerate() {
                let size = part.dims()[dim];
                if size / 2 >= edge && size > 2 * edge {
                    *cut = true;
                    let edges = [
                        part.narrow(dim, 0, edge)?,
                        part.narrow(dim, size - edge, edge)?,
                    ];
                    part = Tensor::cat(&edges, dim)?;
                }
            }
        }
        let storage = part.to_cpu_elements()?;
        let elements = match floats(&storage) {
            Some(data) => format_floats(&data, &options),
            None => plain(&storage),
        };
        Ok(Self {
            dims: part.dims().to_vec(),
            cut,
            elements,
            options,
        })
    }

    fn write(&self, f: &mut impl Write) -> std::fmt::Result {
        let width = self.elements.iter().map(String::len).max().unwrap_or(0);
        self.write_level(f, 0, &self.elements, width)
    }

    /// Writes the elements below one index in each dimension before `depth`.
    fn write_level(
        &self,
        f: &mut impl Write,
        depth: usize,
        elements: &[String],
        width: usize,
    ) -> std::fmt::Result {
        let Some((&count, inner_dims)) = self.dims[depth.min(self.dims.len())..].split_first()
        else {
            return elements.iter().try_for_each(|x| write!(f, "[{x}]"));
        };
        let innermost = inner_dims.is_empty();
        let inner: usize = inner_dims.iter().product();
        let per_line = if innermost {
            (self.options.line_width / (width + 2)).max(1)
        } else {
            1
        };
        let newline = format!("\n{}", " ".repeat(depth + 1));
        let gap_at = if self.cut[depth] {
            self.options.edge_items
        } else {
            usize::MAX
        };
        f.write_str("[")?;
        for i in 0..count {
            if i == gap_at {
                let before = if innermost {
                    ", "
                } else {
                    &format!(",{newline}")
                };
                let after = if innermost { ", " } else { &newline };
                write!(f, "{before}...{after}")?;
            } else if i > 0 && i % per_line == 0 {
                write!(f, ",{newline}")?;
            } else if i > 0 {
                f.write_str(", ")?;
            }
            let part = &elements[i * inner..(i + 1) * inner];
            match part {
                [x] if innermost => write!(f, "{x:>width$}")?,
                _ => self.write_level(f, depth + 1, part, width)?,
            }
        }
        f.write_str("]")
    }
}

impl Display for Tensor {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        if is_printable(self.dtype()) {
            match Shown::new(self) {
                Ok(shown) => shown.write(f)?,
                Err(err) => write!(f, "[unreadable: {err}]")?,
            }
            f.write_str("\n")?;
        }
        write!(
            f,
            "Tensor[{:?}, {}{}]",
            self.dims(),
            self.dtype().as_str(),
            device_suffix(self)
        )
    }
}

/// One line: the elements of scalars and short vectors, the sizes of all others.
impl Debug for Tensor {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let few = matches!(self.dims(), [] | [0..10]) && is_printable(self.dtype());
        let elements = if few {
            self.to_cpu_elements().ok()
        } else {
            None
        };
        f.write_str("Tensor[")?;
        match elements {
            Some(elements) => f.write_str(&plain(&elements).join(", "))?,
            None => {
                let sizes: Vec<String> = self.dims().iter().map(usize::to_string).collect();
                write!(f, "dims {}", sizes.join(", "))?
            }
        }
        write!(f, "; {}{}]", self.dtype().as_str(), device_suffix(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device::Cpu;

    #[test]
    fn forms_of_numbers() -> Result<()> {
        let t = Tensor::new(1234u32, &Cpu)?;
        assert_eq!(t.to_string(), "[1234]\nTensor[[], u32]");
        assert_eq!(format!("{t:?}"), "Tensor[1234; u32]");
        let t = t.to_dtype(DType::F32)?;
        for (factor, expected) in [
            (-0.1, "-123.4000"),
            (-1e-8, "-1.2340e-5"),
            (1e8, "1.2340e11"),
            (0., "0."),
            (1., "1234."),
        ] {
            let shown = t.affine(factor, 0.)?.to_string();
            assert_eq!(shown, format!("[{expected}]\nTensor[[], f32]"));
        }
        let t = Tensor::new(&[0.12345, -1., f64::NAN, 40.], &Cpu)?;
        let expected = "[ 0.1235, -1.0000,     NaN, 40.0000]\nTensor[[4], f64]";
        assert_eq!(t.to_string(), expected);
        assert_eq!(
            Tensor::new(&[7u8, 10, 100], &Cpu)?.to_string(),
            "[  7,  10, 100]\nTensor[[3], u8]"
        );
        assert_eq!(
            Tensor::zeros((2, 0), DType::F32, &Cpu)?.to_string(),
            "[[],\n []]\nTensor[[2, 0], f32]"
        );
        Ok(())
    }

    #[test]
    fn long_lines_and_left_out_parts() -> Result<()> {
        let line = |n: usize| vec!["42."; n].join(", ");
        let t = Tensor::full(42f32, 20, &Cpu)?;
        assert_eq!(
            t.to_string(),
            format!("[{},\n {}]\nTensor[[20], f32]", line(16), line(4))
        );
        let t = Tensor::full(42f32, (2, 100, 100), &Cpu)?;
        let row = "[42., 42., 42., ..., 42., 42., 42.]";
        let three = [row; 3].join(",\n  ");
        let matrix = format!("[{three},\n  ...\n  {three}]");
        assert_eq!(
            t.to_string(),
            format!("[{matrix},\n {matrix}]\nTensor[[2, 100, 100], f32]")
        );
        // Six items of this width fill a line; the gaps between them count for nothing.
        let t = Tensor::full(123456.5f32, 1001, &Cpu)?;
        let half = ["123456.5000"; 3].join(", ");
        assert_eq!(
            t.to_string(),
            format!("[{half}, ..., {half}]\nTensor[[1001], f32]")
        );
        Ok(())
    }
}
