//! Parameters of the convolutions, as the backends receive them, and the sizes of their results.

mod geometry;

pub(crate) use geometry::Geometry;

/// The algorithm that cuDNN uses for a forward convolution; other backends ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CudnnFwdAlgo {
    /// Computes the matrix product without building the matrix.
    ImplicitGemm,
    /// As `ImplicitGemm`, with index tables computed beforehand.
    ImplicitPrecompGemm,
    /// Builds the matrix, then multiplies.
    Gemm,
    /// Convolves directly.
    Direct,
    /// Multiplies in the frequency domain.
    Fft,
    /// As `Fft`, tile by tile.
    FftTiling,
    /// Winograd's minimal filtering.
    Winograd,
    /// Winograd's minimal filtering in separate passes.
    WinogradNonFused,
    /// The number of algorithms, not one of them.
    Count,
}

macro_rules! conv_params {
    ($(#[$doc:meta])* $name:ident { $($field:ident),+ } $($(#[$algo_doc:meta])* $vis:vis cudnn_fwd_algo)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $(pub(crate) $field: usize,)+
            $(
                $(#[$algo_doc])*
                #[allow(dead_code, reason = "only cuDNN has a choice of algorithms")]
                $vis cudnn_fwd_algo: Option<CudnnFwdAlgo>,
            )?
        }
    };
}

conv_params! {
    /// 1D convolution: input `(b_size, c_in, l_in)`, kernel `(c_out, c_in / groups, k_size)`.
    ParamsConv1D { b_size, l_in, c_out, c_in, k_size, padding, stride, dilation, groups }
    pub(crate) cudnn_fwd_algo
}

conv_params! {
    /// Transposed 1D convolution: input `(b_size, c_in, l_in)`, kernel `(c_in, c_out / groups, k_size)`.
    ParamsConvTranspose1D {
        b_size, l_in, c_out, c_in, k_size, padding, output_padding, stride, dilation, groups
    }
}

conv_params! {
    /// 2D convolution: input `(b_size, c_in, i_h, i_w)`, kernel `(c_out, c_in / groups, k_h, k_w)`.
    ParamsConv2D { b_size, i_h, i_w, k_h, k_w, c_out, c_in, padding, stride, dilation, groups }
    /// The algorithm that cuDNN is to use; `None` lets it choose.
    pub cudnn_fwd_algo
}

conv_params! {
    /// Transposed 2D convolution: input `(b_size, c_in, i_h, i_w)`, kernel `(c_in, c_out / groups, k_h, k_w)`. The gradient of a
    /// convolution with groups has them too.
    ParamsConvTranspose2D {
        b_size, i_h, i_w, k_h, k_w, c_out, c_in, padding, output_padding, stride, dilation, groups
    }
}

/// Padding, stride and dilation along one dimension, all in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Zeros on both sides; for a transposed convolution, elements left out on both sides.
    pub padding: usize,
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Distance between neighbouring elements of the kernel.
    pub dilation: usize,
}

impl Steps {
    /// Elements that a kernel of `k` elements spans.
    fn span(&self, k: usize) -> Result<usize, &'static str> {
        if self.stride == 0 {
            return Err("stride must be at least 1");
        }
        if self.dilation == 0 {
            return Err("dilation must be at least 1");
        }
        let gaps = k.checked_sub(1).ok_or("the kernel is empty")?;
        let span = gaps
            .checked_mul(self.dilation)
            .and_then(|v| v.checked_add(1));
        span.ok_or(TOO_LARGE)
    }

    /// Size of a convolution's result along a dimension of `size` elements:
    /// `(size + 2 * padding - dilation * (k - 1) - 1) / stride + 1`.
    pub fn conv_size(&self, size: usize, k: usize) -> Result<usize, &'static str> {
        let span = self.span(k)?;
        let padded = self
            .padding
            .checked_mul(2)
            .and_then(|v| v.checked_add(size));
        let room = padded
            .filter(|&v| isize::try_from(v).is_ok())
            .ok_or(TOO_LARGE)?
            .checked_sub(span)
            .ok_or("the kernel is larger than the padded input")?;
        Ok(room / self.stride + 1)
    }

    /// Size of a transposed convolution's result along a dimension of `size` elements:
    /// `(size - 1) * stride + dilation * (k - 1) + output_padding + 1 - 2 * padding`.
    pub fn transposed_size(
        &self,
        size: usize,
        k: usize,
        output_padding: usize,
    ) -> Result<usize, &'static str> {
        let span = self.span(k)?;
        let steps = size.checked_sub(1).ok_or("the input is empty")?;
        let full = steps
            .checked_mul(self.stride)
            .and_then(|v| v.checked_add(span)?.checked_add(output_padding))
            .filter(|&v| isize::try_from(v).is_ok())
            .ok_or(TOO_LARGE)?;
        let cropped = self
            .padding
            .checked_mul(2)
            .and_then(|v| full.checked_sub(v));
        cropped.ok_or("the padding is larger than the result")
    }
}

/// An error unless a kernel for `group_c_in` channels in each group fits.
pub(crate) fn check_groups(
    groups: usize,
    c_in: usize,
    c_out: usize,
    group_c_in: usize,
) -> Result<(), &'static str> {
    if groups == 0 {
        return Err("groups must be at least 1");
    }
    if group_c_in.checked_mul(groups) != Some(c_in) {
        return Err(
            "the kernel's input channels times the groups differ from the input's channels",
        );
    }
    if !c_out.is_multiple_of(groups) {
        return Err("the groups must divide the kernel's output channels");
    }
    Ok(())
}

const TOO_LARGE: &str = "the sizes are too large";

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(padding: usize, stride: usize, dilation: usize) -> Steps {
        Steps {
            padding,
            stride,
            dilation,
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(steps(0, 1, 1).conv_size(5, 3), Ok(3));
        assert_eq!(steps(3, 2, 1).conv_size(224, 7), Ok(112));
        assert_eq!(steps(1, 2, 2).conv_size(7, 3), Ok(3));
        assert_eq!(steps(1, 1, 1).conv_size(0, 2), Ok(1));
        assert_eq!(steps(0, 2, 1).transposed_size(3, 3, 1), Ok(8));
        assert_eq!(steps(1, 2, 2).transposed_size(4, 3, 0), Ok(9));
        // The transposed size of a convolution's result is the original size or less than one stride below it.
        for size in 5..20 {
            for stride in 1..4 {
                let steps = steps(1, stride, 2);
                let out = steps.conv_size(size, 3).unwrap();
                let back = steps.transposed_size(out, 3, 0).unwrap();
                assert!(back <= size && size < back + stride);
            }
        }
    }

    #[test]
    fn impossible_sizes() {
        assert!(steps(0, 0, 1).conv_size(5, 3).is_err());
        assert!(steps(0, 1, 0).conv_size(5, 3).is_err());
        assert!(steps(0, 1, 1).conv_size(5, 0).is_err());
        assert!(steps(0, 1, 1).conv_size(2, 3).is_err());
        assert!(steps(usize::MAX, 1, 1).conv_size(2, 3).is_err());
        assert!(steps(0, 1, usize::MAX).conv_size(2, 3).is_err());
        assert!(steps(0, 1, 1).transposed_size(0, 3, 0).is_err());
        assert!(steps(2, 1, 1).transposed_size(1, 3, 0).is_err());
        assert!(steps(0, usize::MAX, 1).transposed_size(3, 3, 0).is_err());
        assert!(steps(0, 1, 1).transposed_size(3, 3, usize::MAX).is_err());
    }
}
