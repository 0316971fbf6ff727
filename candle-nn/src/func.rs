//! Closures as layers.

use candle_core::{Module, ModuleT, Result, Tensor};
use std::fmt;
use std::sync::Arc;

type Function<'a> = dyn 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync;
type FunctionT<'a> = dyn 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync;

/// A layer made of a closure, cheap to clone.
#[derive(Clone)]
pub struct Func<'a> {
    f: Arc<Function<'a>>,
}

impl<'a> Func<'a> {
    /// The layer that applies `f`.
    pub fn new<F>(f: F) -> Self
    where
        F: 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync,
    {
        Self { f: Arc::new(f) }
    }
}

impl fmt::Debug for Func<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("func")
    }
}

impl Module for Func<'_> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        (*self.f)(xs)
    }
}

/// The layer that applies `f`.
pub fn func<'a, F>(f: F) -> Func<'a>
where
    F: 'a + Fn(&Tensor) -> Result<Tensor> + Send + Sync,
{
    Func::new(f)
}

/// A layer made of a closure; the closure gets `train`, as in [`ModuleT::forward_t`].
#[derive(Clone)]
pub struct FuncT<'a> {
    f: Arc<FunctionT<'a>>,
}

impl<'a> FuncT<'a> {
    /// The layer that applies `f`, whose second argument says whether this is a training step.
    pub fn new<F>(f: F) -> Self
    where
        F: 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync,
    {
        Self { f: Arc::new(f) }
    }
}

impl fmt::Debug for FuncT<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("func_t")
    }
}

impl ModuleT for FuncT<'_> {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        (*self.f)(xs, train)
    }
}

/// The layer that applies `f`, whose second argument says whether this is a training step.
pub fn func_t<'a, F>(f: F) -> FuncT<'a>
where
    F: 'a + Fn(&Tensor, bool) -> Result<Tensor> + Send + Sync,
{
    FuncT::new(f)
}
