//! Convolution, pooling, resizing, sorting.

use crate::values;
use oracle_ops::case::{Case, Conv, Op};
use oracle_ops::check::Rule;
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};

/// Sums of one product per kernel element and channel, each below 1 in magnitude, in another order.
fn tolerance(case: &Case) -> Tolerance {
    match &case.op {
        Op::Conv1d(_) | Op::Conv2d(_) | Op::ConvTranspose1d(_) | Op::ConvTranspose2d(_) => {
            let terms: usize = case.inputs[1].dims().iter().product();
            Tolerance::new(4., 4. * (1f64 + terms as f64).sqrt())
        }
        Op::Pool("avg_pool2d", kernel, _) => Tolerance::new(4. + (kernel.0 * kernel.1) as f64, 4.),
        // One side computes positions in f32.
        Op::Bilinear(..) | Op::BilinearScale(..) => Tolerance::new(16., 16.),
        _ => Tolerance::EXACT,
    }
}

const RULE: Rule = Rule { tolerance, differs };

pub fn differs(case: &Case) -> Option<&'static str> {
    if let Op::ConvTranspose1d(conv) | Op::ConvTranspose2d(conv) = &case.op {
        let (input, kernel) = (case.inputs[0].dims(), case.inputs[1].dims());
        let length = |d: usize| {
            (input[d] - 1) * conv.stride + conv.dilation * (kernel[d] - 1) + conv.output_padding + 1
        };
        return (2..input.len())
            .any(|d| length(d) <= 2 * conv.padding)
            .then_some("padding that leaves nothing is refused; upstream gives an empty tensor");
    }
    let (Op::Conv1d(conv) | Op::Conv2d(conv)) = &case.op else {
        return None;
    };
    let (input, kernel) = (case.inputs[0].dims(), case.inputs[1].dims());
    let too_large = |d: usize| conv.dilation * (kernel[d] - 1) + 1 > input[d] + 2 * conv.padding;
    (2..input.len())
        .any(too_large)
        .then_some("a kernel larger than the padded input is refused; upstream gives an empty tensor or panics")
}

fn sizes(g: &mut Gen) -> Conv {
    let stride = g.within(1, 3);
    Conv {
        padding: g.below(3),
        output_padding: g.below(stride),
        stride,
        dilation: g.within(1, 2),
        groups: g.pick(&[1, 1, 2, 3]),
    }
}

pub fn convolution(g: &mut Gen) -> Case {
    let ty = g.pick(&[Ty::F32, Ty::F64, Ty::F32, Ty::F16, Ty::BF16]);
    let mut conv = sizes(g);
    let kind = g.below(4);
    if kind == 3 {
        conv.groups = 1;
    }
    let per_group = g.full_dim();
    let mut channels = conv.groups * per_group;
    if g.chance(2) {
        channels += 1;
    }
    let spatial = if kind.is_multiple_of(2) { 1 } else { 2 };
    let mut input = vec![g.within(1, 3), channels];
    let mut kernel = match kind {
        // (out, in / groups, …)
        0 | 1 => vec![conv.groups * g.full_dim(), per_group],
        // (in, out / groups, …)
        _ => vec![channels, g.full_dim()],
    };
    for _ in 0..spatial {
        kernel.push(g.within(1, 4));
        input.push(g.within(1, 3) + 2 * g.full_dim());
    }
    let op = match kind {
        0 => Op::Conv1d(conv),
        1 => Op::Conv2d(conv),
        2 => Op::ConvTranspose1d(conv),
        _ => Op::ConvTranspose2d(conv),
    };
    Case {
        inputs: vec![
            g.input(ty, &input, Fill::Unit),
            g.input(ty, &kernel, Fill::Unit),
        ],
        op,
    }
}

#[test]
fn convolutions() {
    values(convolution, RULE);
}

pub fn pool(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::ALL);
    let dims = [g.full_dim(), g.full_dim(), g.within(1, 12), g.within(1, 12)];
    let kernel = (g.within(1, 4), g.within(1, 4));
    let stride = if g.chance(40) {
        kernel
    } else {
        (g.within(1, 4), g.within(1, 4))
    };
    let name = g.pick(&["avg_pool2d", "max_pool2d"]);
    Case {
        inputs: vec![g.input(ty, &dims, Fill::Unit)],
        op: Op::Pool(name, kernel, stride),
    }
}

#[test]
fn pooling() {
    values(pool, RULE);
}

pub fn resize(g: &mut Gen) -> Case {
    // Upstream converts through f64, and its conversion from F8E4M3 never returns.
    let ty = g.pick(&[Ty::F32, Ty::F64, Ty::F16, Ty::BF16, Ty::U8, Ty::I64]);
    let (h, w) = (g.within(1, 12), g.within(1, 12));
    let corners = g.chance(50);
    let dims = [g.full_dim(), g.full_dim(), g.full_dim(), g.full_dim()];
    let (dims, op) = match g.below(6) {
        0 => (&dims[..3], Op::Resize("upsample_nearest1d", vec![h])),
        1 => (&dims[..3], Op::Resize("interpolate1d", vec![h])),
        2 => (&dims[..], Op::Resize("upsample_nearest2d", vec![h, w])),
        3 => (&dims[..], Op::Resize("interpolate2d", vec![h, w])),
        4 => (&dims[..], Op::Bilinear(h, w, corners)),
        _ => {
            let scales = [0.5, 1., 1.5, 2., 2.3];
            let op = Op::BilinearScale(g.pick(&scales), g.pick(&scales), corners);
            (&dims[..], op)
        }
    };
    Case {
        inputs: vec![g.input(ty, dims, Fill::Unit)],
        op,
    }
}

#[test]
fn upsampling_and_interpolation() {
    values(resize, RULE);
}

/// All elements of a row differ, so the order is unique: upstream's sort is not stable.
pub fn sort(g: &mut Gen) -> Case {
    let ty = g.pick(&Ty::ALL);
    let dims = g.shape(1..=4);
    let mut input = g.input(ty, &dims, Fill::Unit);
    let name = g.pick(&["sort_last_dim", "arg_sort_last_dim"]);
    let n = input.view.base.iter().product();
    if g.chance(70) {
        let order: Vec<_> = g.permutation(n).iter().map(|i| (i % 120) as f64).collect();
        input.data = oracle_ops::value::Elements::new(ty, &order);
    }
    Case {
        inputs: vec![input],
        op: Op::Sort(name, g.chance(50)),
    }
}

#[test]
fn sorting() {
    values(sort, RULE);
}
