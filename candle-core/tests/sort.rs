//! Sorting compared with a stable sort by the standard library.

use candle_core::{test_device, DType, Device, Result, Tensor, Var};

use crate::agree::{dtypes, numbers, VIEWS};

/// Returns the sorted indexes of a row by definition: pairs are exchanged only if the second comes before the first.
fn expected(row: &[f64], asc: bool) -> Vec<u32> {
    let mut indexes: Vec<u32> = (0..row.len() as u32).collect();
    indexes.sort_by(|&a, &b| {
        let (a, b) = (row[a as usize], row[b as usize]);
        // NaN is the largest.
        let order = a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
        if asc {
            order
        } else {
            order.reverse()
        }
    });
    indexes
}

/// Checks both orders of `t`, which has the values of `cpu`.
fn check(t: &Tensor, cpu: &Tensor, what: &str) -> Result<()> {
    let len = t.dims()[t.rank() - 1];
    // No i64 in these tests exceeds 2^53.
    let values = cpu.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
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
            .to_device(&Device::Cpu)?
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

fn layouts_and_dtypes(device: &Device) -> Result<()> {
    for dtype in dtypes(device)? {
        // Repeated values, so that stability is visible.
        let cpu = numbers(&[4, 9, 70], dtype)?;
        let here = cpu.to_device(device)?;
        for (name, view) in VIEWS {
            check(&view(&here)?, &view(&cpu)?, &format!("{name} {dtype:?}"))?;
        }
    }
    Ok(())
}
test_device!(layouts_and_dtypes);

/// Row lengths within a tile of shared memory, at its end and past it; few and many rows.
fn lengths(device: &Device) -> Result<()> {
    for len in [1, 2, 3, 31, 257, 4096, 4097, 5000, 40_000] {
        let cpu = numbers(&[2, len], DType::F32)?;
        check(&cpu.to_device(device)?, &cpu, &format!("{len}"))?;
    }
    for len in [2048, 2049, 9000] {
        let cpu = numbers(&[3, len], DType::I64)?;
        check(&cpu.to_device(device)?, &cpu, &format!("{len} of i64"))?;
    }
    let cpu = numbers(&[600, 90], DType::I64)?;
    check(&cpu.to_device(device)?, &cpu, "many rows")
}
test_device!(lengths);

fn special_numbers(device: &Device) -> Result<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let row = [
        0., nan, -inf, 1., -0., inf, -nan, -1., 0., -0., 2e-40, -2e-40,
    ];
    for dtype in dtypes(device)? {
        if matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
            let cpu = Tensor::new(&row, &Device::Cpu)?.to_dtype(dtype)?;
            check(&cpu.to_device(device)?, &cpu, &format!("{dtype:?}"))?;
        }
    }
    let extremes = Tensor::new(&[0i64, i64::MAX, -1, i64::MIN, 1, i64::MAX - 1], device)?;
    let indexes = extremes.arg_sort_last_dim(true)?.to_vec1::<u32>()?;
    assert_eq!(indexes, [3, 2, 0, 4, 5, 1]);
    let extremes = Tensor::new(&[u32::MAX, 0, 1 << 31, u32::MAX], device)?;
    assert_eq!(
        extremes.arg_sort_last_dim(false)?.to_vec1::<u32>()?,
        [0, 3, 2, 1]
    );
    Ok(())
}
test_device!(special_numbers);

fn edges(device: &Device) -> Result<()> {
    let empty = Tensor::zeros((3, 0), DType::F32, device)?;
    assert_eq!(empty.arg_sort_last_dim(true)?.dims(), [3, 0]);
    let no_rows = Tensor::zeros((0, 3), DType::F32, device)?;
    assert_eq!(no_rows.arg_sort_last_dim(false)?.dims(), [0, 3]);
    let scalar = Tensor::new(1f32, device)?;
    let err = scalar.sort_last_dim(true).unwrap_err().to_string();
    assert!(
        err.contains("arg_sort_last_dim") && err.contains("scalar"),
        "{err}"
    );
    Ok(())
}
test_device!(edges);

#[test]
fn indexes_have_no_gradient() -> Result<()> {
    let t = Var::new(&[3f32, 1., 2.], &Device::Cpu)?;
    let (sorted, indexes) = t.sort_last_dim(true)?;
    assert!(sorted.track_op() && !indexes.track_op());
    Ok(())
}
