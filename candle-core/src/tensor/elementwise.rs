//! Functions of the elements of a tensor, of two tensors, or of a tensor and a number, with and without broadcasting.

use crate::op::{self, BackpropOp, BinaryOp, CmpOp, Op, UnaryOp};
use crate::scalar::{Scalar, TensorOrScalar, TensorScalar};
use crate::{Result, Tensor};

macro_rules! unary {
    ($($name:ident $op:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        pub fn $name(&self) -> Result<Self> {
            let storage = self.storage().unary_impl::<op::$op>(self.layout())?;
            let op = BackpropOp::new1(self, |t| Op::Unary(t, UnaryOp::$op));
            Ok(Self::from_storage(storage, self.shape(), op, false))
        }
    )*};
}

macro_rules! binary {
    ($($name:ident $op:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// # Errors
        /// When shapes, dtypes or devices differ.
        pub fn $name(&self, rhs: &Self) -> Result<Self> {
            binary!(impl self, rhs, $name, $op)
        }
    )*};
    (impl $lhs:ident, $rhs:ident, $name:ident, $op:ident) => {{
        $lhs.same_kind($rhs, stringify!($name))?;
        let shape = $lhs.same_shape_binary_op($rhs, stringify!($name))?;
        let storage = $lhs.storage().binary_impl::<op::$op>(
            &$rhs.storage(),
            $lhs.layout(),
            $rhs.layout(),
        )?;
        let op = BackpropOp::new2($lhs, $rhs, |l, r| Op::Binary(l, r, BinaryOp::$op));
        Ok(Self::from_storage(storage, shape, op, false))
    }};
}

/// Binary functions whose right-hand side may be a number.
macro_rules! binary_or_scalar {
    ($($name:ident $op:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        /// The right-hand side is a tensor of the same shape and dtype, or a number.
        ///
        /// # Errors
        /// When shapes, dtypes or devices of two tensors differ.
        pub fn $name<T: TensorOrScalar>(&self, rhs: T) -> Result<Self> {
            let rhs = &self.same_shaped(rhs)?;
            binary!(impl self, rhs, $name, $op)
        }
    )*};
}

macro_rules! compare {
    ($($name:ident $op:ident $doc:literal;)*) => {$(
        #[doc = concat!("1 where ", $doc, " and 0 elsewhere, as u8.")]
        /// The right-hand side is a tensor of the same shape and dtype, or a number.
        ///
        /// # Errors
        /// When shapes, dtypes or devices of two tensors differ.
        pub fn $name<T: TensorOrScalar>(&self, rhs: T) -> Result<Self> {
            self.cmp(rhs, CmpOp::$op)
        }
    )*};
}

macro_rules! broadcast {
    ($($(#[$example:meta])* $broadcast:ident $name:ident)*) => {$(
        #[doc = concat!("As [`", stringify!($name), "`](Tensor::", stringify!($name), "), ")]
        /// with sizes of 1, and dimensions missing on the left, broadcast to match the other side.
        $(#[$example])*
        ///
        /// # Errors
        /// When the shapes cannot be broadcast to each other, or dtypes or devices differ.
        pub fn $broadcast(&self, rhs: &Self) -> Result<Self> {
            let (lhs, rhs) = self.broadcast_both(rhs, stringify!($broadcast))?;
            lhs.$name(&rhs)
        }
    )*};
}

impl Tensor {
    unary! {
        abs Abs "The absolute value.";
        neg Neg "The negated value.";
        sign Sign "-1, 0 or 1, as the sign is.";
        ceil Ceil "Rounded up.";
        floor Floor "Rounded down.";
        round Round "Rounded to the nearest integer, halves away from zero.";
        exp Exp "e to the power of each element.";
        log Log "The natural logarithm.";
        sin Sin "The sine of an angle in radians.";
        cos Cos "The cosine of an angle in radians.";
        tanh Tanh "The hyperbolic tangent.";
        sqr Sqr "The square.";
        sqrt Sqrt "The square root.";
        recip Recip "One divided by each element.";
        erf Erf "The error function.";
        relu Relu "Negative values become 0.";
        silu Silu "SiLU, also called swish: `x / (1 + exp(-x))`.";
        gelu Gelu "GELU in its tanh approximation.";
        gelu_erf GeluErf "GELU by the error function.";
    }

    binary! {
        add Add "The sum of both.";
        sub Sub "The difference of both.";
        mul Mul "The product of both, element by element.";
        div Div "The quotient of both.";
    }

    binary_or_scalar! {
        maximum Maximum "The greater of both.";
        minimum Minimum "The lesser of both.";
    }

    compare! {
        eq Eq "both are equal";
        ne Ne "both differ";
        lt Lt "the left is less";
        gt Gt "the left is greater";
        le Le "the left is less or equal";
        ge Ge "the left is greater or equal";
    }

    broadcast! {
        ///
        /// ```
        /// use candle_core::{Device, Tensor};
        /// # fn main() -> candle_core::Result<()> {
        /// let lhs = Tensor::new(&[[1f32], [2.]], &Device::Cpu)?;
        /// let rhs = Tensor::new(&[10f32, 20.], &Device::Cpu)?;
        /// assert_eq!(lhs.broadcast_add(&rhs)?.to_vec2::<f32>()?, [[11., 21.], [12., 22.]]);
        /// # Ok(())
        /// # }
        /// ```
        broadcast_add add
        broadcast_sub sub
        broadcast_mul mul
        broadcast_div div
        broadcast_maximum maximum
        broadcast_minimum minimum
        broadcast_eq eq
        broadcast_ne ne
        broadcast_lt lt
        broadcast_gt gt
        broadcast_le le
        broadcast_ge ge
    }

    /// Broadcasts both sides to their common shape.
    fn broadcast_both(&self, rhs: &Self, op: &'static str) -> Result<(Self, Self)> {
        let shape = self.shape().broadcast_shape_binary_op(rhs.shape(), op)?;
        let to_shape = |t: &Self| {
            if t.shape() == &shape {
                Ok(t.clone())
            } else {
                t.broadcast_as(&shape)
            }
        };
        Ok((to_shape(self)?, to_shape(rhs)?))
    }

    /// A tensor unchanged; a number with this tensor's shape, dtype and device.
    fn same_shaped<T: TensorOrScalar>(&self, rhs: T) -> Result<Self> {
        match rhs.to_tensor_scalar()? {
            TensorScalar::Tensor(rhs) => Ok(rhs),
            TensorScalar::Scalar(rhs) => {
                let rhs = rhs.to_dtype(self.dtype())?;
                // CUDA cannot record a copy from the host; elsewhere a kernel costs more than the copy.
                let value = match self.device().is_cuda() {
                    true => Scalar::of(&rhs)?,
                    false => None,
                };
                let rhs = match value {
                    Some(value) => Self::repeated(value, ().into(), self.device())?,
                    None => rhs.to_device(self.device())?,
                };
                rhs.broadcast_as(self.shape())
            }
        }
    }

    /// Compares with `op`: 1 where it holds and 0 elsewhere, as u8. The right-hand side is a tensor of the same shape and
    /// dtype, or a number.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// assert_eq!(t.ge(2.)?.to_vec1::<u8>()?, [0, 1, 1]);
    /// assert_eq!(t.ne(&t.recip()?)?.to_vec1::<u8>()?, [0, 1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes, dtypes or devices of two tensors differ.
    pub fn cmp<T: TensorOrScalar>(&self, rhs: T, op: CmpOp) -> Result<Self> {
        let rhs = self.same_shaped(rhs)?;
        self.same_kind(&rhs, "cmp")?;
        let shape = self.same_shape_binary_op(&rhs, "cmp")?;
        let storage = self
            .storage()
            .cmp(op, &rhs.storage(), self.layout(), rhs.layout())?;
        let op = BackpropOp::new1(self, |t| Op::Cmp(t, op));
        Ok(Self::from_storage(storage, shape, op, false))
    }

    /// Limits each element to the range from `min` to `max`; each a number, or a tensor of the same shape.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[-2f32, 0.5, 7.], &Device::Cpu)?;
    /// assert_eq!(t.clamp(-1., 1.)?.to_vec1::<f32>()?, [-1., 0.5, 1.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes, dtypes or devices of two tensors differ.
    pub fn clamp<T1: TensorOrScalar, T2: TensorOrScalar>(&self, min: T1, max: T2) -> Result<Self> {
        if !self.track_op() {
            return self.maximum(min)?.minimum(max);
        }
        // The gradient at a limit is that of the range, so the limits do not enter it.
        let (min, max) = (self.same_shaped(min)?, self.same_shaped(max)?);
        let limited = self.detach().maximum(&min)?.minimum(&max)?;
        let inside = (self.detach().ge(&min)? * self.detach().le(&max)?)?;
        inside.where_cond(self, &limited)
    }

    /// `x * mul + add` in one pass.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[0f32, 1., 2.], &Device::Cpu)?.affine(4., -1.)?;
    /// assert_eq!(t.to_vec1::<f32>()?, [-1., 3., 7.]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn affine(&self, mul: f64, add: f64) -> Result<Self> {
        let storage = self.storage().affine(self.layout(), mul, add)?;
        let op = BackpropOp::new1(self, |arg| Op::Affine { arg, mul, add });
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// ELU: `x` where positive, `alpha * (exp(x) - 1)` elsewhere.
    pub fn elu(&self, alpha: f64) -> Result<Self> {
        let storage = self.storage().elu(self.layout(), alpha)?;
        let op = BackpropOp::new1(self, |t| Op::Elu(t, alpha));
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// Each element to the power of `e`.
    pub fn powf(&self, e: f64) -> Result<Self> {
        let storage = self.storage().powf(self.layout(), e)?;
        let op = BackpropOp::new1(self, |t| Op::Powf(t, e));
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// Each element to the power of the one in `rhs`, by logarithm: the base must be positive.
    ///
    /// # Errors
    /// When shapes, dtypes or devices differ.
    pub fn pow(&self, rhs: &Tensor) -> Result<Self> {
        rhs.mul(&self.log()?)?.exp()
    }

    /// Like [`Tensor::pow`], with sizes of 1, and dimensions missing on the left, broadcast to match the other side.
    ///
    /// # Errors
    /// When the shapes cannot be broadcast to each other, or dtypes or devices differ.
    pub fn broadcast_pow(&self, rhs: &Tensor) -> Result<Self> {
        rhs.broadcast_mul(&self.log()?)?.exp()
    }

    /// Rounds to `decimals` digits after the point; negative counts digits before it.
    pub fn round_to(&self, decimals: i32) -> Result<Self> {
        let scale = 10f64.powi(decimals);
        self.affine(scale, 0.)?.round()?.affine(1. / scale, 0.)
    }

    /// The element of `on_true` where this tensor is not 0, of `on_false` elsewhere. The condition is u8, u32 or i64.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[-1f32, 2., -3.], &Device::Cpu)?;
    /// let positive = t.gt(0.)?.where_cond(&t, &t.zeros_like()?)?;
    /// assert_eq!(positive.to_vec1::<f32>()?, [0., 2., 0.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When shapes or devices differ, or the dtypes of both branches do.
    pub fn where_cond(&self, on_true: &Self, on_false: &Self) -> Result<Self> {
        self.same_device(&[on_true, on_false], "where_cond")?;
        self.same_shape_binary_op(on_true, "where_cond")?;
        let shape = self.same_shape_binary_op(on_false, "where_cond")?;
        let storage = self.storage().where_cond(
            self.layout(),
            &on_true.storage(),
            on_true.layout(),
            &on_false.storage(),
            on_false.layout(),
        )?;
        let op = BackpropOp::new3(self, on_true, on_false, Op::WhereCond);
        Ok(Self::from_storage(storage, shape, op, false))
    }
}
