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
#[cfg(not(target_arch = "wasm32"))]
mod local;
#[cfg(not(target_arch = "wasm32"))]
mod process;

#[cfg(not(target_arch = "wasm32"))]
pub use local::LocalGroup;
#[cfg(not(target_arch = "wasm32"))]
pub use process::ProcessGroup;

#[cfg(not(target_arch = "wasm32"))]
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
use crate::Device;
use crate::{Error, Result, Tensor};

/// Default time limit of a call that waits for the other ranks: long, because ranks that load weights do not arrive together.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

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

/// The ranks of one group, each for a thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn shared<G: Communicator + 'static>(ranks: Vec<G>) -> Vec<Arc<dyn Communicator>> {
    let shared = |rank| Arc::new(rank) as Arc<dyn Communicator>;
    ranks.into_iter().map(shared).collect()
}

/// Connections between a backend's devices that bypass the host. Backends implement it; `dispatch.rs` lists them.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) trait Links: Sync {
    /// A group of one rank on each of `devices`, in order; `None` if these links do not connect all of them.
    ///
    /// # Errors
    /// If they do, but the group cannot be created.
    fn ranks(&self, devices: &[Device]) -> Option<Result<Vec<Arc<dyn Communicator>>>>;
}

/// The message of an error without its backtrace: the reason to give to [`Communicator::abort`].
pub fn reason(err: &Error) -> String {
    match err {
        Error::WithBacktrace { inner, .. } => reason(inner),
        Error::WithPath { inner, path } => format!("{}: {}", path.display(), reason(inner)),
        Error::Context { inner, context } => format!("{context}: {}", reason(inner)),
        other => other.to_string(),
    }
}

/// One rank's end of a group. Dropping the last handle of a rank ends the group for the others.
///
/// The tensors that ranks pass to one call have the same shape and dtype; results are contiguous, on the device of the rank's tensor, and
/// bitwise equal on all ranks.
pub trait Communicator: std::fmt::Debug + Send + Sync {
    /// This rank's number, from 0 on.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// The sum of all ranks' tensors, in the shape of each. Integers wrap around.
    ///
    /// # Errors
    /// If the group has ended, the ranks' calls differ, the dtype has no sum, or autograd tracks the tensor.
    fn all_reduce(&self, xs: &Tensor) -> Result<Tensor>;

    /// The tensors of all ranks, concatenated along `dim` in the order of the ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); if the tensor has no dimension `dim`.
    fn all_gather(&self, xs: &Tensor, dim: usize) -> Result<Tensor>;

    /// The tensor of rank `root`. Of the other ranks' tensors only shape, dtype and device are used.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); if there is no rank `root`.
    fn broadcast(&self, xs: &Tensor, root: usize) -> Result<Tensor>;

    /// Whether a device can record calls, see [`CudaDevice::record`](crate::CudaDevice::record): all ranks then make them each time the
    /// recording is launched.
    fn records(&self) -> bool {
        false
    }

    /// Ends the group because this rank failed; the other ranks' errors contain `reason`. Does nothing if the group has already ended.
    fn abort(&self, reason: &str);
}
