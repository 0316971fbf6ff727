//! Gradients of functions of single elements.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::{masked, Grads, Node};
use crate::op::{BinaryOp, UnaryOp};
use crate::{Error, Result, Tensor};

/// sqrt(2 / pi)
const SQRT_2_OVER_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// `grad` where the condition holds, `-grad` elsewhere.
fn signed(cond: &Tensor, grad: &Tensor) -> Result<Tensor> {
    cond.where_cond(grad, &grad.neg()?)
}

pub(super) fn unary(grads: &mut Grads, node: &Node, arg: &Tensor, op: UnaryOp) -> Result<()> {
    grads.add(arg, || {
        let (x, y, grad) = (node.arg(arg), &node.res, &node.grad);
        match op {
            UnaryOp::Exp => grad * y,
            UnaryOp::Log => grad / x,
            UnaryOp::Sin => grad * x.cos(),
            UnaryOp::Cos => (grad * x.sin())?.neg(),
            UnaryOp::Abs => masked(&x.ne(0.)?, &signed(&x.ge(0.)?, grad)?),
            UnaryOp::Neg => grad.neg(),
            UnaryOp::Recip => (grad * y.sqr())?.neg(),
            UnaryOp::Sqr => grad * (x * 2.)?,
            UnaryOp::Sqrt => grad / (y * 2.)?,
            UnaryOp::Tanh => grad * y.sqr()?.affine(-1., 1.),
            UnaryOp::Relu => masked(&x.gt(0.)?, grad),
            UnaryOp::Silu => grad * silu(&x),
            UnaryOp::Gelu => grad * gelu(&x),
            UnaryOp::GeluErf => grad * gelu_erf(&x),
            // 2 / sqrt(pi) exp(-x^2)
            UnaryOp::Erf => grad * (x.sqr()?.neg()?.exp()? * FRAC_2_SQRT_PI),
            // Step functions; the traversal stops at them.
            UnaryOp::Floor => unsupported("floor"),
            UnaryOp::Ceil => unsupported("ceil"),
            UnaryOp::Round => unsupported("round"),
            UnaryOp::Sign => unsupported("sign"),
        }
    })
}

fn unsupported(op: &'static str) -> Result<Tensor> {
    Err(Error::BackwardNotSupported { op }.bt())
}

/// The derivative of `x s(x)` with the logistic function `s`: `s + x s (1 - s)`.
fn silu(x: &Tensor) -> Result<Tensor> {
    let s = (x.neg()?.exp()? + 1.)?.recip()?;
    let slope = (&s * s.affine(-1., 1.))?;
    s + (x * slope)
}

/// The derivative of `x / 2 (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
fn gelu(x: &Tensor) -> Result<Tensor> {
    // Outside of this range it is 0 or 1 in every dtype, and no power of x overflows inside.
    let x = x.clamp(-20., 20.)?;
    let square = x.sqr()?;
    let u = (&x * square.affine(0.044715 * SQRT_2_OVER_PI, SQRT_2_OVER_PI))?;
    let t = u.tanh()?;
    let u_slope = square.affine(3. * 0.044715 * SQRT_2_OVER_PI, SQRT_2_OVER_PI)?;
    let t_slope = (t.sqr()?.affine(-1., 1.)? * u_slope)?;
    ((t + 1.)? + (x * t_slope))? * 0.5
}

/// The derivative of `x P(x)` with the normal distribution's `P`: `P(x) + x p(x)`.
fn gelu_erf(x: &Tensor) -> Result<Tensor> {
    let distribution = (x * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?;
    let density = ((x.sqr()? * -0.5)?.exp()? * (0.5 * SQRT_2_OVER_PI))?;
    distribution + (x * density)
}

pub(super) fn binary(
    grads: &mut Grads,
    node: &Node,
    lhs: &Tensor,
    rhs: &Tensor,
    op: BinaryOp,
) -> Result<()> {
    let grad = &node.grad;
    match op {
        BinaryOp::Add => {
            grads.add(lhs, || Ok(grad.clone()))?;
            grads.add(rhs, || Ok(grad.clone()))
        }
        BinaryOp::Sub => {
            grads.add(lhs, || Ok(grad.clone()))?;
            grads.add(rhs, || grad.neg())
        }
        BinaryOp::Mul => {
            grads.add(lhs, || grad * node.arg(rhs))?;
            grads.add(rhs, || grad * node.arg(lhs))
        }
        BinaryOp::Div => {
            grads.add(lhs, || grad / node.arg(rhs))?;
            grads.add(rhs, || ((grad * &node.res)? / node.arg(rhs))?.neg())
        }
        BinaryOp::Maximum | BinaryOp::Minimum => {
            grads.add(lhs, || extreme(node, lhs, rhs))?;
            grads.add(rhs, || extreme(node, rhs, lhs))
        }
    }
}

/// The gradient of the greater (or lesser) side: all of it, or half if both are equal.
fn extreme(node: &Node, side: &Tensor, other: &Tensor) -> Result<Tensor> {
    let chosen = node.arg(side).eq(&node.res)?;
    let shared = node.arg(other).eq(&node.res)?;
    masked(
        &chosen,
        &shared.where_cond(&(&node.grad * 0.5)?, &node.grad)?,
    )
}

pub(super) fn affine(grads: &mut Grads, node: &Node, arg: &Tensor, mul: f64) -> Result<()> {
    grads.add(arg, || &node.grad * mul)
}

pub(super) fn powf(grads: &mut Grads, node: &Node, arg: &Tensor, e: f64) -> Result<()> {
    grads.add(arg, || match e {
        // x^-1 times 0 would be NaN at 0.
        0. => super::zeros(arg.shape(), &node.grad),
        e => &node.grad * (node.arg(arg).powf(e - 1.)? * e)?,
    })
}

/// Below 0 the result is `alpha (exp(x) - 1)`, its derivative that plus alpha.
pub(super) fn elu(grads: &mut Grads, node: &Node, arg: &Tensor, alpha: f64) -> Result<()> {
    grads.add(arg, || {
        let below = (&node.grad * (&node.res + alpha)?)?;
        node.arg(arg).gt(0.)?.where_cond(&node.grad, &below)
    })
}
