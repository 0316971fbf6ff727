//! A chain of layers.

use crate::func;
use candle_core::{Module, Result, Tensor};

/// A chain of layers. An empty one is the identity.
pub struct Sequential {
    layers: Vec<Box<dyn Module>>,
}

/// An empty chain, to which [`Sequential::add`] appends.
pub fn seq() -> Sequential {
    Sequential { layers: vec![] }
}

impl Sequential {
    /// Number of layers.
    pub fn len(&self) -> i64 {
        self.layers.len() as i64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Appends a layer.
    // Upstream's name; there is nothing to add up here.
    #[allow(clippy::should_implement_trait)]
    pub fn add<M: Module + 'static>(mut self, layer: M) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Appends a closure.
    pub fn add_fn<F>(self, f: F) -> Self
    where
        F: 'static + Fn(&Tensor) -> Result<Tensor> + Send + Sync,
    {
        self.add(func(f))
    }

    /// Runs the layers and returns the output of each, in order.
    ///
    /// # Errors
    /// That of the first layer to fail.
    pub fn forward_all(&self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            outputs.push(layer.forward(outputs.last().unwrap_or(xs))?);
        }
        Ok(outputs)
    }
}

impl Module for Sequential {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.layers
            .iter()
            .try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    }
}
