//! Quantised storages of backends that this build does not have: types without values.

macro_rules! absent_storage {
    ($module:ident, $storage:ident, $name:literal) => {
        /// What the backend would export.
        pub mod $module {
            #[doc = concat!("Quantised blocks on a ", $name, " device; this build has none, so there is no value of this type.")]
            #[derive(Debug)]
            pub struct $storage(std::convert::Infallible);

            impl $storage {
                /// Nothing can call this.
                pub(in crate::quantized) fn never(&self) -> ! {
                    match self.0 {}
                }
            }
        }
    };
}

#[cfg(not(feature = "cuda"))]
absent_storage!(cuda, QCudaStorage, "CUDA");
absent_storage!(metal, QMetalStorage, "Metal");
