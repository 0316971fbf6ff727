//! One case for each differentiable op, from the list of candle-conformance, and one for each path of its gradient.

use candle_conformance::{Inputs, CASES};
use candle_core::{IndexOp, Result, Tensor, D};

/// An argument: its shape and the range of its elements.
pub type Arg = (&'static [usize], f64, f64);

type Function = dyn Fn(&[Tensor]) -> Result<Tensor>;

pub struct Case {
    pub name: &'static str,
    pub args: Vec<Arg>,
    pub f: Box<Function>,
    /// Whether the function is differentiable where elements of the arguments are equal.
    pub smooth: bool,
    /// Whether all devices support the op.
    pub everywhere: bool,
    /// Whether the op may ignore an argument, which then has no gradient.
    pub partial: bool,
}

fn case(
    name: &'static str,
    args: &[Arg],
    f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Case {
    Case {
        name,
        args: args.to_vec(),
        f: Box::new(f),
        smooth: true,
        everywhere: true,
        partial: false,
    }
}

impl Case {
    /// Marks a function that has a kink where elements are equal.
    fn kinks(mut self) -> Self {
        self.smooth = false;
        self
    }
}

const M: &[usize] = &[3, 4];
const T: &[usize] = &[2, 3, 4];

/// `$lhs.$name(rhs)` for elements in a range.
macro_rules! binary {
    ($($name:ident $lhs:expr, $rhs:expr, $range:expr;)*) => {
        vec![$(
            case(stringify!($name), &[($lhs, $range.0, $range.1), ($rhs, $range.0, $range.1)], |t| t[0].$name(&t[1]))
        ),*]
    };
}

macro_rules! named {
    ($($name:literal $args:expr, $f:expr;)*) => {
        vec![$(case($name, &$args, $f)),*]
    };
}

pub fn all() -> Vec<Case> {
    let mut cases: Vec<Case> = listed().collect();
    cases.extend(elementwise());
    cases.extend(reductions());
    cases.extend(products());
    cases.extend(movement());
    cases.extend(indexing());
    cases.extend(composed());
    cases.extend(images());
    cases
}

/// The ops with a gradient of candle-conformance's list.
fn listed() -> impl Iterator<Item = Case> {
    CASES.iter().filter_map(|op| {
        let (lo, hi) = op.grad?;
        let run = move |t: &[Tensor]| (op.run)(&Inputs::of(t[0].clone(), t[1].clone())?);
        Some(Case {
            smooth: op.smooth,
            partial: true,
            ..case(op.name, &[(M, lo, hi); 2], run)
        })
    })
}

fn elementwise() -> Vec<Case> {
    let mut cases = binary! {
        pow M, M, (0.5, 2.);
        broadcast_add T, &[3, 1], (-2., 2.);
        broadcast_sub &[4], T, (-2., 2.);
        broadcast_mul &[2, 1, 4], &[3, 1], (-2., 2.);
        broadcast_div &[1, 4], T, (0.5, 2.);
        broadcast_pow T, &[], (0.5, 2.);
    };
    cases.extend(
        binary! {
            broadcast_maximum T, &[3, 1], (-2., 2.);
            broadcast_minimum &[4], T, (-2., 2.);
        }
        .into_iter()
        .map(Case::kinks),
    );
    let any = [(M, -2., 2.)];
    cases.extend(named! {
        "number / x" [(M, 0.5, 2.)], |t| 3. / &t[0];
        "number - x" any, |t| 3. - &t[0];
        "clamp" any, |t| t[0].clamp(-1., 1.5);
        "maximum of a number" any, |t| t[0].maximum(0.25);
        "powf 2.5" [(M, 0.5, 2.)], |t| t[0].powf(2.5);
        "powf 3" any, |t| t[0].powf(3.);
        "powf 1" any, |t| t[0].powf(1.);
        "powf 0" any, |t| t[0].powf(0.);
        "powf -1" [(M, 0.5, 2.)], |t| t[0].powf(-1.);
        "x * floor(x)" any, |t| &t[0] * t[0].floor();
        "x * ceil(x)" any, |t| &t[0] * t[0].ceil();
        "x * round(x)" any, |t| &t[0] * t[0].round();
        "x * sign(x)" any, |t| &t[0] * t[0].sign();
        "x * (x > 0)" any, |t| &t[0] * t[0].gt(0.)?.to_dtype(t[0].dtype());
    });
    cases
}

fn reductions() -> Vec<Case> {
    let any = [(T, -2., 2.)];
    let mut cases = named! {
        "sum 0" any, |t| t[0].sum(0);
        "sum of two" any, |t| t[0].sum((2, 0));
        "sum_keepdim" any, |t| t[0].sum_keepdim(1);
        "sum of none" any, |t| t[0].sum(Vec::<usize>::new());
        "sum_all" any, |t| t[0].sum_all();
        "mean" any, |t| t[0].mean(D::Minus1);
        "mean_keepdim" any, |t| t[0].mean_keepdim((0, 1));
        "mean_all" any, |t| t[0].mean_all();
        "var" any, |t| t[0].var(1);
        "log_sum_exp" any, |t| t[0].log_sum_exp((0, 2));
        "norm" any, |t| t[0].norm();
        "cumsum 0" any, |t| t[0].cumsum(0);
        "cumsum 1" any, |t| t[0].cumsum(1);
    };
    let extremes = named! {
        "max 0" any, |t| t[0].max(0);
        "max 1" any, |t| t[0].max(1);
        "max_keepdim" any, |t| t[0].max_keepdim(D::Minus1);
        "max_all" any, |t| t[0].max_all();
        "min 2" any, |t| t[0].min(2);
        "min_keepdim" any, |t| t[0].min_keepdim(1);
        "min_all" any, |t| t[0].min_all();
        "by argmax" any, |t| t[0].gather(&t[0].detach().argmax_keepdim(1)?, 1);
    };
    cases.extend(extremes.into_iter().map(Case::kinks));
    cases
}

fn products() -> Vec<Case> {
    let matrix = (M, -2., 2.);
    named! {
        "matmul" [matrix, (&[4, 5], -2., 2.)], |t| t[0].matmul(&t[1]);
        "matmul of one row" [(&[1, 4], -2., 2.), (&[4, 5], -2., 2.)], |t| t[0].matmul(&t[1]);
        "matmul in batches" [(T, -2., 2.), (&[2, 4, 2], -2., 2.)], |t| t[0].matmul(&t[1]);
        "matmul by its own transpose" [matrix], |t| t[0].matmul(&t[0].t()?);
        "broadcast_matmul, one matrix on the right" [(T, -2., 2.), (&[4, 2], -2., 2.)], |t| t[0].broadcast_matmul(&t[1]);
        "broadcast_matmul, one matrix on the left" [matrix, (&[2, 4, 2], -2., 2.)], |t| t[0].broadcast_matmul(&t[1]);
        "broadcast_matmul, both" [(&[2, 1, 3, 2], -2., 2.), (&[3, 2, 2], -2., 2.)], |t| t[0].broadcast_matmul(&t[1]);
        "mv" [matrix, (&[4], -2., 2.)], |t| t[0].mv(&t[1]);
        "dot" [(&[4], -2., 2.), (&[4], -2., 2.)], |t| t[0].dot(&t[1]);
    }
}

fn movement() -> Vec<Case> {
    let any = [(T, -2., 2.)];
    named! {
        "reshape" any, |t| t[0].reshape((4, ()))?.sqr();
        "flatten" any, |t| t[0].flatten_from(1)?.sqr();
        "transpose" any, |t| t[0].transpose(0, 2)?.sqr();
        "t" any, |t| t[0].t()?.sqr();
        "permute" any, |t| t[0].permute((2, 0, 1))?.sqr();
        "narrow" any, |t| t[0].narrow(1, 1, 2)?.sqr();
        "narrow from 0" any, |t| t[0].narrow(2, 0, 1)?.sqr();
        "narrow overlapping" any, |t| t[0].narrow(2, 0, 3)? * t[0].narrow(2, 1, 3)?;
        "narrow to nothing" any, |t| Tensor::cat(&[t[0].narrow(2, 1, 0)?, t[0].sqr()?], 2);
        "get" any, |t| t[0].get(1)?.sqr();
        "i" any, |t| t[0].i((.., 1, 1..3))?.sqr();
        "chunk" any, |t| t[0].chunk(2, 2)?[1].sqr();
        "squeeze" [(&[3, 1, 2], -2., 2.)], |t| t[0].squeeze(1)?.sqr();
        "unsqueeze" any, |t| t[0].unsqueeze(1)?.sqr();
        "broadcast_as" [(&[3, 1], -2., 2.)], |t| t[0].broadcast_as((2, 3, 4))?.sqr();
        "broadcast_left" any, |t| t[0].broadcast_left(2)?.sqr();
        "broadcast of a scalar" [(&[], -2., 2.)], |t| t[0].broadcast_as((2, 3))?.sqr();
        "broadcast to the same" any, |t| t[0].broadcast_as((2, 3, 4))?.sqr();
        "contiguous" any, |t| t[0].t()?.contiguous()?.sqr();
        "copy" any, |t| t[0].copy()?.sqr();
        "cat 0" [(&[1, 2], -2., 2.), (&[3, 2], -2., 2.)], |t| Tensor::cat(&[&t[0], &t[1]], 0)?.sqr();
        "cat 1" [(&[2, 1], -2., 2.), (&[2, 3], -2., 2.)], |t| Tensor::cat(&[&t[0], &t[1], &t[0]], 1)?.sqr();
        "stack" any, |t| Tensor::stack(&[&t[0], &t[0].sqr()?], 1);
        "pad_with_zeros" any, |t| t[0].pad_with_zeros(1, 1, 2)?.sqr();
        "pad_with_same" any, |t| t[0].pad_with_same(2, 2, 1)?.sqr();
        "roll" any, |t| t[0].roll(1, 2)?.sqr();
        "flip" any, |t| t[0].flip(&[0, 2])?.sqr();
        "repeat" any, |t| t[0].repeat((2, 1, 3))?.sqr();
        "unfold" any, |t| t[0].unfold(2, 3, 1)?.sqr();
        "unfold with gaps" [(&[2, 7], -2., 2.)], |t| t[0].unfold(1, 2, 3)?.sqr();
        "slice_scatter 0" [(M, -2., 2.), (&[1, 4], -2., 2.)], |t| t[0].slice_scatter(&t[1], 0, 1)?.sqr();
        "slice_scatter 1" [(M, -2., 2.), (&[3, 2], -2., 2.)], |t| t[0].slice_scatter(&t[1], 1, 2)?.sqr();
        "slice_assign" [(M, -2., 2.), (&[2, 2], -2., 2.)], |t| t[0].slice_assign(&[1..3, 1..3], &t[1])?.sqr();
    }
}

fn ids(t: &Tensor, dims: &[usize], ids: &[u32]) -> Result<Tensor> {
    Tensor::from_slice(ids, dims, t.device())
}

fn indexing() -> Vec<Case> {
    let m = (M, -2., 2.);
    let mut cases = named! {
        "gather" [m], |t| t[0].gather(&ids(&t[0], &[3, 2], &[1, 1, 3, 0, 0, 3])?, 1)?.sqr();
        "gather of some rows" [m], |t| t[0].gather(&ids(&t[0], &[2, 1], &[1, 3])?, 1)?.sqr();
        "gather over columns" [m], |t| t[0].gather(&ids(&t[0], &[1, 4], &[1, 2, 2, 0])?, 0)?.sqr();
        "gather with no element" [m], |t| t[0].gather(&ids(&t[0], &[1, 4], &[1, u32::MAX, 2, 0])?, 0)?.sqr();
        "scatter" [m, (&[3, 2], -2., 2.)], |t| t[0].scatter(&ids(&t[0], &[3, 2], &[1, 2, 3, 0, 0, 3])?, &t[1], 1)?.sqr();
        "scatter_add" [m, (&[3, 2], -2., 2.)], |t| t[0].scatter_add(&ids(&t[0], &[3, 2], &[1, 1, 3, 0, 0, 3])?, &t[1], 1)?.sqr();
        "scatter_add over columns" [m, (&[2, 4], -2., 2.)], |t| t[0].scatter_add(&ids(&t[0], &[2, 4], &[1, 1, 2, 0, 0, 1, 2, 2])?, &t[1], 0)?.sqr();
        "index_select" [m], |t| t[0].index_select(&ids(&t[0], &[4], &[3, 1, 3, 0])?, 1)?.sqr();
        "index_select with no element" [m], |t| t[0].index_select(&ids(&t[0], &[3], &[1, u32::MAX, 0])?, 0)?.sqr();
        "index_select by strided indices" [m], |t| {
            let ids = ids(&t[0], &[4, 2], &[2, 9, 1, 9, 2, 9, 0, 9])?.narrow(1, 0, 1)?.squeeze(1)?;
            t[0].index_select(&ids, 0)?.sqr()
        };
        "index_add" [m, (&[3, 2], -2., 2.)], |t| t[0].index_add(&ids(&t[0], &[2], &[3, 1])?, &t[1], 1)?.sqr();
        "index_add twice to one place" [m, (&[2, 4], -2., 2.)], |t| t[0].index_add(&ids(&t[0], &[2], &[2, 2])?, &t[1], 0)?.sqr();
        "embedding" [m], |t| t[0].embedding(&ids(&t[0], &[2, 2], &[2, 0, 2, 1])?)?.sqr();
        "where_cond" [m, m], |t| {
            let cond = ids(&t[0], &[3, 4], &[0, 1, 1, 0, 2, 0, 1, 1, 0, 0, 0, 1])?;
            cond.where_cond(&t[0], &t[1])?.sqr()
        };
        "where_cond of a comparison" [m, m], |t| t[0].gt(0.5)?.where_cond(&t[0].sqr()?, &t[1]);
    };
    // Only the CPU defines which of several values written to one index remains.
    let mut last_stays = named! {
        "scatter twice to one place" [m, (&[3, 2], -2., 2.)], |t| t[0].scatter(&ids(&t[0], &[3, 2], &[1, 1, 3, 3, 0, 3])?, &t[1], 1)?.sqr();
    };
    last_stays[0].everywhere = false;
    cases.extend(last_stays);
    cases
}

fn composed() -> Vec<Case> {
    named! {
        "softmax" [(M, -2., 2.)], |t| softmax_last(&t[0]);
        "layer norm" [(M, -2., 2.), (&[4], -2., 2.), (&[4], -2., 2.)], |t| {
            let centred = t[0].broadcast_sub(&t[0].mean_keepdim(D::Minus1)?)?;
            let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
            let normed = centred.broadcast_div(&(variance + 1e-5)?.sqrt()?)?;
            normed.broadcast_mul(&t[1])?.broadcast_add(&t[2])
        };
        "attention" [(T, -1., 1.), (T, -1., 1.), (T, -1., 1.)], |t| {
            let scores = (t[0].matmul(&t[1].t()?)? * 0.5)?;
            softmax_last(&scores)?.matmul(&t[2])
        };
        "rotation" [(&[2, 4], -2., 2.), (&[2, 2], -2., 2.)], |t| {
            let (left, right) = (t[0].narrow(1, 0, 2)?, t[0].narrow(1, 2, 2)?);
            let (cos, sin) = (t[1].cos()?, t[1].sin()?);
            let turned = [((&left * &cos)? - (&right * &sin)?)?, ((&left * &sin)? + (&right * &cos)?)?];
            Tensor::cat(&turned, 1)
        };
        "cross entropy" [(M, -2., 2.)], |t| {
            let log_softmax = t[0].broadcast_sub(&t[0].log_sum_exp(1)?.unsqueeze(1)?)?;
            log_softmax.gather(&ids(&t[0], &[3, 1], &[3, 0, 1])?, 1)?.mean_all()?.neg()
        };
    }
}

fn softmax_last(t: &Tensor) -> Result<Tensor> {
    let e = t.broadcast_sub(&t.max_keepdim(D::Minus1)?)?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}

fn images() -> Vec<Case> {
    let signal: Arg = (&[2, 2, 7], -2., 2.);
    let image: Arg = (&[1, 2, 5, 6], -2., 2.);
    let mut cases = named! {
        "conv1d" [signal, (&[3, 2, 3], -2., 2.)], |t| t[0].conv1d(&t[1], 0, 1, 1, 1);
        "conv1d, padding" [signal, (&[1, 2, 2], -2., 2.)], |t| t[0].conv1d(&t[1], 3, 1, 1, 1);
        "conv1d, stride with a rest" [signal, (&[3, 2, 2], -2., 2.)], |t| t[0].conv1d(&t[1], 0, 3, 1, 1);
        "conv1d, stride with a rest and padding" [(&[1, 1, 6], -2., 2.), (&[1, 1, 3], -2., 2.)], |t| t[0].conv1d(&t[1], 1, 2, 1, 1);
        "conv1d, dilation" [signal, (&[3, 2, 2], -2., 2.)], |t| t[0].conv1d(&t[1], 1, 1, 3, 1);
        "conv1d, all" [signal, (&[3, 2, 3], -2., 2.)], |t| t[0].conv1d(&t[1], 2, 3, 2, 1);
        "conv1d, groups" [signal, (&[4, 1, 3], -2., 2.)], |t| t[0].conv1d(&t[1], 1, 2, 1, 2);
        "conv2d" [image, (&[3, 2, 2, 3], -2., 2.)], |t| t[0].conv2d(&t[1], 0, 1, 1, 1);
        "conv2d, padding and stride" [image, (&[2, 2, 3, 3], -2., 2.)], |t| t[0].conv2d(&t[1], 1, 2, 1, 1);
        "conv2d, stride 3" [image, (&[1, 2, 2, 1], -2., 2.)], |t| t[0].conv2d(&t[1], 1, 3, 1, 1);
        "conv2d, dilation" [image, (&[1, 2, 2, 2], -2., 2.)], |t| t[0].conv2d(&t[1], 1, 2, 3, 1);
        "conv2d, groups" [image, (&[2, 1, 2, 2], -2., 2.)], |t| t[0].conv2d(&t[1], 1, 1, 1, 2);
        "conv2d, groups of a batch" [(&[3, 4, 4, 3], -2., 2.), (&[6, 2, 2, 2], -2., 2.)], |t| t[0].conv2d(&t[1], 1, 2, 1, 2);
        "conv2d, a group for each channel" [(&[2, 3, 5, 4], -2., 2.), (&[3, 1, 3, 3], -2., 2.)], |t| t[0].conv2d(&t[1], 2, 1, 2, 3);
        "conv1d, groups of a view" [(&[4, 7, 2], -2., 2.), (&[3, 2, 4], -2., 2.)], |t| t[0].transpose(0, 2)?.contiguous()?.transpose(1, 2)?.conv1d(&t[1].transpose(0, 2)?, 2, 2, 1, 2);
        "conv2d, a batch" [(&[3, 1, 3, 3], -2., 2.), (&[2, 1, 2, 2], -2., 2.)], |t| t[0].conv2d(&t[1], 0, 1, 1, 1);
        "conv_transpose1d" [(&[2, 2, 4], -2., 2.), (&[2, 3, 3], -2., 2.)], |t| t[0].conv_transpose1d(&t[1], 0, 0, 1, 1, 1);
        "conv_transpose1d, all" [(&[1, 2, 4], -2., 2.), (&[2, 3, 3], -2., 2.)], |t| t[0].conv_transpose1d(&t[1], 2, 1, 3, 2, 1);
        "conv_transpose1d, groups" [(&[1, 4, 4], -2., 2.), (&[4, 1, 3], -2., 2.)], |t| t[0].conv_transpose1d(&t[1], 1, 0, 2, 1, 2);
        "conv_transpose1d, groups of a batch" [(&[3, 4, 4], -2., 2.), (&[4, 2, 3], -2., 2.)], |t| t[0].conv_transpose1d(&t[1], 1, 1, 2, 1, 2);
        "conv_transpose2d" [(&[2, 2, 3, 2], -2., 2.), (&[2, 1, 2, 3], -2., 2.)], |t| t[0].conv_transpose2d(&t[1], 0, 0, 1, 1);
        "conv_transpose2d, all" [(&[1, 2, 3, 2], -2., 2.), (&[2, 2, 2, 3], -2., 2.)], |t| t[0].conv_transpose2d(&t[1], 1, 1, 2, 2);
        "avg_pool2d" [image], |t| t[0].avg_pool2d(2)?.sqr();
        "avg_pool2d, overlapping" [image], |t| t[0].avg_pool2d_with_stride((3, 2), (1, 1))?.sqr();
        "avg_pool2d, gaps" [image], |t| t[0].avg_pool2d_with_stride((1, 2), (2, 3))?.sqr();
        "upsample_nearest1d, up" [signal], |t| t[0].upsample_nearest1d(14)?.sqr();
        "upsample_nearest1d, uneven" [signal], |t| t[0].upsample_nearest1d(10)?.sqr();
        "upsample_nearest1d, down" [signal], |t| t[0].upsample_nearest1d(3)?.sqr();
        "upsample_nearest2d" [image], |t| t[0].upsample_nearest2d(10, 4)?.sqr();
        "upsample_bilinear2d" [image], |t| t[0].upsample_bilinear2d(7, 11, false)?.sqr();
        "upsample_bilinear2d, corners aligned" [image], |t| t[0].upsample_bilinear2d(3, 11, true)?.sqr();
        "upsample_bilinear2d to one" [image], |t| t[0].upsample_bilinear2d(1, 1, true)?.sqr();
        "upsample_bilinear2d_with_scale" [image], |t| t[0].upsample_bilinear2d_with_scale(1.5, 0.7, false)?.sqr();
    };
    cases.extend(
        named! {
            "max_pool2d" [image], |t| t[0].max_pool2d(2)?.sqr();
            "max_pool2d, overlapping" [image], |t| t[0].max_pool2d_with_stride((3, 2), (1, 1))?.sqr();
            "max_pool2d, gaps" [image], |t| t[0].max_pool2d_with_stride((1, 2), (2, 3))?.sqr();
            "sort" [(M, -2., 2.)], |t| t[0].sort_last_dim(false)?.0.sqr();
        }
        .into_iter()
        .map(Case::kinks),
    );
    cases
}
