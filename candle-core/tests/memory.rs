//! Tensors larger than one binding or one buffer, release and exhaustion of memory, and a lost GPU.

use candle_core::scalar::Scalar;
use candle_core::webgpu_backend::Options;
use candle_core::{DType, Device, IndexOp, Result, Tensor, WebGpuDevice};

use crate::agree::{
    assert_as_on_cpu, assert_close, assert_same, numbers, Tolerance, DTYPES, VIEWS,
};

/// Opens a device with bindings of 4 KiB and buffers of 32 KiB.
fn small() -> Result<Device> {
    let options = Options {
        max_binding: Some(4 << 10),
        max_buffer: Some(32 << 10),
        ..Options::default()
    };
    Ok(Device::WebGpu(WebGpuDevice::with_options(0, &options)?))
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn storages_of_several_buffers_go_there_and_back() -> Result<()> {
    let device = small()?;
    for dtype in DTYPES {
        let cpu = numbers(&[5, 17, 131], dtype)?;
        for (name, view) in VIEWS {
            let there = view(&cpu.to_device(&device)?)?;
            assert_same(&there, &view(&cpu)?, &format!("{name} {dtype:?}"))?;
            let copy = there.copy()?;
            assert_same(&copy, &view(&cpu)?, &format!("{name} {dtype:?} copy"))?;
        }
    }
    Ok(())
}

#[test]
fn elementwise_ops_are_split() -> Result<()> {
    let device = small()?;
    for dtype in DTYPES {
        for (name, view) in VIEWS {
            let what = format!("{name} {dtype:?}");
            assert_as_on_cpu(&device, &what, |d| {
                let t = numbers(&[5, 17, 131], dtype)?.to_device(d)?;
                let (lhs, rhs) = (view(&t)?, view(&t.affine(2., 1.)?)?);
                let chosen = lhs.gt(&rhs)?.where_cond(&lhs, &rhs)?;
                (chosen.abs()? + lhs)?.maximum(&rhs)
            })?;
            let to = if dtype == DType::F16 {
                DType::U8
            } else {
                DType::F16
            };
            assert_as_on_cpu(&device, &format!("{what} cast"), |d| {
                view(&numbers(&[5, 17, 131], dtype)?.abs()?.to_device(d)?)?.to_dtype(to)
            })?;
        }
    }
    Ok(())
}

#[test]
fn movement_is_split() -> Result<()> {
    let device = small()?;
    for dtype in DTYPES {
        let t = |d: &Device| numbers(&[5, 17, 131], dtype)?.to_device(d);
        for dim in 0..3 {
            let what = format!("{dtype:?} {dim}");
            assert_as_on_cpu(&device, &format!("cat {what}"), |d| {
                let t = t(d)?;
                Tensor::cat(&[&t, &t.narrow(dim, 1, 3)?, &t], dim)
            })?;
            assert_as_on_cpu(&device, &format!("const_set {what}"), |d| {
                let t = t(d)?.copy()?;
                t.narrow(dim, 1, 3)?.const_set(Scalar::one(dtype))?;
                Ok(t)
            })?;
            assert_as_on_cpu(&device, &format!("slice_set {what}"), |d| {
                let t = t(d)?.copy()?;
                let part = t.narrow(dim, 0, 2)?.affine(1., 2.)?;
                t.slice_set(&part, dim, 3)?;
                Ok(t)
            })?;
        }
    }
    Ok(())
}

#[test]
fn reductions_are_split() -> Result<()> {
    let device = small()?;
    for dtype in DTYPES {
        // Rows that fit, rows that do not, and the whole tensor; sums of these numbers are exact.
        for dims in [vec![0], vec![1], vec![2], vec![1, 2], vec![0, 1, 2]] {
            for shape in [[5, 9, 300], [2, 2, 5000]] {
                let t = |d: &Device| numbers(&shape, dtype)?.to_device(d);
                let what = format!("{dtype:?} {shape:?} {dims:?}");
                if dtype != DType::U8 && dtype != DType::F16 && dtype != DType::BF16 {
                    assert_as_on_cpu(&device, &what, |d| t(d)?.sum(dims.clone()))?;
                }
                if let [dim] = dims[..] {
                    assert_as_on_cpu(&device, &what, |d| t(d)?.max(dim))?;
                    assert_as_on_cpu(&device, &what, |d| t(d)?.argmin(dim))?;
                    assert_as_on_cpu(&device, &what, |d| t(d)?.t()?.argmax(dim))?;
                }
            }
        }
    }
    // The first NaN counts.
    for place in [0, 1, 1023, 1024, 1025, 3000] {
        let mut data = vec![1f32; 5000];
        data[place] = f32::NAN;
        data[4000] = 2.;
        data[4500] = 2.;
        assert_as_on_cpu(&device, &format!("NaN at {place}"), |d| {
            Tensor::new(&data[..], d)?.argmax(0)
        })?;
    }
    Ok(())
}

/// Columns whose elements lie in different windows are reduced in place, row by row.
#[test]
fn columns_are_reduced_without_a_copy() -> Result<()> {
    let device = small()?;
    for dtype in [DType::F32, DType::BF16, DType::U8, DType::I64] {
        let mut cpu = numbers(&[65, 4097], dtype)?;
        if dtype.is_float() {
            // A NaN counts in the first row only.
            let cpu_f32 = numbers(&[65, 4097], DType::F32)?;
            let mut data = cpu_f32.flatten_all()?.to_vec1::<f32>()?;
            data[7 * 4097..8 * 4097].fill(f32::NAN);
            data[3] = f32::NAN;
            cpu = Tensor::from_vec(data, (65, 4097), &Device::Cpu)?.to_dtype(dtype)?;
        }
        let there = cpu.to_device(&device)?;
        for (name, f) in [
            ("sum", (|t| t.narrow(0, 0, 7)?.sum(0)) as fn(&Tensor) -> _),
            ("max", |t| t.max(0)),
            ("min", |t| t.min_keepdim(0)),
            ("argmax", |t| t.argmax(0)),
            ("argmin", |t| t.argmin_keepdim(0)),
        ] {
            assert_same(&f(&there)?, &f(&cpu)?, &format!("{name} {dtype:?}"))?;
        }
    }
    // 65 rows of five windows each, and the conversion of the result.
    let t = numbers(&[65, 4097], DType::F32)?;
    let there = t.to_device(&device)?;
    let webgpu = device.as_webgpu_device()?;
    let before = webgpu.stats().dispatches;
    let sums = there.sum(0)?;
    let dispatches = webgpu.stats().dispatches - before;
    assert!(dispatches < 65 * 5 * 3, "{dispatches}");
    assert_same(&sums, &t.sum(0)?, "sum")
}

#[test]
fn indexing_is_split() -> Result<()> {
    let device = small()?;
    for dtype in DTYPES {
        for dim in 0..3 {
            let shape = [5, 17, 131];
            let what = format!("{dtype:?} {dim}");
            let t = |d: &Device| numbers(&shape, dtype)?.to_device(d);
            // One index twice, one that is skipped.
            let ids = |d: &Device| Tensor::new(&[4u32, 0, 3, u32::MAX, 4], d);
            assert_as_on_cpu(&device, &format!("index_select {what}"), |d| {
                t(d)?.index_select(&ids(d)?, dim)
            })?;
            assert_as_on_cpu(&device, &format!("index_select of a view {what}"), |d| {
                t(d)?.transpose(0, 2)?.index_select(&ids(d)?, dim)
            })?;
            let many = |d: &Device| {
                let ids = numbers(&[5, 17, 131], DType::U32)?.to_dtype(DType::I64)?;
                let size = shape[dim] as f64;
                let rest = (ids.to_dtype(DType::F64)? / size)?
                    .floor()?
                    .affine(size, 0.)?;
                (ids.to_dtype(DType::F64)? - rest)?
                    .to_dtype(DType::I64)?
                    .to_device(d)
            };
            assert_as_on_cpu(&device, &format!("gather {what}"), |d| {
                t(d)?.gather(&many(d)?, dim)
            })?;
            assert_as_on_cpu(&device, &format!("scatter {what}"), |d| {
                t(d)?.zeros_like()?.scatter(&many(d)?, &t(d)?, dim)
            })?;
            let add = |d: &Device| -> Result<Tensor> {
                t(d)?.index_add(&ids(d)?, &t(d)?.narrow(dim, 0, 5)?, dim)
            };
            // Three terms: the CPU rounds both sums, a split tensor its result only. The first sum is below 16, so its rounding error is
            // half a step of 8, and remains when the third term cancels the rest.
            let step = Tolerance::of(dtype, 0.);
            let tolerance = step.times(2.).or_absolute(step.relative * 8. / 2.);
            assert_close(
                &add(&device)?,
                &add(&Device::Cpu)?,
                tolerance,
                &format!("index_add {what}"),
            )?;
        }
    }
    let table = numbers(&[40, 331], DType::F32)?.to_device(&device)?;
    let ids = Tensor::new(&[3u32, 40], &device)?;
    let error = message(table.index_select(&ids, 0)?.to_vec2::<f32>());
    assert!(error.contains("40"), "{error}");
    Ok(())
}

#[test]
fn products_are_split() -> Result<()> {
    let device = small()?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // Rows; columns; a batch; an inner dimension larger than a window, on one side and on both.
        for (b, m, n, k) in [
            (1, 1, 700, 65),
            (1, 90, 33, 64),
            (5, 40, 41, 30),
            (1, 3, 40, 3000),
            (2, 1, 3, 5001),
        ] {
            for transposed in [false, true] {
                let run = |d: &Device| -> Result<Tensor> {
                    let lhs = (numbers(&[b, m, k], dtype)? / 8.)?.to_device(d)?;
                    let rhs = if transposed {
                        numbers(&[b, n, k], dtype)?.to_device(d)?.t()?
                    } else {
                        numbers(&[b, k, n], dtype)?.to_device(d)?
                    };
                    lhs.matmul(&rhs)
                };
                let what = format!("{dtype:?} {b} {m} {n} {k} {transposed}");
                let tolerance = Tolerance::of(dtype, 1e-5).or_absolute(1e-2 * k as f64 / 30.);
                assert_close(&run(&device)?, &run(&Device::Cpu)?, tolerance, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn planes_and_rows_are_split() -> Result<()> {
    let device = small()?;
    for dtype in [DType::F32, DType::BF16] {
        let image = |d: &Device| numbers(&[2, 5, 33, 40], dtype)?.to_device(d);
        let kernel = |d: &Device| numbers(&[4, 5, 3, 3], dtype)?.to_device(d);
        let tolerance =
            Tolerance::of(dtype, 1e-5).or_absolute(if dtype == DType::F32 { 1e-3 } else { 16. });
        for (name, f) in [
            (
                "conv2d",
                (|x, k| x.conv2d(k, 1, 2, 1, 1)) as fn(&Tensor, &Tensor) -> Result<Tensor>,
            ),
            ("conv_transpose2d", |x, k| {
                x.narrow(1, 0, 4)?.conv_transpose2d(k, 1, 1, 2, 1)
            }),
            ("max_pool2d", |x, _| x.max_pool2d((3, 2))),
            ("avg_pool2d", |x, _| x.t()?.avg_pool2d(2)),
            ("nearest", |x, _| x.upsample_nearest2d(71, 83)),
            ("bilinear", |x, _| x.upsample_bilinear2d(71, 83, false)),
        ] {
            let run = |d: &Device| f(&image(d)?, &kernel(d)?);
            let what = format!("{name} {dtype:?}");
            assert_close(&run(&device)?, &run(&Device::Cpu)?, tolerance, &what)?;
        }
        // Several rows per binding, one that fills it, and ones whose keys span two and eight.
        for (rows, len) in [(30, 400), (3, 1024), (3, 1025), (2, 5000)] {
            for ascending in [true, false] {
                assert_as_on_cpu(
                    &device,
                    &format!("arg_sort {rows} {len} {ascending}"),
                    |d| {
                        let t = numbers(&[len, rows], dtype)?.to_device(d)?.t()?;
                        t.arg_sort_last_dim(ascending)
                    },
                )?;
            }
        }
    }
    assert_as_on_cpu(&device, "arg_sort of i64", |d| {
        let t = numbers(&[1, 3000], DType::I64)?.to_device(d)?;
        t.arg_sort_last_dim(true)
    })?;
    device.set_seed(3)?;
    let parts = Tensor::rand(0f32, 1., 5000, &device)?.to_vec1::<f32>()?;
    let whole = Device::new_webgpu(0)?;
    whole.set_seed(3)?;
    assert_eq!(
        parts,
        Tensor::rand(0f32, 1., 5000, &whole)?.to_vec1::<f32>()?
    );
    Ok(())
}

/// A row that cannot be split is an error with the op and the sizes, not a wrong result.
#[test]
fn what_cannot_be_split_is_an_error() -> Result<()> {
    let device = small()?;
    // A row of pooling windows.
    let image = numbers(&[1, 1, 2, 3000], DType::F32)?.to_device(&device)?;
    let error = message(image.max_pool2d(2));
    assert!(
        error.contains("max_pool2d") && error.contains("6000") && error.contains("3840"),
        "{error}"
    );
    let error = message(Tensor::zeros((1 << 31, 4), DType::U8, &device));
    assert!(error.contains(&(1u64 << 33).to_string()), "{error}");
    Ok(())
}

/// The actual limits: software adapters and phones bind 128 MiB, browsers guarantee buffers of 256 MiB.
#[test]
fn past_128_and_256_mib() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let plane = |rows: usize, columns: usize| -> Result<Tensor> {
        let row: Vec<f32> = (0..columns).map(|i| (i % 5) as f32).collect();
        let column: Vec<f32> = (0..rows).map(|i| (i % 7) as f32).collect();
        let column = Tensor::from_vec(column, (rows, 1), &device)?;
        column.broadcast_add(&Tensor::from_vec(row, (1, columns), &device)?)
    };
    // 150 MiB of weights. Each sum is that of one row: 4096 times the row's number, and that of all columns.
    let weights = plane(9600, 4096)?;
    let x = Tensor::ones((1, 4096), DType::F32, &device)?;
    let y = x.matmul(&weights.t()?)?.flatten_all()?.to_vec1::<f32>()?;
    let columns: f32 = (0..4096).map(|i| (i % 5) as f32).sum();
    for (i, y) in y.iter().enumerate() {
        assert_eq!(*y, (i % 7) as f32 * 4096. + columns, "{i}");
    }
    let ids = Tensor::new(&[9599u32, 0, 5000, 8193], &device)?;
    let rows = weights.index_select(&ids, 0)?.to_vec2::<f32>()?;
    for (row, id) in rows.iter().zip([9599, 0, 5000, 8193]) {
        assert!(
            row.iter()
                .enumerate()
                .all(|(i, x)| *x == (id % 7 + i % 5) as f32),
            "{id}"
        );
    }
    drop((weights, x));
    // 300 MiB.
    let t = plane(300, 1 << 18)?;
    let t = (&t + &t)?;
    let last = t.i(299)?.copy()?.to_vec1::<f32>()?;
    assert!(last
        .iter()
        .enumerate()
        .all(|(i, x)| *x == 2. * (299 % 7 + i % 5) as f32));
    let sums = t.sum(1)?.to_vec1::<f32>()?;
    let columns: f32 = (0..1 << 18).map(|i| (i % 5) as f32).sum();
    for (i, sum) in sums.iter().enumerate() {
        assert_eq!(*sum, 2. * ((i % 7) as f32 * 262144. + columns), "{i}");
    }
    Ok(())
}

#[test]
fn memory_runs_out_with_an_error() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let webgpu = device.as_webgpu_device()?;
    let kept = Tensor::ones(1000, DType::F32, &device)?;
    // 4 MiB in the pool, with a size that is never requested again.
    drop(Tensor::zeros(1 << 20, DType::F32, &device)?);
    let stats = webgpu.stats();
    assert!(stats.free_bytes >= 4 << 20, "{stats:?}");
    webgpu.set_memory_budget(Some(stats.live_bytes + (6 << 20)));
    assert_eq!(device.free_memory()?, Some(6 << 20));
    // Enough memory once the pool releases its buffers.
    let t = Tensor::ones(5 << 18, DType::F32, &device)?;
    assert_eq!(webgpu.stats().free_bytes, 0);
    let error = message(Tensor::zeros(3 << 20, DType::F32, &device));
    let live = webgpu.stats().live_bytes.to_string();
    for part in ["zeros", "out of memory", "12582912", &live] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = message(t.exp());
    assert!(
        error.contains("exp") && error.contains("out of memory"),
        "{error}"
    );
    // The device remains usable.
    assert_eq!(t.get(7)?.to_scalar::<f32>()?, 1.);
    webgpu.set_memory_budget(None);
    // Vulkan's driver reports free memory; other drivers do not.
    if let Some(free) = device.free_memory()? {
        assert!(free > 1 << 20, "{free}");
    }
    assert_eq!(Device::Cpu.free_memory()?, None);
    assert_eq!(t.exp()?.dim(0)?, 5 << 18);
    assert_eq!(kept.sum_all()?.to_scalar::<f32>()?, 1000.);
    Ok(())
}

#[test]
fn the_pool_is_bounded() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let webgpu = device.as_webgpu_device()?;
    let kept = Tensor::ones(1000, DType::F32, &device)?;
    let before = webgpu.stats();
    webgpu.set_pool_cap(Some(1 << 20));
    for i in 0..10_000usize {
        let shape = [1, 7, 300, 5000, 70_000][i % 5] + i % 11 * 97;
        // SAFETY: the contents are never read.
        let t = unsafe { Tensor::empty(shape, DType::F32, &device) }?;
        drop(t);
        if i % 1000 == 0 {
            let stats = webgpu.stats();
            assert!(stats.free_bytes <= 1 << 20, "{stats:?}");
            assert_eq!(stats.live_bytes, before.live_bytes);
        }
    }
    let after = webgpu.stats();
    assert_eq!(after.live_bytes, before.live_bytes);
    assert!(after.free_bytes <= 1 << 20, "{after:?}");
    assert!(after.peak_bytes > before.live_bytes);
    webgpu.reset_peak();
    assert_eq!(webgpu.stats().peak_bytes, before.live_bytes);
    // Kernels continue while the GPU frees buffers that they use.
    webgpu.set_pool_cap(Some(0));
    let mut t = kept.copy()?;
    for _ in 0..100 {
        t = ((t + 1.)? - 1.)?;
    }
    assert_eq!(t.sum_all()?.to_scalar::<f32>()?, 1000.);
    webgpu.trim()?;
    assert_eq!(webgpu.stats().free_bytes, 0);
    Ok(())
}

#[test]
fn a_lost_gpu_is_an_error() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let t = numbers(&[4, 4], DType::F32)?.to_device(&device)?;
    let ids = Tensor::new(&[1u32], &device)?;
    let sum = (&t + &t)?;
    device.as_webgpu_device()?.lose();
    for (op, error) in [
        ("add", message(&t + &t)),
        ("matmul", message(t.matmul(&t))),
        ("sum", message(t.sum(0))),
        ("index-select", message(t.index_select(&ids, 0))),
        ("zeros", message(Tensor::zeros(3, DType::F32, &device))),
        ("upload", message(Tensor::new(&[1f32], &device))),
        ("readback", message(sum.to_vec2::<f32>())),
        (
            "readback",
            message(pollster::block_on(sum.to_vec2_async::<f32>())),
        ),
        ("const-set", message(t.const_set(Scalar::F32(1.)))),
        ("", message(device.synchronize())),
    ] {
        let lower = error.to_lowercase().replace('_', "-");
        assert!(
            lower.contains(op) && lower.contains("lost"),
            "{op}: {error}"
        );
        assert!(error.contains("new_webgpu"), "{op}: {error}");
    }
    let device = Device::new_webgpu(0)?;
    let t = t_again(&device)?;
    assert_same(
        &(&t + &t)?,
        &(numbers(&[4, 4], DType::F32)? * 2.)?,
        "the next device",
    )
}

fn t_again(device: &Device) -> Result<Tensor> {
    numbers(&[4, 4], DType::F32)?.to_device(device)
}

/// A wait for a result is an error if the GPU is lost.
#[test]
fn readers_of_a_lost_gpu_do_not_hang() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let t = Tensor::ones((512, 512), DType::F32, &device)?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            for _ in 0..100_000 {
                t.matmul(&t)?.sum_all()?.to_scalar::<f32>()?;
            }
            Ok(())
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        device.as_webgpu_device()?.lose();
        let error = message(reader.join().expect("no panic"));
        assert!(error.contains("lost"), "{error}");
        Ok(())
    })
}

/// Four independent threads; a fifth drops their tensors.
#[test]
fn threads_do_not_disturb_each_other() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let work = |thread: usize, turn: usize| -> Result<Tensor> {
        let t = numbers(&[8 + thread, 33], DType::F32)?.to_device(&device)?;
        let t = (t * (1. + turn as f64))?;
        match thread {
            0 => t.matmul(&t.t()?)?.tanh(),
            1 => t.sum_keepdim(0)?.broadcast_sub(&t)?.exp(),
            2 => Tensor::cat(&[&t, &t.neg()?], 0)?.to_dtype(DType::F16),
            _ => t
                .index_select(&Tensor::new(&[3u32, 1, 2], &device)?, 0)?
                .sqr(),
        }
    };
    let bits = |t: &Tensor| -> Result<Vec<u32>> {
        let t = t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(t.into_iter().map(f32::to_bits).collect())
    };
    let mut want = Vec::new();
    for thread in 0..4 {
        for turn in 0..5 {
            want.push(bits(&work(thread, turn)?)?);
        }
    }
    let (send, dropped) = std::sync::mpsc::channel::<Tensor>();
    std::thread::scope(|scope| {
        scope.spawn(move || dropped.into_iter().for_each(drop));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (send, work, want) = (send.clone(), &work, &want);
                scope.spawn(move || -> Result<()> {
                    for i in 0..100 {
                        let t = work(thread, i % 5)?;
                        assert_eq!(bits(&t)?, want[thread * 5 + i % 5], "{thread} {i}");
                        send.send(t).expect("somebody listens");
                    }
                    Ok(())
                })
            })
            .collect();
        drop(send);
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn a_warm_up_compiles_what_the_work_takes() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let webgpu = device.as_webgpu_device()?;
    let work = || -> Result<Vec<f32>> {
        let t = numbers(&[5, 8], DType::F32)?.to_device(&device)?;
        let t = t.matmul(&t.t()?)?.exp()?.sum(0)?;
        (t.to_dtype(DType::F16)?.to_dtype(DType::F32)? + 1.)?.to_vec1()
    };
    let mut read = None;
    let warmed = webgpu.warm_up(|| {
        read = Some(work()?);
        webgpu.warm_up(|| Ok(())).expect_err("one at a time");
        Ok(())
    })?;
    // Nothing ran, and the read returns zeros.
    assert_eq!(read, Some(vec![0.; 5]));
    let stats = webgpu.stats();
    assert_eq!(stats.dispatches, 0);
    assert!(
        warmed.kernels >= 5 && warmed.compiled == warmed.kernels,
        "{warmed:?}"
    );
    assert_eq!(stats.pipelines, warmed.kernels as u64);
    // The actual work finds every kernel, and its result is correct.
    let got = work()?;
    assert_eq!(webgpu.stats().pipelines, stats.pipelines);
    assert!(got.iter().all(|x| *x > 1.), "{got:?}");
    assert_eq!(webgpu.warm_up(work)?.compiled, 0);
    // Failed work removes its mark.
    assert!(webgpu
        .warm_up(|| Tensor::new(&[1f32], &device)?.get(3))
        .is_err());
    assert_eq!(work()?, got);
    Ok(())
}

#[test]
fn pipelines_are_kept_on_disk() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = Options {
        pipeline_cache: Some(dir.path().to_path_buf()),
        ..Options::default()
    };
    let start = || -> Result<_> {
        let webgpu = WebGpuDevice::with_options(0, &options)?;
        let device = Device::WebGpu(webgpu.clone());
        let t = numbers(&[5, 8], DType::F32)?.to_device(&device)?;
        let result = t.matmul(&t.t()?)?.to_vec2::<f32>()?;
        Ok((webgpu.pipeline_cache().cloned(), result))
    };
    let (first, want) = start()?;
    let Some(first) = first else {
        // Only Vulkan has such a cache; on other backends, and with a browser's features, there must be no file.
        assert_eq!(std::fs::read_dir(dir.path())?.count(), 0);
        return Ok(());
    };
    assert!(first.path.starts_with(dir.path()) && first.loaded_bytes == 0);
    let file = std::fs::read(&first.path)?;
    let (second, result) = start()?;
    assert!(second.is_some_and(|report| report.loaded_bytes > 0));
    assert_eq!(result, want);
    // No temporary file remains.
    assert_eq!(std::fs::read_dir(dir.path())?.count(), 1);
    let mut flipped = file.clone();
    let middle = file.len() / 2;
    flipped[middle] ^= 1;
    for damaged in [&flipped[..], &file[..middle], b"", b"candlePC"] {
        std::fs::write(&first.path, damaged)?;
        let (report, result) = start()?;
        assert_eq!(report.map(|report| report.loaded_bytes), Some(0));
        assert_eq!(result, want);
        assert!(std::fs::read(&first.path)?.len() > damaged.len().min(16));
    }
    Ok(())
}
