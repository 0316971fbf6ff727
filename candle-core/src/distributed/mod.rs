//! Ranks that work on one problem together: sums, gathers and broadcasts of tensors over a group. Not in upstream's interface.
//!
//! A [`Communicator`] is one rank's end of a group. All ranks call the same operations in the same order, each with its own tensor; a call
//! returns after all ranks have made it. Code over the trait is independent of the transport:
//!
//! | type | ranks are | tensors travel |
//! | --- | --- | --- |
//! | [`LocalGroup`] | threads of one process | through the memory of the host |
//! | [`ProcessGroup`] | processes | through the host, and over TCP via rank 0 |
//! | `cuda_backend::NcclGroup` (feature `cuda`) | threads or processes, each with an NVIDIA card | from card to card, through NCCL |
//!
//! The first two accept tensors of any device, and favour correctness over speed: a tensor on a GPU is read back, and the result is written
//! to the GPU again. [`on_devices`] chooses for ranks of one process.
//!
//! ```
//! use candle_core::distributed::{Communicator, LocalGroup};
//! use candle_core::{Device, Result, Tensor};
//! # fn main() -> Result<()> {
//! let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let ranks = LocalGroup::ranks(2)?.into_iter();
//!     let threads: Vec<_> = ranks
//!         .map(|group| {
//!             scope.spawn(move || {
//!                 let mine = Tensor::new(&[group.rank() as f32, 10.], &Device::Cpu)?;
//!                 group.all_reduce(&mine)?.to_vec1()
//!             })
//!         })
//!         .collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_>>()
//! })?;
//! assert_eq!(sums, [[1., 20.], [1., 20.]]);
//! # Ok(())
//! # }
//! ```
//!
//! # When a rank fails
//!
//! A group ends as a whole. A rank ends it by returning early with an error, by panicking, by being dropped, by calling
//! [`Communicator::abort`], or by making another call than the others. The current and later calls of the other ranks then return an error
//! that names that rank. If a rank does not arrive, the others' calls time out, with an error that names it. Calls over NCCL return before
//! the cards have met: there the error may come from the next call, or from reading a result.
//!
//! # Gradients
//!
//! None: a tensor that autograd tracks is refused, because the missing gradient would go unnoticed.

#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod call;
mod communicator;
#[cfg(not(target_arch = "wasm32"))]
mod local;
#[cfg(not(target_arch = "wasm32"))]
mod process;

pub use communicator::{reason, Communicator, DEFAULT_TIMEOUT};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use communicator::{shared, Links};
#[cfg(not(target_arch = "wasm32"))]
pub use local::LocalGroup;
#[cfg(not(target_arch = "wasm32"))]
pub use process::ProcessGroup;

#[cfg(not(target_arch = "wasm32"))]
use std::sync::Arc;

#[cfg(not(target_arch = "wasm32"))]
use crate::{Device, Result};

/// Creates a group of one rank on each of `devices`, in order, for threads of this process: over NCCL if there are several NVIDIA cards and
/// each rank has one to itself, else a [`LocalGroup`].
///
/// # Errors
/// If there are no devices; if NCCL is needed and not installed, with installation instructions.
#[cfg(not(target_arch = "wasm32"))]
pub fn on_devices(devices: &[Device]) -> Result<Vec<Arc<dyn Communicator>>> {
    let links = crate::dispatch::LINKS.iter();
    if let Some(ranks) = links.copied().find_map(|links| links.ranks(devices)) {
        return ranks;
    }
    Ok(shared(LocalGroup::ranks(devices.len())?))
}
