//! The environment variables for GPU diagnostics. Each is read when a device is opened, so each test runs another test of this file, marked
//! as ignored, in a child process.

use std::process::{Command, Output};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    with_webgpu, CpuStorage, CudaStorage, CustomOp1, DType, Device, Error, InplaceOp1, Layout,
    Result, Shape, Tensor,
};

/// The variable with the name of the device that a child opens.
const DEVICE: &str = "CANDLE_TEST_DEVICE";

/// Runs the ignored test `name` with variables set. Returns its stderr, or stdout and stderr if it fails or does not run.
fn child(name: &str, env: &[(String, String)]) -> std::result::Result<String, String> {
    let program = std::env::current_exe().expect("this program has a path");
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program)
        .args([
            &format!("watch::{name}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .envs(env.iter().cloned())
        .output()
        .expect("this program starts again");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    let ran = stdout.contains("1 passed");
    if status.success() && ran {
        Ok(stderr.into_owned())
    } else {
        Err(format!("{stdout}\n{stderr}"))
    }
}

/// Opens the device of a child.
fn device() -> Result<Device> {
    match std::env::var(DEVICE).as_deref() {
        Ok("cuda") => Device::new_cuda(0),
        Ok("webgpu") => Device::new_webgpu(0),
        other => panic!("no device {other:?}"),
    }
}

/// Defines a test for each GPU backend of this build; it calls the function with the backend's lower-case name.
macro_rules! test_backends {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[cfg(feature = "cuda")]
            #[test]
            fn cuda() {
                super::$name("cuda");
            }

            #[cfg(feature = "webgpu")]
            #[test]
            fn webgpu() {
                super::$name("webgpu");
            }
        }
    )*};
}
test_backends!(
    log_names_every_launch,
    verify_finds_the_first_difference,
    a_fallback_is_requested_and_logged,
);

/// Returns the variables of a child: its device and, optionally, a switch.
fn with(backend: &str, switch: Option<&str>) -> Vec<(String, String)> {
    let mut env = vec![(DEVICE.to_string(), backend.to_string())];
    env.extend(switch.map(|switch| (variable(backend, switch), "1".to_string())));
    env
}

fn variable(backend: &str, switch: &str) -> String {
    format!("CANDLE_{}_{switch}", backend.to_uppercase())
}

/// `x + 1`; on a GPU one element is wrong.
struct Wrong;

/// Returns the CPU's result with that error.
fn wrong(copy: &CpuStorage, layout: &Layout) -> Result<(Vec<f32>, Shape)> {
    let (right, shape) = CustomOp1::cpu_fwd(&Wrong, copy, layout)?;
    let mut data = right.as_slice::<f32>()?.to_vec();
    data[3] = 100.;
    Ok((data, shape))
}

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

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (data, shape) = wrong(&storage.to_cpu_storage()?, layout)?;
        Ok((storage.device().storage_from_slice(&data)?, shape))
    }

    with_webgpu! {
        fn webgpu_fwd(
            &self,
            storage: &candle_core::WebGpuStorage,
            layout: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            let (data, shape) = wrong(&storage.to_cpu_storage()?, layout)?;
            Ok((storage.device().storage_from_slice(&data)?, shape))
        }
    }
}

/// The same, in place.
impl InplaceOp1 for Wrong {
    fn name(&self) -> &'static str {
        "wrong in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        (*storage, _) = CustomOp1::cpu_fwd(self, storage, layout)?;
        Ok(())
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        (*storage, _) = CustomOp1::cuda_fwd(self, storage, layout)?;
        Ok(())
    }

    with_webgpu! {
        fn webgpu_fwd(
            &self,
            storage: &mut candle_core::WebGpuStorage,
            layout: &Layout,
        ) -> Result<()> {
            (*storage, _) = CustomOp1::webgpu_fwd(self, storage, layout)?;
            Ok(())
        }
    }
}

/// `x + 1` with a CPU implementation only.
struct Absent;

fn unsupported<T>() -> Result<T> {
    Err(Error::UnsupportedOnDevice {
        op: "absent",
        dtype: DType::F32,
        device: "this device".into(),
        hint: "nobody wrote it".into(),
    })
}

impl CustomOp1 for Absent {
    fn name(&self) -> &'static str {
        "absent"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        CustomOp1::cpu_fwd(&Wrong, storage, layout)
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        unsupported()
    }

    with_webgpu! {
        fn webgpu_fwd(
            &self,
            _: &candle_core::WebGpuStorage,
            _: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            unsupported()
        }
    }
}

/// Runs ops of several kinds.
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
#[ignore = "run by log_names_every_launch"]
fn child_work() -> Result<()> {
    assert_eq!(work(&device()?)?.len(), 2);
    Ok(())
}

fn log_names_every_launch(backend: &str) {
    let log = child("child_work", &with(backend, Some("LOG"))).expect("the child passes");
    let line = |parts: &[&str]| {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(log.lines().any(has), "{parts:?} in\n{log}");
    };
    let (exp, launch) = match backend {
        "webgpu" => ("Map { function: \"exp\", from: F32", "workgroups"),
        _ => ("map F=f_exp SRC=f32", "blocks of"),
    };
    let begins = format!("{backend}: #");
    if backend == "webgpu" {
        // On CUDA the product may be a library call.
        let product = "matmul [2, 3] F32, [3, 4] F32 stride [1, 3] | Matmul";
        line(&[&begins, product, launch]);
    }
    let exp = format!("exp [2, 2] F32 stride [4, 1] offset 1 | {exp}");
    line(&[&begins, &exp, "1x1x1", launch]);
    line(&["index-add [2] F32, [3] U32, [3] F32 | "]);
    if timed(backend) {
        line(&[&begins, "#0 took", " us"]);
        let count = |text| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(count(launch), count(" took "), "{log}");
    }
    let silent = child("child_work", &with(backend, None)).expect("the child passes");
    assert!(!silent.contains(&format!("{backend}:")), "{silent}");
}

/// Returns whether the backend measures time.
fn timed(backend: &str) -> bool {
    #[cfg(feature = "webgpu")]
    if backend == "webgpu" {
        let adapters = candle_core::webgpu_backend::adapters();
        return adapters[0]
            .features
            .iter()
            .any(|name| name == "TIMESTAMP_QUERY");
    }
    backend == "cuda"
}

#[cfg(feature = "webgpu")]
#[test]
fn dumped_shaders_are_what_runs_webgpu() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("shaders");
    let text = path.to_str().expect("a path in UTF-8");
    let mut env = with("webgpu", None);
    env.push((variable("webgpu", "DUMP_SHADERS"), text.to_string()));
    child("child_work", &env).expect("the child passes");
    let mut names = vec![];
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        let shader = std::fs::read_to_string(entry.path())?;
        let module = naga::front::wgsl::parse_str(&shader)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&shader)));
        assert_eq!(module.entry_points.len(), 1);
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    for kernel in ["Matmul", "exp_from_F32", "Sum_from_F32", "Scatter"] {
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
    let (device, again) = (device()?, device()?);
    // Correct results pass, and so do a device's own errors.
    assert_eq!(work(&device)?, work(&again)?);
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
            "_VERIFY: wrong",
            op,
            "[2, 3] F32",
            "element 3",
            "100",
            "4 on the CPU",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
    Ok(())
}

fn verify_finds_the_first_difference(backend: &str) {
    child("child_verify", &with(backend, Some("VERIFY"))).expect("the child passes");
    // Without the switch nothing is verified.
    let failure = child("child_verify", &with(backend, None)).expect_err("no difference is found");
    assert!(
        failure.contains("a difference") || failure.contains("out of range"),
        "{failure}"
    );
}

#[test]
#[ignore = "run by a_fallback_is_requested_and_logged"]
fn child_fallback() -> Result<()> {
    let t = Tensor::arange(0f32, 12., &device()?)?.reshape((3, 4))?;
    let here = t.apply_op1_no_bwd(&Absent)?;
    assert!(here.device().same_device(t.device()));
    let want: Vec<f32> = (1..13).map(|i| i as f32).collect();
    assert_eq!(here.flatten_all()?.to_vec1::<f32>()?, want);
    Ok(())
}

fn a_fallback_is_requested_and_logged(backend: &str) {
    let log = child("child_fallback", &with(backend, Some("FALLBACK"))).expect("the child passes");
    let warning = format!("{backend}: warning: absent [3, 4] F32 runs on the CPU");
    assert!(log.contains(&warning), "{log}");
    let failure =
        child("child_fallback", &with(backend, None)).expect_err("nothing falls back unasked");
    assert!(
        failure.contains("absent") && failure.contains("F32"),
        "{failure}"
    );
}
