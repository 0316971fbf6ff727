//! Optimisers: how variables follow their gradients.
//!
//! ```
//! use candle_core::{Device, Var};
//! use candle_nn::{AdamW, Optimizer, ParamsAdamW};
//! # fn main() -> candle_core::Result<()> {
//! let x = Var::new(4f32, &Device::Cpu)?;
//! let params = ParamsAdamW { lr: 0.1, weight_decay: 0., ..Default::default() };
//! let mut optimizer = AdamW::new(vec![x.clone()], params)?;
//! for _ in 0..100 {
//!     let loss = (x.as_tensor() - 1.)?.sqr()?;
//!     optimizer.backward_step(&loss)?;
//! }
//! assert!((x.to_scalar::<f32>()? - 1.).abs() < 0.05);
//! # Ok(())
//! # }
//! ```

mod adamw;
mod sgd;

pub use adamw::{AdamW, ParamsAdamW};
pub use sgd::SGD;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

/// Updates variables from the gradients of a loss.
pub trait Optimizer: Sized {
    /// The settings of the optimiser.
    type Config: Sized;

    /// An optimiser of `vars`. Variables that are not of a float dtype have no gradient and are ignored.
    ///
    /// # Errors
    /// The state of a variable cannot be created, for example for lack of memory.
    fn new(vars: Vec<Var>, config: Self::Config) -> Result<Self>;

    /// Moves each variable that has a gradient in `grads`.
    ///
    /// # Errors
    /// A gradient has another shape, dtype or device than its variable.
    fn step(&mut self, grads: &GradStore) -> Result<()>;

    /// The length of a step.
    fn learning_rate(&self) -> f64;

    /// Sets the length of the steps to come.
    fn set_learning_rate(&mut self, lr: f64);

    /// An optimiser without variables.
    ///
    /// # Errors
    /// None.
    fn empty(config: Self::Config) -> Result<Self> {
        Self::new(vec![], config)
    }

    /// The gradients of `loss`, and a step by them.
    ///
    /// # Errors
    /// Those of [`Tensor::backward`] and of [`Optimizer::step`].
    fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        self.step(&loss.backward()?)
    }

    /// [`Optimizer::new`] for variables that are borrowed; they stay shared.
    ///
    /// # Errors
    /// Those of [`Optimizer::new`].
    fn from_slice(vars: &[&Var], config: Self::Config) -> Result<Self> {
        let vars = vars.iter().map(|&var| var.clone()).collect();
        Self::new(vars, config)
    }
}
