//! The crate's error type. A variant holds the request and the actual value.

use std::convert::Infallible;
use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};

use crate::{DType, DeviceLocation, Layout, MetalError, Shape};

/// Details of a matrix product that a backend refused because of its strides.
#[derive(Debug, Clone)]
pub struct MatMulUnexpectedStriding {
    /// Layout of the left-hand side.
    pub lhs_l: Layout,
    /// Layout of the right-hand side.
    pub rhs_l: Layout,
    /// Batch size, rows, columns, and the dimension that is summed over.
    pub bmnk: (usize, usize, usize, usize),
    /// The reason why the backend cannot compute it.
    pub msg: &'static str,
}

/// Any error of this crate.
///
/// `Debug` prints the same text as `Display`, so that `unwrap` and a `main` that returns a `Result` stay readable.
#[derive(thiserror::Error)]
pub enum Error {
    /// A value has another dtype than requested.
    #[error("{msg}: expected dtype {expected:?}, got {got:?}")]
    UnexpectedDType {
        /// The operation that failed.
        msg: &'static str,
        /// The requested dtype.
        expected: DType,
        /// The actual dtype.
        got: DType,
    },

    /// Both sides of an operation must have the same dtype.
    #[error("dtype mismatch in {op}: lhs is {lhs:?} and rhs is {rhs:?}, both must have the same dtype (see to_dtype)")]
    DTypeMismatchBinaryOp {
        /// Left-hand side.
        lhs: DType,
        /// Right-hand side.
        rhs: DType,
        /// Name of the operation.
        op: &'static str,
    },

    /// The operation is not defined for this dtype.
    #[error("dtype {0:?} is not supported by {1}")]
    UnsupportedDTypeForOp(DType, &'static str),

    /// The operation exists, but not for this dtype on this device. Nothing falls back to the CPU implicitly.
    #[error("{op} of {dtype:?} is not supported on {device}: {hint}")]
    UnsupportedOnDevice {
        /// Name of the operation.
        op: &'static str,
        /// The dtype.
        dtype: DType,
        /// The device, in words.
        device: String,
        /// The remedy.
        hint: String,
    },

    /// A dimension index is out of range.
    #[error("{op}: dimension {dim} is out of range for shape {shape:?}")]
    DimOutOfRange {
        /// The shape.
        shape: Shape,
        /// The requested dimension, negative if counted from the end.
        dim: i32,
        /// Name of the operation.
        op: &'static str,
    },

    /// A dimension appears more than once.
    #[error("{op}: a dimension appears twice in {dims:?} (shape {shape:?})")]
    DuplicateDimIndex {
        /// The shape.
        shape: Shape,
        /// The requested dimensions.
        dims: Vec<usize>,
        /// Name of the operation.
        op: &'static str,
    },

    /// The tensor has another rank than requested.
    #[error("expected {expected} dimensions, got {got}: {shape:?}")]
    UnexpectedNumberOfDims {
        /// The requested rank.
        expected: usize,
        /// The actual rank.
        got: usize,
        /// The actual shape.
        shape: Shape,
    },

    /// The tensor has another shape than requested.
    #[error("{msg}: expected shape {expected:?}, got {got:?}")]
    UnexpectedShape {
        /// The operation that failed.
        msg: String,
        /// The requested shape.
        expected: Shape,
        /// The actual shape.
        got: Shape,
    },

    /// A buffer has fewer elements than the shape needs.
    #[error("shape {shape:?} needs {} elements, the buffer has {buffer_size}", shape.elem_count())]
    ShapeMismatch {
        /// Elements in the buffer.
        buffer_size: usize,
        /// The requested shape.
        shape: Shape,
    },

    /// The shapes of both sides do not match.
    #[error("shape mismatch in {op}: lhs {lhs:?}, rhs {rhs:?}")]
    ShapeMismatchBinaryOp {
        /// Left-hand side.
        lhs: Shape,
        /// Right-hand side.
        rhs: Shape,
        /// Name of the operation.
        op: &'static str,
    },

    /// Tensors to concatenate differ in a dimension other than the concatenated one.
    #[error("cat on dimension {dim}: argument {n} has shape {nth_shape:?}, the first has {first_shape:?}")]
    ShapeMismatchCat {
        /// Dimension of concatenation.
        dim: usize,
        /// Shape of the first argument.
        first_shape: Shape,
        /// Index of the argument that does not fit.
        n: usize,
        /// Its shape.
        nth_shape: Shape,
    },

    /// A dimension cannot be cut into this many equal parts.
    #[error("cannot split dimension {dim} of shape {shape:?} into {n_parts} equal parts")]
    ShapeMismatchSplit {
        /// The shape.
        shape: Shape,
        /// The dimension.
        dim: usize,
        /// The requested number of parts.
        n_parts: usize,
    },

    /// The operation works on one dimension only.
    #[error("{op} works on a single dimension, got {dims:?}")]
    OnlySingleDimension {
        /// Name of the operation.
        op: &'static str,
        /// The requested dimensions.
        dims: Vec<usize>,
    },

    /// The operation has no result on a tensor without elements.
    #[error("{op} has no result for an empty tensor")]
    EmptyTensor {
        /// Name of the operation.
        op: &'static str,
    },

    /// Both sides must be on the same device.
    #[error("device mismatch in {op}: lhs is on {lhs:?} and rhs on {rhs:?}, both must be on the same device (see to_device)")]
    DeviceMismatchBinaryOp {
        /// Left-hand side.
        lhs: DeviceLocation,
        /// Right-hand side.
        rhs: DeviceLocation,
        /// Name of the operation.
        op: &'static str,
    },

    /// The range of a `narrow` exceeds the dimension.
    #[error("narrow: {msg}: dimension {dim} of shape {shape:?}, start {start}, length {len}")]
    NarrowInvalidArgs {
        /// The shape.
        shape: Shape,
        /// The dimension.
        dim: usize,
        /// The first index of the range.
        start: usize,
        /// The length of the range.
        len: usize,
        /// The reason.
        msg: &'static str,
    },

    /// The arguments of a 1-D convolution do not match.
    #[error("conv1d: {msg}: input {inp_shape:?}, kernel {k_shape:?}, padding {padding}, stride {stride}")]
    Conv1dInvalidArgs {
        /// Shape of the input.
        inp_shape: Shape,
        /// Shape of the kernel.
        k_shape: Shape,
        /// Padding on both sides.
        padding: usize,
        /// Stride.
        stride: usize,
        /// The reason.
        msg: &'static str,
    },

    /// An index tensor holds an index past the end.
    #[error("{op}: index {index} is out of range for a dimension of size {size}")]
    InvalidIndex {
        /// Name of the operation.
        op: &'static str,
        /// The index.
        index: usize,
        /// Size of the dimension.
        size: usize,
    },

    /// A shape cannot be broadcast to another.
    #[error("cannot broadcast {src_shape:?} to {dst_shape:?}")]
    BroadcastIncompatibleShapes {
        /// The tensor's shape.
        src_shape: Shape,
        /// The requested shape.
        dst_shape: Shape,
    },

    /// A variable refused a new value.
    #[error("cannot set variable: {msg}")]
    CannotSetVar {
        /// The reason.
        msg: &'static str,
    },

    /// A backend refused to multiply matrices with these strides.
    #[error("matmul: {}: lhs {:?}, rhs {:?}, (b, m, n, k) {:?}", .0.msg, .0.lhs_l, .0.rhs_l, .0.bmnk)]
    MatMulUnexpectedStriding(Box<MatMulUnexpectedStriding>),

    /// The operation needs a contiguous tensor.
    #[error("{op} needs a contiguous tensor (see contiguous)")]
    RequiresContiguous {
        /// Name of the operation.
        op: &'static str,
    },

    /// The operation needs at least one tensor.
    #[error("{op} needs at least one tensor")]
    OpRequiresAtLeastOneTensor {
        /// Name of the operation.
        op: &'static str,
    },

    /// The operation needs at least two tensors.
    #[error("{op} needs at least two tensors")]
    OpRequiresAtLeastTwoTensors {
        /// Name of the operation.
        op: &'static str,
    },

    /// The operation has no gradient.
    #[error("{op} has no backward pass")]
    BackwardNotSupported {
        /// Name of the operation.
        op: &'static str,
    },

    /// This build has no CUDA backend.
    #[error("this build of candle-core has no CUDA support")]
    NotCompiledWithCudaSupport,

    /// This build has no Metal backend: it lacks the feature, or the system is not Apple's.
    #[error("this build of candle-core has no Metal support; it needs an Apple system and the feature `metal`")]
    NotCompiledWithMetalSupport,

    /// This build has no WebGPU backend.
    #[error("this build of candle-core has no WebGPU support; build it with the feature `webgpu`")]
    NotCompiledWithWebGpuSupport,

    /// A checkpoint has no tensor of this name.
    #[error("cannot find tensor {path}")]
    CannotFindTensor {
        /// Name of the tensor.
        path: String,
    },

    /// An error of the CUDA backend.
    #[error(transparent)]
    Cuda(Box<dyn std::error::Error + Send + Sync>),

    /// An error of the Metal backend.
    #[error(transparent)]
    Metal(#[from] MetalError),

    /// An error of the WebGPU backend.
    #[error("WebGPU: {0}")]
    WebGpu(String),

    /// A malformed npy or npz file.
    #[error("npy/npz: {0}")]
    Npy(String),

    /// A malformed zip archive: an npz file or a PyTorch checkpoint.
    #[error("zip: {0}")]
    Zip(#[from] zip::result::ZipError),

    /// An integer does not fit.
    #[error(transparent)]
    TryFromIntError(#[from] std::num::TryFromIntError),

    /// Text is not an integer.
    #[error(transparent)]
    ParseInt(#[from] std::num::ParseIntError),

    /// Bytes are not UTF-8.
    #[error(transparent)]
    FromUtf8(#[from] std::string::FromUtf8Error),

    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),

    /// A malformed safetensors file.
    #[error(transparent)]
    SafeTensor(#[from] safetensors::SafeTensorError),

    /// A safetensors dtype without a counterpart here.
    #[error("safetensors dtype {0:?} is not supported")]
    UnsupportedSafeTensorDtype(safetensors::Dtype),

    /// Any error that can be shown.
    #[error("{0}")]
    Wrapped(Box<dyn Display + Send + Sync>),

    /// An error of another crate, with the operation that failed.
    #[error("{context}: {wrapped}")]
    WrappedContext {
        /// The error.
        wrapped: Box<dyn std::error::Error + Send + Sync>,
        /// The operation that failed.
        context: String,
    },

    /// An error with the operation that failed.
    #[error("{context}: {inner}")]
    Context {
        /// The error.
        inner: Box<Self>,
        /// The operation that failed.
        context: Box<dyn Display + Send + Sync>,
    },

    /// An error with the file that it concerns.
    #[error("{}: {inner}", path.display())]
    WithPath {
        /// The error.
        inner: Box<Self>,
        /// The file.
        path: PathBuf,
    },

    /// An error with a backtrace.
    #[error("{inner}\n{backtrace}")]
    WithBacktrace {
        /// The error.
        inner: Box<Self>,
        /// The backtrace.
        backtrace: Box<std::backtrace::Backtrace>,
    },

    /// A message.
    #[error("{0}")]
    Msg(String),

    /// `context` was called on `None`.
    #[error("there is no value")]
    UnwrapNone,
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self, f)
    }
}

impl Error {
    /// Stores `err` unchanged; it is formatted when the error is displayed.
    pub fn wrap(err: impl Display + Send + Sync + 'static) -> Self {
        Self::Wrapped(Box::new(err)).bt()
    }

    /// An error from anything with a `Display` form.
    pub fn msg(err: impl Display) -> Self {
        Self::Msg(err.to_string()).bt()
    }

    /// An error from anything with a `Debug` form.
    pub fn debug(err: impl Debug) -> Self {
        Self::Msg(format!("{err:?}")).bt()
    }

    /// Adds a backtrace if the environment enables it (`RUST_BACKTRACE=1`) and the error has none yet.
    pub fn bt(self) -> Self {
        if self.has_backtrace() {
            return self;
        }
        let backtrace = std::backtrace::Backtrace::capture();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => Self::WithBacktrace {
                inner: Box::new(self),
                backtrace: Box::new(backtrace),
            },
            _ => self,
        }
    }

    fn has_backtrace(&self) -> bool {
        match self {
            Self::WithBacktrace { .. } => true,
            Self::WithPath { inner, .. } | Self::Context { inner, .. } => inner.has_backtrace(),
            _ => false,
        }
    }

    /// Adds the file that the error concerns.
    pub fn with_path<P: AsRef<Path>>(self, p: P) -> Self {
        Self::WithPath {
            inner: Box::new(self),
            path: p.as_ref().to_path_buf(),
        }
        .bt()
    }

    /// Adds the operation that failed.
    pub fn context(self, c: impl Display + Send + Sync + 'static) -> Self {
        Self::Context {
            inner: Box::new(self),
            context: Box::new(c),
        }
        .bt()
    }
}

/// Returns early with an [`Error`] made from a format string, or from any value that can be shown.
///
/// ```
/// fn positive(x: i32) -> candle_core::Result<i32> {
///     if x <= 0 {
///         candle_core::bail!("expected a positive number, got {x}")
///     }
///     Ok(x)
/// }
/// assert_eq!(positive(-1).unwrap_err().to_string().lines().next(), Some("expected a positive number, got -1"));
/// ```
#[macro_export]
macro_rules! bail {
    ($msg:literal $(,)?) => {
        return Err($crate::Error::msg(format_args!($msg)))
    };
    ($err:expr $(,)?) => {
        return Err($crate::Error::msg($err))
    };
    ($fmt:expr, $($arg:tt)*) => {
        return Err($crate::Error::msg(format_args!($fmt, $($arg)*)))
    };
}

/// The pair of both values, or the first error.
pub fn zip<T, U>(r1: Result<T>, r2: Result<U>) -> Result<(T, U)> {
    Ok((r1?, r2?))
}

mod private {
    /// Prevents implementations of [`super::Context`] outside of this file.
    pub trait Sealed {}

    impl<T, E> Sealed for std::result::Result<T, E> where E: std::error::Error {}
    impl<T> Sealed for Option<T> {}
}

/// Adds context to the error of a `Result`, or converts `None` into an error.
///
/// ```
/// use candle_core::Context;
/// let missing: Option<u32> = None;
/// assert!(missing.context("no vocabulary size").is_err());
/// ```
pub trait Context<T, E>: private::Sealed {
    /// Adds `context`.
    fn context<C>(self, context: C) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static;

    /// Adds the result of `f`, which runs only if there is an error.
    fn with_context<C, F>(self, f: F) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static,
        F: FnOnce() -> C;
}

impl<T, E> Context<T, E> for std::result::Result<T, E>
where
    E: std::error::Error + Send + Sync + 'static,
{
    fn context<C>(self, context: C) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static,
    {
        self.with_context(|| context)
    }

    fn with_context<C, F>(self, f: F) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static,
        F: FnOnce() -> C,
    {
        self.map_err(|err| {
            Error::WrappedContext {
                wrapped: Box::new(err),
                context: f().to_string(),
            }
            .bt()
        })
    }
}

impl<T> Context<T, Infallible> for Option<T> {
    fn context<C>(self, context: C) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static,
    {
        self.with_context(|| context)
    }

    fn with_context<C, F>(self, f: F) -> std::result::Result<T, Error>
    where
        C: Display + Send + Sync + 'static,
        F: FnOnce() -> C,
    {
        self.ok_or_else(|| Error::UnwrapNone.context(f()))
    }
}
