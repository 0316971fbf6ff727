//! Numbers for arguments, and the comparison of results.

use candle_core::{DType, Device, Result, Tensor, WithDType};

/// Numbers of a dtype, on the CPU: multiples of 1/16 between -8 and 8 for floats (F8E4M3 has only some of them), so that sums of
/// up to a hundred thousand of them are exact in f32 in any order.
///
/// # Errors
/// If the dtype has no conversions.
pub fn numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let len = shape.iter().product();
    let number = |i: usize| (i as i64 * 7919 + 13) % 251;
    let data: Vec<i64> = (0..len).map(number).collect();
    let data = Tensor::from_vec(data, shape, &Device::Cpu)?;
    match dtype {
        DType::U8 | DType::U32 => data.to_dtype(dtype),
        DType::I16 | DType::I32 => data.to_dtype(dtype)? - 125.,
        // Exceeds 32 bits.
        DType::I64 => (data * 1e10)? - 1e12,
        _ => ((data.to_dtype(DType::F32)? - 125.)? / 16.)?.to_dtype(dtype),
    }
}

/// The tolerance for the difference between two devices.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Relative to the expected number.
    pub relative: f64,
    /// Absolute, for numbers near 0.
    pub absolute: f64,
}

impl Tolerance {
    /// For functions that every device computes by IEEE 754; +0 and -0 count as equal.
    pub const EXACT: Self = Self {
        relative: 0.,
        absolute: 0.,
    };

    /// `relative` in f32, where a GPU may flush subnormal numbers to 0; results in a 16-bit dtype may in addition differ by one rounding
    /// step.
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

    /// Multiples of the tolerance.
    pub fn times(mut self, times: f64) -> Self {
        self.relative *= times;
        self.absolute *= times;
        self
    }

    /// The same, with a larger absolute tolerance near 0.
    pub fn or_absolute(mut self, absolute: f64) -> Self {
        self.absolute = self.absolute.max(absolute);
        self
    }

    fn admits(self, got: f64, want: f64) -> bool {
        got == want
            || (got.is_nan() && want.is_nan())
            // Infinities are only equal to themselves.
            || (want.is_finite() && (got - want).abs() <= self.absolute + self.relative * want.abs())
    }
}

/// The elements of a tensor on the host: i64 is not exact in f64.
enum Elements {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
}

/// The elements as their type.
async fn read<T: WithDType>(t: &Tensor) -> Result<Vec<T>> {
    let t = t.flatten_all()?;
    #[cfg(feature = "webgpu")]
    let values = t.to_vec1_async().await;
    #[cfg(not(feature = "webgpu"))]
    let values = t.to_vec1();
    values
}

async fn elements(t: &Tensor) -> Result<Elements> {
    async fn floats<T: WithDType>(t: &Tensor) -> Result<Elements> {
        let values = read::<T>(t).await?;
        Ok(Elements::Floats(
            values.into_iter().map(T::to_f64).collect(),
        ))
    }
    async fn integers<T: WithDType + Into<i64>>(t: &Tensor) -> Result<Elements> {
        let values = read::<T>(t).await?;
        Ok(Elements::Integers(
            values.into_iter().map(Into::into).collect(),
        ))
    }
    match t.dtype() {
        DType::U8 => integers::<u8>(t).await,
        DType::U32 => integers::<u32>(t).await,
        DType::I16 => integers::<i16>(t).await,
        DType::I32 => integers::<i32>(t).await,
        DType::I64 => integers::<i64>(t).await,
        DType::BF16 => floats::<half::bf16>(t).await,
        DType::F16 => floats::<half::f16>(t).await,
        DType::F8E4M3 => floats::<float8::F8E4M3>(t).await,
        DType::F32 => floats::<f32>(t).await,
        // Other dtypes have no elements to read; the error says so.
        _ => floats::<f64>(t).await,
    }
}

/// The difference of `got` from `want` in dtype, shape or the first element outside of the tolerance; `None` if there is none. Without a
/// tolerance every element has to be the same number, +0 and -0 apart; NaN equals NaN.
///
/// # Errors
/// Errors that kernels reported, which arrive with the elements.
pub async fn first_difference(
    got: &Tensor,
    want: &Tensor,
    tolerance: Option<Tolerance>,
) -> Result<Option<String>> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Ok(Some(format!(
            "{:?} of {:?}, expected {:?} of {:?}",
            got.shape(),
            got.dtype(),
            want.shape(),
            want.dtype()
        )));
    }
    let first = match (elements(got).await?, elements(want).await?) {
        (Elements::Integers(got), Elements::Integers(want)) if tolerance.is_none() => {
            differing(&got, &want, |got, want| got == want)
        }
        (got, want) => differing(&got.floats(), &want.floats(), |got, want| match tolerance {
            Some(tolerance) => tolerance.admits(*got, *want),
            None => got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
        }),
    };
    Ok(first.map(|what| match tolerance {
        Some(tolerance) => format!("{what} within {tolerance:?}"),
        None => what,
    }))
}

impl Elements {
    fn floats(self) -> Vec<f64> {
        match self {
            Self::Integers(values) => values.into_iter().map(|x| x as f64).collect(),
            Self::Floats(values) => values,
        }
    }
}

/// The first element that differs from the expected one.
fn differing<T: std::fmt::Display>(
    got: &[T],
    want: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Option<String> {
    let mut pairs = got.iter().zip(want);
    let i = pairs.position(|(got, want)| !same(got, want))?;
    Some(format!("element {i} is {}, expected {}", got[i], want[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(got: &Tensor, want: &Tensor, near: Option<Tolerance>) -> Option<String> {
        pollster::block_on(first_difference(got, want, near)).expect("the CPU can read")
    }

    #[test]
    fn every_difference_is_found() -> Result<()> {
        let cpu = &Device::Cpu;
        let want = Tensor::new(&[1f32, 0., f32::NAN, f32::INFINITY], cpu)?;
        assert_eq!(difference(&want, &want, None), None);
        assert_eq!(difference(&want, &want, Some(Tolerance::EXACT)), None);

        let zero = Tensor::new(&[1f32, -0., f32::NAN, f32::INFINITY], cpu)?;
        let found = difference(&zero, &want, None);
        assert_eq!(found.as_deref(), Some("element 1 is -0, expected 0"));
        assert_eq!(difference(&zero, &want, Some(Tolerance::EXACT)), None);

        let near = Some(Tolerance::of(DType::F32, 1e-6));
        let close = Tensor::new(&[1.000_000_5f32, 0., f32::NAN, f32::INFINITY], cpu)?;
        assert!(difference(&close, &want, None).is_some());
        assert_eq!(difference(&close, &want, near), None);
        for wrong in [
            [1.00001f32, 0., f32::NAN, f32::INFINITY],
            [1., 0., 0., f32::INFINITY],
            [1., 0., f32::NAN, f32::MAX],
            [f32::NAN, 0., f32::NAN, f32::INFINITY],
        ] {
            let wrong = Tensor::new(&wrong, cpu)?;
            assert!(difference(&wrong, &want, near).is_some(), "{wrong}");
        }

        let found = difference(&want.reshape((2, 2))?, &want, near);
        assert_eq!(found.as_deref(), Some("[2, 2] of F32, expected [4] of F32"));
        let found = difference(&want.to_dtype(DType::F64)?, &want, near);
        assert_eq!(found.as_deref(), Some("[4] of F64, expected [4] of F32"));
        // Different in i64, though equal in f64.
        let (got, want) = (
            Tensor::new(&[i64::MAX], cpu)?,
            Tensor::new(&[i64::MAX - 1], cpu)?,
        );
        assert!(difference(&got, &want, None).is_some());
        Ok(())
    }
}
