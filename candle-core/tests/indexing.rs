//! Reads and writes by index on every device: gather, scatter, index_select, index_add, and rows copied into a tensor.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::{assert_same, numbers, DTYPES, VIEWS};

/// Returns indexes below `size`, on the CPU. Every fifth is the dtype's maximum, which means "no element".
fn ids(shape: &[usize], size: usize, dtype: DType) -> Result<Tensor> {
    let greatest = match dtype {
        DType::U8 => i64::from(u8::MAX),
        DType::U32 => i64::from(u32::MAX),
        DType::I16 => i64::from(i16::MAX),
        DType::I32 => i64::from(i32::MAX),
        _ => i64::MAX,
    };
    let len = shape.iter().product();
    let data: Vec<i64> = (0..len)
        .map(|i| match i % 5 {
            4 => greatest,
            _ => ((i * 31 + 5) % 97 % size) as i64,
        })
        .collect();
    Tensor::from_vec(data, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Returns integers, so that a sum of a few is exact in 16 bits too, in every order and with intermediate rounding.
fn whole_numbers(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let t = numbers(shape, dtype)?;
    if dtype.is_float() {
        t.round()
    } else {
        Ok(t)
    }
}

const ID_DTYPES: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// Compares gather, scatter, scatter_add, index_select and index_add along `dim`, with `n` indexes, with the CPU.
fn check(here: &Tensor, cpu: &Tensor, dim: usize, n: usize, by: DType, what: &str) -> Result<()> {
    let what = format!("{what} {:?} by {by:?} along {dim}", cpu.dtype());
    let device = here.device();
    let (dtype, size) = (cpu.dtype(), cpu.dim(dim)?);
    let mut shape = cpu.dims().to_vec();
    shape[dim] = n;
    let all = ids(&shape, size, by)?;
    let some = ids(&[n], size, by)?;
    let src = whole_numbers(&shape, dtype)?;
    let (all_here, some_here) = (all.to_device(device)?, some.to_device(device)?);
    let src_here = src.to_device(device)?;
    let same = |got: Result<Tensor>, want: Result<Tensor>, op: &str| {
        assert_same(&got?, &want?, &format!("{op} {what}"))
    };
    same(here.gather(&all_here, dim), cpu.gather(&all, dim), "gather")?;
    same(
        here.scatter(&all_here, &src_here, dim),
        cpu.scatter(&all, &src, dim),
        "scatter",
    )?;
    same(
        here.scatter_add(&all_here, &src_here, dim),
        cpu.scatter_add(&all, &src, dim),
        "scatter_add",
    )?;
    same(
        here.index_select(&some_here, dim),
        cpu.index_select(&some, dim),
        "index_select",
    )?;
    same(
        here.index_add(&some_here, &src_here, dim),
        cpu.index_add(&some, &src, dim),
        "index_add",
    )
}

fn layouts(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let cpu = whole_numbers(&[3, 5, 7], dtype)?;
        let here = cpu.to_device(device)?;
        for (name, view) in VIEWS {
            let (here, cpu) = (view(&here)?, view(&cpu)?);
            for dim in 0..3 {
                check(&here, &cpu, dim, 3, DType::U32, name)?;
            }
        }
    }
    Ok(())
}
test_device!(layouts);

fn sizes(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16, DType::U8, DType::I64] {
        for by in ID_DTYPES {
            for size in [1, 2, 31, 255, 256, 257] {
                let cpu = whole_numbers(&[3, size], dtype)?;
                let here = cpu.to_device(device)?;
                check(&here, &cpu, 0, 2, by, "rows")?;
                if size < 255 || by != DType::U8 {
                    check(&here, &cpu, 1, 4, by, "columns")?;
                }
            }
        }
    }
    Ok(())
}
test_device!(sizes);

/// Many updates of few elements: sums are rounded after each one, so their order is visible.
fn many_updates(device: &Device) -> Result<()> {
    for (dtype, by) in [
        (DType::F32, DType::U32),
        (DType::BF16, DType::I64),
        (DType::U8, DType::U8),
    ] {
        let cpu = numbers(&[3, 5, 4], dtype)?;
        let here = cpu.to_device(device)?;
        for n in [33, 200] {
            for dim in 0..3 {
                check(&here, &cpu, dim, n, by, "many")?;
            }
            let (here, cpu) = (here.permute((2, 0, 1))?, cpu.permute((2, 0, 1))?);
            check(&here, &cpu, 1, n, by, "many of permuted")?;
        }
        let (here, cpu) = (here.narrow(0, 1, 1)?, cpu.narrow(0, 1, 1)?);
        check(&here, &cpu, 2, 1000, by, "many of one row")?;
    }
    Ok(())
}
test_device!(many_updates);

/// Indexes and sources that are views themselves.
fn strided_operands(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let cpu = whole_numbers(&[4, 6], dtype)?;
        let here = cpu.to_device(device)?;
        let view = |t: &Tensor| t.t()?.narrow(1, 1, 3);
        let all = ids(&[6, 5], 4, DType::I64)?;
        let src = whole_numbers(&[6, 5], dtype)?;
        let (all_here, src_here) = (
            view(&all.to_device(device)?)?,
            view(&src.to_device(device)?)?,
        );
        let (all, src) = (view(&all)?, view(&src)?);
        let (here, cpu) = (here.t()?.narrow(0, 1, 5)?, cpu.t()?.narrow(0, 1, 5)?);
        let got = here.scatter_add(&all_here, &src_here, 1)?;
        assert_same(&got, &cpu.scatter_add(&all, &src, 1)?, "scatter_add")?;
        let got = here.gather(&all_here.narrow(0, 1, 2)?, 1)?;
        assert_same(&got, &cpu.gather(&all.narrow(0, 1, 2)?, 1)?, "gather")?;
        let (some_here, some) = (all_here.narrow(1, 2, 1)?, all.narrow(1, 2, 1)?);
        let got = here.index_select(&some_here.squeeze(1)?, 1)?;
        let want = cpu.index_select(&some.squeeze(1)?, 1)?;
        assert_same(&got, &want, "index_select")?;
    }
    Ok(())
}
test_device!(strided_operands);

/// An in-place write into part of a tensor leaves its neighbours unchanged.
fn in_place(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let changed = |device: &Device| {
            let t = whole_numbers(&[5, 7], dtype)?.to_device(device)?.copy()?;
            let all = ids(&[2, 7], 3, DType::U32)?.to_device(device)?;
            let src = whole_numbers(&[2, 7], dtype)?.to_device(device)?;
            let part = t.narrow(0, 1, 3)?;
            part.scatter_set(&all, &src, 0)?;
            part.scatter_add_set(&all, &src, 0)?;
            Ok(t)
        };
        let (got, want): (Result<_>, Result<_>) = (changed(device), changed(&Device::Cpu));
        assert_same(&got?, &want?, "scatter_set")?;
    }
    Ok(())
}
test_device!(in_place);

fn nothing(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        let t = numbers(&[3, 4], dtype)?.to_device(device)?;
        let none = Tensor::zeros(0, DType::U32, device)?;
        assert_eq!(t.index_select(&none, 1)?.dims(), [3, 0]);
        let no_rows = Tensor::zeros((0, 4), DType::U32, device)?;
        assert_eq!(t.gather(&no_rows, 0)?.dims(), [0, 4]);
        let src = Tensor::zeros((0, 4), dtype, device)?;
        assert_same(&t.scatter_add(&no_rows, &src, 0)?, &t, "scatter_add")?;
        assert_same(&t.index_add(&none, &src, 0)?, &t, "index_add")?;
    }
    Ok(())
}
test_device!(nothing);

/// An index out of range is an error at the read of the result or earlier, and the device remains usable.
fn out_of_range(device: &Device) -> Result<()> {
    type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 5] = [
        ("gather", |t, ids| t.gather(&ids.unsqueeze(1)?, 1)),
        ("scatter", |t, ids| {
            let ids = ids.unsqueeze(1)?;
            t.scatter(&ids, &t.narrow(1, 0, 1)?, 1)
        }),
        ("scatter-add", |t, ids| {
            let ids = ids.unsqueeze(1)?;
            t.scatter_add(&ids, &t.narrow(1, 0, 1)?, 1)
        }),
        ("index-select", |t, ids| t.index_select(ids, 1)),
        ("index-add", |t, ids| t.index_add(ids, t, 0)),
    ];
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        let t = numbers(&[2, 2], dtype)?.to_device(device)?;
        for by in ID_DTYPES {
            let bad = Tensor::new(&[1i64, 2], device)?.to_dtype(by)?;
            let good = Tensor::new(&[1i64, 0], device)?.to_dtype(by)?;
            for (name, op) in ops {
                let result = op(&t, &bad).and_then(|t| t.flatten_all()?.to_device(&Device::Cpu));
                let error = result.expect_err(name).to_string();
                assert!(error.contains(name) && error.contains('2'), "{error}");
                op(&t, &good)?.to_device(&Device::Cpu)?;
            }
        }
        let negative = Tensor::new(&[0i64, -1], device)?;
        let result = t.index_select(&negative, 0);
        let result = result.and_then(|t| t.to_device(&Device::Cpu));
        result.expect_err("a negative index");
    }
    Ok(())
}
test_device!(out_of_range);

/// Rows of an embedding table, as for a prompt and for one token.
fn embedding(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for hidden in [5, 255, 256, 258] {
            let cpu = numbers(&[100, hidden], dtype)?;
            let table = cpu.to_device(device)?;
            for n in [1usize, 3, 65] {
                let ids: Vec<u32> = (0..n).map(|i| (i * 37 % 100) as u32).collect();
                let ids = Tensor::from_vec(ids, (1, n), &Device::Cpu)?;
                let got = table.embedding(&ids.to_device(device)?)?;
                assert_same(&got, &cpu.embedding(&ids)?, "embedding")?;
            }
        }
    }
    Ok(())
}
test_device!(embedding);

/// Rows copied in place and to adjacent positions, aligned and not aligned with the words of packed dtypes.
fn rows(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (width, part, start) in [(8, 4, 4), (8, 3, 1), (7, 3, 2), (9, 8, 1), (300, 257, 43)] {
            let what = format!("{dtype:?} {part} of {width} at {start}");
            let pasted = |device: &Device| {
                let t = numbers(&[2, 5, width], dtype)?.to_device(device)?.copy()?;
                let src = numbers(&[2, 5, part], dtype)?.to_device(device)?;
                t.slice_set(&src, 2, start)?;
                t.slice_set(&t.narrow(1, 0, 3)?.copy()?, 1, 2)?;
                Ok(t)
            };
            let (got, want): (Result<_>, Result<_>) = (pasted(device), pasted(&Device::Cpu));
            assert_same(&got?, &want?, &what)?;
            let joined = |device: &Device| {
                let t = numbers(&[3, width], dtype)?.to_device(device)?;
                let odd = t.narrow(1, start, part)?;
                Tensor::cat(&[&t, &odd, &t.narrow(1, 0, 1)?, &odd], 1)
            };
            assert_same(&joined(device)?, &joined(&Device::Cpu)?, &what)?;
        }
    }
    Ok(())
}
test_device!(rows);

/// Values from NumPy 2 (`take_along_axis`, assignment by index, `np.add.at`) for `x = np.arange(12).reshape(3, 4)**2 / 4`.
fn as_numpy(device: &Device) -> Result<()> {
    let x = (Tensor::arange(0f32, 12., device)?.sqr()? / 4.)?.reshape((3, 4))?;
    let ids = Tensor::new(&[[3u32, 0], [1, 1], [2, 3]], device)?;
    assert_eq!(
        x.gather(&ids, 1)?.to_vec2::<f32>()?,
        [[2.25, 0.], [6.25, 6.25], [25., 30.25]]
    );
    let ids = Tensor::new(&[[2u32, 0, 1, 2], [0, 0, 2, 1]], device)?;
    let src = Tensor::new(&[[1f32, 2., 3., 4.], [10., 20., 30., 40.]], device)?;
    assert_eq!(
        x.gather(&ids, 0)?.to_vec2::<f32>()?,
        [[16., 0.25, 9., 30.25], [0., 0.25, 25., 12.25]]
    );
    assert_eq!(
        x.scatter(&ids, &src, 0)?.to_vec2::<f32>()?,
        [
            [10., 20., 1., 2.25],
            [4., 6.25, 3., 40.],
            [1., 20.25, 30., 4.]
        ]
    );
    assert_eq!(
        x.scatter_add(&ids, &src, 0)?.to_vec2::<f32>()?,
        [
            [10., 22.25, 1., 2.25],
            [4., 6.25, 12., 52.25],
            [17., 20.25, 55., 34.25]
        ]
    );
    let ids = Tensor::new(&[3u32, 0, 3], device)?;
    let src = Tensor::new(&[1f32, 2., 4.], device)?.broadcast_as((3, 3))?;
    assert_eq!(
        x.index_add(&ids, &src, 1)?.to_vec2::<f32>()?,
        [
            [2., 0.25, 1., 7.25],
            [6., 6.25, 9., 17.25],
            [18., 20.25, 25., 35.25]
        ]
    );
    Ok(())
}
test_device!(as_numpy);
