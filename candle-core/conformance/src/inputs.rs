//! Arguments of ops: two tensors of a dtype in a layout, and indexes that fit them.

use candle_core::{DType, Device, Result, Tensor};

use super::compare::numbers;

/// Makes a tensor of a shape.
type Make<'a> = &'a dyn Fn(&[usize]) -> Result<Tensor>;
/// Creates a matrix with a layout from it.
pub type View = fn(Make) -> Result<Tensor>;

/// All are matrices of 5 rows and 7 columns, so an odd number of elements, except the last two.
pub const LAYOUTS: [(&str, View); 6] = [
    ("contiguous", |make| make(&[5, 7])),
    ("transposed", |make| make(&[7, 5])?.t()),
    ("broadcast", |make| make(&[1, 7])?.broadcast_as((5, 7))),
    ("narrowed", |make| {
        make(&[7, 9])?.narrow(0, 1, 5)?.narrow(1, 1, 7)
    }),
    ("empty", |make| make(&[0, 7])),
    ("one element", |make| {
        make(&[2, 3])?.narrow(0, 1, 1)?.narrow(1, 1, 1)
    }),
];

/// The arguments of a case.
pub struct Inputs {
    /// A tensor of the tested dtype and layout.
    pub x: Tensor,
    /// Like `x`, with elements greater than 0.
    pub y: Tensor,
    /// A mask of `x`'s shape, u8, in the same layout; some elements are 0.
    pub mask: Tensor,
    /// Columns of `x`: of `x`'s shape, u32, contiguous.
    pub columns: Tensor,
    /// Rows of `x`, one of them twice: one index for each row of `x`, u32.
    pub rows: Tensor,
}

impl Inputs {
    /// The arguments of a dtype in a layout.
    ///
    /// # Errors
    /// If the device does not support the dtype.
    pub fn new(dtype: DType, view: View, device: &Device) -> Result<Self> {
        let x = view(&|shape| numbers(shape, dtype)?.to_device(device))?;
        let y = view(&|shape| {
            let number = numbers(shape, dtype)?.flip(&[1])?;
            (number.abs()? + 1.)?.to_device(device)
        })?;
        let mask = view(&|shape| numbers(shape, DType::U8)?.gt(120u8)?.to_device(device))?;
        let (h, w) = x.dims2()?;
        let columns: Vec<u32> = (0..h * w).map(|i| (i * 3 % w) as u32).collect();
        let rows: Vec<u32> = (0..h).map(|i| (i * i % h) as u32).collect();
        Ok(Self {
            x,
            y,
            mask,
            columns: Tensor::from_vec(columns, (h, w), device)?,
            rows: Tensor::from_vec(rows, h, device)?,
        })
    }

    /// Whether there is at most one element.
    pub fn is_small(&self) -> bool {
        self.x.elem_count() < 2
    }

    /// Whether they are on the CPU.
    pub fn on_cpu(&self) -> bool {
        self.x.device().is_cpu()
    }

    /// `x` as one image of one channel.
    ///
    /// # Errors
    /// None: the views are valid.
    pub fn image(&self) -> Result<Tensor> {
        self.x.unsqueeze(0)?.unsqueeze(0)
    }

    /// `x` as one signal with one channel per row.
    ///
    /// # Errors
    /// None: the views are valid.
    pub fn signal(&self) -> Result<Tensor> {
        self.x.unsqueeze(0)
    }

    /// A kernel of numbers below 4, of `x`'s dtype.
    ///
    /// # Errors
    /// If the device does not support the dtype.
    pub fn kernel(&self, shape: &[usize]) -> Result<Tensor> {
        let len: usize = shape.iter().product();
        let numbers: Vec<u8> = (0..len).map(|i| (i * 5 % 4) as u8).collect();
        let kernel = Tensor::from_vec(numbers, shape, &Device::Cpu)?;
        kernel.to_dtype(self.x.dtype())?.to_device(self.x.device())
    }
}
