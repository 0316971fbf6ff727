//! `backward` of every family's cases, and of expressions composed of several ops.

use crate::{convert, elementwise, hold, indexing, movement, neural, product, reduce};
use oracle_ops::case::{Case, Op};
use oracle_ops::check::{self, Rule};
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};

/// A gradient is a sum over an element's uses, with a few roundings more than the op itself.
const RULE: Rule = Rule { tolerance, differs };

/// Upstream's derivatives of `gelu_erf` and `erf` have constants of 8 digits.
fn tolerance(case: &Case) -> Tolerance {
    let n = case
        .inputs
        .iter()
        .map(|i| i.dims().iter().product::<usize>());
    let n = n.max().unwrap_or(1).max(16) as f64;
    let short = |op: &Op| matches!(op, Op::Unary("gelu_erf" | "erf" | "gelu"));
    let chained = matches!(&case.op, Op::Chain(ops) if ops.iter().any(|(op, _)| short(op)));
    if (short(&case.op) || chained) && case.inputs.iter().any(|i| i.ty() == Ty::F64) {
        return Tolerance::new(1e10, 1e10);
    }
    Tolerance::new(n, n)
}

/// Cases in which upstream's gradients are not those of its functions, as finite differences show.
fn differs(case: &Case) -> Option<&'static str> {
    let dims = case.inputs[0].dims();
    if let Some(why) = neural::differs(case) {
        return Some(why);
    }
    let input = &case.inputs[0];
    // An expanded dimension of size 1 holds one element several times.
    let read: usize = dims.iter().product();
    let kept: usize = input.view.keep.iter().map(|(_, len)| len).product();
    let ties = input.data.repeat() || read > kept;
    match &case.op {
        Op::Unary("relu" | "abs") if input.data.has(0.) => {
            Some("0 at 0, as in PyTorch; upstream's is 1")
        }
        Op::Clamp(low, high) if input.data.has(*low) || input.data.has(*high) => {
            Some("1 at the bounds, as in PyTorch; upstream's is a half")
        }
        Op::Along("max" | "max_keepdim" | "min" | "min_keepdim", _)
        | Op::Whole("max_all" | "min_all")
            if ties =>
        {
            Some("equal elements share the gradient, as in PyTorch's amax; upstream gives each the whole")
        }
        Op::Unary("gelu") if case.inputs[0].ty() == Ty::F16 => {
            Some("upstream's cube of 41 and above is infinite in f16, and its gradient NaN")
        }
        Op::Pad(_, _, 0, 0) => Some("as in the family's values"),
        Op::Binary(_) if case.inputs[0].ty() != case.inputs[1].ty() => {
            Some("two dtypes: upstream looks at them only when there are elements")
        }
        Op::Binary(_) | Op::Unary(_) if case.inputs.iter().any(|i| !i.data.is_tame()) => {
            Some("another order of the same factors, one of which overflows")
        }
        // A kernel times its gradient has to equal the input times the input's gradient, which does not hold upstream.
        Op::Conv1d(conv) | Op::Conv2d(conv) if conv.groups > 1 || dims[0] > 1 => {
            Some("the kernel's gradient is a convolution by a kernel that is not row-major, where upstream is wrong")
        }
        Op::ByIds("scatter", _) => {
            Some("an element that is overwritten has no gradient; upstream's keeps it")
        }
        Op::ByIds("scatter_add", _) => {
            Some("what is added to keeps its gradient; upstream's is 0 where something is added")
        }
        Op::Pool("max_pool2d", (h, w), _) if h * w > 1 => {
            Some("a window's largest element has its whole gradient; upstream divides it by the window's size")
        }
        Op::Unfold(..) => Some("upstream exchanges windows and their elements"),
        Op::Pool(_, (h, w), _) if !dims[2].is_multiple_of(*h) || !dims[3].is_multiple_of(*w) => {
            Some("elements in no window have no gradient; upstream moves the others onto them")
        }
        Op::Cat(_) if case.inputs.len() == 1 => Some("as in the family's values"),
        _ => None,
    }
}

/// One test per family. Cases of integers only are drawn again.
macro_rules! families {
    ($($test:ident: $family:path;)+) => {$(
        #[test]
        fn $test() {
            let family = |g: &mut Gen| loop {
                let case = $family(g);
                if case.inputs.iter().any(|i| Ty::FLOATS.contains(&i.ty())) {
                    return case;
                }
            };
            hold(family, |case| check::gradients_agree(case, RULE));
        }
    )+};
}

families! {
    unary: elementwise::unary;
    binary: elementwise::binary;
    broadcast: elementwise::broadcast;
    with_numbers: elementwise::with_numbers;
    float_parameters: elementwise::float_parameters;
    over_dims: reduce::over_dims;
    along_one: reduce::along_one;
    cumsum: reduce::cumsum;
    whole: reduce::whole;
    matmul: product::matmul;
    broadcast_matmul: product::broadcast_matmul;
    dot_or_mv: product::dot_or_mv;
    convolution: neural::convolution;
    pool: neural::pool;
    resize: neural::resize;
    sort: neural::sort;
    index_select: indexing::index_select;
    embedding: indexing::embedding;
    gather: indexing::gather;
    scatter: indexing::scatter;
    where_cond: indexing::where_cond;
    slices: indexing::slices;
    index: indexing::index;
    pad: movement::pad;
    join: movement::join;
    split: movement::split;
    rearrange: movement::rearrange;
    view: movement::view;
    cast: convert::cast;
    expressions: expression;
}

/// Two tensors of three dimensions and up to eight ops on them, in f64: values used twice, by several ops, or not at all.
fn expression(g: &mut Gen) -> Case {
    let dims = g.full_shape(3..=3);
    let inputs = vec![
        g.input(Ty::F64, &dims, Fill::Unit),
        g.input(Ty::F64, &dims, Fill::Unit),
    ];
    let mut shapes = vec![dims.clone(), dims];
    let mut ops = Vec::new();
    for _ in 0..g.within(2, 8) {
        let a = g.below(shapes.len());
        let dims = shapes[a].clone();
        let axis = g.below(3);
        // Any other of the same shape; at least itself.
        let same: Vec<_> = (0..shapes.len()).filter(|i| shapes[*i] == dims).collect();
        let b = g.pick(&same);
        let mut result = dims.clone();
        let (op, arguments) = match g.below(11) {
            0..3 => {
                let smooth = [
                    "sin", "cos", "tanh", "gelu", "gelu_erf", "silu", "relu", "sqr", "abs", "erf",
                ];
                (Op::Unary(g.pick(&smooth)), vec![a])
            }
            3 | 4 => (
                Op::Binary(g.pick(&["add", "sub", "mul", "maximum"])),
                vec![a, b],
            ),
            5 => {
                result[axis] = 1;
                let name = g.pick(&["sum_keepdim", "mean_keepdim"]);
                (Op::Reduce(name, vec![axis]), vec![a])
            }
            6 => {
                let c = g.below(shapes.len());
                for (d, other) in result.iter_mut().zip(&shapes[c]) {
                    *d = (*d).max(*other);
                }
                let fits = |s: &[usize]| s.iter().zip(&result).all(|(d, r)| *d == 1 || d == r);
                if !fits(&shapes[a]) || !fits(&shapes[c]) {
                    continue;
                }
                (
                    Op::Binary(g.pick(&["broadcast_add", "broadcast_mul"])),
                    vec![a, c],
                )
            }
            7 => {
                let order = g.permutation(3);
                result = order.iter().map(|d| dims[*d]).collect();
                (Op::Permute(order), vec![a])
            }
            8 => {
                let start = g.below(dims[axis]);
                result[axis] = g.within(1, dims[axis] - start);
                (Op::Narrow(axis as isize, start, result[axis]), vec![a])
            }
            9 if 2 * dims[axis] < 20 => {
                result[axis] *= 2;
                (Op::Cat(axis as isize), vec![a, b])
            }
            _ => (Op::Affine(g.quarter(1), g.quarter(1)), vec![a]),
        };
        shapes.push(result);
        ops.push((op, arguments));
    }
    ops.push((Op::Unary("tanh"), vec![shapes.len() - 1]));
    Case {
        inputs,
        op: Op::Chain(ops),
    }
}
