//! Pooling and resampling of images `(batch, channels, height, width)` and signals `(batch, channels, length)`.

use std::sync::Arc;

use crate::backend::BackendStorage;
use crate::backprop::ScaledBilinear;
use crate::op::{BackpropOp, Op};
use crate::{Error, Result, Shape, Storage, Tensor, ToUsize2};

/// Number of windows of `k` elements, `stride` apart, in `size` elements.
fn window_count(size: usize, k: usize, stride: usize) -> std::result::Result<usize, &'static str> {
    if stride == 0 {
        return Err("stride must be at least 1");
    }
    if k == 0 {
        return Err("the kernel is empty");
    }
    let room = size
        .checked_sub(k)
        .ok_or("the kernel is larger than the input")?;
    Ok(room / stride + 1)
}

impl Tensor {
    /// The mean of each window of `sz`, `(height, width)` or one number for both, of `(batch, channels, height,
    /// width)`. Windows do not overlap; a remainder at the end is not used. The mean of integers is rounded towards 0.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let image = Tensor::arange(0f32, 16., &Device::Cpu)?.reshape((1, 1, 4, 4))?;
    /// assert_eq!(image.avg_pool2d(2)?.flatten_all()?.to_vec1::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// assert_eq!(image.max_pool2d((4, 2))?.flatten_all()?.to_vec1::<f32>()?, [13., 15.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the rank is not 4, or the window is empty or larger than the image.
    pub fn avg_pool2d<T: ToUsize2>(&self, sz: T) -> Result<Self> {
        let sz = sz.to_usize2();
        self.avg_pool2d_with_stride(sz, sz)
    }

    /// Like [`Tensor::avg_pool2d`], with windows `stride` apart: `h_out = (height - k_h) / stride_h + 1`.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`], and when a stride is 0.
    pub fn avg_pool2d_with_stride<T: ToUsize2>(&self, kernel_size: T, stride: T) -> Result<Self> {
        let (kernel_size, stride) = (kernel_size.to_usize2(), stride.to_usize2());
        let shape = self.pooled_shape("avg_pool2d", kernel_size, stride)?;
        let op = BackpropOp::new1(self, |arg| Op::AvgPool2D {
            arg,
            kernel_size,
            stride,
        });
        let storage = map_backend!("avg_pool2d", (&*self.storage(), self.layout()) => |a| a.avg_pool2d(self.layout(), kernel_size, stride))?;
        Ok(Self::from_storage(storage, shape, op, false))
    }

    /// The greatest element of each window of `sz`, `(height, width)` or one number for both, of `(batch, channels,
    /// height, width)`. Windows do not overlap; a remainder at the end is not used. A NaN in a window is its greatest
    /// element.
    ///
    /// # Errors
    /// When the rank is not 4, or the window is empty or larger than the image.
    pub fn max_pool2d<T: ToUsize2>(&self, sz: T) -> Result<Self> {
        let sz = sz.to_usize2();
        self.max_pool2d_with_stride(sz, sz)
    }

    /// Like [`Tensor::max_pool2d`], with windows `stride` apart: `h_out = (height - k_h) / stride_h + 1`.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`], and when a stride is 0.
    pub fn max_pool2d_with_stride<T: ToUsize2>(&self, kernel_size: T, stride: T) -> Result<Self> {
        let (kernel_size, stride) = (kernel_size.to_usize2(), stride.to_usize2());
        let shape = self.pooled_shape("max_pool2d", kernel_size, stride)?;
        let op = BackpropOp::new1(self, |arg| Op::MaxPool2D {
            arg,
            kernel_size,
            stride,
        });
        let storage = map_backend!("max_pool2d", (&*self.storage(), self.layout()) => |a| a.max_pool2d(self.layout(), kernel_size, stride))?;
        Ok(Self::from_storage(storage, shape, op, false))
    }

    fn pooled_shape(
        &self,
        op: &str,
        kernel_size: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Shape> {
        let (b, c, h, w) = self.dims4()?;
        let invalid = |msg| {
            Error::Msg(format!(
                "{op}: {msg}: input {:?}, kernel {kernel_size:?}, stride {stride:?}",
                self.shape()
            ))
            .bt()
        };
        let h_out = window_count(h, kernel_size.0, stride.0).map_err(invalid)?;
        let w_out = window_count(w, kernel_size.1, stride.1).map_err(invalid)?;
        Ok(Shape::from((b, c, h_out, w_out)))
    }

    /// Alias of [`Tensor::upsample_nearest1d`].
    ///
    /// # Errors
    /// As [`Tensor::upsample_nearest1d`].
    pub fn interpolate1d(&self, target_size: usize) -> Result<Self> {
        self.upsample_nearest1d(target_size)
    }

    /// Resamples `(batch, channels, length)` to `target_size` elements, each the one at `floor(i * length / target_size)`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let signal = Tensor::new(&[[[1f32, 2., 3.]]], &Device::Cpu)?;
    /// assert_eq!(signal.upsample_nearest1d(6)?.to_vec3::<f32>()?, [[[1., 1., 2., 2., 3., 3.]]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the rank is not 3, or the input is empty.
    pub fn upsample_nearest1d(&self, target_size: usize) -> Result<Self> {
        let (b, c, _) = self.dims3()?;
        let op = BackpropOp::new1(self, |arg| Op::UpsampleNearest1D { arg, target_size });
        self.resampled(
            "upsample_nearest1d",
            &[b, c, target_size],
            op,
            |storage| map_backend!("upsample_nearest1d", (storage, self.layout()) => |a| a.upsample_nearest1d(self.layout(), target_size)),
        )
    }

    /// Alias of [`Tensor::upsample_nearest2d`].
    ///
    /// # Errors
    /// As [`Tensor::upsample_nearest2d`].
    pub fn interpolate2d(&self, target_h: usize, target_w: usize) -> Result<Self> {
        self.upsample_nearest2d(target_h, target_w)
    }

    /// Resamples `(batch, channels, height, width)` to `target_h` rows of `target_w` elements, each the one at
    /// `floor(y * height / target_h)`, `floor(x * width / target_w)`.
    ///
    /// # Errors
    /// If the rank is not 4, or the input is empty.
    pub fn upsample_nearest2d(&self, target_h: usize, target_w: usize) -> Result<Self> {
        let (b, c, _, _) = self.dims4()?;
        let op = BackpropOp::new1(self, |arg| Op::UpsampleNearest2D {
            arg,
            target_h,
            target_w,
        });
        self.resampled("upsample_nearest2d", &[b, c, target_h, target_w], op, |storage| {
            map_backend!("upsample_nearest2d", (storage, self.layout()) => |a| a.upsample_nearest2d(self.layout(), target_h, target_w))
        })
    }

    /// Resamples `(batch, channels, height, width)` to `target_h` rows of `target_w` elements, interpolated between the four
    /// nearest ones, as PyTorch's `interpolate(mode="bilinear")` does.
    ///
    /// With `align_corners` the centres of the corner elements keep their positions; without it the edges of the image do, and positions
    /// outside the outer centres repeat the outer elements.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let image = Tensor::new(&[[[[0f32, 4.]]]], &Device::Cpu)?;
    /// let ys = image.upsample_bilinear2d(1, 4, false)?;
    /// assert_eq!(ys.flatten_all()?.to_vec1::<f32>()?, [0., 1., 3., 4.]);
    /// let ys = image.upsample_bilinear2d(1, 3, true)?;
    /// assert_eq!(ys.flatten_all()?.to_vec1::<f32>()?, [0., 2., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the rank is not 4, or the input is empty.
    pub fn upsample_bilinear2d(
        &self,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
    ) -> Result<Self> {
        self.bilinear(target_h, target_w, align_corners, None)
    }

    /// Like [`Tensor::upsample_bilinear2d`], to `floor(height * scale_h)` rows of `floor(width * scale_w)` elements, whose positions are
    /// computed from the scales themselves, not from the ratio of the rounded sizes.
    ///
    /// # Errors
    /// As [`Tensor::upsample_bilinear2d`], and when a scale is not a positive finite number.
    pub fn upsample_bilinear2d_with_scale(
        &self,
        scale_h: f64,
        scale_w: f64,
        align_corners: bool,
    ) -> Result<Self> {
        let (_, _, h, w) = self.dims4()?;
        let valid = |scale: f64| scale.is_finite() && scale > 0.;
        if !valid(scale_h) || !valid(scale_w) {
            crate::bail!(
                "upsample_bilinear2d: scales must be positive and finite, got {scale_h} and {scale_w}"
            )
        }
        // A product that overflows saturates, and cannot be allocated.
        let target = |size: usize, scale: f64| (size as f64 * scale).floor() as usize;
        let scales = Some((scale_h, scale_w));
        self.bilinear(
            target(h, scale_h),
            target(w, scale_w),
            align_corners,
            scales,
        )
    }

    fn bilinear(
        &self,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
        scales: Option<(f64, f64)>,
    ) -> Result<Self> {
        let (b, c, _, _) = self.dims4()?;
        let op = BackpropOp::new1(self, |arg| match scales {
            None => Op::UpsampleBilinear2D {
                arg,
                target_h,
                target_w,
                align_corners,
            },
            // The op has no field for scales.
            Some(scales) => {
                let target = (target_h, target_w);
                let op = ScaledBilinear {
                    target,
                    align_corners,
                    scales,
                };
                Op::CustomOp1(arg, Arc::new(Box::new(op)))
            }
        });
        let (scale_h, scale_w) = scales.unzip();
        self.resampled("upsample_bilinear2d", &[b, c, target_h, target_w], op, |storage| {
            map_backend!("upsample_bilinear2d", (storage, self.layout()) => |a| {
                a.upsample_bilinear2d(self.layout(), target_h, target_w, align_corners, scale_h, scale_w)
            })
        })
    }

    /// The result of shape `dims` that `compute` returns, after checking that the input is not empty.
    fn resampled(
        &self,
        op: &'static str,
        dims: &[usize],
        backprop: BackpropOp,
        compute: impl FnOnce(&Storage) -> Result<Storage>,
    ) -> Result<Self> {
        let shape = Shape::from(dims);
        shape.checked_byte_count(self.dtype().size_in_bytes())?;
        if self.elem_count() == 0 && shape.elem_count() > 0 {
            return Err(Error::EmptyTensor { op }.bt());
        }
        let storage = compute(&self.storage())?;
        Ok(Self::from_storage(storage, shape, backprop, false))
    }
}
