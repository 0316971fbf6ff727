//! The middle of a gated feed-forward block, see <https://arxiv.org/abs/2002.05202>.

use super::{check_dtypes, in_graph, sigmoid, zeros_of};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use crate::Activation;
use candle_core::fused::{Fused, Gate, Operand};
use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor, WithDType, D};

/// The combination of gate and up projection in a gated feed-forward block: `f(gate) * up`. Not in upstream's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GatedActivation {
    /// `f(x) = x * sigmoid(x)`: SwiGLU, as in Llama.
    Silu,
    /// `f(x) = x * Φ(x)`, with the exact distribution function Φ of the normal distribution.
    Gelu,
    /// [`GatedActivation::Gelu`] in its tanh approximation, as in Gemma.
    GeluTanh,
    /// `f(x) = x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `f(x) = max(x, 0)`.
    Relu,
    /// `f(x) = max(x, 0)²`.
    Relu2,
    /// `f(x) = sigmoid(x)`.
    Sigmoid,
    /// gpt-oss's form: `gate * sigmoid(1.702 gate) * (up + 1)`, of `min(gate, 7)` and of `up` clamped to -7..=7.
    ClampedSwiglu,
}

/// The slope of [`GatedActivation::QuickGelu`] and [`GatedActivation::ClampedSwiglu`] in their sigmoid.
const SLOPE: f64 = 1.702;
/// The limit of [`GatedActivation::ClampedSwiglu`].
const LIMIT: f64 = 7.;

impl TryFrom<Activation> for GatedActivation {
    type Error = Error;

    /// Fails for activations that have no gated form here.
    fn try_from(activation: Activation) -> Result<Self> {
        Ok(match activation {
            Activation::Silu | Activation::Swish => Self::Silu,
            Activation::Gelu => Self::Gelu,
            Activation::NewGelu | Activation::GeluPytorchTanh => Self::GeluTanh,
            Activation::Relu => Self::Relu,
            Activation::Relu2 => Self::Relu2,
            Activation::Sigmoid => Self::Sigmoid,
            other => candle_core::bail!(
                "a gated feed-forward block does not support {other:?}; expected silu, gelu, gelu_pytorch_tanh, relu, relu2 or \
                 sigmoid"
            ),
        })
    }
}

/// `act` of a gate and what passes it, which are the two halves of the last dimension of `gate_up`, the gate first: (…, 2 n) to
/// (…, n), in one kernel. Any layouts. Not in upstream's interface.
///
/// # Errors
/// The last dimension is odd, or `gate_up` is a scalar or not of a float dtype.
pub fn gated(gate_up: &Tensor, act: GatedActivation) -> Result<Tensor> {
    let (gate, up) = halves("gated", gate_up)?;
    act_mul(&gate, &up, act)
}

/// The plain form of [`gated`].
///
/// # Errors
/// Those of [`gated`].
pub fn gated_slow(gate_up: &Tensor, act: GatedActivation) -> Result<Tensor> {
    let (gate, up) = halves("gated", gate_up)?;
    act_mul_slow(&gate, &up, act)
}

/// The halves of the last dimension.
pub(super) fn halves(op: &'static str, xs: &Tensor) -> Result<(Tensor, Tensor)> {
    let len = xs.dim(D::Minus1)?;
    if !len.is_multiple_of(2) {
        candle_core::bail!(
            "{op}: the last dimension of {:?} is odd; it must hold two halves",
            xs.shape()
        )
    }
    let half = |start| xs.narrow(D::Minus1, start, len / 2);
    Ok((half(0)?, half(len / 2)?))
}

/// `act` of `gate` and `up`, tensors of one shape, in one kernel. Any layouts. Not in upstream's interface.
///
/// # Errors
/// The shapes or dtypes differ, or the dtype is not a float.
pub fn act_mul(gate: &Tensor, up: &Tensor, act: GatedActivation) -> Result<Tensor> {
    let op = ActMul { act };
    check_dtypes(op.name(), &[gate, up])?;
    if gate.shape() != up.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: gate.shape().clone(),
            rhs: up.shape().clone(),
            op: op.name(),
        }
        .bt());
    }
    if gate.elem_count() == 0 {
        return zeros_of(gate.shape(), gate, &[gate, up]);
    }
    if in_graph(&[gate, up]) {
        return act_mul_slow(gate, up, act);
    }
    gate.apply_op2_no_bwd(up, &op)
}

/// The plain form of [`act_mul`]: each of its steps rounds to the dtype of the inputs.
///
/// # Errors
/// Those of [`act_mul`].
pub fn act_mul_slow(gate: &Tensor, up: &Tensor, act: GatedActivation) -> Result<Tensor> {
    match act {
        GatedActivation::Silu => gate.silu()? * up,
        GatedActivation::Gelu => gate.gelu_erf()? * up,
        GatedActivation::GeluTanh => gate.gelu()? * up,
        GatedActivation::QuickGelu => (gate * sigmoid(&(gate * SLOPE)?)?)? * up,
        GatedActivation::Relu => gate.relu()? * up,
        GatedActivation::Relu2 => gate.relu()?.sqr()? * up,
        GatedActivation::Sigmoid => sigmoid(gate)? * up,
        GatedActivation::ClampedSwiglu => {
            let gate = gate.minimum(LIMIT)?;
            let up = (up.clamp(-LIMIT, LIMIT)? + 1.)?;
            (&gate * sigmoid(&(&gate * SLOPE)?)?)? * up
        }
    }
}

struct ActMul {
    act: GatedActivation,
}

impl CustomOp2 for ActMul {
    fn name(&self) -> &'static str {
        match self.act {
            GatedActivation::Silu => "silu-mul",
            GatedActivation::Gelu => "gelu-mul",
            GatedActivation::GeluTanh => "gelu-tanh-mul",
            GatedActivation::QuickGelu => "quick-gelu-mul",
            GatedActivation::Relu => "relu-mul",
            GatedActivation::Relu2 => "relu2-mul",
            GatedActivation::Sigmoid => "sigmoid-mul",
            GatedActivation::ClampedSwiglu => "clamped-swiglu",
        }
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_l: &Layout,
        up: &CpuStorage,
        up_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = gate_l.shape().clone();
        let dst = with_float!(self.name(), gate, T => {
            let gate = StridedRows::new(gate.as_slice::<T>()?, gate_l);
            let up = StridedRows::new(up.as_slice::<T>()?, up_l);
            let len = gate.len();
            let row = || fused_cpu::scratch(len);
            let dst: Vec<T> = fused_cpu::map_rows(
                shape.elem_count() / len,
                len,
                8 * len,
                || (row(), row(), row(), row()),
                |(gates, ups, work, results), index, dst| {
                    let (gate, up) = (gate.get(index, gates), up.get(index, ups));
                    T::write_row(dst, results, |dst| self.act.row(gate, up, work, dst));
                },
            );
            Ok(T::to_cpu_storage_owned(dst))
        })?;
        Ok((dst, shape))
    }

    super::on_devices!(gate gate_l, up up_l);
}

impl ActMul {
    fn on_device<S: Fused>(&self, [gate, up]: [Operand<'_, S>; 2]) -> Result<(S, Shape)> {
        Ok((
            S::gated(gate, up, self.act.kernel())?,
            gate.1.shape().clone(),
        ))
    }
}

impl GatedActivation {
    /// One row on the CPU; `work` is as long as the others.
    fn row<A: Acc>(self, gate: &[A], up: &[A], work: &mut [A], dst: &mut [A]) {
        // The function of the gate, without the gate as a factor where a sigmoid has one.
        let (zero, one, slope, limit) =
            (A::zero(), A::one(), A::from_f64(SLOPE), A::from_f64(LIMIT));
        let limited = |x: A| if x > limit { limit } else { x };
        match self {
            Self::Silu | Self::Sigmoid => A::sigmoid(gate, dst),
            Self::Gelu => A::gelu_erf(gate, dst),
            Self::GeluTanh => A::gelu_tanh(gate, dst),
            Self::QuickGelu => {
                for (work, &x) in work.iter_mut().zip(gate) {
                    *work = x * slope;
                }
                A::sigmoid(work, dst);
            }
            Self::Relu | Self::Relu2 => {
                for (dst, &x) in dst.iter_mut().zip(gate) {
                    *dst = if x > zero { x } else { zero };
                }
            }
            Self::ClampedSwiglu => {
                for (work, &x) in work.iter_mut().zip(gate) {
                    *work = limited(x) * slope;
                }
                A::sigmoid(work, dst);
            }
        }
        let pairs = dst.iter_mut().zip(gate.iter().zip(up));
        match self {
            Self::Silu | Self::QuickGelu => pairs.for_each(|(y, (&x, &up))| *y = x * *y * up),
            Self::Relu2 => pairs.for_each(|(y, (_, &up))| *y = *y * *y * up),
            Self::ClampedSwiglu => pairs.for_each(|(y, (&x, &up))| {
                let up = if up < -limit { -limit } else { limited(up) };
                *y = limited(x) * *y * (up + one);
            }),
            _ => pairs.for_each(|(y, (_, &up))| *y *= up),
        }
    }

    /// As the devices' kernels name it.
    pub(super) fn kernel(self) -> Gate {
        match self {
            Self::Silu => Gate::Silu,
            Self::Gelu => Gate::Gelu,
            Self::GeluTanh => Gate::GeluTanh,
            Self::QuickGelu => Gate::QuickGelu,
            Self::Relu => Gate::Relu,
            Self::Relu2 => Gate::Relu2,
            Self::Sigmoid => Gate::Sigmoid,
            Self::ClampedSwiglu => Gate::ClampedSwiglu,
        }
    }
}
