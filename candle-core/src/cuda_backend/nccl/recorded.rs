//! Calls that a device records: each launch of the recording makes them, as one call.

use std::sync::Arc;

use parking_lot::Mutex;

use super::super::device::CudaDevice;
use super::team::digest;
use super::watch::Shared;
use crate::distributed::call::{Call, Op};
use crate::{DType, Result};

/// The calls of one rank in one recording.
pub(in crate::cuda_backend) struct RecordedCalls {
    shared: Arc<Shared>,
    rank: usize,
    calls: usize,
    digest: u64,
}

/// The calls of all groups of a device.
pub(in crate::cuda_backend) type AllRecordedCalls = Mutex<Vec<RecordedCalls>>;

impl RecordedCalls {
    /// Records that a launch makes the calls. The first launch waits for the other ranks.
    ///
    /// # Errors
    /// If the group has ended, or another rank makes other calls.
    pub(in crate::cuda_backend) fn enter(&self) -> Result<()> {
        let call = Call {
            op: Op::Recording,
            dtype: DType::U8,
            dims: vec![self.calls, self.digest as u32 as usize],
        };
        self.shared.enter(self.rank, &call)
    }
}

impl CudaDevice {
    /// Whether the device is recording: the call is then added to the recording.
    pub(super) fn records_calls(&self, shared: &Arc<Shared>, rank: usize, call: &Call) -> bool {
        if !self.is_recording() {
            return false;
        }
        let all = self.kept::<AllRecordedCalls>();
        let mut all = all.lock();
        let known = all
            .iter_mut()
            .find(|one| one.rank == rank && Arc::ptr_eq(&one.shared, shared));
        match known {
            Some(one) => {
                one.calls += 1;
                one.digest = digest(one.digest, call);
            }
            None => all.push(RecordedCalls {
                shared: shared.clone(),
                rank,
                calls: 1,
                digest: digest(0, call),
            }),
        }
        true
    }
}
