//! Variables: tensors that can be set and that have gradients.

use crate::{DType, Device, Error, FloatDType, NdArray, Result, Shape, Tensor, WithDType};

/// A tensor whose elements can be replaced, such as by a training step. Gradients flow to it; see
/// [`backprop`](crate::backprop).
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// # fn main() -> candle_core::Result<()> {
/// // The line through (0, 1), (1, 3), (2, 5), by gradient descent.
/// let xs = Tensor::new(&[0f64, 1., 2.], &Device::Cpu)?;
/// let ys = Tensor::new(&[1f64, 3., 5.], &Device::Cpu)?;
/// let slope = Var::new(0f64, &Device::Cpu)?;
/// let start = Var::new(0f64, &Device::Cpu)?;
/// for _ in 0..500 {
///     let distance = xs.broadcast_mul(&slope)?.broadcast_add(&start)?.sub(&ys)?;
///     let grads = distance.sqr()?.mean_all()?.backward()?;
///     for var in [&slope, &start] {
///         let grad = grads.get(var).expect("the loss depends on it");
///         var.set(&var.sub(&(grad * 0.2)?)?)?;
///     }
/// }
/// assert!((slope.to_scalar::<f64>()? - 2.).abs() < 1e-6);
/// assert!((start.to_scalar::<f64>()? - 1.).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Var(Tensor);

impl std::fmt::Display for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl std::ops::Deref for Var {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl Var {
    /// A variable from a tensor without other handles.
    fn over(tensor: Tensor) -> Self {
        Self(tensor.into_variable())
    }

    /// A variable of zeros.
    pub fn zeros<S: Into<Shape>>(shape: S, dtype: DType, device: &Device) -> Result<Self> {
        Tensor::zeros(shape, dtype, device).map(Self::over)
    }

    /// A variable of ones.
    pub fn ones<S: Into<Shape>>(shape: S, dtype: DType, device: &Device) -> Result<Self> {
        Tensor::ones(shape, dtype, device).map(Self::over)
    }

    /// A variable with a copy of a tensor's elements; if the tensor is a variable, that variable.
    pub fn from_tensor(t: &Tensor) -> Result<Self> {
        if t.is_variable() {
            return Ok(Self(t.clone()));
        }
        t.copy().map(Self::over)
    }

    /// Uniform random numbers in `[lo, up)`.
    pub fn rand_f64<S: Into<Shape>>(
        lo: f64,
        up: f64,
        s: S,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Tensor::rand_f64(lo, up, s, dtype, device).map(Self::over)
    }

    /// Normally distributed random numbers.
    pub fn randn_f64<S: Into<Shape>>(
        mean: f64,
        std: f64,
        s: S,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Tensor::randn_f64(mean, std, s, dtype, device).map(Self::over)
    }

    /// Uniform random numbers in `[lo, up)`.
    pub fn rand<S: Into<Shape>, T: FloatDType>(
        lo: T,
        up: T,
        s: S,
        device: &Device,
    ) -> Result<Self> {
        Tensor::rand(lo, up, s, device).map(Self::over)
    }

    /// Normally distributed random numbers.
    pub fn randn<S: Into<Shape>, T: FloatDType>(
        mean: T,
        std: T,
        s: S,
        device: &Device,
    ) -> Result<Self> {
        Tensor::randn(mean, std, s, device).map(Self::over)
    }

    /// A variable from a number, or from nested arrays, slices or vectors of numbers.
    ///
    /// # Errors
    /// When nested vectors differ in length.
    pub fn new<A: NdArray>(array: A, device: &Device) -> Result<Self> {
        Tensor::new(array, device).map(Self::over)
    }

    /// A variable from a vector in row-major order.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub fn from_vec<S: Into<Shape>, D: WithDType>(
        data: Vec<D>,
        shape: S,
        device: &Device,
    ) -> Result<Self> {
        Tensor::from_vec(data, shape.into(), device).map(Self::over)
    }

    /// A variable from a slice in row-major order.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub fn from_slice<S: Into<Shape>, D: WithDType>(
        array: &[D],
        shape: S,
        device: &Device,
    ) -> Result<Self> {
        Tensor::from_slice(array, shape.into(), device).map(Self::over)
    }

    /// The variable's elements as a tensor without gradients. It sees later changes of the variable.
    pub fn as_detached_tensor(&self) -> Tensor {
        self.0.detach()
    }

    /// The variable as a tensor.
    pub fn as_tensor(&self) -> &Tensor {
        &self.0
    }

    /// The variable as a tensor.
    pub fn into_inner(self) -> Tensor {
        self.0
    }

    /// Replaces the variable's elements.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// # fn main() -> candle_core::Result<()> {
    /// let var = Var::new(&[1f32, 2.], &Device::Cpu)?;
    /// var.set(&Tensor::new(&[3f32, 4.], &Device::Cpu)?)?;
    /// assert_eq!(var.to_vec1::<f32>()?, [3., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes, dtypes or devices differ, or `src` is a view of the variable itself.
    pub fn set(&self, src: &Tensor) -> Result<()> {
        if self.same_storage(src) {
            return Err(Error::CannotSetVar {
                msg: "the new value is a view of the variable itself; copy it first (see copy)",
            }
            .bt());
        }
        if !self.is_contiguous() {
            return Err(Error::CannotSetVar {
                msg: "the variable is not contiguous",
            }
            .bt());
        }
        self.same_kind(src, "set")?;
        self.same_shape_binary_op(src, "set")?;
        let (mut dst, [storage]) = self.lock_for_write([src], "set")?;
        storage.copy_strided_src(&mut dst, self.layout().start_offset(), src.layout())
    }
}
