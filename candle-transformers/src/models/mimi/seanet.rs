//! SEANet, the convolutions that take a sound to few frames and back: [arXiv 2009.02095](https://arxiv.org/abs/2009.02095), as EnCodec and
//! Mimi have it.

use candle_core::streaming::{BinOp, StreamingBinOp};
use candle_core::{bail, Module, Result, StreamTensor, StreamingModule, Tensor, D};
use candle_nn::{Activation, VarBuilder};

use super::conv::{ConvSpec, Norm, PadMode, StreamableConv1d, StreamableConvTranspose1d};
use crate::blocks::codec::{KernelNames, ResidualLstm};

/// The numbers of both networks.
#[derive(Debug, Clone)]
pub struct Config {
    /// Channels of the frames.
    pub dimension: usize,
    /// Channels of a sound.
    pub channels: usize,
    /// Whether a frame depends on earlier samples alone.
    pub causal: bool,
    /// Channels of the outermost layers; each stage inwards has twice as many.
    pub n_filters: usize,
    /// Residual blocks in a stage.
    pub n_residual_layers: usize,
    /// Downsampling factor of each stage, from the innermost to the outermost.
    pub ratios: Vec<usize>,
    /// Before each convolution but the first.
    pub activation: Activation,
    /// Norm of the convolutions.
    pub norm: Norm,
    /// Kernel of the first convolution.
    pub kernel_size: usize,
    /// Kernel of residual blocks.
    pub residual_kernel_size: usize,
    /// Kernel of the last convolution.
    pub last_kernel_size: usize,
    /// Residual block `j` of a stage has dilation `dilation_base` to the power of `j`.
    pub dilation_base: usize,
    /// The padding at both ends of a sound.
    pub pad_mode: PadMode,
    /// Whether residual blocks add what came in; a convolution of it otherwise.
    pub true_skip: bool,
    /// Factor by which residual blocks reduce the channels inside.
    pub compress: usize,
    /// LSTM layers; others than 0 are not supported.
    pub lstm: usize,
    /// Number of the outermost blocks without a norm: the first convolution, a stage and the last convolution are a block each.
    pub disable_norm_outer_blocks: usize,
    /// Activation of the decoded sound.
    pub final_activation: Option<Activation>,
}

/// Settings that a [`Config`] does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// The names of kernels under weight norm.
    pub(crate) names: KernelNames,
    /// The share of what transposed convolutions trim that is at the end, if they are causal.
    pub(crate) trim_right: f64,
}

impl Form {
    const MIMI: Self = Self {
        names: KernelNames::Product,
        trim_right: 1.,
    };
}

impl Config {
    fn check(&self) -> Result<()> {
        if self.ratios.contains(&0) {
            bail!("seanet: ratios must be at least 1, not {:?}", self.ratios)
        }
        let growth = u32::try_from(self.ratios.len()).ok();
        let growth = growth.and_then(|stages| 2usize.checked_pow(stages));
        if growth
            .and_then(|growth| growth.checked_mul(self.n_filters))
            .is_none()
        {
            bail!(
                "seanet: too many filters, {} in {} stages",
                self.n_filters,
                self.ratios.len()
            )
        }
        Ok(())
    }

    fn no_lstm(&self) -> Result<()> {
        if self.lstm > 0 {
            bail!(
                "seanet: lstm is {}; it must be 0, as LSTM layers are not supported",
                self.lstm
            )
        }
        Ok(())
    }

    /// The norm of a block with this number from the outside, if it has one.
    fn norm_of(&self, block: usize) -> Option<Norm> {
        (block >= self.disable_norm_outer_blocks).then_some(self.norm)
    }

    fn conv(&self, form: &Form, sizes: [usize; 3]) -> ConvSpec {
        ConvSpec {
            pad_mode: self.pad_mode,
            names: form.names,
            ..ConvSpec::new(sizes, true, self.causal, Some(self.norm))
        }
    }

    /// The residual blocks of a stage of `dim` channels, from layer `first` on.
    fn blocks(
        &self,
        form: &Form,
        (dim, norm): (usize, Option<Norm>),
        first: usize,
        vb: &VarBuilder,
    ) -> Result<Vec<SeaNetResnetBlock>> {
        let block = |j: usize| {
            let power = u32::try_from(j).ok();
            let Some(dilation) = power.and_then(|j| self.dilation_base.checked_pow(j)) else {
                bail!(
                    "seanet: a dilation of {} to the power of {j} is too large",
                    self.dilation_base
                )
            };
            let conv = ConvSpec {
                norm,
                ..self.conv(form, [dim; 3])
            };
            let kernels = [(self.residual_kernel_size, dilation), (1, 1)];
            let inner = (self.compress, self.true_skip);
            SeaNetResnetBlock::load(conv, &kernels, self.activation, inner, vb.pp(first + j))
        };
        (0..self.n_residual_layers).map(block).collect()
    }
}

/// Convolutions with few channels inside, whose result is added to what came in.
#[derive(Debug, Clone)]
pub struct SeaNetResnetBlock {
    block: Vec<StreamableConv1d>,
    shortcut: Option<StreamableConv1d>,
    activation: Activation,
    sum: StreamingBinOp,
}

impl SeaNetResnetBlock {
    /// Loads a convolution for each kernel and its dilation, from `block.1`, `block.3` and so on; the inner ones have `dim / compress`
    /// channels. Without `true_skip` what came in is convolved by `shortcut`.
    ///
    /// # Errors
    /// There are no kernels, or no channels inside, or those of [`StreamableConv1d::new`].
    // Upstream's signature.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        dim: usize,
        k_sizes_and_dilations: &[(usize, usize)],
        activation: Activation,
        norm: Option<Norm>,
        causal: bool,
        pad_mode: PadMode,
        compress: usize,
        true_skip: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let conv = ConvSpec {
            pad_mode,
            ..ConvSpec::new([dim, dim, 1], true, causal, norm)
        };
        let inner = (compress, true_skip);
        Self::load(conv, k_sizes_and_dilations, activation, inner, vb)
    }

    /// `conv` has the outer channels, and everything else but kernels and dilations.
    pub(crate) fn load(
        conv: ConvSpec,
        kernels: &[(usize, usize)],
        activation: Activation,
        (compress, true_skip): (usize, bool),
        vb: VarBuilder,
    ) -> Result<Self> {
        let dim = conv.outputs;
        let hidden = dim.checked_div(compress).unwrap_or(0);
        if kernels.is_empty() || hidden == 0 {
            bail!(
                "seanet: a residual block of {dim} channels with {} convolutions and `compress` {compress} is empty",
                kernels.len()
            )
        }
        let last = kernels.len() - 1;
        let inner = |(i, (kernel, dilation)): (usize, &(usize, usize))| {
            let conv = ConvSpec {
                inputs: if i == 0 { dim } else { hidden },
                outputs: if i == last { dim } else { hidden },
                kernel: *kernel,
                dilation: *dilation,
                ..conv
            };
            StreamableConv1d::load(conv, vb.pp("block").pp(2 * i + 1))
        };
        let shortcut = (!true_skip).then(|| {
            let conv = ConvSpec {
                inputs: dim,
                kernel: 1,
                ..conv
            };
            StreamableConv1d::load(conv, vb.pp("shortcut"))
        });
        Ok(Self {
            block: kernels
                .iter()
                .enumerate()
                .map(inner)
                .collect::<Result<_>>()?,
            shortcut: shortcut.transpose()?,
            activation,
            sum: StreamingBinOp::new(BinOp::Add, D::Minus1),
        })
    }
}

impl Module for SeaNetResnetBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.clone();
        for conv in &self.block {
            ys = conv.forward(&self.activation.forward(&ys)?)?;
        }
        match &self.shortcut {
            Some(shortcut) => ys + shortcut.forward(xs)?,
            None => ys + xs,
        }
    }
}

impl StreamingModule for SeaNetResnetBlock {
    fn reset_state(&mut self) {
        for conv in self.block.iter_mut().chain(&mut self.shortcut) {
            conv.reset_state();
        }
        self.sum.reset_state();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let mut ys = xs.clone();
        for conv in &mut self.block {
            ys = conv.step(&ys.apply(&self.activation)?)?;
        }
        match &mut self.shortcut {
            Some(shortcut) => self.sum.step(&ys, &shortcut.step(xs)?),
            None => self.sum.step(&ys, xs),
        }
    }
}

/// Residual blocks, and the convolution that changes the number of frames.
#[derive(Debug, Clone)]
struct Stage<Resample> {
    blocks: Vec<SeaNetResnetBlock>,
    resample: Resample,
}

impl<Resample: StreamingModule> Stage<Resample> {
    fn reset_state(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.reset_state());
        self.resample.reset_state();
    }
}

fn no_pieces(lstm: &Option<ResidualLstm>) -> Result<()> {
    if lstm.is_some() {
        bail!("seanet: a network with LSTM layers does not support streaming")
    }
    Ok(())
}

/// From a sound (batch, channels, samples) to frames (batch, dimension, frames), the product of the ratios shorter, rounded up.
#[derive(Debug, Clone)]
pub struct SeaNetEncoder {
    first: StreamableConv1d,
    stages: Vec<Stage<StreamableConv1d>>,
    lstm: Option<ResidualLstm>,
    last: StreamableConv1d,
    activation: Activation,
}

impl SeaNetEncoder {
    /// Loads `layers.0` and so on. Activations have a number each.
    ///
    /// # Errors
    /// A size is 0 or too large, LSTM layers or an unsupported norm are requested, or a tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.no_lstm()?;
        Self::load(cfg, &Form::MIMI, vb)
    }

    pub(crate) fn load(cfg: &Config, form: &Form, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let vb = vb.pp("layers");
        let conv = |sizes, block| ConvSpec {
            norm: cfg.norm_of(block),
            ..cfg.conv(form, sizes)
        };
        let mut dim = cfg.n_filters;
        let first = conv([cfg.channels, dim, cfg.kernel_size], 0);
        let first = StreamableConv1d::load(first, vb.pp(0))?;
        let mut layer = 1;
        let mut stages = Vec::with_capacity(cfg.ratios.len());
        for (i, &ratio) in cfg.ratios.iter().rev().enumerate() {
            let blocks = cfg.blocks(form, (dim, cfg.norm_of(i + 1)), layer, &vb)?;
            layer += blocks.len() + 1;
            let resample = ConvSpec {
                stride: ratio,
                ..conv([dim, 2 * dim, 2 * ratio], i + 1)
            };
            let resample = StreamableConv1d::load(resample, vb.pp(layer))?;
            layer += 1;
            stages.push(Stage { blocks, resample });
            dim *= 2;
        }
        let lstm = (cfg.lstm > 0).then(|| ResidualLstm::load(dim, cfg.lstm, vb.pp(layer)));
        layer += usize::from(lstm.is_some()) + 1;
        let last = conv(
            [dim, cfg.dimension, cfg.last_kernel_size],
            cfg.ratios.len() + 1,
        );
        Ok(Self {
            first,
            stages,
            lstm: lstm.transpose()?,
            last: StreamableConv1d::load(last, vb.pp(layer))?,
            activation: cfg.activation,
        })
    }
}

impl Module for SeaNetEncoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = self.first.forward(xs)?;
        for stage in &self.stages {
            for block in &stage.blocks {
                xs = block.forward(&xs)?;
            }
            xs = stage.resample.forward(&self.activation.forward(&xs)?)?;
        }
        if let Some(lstm) = &self.lstm {
            xs = lstm.forward(&xs)?;
        }
        self.last.forward(&self.activation.forward(&xs)?)
    }
}

impl StreamingModule for SeaNetEncoder {
    fn reset_state(&mut self) {
        self.first.reset_state();
        self.stages.iter_mut().for_each(Stage::reset_state);
        self.last.reset_state();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        no_pieces(&self.lstm)?;
        let mut xs = self.first.step(xs)?;
        for stage in &mut self.stages {
            for block in &mut stage.blocks {
                xs = block.step(&xs)?;
            }
            xs = stage.resample.step(&xs.apply(&self.activation)?)?;
        }
        self.last.step(&xs.apply(&self.activation)?)
    }
}

/// From frames (batch, dimension, frames) to a sound (batch, channels, samples).
#[derive(Debug, Clone)]
pub struct SeaNetDecoder {
    first: StreamableConv1d,
    lstm: Option<ResidualLstm>,
    stages: Vec<Stage<StreamableConvTranspose1d>>,
    last: StreamableConv1d,
    activation: Activation,
    final_activation: Option<Activation>,
}

impl SeaNetDecoder {
    /// Loads `layers.0` and so on. Activations have a number each.
    ///
    /// # Errors
    /// Those of [`SeaNetEncoder::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.no_lstm()?;
        Self::load(cfg, &Form::MIMI, vb)
    }

    pub(crate) fn load(cfg: &Config, form: &Form, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let vb = vb.pp("layers");
        let conv = |sizes, block| ConvSpec {
            norm: cfg.norm_of(block),
            ..cfg.conv(form, sizes)
        };
        let count = cfg.ratios.len();
        let mut dim = cfg.n_filters << count;
        let first = conv([cfg.dimension, dim, cfg.kernel_size], count + 1);
        let first = StreamableConv1d::load(first, vb.pp(0))?;
        let lstm = (cfg.lstm > 0).then(|| ResidualLstm::load(dim, cfg.lstm, vb.pp(1)));
        let mut layer = 1 + usize::from(lstm.is_some());
        let mut stages = Vec::with_capacity(count);
        for (i, &ratio) in cfg.ratios.iter().enumerate() {
            let resample = ConvSpec {
                stride: ratio,
                ..conv([dim, dim / 2, 2 * ratio], count - i)
            };
            let vb_resample = vb.pp(layer + 1);
            let resample = StreamableConvTranspose1d::load(resample, form.trim_right, vb_resample)?;
            layer += 2;
            dim /= 2;
            let blocks = cfg.blocks(form, (dim, cfg.norm_of(count - i)), layer, &vb)?;
            layer += blocks.len();
            stages.push(Stage { blocks, resample });
        }
        let last = conv([dim, cfg.channels, cfg.last_kernel_size], 0);
        Ok(Self {
            first,
            lstm: lstm.transpose()?,
            stages,
            last: StreamableConv1d::load(last, vb.pp(layer + 1))?,
            activation: cfg.activation,
            final_activation: cfg.final_activation,
        })
    }
}

impl Module for SeaNetDecoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = self.first.forward(xs)?;
        if let Some(lstm) = &self.lstm {
            xs = lstm.forward(&xs)?;
        }
        for stage in &self.stages {
            xs = stage.resample.forward(&self.activation.forward(&xs)?)?;
            for block in &stage.blocks {
                xs = block.forward(&xs)?;
            }
        }
        let xs = self.last.forward(&self.activation.forward(&xs)?)?;
        match &self.final_activation {
            Some(activation) => activation.forward(&xs),
            None => Ok(xs),
        }
    }
}

impl StreamingModule for SeaNetDecoder {
    fn reset_state(&mut self) {
        self.first.reset_state();
        self.stages.iter_mut().for_each(Stage::reset_state);
        self.last.reset_state();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        no_pieces(&self.lstm)?;
        let mut xs = self.first.step(xs)?;
        for stage in &mut self.stages {
            xs = stage.resample.step(&xs.apply(&self.activation)?)?;
            for block in &mut stage.blocks {
                xs = block.step(&xs)?;
            }
        }
        let xs = self.last.step(&xs.apply(&self.activation)?)?;
        match &self.final_activation {
            Some(activation) => xs.apply(activation),
            None => Ok(xs),
        }
    }
}
