//! Debugging of GPU ops. Every op passes through here before it reaches a backend, with its operands and the same op for the CPU. Logging,
//! verifying and falling back are therefore written once, for every backend that has switches ([`Watched`]).
//!
//! The switches are read from the environment when a device is opened. If none is set, an op is forwarded directly.

use std::cell::RefCell;
use std::fmt::Write;

use crate::backend::{BackendDevice, BackendStorage};
use crate::{CpuStorage, DType, Error, Layout, Result};

/// The switches set in the environment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Switches {
    /// `CANDLE_CUDA_LOG`, `CANDLE_WEBGPU_LOG`: every launch, with the op that it belongs to.
    pub(crate) log: bool,
    /// `.._VERIFY`: runs every op on the CPU too.
    verify: bool,
    /// `.._FALLBACK`: runs ops that the device does not support on the CPU.
    fallback: bool,
}

impl Switches {
    /// The switches of the backend of this name.
    #[cfg(any(feature = "webgpu", feature = "cuda"))]
    pub(crate) fn from_env(backend: &str) -> Self {
        let set = |what| switch(&variable(backend, what)).unwrap_or(false);
        Self {
            log: set("LOG"),
            verify: set("VERIFY"),
            fallback: set("FALLBACK"),
        }
    }

    /// The switches with only the log enabled.
    #[cfg(feature = "cuda")]
    pub(crate) fn without_results(self) -> Self {
        Self {
            log: self.log,
            ..Self::default()
        }
    }

    fn any(self) -> bool {
        self.log || self.verify || self.fallback
    }
}

/// Whether an environment switch is set: to a value other than the empty one and `0`.
#[cfg(any(feature = "webgpu", feature = "cuda"))]
pub(crate) fn switch(name: &str) -> Option<bool> {
    std::env::var(name)
        .ok()
        .map(|value| !matches!(value.as_str(), "" | "0"))
}

/// The name of a switch: `CANDLE_CUDA_VERIFY`.
fn variable(backend: &str, what: &str) -> String {
    format!("CANDLE_{}_{what}", backend.to_uppercase())
}

/// A GPU's storage with its debugging switches. A backend that is absent from a build, or has no switches, keeps the defaults.
pub(crate) trait Watched: BackendStorage<Device: BackendDevice<Storage = Self>> {
    /// In lower case: the prefix of log lines.
    const NAME: &'static str;

    /// The switches of the storage's device.
    fn switches(&self) -> Switches {
        Switches::default()
    }

    /// The device's name, as its vendor reports it.
    fn device_name(&self) -> &str {
        Self::NAME
    }

    /// The backend's error for a result that differs from the CPU's.
    fn failure(text: String) -> Error {
        Error::Msg(text).bt()
    }
}

#[cfg(not(feature = "cuda"))]
impl Watched for crate::CudaStorage {
    const NAME: &'static str = "cuda";
}

#[cfg(not(feature = "metal"))]
impl Watched for crate::MetalStorage {
    const NAME: &'static str = "metal";
}

thread_local! {
    /// The current op of this thread with its operands, as text.
    static CURRENT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The current op of the calling thread, for the log; empty outside of one.
#[cfg(any(feature = "webgpu", feature = "cuda"))]
pub(crate) fn current() -> String {
    CURRENT.with_borrow(String::clone)
}

/// Prints a line for the user who set a switch.
pub(crate) fn report(backend: &str, line: &str) {
    eprintln!("{backend}: {line}");
}

/// Sets [`CURRENT`] during its lifetime. Ops nest: one may be composed of others.
struct Scope(String);

impl Scope {
    fn enter(call: &str) -> Self {
        Self(CURRENT.replace(call.to_string()))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.0));
    }
}

type Operand<'a, S> = (&'a S, &'a Layout);

/// `matmul [2, 3] F32, [3, 4] F32 stride [1, 3] offset 5`
fn call(op: &str, operands: &[(DType, &Layout)]) -> String {
    let mut text = op.to_string();
    for (i, (dtype, layout)) in operands.iter().enumerate() {
        let separator = if i == 0 { " " } else { ", " };
        let _ = write!(text, "{separator}{:?} {dtype:?}", layout.dims());
        if !layout.is_contiguous() {
            let _ = write!(text, " stride {:?}", layout.stride());
        }
        if layout.start_offset() > 0 {
            let _ = write!(text, " offset {}", layout.start_offset());
        }
    }
    text
}

/// Whether the error says that the device does not support an op.
fn is_unsupported(error: &Error) -> bool {
    match error {
        Error::UnsupportedOnDevice { .. } => true,
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } => is_unsupported(inner),
        _ => false,
    }
}

/// Runs an op that returns a new storage.
pub(crate) fn map<S: Watched, const N: usize>(
    op: &str,
    operands: [Operand<'_, S>; N],
    on_device: impl FnOnce() -> Result<S>,
    on_cpu: impl FnOnce([&CpuStorage; N]) -> Result<CpuStorage>,
) -> Result<S> {
    let device = operands[0].0.device();
    let switches = operands[0].0.switches();
    if !switches.any() {
        return on_device();
    }
    let call = call(
        op,
        &operands.map(|(storage, layout)| (storage.dtype(), layout)),
    );
    let scope = Scope::enter(&call);
    let result = on_device();
    drop(scope);
    let on_cpu = || {
        let copies = to_cpu(&operands)?;
        on_cpu(copies.each_ref())
    };
    match result {
        Err(error) if switches.fallback && is_unsupported(&error) => {
            report(
                S::NAME,
                &format!("warning: {call} runs on the CPU: {error}"),
            );
            device.storage_from_cpu_storage_owned(on_cpu()?)
        }
        Ok(result) if switches.verify => {
            let got = result.to_cpu_storage()?;
            compare(&call, result.device_name(), &operands, &got, on_cpu())?;
            Ok(result)
        }
        result => result,
    }
}

/// Whether ops on this device are logged, verified or may fall back.
pub(crate) fn watches<S: Watched>(storage: &S) -> bool {
    storage.switches().any()
}

/// Runs an op that changes `dst`, if [`watches`] returns true.
pub(crate) fn change<S: Watched, const N: usize>(
    op: &str,
    (dst, dst_l): (&mut S, &Layout),
    operands: [Operand<'_, S>; N],
    on_device: impl FnOnce(&mut S) -> Result<()>,
    on_cpu: impl FnOnce(&mut CpuStorage, [&CpuStorage; N]) -> Result<()>,
) -> Result<()> {
    let device = dst.device().clone();
    let switches = dst.switches();
    let mut layouts = vec![(dst.dtype(), dst_l)];
    layouts.extend(operands.map(|(storage, layout)| (storage.dtype(), layout)));
    let call = call(op, &layouts);
    // A copy from before the change.
    let before = if switches.verify || switches.fallback {
        Some(dst.to_cpu_storage()?)
    } else {
        None
    };
    let scope = Scope::enter(&call);
    let result = on_device(dst);
    drop(scope);
    let Some(mut cpu) = before else {
        return result;
    };
    let on_cpu = || {
        let copies = to_cpu(&operands)?;
        on_cpu(&mut cpu, copies.each_ref())?;
        Ok(cpu)
    };
    match result {
        Err(error) if switches.fallback && is_unsupported(&error) => {
            report(
                S::NAME,
                &format!("warning: {call} runs on the CPU: {error}"),
            );
            *dst = device.storage_from_cpu_storage_owned(on_cpu()?)?;
            Ok(())
        }
        Ok(()) if switches.verify => {
            let got = dst.to_cpu_storage()?;
            compare(&call, dst.device_name(), &operands, &got, on_cpu())
        }
        result => result,
    }
}

fn to_cpu<S: Watched, const N: usize>(operands: &[Operand<'_, S>; N]) -> Result<[CpuStorage; N]> {
    let mut copies = Vec::with_capacity(N);
    for (storage, _) in operands {
        copies.push(storage.to_cpu_storage()?);
    }
    copies
        .try_into()
        .map_err(|_| Error::Msg("as many copies as operands".into()))
}

/// The elements as f64.
fn numbers(storage: &CpuStorage) -> Result<Vec<f64>> {
    let count = match storage {
        CpuStorage::U8(v) => v.len(),
        CpuStorage::U32(v) => v.len(),
        CpuStorage::I16(v) => v.len(),
        CpuStorage::I32(v) => v.len(),
        CpuStorage::I64(v) => v.len(),
        CpuStorage::BF16(v) => v.len(),
        CpuStorage::F16(v) => v.len(),
        CpuStorage::F32(v) => v.len(),
        CpuStorage::F64(v) => v.len(),
        CpuStorage::F8E4M3(v) => v.len(),
        other => crate::bail!("{:?} has no numbers", other.dtype()),
    };
    match storage.to_dtype(&Layout::contiguous(count), DType::F64)? {
        CpuStorage::F64(numbers) => Ok(numbers),
        other => crate::bail!("requested F64, got {:?}", other.dtype()),
    }
}

/// Tolerance for a result of `dtype`: relative to the result, and in units of the product of its operands' greatest elements, for sums that
/// cancel.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-9, 1e-12),
        DType::F32 => (1e-4, 1e-6),
        DType::F16 => (2f64.powi(-9), 2f64.powi(-10)),
        DType::BF16 => (2f64.powi(-6), 2f64.powi(-7)),
        DType::F8E4M3 => (2f64.powi(-2), 2f64.powi(-3)),
        _ => (0., 0.),
    }
}

/// An error at the first element that differs from the CPU's.
fn compare<S: Watched>(
    call: &str,
    device: &str,
    operands: &[Operand<'_, S>],
    got: &CpuStorage,
    want: Result<CpuStorage>,
) -> Result<()> {
    let verify = variable(S::NAME, "VERIFY");
    let fail = |what: String| Err(S::failure(format!("{verify}: {call}: {what}")));
    let want = match want {
        Ok(want) => want,
        Err(error) => {
            report(
                S::NAME,
                &format!("cannot verify {call}: the CPU reports: {error}"),
            );
            return Ok(());
        }
    };
    if got.dtype() != want.dtype() {
        return fail(format!(
            "{:?} on {device}, {:?} on the CPU",
            got.dtype(),
            want.dtype()
        ));
    }
    let (relative, of_operands) = tolerance(got.dtype());
    let mut slack = f64::from(f32::MIN_POSITIVE);
    if of_operands > 0. {
        let mut scale = 1f64;
        for (storage, _) in operands {
            if storage.dtype().is_float() {
                let finite = numbers(&storage.to_cpu_storage()?)?.into_iter();
                let finite = finite.map(f64::abs).filter(|v| v.is_finite());
                scale *= finite.fold(1., f64::max);
            }
        }
        slack += of_operands * scale;
    }
    let same = match (got, &want) {
        (CpuStorage::I64(got), CpuStorage::I64(want)) => {
            let first = got.iter().zip(want).position(|(got, want)| got != want);
            first.map(|i| (i, got[i].to_string(), want[i].to_string()))
        }
        _ => {
            let (got, want) = (numbers(got)?, numbers(&want)?);
            if got.len() != want.len() {
                return fail(format!(
                    "{} elements on {device}, {} on the CPU",
                    got.len(),
                    want.len()
                ));
            }
            let near = |got: f64, want: f64| {
                got == want
                    || (got.is_nan() && want.is_nan())
                    || (want.is_finite() && (got - want).abs() <= relative * want.abs() + slack)
            };
            let mut pairs = got.iter().zip(&want);
            let first = pairs.position(|(got, want)| !near(*got, *want));
            first.map(|i| (i, got[i].to_string(), want[i].to_string()))
        }
    };
    match same {
        None => Ok(()),
        Some((i, got, want)) => fail(format!(
            "element {i} of the result is {got} on {device}, {want} on the CPU"
        )),
    }
}
