//! The switches of the environment that look into the WebGPU device. Each is read when a device is opened, so each test
//! here runs another one of this file, marked as ignored, in a separate process.

use std::process::{Command, Output};

use candle_core::{
    webgpu_backend, CpuStorage, CustomOp1, DType, Device, InplaceOp1, Layout, Result, Shape,
    Tensor, WebGpuStorage,
};

/// Runs the ignored test `name` with variables set; `Ok` is what it wrote to stderr.
fn child(name: &str, env: &[(&str, &str)]) -> std::result::Result<String, String> {
    let program = std::env::current_exe().expect("this program has a path");
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program)
        .args([
            &format!("debug::{name}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .envs(env.iter().copied())
        .output()
        .expect("this program starts again");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    let ran = stdout.contains("1 passed");
    match status.success() && ran {
        true => Ok(stderr.into_owned()),
        false => Err(format!("{stdout}\n{stderr}")),
    }
}

fn webgpu() -> Result<Device> {
    Device::new_webgpu(0)
}

/// `x + 1`, but on WebGPU for one element.
struct Wrong;

impl CustomOp1 for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout.contiguous_offsets().expect("a contiguous argument");
        let data = storage.as_slice::<f32>()?[start..end]
            .iter()
            .map(|x| x + 1.);
        Ok((CpuStorage::F32(data.collect()), layout.shape().clone()))
    }

    fn webgpu_fwd(
        &self,
        storage: &WebGpuStorage,
        layout: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        use candle_core::backend::{BackendDevice, BackendStorage};
        let (cpu, shape) = CustomOp1::cpu_fwd(self, &storage.to_cpu_storage()?, layout)?;
        let mut data = cpu.as_slice::<f32>()?.to_vec();
        data[3] = 100.;
        Ok((storage.device().storage_from_slice(&data)?, shape))
    }
}

/// The same in place.
impl InplaceOp1 for Wrong {
    fn name(&self) -> &'static str {
        "wrong in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        (*storage, _) = CustomOp1::cpu_fwd(self, storage, layout)?;
        Ok(())
    }

    fn webgpu_fwd(&self, storage: &mut WebGpuStorage, layout: &Layout) -> Result<()> {
        (*storage, _) = CustomOp1::webgpu_fwd(self, storage, layout)?;
        Ok(())
    }
}

/// Ops of several kinds.
fn work(device: &Device) -> Result<Vec<f32>> {
    let lhs = Tensor::arange(0f32, 6., device)?.reshape((2, 3))?;
    let rhs = Tensor::ones((4, 3), DType::F32, device)?.t()?;
    let product = lhs.matmul(&rhs)?.narrow(1, 1, 2)?;
    let sum = (product.exp()? + 1.)?.log()?.sum(1)?;
    let ids = Tensor::new(&[1u32, 0, 1], device)?;
    sum.index_add(&ids, &ids.to_dtype(DType::F32)?, 0)?
        .to_vec1()
}

#[test]
#[ignore = "run by log_names_every_dispatch"]
fn child_work() -> Result<()> {
    assert_eq!(work(&webgpu()?)?.len(), 2);
    Ok(())
}

#[test]
fn log_names_every_dispatch_webgpu() {
    let log = child("child_work", &[("CANDLE_WEBGPU_LOG", "1")]).expect("the child passes");
    let line = |parts: &[&str]| {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(log.lines().any(has), "{parts:?} in\n{log}");
    };
    line(&[
        "matmul [2, 3] F32, [3, 4] F32 stride [1, 3] | matmul_",
        "workgroups",
    ]);
    line(&[
        "exp [2, 2] F32 stride [4, 1] offset 1 | exp F32",
        "1x1x1 workgroups",
    ]);
    line(&["index-add [2] F32, [3] U32, [3] F32 | scatter"]);
    let timestamps = webgpu_backend::adapters()[0]
        .features
        .iter()
        .any(|name| name == "TIMESTAMP_QUERY");
    if timestamps {
        line(&["#0 took", " us"]);
        let count = |text| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(count("workgroups"), count(" took "), "{log}");
    }
    let silent = child("child_work", &[]).expect("the child passes");
    assert!(!silent.contains("webgpu:"), "{silent}");
}

#[test]
fn dumped_shaders_are_what_runs_webgpu() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("shaders");
    let text = path.to_str().expect("a path in UTF-8");
    child("child_work", &[("CANDLE_WEBGPU_DUMP_SHADERS", text)]).expect("the child passes");
    let mut names = vec![];
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        let shader = std::fs::read_to_string(entry.path())?;
        let module = naga::front::wgsl::parse_str(&shader)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&shader)));
        assert_eq!(module.entry_points.len(), 1);
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    for kernel in ["matmul", "exp_F32", "sum_F32", "scatter"] {
        assert!(
            names.iter().any(|name| name.contains(kernel)),
            "{kernel} in {names:?}"
        );
    }
    Ok(())
}

#[test]
#[ignore = "run by verify_finds_the_first_difference"]
fn child_verify() -> Result<()> {
    let device = webgpu()?;
    let name = device.as_webgpu_device()?.name().to_string();
    // What is right passes, and so do a device's own errors.
    assert_eq!(work(&device)?, work(&webgpu()?)?);
    let ids = Tensor::new(&[7u32], &device)?;
    let t = Tensor::arange(0f32, 6., &device)?;
    let error = t
        .index_select(&ids, 0)
        .expect_err("out of range")
        .to_string();
    assert!(
        error.contains("index-select") && error.contains('7'),
        "{error}"
    );
    let t = t.reshape((2, 3))?;
    for (op, result) in [
        ("wrong", t.apply_op1_no_bwd(&Wrong).map(|_| ())),
        ("wrong in place", t.inplace_op1(&Wrong)),
    ] {
        let error = result.expect_err("a difference").to_string();
        for part in [
            "CANDLE_WEBGPU_VERIFY",
            op,
            "[2, 3] F32",
            "element 3",
            "100",
            "4 on the CPU",
            &name,
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
    Ok(())
}

#[test]
fn verify_finds_the_first_difference_webgpu() {
    child("child_verify", &[("CANDLE_WEBGPU_VERIFY", "1")]).expect("the child passes");
    // Without the switch nobody looks.
    let failure = child("child_verify", &[]).expect_err("no difference is found");
    assert!(
        failure.contains("a difference") || failure.contains("out of range"),
        "{failure}"
    );
}

#[test]
#[ignore = "run by a_fallback_is_asked_for_and_logged"]
fn child_fallback() -> Result<()> {
    let resized = |device: &Device| -> Result<Tensor> {
        let t = Tensor::arange(0u8, 12, device)?.reshape((1, 1, 3, 4))?;
        t.upsample_bilinear2d(5, 5, true)
    };
    let here = resized(&webgpu()?)?;
    assert!(here.device().is_webgpu());
    let want = resized(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?;
    assert_eq!(here.flatten_all()?.to_vec1::<u8>()?, want);
    Ok(())
}

#[test]
fn a_fallback_is_asked_for_and_logged_webgpu() {
    let log =
        child("child_fallback", &[("CANDLE_WEBGPU_FALLBACK", "1")]).expect("the child passes");
    let warning = "warning: upsample_bilinear2d [1, 1, 3, 4] U8 runs on the CPU";
    assert!(log.contains(warning), "{log}");
    let failure = child("child_fallback", &[]).expect_err("nothing falls back unasked");
    assert!(
        failure.contains("upsample_bilinear2d") && failure.contains("U8"),
        "{failure}"
    );
}
