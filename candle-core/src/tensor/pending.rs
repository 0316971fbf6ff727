//! Asynchronous reads of elements to the host.

use std::marker::PhantomData;

use crate::storage::PendingRead;
use crate::{Result, Tensor, WithDType};

/// A pending read of a vector's elements; see [`Tensor::begin_to_vec1`].
pub struct PendingVec1<S> {
    /// The layout of the elements in the storage that is read.
    src: Tensor,
    read: PendingRead,
    element: PhantomData<S>,
}

impl Tensor {
    /// Starts copying a vector's elements to the host without waiting. On a GPU all earlier work is submitted; later work is queued behind
    /// the copy and does not delay it. On the CPU the elements are available immediately.
    ///
    /// A loop whose next step needs the result on the device, while the host only inspects it, can keep the device busy:
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
        // The guard is dropped here: nothing is locked while waiting.
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
    /// An error on the device before the copy; always an error in a browser, because threads there must not wait for the GPU.
    pub fn wait(self) -> Result<Vec<S>> {
        self.src.elements_read(self.read.wait()?)
    }

    /// Waits without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// An error on the device before the copy.
    pub async fn finish(self) -> Result<Vec<S>> {
        self.src.elements_read(self.read.finish().await?)
    }
}
