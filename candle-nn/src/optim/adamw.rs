//! Adam with decoupled weight decay.

use super::Optimizer;
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

/// The parameters of [`AdamW`], named as in PyTorch.
#[derive(Clone, Debug)]
pub struct ParamsAdamW {
    /// The learning rate; 0.001 by default.
    pub lr: f64,
    /// Decay of the running mean of gradients; 0.9 by default.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients; 0.999 by default.
    pub beta2: f64,
    /// Added to the root of the mean square, so that nothing is divided by 0; 1e-8 by default.
    pub eps: f64,
    /// Weight decay: each step subtracts this times `lr` times the variable; 0.01 by default.
    pub weight_decay: f64,
}

impl Default for ParamsAdamW {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// A variable, and the running means of its gradients and of their squares.
#[derive(Debug)]
struct State {
    var: Var,
    mean: Var,
    mean_square: Var,
}

/// Adam with decoupled weight decay, see <https://arxiv.org/abs/1711.05101>.
#[derive(Debug)]
pub struct AdamW {
    states: Vec<State>,
    steps: usize,
    params: ParamsAdamW,
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    fn new(vars: Vec<Var>, params: ParamsAdamW) -> Result<Self> {
        let state = |var: Var| {
            let zeros = || Var::zeros(var.shape(), var.dtype(), var.device());
            let (mean, mean_square) = (zeros()?, zeros()?);
            Ok(State {
                var,
                mean,
                mean_square,
            })
        };
        let vars = vars.into_iter().filter(|var| var.dtype().is_float());
        Ok(Self {
            states: vars.map(state).collect::<Result<_>>()?,
            steps: 0,
            params,
        })
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        self.steps += 1;
        let p = &self.params;
        // Both means start at 0; these factors correct the bias.
        let unbias = |beta: f64| 1. / (1. - beta.powf(self.steps as f64));
        let (unbias_mean, unbias_square) = (unbias(p.beta1), unbias(p.beta2));
        for state in &self.states {
            let Some(grad) = grads.get(&state.var) else {
                continue;
            };
            let mean = moved(&state.mean, p.beta1, grad)?;
            let mean_square = moved(&state.mean_square, p.beta2, &grad.sqr()?)?;
            let root = ((&mean_square * unbias_square)?.sqrt()? + p.eps)?;
            let step = ((&mean * unbias_mean)?.div(&root)? * p.lr)?;
            let decayed = (state.var.as_detached_tensor() * (1. - p.lr * p.weight_decay))?;
            state.var.set(&(decayed - step)?)?;
            state.mean.set(&mean)?;
            state.mean_square.set(&mean_square)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr;
    }
}

/// `beta * mean + (1 - beta) * x`
fn moved(mean: &Var, beta: f64, x: &Tensor) -> Result<Tensor> {
    (mean.as_detached_tensor() * beta)? + (x * (1. - beta))?
}

impl AdamW {
    /// An optimiser with the default parameters but for the learning rate.
    ///
    /// # Errors
    /// Those of [`Optimizer::new`].
    pub fn new_lr(vars: Vec<Var>, learning_rate: f64) -> Result<Self> {
        let params = ParamsAdamW {
            lr: learning_rate,
            ..ParamsAdamW::default()
        };
        Self::new(vars, params)
    }

    /// The parameters.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Sets the parameters of the steps to come.
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.params = params;
    }
}
