//! Every op, with every dtype, over every layout, against the CPU: one list of ops ([`cases`]), one of layouts ([`inputs`]), and
//! what is not there ([`support`]), from which the README's table is made.
//!
//! A pair of op and dtype is one of three things. *Supported*: results agree with the CPU's within the op's tolerance, and where
//! the CPU has an error (the greatest of nothing, say) so has the device. *No op*: the CPU refuses it and the device as well.
//! *Missing*: the CPU does it, and the device's error names op, dtype and device. What a pair is, `support` says, and the tests fail
//! if it is something else.
//!
//! Special values (NaN, infinities, arguments that overflow) are in `elementwise`, sizes around workgroups and tiles beside each op.

mod cases;
mod inputs;
mod support;

use candle_core::{DType, Device, Error, Result};

use crate::agree::{assert_close, assert_same, has_f64, root};
use cases::{Case, CASES};
use inputs::{Inputs, LAYOUTS};
use support::{support, Support};

/// Runs all ops with one dtype.
fn check(device: &Device, dtype: DType) -> Result<()> {
    let f64 = has_f64(device)?;
    if dtype == DType::F64 && !f64 {
        return Ok(());
    }
    for (layout, view) in LAYOUTS {
        let cpu = Inputs::new(dtype, view, &Device::Cpu)?;
        let here = Inputs::new(dtype, view, device)?;
        for case in CASES {
            let what = format!("{} {dtype:?} {layout}", case.name);
            let support = match case.name {
                "to f64" if !f64 => Support::Missing("the device has no f64"),
                name => support(name, dtype),
            };
            check_case(case, dtype, support, &cpu, &here, &what)?;
        }
    }
    Ok(())
}

fn check_case(
    case: &Case,
    dtype: DType,
    support: Support,
    cpu: &Inputs,
    here: &Inputs,
    what: &str,
) -> Result<()> {
    let want = (case.run)(cpu);
    // A kernel's own errors arrive with the result.
    let got = (case.run)(here).and_then(|t| t.to_device(&Device::Cpu));
    match (support, want, got) {
        (Support::Yes, Ok(want), Ok(got)) => match case.tolerance(dtype) {
            None => assert_same(&got, &want, what),
            Some(tolerance) => assert_close(&got, &want, tolerance, what),
        },
        // Nothing to reduce, or a window larger than the image.
        (Support::Yes, Err(_), Err(_)) if here.is_small() => Ok(()),
        (Support::NoOp, Err(_), Err(got)) => {
            assert!(names(&got, case, dtype), "{what}: {got}");
            Ok(())
        }
        (Support::Missing(_), Ok(_), Err(got)) if !here.on_cpu() => {
            assert!(
                matches!(root(&got), Error::UnsupportedOnDevice { .. }) && names(&got, case, dtype),
                "{what}: {got}"
            );
            Ok(())
        }
        (Support::Missing(_), Ok(want), Ok(got)) if here.on_cpu() => assert_same(&got, &want, what),
        // A missing op of an empty tensor may have nothing to refuse.
        (Support::Missing(_), Ok(_) | Err(_), Ok(_) | Err(_)) if here.is_small() => Ok(()),
        (expected, want, got) => {
            let short = |r: Result<candle_core::Tensor>| {
                r.map(|t| t.to_string()).map_err(|e| e.to_string())
            };
            panic!(
                "{what}: support.rs says {expected:?}; the CPU gives {:?}, the device {:?}",
                short(want),
                short(got)
            )
        }
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

/// A test for each dtype, so that they run side by side.
macro_rules! dtypes {
    ($($name:ident $dtype:ident),+ $(,)?) => {$(
        mod $name {
            use super::*;

            fn all_ops(device: &Device) -> Result<()> {
                check(device, DType::$dtype)
            }
            candle_core::test_device!(all_ops);
        }
    )+};
}

dtypes! {
    u8 U8, u32 U32, i16 I16, i32 I32, i64 I64, bf16 BF16, f16 F16, f32 F32, f64 F64, f8e4m3 F8E4M3,
}

/// The table in the README is made from the lists here.
#[test]
fn the_readme_has_the_table() -> Result<()> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme)?;
    let (begin, end) = ("<!-- ops on WebGPU -->\n", "<!-- end of ops -->");
    let section = readme
        .split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end));
    let table = support::table();
    assert!(
        section.is_some_and(|(section, _)| section == table),
        "the README's table of ops is not the one that tests/matrix has; between {begin:?} and {end:?} it must have\n{table}"
    );
    Ok(())
}

/// Names in `support` that no op has would be without effect.
#[test]
fn lists_name_ops() {
    for (names, _, _) in support::MISSING {
        assert!(names
            .iter()
            .all(|name| CASES.iter().any(|case| case.name == *name)));
    }
    for (index, case) in CASES.iter().enumerate() {
        assert!(
            CASES[..index].iter().all(|other| other.name != case.name),
            "{}",
            case.name
        );
    }
}
