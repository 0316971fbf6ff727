//! Parameters of the convolutions, as the backends take them.

/// Which algorithm cuDNN uses for a forward convolution; other backends ignore it.
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
        #[allow(dead_code, reason = "read by the convolution kernels, which no backend has yet")]
        pub struct $name {
            $(pub(crate) $field: usize,)+
            $($(#[$algo_doc])* $vis cudnn_fwd_algo: Option<CudnnFwdAlgo>,)?
        }
    };
}

conv_params! {
    /// 1D convolution: input `(b_size, c_in, l_in)`, kernel `(c_out, c_in, k_size)`.
    ParamsConv1D { b_size, l_in, c_out, c_in, k_size, padding, stride, dilation }
    pub(crate) cudnn_fwd_algo
}

conv_params! {
    /// Transposed 1D convolution: input `(b_size, c_in, l_in)`, kernel `(c_in, c_out, k_size)`.
    ParamsConvTranspose1D {
        b_size, l_in, c_out, c_in, k_size, padding, output_padding, stride, dilation
    }
}

conv_params! {
    /// 2D convolution: input `(b_size, c_in, i_h, i_w)`, kernel `(c_out, c_in, k_h, k_w)`.
    ParamsConv2D { b_size, i_h, i_w, k_h, k_w, c_out, c_in, padding, stride, dilation }
    /// The algorithm that cuDNN is to use; `None` lets it choose.
    pub cudnn_fwd_algo
}

conv_params! {
    /// Transposed 2D convolution: input `(b_size, c_in, i_h, i_w)`, kernel `(c_in, c_out, k_h, k_w)`.
    ParamsConvTranspose2D {
        b_size, i_h, i_w, k_h, k_w, c_out, c_in, padding, output_padding, stride, dilation
    }
}
