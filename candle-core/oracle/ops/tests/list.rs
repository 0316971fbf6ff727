//! Every op of the list of candle-conformance, with every dtype, in random layouts.

use oracle_ops::case::{Case, Op};
use oracle_ops::check::{self, Agreed, Rule};
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::ours::cases::{self, Near, CASES};
use oracle_ops::value::{Tolerance, Ty};

const RULE: Rule = Rule { tolerance, differs };

fn op(case: &Case) -> &'static cases::Case {
    let op = CASES
        .iter()
        .find(|op| matches!(case.op, Op::Listed(name) if name == op.name));
    op.expect("a listed op")
}

fn tolerance(case: &Case) -> Tolerance {
    match op(case).near {
        Near::Exact if op(case).family == "reduction" => crate::reduce::tolerance(case),
        Near::Same | Near::Exact => Tolerance::EXACT,
        // As in the ops' families.
        Near::Within(..) => Tolerance::new(8., 4.),
        Near::Rounded(_) => crate::product::tolerance(case),
    }
}

fn differs(case: &Case) -> Option<&'static str> {
    let op = op(case);
    let whole = !case.inputs[0].ty().is_float();
    match op.family {
        "random numbers" => Some("other numbers"),
        "products" if whole => Some("products of integers, which upstream refuses"),
        "windows" if whole && op.name == "avg_pool2d" => {
            Some("means of integers; upstream's are 0")
        }
        _ if whole && !op.integers => Some("functions of floats, of integers"),
        _ if case.inputs[0].ty() == Ty::F8E4M3
            && ["to f64", "upsample_bilinear2d"].contains(&op.name) =>
        {
            Some("upstream's conversion to f64 never returns")
        }
        _ => None,
    }
}

#[test]
fn every_op() {
    let mut failed = vec![];
    for op in CASES {
        let mut compared = 0;
        for ty in Ty::ALL {
            for seed in 0..8 {
                let g = &mut Gen::new(seed, 6);
                // Wide enough for every window; the columns of `scatter` repeat in a width that is a multiple of 3.
                let dims = [g.within(3, 6), g.pick(&[4, 5, 7])];
                let above_0 = if ty.is_float() {
                    Fill::Positive
                } else {
                    Fill::Below(4)
                };
                let case = Case {
                    inputs: vec![g.input(ty, &dims, Fill::Few), g.input(ty, &dims, above_0)],
                    op: Op::Listed(op.name),
                };
                match check::agree(&case, RULE) {
                    Ok(agreed) => compared += usize::from(agreed == Agreed::Values),
                    Err(what) => failed.push(format!("{} {ty:?}: {what}", op.name)),
                }
            }
        }
        assert!(compared > 0 || op.family == "random numbers", "{}", op.name);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
