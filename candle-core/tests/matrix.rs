//! Runs the list of candle-conformance on every device.

use candle_conformance::{check, support_on, Outcome, Support, CASES, LAYOUTS, MISSING};
use candle_core::{DType, Device, Result};

use crate::agree::has_f64;

/// Runs all ops with one dtype.
fn all_pass(device: &Device, dtype: DType) -> Result<()> {
    let mut failed = vec![];
    let (mut passed, mut unsupported, mut all) = (0, 0, 0);
    let has_dtype = dtype != DType::F64 || has_f64(device)?;
    let run = check(device, dtype, |record| {
        all += 1;
        match record.outcome {
            Outcome::Passed => passed += 1,
            Outcome::Undefined => {}
            Outcome::Unsupported(_) => unsupported += 1,
            Outcome::Failed(why) => failed.push(format!(
                "{} {} {}: {why}",
                record.op, record.dtype, record.layout
            )),
        }
    });
    pollster::block_on(run)?;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(all, CASES.len() * LAYOUTS.len());
    if !has_dtype {
        assert_eq!((passed, unsupported), (0, all));
        return Ok(());
    }
    let supported = CASES
        .iter()
        .filter(|case| support_on(device, case.name, dtype) == Support::Yes);
    // All except a conversion to a dtype that the adapter lacks.
    let supported = supported.filter(|case| case.name != "to f64").count();
    assert!(passed >= supported * LAYOUTS.len(), "{passed} passed");
    Ok(())
}

/// Defines a test for each dtype, so that they run in parallel.
macro_rules! dtypes {
    ($($name:ident $dtype:ident),+ $(,)?) => {$(
        mod $name {
            use super::*;

            fn all_ops(device: &Device) -> Result<()> {
                all_pass(device, DType::$dtype)
            }
            candle_core::test_device!(all_ops);
        }
    )+};
}

dtypes! {
    u8 U8, u32 U32, i16 I16, i32 I32, i64 I64, bf16 BF16, f16 F16, f32 F32, f64 F64, f8e4m3 F8E4M3,
}

/// `support` names existing ops only; other names would have no effect.
#[test]
fn lists_name_ops() {
    for (names, _, _) in MISSING {
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

/// Every op is in the list: the variants of the enums of ops, except views, what is composed of other ops, and what stands for several.
#[test]
fn every_op_has_a_case() {
    const VIEWS: &str = "Broadcast Narrow Reshape Transpose Permute ToDevice SliceScatter0";
    const SEVERAL: &str = "Binary Unary Cmp Reduce ToDType CustomOp1 CustomOp2 CustomOp3";
    let others = VIEWS.split(' ').chain(SEVERAL.split(' '));
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let cases: Vec<String> = CASES.iter().map(|case| plain(case.name)).collect();
    let source = include_str!("../src/op.rs");
    for list in ["CmpOp", "ReduceOp", "BinaryOp", "UnaryOp", "Op"] {
        let (_, body) = source
            .split_once(&format!("pub enum {list} {{\n"))
            .expect(list);
        let (body, _) = body.split_once("\n}").expect(list);
        let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
        let variants: Vec<&str> = lines
            .filter(|line| line.starts_with(char::is_uppercase))
            .filter_map(|line| line.split([',', '(', ' ']).next())
            .collect();
        assert!(variants.len() >= 5, "{list}: {variants:?}");
        for variant in variants {
            let listed = cases.contains(&plain(variant)) || others.clone().any(|o| o == variant);
            assert!(
                listed,
                "no case in candle-core/conformance/src/cases.rs for {list}::{variant}"
            );
        }
    }
}
