//! Ranks that work on one problem together: sums, gathers and broadcasts of tensors over a group. Not in upstream's interface.
//!
//! A [`Communicator`] is one rank's end of a group. All ranks call the same operations in the same order, each with its own tensor;
//! every call returns when all ranks have made it. Code over the trait does not know what is below:
//!
//! | type | ranks are | tensors travel |
//! | --- | --- | --- |
//! | [`LocalGroup`] | threads of one process | through the memory of the host |
//! | [`ProcessGroup`] | processes | through the host, and over TCP by way of rank 0 |
//! | `cuda_backend::NcclGroup` (feature `cuda`) | threads or processes, each with an NVIDIA card | from card to card, by NCCL |
//!
//! The first two take tensors of any device, and are made to be correct rather than fast: a tensor on a GPU is read back, and the result
//! is written to it again. [`on_devices`] chooses for ranks of one process.
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
//! A group ends as a whole. A rank that returns early with an error, panics or is dropped, that calls [`Communicator::abort`], or that
//! asks for something else than the others, ends the group: the calls of the other ranks, those that wait and those to come, return
//! an error that names that rank. A rank that never comes is the error of a timeout, which names it too. Calls over NCCL return before
//! the cards have met: there the error may come with the next call, or where a result is read.
//!
//! # Gradients
//!
//! There are none: a tensor that autograd tracks is refused, because what it lost would not show.

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

/// How long a call waits for the other ranks, unless something else is asked for. Ranks that load weights do not come all at once.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The group of one rank on each of `devices`, in order, for threads of this process: over NCCL if there are several NVIDIA cards and
/// each rank has one to itself, else a [`LocalGroup`].
///
/// # Errors
/// If there are no devices; if NCCL is needed and not installed, with how to get it.
#[cfg(not(target_arch = "wasm32"))]
pub fn on_devices(devices: &[Device]) -> Result<Vec<Arc<dyn Communicator>>> {
    fn shared<G: Communicator + 'static>(ranks: Vec<G>) -> Vec<Arc<dyn Communicator>> {
        let shared = |rank| Arc::new(rank) as Arc<dyn Communicator>;
        ranks.into_iter().map(shared).collect()
    }
    #[cfg(feature = "cuda")]
    if let Some(cards) = crate::cuda_backend::NcclGroup::cards(devices) {
        return Ok(shared(crate::cuda_backend::NcclGroup::ranks(&cards)?));
    }
    Ok(shared(LocalGroup::ranks(devices.len())?))
}

/// What an error says, without the calls that led to it: the reason to give to [`Communicator::abort`].
pub fn reason(err: &Error) -> String {
    match err {
        Error::WithBacktrace { inner, .. } => reason(inner),
        Error::WithPath { inner, path } => format!("{}: {}", path.display(), reason(inner)),
        Error::Context { inner, context } => format!("{context}: {}", reason(inner)),
        other => other.to_string(),
    }
}

/// One rank's end of a group. The last handle of a rank that is dropped ends the group for the others.
///
/// The tensors that ranks give to one call have the same shape and dtype; results are contiguous, on the device of the tensor that
/// the rank gave, and the same bits on all ranks.
pub trait Communicator: std::fmt::Debug + Send + Sync {
    /// This rank's number, from 0 on.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// The sum of all ranks' tensors, in the shape of each. Integers wrap around.
    ///
    /// # Errors
    /// If the group has ended, the ranks' calls differ, the dtype has no sum, or autograd tracks the tensor.
    fn all_reduce(&self, xs: &Tensor) -> Result<Tensor>;

    /// All ranks' tensors one after another along `dim`, in the order of the ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); if the tensor has no dimension `dim`.
    fn all_gather(&self, xs: &Tensor, dim: usize) -> Result<Tensor>;

    /// The tensor of rank `root`. The other ranks' tensors only say shape, dtype and device.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); if there is no rank `root`.
    fn broadcast(&self, xs: &Tensor, root: usize) -> Result<Tensor>;

    /// Whether calls may be recorded by the device, see [`CudaDevice::record`](crate::CudaDevice::record): they are made each time the
    /// recording is launched, by all ranks.
    fn records(&self) -> bool {
        false
    }

    /// Ends the group because of something that this rank ran into; the other ranks' errors contain `reason`. A group that has ended
    /// stays as it is.
    fn abort(&self, reason: &str);
}
