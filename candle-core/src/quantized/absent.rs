//! Quantised storages of backends that this build does not have: types without values.

#[cfg(not(all(feature = "cuda", feature = "metal")))]
macro_rules! absent_storage {
    ($module:ident, $qstorage:ident, $name:literal, $device:ident, $storage:ident) => {
        /// The exports of the absent backend.
        pub mod $module {
            use crate::quantized::GgmlDType;
            use crate::{$device, $storage, DType, Layout, Result};

            #[doc = concat!("Quantised blocks on a ", $name, " device; this build has none, so there is no value of this type.")]
            #[derive(Debug)]
            pub struct $qstorage(std::convert::Infallible);

            /// Never called: the type has no values.
            impl $qstorage {
                pub(in crate::quantized) fn never(&self) -> ! {
                    match self.0 {}
                }

                pub(in crate::quantized) fn from_parts(
                    device: &$device,
                    _: GgmlDType,
                    _: &[&[u8]],
                ) -> Result<Self> {
                    device.never()
                }

                pub(in crate::quantized) fn dtype(&self) -> GgmlDType {
                    self.never()
                }

                pub(in crate::quantized) fn device(&self) -> &$device {
                    self.never()
                }

                pub(in crate::quantized) fn storage_size_in_bytes(&self) -> usize {
                    self.never()
                }

                pub(in crate::quantized) fn data(&self) -> Result<Vec<u8>> {
                    self.never()
                }

                pub(in crate::quantized) fn dequantize_to(
                    &self,
                    _: usize,
                    _: DType,
                ) -> Result<$storage> {
                    self.never()
                }

                pub(in crate::quantized) fn embedding(
                    &self,
                    _: usize,
                    _: usize,
                    _: &$storage,
                    _: &Layout,
                ) -> Result<$storage> {
                    self.never()
                }
            }
        }
    };
}

#[cfg(not(feature = "cuda"))]
absent_storage!(cuda, QCudaStorage, "CUDA", CudaDevice, CudaStorage);
#[cfg(not(feature = "metal"))]
absent_storage!(metal, QMetalStorage, "Metal", MetalDevice, MetalStorage);
