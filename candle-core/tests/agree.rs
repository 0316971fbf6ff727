//! For tests that hold a device against the CPU: data, views of it, and exact comparison.

use candle_core::{DType, Device, Error, Result, Tensor};

/// The dtypes that every device has.
pub const DTYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::U32,
    DType::U8,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// The error below backtraces and contexts.
pub fn root(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner, .. } => root(inner),
        other => other,
    }
}

/// Whether a device computes with f64. A WebGPU device that does not has to say so.
pub fn has_f64(device: &Device) -> Result<bool> {
    match Tensor::zeros(1, DType::F64, device) {
        Ok(_) => Ok(true),
        Err(error) => {
            let text = error.to_string();
            assert!(
                matches!(root(&error), Error::UnsupportedOnDevice { .. })
                    && text.contains("F64")
                    && text.contains("SHADER_F64"),
                "{text}"
            );
            Ok(false)
        }
    }
}

/// [`DTYPES`], and f64 where the device has it.
pub fn dtypes(device: &Device) -> Result<Vec<DType>> {
    let f64 = has_f64(device)?.then_some(DType::F64);
    Ok(DTYPES.into_iter().chain(f64).collect())
}

/// The floats among [`dtypes`].
pub fn floats(device: &Device) -> Result<Vec<DType>> {
    Ok(dtypes(device)?
        .into_iter()
        .filter(DType::is_float)
        .collect())
}

/// Numbers of a dtype, on the CPU: multiples of 1/16 between -8 and 8 for floats (F8E4M3 has only some of them), so that sums of
/// up to a hundred thousand of them are exact in f32 in any order.
pub fn numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let len = shape.iter().product();
    let number = |i: usize| (i * 7919 + 13) % 251;
    let data: Vec<i64> = (0..len).map(|i| number(i) as i64).collect();
    let data = Tensor::from_vec(data, shape, &Device::Cpu)?;
    match dtype {
        DType::U8 | DType::U32 => data.to_dtype(dtype),
        DType::I16 | DType::I32 => data.to_dtype(dtype)? - 125.,
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

/// By how much two devices may differ.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

impl Tolerance {
    /// For functions that every device computes as IEEE 754 says; +0 and -0 count as equal.
    pub const EXACT: Self = Self {
        relative: 0.,
        absolute: 0.,
    };

    /// `relative` in f32, where a GPU may take subnormal numbers for 0; results in a 16-bit dtype may in addition fall on the
    /// other side of a rounding step.
    pub fn of(dtype: DType, relative: f64) -> Self {
        let (step, absolute) = match dtype {
            DType::F16 => (2f64.powi(-10), 2f64.powi(-24)),
            DType::BF16 => (2f64.powi(-7), f64::from(f32::MIN_POSITIVE)),
            DType::F8E4M3 => (2f64.powi(-3), 2f64.powi(-9)),
            DType::F64 => (0., f64::MIN_POSITIVE),
            _ => (0., f64::from(f32::MIN_POSITIVE)),
        };
        Self {
            relative: relative + step,
            absolute,
        }
    }

    /// So many times as wide.
    pub fn times(mut self, times: f64) -> Self {
        self.relative *= times;
        self.absolute *= times;
        self
    }

    /// As it is, with more room for results near 0.
    pub fn or_absolute(mut self, absolute: f64) -> Self {
        self.absolute = self.absolute.max(absolute);
        self
    }

    fn admits(self, got: f64, want: f64) -> bool {
        got == want
            || (got.is_nan() && want.is_nan())
            // Infinities differ from everything but themselves.
            || (want.is_finite() && (got - want).abs() <= self.absolute + self.relative * want.abs())
    }
}

/// Checks shape, dtype and that every element is as near as it must be. NaN equals NaN.
pub fn assert_close(got: &Tensor, want: &Tensor, tolerance: Tolerance, what: &str) -> Result<()> {
    let numbers = |t: &Tensor| {
        let t = t.to_device(&Device::Cpu)?.flatten_all()?;
        t.to_dtype(DType::F64)?.to_vec1::<f64>()
    };
    assert_eq!(got.dtype(), want.dtype(), "{what}");
    assert_eq!(got.shape(), want.shape(), "{what}");
    let (got, want) = (numbers(got)?, numbers(want)?);
    let mut pairs = got.iter().zip(&want);
    if let Some(i) = pairs.position(|(got, want)| !tolerance.admits(*got, *want)) {
        let (got, want) = (got[i], want[i]);
        panic!("{what}: element {i} is {got}, expected {want} within {tolerance:?}");
    }
    Ok(())
}

/// Runs the same on the device and on the CPU, and checks that every element is equal.
pub fn assert_as_on_cpu(
    device: &Device,
    what: &str,
    f: impl Fn(&Device) -> Result<Tensor>,
) -> Result<()> {
    assert_same(&f(device)?, &f(&Device::Cpu)?, what)
}
