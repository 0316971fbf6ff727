//! Sorting against a stable sort of the numbers as the standard library does it.

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::agree::{numbers, DTYPES, VIEWS};

/// The indexes of a row in order, by definition: pairs are exchanged only where the second comes before the first.
fn expected(row: &[f64], asc: bool) -> Vec<u32> {
    let mut indexes: Vec<u32> = (0..row.len() as u32).collect();
    indexes.sort_by(|&a, &b| {
        let (a, b) = (row[a as usize], row[b as usize]);
        // NaN is the greatest.
        let order = a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
        if asc {
            order
        } else {
            order.reverse()
        }
    });
    indexes
}

fn check(t: &Tensor, what: &str) -> Result<()> {
    let len = t.dims()[t.rank() - 1];
    // i64 past 2^53 does not occur in these tests.
    let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    for asc in [true, false] {
        let want: Vec<u32> = values
            .chunks(len)
            .flat_map(|row| expected(row, asc))
            .collect();
        let got = t.arg_sort_last_dim(asc)?;
        assert_eq!((got.dtype(), got.dims()), (DType::U32, t.dims()), "{what}");
        assert_eq!(
            got.flatten_all()?.to_vec1::<u32>()?,
            want,
            "{what} asc {asc}"
        );
        let (sorted, indexes) = t.contiguous()?.sort_last_dim(asc)?;
        assert_eq!(indexes.flatten_all()?.to_vec1::<u32>()?, want, "{what}");
        assert_eq!(sorted.dtype(), t.dtype(), "{what}");
        let sorted = sorted
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()?;
        let rows = values.chunks(len).zip(want.chunks(len));
        let want: Vec<f64> = rows
            .flat_map(|(row, i)| i.iter().map(|&i| row[i as usize]))
            .collect();
        let same = |(got, want): (&f64, &f64)| got == want || got.is_nan() && want.is_nan();
        assert!(sorted.iter().zip(&want).all(same), "{what}");
    }
    Ok(())
}

#[test]
fn layouts_and_dtypes() -> Result<()> {
    for dtype in DTYPES
        .into_iter()
        .chain([DType::F64, DType::F8E4M3, DType::I16])
    {
        let source = if DTYPES.contains(&dtype) {
            dtype
        } else {
            DType::F32
        };
        // Values come several times, so that stability shows.
        let t = numbers(&[4, 9, 70], source)?.to_dtype(dtype)?;
        for (name, view) in VIEWS {
            check(&view(&t)?, &format!("{name} {dtype:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn lengths() -> Result<()> {
    for len in [1, 2, 3, 31, 257, 5000, 40_000] {
        check(&numbers(&[2, len], DType::F32)?, &format!("{len}"))?;
    }
    check(&numbers(&[600, 90], DType::I64)?, "many rows")
}

#[test]
fn special_numbers() -> Result<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let row = [
        0., nan, -inf, 1., -0., inf, -nan, -1., 0., -0., 2e-40, -2e-40,
    ];
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let t = Tensor::new(&row, &Device::Cpu)?.to_dtype(dtype)?;
        check(&t, &format!("{dtype:?}"))?;
    }
    let extremes = Tensor::new(
        &[0i64, i64::MAX, -1, i64::MIN, 1, i64::MAX - 1],
        &Device::Cpu,
    )?;
    let indexes = extremes.arg_sort_last_dim(true)?.to_vec1::<u32>()?;
    assert_eq!(indexes, [3, 2, 0, 4, 5, 1]);
    let extremes = Tensor::new(&[u32::MAX, 0, 1 << 31, u32::MAX], &Device::Cpu)?;
    assert_eq!(
        extremes.arg_sort_last_dim(false)?.to_vec1::<u32>()?,
        [0, 3, 2, 1]
    );
    Ok(())
}

#[test]
fn edges() -> Result<()> {
    let empty = Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?;
    assert_eq!(empty.arg_sort_last_dim(true)?.dims(), [3, 0]);
    let no_rows = Tensor::zeros((0, 3), DType::F32, &Device::Cpu)?;
    assert_eq!(no_rows.arg_sort_last_dim(false)?.dims(), [0, 3]);
    let scalar = Tensor::new(1f32, &Device::Cpu)?;
    let err = scalar.sort_last_dim(true).unwrap_err().to_string();
    assert!(
        err.contains("arg_sort_last_dim") && err.contains("scalar"),
        "{err}"
    );
    Ok(())
}

#[test]
fn indexes_have_no_gradient() -> Result<()> {
    let t = Var::new(&[3f32, 1., 2.], &Device::Cpu)?;
    let (sorted, indexes) = t.sort_last_dim(true)?;
    assert!(sorted.track_op() && !indexes.track_op());
    Ok(())
}
