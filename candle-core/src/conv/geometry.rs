//! Sizes and steps of a convolution in one form for all kinds. One dimension is two with a height of 1.

use super::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D, Steps};
use crate::{Error, Result};

/// Sizes and steps of a convolution; pairs are `[height, width]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub op: &'static str,
    pub transposed: bool,
    pub b: usize,
    pub groups: usize,
    /// Channels of all groups.
    pub c_in: usize,
    pub c_out: usize,
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub output: [usize; 2],
    pub steps: [Steps; 2],
}

/// The steps along a dimension of size 1.
const STILL: Steps = Steps {
    padding: 0,
    stride: 1,
    dilation: 1,
};

macro_rules! steps {
    ($params:expr) => {
        Steps {
            padding: $params.padding,
            stride: $params.stride,
            dilation: $params.dilation,
        }
    };
}

/// Builds the geometry from parameters of any kind; the sizes of the output are computed later.
macro_rules! geometry {
    ($p:ident, $op:literal, transposed $transposed:literal, groups $groups:expr, $input:expr, $kernel:expr, $steps:expr) => {
        Self {
            op: $op,
            transposed: $transposed,
            b: $p.b_size,
            groups: $groups,
            c_in: $p.c_in,
            c_out: $p.c_out,
            input: $input,
            kernel: $kernel,
            output: [0; 2],
            steps: $steps,
        }
    };
}

impl Geometry {
    pub fn conv1d(p: &ParamsConv1D) -> Result<Self> {
        let (input, kernel, steps) = ([1, p.l_in], [1, p.k_size], [STILL, steps!(p)]);
        geometry!(p, "conv1d", transposed false, groups p.groups, input, kernel, steps)
            .sized([0, 0])
    }

    pub fn conv2d(p: &ParamsConv2D) -> Result<Self> {
        let (input, kernel, steps) = ([p.i_h, p.i_w], [p.k_h, p.k_w], [steps!(p); 2]);
        geometry!(p, "conv2d", transposed false, groups p.groups, input, kernel, steps)
            .sized([0, 0])
    }

    pub fn conv_transpose1d(p: &ParamsConvTranspose1D) -> Result<Self> {
        let (input, kernel, steps) = ([1, p.l_in], [1, p.k_size], [STILL, steps!(p)]);
        geometry!(p, "conv_transpose1d", transposed true, groups p.groups, input, kernel, steps)
            .sized([0, p.output_padding])
    }

    pub fn conv_transpose2d(p: &ParamsConvTranspose2D) -> Result<Self> {
        let (input, kernel, steps) = ([p.i_h, p.i_w], [p.k_h, p.k_w], [steps!(p); 2]);
        geometry!(p, "conv_transpose2d", transposed true, groups p.groups, input, kernel, steps)
            .sized([p.output_padding; 2])
    }

    /// Fills in the sizes of the output.
    fn sized(mut self, output_padding: [usize; 2]) -> Result<Self> {
        let size = |d: usize| {
            let (steps, input, k) = (self.steps[d], self.input[d], self.kernel[d]);
            let size = if self.transposed {
                steps.transposed_size(input, k, output_padding[d])
            } else {
                steps.conv_size(input, k)
            };
            size.map_err(|msg| Error::Msg(format!("{}: {msg}", self.op)).bt())
        };
        self.output = [size(0)?, size(1)?];
        Ok(self)
    }

    /// Channels of one group, `(in, out)`.
    pub fn group_channels(&self) -> (usize, usize) {
        (self.c_in / self.groups, self.c_out / self.groups)
    }
}
