//! Runs the list of cases.

use candle_core::{DType, Device, Error, Result, Tensor};
use futures_util::{stream, StreamExt};
use serde::Serialize;
use web_time::Instant;

use super::cases::{Case, Inputs, Near, CASES};
use super::compare::{first_difference, Tolerance};
use super::inputs::LAYOUTS;
use super::support::{support_on, Support};

/// Maximum number of readbacks in flight: Firefox polls for finished ones ten times a second.
const AT_ONCE: usize = 32;

impl Case {
    /// The op's name in errors.
    pub fn op(&self) -> &'static str {
        match self.name {
            name if self.family == "conversion" && !name.is_empty() => "to_dtype",
            "sum_all" => "sum",
            name => name,
        }
    }

    /// `None`: every bit, through text.
    pub fn tolerance(&self, dtype: DType) -> Option<Tolerance> {
        let integer = dtype.is_int();
        match self.near {
            Near::Same => None,
            _ if integer => None,
            Near::Exact => Some(Tolerance::EXACT),
            // f64's functions are sums of series, accurate to 12 digits.
            Near::Within(..) if dtype == DType::F64 => {
                Some(Tolerance::of(dtype, 1e-12).or_absolute(1e-14))
            }
            Near::Within(relative, absolute) => {
                Some(Tolerance::of(dtype, relative).or_absolute(absolute))
            }
            Near::Rounded(times) => Some(Tolerance::of(dtype, 1e-6).times(times)),
        }
    }
}

/// The result of one op with one dtype in one layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// The op's name in the list.
    pub op: &'static str,
    /// The op's family.
    pub family: &'static str,
    /// The dtype of its arguments.
    pub dtype: &'static str,
    /// The layout of its arguments.
    pub layout: &'static str,
    /// The outcome.
    pub outcome: Outcome,
    /// Time since the previous result arrived on the host, including compiling the kernel. Several results are in flight at a time.
    pub milliseconds: f64,
}

/// The outcome of an op.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "is", content = "why")]
pub enum Outcome {
    /// Equal to the CPU's result.
    Passed,
    /// The op is not defined for this dtype: the CPU and the device both return an error.
    Undefined,
    /// The device returns an error that it does not support the op.
    Unsupported(String),
    /// A wrong result: the first difference, or the actual and the expected error.
    Failed(String),
}

/// Runs all ops with one dtype on `device` and on the CPU, and calls `each` with every op's record in every layout.
///
/// # Errors
/// If the arguments cannot be created on the CPU, or cannot be copied to `device` although it supports the dtype.
pub async fn check(device: &Device, dtype: DType, mut each: impl FnMut(Record)) -> Result<()> {
    let f64_error = f64_error(device)?;
    for (layout, view) in LAYOUTS {
        let cpu = Inputs::new(dtype, view, &Device::Cpu)?;
        let here = match &f64_error {
            Some(_) if dtype == DType::F64 => None,
            _ => Some(Inputs::new(dtype, view, device)?),
        };
        let outcomes = CASES.iter().map(|case| async {
            let Some(here) = &here else {
                return Outcome::Unsupported(f64_error.clone().unwrap_or_default());
            };
            let support = match case.name {
                "to f64" if f64_error.is_some() => Support::Missing("the device has no f64"),
                name => support_on(device, name, dtype),
            };
            outcome(case, dtype, support, &cpu, here).await
        });
        let mut outcomes = std::pin::pin!(stream::iter(outcomes).buffered(AT_ONCE));
        let mut cases = CASES.iter();
        let mut last = Instant::now();
        while let (Some(case), Some(outcome)) = (cases.next(), outcomes.next().await) {
            each(Record {
                op: case.name,
                family: case.family,
                dtype: dtype.as_str(),
                layout,
                outcome,
                milliseconds: last.elapsed().as_secs_f64() * 1e3,
            });
            last = Instant::now();
        }
    }
    Ok(())
}

async fn outcome(
    case: &Case,
    dtype: DType,
    support: Support,
    cpu: &Inputs,
    here: &Inputs,
) -> Outcome {
    let want = (case.run)(cpu);
    // A kernel's own errors arrive with the result.
    let difference = async {
        let got = (case.run)(here)?;
        match &want {
            Ok(want) => first_difference(&got, want, case.tolerance(dtype)).await,
            Err(_) => {
                first_difference(&got, &got, None).await?;
                Ok(Some(format!("{got:?} where the CPU has an error")))
            }
        }
    };
    let got: Result<Option<String>> = difference.await;
    let same = |difference: Option<String>| match difference {
        None => Outcome::Passed,
        Some(difference) => Outcome::Failed(difference),
    };
    match (support, &want, got) {
        (Support::Yes, Ok(_), Ok(difference)) => same(difference),
        // Nothing to reduce, or a window larger than the image.
        (Support::Yes, Err(_), Err(_)) if here.is_small() => Outcome::Passed,
        (Support::NoOp, Err(_), Err(got)) if names(&got, case, dtype) => Outcome::Undefined,
        (Support::Missing(_), Ok(_), Err(got))
            if !here.on_cpu()
                && matches!(root(&got), Error::UnsupportedOnDevice { .. })
                && names(&got, case, dtype) =>
        {
            Outcome::Unsupported(got.to_string())
        }
        (Support::Missing(_), Ok(_), Ok(difference)) if here.on_cpu() => same(difference),
        // A missing op of an empty tensor may have no kernel to run.
        (Support::Missing(_), _, Ok(_)) if here.is_small() => Outcome::Passed,
        (Support::Missing(_), _, Err(got)) if here.is_small() => {
            Outcome::Unsupported(got.to_string())
        }
        (expected, _, got) => Outcome::Failed(format!(
            "it has to be {expected:?}; the CPU gives {:?}, the device {}",
            want.as_ref()
                .map(Tensor::to_string)
                .map_err(Error::to_string),
            match got {
                Ok(None) => "the same".to_string(),
                Ok(Some(difference)) => difference,
                Err(error) => format!("the error \"{error}\""),
            }
        )),
    }
}

/// Whether an error names the op and the dtype.
fn names(error: &Error, case: &Case, dtype: DType) -> bool {
    let plain = |text: &str| text.to_lowercase().replace(['-', '_', ' '], "");
    let text = plain(&error.to_string());
    let dtype = match case.name {
        "to f64" => "f64",
        _ => dtype.as_str(),
    };
    text.contains(&plain(case.op())) && text.contains(dtype)
}

/// The error if the device does not compute with f64, which most adapters lack; `None` if it does.
///
/// # Errors
/// If the device fails in another way.
pub fn f64_error(device: &Device) -> Result<Option<String>> {
    match Tensor::zeros(1, DType::F64, device) {
        Ok(_) => Ok(None),
        Err(error) if matches!(root(&error), Error::UnsupportedOnDevice { .. }) => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// The error inside backtraces and contexts.
pub fn root(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner, .. } => root(inner),
        other => other,
    }
}
