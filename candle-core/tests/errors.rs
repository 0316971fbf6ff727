//! Contents of error messages: the op, and the shapes, dtypes or devices that do not fit; and, with `RUST_BACKTRACE=1`, the origin.

use std::process::Command;

use candle_core::{
    bail, safetensors, Context, CpuStorage, CustomOp1, DType, Device, Error, IndexOp,
};
use candle_core::{Layout, Result, Shape, Tensor, Var, D};

/// A kind of misuse, its result, and the parts that the message must contain.
type Case = (&'static str, Result<()>, &'static [&'static str]);

/// An op with a CPU implementation only.
struct Double;

impl CustomOp1 for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let doubled =
            candle_core::cpu_backend::unary_map(storage.as_slice::<f32>()?, layout, |v| 2. * v);
        Ok((CpuStorage::F32(doubled), layout.shape().clone()))
    }
}

trait Discard {
    fn discard(self) -> Result<()>;
}

impl<T> Discard for Result<T> {
    fn discard(self) -> Result<()> {
        self.map(|_| ())
    }
}

macro_rules! cases {
    ($($what:literal: $result:expr => [$($part:literal),+];)+) => {
        vec![$(($what, Discard::discard($result), &[$($part),+] as &[_])),+]
    };
}

/// Returns every kind of misuse of tensors on one device.
fn misuse(device: &Device) -> Result<Vec<Case>> {
    let m23 = Tensor::zeros((2, 3), DType::F32, device)?;
    let m45 = Tensor::zeros((4, 5), DType::F32, device)?;
    let v3 = Tensor::zeros(3, DType::F32, device)?;
    let half = m23.to_dtype(DType::F16)?;
    let ids = Tensor::new(&[0u32, 7], device)?;
    let ids22 = Tensor::zeros((2, 2), DType::U32, device)?;
    let image = Tensor::zeros((1, 3, 5, 6), DType::F32, device)?;
    let empty = Tensor::zeros((2, 0), DType::F32, device)?;
    let var = Var::zeros((2, 3), DType::F32, device)?;
    Ok(cases! {
        "add, shapes": &m23 + &m45 => ["add", "[2, 3]", "[4, 5]"];
        "sub, dtypes": &m23 - &half => ["sub", "F32", "F16"];
        "maximum, shapes": m23.maximum(&m45) => ["maximum", "[2, 3]", "[4, 5]"];
        "comparison, shapes": m23.lt(&m45) => ["cmp", "[2, 3]", "[4, 5]"];
        "broadcast_mul": m23.broadcast_mul(&m45) => ["broadcast_mul", "[2, 3]", "[4, 5]"];
        "broadcast_as": m23.broadcast_as((4, 5)) => ["broadcast", "[2, 3]", "[4, 5]"];
        "expand": m23.expand((4, 5)) => ["[2, 3]", "[4, 5]"];
        "where_cond, shapes": ids22.where_cond(&m23, &m45) => ["where_cond", "[2, 2]", "[2, 3]"];
        "where_cond, condition": m23.where_cond(&m23, &m23) => ["where_cond", "F32"];
        "matmul, shapes": m23.matmul(&m45) => ["matmul", "[2, 3]", "[4, 5]"];
        "matmul, rank": m23.matmul(&v3) => ["matmul", "[2, 3]", "[3]"];
        "matmul, dtypes": m23.matmul(&half.t()?) => ["matmul", "F32", "F16"];
        "broadcast_matmul": m23.broadcast_matmul(&m45) => ["matmul", "[2, 3]", "[4, 5]"];
        "mv": v3.mv(&v3) => ["2", "1", "[3]"];
        "dot": v3.dot(&m23) => ["1", "2", "[2, 3]"];
        "reshape": m23.reshape((4, 5)) => ["reshape", "[2, 3]", "[4, 5]"];
        "reshape with a hole": m23.reshape(((), 4)) => ["6", "4"];
        "transpose": m23.transpose(0, 2) => ["transpose", "2", "[2, 3]"];
        "permute": m23.permute((0, 0)) => ["permute", "[0, 0]", "[2, 3]"];
        "t": v3.t() => ["[3]", "2"];
        "narrow": m23.narrow(1, 2, 2) => ["narrow", "1", "[2, 3]", "start 2", "length 2"];
        "chunk": m23.chunk(0, 0) => ["chunk", "[2, 3]", "0"];
        "squeeze": m23.squeeze(2) => ["squeeze", "2", "[2, 3]"];
        "unsqueeze": m23.unsqueeze(3) => ["unsqueeze", "3", "[2, 3]"];
        "flatten": m23.flatten(1, 2) => ["flatten", "2", "[2, 3]"];
        "a dimension from the end": m23.sum(D::Minus(3)) => ["sum", "-3", "[2, 3]"];
        "cat, shapes": Tensor::cat(&[&m23, &m45], 0) => ["cat", "argument 1", "[2, 3]", "[4, 5]"];
        "cat, dtypes": Tensor::cat(&[&m23, &half], 0) => ["cat", "F32", "F16"];
        "cat of nothing": Tensor::cat::<&Tensor, _>(&[], 0) => ["cat", "one tensor"];
        "stack": Tensor::stack(&[&m23, &m45], 0) => ["stack", "[2, 3]", "[4, 5]"];
        "roll": m23.roll(1, 2) => ["roll", "2", "[2, 3]"];
        "flip": m23.flip(&[2]) => ["flip", "2", "[2, 3]"];
        "unfold": m23.unfold(1, 4, 1) => ["unfold", "4", "[2, 3]"];
        "pad_with_same": empty.pad_with_same(1, 1, 0) => ["pad_with_same", "[2, 0]"];
        "sum": m23.sum(2) => ["sum", "2", "[2, 3]"];
        "sum, twice one dimension": m23.sum((1, 1)) => ["sum", "[1, 1]", "[2, 3]"];
        "max of nothing": empty.max(1) => ["max"];
        "argmin of nothing": empty.argmin(1) => ["argmin"];
        "gather, shapes": m23.gather(&ids, 1) => ["gather", "[2, 3]", "[2]"];
        "index_select, ids": m23.index_select(&ids22, 0) => ["1", "2", "[2, 2]"];
        "index_add, shapes": m23.index_add(&ids, &m45, 0) => ["index-add", "[2, 3]", "[4, 5]"];
        "scatter, shapes": m23.scatter(&ids22, &m23, 1) => ["scatter", "[2, 2]", "[2, 3]"];
        "scatter_add, dtypes": m23.scatter_add(&ids22, &half, 1) => ["scatter-add", "F32", "F16"];
        "slice_set, shapes": m23.slice_set(&m45, 0, 0) => ["slice-set", "[2, 3]", "[4, 5]"];
        "slice_set, strides": m23.t()?.slice_set(&v3.reshape((3, 1))?, 1, 0) => ["slice-set", "contiguous"];
        "slice_set, itself": m23.slice_set(&m23, 0, 0) => ["slice-set", "storage"];
        "slice_scatter": m23.slice_scatter(&m23, 1, 1) => ["slice-scatter", "dimension 1", "[2, 3]"];
        "slice_assign": m23.slice_assign(&[0..2, 0..9], &m23) => ["slice-assign", "dimension 1", "9", "3"];
        "embedding": v3.embedding(&ids) => ["2", "1", "[3]"];
        "i": m23.i(2) => ["2", "[2, 3]"];
        "get_on_dim": m23.get_on_dim(2, 0) => ["get_on_dim", "2", "[2, 3]"];
        "to_scalar": m23.to_scalar::<f32>() => ["0", "2", "[2, 3]"];
        "to_vec1, rank": m23.to_vec1::<f32>() => ["1", "2", "[2, 3]"];
        "to_vec2, dtype": m23.to_vec2::<u32>() => ["U32", "F32"];
        "dims3": m23.dims3() => ["3", "2", "[2, 3]"];
        "from_vec": Tensor::from_vec(vec![1f32; 5], (2, 3), device) => ["5", "6", "[2, 3]"];
        "from_raw_buffer": Tensor::from_raw_buffer(&[0; 5], DType::F32, &[2], device) => ["5 bytes", "f32", "[2]"];
        "arange": Tensor::arange_step(0f32, 1., 0., device) => ["arange", "0"];
        "meshgrid": Tensor::meshgrid(&[&v3], false) => ["meshgrid", "two"];
        "const_set": m23.const_set(candle_core::scalar::Scalar::U8(1)) => ["const_set", "F32", "U8"];
        "var.set": var.set(&m45) => ["[2, 3]", "[4, 5]"];
        "conv1d, channels": m23.reshape((1, 2, 3))?.conv1d(&m23.reshape((2, 3, 1))?, 0, 1, 1, 1)
            => ["conv1d", "[1, 2, 3]", "[2, 3, 1]"];
        "conv2d, groups": image.conv2d(&image, 0, 1, 1, 2) => ["conv2d", "[1, 3, 5, 6]", "groups"];
        "conv_transpose2d, channels": image.conv_transpose2d(&m45.reshape((4, 5, 1, 1))?, 0, 0, 1, 1)
            => ["conv_transpose2d", "[1, 3, 5, 6]", "[4, 5, 1, 1]"];
        "max_pool2d": image.max_pool2d(0) => ["max_pool2d", "[1, 3, 5, 6]", "0"];
        "upsample_nearest2d": m23.upsample_nearest2d(2, 2) => ["4", "2", "[2, 3]"];
        "backward of an op that has none": {
            let squares = var.apply_op1(Double).and_then(|t| t.sum_all());
            squares.and_then(|t| t.backward())
        } => ["double"];
        // No machine has this many cards.
        "CUDA": Device::new_cuda(1000) => ["CUDA"];
        "Metal": Device::new_metal(4096) => ["Metal"];
    })
}

/// Returns misuse that only the CPU reports: it supports all dtypes, and checks indexes before it returns.
fn misuse_on_the_cpu() -> Result<Vec<Case>> {
    let device = &Device::Cpu;
    let m23 = Tensor::zeros((2, 3), DType::F32, device)?;
    let ids = Tensor::new(&[0u32, 7], device)?;
    let ints = Tensor::new(&[[1u32, 2], [3, 4]], device)?;
    Ok(cases! {
        "index_select, index": m23.index_select(&ids, 0) => ["index-select", "7", "2"];
        "gather, index": m23.gather(&ids.reshape((2, 1))?, 1) => ["gather", "7", "3"];
        "index_add, index": m23.index_add(&ids, &m23, 0) => ["index-add", "7", "2"];
        "ids of floats": m23.index_select(&Tensor::new(&[0f32], device)?, 0) => ["index", "F32"];
        "exp of integers": ints.exp() => ["exp", "U32"];
        "affine of a container": Tensor::zeros(2, DType::F4, device).and_then(|t| t * 2.) => ["F4"];
        "division by zero": ints.div(&ints.zeros_like()?) => ["zero"];
        "rand of integers": Tensor::zeros(2, DType::U8, device).and_then(|t| t.rand_like(0., 1.)) => ["rand", "U8"];
        "a file that is not there": safetensors::load("no/such/file.safetensors", device) => ["no/such/file.safetensors"];
        "bail!": (|| -> Result<()> { bail!("{} of {}", 1, 2) })() => ["1 of 2"];
        "context of nothing": None::<u32>.context("no vocabulary size") => ["no vocabulary size"];
        "context of an error": "x".parse::<i32>().context("layers") => ["layers", "invalid digit"];
        "Error::msg": Err::<(), _>(Error::msg("a message")) => ["a message"];
        "Error::wrap": Err::<(), _>(Error::wrap("a value")) => ["a value"];
        "Error::debug": Err::<(), _>(Error::debug(Some(3))) => ["Some(3)"];
        "with_path": Err::<(), _>(Error::msg("a message").with_path("a/file")) => ["a/file", "a message"];
        "Error::context": Err::<(), _>(Error::msg("a message").context("doing this")) => ["doing this", "a message"];
    })
}

/// Returns the message without the backtrace that the environment may enable.
fn message(error: &Error) -> String {
    let text = error.to_string();
    let frame = |line: &&str| line.trim_start().starts_with("0: ");
    let lines: Vec<_> = text.lines().take_while(|line| !frame(line)).collect();
    lines.join("\n")
}

fn check(cases: Vec<Case>) {
    let mut incomplete = vec![];
    for (what, result, parts) in cases {
        let Err(error) = result else {
            incomplete.push(format!("{what}: not an error"));
            continue;
        };
        let text = message(&error);
        for part in parts.iter().filter(|part| !text.contains(**part)) {
            incomplete.push(format!("{what}: {part:?} is not in {text:?}"));
        }
        assert_eq!(error.to_string(), format!("{error:?}"), "{what}");
    }
    assert!(incomplete.is_empty(), "{}", incomplete.join("\n"));
}

fn messages_name_what_does_not_fit(device: &Device) -> Result<()> {
    check(misuse(device)?);
    Ok(())
}

candle_core::test_device!(messages_name_what_does_not_fit);

#[test]
fn messages_of_the_cpu_name_what_does_not_fit() -> Result<()> {
    check(misuse_on_the_cpu()?);
    Ok(())
}

/// The environment is read once per process, so each setting runs this test in a child process.
#[test]
fn errors_have_a_backtrace_where_the_environment_asks_for_one() -> Result<()> {
    const CHILD: &str = "CANDLE_CORE_TEST_BACKTRACES";
    let Ok(expected) = std::env::var(CHILD) else {
        for setting in ["0", "1"] {
            let child = Command::new(std::env::current_exe()?)
                .args([
                    "errors_have_a_backtrace_where_the_environment_asks_for_one",
                    "--nocapture",
                ])
                .env(CHILD, setting)
                .env("RUST_BACKTRACE", setting)
                .env_remove("RUST_LIB_BACKTRACE")
                .output()?;
            let text = String::from_utf8_lossy(&child.stdout).into_owned();
            let log = String::from_utf8_lossy(&child.stderr);
            assert!(
                child.status.success() && text.contains("1 passed"),
                "{text}\n{log}"
            );
        }
        return Ok(());
    };
    for (what, result, _) in misuse(&Device::Cpu)?
        .into_iter()
        .chain(misuse_on_the_cpu()?)
    {
        let text = result.expect_err(what).to_string();
        // A build that lacks a backend always reports that; the location of the call is irrelevant.
        let has = text
            .lines()
            .any(|line| line.trim_start().starts_with("0: "));
        let lacks = what == "Metal" || (what == "CUDA" && !cfg!(feature = "cuda"));
        let wanted = expected == "1" && !lacks;
        assert_eq!(has, wanted, "{what}: {text}");
    }
    Ok(())
}

/// An error that got its backtrace in an inner call does not get a second one in an outer call.
#[test]
fn backtraces_do_not_pile_up() {
    let once = Error::msg("once").to_string();
    let frames = |text: &str| {
        text.lines()
            .filter(|line| line.trim_start().starts_with("0: "))
            .count()
    };
    let error = Error::msg("once").bt().with_path("file").context("doing");
    assert_eq!(frames(&error.bt().to_string()), frames(&once));
}

/// An op without a WebGPU kernel for a dtype fails before anything runs, and the error contains the location of the call.
#[cfg(feature = "webgpu")]
#[test]
fn what_webgpu_lacks_names_op_dtype_and_device() -> Result<()> {
    let device = &Device::new_webgpu(0)?;
    let name = device.as_webgpu_device()?.name().to_string();
    let line = Tensor::zeros((1, 2, 5), DType::U32, device)?;
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let op = "upsample_bilinear2d";
        let image = Tensor::zeros((1, 2, 5, 6), dtype, device)?;
        let result = image.upsample_bilinear2d(9, 9, false);
        let error = result.expect_err(op);
        let inner = match &error {
            Error::WithBacktrace { inner, .. } => inner,
            other => other,
        };
        assert!(
            matches!(inner, Error::UnsupportedOnDevice { .. }),
            "{op}: {error}"
        );
        let text = error.to_string();
        assert!(
            text.contains(op) && text.contains(&format!("{dtype:?}")) && text.contains(&name),
            "{op}: {text}"
        );
    }
    let error = line
        .apply_op1_no_bwd(&Double)
        .expect_err("no WebGPU implementation")
        .to_string();
    assert!(
        error.contains("double") && error.contains("WebGPU"),
        "{error}"
    );
    Ok(())
}
