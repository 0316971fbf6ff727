//! Errors of the CUDA backend, with upstream's names.

use cudarc::driver::DriverError;

use crate::{DType, Error, Layout};

/// An error of the CUDA backend.
#[derive(thiserror::Error, Debug)]
pub enum CudaError {
    /// An error of the driver.
    #[error("CUDA driver: {}", describe(.0))]
    Cuda(#[from] DriverError),

    /// An error of the driver during an operation.
    #[error("{what}: CUDA driver: {}", describe(.error))]
    During {
        /// The operation.
        what: String,
        /// The driver's error.
        error: DriverError,
    },

    /// NVRTC cannot compile a program.
    #[error("NVRTC: {0:?}")]
    Compiler(#[from] cudarc::nvrtc::CompileError),

    /// A kernel of this backend does not compile for this card.
    #[error("cannot compile kernel {kernel} for {arch}: {log}")]
    KernelSource {
        /// The kernel's label.
        kernel: String,
        /// The architecture that it was compiled for.
        arch: String,
        /// NVRTC's messages.
        log: String,
    },

    /// An error of cuBLAS.
    #[error("cuBLAS: {0:?}")]
    Cublas(#[from] cudarc::cublas::result::CublasError),

    /// cuBLASLt cannot compute a product.
    #[error("cuBLASLt: {0:?}")]
    CublasLt(cudarc::cublaslt::result::CublasError),

    /// An error of cuRAND.
    #[error("cuRAND: {0:?}")]
    Curand(#[from] cudarc::curand::result::CurandError),

    /// One of NVIDIA's libraries is not installed.
    #[error("{name} not found (tried {tried}): {hint}")]
    MissingLibrary {
        /// Its name.
        name: &'static str,
        /// The searched locations.
        tried: String,
        /// Installation instructions.
        hint: &'static str,
    },

    /// There is no card with this ordinal.
    #[error("no CUDA device {ordinal}: the driver reports {count}; ordinals start at 0, and CUDA_VISIBLE_DEVICES can hide devices")]
    NoDevice {
        /// The requested ordinal.
        ordinal: usize,
        /// The number of cards.
        count: usize,
    },

    /// The card is older than this backend supports.
    #[error("{name} has compute capability {major}.{minor}, but the CUDA backend needs 7.5 (Turing) or later: use Device::new_webgpu")]
    OldCard {
        /// The card's name.
        name: String,
        /// Major number of its compute capability.
        major: i32,
        /// Minor number.
        minor: i32,
    },

    /// The card has too little free memory.
    #[error(
        "{op}: out of memory on {device}: requested {bytes} bytes, {free} of {total} are free"
    )]
    OutOfMemory {
        /// The op that needed the memory.
        op: &'static str,
        /// The card.
        device: String,
        /// The requested bytes.
        bytes: usize,
        /// Free bytes.
        free: usize,
        /// Bytes of the card's memory.
        total: usize,
    },

    /// A program requested one of upstream's kernels by name.
    #[error("no kernel {module_name}: this backend compiles kernels on demand and has none under Candle's names; call the tensor's op, or \
             load your own kernel with CudaDevice::compile (CUDA C++) or get_or_load_custom_func (PTX)")]
    MissingKernel {
        /// The kernel, and its module in upstream.
        module_name: String,
    },

    /// An op has no form for a dtype.
    #[error("{op} has no CUDA kernel for {dtype:?}")]
    UnsupportedDtype {
        /// The dtype.
        dtype: DType,
        /// The op.
        op: &'static str,
    },

    /// An internal error.
    #[error("internal error: {0}")]
    InternalError(&'static str),

    /// A product of operands with general strides; upstream's error, this backend copies them.
    #[error("matmul of layouts that are not contiguous: lhs {lhs_stride:?}, rhs {rhs_stride:?}, mnk {mnk:?}")]
    MatMulNonContiguous {
        /// The left operand's layout.
        lhs_stride: Layout,
        /// The right operand's layout.
        rhs_stride: Layout,
        /// Rows, columns, inner dimension.
        mnk: (usize, usize, usize),
    },

    /// A storage has another dtype than requested.
    #[error("{msg}: expected {expected:?}, got {got:?}")]
    UnexpectedDType {
        /// The caller.
        msg: &'static str,
        /// The requested dtype.
        expected: DType,
        /// The storage's dtype.
        got: DType,
    },

    /// A module cannot be loaded.
    #[error("cannot load module {module_name}: {}", describe(.cuda))]
    Load {
        /// The driver's error.
        cuda: DriverError,
        /// The module.
        module_name: String,
    },
}

/// The driver's name for an error and its description.
fn describe(error: &DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    format!(
        "{} ({})",
        text(error.error_name()),
        text(error.error_string())
    )
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        Self::Cuda(Box::new(error)).bt()
    }
}

/// Converts errors of cudarc's functions to this crate's.
pub trait WrapErr<O> {
    /// The value, or the converted error.
    fn w(self) -> crate::Result<O>;
}

impl<O, E: Into<CudaError>> WrapErr<O> for Result<O, E> {
    fn w(self) -> crate::Result<O> {
        self.map_err(|error| error.into().into())
    }
}

/// Like [`WrapErr::w`], with the operation.
pub(super) trait During<O> {
    fn during(self, what: impl FnOnce() -> String) -> crate::Result<O>;
}

impl<O> During<O> for Result<O, DriverError> {
    fn during(self, what: impl FnOnce() -> String) -> crate::Result<O> {
        self.map_err(|error| {
            CudaError::During {
                what: what(),
                error,
            }
            .into()
        })
    }
}
