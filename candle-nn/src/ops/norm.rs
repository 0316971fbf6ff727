//! RMS norm and layer norm over the last dimension.

use super::{act_mul, check_dtypes, compute_dtype, in_graph, zeros_of, GatedActivation};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use candle_core::fused::{self, BesideNorm, Fused, Operand};
use candle_core::{
    CpuStorage, CustomOp1, Error, Layout, Result, Shape, Storage, Tensor, WithDType, D,
};
use num_traits::Float as _;

/// A norm over the last dimension, of size n: of RMS, or of layer norm where it is centred. Not in upstream's interface.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Whether the mean is subtracted first.
    pub centred: bool,
    /// Multiplied with the normalised rows: (n); `None` for no weight.
    pub weight: Option<&'a Tensor>,
    /// Added after the weight: (n); `None` for no bias.
    pub bias: Option<&'a Tensor>,
    /// Added to the mean square before the square root.
    pub eps: f32,
}

impl<'a> Norm<'a> {
    /// RMS norm with a weight: what [`rms_norm`] is.
    pub fn rms(weight: &'a Tensor, eps: f32) -> Self {
        Self {
            centred: false,
            weight: Some(weight),
            bias: None,
            eps,
        }
    }

    /// Layer norm with both: what [`layer_norm`] is.
    pub fn layer(weight: &'a Tensor, bias: &'a Tensor, eps: f32) -> Self {
        Self {
            centred: true,
            weight: Some(weight),
            bias: Some(bias),
            eps,
        }
    }
}

/// `norm` of `xs`, (…, n), in one kernel. Any layouts. Not in upstream's interface.
///
/// # Errors
/// A weight or bias is not of shape (n), the dtypes differ, or the dtype is not a float.
pub fn norm(xs: &Tensor, norm: Norm<'_>) -> Result<Tensor> {
    NormOp::new(xs, norm, None)?.run(xs)
}

/// The plain form of [`norm()`]: 16-bit inputs are normalised in f32, rounded, and then scaled and shifted.
///
/// # Errors
/// Those of [`norm()`].
pub fn norm_slow(xs: &Tensor, norm: Norm<'_>) -> Result<Tensor> {
    NormOp::new(xs, norm, None)?.plain(xs)
}

/// `norm(xs) + residual`, in one kernel: the end of a block in models that norm its output. `residual` has the shape of `xs`. Any
/// layouts. Not in upstream's interface.
///
/// # Errors
/// The inputs' shapes differ, or those of [`norm()`].
pub fn norm_add(xs: &Tensor, norm: Norm<'_>, residual: &Tensor) -> Result<Tensor> {
    NormOp::new(xs, norm, Some((BesideNorm::AddAfter, residual)))?.run(xs)
}

/// The plain form of [`norm_add`].
///
/// # Errors
/// Those of [`norm_add`].
pub fn norm_add_slow(xs: &Tensor, norm: Norm<'_>, residual: &Tensor) -> Result<Tensor> {
    NormOp::new(xs, norm, Some((BesideNorm::AddAfter, residual)))?.plain(xs)
}

/// `xs + residual` and the norm of that sum, in one kernel: as between two blocks of a transformer. Both inputs are (…, n) of one
/// shape; any layouts. Gives (sum, normed). Not in upstream's interface.
///
/// # Errors
/// The inputs' shapes differ, or those of [`norm()`].
pub fn add_norm(xs: &Tensor, residual: &Tensor, norm: Norm<'_>) -> Result<(Tensor, Tensor)> {
    let op = NormOp::new(xs, norm, Some((BesideNorm::AddBefore, residual)))?;
    if xs.elem_count() == 0 || op.in_graph(xs) {
        let sum = (xs + residual)?;
        let normed = self::norm(&sum, norm)?;
        return Ok((sum, normed));
    }
    let both = xs.apply_op1_no_bwd(&op)?;
    Ok((both.get(0)?, both.get(1)?))
}

/// The plain form of [`add_norm`].
///
/// # Errors
/// Those of [`add_norm`].
pub fn add_norm_slow(xs: &Tensor, residual: &Tensor, norm: Norm<'_>) -> Result<(Tensor, Tensor)> {
    NormOp::new(xs, norm, Some((BesideNorm::AddBefore, residual)))?;
    let sum = (xs + residual)?;
    let normed = norm_slow(&sum, norm)?;
    Ok((sum, normed))
}

/// `silu(gate) * norm(xs)`, in one kernel: the gated norm of gated delta nets. `gate` has the shape of `xs`. Any layouts. Not in
/// upstream's interface.
///
/// # Errors
/// The inputs' shapes differ, or those of [`norm()`].
pub fn norm_gate(xs: &Tensor, norm: Norm<'_>, gate: &Tensor) -> Result<Tensor> {
    NormOp::new(xs, norm, Some((BesideNorm::GateAfter, gate)))?.run(xs)
}

/// The plain form of [`norm_gate`].
///
/// # Errors
/// Those of [`norm_gate`].
pub fn norm_gate_slow(xs: &Tensor, norm: Norm<'_>, gate: &Tensor) -> Result<Tensor> {
    NormOp::new(xs, norm, Some((BesideNorm::GateAfter, gate)))?.plain(xs)
}

/// `xs / sqrt(mean(xs²) + eps) * alpha`, the mean being over the last dimension, in one kernel; see
/// <https://arxiv.org/abs/1910.07467>. `xs` is (…, n), `alpha` is (n); any layouts.
///
/// # Errors
/// `alpha` is not of shape (n), the dtypes differ, or the dtype is not a float.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    norm(xs, Norm::rms(alpha, eps))
}

/// The plain form of [`rms_norm`]: 16-bit inputs are normalised in f32, rounded, and then scaled.
///
/// # Errors
/// Those of [`rms_norm`].
pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    norm_slow(x, Norm::rms(alpha, eps))
}

/// `(xs - mean(xs)) / sqrt(var(xs) + eps) * alpha + beta`, over the last dimension and with the biased variance, in one
/// kernel; see <https://arxiv.org/abs/1607.06450>. `xs` is (…, n), `alpha` and `beta` are (n); any layouts.
///
/// # Errors
/// `alpha` or `beta` is not of shape (n), the dtypes differ, or the dtype is not a float.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    norm(xs, Norm::layer(alpha, beta, eps))
}

/// The plain form of [`layer_norm`]: 16-bit inputs are normalised in f32, rounded, and then scaled and shifted.
///
/// # Errors
/// Those of [`layer_norm`].
pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    norm_slow(x, Norm::layer(alpha, beta, eps))
}

/// `x` less its mean over the last dimension.
pub(crate) fn centred(x: &Tensor) -> Result<Tensor> {
    let mean = (x.sum_keepdim(D::Minus1)? / x.dim(D::Minus1)? as f64)?;
    x.broadcast_sub(&mean)
}

/// `x` divided by the root of its mean square over the last dimension.
pub(crate) fn normed(x: &Tensor, eps: f64) -> Result<Tensor> {
    let mean_square = (x.sqr()?.sum_keepdim(D::Minus1)? / x.dim(D::Minus1)? as f64)?;
    x.broadcast_div(&(mean_square + eps)?.sqrt()?)
}

/// One call, its shapes checked.
struct NormOp<'a> {
    norm: Norm<'a>,
    second: Option<(BesideNorm, &'a Tensor)>,
}

impl<'a> NormOp<'a> {
    fn new(xs: &Tensor, norm: Norm<'a>, second: Option<(BesideNorm, &'a Tensor)>) -> Result<Self> {
        let op = Self { norm, second };
        let name = op.name();
        let mismatch = |rhs: &Tensor| {
            Error::ShapeMismatchBinaryOp {
                lhs: xs.shape().clone(),
                rhs: rhs.shape().clone(),
                op: name,
            }
            .bt()
        };
        let Some(n) = xs.dims().last() else {
            candle_core::bail!("{name}: the input is a scalar; it needs a last dimension")
        };
        let vectors = [norm.weight, norm.bias].into_iter().flatten();
        if let Some(vector) = vectors.clone().find(|vector| vector.dims() != [*n]) {
            return Err(mismatch(vector));
        }
        let second = second.map(|(_, tensor)| tensor);
        if let Some(tensor) = second.filter(|tensor| tensor.shape() != xs.shape()) {
            return Err(mismatch(tensor));
        }
        let all = [xs].into_iter().chain(second).chain(vectors);
        check_dtypes(name, &all.collect::<Vec<_>>())?;
        Ok(op)
    }

    /// The inputs of the result.
    fn tensors<'b>(&'b self, xs: &'b Tensor) -> Vec<&'b Tensor> {
        let second = self.second.map(|(_, tensor)| tensor);
        let all = [Some(xs), self.norm.weight, self.norm.bias, second];
        all.into_iter().flatten().collect()
    }

    fn in_graph(&self, xs: &Tensor) -> bool {
        in_graph(&self.tensors(xs))
    }

    fn run(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.elem_count() == 0 {
            return zeros_of(xs.shape(), xs, &self.tensors(xs));
        }
        if self.in_graph(xs) {
            return self.plain(xs);
        }
        xs.apply_op1_no_bwd(self)
    }

    /// The plain form; for a sum before the norm, it returns the norm alone.
    fn plain(&self, xs: &Tensor) -> Result<Tensor> {
        let sum = match self.second {
            Some((BesideNorm::AddBefore, residual)) => Some((xs + residual)?),
            _ => None,
        };
        let xs = sum.as_ref().unwrap_or(xs);
        let mut wide = xs.to_dtype(compute_dtype(xs.dtype()))?;
        if self.norm.centred {
            wide = centred(&wide)?;
        }
        let mut ys = normed(&wide, f64::from(self.norm.eps))?.to_dtype(xs.dtype())?;
        if let Some(weight) = self.norm.weight {
            ys = ys.broadcast_mul(weight)?;
        }
        if let Some(bias) = self.norm.bias {
            ys = ys.broadcast_add(bias)?;
        }
        match self.second {
            Some((BesideNorm::AddAfter, residual)) => ys + residual,
            Some((BesideNorm::GateAfter, gate)) => act_mul(gate, &ys, GatedActivation::Silu),
            _ => Ok(ys),
        }
    }

    /// The shape of the result: of a sum followed by its norm.
    fn output(&self, x_l: &Layout) -> Shape {
        match self.second {
            Some((BesideNorm::AddBefore, _)) => Shape::from([&[2], x_l.dims()].concat()),
            _ => x_l.shape().clone(),
        }
    }

    fn cpu<T: Float>(
        &self,
        x: &StridedRows<'_, T>,
        x_l: &Layout,
        weights: [Option<&StridedRows<'_, T>>; 2],
        second: Option<&StridedRows<'_, T>>,
    ) -> Vec<T> {
        let (n, count) = (x.len(), x_l.shape().elem_count());
        let (Some((how, _)), Some(tensor)) = (self.second, second) else {
            return norm_rows(x, count, &self.norm, weights, None);
        };
        if how != BesideNorm::AddBefore {
            return norm_rows(x, count, &self.norm, weights, Some((how, tensor)));
        }
        let scratch = || (fused_cpu::scratch(n), fused_cpu::scratch(n));
        let mut sums = fused_cpu::map_rows(count / n, n, n, scratch, |(xs, rs), index, dst| {
            let pairs = x.get(index, xs).iter().zip(tensor.get(index, rs));
            for (dst, (&x, &r)) in dst.iter_mut().zip(pairs) {
                *dst = T::narrow(x + r);
            }
        });
        let sum_l = Layout::contiguous(x_l.shape());
        let rows = StridedRows::new(&sums, &sum_l);
        let normed = norm_rows(&rows, count, &self.norm, weights, None);
        sums.extend_from_slice(&normed);
        sums
    }
}

impl CustomOp1 for NormOp<'_> {
    fn name(&self) -> &'static str {
        let second = self.second.map(|(second, _)| second);
        match (second, self.norm.centred) {
            (None, false) => "rms-norm",
            (None, true) => "layer-norm",
            (Some(BesideNorm::AddBefore), false) => "add-rms-norm",
            (Some(BesideNorm::AddBefore), true) => "add-layer-norm",
            (Some(BesideNorm::AddAfter), _) => "norm-add",
            (Some(BesideNorm::GateAfter), _) => "norm-gate",
        }
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_l: &Layout) -> Result<(CpuStorage, Shape)> {
        let second = self.second.map(|(_, tensor)| tensor);
        let held = [self.norm.weight, self.norm.bias, second]
            .map(|tensor| tensor.map(Tensor::storage_and_layout));
        let dst = with_float!(self.name(), x, T => {
            let mut others = [const { None }; 3];
            for (other, held) in others.iter_mut().zip(&held) {
                if let Some((storage, layout)) = held {
                    let Storage::Cpu(storage) = &**storage else {
                        candle_core::bail!("{}: the input is on the CPU, but another argument is not", self.name())
                    };
                    *other = Some(StridedRows::new(storage.as_slice::<T>()?, layout));
                }
            }
            let [weight, bias, second] = others.each_ref().map(Option::as_ref);
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            Ok(T::to_cpu_storage_owned(self.cpu(&x, x_l, [weight, bias], second)))
        })?;
        Ok((dst, self.output(x_l)))
    }

    super::on_devices!(x x_l);
}

impl NormOp<'_> {
    fn on_device<S: Fused>(&self, [x]: [Operand<'_, S>; 1]) -> Result<(S, Shape)> {
        let second = self.second.map(|(_, tensor)| tensor);
        let held = [self.norm.weight, self.norm.bias, second]
            .map(|tensor| tensor.map(Tensor::storage_and_layout));
        let mut others = [None; 3];
        for (other, held) in others.iter_mut().zip(&held) {
            if let Some((storage, layout)) = held {
                let storage = super::same_backend::<S>(storage, self.name(), "other argument")?;
                *other = Some((storage, *layout));
            }
        }
        let [weight, bias, second] = others;
        let norm = fused::Norm {
            op: self.name(),
            centred: self.norm.centred,
            weight,
            bias,
            eps: self.norm.eps,
            beside: match (self.second, second) {
                (Some((how, _)), Some(operand)) => Some((how, operand)),
                _ => None,
            },
        };
        Ok((S::norm(x, norm)?, self.output(x.1)))
    }
}

/// All norms on the CPU, but for a sum before one.
fn norm_rows<T: Float>(
    x: &StridedRows<'_, T>,
    elem_count: usize,
    norm: &Norm<'_>,
    [alpha, beta]: [Option<&StridedRows<'_, T>>; 2],
    second: Option<(BesideNorm, &StridedRows<'_, T>)>,
) -> Vec<T> {
    let n = x.len();
    let len = T::Acc::from_f64(n as f64);
    let eps = T::Acc::from_f64(f64::from(norm.eps));
    let (mut alphas, mut betas) = (fused_cpu::scratch(n), fused_cpu::scratch(n));
    let alpha = alpha.map(|alpha| alpha.get(0, &mut alphas));
    let beta = beta.map(|beta| beta.get(0, &mut betas));
    let scratch = || {
        let row = || fused_cpu::scratch(n);
        ([row(), row(), row()], [row(), row()])
    };
    fused_cpu::map_rows(elem_count / n, n, 4 * n, scratch, |rows, index, dst| {
        let ([widened, centred, results], [others, gates]) = rows;
        let mut row = x.get(index, widened);
        let other = second.map(|(_, second)| second.get(index, others));
        if let Some((BesideNorm::GateAfter, _)) = second {
            let other = other.unwrap_or_default();
            Acc::sigmoid(other, gates);
            for (gate, &x) in gates.iter_mut().zip(other) {
                *gate *= x;
            }
        }
        if norm.centred {
            let mean = Acc::sum(row) / len;
            for (dst, &x) in centred.iter_mut().zip(row) {
                *dst = x - mean;
            }
            row = centred;
        }
        let scale = (Acc::dot(row, row) / len + eps).sqrt().recip();
        T::write_row(dst, results, |dst| {
            match alpha {
                Some(alpha) => {
                    for ((dst, &x), &alpha) in dst.iter_mut().zip(row).zip(alpha) {
                        *dst = x * scale * alpha;
                    }
                }
                None => {
                    for (dst, &x) in dst.iter_mut().zip(row) {
                        *dst = x * scale;
                    }
                }
            }
            if let Some(beta) = beta {
                for (dst, &beta) in dst.iter_mut().zip(beta) {
                    *dst += beta;
                }
            }
            match second {
                Some((BesideNorm::AddAfter, _)) => {
                    for (dst, &r) in dst.iter_mut().zip(other.unwrap_or_default()) {
                        *dst += r;
                    }
                }
                Some((BesideNorm::GateAfter, _)) => {
                    for (dst, &gate) in dst.iter_mut().zip(gates.iter()) {
                        *dst *= gate;
                    }
                }
                _ => {}
            }
        });
    })
}
