//! Arguments of ops in every layout.

use candle_core::{DType, Device, Result, Tensor};

use super::cases::Inputs;
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
        let inputs = Self::of(x, y)?;
        Ok(Self { mask, ..inputs })
    }

    /// Whether there is at most one element.
    pub fn is_small(&self) -> bool {
        self.x.elem_count() < 2
    }

    /// Whether they are on the CPU.
    pub fn on_cpu(&self) -> bool {
        self.x.device().is_cpu()
    }
}
