//! Views, copies, and concatenation.

use crate::values;
use oracle_ops::case::{Case, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::Ty;

const RULE: Rule = Rule {
    differs,
    ..Rule::EXACT
};

fn differs(case: &Case) -> Option<&'static str> {
    match &case.op {
        Op::Cat(_) if case.inputs.len() == 1 => {
            Some("a dimension that does not exist; upstream does not look when there is one tensor")
        }
        Op::Pad(_, _, 0, 0) => {
            Some("a dimension that does not exist; upstream does not look when nothing is added")
        }
        Op::Pad("pad_with_same", ..) if case.inputs[0].dims().contains(&0) => {
            Some("another dimension may be empty; upstream refuses")
        }
        _ => None,
    }
}

fn case(g: &mut Gen, ty: Ty, dims: &[usize], op: Op) -> Case {
    Case {
        inputs: vec![g.input(ty, dims, Fill::Few)],
        op,
    }
}

pub fn pad(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(1..=4));
    let axis = g.axis(dims.len());
    let name = g.pick(&["pad_with_zeros", "pad_with_same"]);
    let op = Op::Pad(name, axis, g.below(4), g.below(4));
    case(g, ty, &dims, op)
}

#[test]
fn padding() {
    values(pad, RULE);
}

pub fn join(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=4));
    let count = g.within(1, 4);
    let stack = g.chance(40);
    let axis = g.axis(dims.len() + usize::from(stack));
    let front = Gen::front(axis, dims.len());
    let inputs = (0..count)
        .map(|_| {
            let mut dims = dims.clone();
            if let (false, Some(d)) = (stack, front) {
                dims[d] = g.dim();
            }
            if g.chance(2) && !dims.is_empty() {
                dims[0] += 1;
            }
            let ty = if g.chance(2) { Ty::F32 } else { ty };
            g.input(ty, &dims, Fill::Few)
        })
        .collect();
    Case {
        inputs,
        op: if stack {
            Op::Stack(axis)
        } else {
            Op::Cat(axis)
        },
    }
}

#[test]
fn cat_and_stack() {
    values(join, RULE);
}

pub fn split(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(1..=4));
    let op = Op::Chunk(g.within(1, 5), g.axis(dims.len()));
    case(g, ty, &dims, op)
}

#[test]
fn chunk() {
    values(split, RULE);
}

fn meshgrid(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::ALL);
    let inputs = (0..g.within(1, 4))
        .map(|_| {
            let n = g.full_dim();
            g.input(ty, &[n], Fill::Few)
        })
        .collect();
    Case {
        inputs,
        op: Op::Meshgrid(g.chance(50)),
    }
}

#[test]
fn meshgrid_of_vectors() {
    values(meshgrid, RULE);
}

pub fn rearrange(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=4));
    let rank = dims.len();
    let op = match g.below(4) {
        0 => Op::Flip((0..rank).filter(|_| g.chance(50)).collect()),
        1 => Op::Roll(g.below(21) as i32 - 10, g.axis(rank)),
        2 => Op::Unfold(g.axis(rank), g.within(1, 3), g.within(1, 3)),
        _ => Op::Repeat((0..rank + g.below(2)).map(|_| g.within(1, 3)).collect()),
    };
    case(g, ty, &dims, op)
}

#[test]
fn flip_roll_unfold_repeat() {
    values(rearrange, RULE);
}

pub fn view(g: &mut Gen) -> Case {
    let (ty, mut dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    for d in &mut dims {
        if g.chance(15) {
            *d = 1;
        }
    }
    let rank = dims.len();
    let op = match g.below(12) {
        0 => {
            let n: usize = dims.iter().product();
            let first = (1..=n.max(1)).filter(|d| n.is_multiple_of(*d));
            let first: Vec<_> = first.collect();
            let first = g.pick(&first);
            Op::Reshape(vec![first, n / first + usize::from(g.chance(3))])
        }
        1 => Op::Transpose(g.axis(rank), g.axis(rank)),
        2 => Op::Permute(g.permutation(rank)),
        3 => Op::Squeeze(g.axis(rank)),
        4 => Op::Unsqueeze(g.axis(rank + 1)),
        5 => {
            let axis = g.axis(rank);
            let size = Gen::front(axis, rank).map_or(0, |d| dims[d]);
            let start = g.below(size + 1);
            Op::Narrow(
                axis,
                start,
                g.within(0, size - start) + usize::from(g.chance(3)),
            )
        }
        6 => Op::BroadcastAs(
            [&[g.full_dim()], dims.as_slice()]
                .concat()
                .into_iter()
                .map(|d| if d == 1 { g.within(1, 3) } else { d })
                .collect(),
        ),
        7 => Op::BroadcastLeft(g.shape(0..=2)),
        8 => {
            let (a, b) = (g.axis(rank), g.axis(rank));
            Op::Flatten(a, b)
        }
        9 if rank > 0 => Op::Get(g.below(dims[0] + 1)),
        10 => {
            let axis = g.axis(rank);
            let size = Gen::front(axis, rank).map_or(0, |d| dims[d]);
            Op::GetOnDim(axis, g.below(size))
        }
        _ => Op::Plain(g.pick(&[
            "t",
            "flatten_all",
            "contiguous",
            "force_contiguous",
            "copy",
            "zeros_like",
            "ones_like",
            "detach",
        ])),
    };
    case(g, ty, &dims, op)
}

#[test]
fn views() {
    values(view, RULE);
}

fn make(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::ALL);
    let name = g.pick(&[
        "eye",
        "tril2",
        "triu2",
        "zeros",
        "ones",
        "full",
        "arange",
        "arange_step",
    ]);
    let numbers = match name {
        "arange" | "arange_step" => {
            let step = if g.chance(5) { 0. } else { g.quarter(2) };
            vec![g.quarter(3), g.quarter(8), step]
        }
        _ => vec![g.dim() as f64, g.dim() as f64, g.quarter(3)],
    };
    Case {
        inputs: Vec::new(),
        op: Op::Make(name, ty, numbers),
    }
}

#[test]
fn makers() {
    values(make, RULE);
}
