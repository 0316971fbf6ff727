//! Copies and views on every device compared with the CPU. Nothing is computed, so all elements are equal.

use candle_core::scalar::Scalar;
use candle_core::{test_device, DType, Device, DeviceLocation, IndexOp, Result, Tensor};

use crate::agree::{assert_as_on_cpu, assert_same, numbers, View, DTYPES, VIEWS};

fn at(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    numbers(shape, dtype)?.to_device(device)
}

/// Views of a `(5, 9)` matrix whose elements are not aligned with the words of packed dtypes.
const ODD_VIEWS: [(&str, View); 6] = [
    ("columns from 1 on", |t| t.narrow(1, 1, 7)),
    ("rows from 3 on", |t| t.narrow(0, 3, 2)),
    ("columns from 3 on, transposed", |t| t.narrow(1, 3, 5)?.t()),
    ("one column", |t| t.narrow(1, 7, 1)),
    ("windows", |t| t.unfold(1, 4, 3)),
    ("repeated", |t| {
        t.narrow(1, 5, 3)?.unsqueeze(1)?.broadcast_as((5, 3, 3))
    }),
];

fn contiguous(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let cpu = numbers(&[3, 5, 7], dtype)?;
        let here = cpu.to_device(device)?;
        for (name, view) in VIEWS {
            let (here, cpu) = (view(&here)?, view(&cpu)?);
            let what = format!("{name} {dtype:?}");
            assert_same(&here.contiguous()?, &cpu, &what)?;
            assert_same(&here.copy()?, &cpu, &what)?;
            assert_same(&here.flatten_all()?, &cpu.flatten_all()?, &what)?;
            let turned = here.permute((2, 0, 1))?.contiguous()?;
            assert_same(&turned, &cpu.permute((2, 0, 1))?, &what)?;
        }
        let cpu = numbers(&[5, 9], dtype)?;
        let here = cpu.to_device(device)?;
        for (name, view) in ODD_VIEWS {
            let what = format!("{name} {dtype:?}");
            assert_same(&view(&here)?.contiguous()?, &view(&cpu)?, &what)?;
            // Read without a copy on the device.
            assert_same(&view(&here)?, &view(&cpu)?, &what)?;
        }
    }
    Ok(())
}
test_device!(contiguous);

fn sizes(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for size in [0, 1, 2, 3, 255, 257, 511, 513, 1023, 1025] {
            assert_as_on_cpu(device, &format!("{size} {dtype:?}"), |device| {
                at(&[size, 3], dtype, device)?.t()?.contiguous()
            })?;
        }
    }
    Ok(())
}
test_device!(sizes);

/// Kernels hold strides of up to eight dimensions that cannot be merged; all of these are supported.
fn eight_dimensions(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::U8] {
        assert_as_on_cpu(device, "eight dimensions", |device| {
            let t = at(&[2, 3, 2, 2, 1, 2, 3, 2, 2], dtype, device)?;
            t.permute([8, 7, 6, 5, 4, 3, 2, 1, 0].as_slice())?
                .contiguous()
        })?;
    }
    Ok(())
}
test_device!(eight_dimensions);

fn cat(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for dim in 0..3 {
            let what = format!("along {dim} {dtype:?}");
            let parts = |device: &Device| -> Result<Vec<Tensor>> {
                [3, 1, 0, 4, 5]
                    .into_iter()
                    .map(|size| {
                        let mut shape = [3, 5, 7];
                        shape[dim] = size;
                        at(&shape, dtype, device)
                    })
                    .collect()
            };
            assert_as_on_cpu(device, &what, |device| Tensor::cat(&parts(device)?, dim))?;
            assert_as_on_cpu(device, &what, |device| {
                let parts = parts(device)?;
                let views = parts.iter().map(|t| t.transpose(dim, (dim + 1) % 3));
                Tensor::cat(&views.collect::<Result<Vec<_>>>()?, (dim + 1) % 3)
            })?;
            assert_as_on_cpu(device, &what, |device| {
                let t = at(&[3, 5, 7], dtype, device)?;
                let odd = t.narrow(dim, 1, 2)?;
                let one = t.narrow(dim, 2, 1)?;
                Tensor::cat(&[&odd, &t, &one, &one.broadcast_as(odd.shape())?], dim)
            })?;
            assert_as_on_cpu(device, &what, |device| {
                let t = at(&[3, 5, 7], dtype, device)?;
                Tensor::stack(&[&t, &t.neg()?, &t], dim)
            })?;
        }
    }
    Ok(())
}
test_device!(cat);

/// In-place writes at every offset within words of packed dtypes: the neighbouring elements do not change.
fn slice_set(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for len in [1, 2, 3, 5, 8, 9] {
            for start in 0..=9 - len {
                let what = format!("{len} from {start} {dtype:?}");
                assert_as_on_cpu(device, &what, |device| {
                    let t = at(&[3, 9], dtype, device)?.copy()?;
                    t.slice_set(&at(&[3, len], dtype, device)?.neg()?, 1, start)?;
                    Ok(t)
                })?;
                assert_as_on_cpu(device, &what, |device| {
                    let t = at(&[9, 3], dtype, device)?.copy()?;
                    t.slice_set(&at(&[len, 3], dtype, device)?.neg()?, 0, start)?;
                    Ok(t)
                })?;
                // Into part of a larger storage.
                assert_as_on_cpu(device, &what, |device| {
                    let whole = at(&[5, 9], dtype, device)?.copy()?;
                    let t = whole.narrow(0, 1, 2)?;
                    t.slice_set(&at(&[2, len], dtype, device)?.neg()?, 1, start)?;
                    Ok(whole)
                })?;
            }
        }
        let t = at(&[3, 9], dtype, device)?;
        assert!(t.slice_set(&t.copy()?, 1, 1).is_err());
        assert!(t.t()?.slice_set(&t.t()?.copy()?, 0, 0).is_err());
    }
    Ok(())
}
test_device!(slice_set);

/// A key-value cache grows token by token, with dimensions (batch, heads, sequence, dim).
fn growing_cache(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for dim in [1, 3, 8] {
            assert_as_on_cpu(device, &format!("{dim} {dtype:?}"), |device| {
                let cache = Tensor::zeros((2, 3, 7, dim), dtype, device)?;
                cache.slice_set(&at(&[2, 3, 3, dim], dtype, device)?, 2, 0)?;
                for i in 3..7 {
                    let token = (at(&[2, 3, 1, dim], dtype, device)? + i as f64)?;
                    cache.slice_set(&token, 2, i)?;
                }
                Ok(cache)
            })?;
        }
    }
    Ok(())
}
test_device!(growing_cache);

/// Returns 3 in the dtype.
fn three(dtype: DType) -> Scalar {
    match dtype {
        DType::U8 => Scalar::U8(3),
        DType::U32 => Scalar::U32(3),
        DType::I16 => Scalar::I16(-3),
        DType::I32 => Scalar::I32(-3),
        DType::I64 => Scalar::I64(-3 << 40),
        DType::F16 => Scalar::F16(half::f16::from_f32(3.)),
        DType::BF16 => Scalar::BF16(half::bf16::from_f32(3.)),
        DType::F8E4M3 => Scalar::F8E4M3(float8::F8E4M3::from_f32(3.)),
        _ => Scalar::F32(3.),
    }
}

/// An in-place fill of a view changes exactly its elements.
fn constants_on_views(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let fill = |what: &str, shape: &[usize], view: View| {
            for set in [
                Tensor::zero_set as fn(&Tensor) -> Result<()>,
                Tensor::one_set,
                |t| t.const_set(three(t.dtype())),
            ] {
                assert_as_on_cpu(device, &format!("{what} {dtype:?}"), |device| {
                    let t = at(shape, dtype, device)?.copy()?;
                    set(&view(&t)?)?;
                    Ok(t)
                })?;
            }
            Ok::<_, candle_core::Error>(())
        };
        for (name, view) in VIEWS {
            fill(name, &[3, 5, 7], view)?;
        }
        for (name, view) in ODD_VIEWS {
            fill(name, &[5, 9], view)?;
        }
        fill("a corner", &[4, 5, 6], |t| {
            t.narrow(0, 1, 2)?
                .narrow(1, 3, 2)?
                .narrow(2, 1, 3)?
                .permute((2, 0, 1))
        })?;
        fill("nothing", &[5, 9], |t| t.narrow(1, 4, 0))?;
        for size in [1, 3, 255, 257, 1023, 1025] {
            fill("a vector", &[size], |t| Ok(t.clone()))?;
        }
    }
    Ok(())
}
test_device!(constants_on_views);

fn creation(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for size in [0, 1, 3, 257] {
            let what = format!("{size} {dtype:?}");
            let zeros = Tensor::zeros((size, 3), dtype, device)?;
            assert_same(
                &zeros,
                &Tensor::zeros((size, 3), dtype, &Device::Cpu)?,
                &what,
            )?;
            assert_same(
                &(&zeros + 1.)?,
                &Tensor::ones((size, 3), dtype, &Device::Cpu)?,
                &what,
            )?;
            assert_same(&zeros.ones_like()?, &(zeros + 1.)?, &what)?;
        }
        assert_as_on_cpu(device, "eye", |device| Tensor::eye(5, dtype, device))?;
    }
    assert_as_on_cpu(device, "full f32", |d| Tensor::full(f32::NAN, (3, 1), d))?;
    assert_as_on_cpu(device, "full f16", |d| {
        Tensor::full(half::f16::MIN, (5, 3), d)
    })?;
    assert_as_on_cpu(device, "full u8", |d| Tensor::full(255u8, 1025, d))?;
    assert_as_on_cpu(device, "full u32", |d| Tensor::full(u32::MAX, (), d))?;
    assert_as_on_cpu(device, "full i64", |d| Tensor::full(i64::MIN + 5, 3, d))?;
    assert_as_on_cpu(device, "full i64", |d| Tensor::full(i64::MAX, 3, d))?;
    assert_as_on_cpu(device, "arange", |d| Tensor::arange(3u8, 20, d))?;
    assert_as_on_cpu(device, "a mask", |d| Tensor::tril2(5, DType::U8, d))
}
test_device!(creation);

fn rearranged(device: &Device) -> Result<()> {
    let ops: [(&str, View); 18] = [
        ("repeat", |t| t.repeat((2, 1, 3))),
        ("repeat a view", |t| t.t()?.repeat((1, 3))),
        ("pad_with_zeros", |t| t.pad_with_zeros(2, 1, 2)),
        ("pad_with_zeros in front", |t| t.pad_with_zeros(0, 1, 0)),
        ("pad_with_same", |t| t.pad_with_same(1, 2, 1)),
        ("pad a view", |t| t.t()?.pad_with_same(2, 1, 1)),
        ("flip", |t| t.flip(&[0, 2])),
        ("flip a view", |t| t.narrow(2, 1, 5)?.t()?.flip(&[1])),
        ("roll", |t| t.roll(2, 2)),
        ("roll back", |t| t.t()?.roll(-1, 1)),
        ("unfold", |t| t.unfold(2, 3, 2)?.contiguous()),
        ("unfold rows", |t| t.unfold(1, 2, 1)?.sum_keepdim(3)),
        ("reshape", |t| t.reshape((7, ()))),
        ("reshape a view", |t| t.permute((1, 2, 0))?.reshape((35, 3))),
        ("flatten", |t| t.narrow(1, 1, 3)?.flatten_from(1)),
        ("squeeze", |t| t.narrow(0, 2, 1)?.squeeze(0)?.t()?.copy()),
        ("chunk", |t| Tensor::cat(&t.chunk(3, 2)?, 2)),
        ("slice_scatter", |t| {
            t.slice_scatter(&t.narrow(2, 0, 2)?.neg()?, 2, 3)
        }),
    ];
    for dtype in DTYPES {
        for (name, op) in ops {
            assert_as_on_cpu(device, &format!("{name} {dtype:?}"), |device| {
                op(&at(&[3, 5, 7], dtype, device)?)
            })?;
        }
    }
    Ok(())
}
test_device!(rearranged);

fn indexed(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let views: [View; 7] = [
            |t| t.i(1),
            |t| t.i((.., 2, 1..4)),
            |t| t.i((2, 4, 6)),
            |t| t.i((..2, .., ..=2)),
            |t| t.i((.., &[4u32, 0, 4][..])),
            |t| t.i((0, 1..1)),
            |t| t.t()?.i((1, 3.., 2)),
        ];
        for (i, view) in views.into_iter().enumerate() {
            assert_as_on_cpu(device, &format!("view {i} {dtype:?}"), |device| {
                view(&at(&[3, 5, 7], dtype, device)?)
            })?;
        }
        let t = at(&[3, 5, 7], dtype, device)?;
        assert!(t.i(3).is_err());
        assert!(t.i((.., 6..)).is_err());
    }
    Ok(())
}
test_device!(indexed);

/// The text equals the CPU's, except for the device's name.
fn displayed(device: &Device) -> Result<()> {
    let location = match device.location() {
        DeviceLocation::Cpu => "",
        DeviceLocation::Cuda { .. } => ", cuda:0",
        DeviceLocation::Metal { .. } => ", metal:0",
        #[allow(unreachable_patterns, reason = "of a build without WebGPU")]
        _ => ", webgpu:0",
    };
    for dtype in DTYPES {
        for shape in [vec![], vec![0], vec![3], vec![2, 3], vec![40, 60]] {
            let cpu = numbers(&shape, dtype)?;
            let here = cpu.to_device(device)?;
            let (got, want) = (format!("{here}"), format!("{cpu}"));
            assert!(got.contains(location), "{got}");
            assert_eq!(got.replace(location, ""), want);
            assert!(format!("{here:?}").contains(location));
        }
    }
    let t = Tensor::new(&[[1f32, -2.5], [0., 1.]], device)?.t()?;
    let text = format!("{t}");
    assert!(text.contains("[[ 1.0000,  0.0000],"), "{text}");
    assert!(text.contains("[2, 2], f32"), "{text}");
    Ok(())
}
test_device!(displayed);

/// Values from NumPy 2.
fn as_numpy(device: &Device) -> Result<()> {
    let t = Tensor::arange(0u32, 6, device)?.reshape((2, 3))?;
    assert_eq!(
        t.t()?.contiguous()?.to_vec2::<u32>()?,
        [[0, 3], [1, 4], [2, 5]]
    );
    assert_eq!(
        Tensor::cat(&[&t, &t.narrow(1, 1, 1)?], 1)?.to_vec2::<u32>()?,
        [[0, 1, 2, 1], [3, 4, 5, 4]]
    );
    assert_eq!(t.roll(1, 1)?.to_vec2::<u32>()?, [[2, 0, 1], [5, 3, 4]]);
    assert_eq!(t.flip(&[0])?.to_vec2::<u32>()?, [[3, 4, 5], [0, 1, 2]]);
    assert_eq!(
        t.unfold(1, 2, 1)?.to_vec3::<u32>()?,
        [[[0, 1], [1, 2]], [[3, 4], [4, 5]]]
    );
    assert_eq!(
        t.pad_with_same(1, 1, 0)?.to_vec2::<u32>()?,
        [[0, 0, 1, 2], [3, 3, 4, 5]]
    );
    t.narrow(1, 1, 1)?.one_set()?;
    assert_eq!(t.to_vec2::<u32>()?, [[0, 1, 2], [3, 1, 5]]);
    t.t()?.narrow(0, 0, 1)?.zero_set()?;
    assert_eq!(t.to_vec2::<u32>()?, [[0, 1, 2], [0, 1, 5]]);
    Ok(())
}
test_device!(as_numpy);

/// An empty view may start past the end of the storage.
fn parts_without_elements(device: &Device) -> Result<()> {
    let empty = Tensor::zeros((0, 2, 2), DType::F32, device)?;
    let column = empty.narrow(2, 1, 1)?.narrow(1, 1, 1)?;
    assert!(column
        .contiguous()?
        .flatten_all()?
        .to_vec1::<f32>()?
        .is_empty());
    column.one_set()?;
    let behind = Tensor::new(&[1f32, 2., 3.], device)?
        .narrow(0, 1, 2)?
        .narrow(0, 2, 0)?;
    assert!(behind.to_vec1::<f32>()?.is_empty());
    let row = Tensor::new(&[[1f32, 2., 3.]], device)?.narrow(1, 1, 1)?;
    assert!(row
        .narrow(0, 1, 0)?
        .flatten_all()?
        .to_vec1::<f32>()?
        .is_empty());
    Ok(())
}
test_device!(parts_without_elements);

/// Values from Candle 0.11.1: `xy_indexing` reverses the order of all axes.
fn meshgrid_of_three(device: &Device) -> Result<()> {
    let sides = [2u32, 3, 4].map(|n| Tensor::arange(0, n, device));
    let sides: Vec<_> = sides.into_iter().collect::<Result<_>>()?;
    for (xy, dims) in [(false, [2, 3, 4]), (true, [4, 3, 2])] {
        let grid = Tensor::meshgrid(&sides, xy)?;
        for (i, coordinate) in grid.iter().enumerate() {
            assert_eq!(coordinate.dims(), dims);
            let axis = if xy { 2 - i } else { i };
            let line = coordinate.transpose(axis, 2)?.i((0, 0))?;
            assert_eq!(line.to_vec1::<u32>()?, sides[i].to_vec1::<u32>()?);
        }
    }
    Ok(())
}
test_device!(meshgrid_of_three);
