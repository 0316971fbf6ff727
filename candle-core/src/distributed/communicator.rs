//! The traits of a group: of its ranks, and of connections that backends have for it.

#[cfg(not(target_arch = "wasm32"))]
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
use crate::Device;
use crate::{Error, Result, Tensor};

/// Default time limit of a call that waits for the other ranks: long, because ranks that load weights do not arrive together.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

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

/// Connections between a backend's devices that bypass the host. Backends implement it; `dispatch.rs` lists them.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) trait Links: Sync {
    /// A group of one rank on each of `devices`, in order; `None` if these links do not connect all of them.
    ///
    /// # Errors
    /// If they do, but the group cannot be created.
    fn ranks(&self, devices: &[Device]) -> Option<Result<Vec<Arc<dyn Communicator>>>>;
}

/// The ranks of one group, each for a thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn shared<G: Communicator + 'static>(ranks: Vec<G>) -> Vec<Arc<dyn Communicator>> {
    let shared = |rank| Arc::new(rank) as Arc<dyn Communicator>;
    ranks.into_iter().map(shared).collect()
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
