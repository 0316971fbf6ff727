//! For tests that hold a device against the CPU: data, views of it, and exact comparison.

use candle_core::{DType, Device, Result, Tensor};

/// The dtypes that every device has.
pub const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::U32,
    DType::U8,
    DType::I32,
    DType::I64,
];

/// Numbers that every one of [`DTYPES`] holds exactly, on the CPU: multiples of 1/16 between -8 and 8 for floats, so that
/// sums of up to a hundred thousand of them are exact in f32 in any order.
pub fn numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let len = shape.iter().product();
    let number = |i: usize| (i * 7919 + 13) % 251;
    let data: Vec<i64> = (0..len).map(|i| number(i) as i64).collect();
    let data = Tensor::from_vec(data, shape, &Device::Cpu)?;
    match dtype {
        DType::U8 | DType::U32 => data.to_dtype(dtype),
        DType::I32 => data.to_dtype(dtype)? - 125.,
        // Past 32 bits.
        DType::I64 => (data * 1e10)? - 1e12,
        _ => ((data.to_dtype(DType::F32)? - 125.)? / 16.)?.to_dtype(dtype),
    }
}

/// A change of layout.
pub type View = fn(&Tensor) -> Result<Tensor>;

/// Views of tensors with three dimensions of at least 2.
pub const VIEWS: [(&str, View); 7] = [
    ("contiguous", |t| Ok(t.clone())),
    ("transposed", |t| t.t()),
    ("permuted", |t| t.permute((1, 0, 2))),
    ("narrowed rows", |t| t.narrow(0, 1, t.dim(0)? - 1)),
    ("narrowed columns", |t| t.narrow(2, 1, t.dim(2)? - 1)),
    ("broadcast", |t| {
        let (a, b, c) = t.dims3()?;
        t.narrow(1, 1, 1)?.broadcast_as((a, b, c))
    }),
    ("one element", |t| {
        t.narrow(0, 1, 1)?.narrow(1, 1, 1)?.narrow(2, 1, 1)
    }),
];

/// The elements as text, NaN like any other.
fn elements(t: &Tensor) -> Result<Vec<String>> {
    let t = t.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(match t.dtype() {
        DType::I64 => t.to_vec1::<i64>()?.iter().map(i64::to_string).collect(),
        _ => {
            let t = t.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            t.iter().map(f64::to_string).collect()
        }
    })
}

/// Checks shape, dtype and every element.
pub fn assert_same(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_eq!(got.dtype(), want.dtype(), "{what}");
    assert_eq!(got.shape(), want.shape(), "{what}");
    let (got, want) = (elements(got)?, elements(want)?);
    let differing = got.iter().zip(&want).position(|(got, want)| got != want);
    if let Some(i) = differing {
        panic!("{what}: element {i} is {}, expected {}", got[i], want[i]);
    }
    Ok(())
}
