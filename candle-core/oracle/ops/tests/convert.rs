//! Casts between all dtypes, and tensors as text.

use crate::values;
use oracle_ops::case::{Case, Input, Op, View};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Elements, Ty};

pub fn cast(g: &mut Gen) -> Case {
    let (from, to) = (g.pick(&Ty::ALL), g.pick(&Ty::ALL));
    let dims = g.shape(0..=5);
    let fill = g.pick(&[Fill::Special, Fill::Few, Fill::Unit]);
    Case {
        inputs: vec![g.input(from, &dims, fill)],
        op: Op::ToDtype(to),
    }
}

/// `WithDType::to_f64` of upstream's F8E4M3 calls itself.
fn differs(case: &Case) -> Option<&'static str> {
    let f8 = case.inputs[0].ty() == Ty::F8E4M3;
    (f8 && matches!(case.op, Op::ToDtype(Ty::F64))).then_some("upstream never returns")
}

#[test]
fn casts_of_all_pairs() {
    values(
        cast,
        Rule {
            differs,
            ..Rule::EXACT
        },
    );
}

fn format(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::ALL);
    // Tensors of more than 1,000 elements are shortened.
    let dims = if g.chance(15) {
        vec![g.within(1, 30), g.within(20, 60)]
    } else {
        g.shape(0..=4)
    };
    let fill = g.pick(&[
        Fill::Quarters,
        Fill::Unit,
        Fill::Few,
        Fill::Special,
        Fill::Positive,
    ]);
    let mut input = g.input(ty, &dims, fill);
    if g.chance(20) {
        // Large and small magnitudes, which are printed with an exponent.
        let scale = g.pick(&[1e-6, 1e-3, 1e4, 1e8]);
        let n = dims.iter().product();
        let values: Vec<_> = g.values(n, Fill::Unit).iter().map(|v| v * scale).collect();
        input = Input {
            data: Elements::new(ty, &values),
            view: View::whole(&dims),
        };
    }
    Case {
        inputs: vec![input],
        op: Op::Format,
    }
}

#[test]
fn display_and_debug() {
    let differs = |case: &Case| {
        let wide = |numbers: Vec<f64>| {
            let sizes = numbers.iter().map(|n| n.abs());
            let sizes: Vec<_> = sizes.filter(|n| *n > 0. && n.is_finite()).collect();
            let largest = sizes.iter().fold(0., |a: f64, b| a.max(*b));
            let smallest = sizes.iter().fold(f64::INFINITY, |a: f64, b| a.min(*b));
            (smallest < 1e-3 || largest / smallest > 999. || largest > 9e7).then_some(
                "an exponent's digits and limits are those of other floats, not 16 bits long",
            )
        };
        match &case.inputs[0].data {
            Elements::F8E4M3(_) => Some("whole numbers end in a point; upstream's do not"),
            Elements::F16(v) => wide(v.iter().map(|x| x.to_f64()).collect()),
            Elements::BF16(v) => wide(v.iter().map(|x| x.to_f64()).collect()),
            _ => None,
        }
    };
    values(
        format,
        Rule {
            differs,
            ..Rule::EXACT
        },
    );
}
