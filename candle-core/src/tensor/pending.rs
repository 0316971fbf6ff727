//! Elements on their way to the host while the program goes on.

use std::marker::PhantomData;

use crate::storage::PendingRead;
use crate::{Result, Tensor, WithDType};

/// A vector's elements on their way to the host; see [`Tensor::begin_to_vec1`].
pub struct PendingVec1<S> {
    /// Where the elements lie in what is read.
    src: Tensor,
    read: PendingRead,
    element: PhantomData<S>,
}

impl Tensor {
    /// Starts copying a vector's elements to the host, and does not wait for them. On WebGPU all that was asked of the device before is
    /// submitted; what is asked of it after runs behind the copy and does not hold it up. On the CPU the elements are there at once.
    ///
    /// A loop whose next step needs a result on the device, and the host only to look at it, keeps the device busy so:
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let mut x = Tensor::new(&[1f32], &Device::Cpu)?;
    /// let mut last = x.begin_to_vec1::<f32>()?;
    /// let mut seen = vec![];
    /// for _ in 0..3 {
    ///     x = (x * 2.)?;
    ///     let next = x.begin_to_vec1()?;
    ///     seen.extend(std::mem::replace(&mut last, next).wait()?);
    /// }
    /// assert_eq!(seen, [1., 2., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the tensor has another rank than 1, or another dtype.
    pub fn begin_to_vec1<S: WithDType>(&self) -> Result<PendingVec1<S>> {
        self.dims1()?;
        self.begin_elements()
    }

    pub(super) fn begin_elements<S: WithDType>(&self) -> Result<PendingVec1<S>> {
        self.check_dtype::<S>()?;
        let src = self.without_unused()?;
        // The guard ends with this line: nothing is locked while waiting.
        let read = src.storage().begin_read()?;
        Ok(PendingVec1 {
            src,
            read,
            element: PhantomData,
        })
    }
}

impl<S: WithDType> PendingVec1<S> {
    /// Waits on this thread.
    ///
    /// # Errors
    /// What went wrong on the device until the copy, and in a browser, whose threads must not wait for the GPU.
    pub fn wait(self) -> Result<Vec<S>> {
        self.src.elements_read(self.read.wait()?)
    }

    /// Waits without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// What went wrong on the device until the copy.
    pub async fn finish(self) -> Result<Vec<S>> {
        self.src.elements_read(self.read.finish().await?)
    }
}
