//! Matrix products, dot products, matrix times vector.

use crate::values;
use oracle_ops::case::{Case, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};

/// Sums of `k` products below 1 in magnitude, in another order; one of the sides adds 16-bit floats in f32.
pub fn tolerance(case: &Case) -> Tolerance {
    let k = case.inputs[0].dims().last().map_or(1, |k| *k + 1) as f64;
    Tolerance::new(4., 2. * k)
}

const RULE: Rule = Rule { tolerance, differs };

fn differs(case: &Case) -> Option<&'static str> {
    let dims = case.inputs[0].dims();
    if !case.inputs[0].ty().is_float() {
        return Some("products of integers, which upstream refuses");
    }
    let ones = dims.len() > 2 && dims[..dims.len() - 2].contains(&1);
    ones.then_some("a batch dimension of size 1 may have any stride; upstream refuses some even of row-major tensors")
}

pub fn matmul(g: &mut Gen) -> Case {
    let ty = g.pick(&[
        Ty::F32,
        Ty::F64,
        Ty::F16,
        Ty::BF16,
        Ty::F32,
        Ty::U8,
        Ty::I64,
    ]);
    let batch = g.shape(0..=3);
    // Also larger than the kernels' tiles.
    let stretch = g.pick(&[1, 1, 3, 11]);
    let (m, k, n) = (g.dim() * stretch, g.dim() * stretch, g.dim() * stretch);
    let wrong = usize::from(g.chance(3));
    let lhs = [batch.as_slice(), &[m, k]].concat();
    let rhs = [batch.as_slice(), &[k + wrong, n]].concat();
    Case {
        inputs: vec![g.input(ty, &lhs, Fill::Unit), g.input(ty, &rhs, Fill::Unit)],
        op: Op::Product("matmul"),
    }
}

#[test]
fn matmul_of_any_layout() {
    values(matmul, RULE);
}

pub fn broadcast_matmul(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::FLOATS);
    let batch = g.shape(0..=3);
    let side = |g: &mut Gen| -> Vec<usize> {
        let from = g.below(batch.len() + 1);
        let one = |d: &usize| if g.chance(30) { 1 } else { *d };
        batch[from..].iter().map(one).collect()
    };
    let (lhs, rhs) = (side(g), side(g));
    let (m, k, n) = (g.dim(), g.dim(), g.dim());
    Case {
        inputs: vec![
            g.input(ty, &[lhs.as_slice(), &[m, k]].concat(), Fill::Unit),
            g.input(ty, &[rhs.as_slice(), &[k, n]].concat(), Fill::Unit),
        ],
        op: Op::Product("broadcast_matmul"),
    }
}

#[test]
fn broadcast_matmul_of_any_layout() {
    values(broadcast_matmul, RULE);
}

pub fn dot_or_mv(g: &mut Gen) -> Case {
    let ty = g.pick(&[Ty::F32, Ty::F64, Ty::F16, Ty::BF16, Ty::U32]);
    let (m, k) = (g.dim(), g.dim());
    let wrong = usize::from(g.chance(3));
    let (name, lhs) = if g.chance(50) {
        ("dot", vec![k])
    } else {
        ("mv", vec![m, k])
    };
    Case {
        inputs: vec![
            g.input(ty, &lhs, Fill::Unit),
            g.input(ty, &[k + wrong], Fill::Unit),
        ],
        op: Op::Product(name),
    }
}

#[test]
fn dot_and_mv() {
    values(dot_or_mv, RULE);
}
