//! Stochastic gradient descent.

use super::Optimizer;
use candle_core::backprop::GradStore;
use candle_core::{Result, Var};

/// Gradient descent without momentum: `var -= learning_rate * grad`.
#[derive(Debug)]
pub struct SGD {
    vars: Vec<Var>,
    learning_rate: f64,
}

impl Optimizer for SGD {
    /// The learning rate.
    type Config = f64;

    fn new(vars: Vec<Var>, learning_rate: f64) -> Result<Self> {
        let vars = vars.into_iter().filter(|var| var.dtype().is_float());
        Ok(Self {
            vars: vars.collect(),
            learning_rate,
        })
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        for var in &self.vars {
            if let Some(grad) = grads.get(var) {
                let step = (grad * self.learning_rate)?;
                var.set(&(var.as_detached_tensor() - step)?)?;
            }
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.learning_rate = lr;
    }
}

impl SGD {
    /// The variables.
    pub fn into_inner(self) -> Vec<Var> {
        self.vars
    }

    /// Adds a variable, which stays shared with `var`.
    pub fn push(&mut self, var: &Var) {
        self.vars.push(var.clone());
    }
}
