//! Functions of single elements.

use crate::values;
use oracle_ops::case::{Case, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::ours::cases::CASES;
use oracle_ops::value::{Tolerance, Ty};

/// The functions of the list of candle-conformance that have no parameters.
fn functions() -> Vec<&'static str> {
    let functions = CASES.iter().filter(|case| case.family == "functions");
    let names = functions.map(|case| case.name);
    names
        .filter(|name| !["affine", "elu", "powf"].contains(name))
        .collect()
}

/// Functions that a CPU rounds correctly are exact. The others differ by a few roundings: 16-bit floats are computed step by step by one
/// side and in f32 by the other.
pub fn tolerance(case: &Case) -> Tolerance {
    match &case.op {
        Op::Unary("gelu" | "gelu_erf" | "silu" | "erf" | "tanh") => Tolerance::new(8., 4.),
        Op::Unary("exp" | "log" | "sin" | "cos") => Tolerance::new(2., 1.),
        Op::Elu(_) | Op::Powf(_) | Op::Binary("pow" | "broadcast_pow") => Tolerance::new(4., 2.),
        Op::Affine(..) | Op::Operator(..) | Op::RoundTo(_) => Tolerance::new(2., 8.),
        _ => Tolerance::EXACT,
    }
}

const RULE: Rule = Rule { tolerance, differs };

/// Ours rejects arguments without a sensible result.
fn differs(case: &Case) -> Option<&'static str> {
    let whole = case.inputs.iter().any(|i| !i.ty().is_float());
    let mixed = case.inputs.iter().any(|i| i.ty() != case.inputs[0].ty());
    match &case.op {
        Op::Unary("relu")
            if case.inputs[0].ty() == Ty::F8E4M3 && !case.inputs[0].data.is_tame() =>
        {
            Some("relu of NaN: 0 in every dtype, upstream's F8E4M3 keeps it")
        }
        Op::Unary("neg" | "abs" | "sqr" | "relu" | "sign" | "ceil" | "floor" | "round") => None,
        Op::Unary(_)
        | Op::Powf(_)
        | Op::Elu(_)
        | Op::RoundTo(_)
        | Op::Operator("/t", _)
        | Op::Binary("pow" | "broadcast_pow")
            if whole =>
        {
            Some("functions of floats, of integers: upstream gives zeros or panics")
        }
        _ if mixed && case.inputs.iter().any(|i| i.dims().contains(&0)) => {
            Some("two dtypes: upstream looks at them only when there are elements")
        }
        _ => None,
    }
}

pub fn unary(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Special)],
        op: Op::Unary(g.pick(&functions())),
    }
}

#[test]
fn unary_ops() {
    values(unary, RULE);
}

/// Two tensors of the same shape and dtype; sometimes they do not match.
pub fn binary(g: &mut Gen) -> Case {
    let name = g.pick(&[
        "add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge",
    ]);
    let ty = g.pick(&Ty::ALL);
    let dims = g.shape(0..=5);
    let fill = match name {
        "pow" => Fill::Positive,
        "add" | "sub" | "mul" | "div" => g.pick(&[Fill::Quarters, Fill::Special]),
        _ => g.pick(&[Fill::Few, Fill::Special]),
    };
    let other_ty = if g.chance(3) { g.pick(&Ty::ALL) } else { ty };
    let other_dims = if g.chance(3) {
        g.shape(0..=5)
    } else {
        dims.clone()
    };
    Case {
        inputs: vec![
            g.input(ty, &dims, fill),
            g.input(other_ty, &other_dims, fill),
        ],
        op: Op::Binary(name),
    }
}

#[test]
fn binary_ops_and_comparisons() {
    values(binary, RULE);
}

/// Two shapes that broadcast: dimensions of size 1 and missing ones on either side.
pub fn broadcast(g: &mut Gen) -> Case {
    let name = g.pick(&[
        "broadcast_add",
        "broadcast_sub",
        "broadcast_mul",
        "broadcast_div",
        "broadcast_pow",
        "broadcast_maximum",
        "broadcast_minimum",
        "broadcast_eq",
        "broadcast_ne",
        "broadcast_lt",
        "broadcast_le",
        "broadcast_gt",
        "broadcast_ge",
    ]);
    let ty = g.pick(&Ty::ALL);
    let full = g.shape(0..=5);
    let side = |g: &mut Gen| {
        let from = if g.chance(40) {
            g.below(full.len() + 1)
        } else {
            0
        };
        let mut dims = full[from..].to_vec();
        for d in &mut dims {
            if g.chance(25) {
                *d = 1;
            } else if g.chance(1) {
                *d += 1;
            }
        }
        dims
    };
    let (lhs, rhs) = (side(g), side(g));
    let fill = match name {
        "broadcast_pow" => Fill::Positive,
        _ => Fill::Few,
    };
    Case {
        inputs: vec![g.input(ty, &lhs, fill), g.input(ty, &rhs, fill)],
        op: Op::Binary(name),
    }
}

#[test]
fn broadcast_binary_ops() {
    values(broadcast, RULE);
}

pub fn with_numbers(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    let number = g.quarter(3);
    let comparison = ["eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"];
    let op = match g.below(4) {
        0 => Op::WithScalar(g.pick(&comparison), number.trunc()),
        1 => Op::Clamp(number.min(1.), 2.),
        2 => Op::Operator(
            g.pick(&["+", "-", "*", "/", "+t", "-t", "*t", "/t"]),
            number + 0.125,
        ),
        _ => Op::Affine(number, g.quarter(3)),
    };
    Case {
        inputs: vec![g.input(ty, &dims, small(ty))],
        op,
    }
}

/// Integers for integer dtypes, so that a factor of a quarter truncates something.
fn small(ty: Ty) -> Fill {
    if ty.is_float() {
        Fill::Quarters
    } else {
        Fill::Few
    }
}

#[test]
fn ops_with_numbers() {
    values(with_numbers, RULE);
}

pub fn float_parameters(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    let (op, fill) = match g.below(3) {
        0 => (
            Op::Powf(g.pick(&[0., 0.5, 1., 2., 3., -1., 2.5])),
            Fill::Positive,
        ),
        1 => (Op::Elu(g.pick(&[0.5, 1., 2.])), Fill::Unit),
        _ => (Op::RoundTo(g.pick(&[-1, 0, 1, 2])), Fill::Unit),
    };
    Case {
        inputs: vec![g.input(ty, &dims, fill)],
        op,
    }
}

#[test]
fn powf_elu_round_to() {
    values(float_parameters, RULE);
}
