//! Guarantees of the WebGPU device other than its ops: transfers, errors, threads, memory and counters.

use candle_core::{webgpu_backend, DType, Device, Result, Tensor};

use crate::agree::{assert_same, numbers, DTYPES, VIEWS};

fn webgpu() -> Result<Device> {
    Device::new_webgpu(0)
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tensors_go_there_and_back() -> Result<()> {
    let device = webgpu()?;
    assert!(device.is_webgpu() && !device.is_cpu());
    for dtype in DTYPES {
        for shape in [
            vec![],
            vec![0],
            vec![1],
            vec![3],
            vec![5, 7],
            vec![1025],
            vec![0, 4],
        ] {
            let cpu = numbers(&shape, dtype)?;
            let here = cpu.to_device(&device)?;
            assert!(here.device().same_device(&device));
            assert_same(&here, &cpu, &format!("{shape:?} {dtype:?}"))?;
        }
        let cpu = numbers(&[3, 5, 7], dtype)?;
        for (name, view) in VIEWS {
            let there = view(&cpu)?.to_device(&device)?;
            assert_same(&there, &view(&cpu)?, &format!("{name} {dtype:?}"))?;
            let back = view(&cpu.to_device(&device)?)?.to_device(&Device::Cpu)?;
            assert_same(&back, &view(&cpu)?, &format!("{name} {dtype:?}"))?;
        }
    }
    // More than one chunk of an upload.
    let cpu = numbers(&[9 << 20], DType::F32)?;
    let sum = cpu.to_device(&device)?.narrow(0, (8 << 20) - 5, 10)?;
    assert_same(&sum, &cpu.narrow(0, (8 << 20) - 5, 10)?, "a long upload")
}

#[test]
fn another_device_gets_its_own_copy() -> Result<()> {
    let (one, two) = (webgpu()?, webgpu()?);
    assert!(!one.same_device(&two) && one.same_device(&one.clone()));
    let cpu = numbers(&[5, 7], DType::F16)?;
    let there = cpu.to_device(&one)?.t()?.to_device(&two)?;
    assert!(there.device().same_device(&two));
    assert_same(&there, &cpu.t()?, "from device to device")
}

#[test]
fn unsupported_dtypes_are_errors_that_say_so() -> Result<()> {
    let device = webgpu()?;
    let name = device.as_webgpu_device()?.name().to_string();
    let codes = candle_core::CpuStorage::F8E8M0(vec![127, 128]);
    let codes = Tensor::from_storage(
        candle_core::Storage::Cpu(codes),
        2,
        candle_core::op::BackpropOp::none(),
        false,
    );
    let f32 = Tensor::new(&[1f32, 2.], &device)?;
    for (op, dtype, error) in [
        ("upload", "F8E8M0", message(codes.to_device(&device))),
        ("to_dtype", "F4", message(f32.to_dtype(DType::F4))),
    ] {
        let lower = error.to_lowercase();
        let complete = lower.contains(&op.to_lowercase())
            && lower.contains(&dtype.to_lowercase())
            && error.contains(&name);
        assert!(complete, "{op} {dtype}: {error}");
    }
    let ints = Tensor::new(&[[1u32, 2]], &device)?;
    let error = message(ints.exp());
    assert!(error.contains("exp") && error.contains(&name), "{error}");
    Ok(())
}

#[test]
fn tensors_on_two_devices_are_an_error() -> Result<()> {
    let (one, two) = (webgpu()?, webgpu()?);
    let here = Tensor::ones((2, 2), DType::F32, &one)?;
    let ids = Tensor::zeros(2, DType::U32, &one)?;
    for other in [&two, &Device::Cpu] {
        let there = Tensor::ones((2, 2), DType::F32, other)?;
        let ids_there = ids.to_device(other)?;
        for (op, error) in [
            ("add", message(&here + &there)),
            ("maximum", message(here.maximum(&there))),
            ("cmp", message(here.eq(&there))),
            ("matmul", message(here.matmul(&there))),
            ("cat", message(Tensor::cat(&[&here, &there], 0))),
            (
                "where_cond",
                message(here.ge(0.)?.where_cond(&here, &there)),
            ),
            ("index-select", message(here.index_select(&ids_there, 0))),
            (
                "gather",
                message(here.gather(&ids_there.reshape((2, 1))?, 1)),
            ),
            (
                "scatter-add",
                message(here.scatter_add(&ids.reshape((2, 1))?, &there, 1)),
            ),
            ("index-add", message(here.index_add(&ids, &there, 0))),
            ("slice-set", message(here.slice_set(&there, 0, 0))),
        ] {
            let plain = |text: &str| text.replace(['-', '_'], "");
            let complete = plain(&error).contains(&plain(op)) && error.contains("device");
            assert!(complete, "{op}: {error}");
        }
    }
    Ok(())
}

#[test]
fn an_ordinal_without_an_adapter_is_an_error() {
    let error = message(Device::new_webgpu(1000));
    assert!(error.contains("1000"), "{error}");
    let adapters = webgpu_backend::adapters();
    assert!(error.contains(&adapters[0].name), "{error}");
    assert!(adapters[0].chosen);
}

/// Runs a small network whose output depends on every op's result.
fn work(device: &Device, seed: usize) -> Result<Vec<f32>> {
    let mut x = (numbers(&[9, 16], DType::F32)? / 8.)?.to_device(device)?;
    for step in 0..20 {
        let weights = (numbers(&[16, 16], DType::F32)? + (seed + step) as f64)?;
        x = x.matmul(&(weights / 64.)?.to_device(device)?)?.tanh()?;
        x = (x.broadcast_sub(&x.max_keepdim(1)?)? + Tensor::cat(&[&x, &x], 0)?.narrow(0, 3, 9)?)?;
        let ids = Tensor::new(&[8u32, 0, 7, 1, 6, 2, 5, 3, 4], device)?;
        x = x
            .index_select(&ids, 0)?
            .to_dtype(DType::F16)?
            .to_dtype(DType::F32)?;
        if step % 7 == 0 {
            x.to_vec2::<f32>()?;
        }
    }
    x.flatten_all()?.to_vec1()
}

#[test]
fn four_threads_get_what_one_gets() -> Result<()> {
    let device = webgpu()?;
    let want: Vec<_> = (0..4)
        .map(|seed| work(&device, seed))
        .collect::<Result<_>>()?;
    assert!(want[0] != want[1] && want[0].iter().all(|x| x.is_finite()));
    // Compilation can race as well: use a device without compiled kernels.
    for device in [&device, &webgpu()?] {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|seed| scope.spawn(move || (0..5).map(|_| work(device, seed)).collect()))
                .collect();
            for (thread, want) in threads.into_iter().zip(&want) {
                let got: Result<Vec<_>> = thread.join().expect("no panic");
                assert!(got?.iter().all(|got| got == want));
            }
            Ok::<_, candle_core::Error>(())
        })?;
    }
    Ok(())
}

/// Several threads alternately read and write one tensor.
#[test]
fn threads_may_share_a_tensor() -> Result<()> {
    let device = webgpu()?;
    let shared = Tensor::zeros((4, 300), DType::F16, &device)?;
    std::thread::scope(|scope| {
        for row in 0..4 {
            let shared = &shared;
            scope.spawn(move || {
                for i in 0..50 {
                    let value = half::f16::from_f32((row * 100 + i) as f32);
                    let part = shared.narrow(0, row, 1)?;
                    part.const_set(candle_core::scalar::Scalar::F16(value))?;
                    let max = part.max_all()?.to_scalar::<half::f16>()?;
                    assert_eq!(max, value);
                }
                Ok::<_, candle_core::Error>(())
            });
        }
    });
    let want = [49., 149., 249., 349.].map(half::f16::from_f32);
    assert_eq!(shared.max(1)?.to_vec1::<half::f16>()?, want);
    assert_eq!(shared.min(1)?.to_vec1::<half::f16>()?, want);
    Ok(())
}

#[test]
fn memory_comes_back() -> Result<()> {
    let device = webgpu()?;
    let stats = || -> Result<_> { Ok(device.as_webgpu_device()?.stats()) };
    let kept = Tensor::ones(1000, DType::F32, &device)?;
    let before = stats()?;
    for i in 0..2000 {
        let t = Tensor::zeros(1 + i * 13 % 5000, DType::F32, &device)?;
        let t = (t + 1.)?;
        if i % 500 == 0 {
            assert_eq!(t.mean_all()?.to_scalar::<f32>()?, 1.);
        }
    }
    let after = stats()?;
    assert_eq!(after.live_bytes, before.live_bytes);
    // Buffers were reused: a few of each size instead of thousands.
    assert!(after.free_bytes < 4 << 20, "{after:?}");
    assert!(
        after.peak_bytes < before.live_bytes + (1 << 20),
        "{after:?}"
    );
    device.as_webgpu_device()?.trim()?;
    assert_eq!(stats()?.free_bytes, 0);
    assert_eq!(kept.sum_all()?.to_scalar::<f32>()?, 1000.);
    drop(kept);
    Ok(())
}

/// A buffer from the pool holds its previous user's contents; no tensor exposes them.
#[test]
fn reused_buffers_show_nothing_old() -> Result<()> {
    let device = webgpu()?;
    for dtype in DTYPES {
        for size in [1, 3, 63, 130] {
            drop(numbers(&[size], dtype)?.to_device(&device)?);
            let zeros = Tensor::zeros(size, dtype, &device)?;
            assert_same(&zeros, &Tensor::zeros(size, dtype, &Device::Cpu)?, "zeros")?;
            drop(numbers(&[size], dtype)?.to_device(&device)?.neg()?);
            // An upload into a buffer that pending dispatches still read.
            let old = numbers(&[size], dtype)?.to_device(&device)?;
            let doubled = (&old + &old)?;
            drop(old);
            let new = Tensor::ones(size, dtype, &Device::Cpu)?.to_device(&device)?;
            let cpu = numbers(&[size], dtype)?;
            assert_same(&doubled, &(&cpu + &cpu)?, "before the upload")?;
            assert_same(&new, &cpu.ones_like()?, "the upload")?;
        }
    }
    Ok(())
}

#[test]
fn a_seed_gives_the_same_numbers() -> Result<()> {
    let device = webgpu()?;
    let draw = || Tensor::randn(0f32, 1., 100, &device)?.to_vec1::<f32>();
    device.set_seed(7)?;
    let first = draw()?;
    assert_ne!(draw()?, first);
    device.set_seed(7)?;
    assert_eq!(draw()?, first);
    let other = webgpu()?;
    other.set_seed(7)?;
    assert_eq!(
        Tensor::randn(0f32, 1., 100, &other)?.to_vec1::<f32>()?,
        first
    );
    other.set_seed(8)?;
    assert_ne!(
        Tensor::randn(0f32, 1., 100, &other)?.to_vec1::<f32>()?,
        first
    );
    Ok(())
}

#[test]
fn asynchronous_reads_give_the_same() -> Result<()> {
    let device = webgpu()?;
    let t = numbers(&[4, 5, 6], DType::F32)?.to_device(&device)?.neg()?;
    let wait = |future| pollster::block_on(future);
    let flat = t.flatten_all()?;
    assert_eq!(wait(flat.to_vec1_async::<f32>())?, flat.to_vec1::<f32>()?);
    let row = t.get(2)?.t()?.get(3)?;
    assert_eq!(wait(row.to_vec1_async::<f32>())?, row.to_vec1::<f32>()?);
    let matrix = t.get(1)?.t()?;
    assert_eq!(
        pollster::block_on(matrix.to_vec2_async::<f32>())?,
        matrix.to_vec2::<f32>()?
    );
    assert_eq!(
        pollster::block_on(t.to_vec3_async::<f32>())?,
        t.to_vec3::<f32>()?
    );
    let sum = t.sum_all()?;
    assert_eq!(
        pollster::block_on(sum.to_scalar_async::<f32>())?,
        sum.to_scalar::<f32>()?
    );
    assert!(pollster::block_on(t.to_vec1_async::<f32>()).is_err());
    assert!(wait(flat.to_vec1_async::<f32>()).is_ok());
    assert!(pollster::block_on(flat.to_vec1_async::<u32>()).is_err());
    // Kernel errors are reported here as well.
    let zero = Tensor::zeros(1, DType::U32, &device)?;
    let error = message(pollster::block_on(zero.div(&zero)?.to_vec1_async::<u32>()));
    assert!(error.contains("zero"), "{error}");
    // The CPU has nothing to wait for.
    let cpu = numbers(&[3], DType::F32)?;
    assert_eq!(wait(cpu.to_vec1_async::<f32>())?, cpu.to_vec1::<f32>()?);
    Ok(())
}

#[test]
fn a_device_can_be_opened_without_blocking() -> Result<()> {
    let device = pollster::block_on(Device::new_webgpu_async(0))?;
    assert_eq!(
        Tensor::ones(1, DType::F32, &device)?.to_vec1::<f32>()?,
        [1.]
    );
    Ok(())
}

#[test]
fn stats_count_what_runs() -> Result<()> {
    let device = webgpu()?;
    let webgpu = device.as_webgpu_device()?;
    let t = Tensor::ones((3, 4), DType::F32, &device)?;
    device.synchronize()?;
    let before = webgpu.stats();
    let t = (t.exp()? + t)?.t()?;
    let after = webgpu.stats();
    assert_eq!(after.dispatches, before.dispatches + 2);
    assert_eq!(after.pipelines, before.pipelines + 2);
    // Two results, one of them alive.
    assert_eq!(after.live_bytes, before.live_bytes);
    assert!(after.peak_bytes > before.live_bytes);
    // Nothing is submitted before a read; a view costs nothing; known kernels are not compiled again.
    assert_eq!(after.submits, before.submits);
    let again = (t.t()?.exp()? + t.t()?)?;
    again.to_vec2::<f32>()?;
    let last = webgpu.stats();
    assert_eq!(last.dispatches, after.dispatches + 2);
    assert_eq!(last.pipelines, after.pipelines);
    assert_eq!(last.submits, after.submits + 1);
    Ok(())
}

/// No op silently runs on the CPU: all of these return tensors on the device.
#[test]
fn results_stay_on_the_device() -> Result<()> {
    let device = webgpu()?;
    let t = numbers(&[3, 4], DType::F32)?.to_device(&device)?;
    for result in [
        t.exp()?,
        (&t + 1.)?,
        t.gt(0.)?,
        t.sum(1)?,
        t.matmul(&t.t()?)?,
        t.to_dtype(DType::F16)?,
        t.copy()?,
        t.zeros_like()?,
        t.rand_like(0., 1.)?,
        t.flip(&[1])?,
        t.argmax(0)?,
        Tensor::cat(&[&t, &t], 0)?,
    ] {
        assert!(result.device().same_device(&device));
    }
    Ok(())
}
