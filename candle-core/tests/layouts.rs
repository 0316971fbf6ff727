//! On the CPU every op has one kernel for contiguous slices. These tests check how operands of other layouts reach it. The reference is the
//! same op on a contiguous copy made element by element, or a sum in f64.

use candle_core::{DType, Device, Result, Shape, Tensor, D};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Returns numbers between -2 and 2, without a period that divides a power of two.
fn numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let len = Shape::from(shape).elem_count();
    let numbers = (0..len).map(|i| ((i * 37 + 11) % 101) as f32 / 25. - 2.);
    Tensor::from_iter(numbers, &Device::Cpu)?
        .reshape(shape)?
        .to_dtype(dtype)
}

/// Copies a view element by element.
fn by_elements(t: &Tensor) -> Result<Tensor> {
    let mut values = vec![];
    for flat in 0..t.elem_count() {
        let (mut rest, mut element) = (flat, t.clone());
        for dim in (0..t.rank()).rev() {
            element = element.narrow(dim, rest % t.dims()[dim], 1)?;
            rest /= t.dims()[dim];
        }
        let value = element
            .reshape(())?
            .to_dtype(DType::F32)?
            .to_scalar::<f32>()?;
        values.push(value);
    }
    Tensor::from_vec(values, t.shape(), &Device::Cpu)?.to_dtype(t.dtype())
}

fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

/// Returns views of the shapes (9, 17) and (2, 9, 70) with several layouts.
fn views(dtype: DType) -> Result<Vec<Tensor>> {
    let small = [
        numbers(&[9, 17], dtype)?,
        numbers(&[17, 9], dtype)?.t()?,
        numbers(&[11, 20], dtype)?
            .narrow(0, 1, 9)?
            .narrow(1, 2, 17)?,
        numbers(&[20, 12], dtype)?
            .narrow(0, 3, 17)?
            .narrow(1, 1, 9)?
            .t()?,
        numbers(&[17], dtype)?.broadcast_as((9, 17))?,
        numbers(&[9, 1], dtype)?.broadcast_as((9, 17))?,
        numbers(&[], dtype)?.broadcast_as((9, 17))?,
        numbers(&[9, 51], dtype)?.unfold(1, 1, 3)?.squeeze(2)?,
    ];
    let large = [
        numbers(&[2, 9, 70], dtype)?,
        numbers(&[2, 70, 9], dtype)?.transpose(1, 2)?,
        numbers(&[9, 2, 70], dtype)?.transpose(0, 1)?,
        numbers(&[70, 9, 2], dtype)?.permute((2, 1, 0))?,
        numbers(&[2, 1, 70], dtype)?.broadcast_as((2, 9, 70))?,
        numbers(&[9, 1], dtype)?.broadcast_as((2, 9, 70))?,
        numbers(&[3, 10, 80], dtype)?
            .narrow(0, 1, 2)?
            .narrow(1, 1, 9)?
            .narrow(2, 5, 70)?,
    ];
    Ok(small.into_iter().chain(large).collect())
}

#[test]
fn elementwise_ops_of_any_layouts() -> Result<()> {
    for dtype in DTYPES {
        let views = views(dtype)?;
        for x in &views {
            let plain_x = by_elements(x)?;
            assert_eq!(bits(&x.contiguous()?)?, bits(&plain_x)?, "{x:?}");
            assert_eq!(bits(&x.exp()?)?, bits(&plain_x.exp()?)?, "{x:?}");
            assert_eq!(bits(&x.affine(3., -1.)?)?, bits(&plain_x.affine(3., -1.)?)?);
            assert_eq!(
                bits(&x.to_dtype(DType::I64)?)?,
                bits(&plain_x.to_dtype(DType::I64)?)?
            );
            for y in views.iter().filter(|y| y.shape() == x.shape()) {
                let plain_y = by_elements(y)?;
                assert_eq!(
                    bits(&(x - y)?)?,
                    bits(&(&plain_x - &plain_y)?)?,
                    "{x:?} {y:?}"
                );
                assert_eq!(
                    bits(&x.lt(y)?)?,
                    bits(&plain_x.lt(&plain_y)?)?,
                    "{x:?} {y:?}"
                );
                let chosen = x.lt(y)?.where_cond(x, y)?;
                assert_eq!(
                    bits(&chosen)?,
                    bits(&plain_x.minimum(&plain_y)?)?,
                    "{x:?} {y:?}"
                );
                let all = Tensor::cat(&[x, y], D::Minus1)?;
                let plain = Tensor::cat(&[&plain_x, &plain_y], D::Minus1)?;
                assert_eq!(bits(&all)?, bits(&plain)?, "{x:?} {y:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn large_inputs_on_several_threads() -> Result<()> {
    let (rows, columns) = (301, 1003);
    for dtype in DTYPES {
        let x = numbers(&[rows, columns], dtype)?;
        let y = numbers(&[columns, rows], dtype)?;
        // A double transpose by indexes.
        let ids = Tensor::arange(0u32, rows as u32, &Device::Cpu)?;
        let columns_of_y: Vec<Tensor> = y.index_select(&ids, 1)?.chunk(rows, 1)?;
        let turned: Vec<Tensor> = columns_of_y
            .iter()
            .map(|c| c.flatten_all())
            .collect::<Result<_>>()?;
        let turned = Tensor::stack(&turned, 0)?;
        assert_eq!(bits(&y.t()?.contiguous()?)?, bits(&turned)?);
        assert_eq!(bits(&(&x + y.t()?)?)?, bits(&(&x + &turned)?)?);
        assert_eq!(bits(&y.t()?.neg()?)?, bits(&turned.neg()?)?);
        let column = numbers(&[rows, 1], dtype)?;
        let repeated = column.repeat((1, columns))?;
        assert_eq!(bits(&x.broadcast_mul(&column)?)?, bits(&(&x * &repeated)?)?);
        assert_eq!(bits(&column.broadcast_sub(&x)?)?, bits(&(&repeated - &x)?)?);
    }
    Ok(())
}

#[test]
fn reductions_agree_with_f64() -> Result<()> {
    for dtype in DTYPES {
        for view in views(dtype)? {
            let wide = view.to_dtype(DType::F64)?;
            for dim in 0..view.rank() {
                let sums = view.sum(dim)?.to_dtype(DType::F64)?;
                let expected = wide.sum(dim)?;
                // The sum is kept in f32, and the result is rounded once to its dtype.
                let tolerance = if dtype == DType::F32 { 1e-6 } else { 8e-3 };
                let error = (sums - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                let scale = expected.abs()?.max_all()?.to_scalar::<f64>()?.max(1.);
                assert!(error <= tolerance * scale, "{view:?} {dim}: {error}");
                assert_eq!(
                    bits(&view.max(dim)?)?,
                    bits(&wide.max(dim)?)?,
                    "{view:?} {dim}"
                );
                assert_eq!(
                    bits(&view.min(dim)?)?,
                    bits(&wide.min(dim)?)?,
                    "{view:?} {dim}"
                );
                assert_eq!(
                    bits(&view.argmax(dim)?)?,
                    bits(&wide.argmax(dim)?)?,
                    "{view:?} {dim}"
                );
                assert_eq!(
                    bits(&view.argmin(dim)?)?,
                    bits(&wide.argmin(dim)?)?,
                    "{view:?} {dim}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn not_a_number_in_long_reductions() -> Result<()> {
    for dtype in DTYPES {
        let mut values: Vec<f32> = (0..1000).map(|i| (i % 100) as f32).collect();
        values[777] = f32::NAN;
        values[500] = 100.;
        values[900] = 100.;
        let t = Tensor::new(values.as_slice(), &Device::Cpu)?.to_dtype(dtype)?;
        assert_eq!(t.argmax(0)?.to_scalar::<u32>()?, 500);
        assert_eq!(bits(&t.max(0)?)?, [100f64.to_bits()]);
        assert!(t.sum(0)?.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_nan());
        let first = Tensor::cat(&[&t.narrow(0, 777, 1)?, &t], 0)?;
        assert_eq!(first.argmax(0)?.to_scalar::<u32>()?, 0);
        assert!(first
            .max(0)?
            .to_dtype(DType::F32)?
            .to_scalar::<f32>()?
            .is_nan());
    }
    Ok(())
}

/// Returns the product, with sums in f64.
fn product(lhs: &Tensor, rhs: &Tensor) -> Result<Vec<f64>> {
    let (lhs, rhs) = (
        lhs.to_dtype(DType::F64)?.to_vec3::<f64>()?,
        rhs.to_dtype(DType::F64)?.to_vec3::<f64>()?,
    );
    let mut out = vec![];
    for (lhs, rhs) in lhs.iter().zip(&rhs) {
        for row in lhs {
            for j in 0..rhs[0].len() {
                out.push(row.iter().zip(rhs).map(|(l, r)| l * r[j]).sum());
            }
        }
    }
    Ok(out)
}

#[test]
fn products_with_few_rows_or_columns() -> Result<()> {
    for dtype in DTYPES {
        // Products in f32 of numbers below 2, rounded once to the dtype.
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 5e-3 };
        for (few, k, many) in [
            (1, 1, 1),
            (1, 33, 65),
            (2, 8, 9),
            (3, 31, 130),
            (4, 64, 7),
            (5, 300, 33),
            (8, 9, 70),
            (9, 40, 12),
        ] {
            for batch in [1, 3] {
                let lhs = numbers(&[batch, few, k], dtype)?;
                let lhs_t = numbers(&[batch, k, few], dtype)?.transpose(1, 2)?;
                let rhs = numbers(&[batch, k, many], dtype)?;
                let rhs_t = numbers(&[batch, many, k], dtype)?.transpose(1, 2)?;
                let wide = numbers(&[batch, k + 1, 2 * many + 3], dtype)?
                    .narrow(1, 1, k)?
                    .narrow(2, 2, many)?;
                for lhs in [&lhs, &lhs_t] {
                    for rhs in [&rhs, &rhs_t, &wide] {
                        for (lhs, rhs) in [
                            (lhs.clone(), rhs.clone()),
                            (rhs.transpose(1, 2)?, lhs.transpose(1, 2)?),
                        ] {
                            let got = lhs.matmul(&rhs)?.to_dtype(DType::F64)?.flatten_all()?;
                            for (got, expected) in
                                got.to_vec1::<f64>()?.into_iter().zip(product(&lhs, &rhs)?)
                            {
                                let scale = expected.abs().max(k as f64 / 8.).max(1.);
                                assert!(
                                    (got - expected).abs() <= tolerance * scale,
                                    "{lhs:?} {rhs:?}: {got} {expected}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn long_products_on_several_threads() -> Result<()> {
    for dtype in DTYPES {
        let x = numbers(&[1, 700], dtype)?;
        let weight = numbers(&[900, 700], dtype)?;
        let by_columns = x.matmul(&weight.t()?)?;
        let by_rows = x.matmul(&weight.t()?.contiguous()?)?;
        let column = weight.matmul(&x.t()?)?.t()?;
        let expected = product(&x.unsqueeze(0)?, &weight.t()?.unsqueeze(0)?)?;
        for got in [by_columns, by_rows, column] {
            let got = got.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
            for (got, expected) in got.into_iter().zip(&expected) {
                assert!(
                    (got - expected).abs() <= 5e-3 * expected.abs().max(10.),
                    "{dtype:?}: {got} {expected}"
                );
            }
        }
    }
    Ok(())
}
