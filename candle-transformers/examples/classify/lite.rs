//! EfficientNet-Lite0: B0 for phones, with ReLU6 and without squeeze and excitation, [arXiv 1905.11946](https://arxiv.org/abs/1905.11946). Its
//! weights do not fit `candle_transformers::models::efficientnet`; names are those of the first ports to PyTorch.

use candle_core::{Module, Result, Tensor};
use candle_nn::{batch_norm, conv2d_no_bias, linear, Conv2d, Conv2dConfig, Linear, VarBuilder};

/// Expansion, kernel, stride, output channels and blocks of each stage.
const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
];
const STEM: usize = 32;
const FEATURES: usize = 1280;

/// A convolution with its batch norm in it, padded as TensorFlow does.
struct Conv {
    conv: Conv2d,
    kernel: usize,
    relu: bool,
}

impl Conv {
    /// From `inputs` to `outputs` channels; one kernel for each channel if `depthwise`.
    fn new(
        [inputs, outputs]: [usize; 2],
        [kernel, stride]: [usize; 2],
        depthwise: bool,
        conv: VarBuilder,
        norm: VarBuilder,
    ) -> Result<Self> {
        let config = Conv2dConfig {
            stride,
            groups: if depthwise { inputs } else { 1 },
            ..Default::default()
        };
        let conv = conv2d_no_bias(inputs, outputs, kernel, config, conv)?;
        Ok(Self {
            conv: conv.absorb_bn(&batch_norm(outputs, 1e-3, norm)?)?,
            kernel,
            relu: true,
        })
    }
}

impl Module for Conv {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (stride, mut padded) = (self.conv.config().stride, xs.clone());
        for dim in [2, 3] {
            let size = xs.dim(dim)?;
            let missing = ((size.div_ceil(stride) - 1) * stride + self.kernel).saturating_sub(size);
            padded = padded.pad_with_zeros(dim, missing / 2, missing - missing / 2)?;
        }
        let ys = self.conv.forward(&padded)?;
        match self.relu {
            true => ys.clamp(0f32, 6f32),
            false => Ok(ys),
        }
    }
}

/// Expansion of channels, if there is any, one kernel for each, and projection.
struct Block {
    convs: Vec<Conv>,
    residual: bool,
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut convs = self.convs.iter();
        let ys = convs.try_fold(xs.clone(), |xs, conv| conv.forward(&xs))?;
        match self.residual {
            true => ys + xs,
            false => Ok(ys),
        }
    }
}

/// A classifier of pictures (batch, 3, 224, 224).
pub struct EfficientNetLite {
    stem: Conv,
    blocks: Vec<Block>,
    last: Conv,
    head: Linear,
}

impl EfficientNetLite {
    pub fn new(classes: usize, vb: VarBuilder) -> Result<Self> {
        let (mut inputs, mut blocks) = (STEM, Vec::new());
        for (expansion, kernel, stride, outputs, depth) in STAGES {
            for i in 0..depth {
                let vb = vb.pp("_blocks").pp(blocks.len());
                let stride = if i == 0 { stride } else { 1 };
                let (inner, mut convs) = (inputs * expansion, Vec::new());
                if expansion > 1 {
                    let (conv, norm) = (vb.pp("_expand_conv"), vb.pp("_bn0"));
                    convs.push(Conv::new([inputs, inner], [1, 1], false, conv, norm)?);
                }
                let (conv, norm) = (vb.pp("_depthwise_conv"), vb.pp("_bn1"));
                convs.push(Conv::new([inner; 2], [kernel, stride], true, conv, norm)?);
                let (conv, norm) = (vb.pp("_project_conv"), vb.pp("_bn2"));
                let project = Conv::new([inner, outputs], [1, 1], false, conv, norm)?;
                convs.push(Conv {
                    relu: false,
                    ..project
                });
                let residual = stride == 1 && inputs == outputs;
                blocks.push(Block { convs, residual });
                inputs = outputs;
            }
        }
        let (conv, norm) = (vb.pp("_conv_stem"), vb.pp("_bn0"));
        let stem = Conv::new([3, STEM], [3, 2], false, conv, norm)?;
        let (conv, norm) = (vb.pp("_conv_head"), vb.pp("_bn1"));
        Ok(Self {
            stem,
            blocks,
            last: Conv::new([inputs, FEATURES], [1, 1], false, conv, norm)?,
            head: linear(FEATURES, classes, vb.pp("_fc"))?,
        })
    }
}

impl Module for EfficientNetLite {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut blocks = self.blocks.iter();
        let xs = self.stem.forward(xs)?;
        let xs = blocks.try_fold(xs, |xs, block| block.forward(&xs))?;
        self.head.forward(&self.last.forward(&xs)?.mean((2, 3))?)
    }
}
