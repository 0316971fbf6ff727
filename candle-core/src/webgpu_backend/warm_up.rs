//! Compiles kernels before they are needed.
//!
//! The kernels of a model follow from its shapes, dtypes and layouts, in ways that only the ops know. So a warm-up runs the model's own
//! code on a thread that is marked: ops queue nothing but record their shaders, and the new ones are then compiled, several at a time.

use std::cell::RefCell;

use super::kernel::{AnyKernel, ByKernel, Shader};
use crate::{Error, Result};

thread_local! {
    static WARMING: RefCell<Option<Warming>> = const { RefCell::new(None) };
}

struct Warming {
    device: u64,
    shaders: ByKernel<Shader>,
}

/// The result of a warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp {
    /// Number of kernels that the work uses.
    pub kernels: usize,
    /// Number of kernels that were compiled by this warm-up.
    pub compiled: usize,
}

/// Whether this thread is warming up the device with this number.
pub(super) fn is_warming(device: u64) -> bool {
    WARMING.with_borrow(|warming| warming.as_ref().is_some_and(|w| w.device == device))
}

/// Records a shader for later compilation.
pub(super) fn keep(kernel: &(dyn AnyKernel + 'static), shader: impl FnOnce() -> Shader) {
    WARMING.with_borrow_mut(|warming| {
        if let Some(warming) = warming {
            let slot = warming.shaders.entry(kernel.boxed());
            slot.or_insert_with(shader);
        }
    });
}

/// Removes the mark from the thread, also if the work panics.
struct Unmark;

impl Drop for Unmark {
    fn drop(&mut self) {
        WARMING.take();
    }
}

/// The shaders that `work` uses on the device with this number, recorded by a marked thread.
pub(super) fn shaders<T>(
    device: u64,
    work: impl FnOnce() -> Result<T>,
) -> Result<ByKernel<Shader>> {
    let nested = WARMING.with_borrow_mut(|warming| {
        let nested = warming.is_some();
        if !nested {
            *warming = Some(Warming {
                device,
                shaders: ByKernel::default(),
            });
        }
        nested
    });
    if nested {
        return Err(Error::WebGpu("warm_up: this thread is already warming up".into()).bt());
    }
    let unmark = Unmark;
    let worked = work();
    let shaders = WARMING.take().map(|warming| warming.shaders);
    drop(unmark);
    worked?;
    Ok(shaders.unwrap_or_default())
}
