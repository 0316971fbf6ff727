//! Reductions over some dimensions, along one, and of the whole tensor.

use crate::values;
use oracle_ops::case::{Case, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};

/// Sums are computed in another order, and in f32 where upstream adds 16-bit floats: the error of each addition is half an epsilon of a
/// partial sum.
pub fn tolerance(case: &Case) -> Tolerance {
    let n = case.inputs[0].dims().iter().product::<usize>().max(1) as f64;
    match case.op {
        Op::Along("max" | "max_keepdim" | "min" | "min_keepdim", _)
        | Op::Whole("max_all" | "min_all") => Tolerance::EXACT,
        // Up to 1,000 elements below 2 in magnitude.
        _ => Tolerance::new(4. + n.sqrt(), 4. * n.sqrt()),
    }
}

const RULE: Rule = Rule { tolerance, differs };

fn differs(case: &Case) -> Option<&'static str> {
    let input = &case.inputs[0];
    match &case.op {
        Op::Reduce("log_sum_exp", _) if !input.ty().is_float() => {
            Some("a function of floats, of integers: upstream panics or gives zeros")
        }
        Op::Reduce("log_sum_exp", _) if input.dims().contains(&0) => {
            Some("an empty tensor has results where another dimension is empty; upstream refuses")
        }
        Op::Along("cumsum", _) if !Ty::FLOATS.contains(&input.ty()) => Some(
            "upstream multiplies with a triangular matrix, which it does for these floats alone",
        ),
        Op::Along(..) if input.dims().contains(&0) => {
            Some("an empty tensor has results where another dimension is empty; upstream refuses")
        }
        _ => None,
    }
}

pub fn over_dims(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(1..=5));
    let name = g.pick(&["sum", "sum_keepdim", "mean", "mean_keepdim", "log_sum_exp"]);
    let mut over: Vec<_> = (0..dims.len()).filter(|_| g.chance(50)).collect();
    if g.chance(30) {
        over.reverse();
    }
    if g.chance(2) {
        over.push(dims.len());
    }
    if g.chance(2) && !over.is_empty() {
        over.push(over[0]);
    }
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Unit)],
        op: Op::Reduce(name, over),
    }
}

#[test]
fn over_dimensions() {
    values(over_dims, RULE);
}

pub fn along_one(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(1..=5));
    let name = g.pick(&[
        "max",
        "max_keepdim",
        "min",
        "min_keepdim",
        "argmax",
        "argmax_keepdim",
        "argmin",
        "argmin_keepdim",
        "var",
        "var_keepdim",
    ]);
    let fill = match name {
        "var" | "var_keepdim" => Fill::Unit,
        // Equal elements: the first one counts.
        _ => Fill::Few,
    };
    Case {
        inputs: vec![g.input(ty, &dims, fill)],
        op: Op::Along(name, g.axis(dims.len())),
    }
}

#[test]
fn along_a_dimension() {
    values(along_one, RULE);
}

pub fn cumsum(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=4));
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Quarters)],
        op: Op::Along("cumsum", g.axis(dims.len())),
    }
}

#[test]
fn cumulative_sum() {
    values(cumsum, RULE);
}

pub fn whole(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Unit)],
        op: Op::Whole(g.pick(&["sum_all", "mean_all", "max_all", "min_all", "norm"])),
    }
}

#[test]
fn of_the_whole_tensor() {
    values(whole, RULE);
}
