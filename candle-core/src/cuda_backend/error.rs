//! Errors of the CUDA backend, with upstream's names.

use cudarc::driver::DriverError;

use crate::{DType, Error, Layout};

/// What can go wrong on the way to the GPU and on it.
#[derive(thiserror::Error, Debug)]
pub enum CudaError {
    /// The driver refuses or reports something.
    #[error("CUDA driver: {}", describe(.0))]
    Cuda(#[from] DriverError),

    /// The driver refuses something, and what was asked for.
    #[error("{what}: CUDA driver: {}", describe(.error))]
    During {
        /// What was asked for.
        what: String,
        /// The driver's answer.
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

    /// cuBLAS refuses something.
    #[error("cuBLAS: {0:?}")]
    Cublas(#[from] cudarc::cublas::result::CublasError),

    /// cuBLASLt refuses a product.
    #[error("cuBLASLt: {0:?}")]
    CublasLt(cudarc::cublaslt::result::CublasError),

    /// cuRAND refuses something.
    #[error("cuRAND: {0:?}")]
    Curand(#[from] cudarc::curand::result::CurandError),

    /// One of NVIDIA's libraries is not there.
    #[error("{name} not found (tried {tried}): {hint}")]
    MissingLibrary {
        /// Its name.
        name: &'static str,
        /// Where it was looked for.
        tried: String,
        /// How to get it.
        hint: &'static str,
    },

    /// There is no card with this ordinal.
    #[error("no CUDA device {ordinal}: the driver reports {count}; ordinals start at 0, and CUDA_VISIBLE_DEVICES can hide devices")]
    NoDevice {
        /// The ordinal that was asked for.
        ordinal: usize,
        /// How many cards there are.
        count: usize,
    },

    /// The card is older than what this backend is written for.
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
        /// What the memory was for.
        op: &'static str,
        /// The card.
        device: String,
        /// Bytes that were asked for.
        bytes: usize,
        /// Bytes free.
        free: usize,
        /// Bytes of the card.
        total: usize,
    },

    /// One of upstream's kernels was asked for by name.
    #[error("no kernel {module_name}: this backend compiles kernels on demand and has none under Candle's names; call the tensor's op, or \
             load your own kernel with CudaDevice::compile (CUDA C++) or get_or_load_custom_func (PTX)")]
    MissingKernel {
        /// The kernel, and the module that it is in upstream.
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

    /// What should not happen.
    #[error("internal error: {0}")]
    InternalError(&'static str),

    /// A product of operands with general strides; upstream's, this backend copies them.
    #[error("matmul of layouts that are not contiguous: lhs {lhs_stride:?}, rhs {rhs_stride:?}, mnk {mnk:?}")]
    MatMulNonContiguous {
        /// The left operand's layout.
        lhs_stride: Layout,
        /// The right operand's layout.
        rhs_stride: Layout,
        /// Rows, columns, inner dimension.
        mnk: (usize, usize, usize),
    },

    /// A storage has another dtype than was asked for.
    #[error("{msg}: expected {expected:?}, got {got:?}")]
    UnexpectedDType {
        /// Who asked.
        msg: &'static str,
        /// The dtype that was asked for.
        expected: DType,
        /// The storage's.
        got: DType,
    },

    /// A module cannot be loaded.
    #[error("cannot load module {module_name}: {}", describe(.cuda))]
    Load {
        /// The driver's answer.
        cuda: DriverError,
        /// The module.
        module_name: String,
    },
}

/// The driver's name for an error and its sentence.
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

/// Turns results of cudarc's functions into candle's.
pub trait WrapErr<O> {
    /// The value, or the error as candle's.
    fn w(self) -> crate::Result<O>;
}

impl<O, E: Into<CudaError>> WrapErr<O> for Result<O, E> {
    fn w(self) -> crate::Result<O> {
        self.map_err(|error| error.into().into())
    }
}

/// As [`WrapErr::w`], with what was asked for.
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
