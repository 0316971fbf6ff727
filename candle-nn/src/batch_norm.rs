//! Batch norm: normalises each channel over the batch.

use crate::{ops, Init, VarBuilder};
use candle_core::{bail, ModuleT, Result, Tensor, Var};

/// The parameters of a [`BatchNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance before the square root; 1e-5 by default.
    pub eps: f64,
    /// Whether the mean is subtracted; it is by default.
    pub remove_mean: bool,
    /// Whether there are a weight and a bias; there are by default.
    pub affine: bool,
    /// Weight of a batch's value in the running value, per training step; 0.1 by default.
    pub momentum: f64,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        Self {
            eps: 1e-5,
            remove_mean: true,
            affine: true,
            momentum: 0.1,
        }
    }
}

/// The default parameters with another `eps`.
impl From<f64> for BatchNormConfig {
    fn from(eps: f64) -> Self {
        Self {
            eps,
            ..Self::default()
        }
    }
}

/// Subtracts each channel's mean and divides by its deviation, then scales and shifts it; see <https://arxiv.org/abs/1502.03167>.
///
/// While training, mean and variance are those of the batch, and the running ones move towards them; otherwise they are the running
/// ones. Clones share the running values.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    running_mean: Var,
    running_var: Var,
    weight_and_bias: Option<(Tensor, Tensor)>,
    remove_mean: bool,
    eps: f64,
    momentum: f64,
    num_features: usize,
}

impl BatchNorm {
    /// A layer from its running values and weights, each of shape (num_features), with a momentum of 0.1.
    ///
    /// # Errors
    /// A shape is another, or `eps` is negative.
    pub fn new(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
    ) -> Result<Self> {
        let momentum = BatchNormConfig::default().momentum;
        Self::new_with_momentum(
            num_features,
            running_mean,
            running_var,
            weight,
            bias,
            eps,
            momentum,
        )
    }

    /// A layer without weights; see [`BatchNorm::new`].
    ///
    /// # Errors
    /// Those of [`BatchNorm::new`].
    pub fn new_no_bias(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
    ) -> Result<Self> {
        let momentum = BatchNormConfig::default().momentum;
        Self::new_no_bias_with_momentum(num_features, running_mean, running_var, eps, momentum)
    }

    /// [`BatchNorm::new`] with a momentum.
    ///
    /// # Errors
    /// Those of [`BatchNorm::new`], or `momentum` is not between 0 and 1.
    pub fn new_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        Self {
            running_mean: Var::from_tensor(&running_mean)?,
            running_var: Var::from_tensor(&running_var)?,
            weight_and_bias: Some((weight, bias)),
            remove_mean: true,
            eps,
            momentum,
            num_features,
        }
        .checked()
    }

    /// [`BatchNorm::new_no_bias`] with a momentum.
    ///
    /// # Errors
    /// Those of [`BatchNorm::new_with_momentum`].
    pub fn new_no_bias_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        Self {
            running_mean: Var::from_tensor(&running_mean)?,
            running_var: Var::from_tensor(&running_var)?,
            weight_and_bias: None,
            remove_mean: true,
            eps,
            momentum,
            num_features,
        }
        .checked()
    }

    fn checked(self) -> Result<Self> {
        if self.eps.is_nan() || self.eps < 0. {
            bail!("batch-norm: eps is {}; it must not be negative", self.eps)
        }
        if !(0. ..=1.).contains(&self.momentum) {
            bail!(
                "batch-norm: the momentum is {}; it must be between 0 and 1",
                self.momentum
            )
        }
        let affine = self.weight_and_bias.as_ref();
        let tensors = [
            ("running mean", Some(self.running_mean.as_tensor())),
            ("running variance", Some(self.running_var.as_tensor())),
            ("weight", affine.map(|(weight, _)| weight)),
            ("bias", affine.map(|(_, bias)| bias)),
        ];
        for (what, tensor) in tensors {
            if let Some(tensor) = tensor.filter(|t| t.dims() != [self.num_features]) {
                bail!(
                    "batch-norm: the {what} has shape {:?}; it must be [{}]",
                    tensor.dims(),
                    self.num_features
                )
            }
        }
        Ok(self)
    }

    /// The running mean, of shape (num_features).
    pub fn running_mean(&self) -> &Tensor {
        self.running_mean.as_tensor()
    }

    /// The running variance, of shape (num_features).
    pub fn running_var(&self) -> &Tensor {
        self.running_var.as_tensor()
    }

    /// The value added to the variance before the square root.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// The scale and the shift of each channel, if there are any.
    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.weight_and_bias.as_ref().map(|(w, b)| (w, b))
    }

    /// Weight of a batch's value in the running value, per training step.
    pub fn momentum(&self) -> f64 {
        self.momentum
    }

    /// Normalises `x`, of shape (batch, num_features, …), by the batch's mean and variance, and updates the running
    /// ones. The variance that is kept is the unbiased one; a channel of a single element has none, and the running
    /// variance is then left unchanged (Candle 0.11.1 makes it NaN). 16-bit floats are normalised in f32.
    ///
    /// # Errors
    /// `x` has another number of channels, or a channel has no element.
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        self.check_input(x)?;
        let count = x.elem_count() / self.num_features.max(1);
        if count == 0 {
            bail!(
                "batch-norm: the input {:?} has empty channels; training needs at least one element in each",
                x.dims()
            )
        }
        let dtype = ops::compute_dtype(x.dtype());
        let rows = x.transpose(0, 1)?;
        let dims = rows.dims().to_vec();
        let mut rows = rows.flatten_from(1)?.to_dtype(dtype)?;
        if self.remove_mean {
            let mean = rows.mean_keepdim(1)?;
            self.track(&self.running_mean, &mean, 1.)?;
            rows = rows.broadcast_sub(&mean)?;
        }
        let variance = rows.sqr()?.mean_keepdim(1)?;
        if count > 1 {
            let unbiased = count as f64 / (count - 1) as f64;
            self.track(&self.running_var, &variance, unbiased)?;
        }
        let normed = rows
            .broadcast_div(&(variance + self.eps)?.sqrt()?)?
            .to_dtype(x.dtype())?
            .reshape(dims)?
            .transpose(0, 1)?;
        self.scale(&normed)
    }

    /// `running += momentum * (factor * new - running)`
    fn track(&self, running: &Var, new: &Tensor, factor: f64) -> Result<()> {
        let new = new.detach().flatten_all()?.to_dtype(running.dtype())?;
        let kept = (running.as_detached_tensor() * (1. - self.momentum))?;
        running.set(&(kept + (new * (self.momentum * factor))?)?)
    }

    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        self.check_input(x)?;
        let mut normed = x.clone();
        if self.remove_mean {
            let mean = self.running_mean.as_detached_tensor();
            normed = normed.broadcast_sub(&per_channel(&mean, x)?)?;
        }
        let deviation = (self.running_var.as_detached_tensor() + self.eps)?.sqrt()?;
        self.scale(&normed.broadcast_div(&per_channel(&deviation, x)?)?)
    }

    fn scale(&self, x: &Tensor) -> Result<Tensor> {
        match &self.weight_and_bias {
            None => Ok(x.clone()),
            Some((weight, bias)) => x
                .broadcast_mul(&per_channel(weight, x)?)?
                .broadcast_add(&per_channel(bias, x)?),
        }
    }

    fn check_input(&self, x: &Tensor) -> Result<()> {
        match x.dims() {
            [_, channels, ..] if *channels == self.num_features => Ok(()),
            dims => bail!(
                "batch-norm: the input is {dims:?}; it must be (batch, {}, ...)",
                self.num_features
            ),
        }
    }
}

/// `t`, of shape (channels), in a shape that broadcasts along dimension 1 of `x`.
fn per_channel(t: &Tensor, x: &Tensor) -> Result<Tensor> {
    let mut dims = vec![1; x.rank()];
    dims[1] = t.elem_count();
    t.reshape(dims)
}

/// From (batch, num_features, …) to the same shape.
impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            self.forward_train(x)
        } else {
            self.forward_eval(x)
        }
    }
}

/// A layer from the tensors `running_mean`, `running_var` and, if `config` asks for them, `weight` and `bias` of `vb`, each of shape
/// (num_features). New ones start at 0, 1, 1 and 0.
///
/// # Errors
/// A tensor is missing or has another shape, or those of [`BatchNorm::new_with_momentum`].
pub fn batch_norm<C: Into<BatchNormConfig>>(
    num_features: usize,
    config: C,
    vb: VarBuilder,
) -> Result<BatchNorm> {
    let config = config.into();
    let get = |name, value| vb.get_with_hints(num_features, name, Init::Const(value));
    let (running_mean, running_var) = (get("running_mean", 0.)?, get("running_var", 1.)?);
    let weight_and_bias = if config.affine {
        Some((get("weight", 1.)?, get("bias", 0.)?))
    } else {
        None
    };
    BatchNorm {
        running_mean: Var::from_tensor(&running_mean)?,
        running_var: Var::from_tensor(&running_var)?,
        weight_and_bias,
        remove_mean: config.remove_mean,
        eps: config.eps,
        momentum: config.momentum,
        num_features,
    }
    .checked()
}
