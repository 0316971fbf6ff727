//! Ops that read or write elements by index.

use crate::values;
use oracle_ops::case::{Case, Index, Input, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};

/// 16-bit sums of up to six elements are rounded at each step by one side.
fn tolerance(case: &Case) -> Tolerance {
    match &case.op {
        Op::ByIds("scatter_add" | "scatter_add_set" | "index_add", _) => Tolerance::new(4., 16.),
        _ => Tolerance::EXACT,
    }
}

const RULE: Rule = Rule { tolerance, differs };

fn differs(case: &Case) -> Option<&'static str> {
    match &case.op {
        Op::Embedding if case.inputs[1].dims().len() != 1 => {
            Some("ids of any shape; upstream takes vectors")
        }
        Op::Index(entries) if entries.iter().any(|e| matches!(e, Index::Ids(_))) => {
            let plain = case.inputs[0].view.base == case.inputs[0].view.dims;
            let first = entries.iter().position(|e| !matches!(e, Index::All));
            let first = first.map(|i| matches!(entries[i], Index::Ids(_)));
            (!plain || first != Some(true) || entries.len() > 1)
                .then_some("lists of indices on any layout; upstream takes row-major ones")
        }
        _ => None,
    }
}

/// Ids below `n`; sometimes one that is too large.
fn ids(g: &mut Gen, dims: &[usize], n: usize) -> Input {
    let ty = g.pick(&[Ty::U32, Ty::U32, Ty::I64, Ty::U8]);
    let beyond = usize::from(g.chance(2));
    g.input(ty, dims, Fill::Below(n + beyond))
}

pub fn index_select(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=4));
    let axis = g.axis(dims.len());
    let n = Gen::front(axis, dims.len()).map_or(1, |d| dims[d]);
    let count = g.dim();
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Few), ids(g, &[count], n)],
        op: Op::ByIds("index_select", axis),
    }
}

#[test]
fn index_select_any_dimension() {
    values(index_select, RULE);
}

pub fn embedding(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(2..=2));
    let shape = g.shape(1..=3);
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Few), ids(g, &shape, dims[0])],
        op: Op::Embedding,
    }
}

#[test]
fn embedding_of_ids_of_any_shape() {
    values(embedding, RULE);
}

pub fn gather(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=4));
    let axis = g.axis(dims.len());
    let front = Gen::front(axis, dims.len()).unwrap_or(0);
    let mut ids_dims = dims.clone();
    ids_dims[front] = g.dim();
    Case {
        inputs: vec![
            g.input(ty, &dims, Fill::Few),
            ids(g, &ids_dims, dims[front]),
        ],
        op: Op::ByIds("gather", axis),
    }
}

#[test]
fn gather_any_dimension() {
    values(gather, RULE);
}

pub fn scatter(g: &mut Gen) -> Case {
    let name = g.pick(&[
        "scatter",
        "scatter_add",
        "scatter_set",
        "scatter_add_set",
        "index_add",
    ]);
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=4));
    let axis = g.axis(dims.len());
    let front = Gen::front(axis, dims.len()).unwrap_or(0);
    let mut source = dims.clone();
    source[front] = g.dim();
    let ids_dims = match name {
        "index_add" => vec![source[front]],
        _ => source.clone(),
    };
    Case {
        inputs: vec![
            g.input(ty, &dims, Fill::Few),
            ids(g, &ids_dims, dims[front]),
            g.input(ty, &source, Fill::Unit),
        ],
        op: Op::ByIds(name, axis),
    }
}

#[test]
fn scatter_and_index_add() {
    values(scatter, RULE);
}

pub fn where_cond(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=5));
    let condition = g.pick(&[Ty::U8, Ty::U8, Ty::U32, Ty::I64, Ty::I32, Ty::F32]);
    let other = if g.chance(3) {
        g.shape(0..=5)
    } else {
        dims.clone()
    };
    Case {
        inputs: vec![
            g.input(condition, &dims, Fill::Below(2)),
            g.input(ty, &dims, Fill::Special),
            g.input(ty, &other, Fill::Special),
        ],
        op: Op::WhereCond,
    }
}

#[test]
fn where_cond_of_any_layout() {
    values(where_cond, RULE);
}

pub fn slices(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=4));
    let mut part = dims.clone();
    let op = match g.below(4) {
        0 => {
            let mut ranges = Vec::new();
            for (size, part) in dims.iter().zip(&mut part) {
                let start = g.below(*size);
                let len = g.within(1, size - start);
                *part = len;
                ranges.push((start, start + len + usize::from(g.chance(1))));
            }
            Op::SliceAssign(ranges)
        }
        kind => {
            let axis = if kind == 3 { 0 } else { g.axis(dims.len()) };
            let front = Gen::front(axis, dims.len()).unwrap_or(0);
            let start = g.below(dims[front]);
            part[front] = g.within(1, dims[front] - start) + usize::from(g.chance(3));
            match kind {
                1 => Op::SliceSet(axis, start),
                2 => Op::SliceScatter(axis, start),
                _ => Op::SliceScatter0(start),
            }
        }
    };
    // `slice_set` requires row-major memory on both sides.
    let whole = matches!(op, Op::SliceSet(..)) && g.chance(80);
    let input = if whole { Gen::whole } else { Gen::input };
    Case {
        inputs: vec![
            g.input(ty, &dims, Fill::Few),
            input(g, ty, &part, Fill::Unit),
        ],
        op,
    }
}

#[test]
fn slice_assign_set_and_scatter() {
    values(slices, RULE);
}

fn fill(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=4));
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Few)],
        op: Op::Fill(g.pick(&["zero_set", "one_set", "const_set"]), g.quarter(3)),
    }
}

#[test]
fn fill_in_place() {
    values(fill, RULE);
}

pub fn index(g: &mut Gen) -> Case {
    let (ty, dims) = (g.pick(&Ty::ALL), g.full_shape(1..=5));
    let count = g.within(1, dims.len().min(4));
    let mut entries = Vec::new();
    for size in &dims[..count] {
        let beyond = usize::from(g.chance(1));
        let at = g.below(size + beyond);
        let end = g.within(at, *size) + beyond;
        entries.push(match g.below(7) {
            0 => Index::At(at),
            1 => Index::Range(at, end),
            2 => Index::Inclusive(at, end.saturating_sub(1).max(at)),
            3 => Index::From(at),
            4 => Index::To(end),
            5 => Index::Ids((0..g.within(1, 3)).map(|_| g.below(*size) as u32).collect()),
            _ => Index::All,
        });
    }
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Few)],
        op: Op::Index(entries),
    }
}

#[test]
fn the_index_trait() {
    values(index, RULE);
}
