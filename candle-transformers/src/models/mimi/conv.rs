//! Convolutions over time that take a sound as a whole ([`Module`]) or in consecutive pieces ([`StreamingModule`]).
//!
//! Pieces give the same result as the whole if the convolution is causal: a sample's result then depends on that sample and earlier ones.
//! Samples that do not suffice for a result are kept for the next piece.

use candle_core::{bail, Module, Result, StreamTensor, StreamingModule, Tensor};
use candle_nn::{group_norm, Conv1d, Conv1dConfig, GroupNorm, VarBuilder};

use super::pad::completion;
use crate::blocks::codec::KernelNames;

// Upstream's path.
pub use super::pad::PadMode;

/// The normalisation of a convolution.
// Upstream's names.
#[allow(clippy::enum_variant_names)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum Norm {
    /// Each kernel has a length and a direction, which are multiplied at loading.
    WeightNorm,
    /// Not supported: an error at loading.
    SpectralNorm,
    /// Channels and time are normalised together behind the convolution, which therefore cannot be causal.
    TimeGroupNorm,
}

/// A convolution before it has weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvSpec {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) groups: usize,
    pub(crate) bias: bool,
    pub(crate) causal: bool,
    pub(crate) norm: Option<Norm>,
    pub(crate) pad_mode: PadMode,
    /// The names of the weights of weight normalisation.
    pub(crate) names: KernelNames,
}

impl ConvSpec {
    /// Of neighbouring samples, one at a time, between zeros.
    pub(crate) const fn new(
        [inputs, outputs, kernel]: [usize; 3],
        bias: bool,
        causal: bool,
        norm: Option<Norm>,
    ) -> Self {
        Self {
            inputs,
            outputs,
            kernel,
            stride: 1,
            dilation: 1,
            groups: 1,
            bias,
            causal,
            norm,
            pad_mode: PadMode::Constant,
            names: KernelNames::Product,
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("input channels", self.inputs),
            ("output channels", self.outputs),
            ("kernel", self.kernel),
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("groups", self.groups),
        ];
        if let Some((what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            bail!("conv1d: {what} must be at least 1, not 0")
        }
        let (inputs, outputs, groups) = (self.inputs, self.outputs, self.groups);
        if !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            bail!("conv1d: {inputs} input and {outputs} output channels cannot be split into {groups} groups")
        }
        let width = (self.kernel - 1).checked_mul(self.dilation);
        if width.is_none_or(|width| width > isize::MAX as usize) {
            bail!(
                "conv1d: a kernel of {} values with dilation {} is too wide",
                self.kernel,
                self.dilation
            )
        }
        match self.norm {
            Some(Norm::SpectralNorm) => bail!("conv1d: spectral norm is not supported"),
            Some(Norm::TimeGroupNorm) if self.causal => {
                bail!("conv1d: group norm spans all time steps, so a causal convolution cannot use it")
            }
            _ => Ok(()),
        }
    }

    /// The names of a kernel that has this norm.
    fn kernel(&self, dims: (usize, usize, usize), vb: &VarBuilder) -> Result<Tensor> {
        match self.norm {
            Some(Norm::WeightNorm) => self.names.kernel(dims, vb),
            _ => vb.get(dims, "weight"),
        }
    }

    fn group_norm(&self, vb: &VarBuilder) -> Result<Option<GroupNorm>> {
        let wanted = self.norm == Some(Norm::TimeGroupNorm);
        let load = || group_norm(1, self.outputs, 1e-5, vb.pp("norm"));
        wanted.then(load).transpose()
    }

    /// Number of samples that a kernel spans.
    fn span(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Samples more than a stride that a kernel spans, over which neighbours overlap.
    fn overlap(&self) -> Result<usize> {
        let (span, stride) = (self.span(), self.stride);
        match span.checked_sub(stride) {
            Some(overlap) => Ok(overlap),
            None => {
                bail!("conv1d: a kernel over {span} samples is smaller than the stride {stride}")
            }
        }
    }
}

fn normed(xs: Tensor, norm: Option<&GroupNorm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&xs),
        None => Ok(xs),
    }
}

/// A convolution and its norm, without padding.
#[derive(Debug, Clone)]
pub struct NormConv1d {
    conv: Conv1d,
    norm: Option<GroupNorm>,
}

impl NormConv1d {
    /// A convolution with kernels (`out_c`, `in_c` / groups, `k_size`) in `conv.weight`, which weight norm may have in two parts,
    /// `conv.bias` if `bias`, and `norm.weight` and `norm.bias` of a group norm. `cfg` is stride, padding and dilation.
    ///
    /// # Errors
    /// A size is 0, the channels are not divisible by the groups, spectral norm or a causal group norm is requested, or a tensor is missing
    /// or has another shape.
    // Upstream's signature.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        in_c: usize,
        out_c: usize,
        k_size: usize,
        causal: bool,
        norm: Option<Norm>,
        bias: bool,
        cfg: Conv1dConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = ConvSpec {
            stride: cfg.stride,
            dilation: cfg.dilation,
            groups: cfg.groups,
            ..ConvSpec::new([in_c, out_c, k_size], bias, causal, norm)
        };
        Self::load(&spec, cfg, vb)
    }

    fn load(spec: &ConvSpec, config: Conv1dConfig, vb: VarBuilder) -> Result<Self> {
        spec.check()?;
        let in_conv = vb.pp("conv");
        let dims = (spec.outputs, spec.inputs / spec.groups, spec.kernel);
        let weight = spec.kernel(dims, &in_conv)?;
        let bias = spec.bias.then(|| in_conv.get(spec.outputs, "bias"));
        Ok(Self {
            conv: Conv1d::new(weight, bias.transpose()?, config),
            norm: spec.group_norm(&vb)?,
        })
    }
}

impl Module for NormConv1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        normed(self.conv.forward(xs)?, self.norm.as_ref())
    }
}

/// A transposed convolution and its norm, without trimming.
#[derive(Debug, Clone)]
pub struct NormConvTranspose1d {
    weight: Tensor,
    /// (1, channels, 1).
    bias: Option<Tensor>,
    stride: usize,
    groups: usize,
    norm: Option<GroupNorm>,
}

impl NormConvTranspose1d {
    /// A transposed convolution with kernels (`in_c`, `out_c` / groups, `k_size`), with the names of [`NormConv1d::new`]; a group norm may
    /// be in `conv.norm` too.
    ///
    /// # Errors
    /// Those of [`NormConv1d::new`].
    // Upstream's signature.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        in_c: usize,
        out_c: usize,
        k_size: usize,
        causal: bool,
        norm: Option<Norm>,
        bias: bool,
        stride: usize,
        groups: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = ConvSpec {
            stride,
            groups,
            ..ConvSpec::new([in_c, out_c, k_size], bias, causal, norm)
        };
        Self::load(&spec, vb)
    }

    fn load(spec: &ConvSpec, vb: VarBuilder) -> Result<Self> {
        spec.check()?;
        let in_conv = vb.pp("conv");
        let dims = (spec.inputs, spec.outputs / spec.groups, spec.kernel);
        let bias = spec.bias.then(|| {
            let bias = in_conv.get(spec.outputs, "bias")?;
            bias.reshape((1, spec.outputs, 1))
        });
        Ok(Self {
            weight: spec.kernel(dims, &in_conv)?,
            bias: bias.transpose()?,
            stride: spec.stride,
            groups: spec.groups,
            norm: spec.group_norm(if in_conv.contains_tensor("norm.weight") {
                &in_conv
            } else {
                &vb
            })?,
        })
    }

    fn without_bias(&self, xs: &Tensor) -> Result<Tensor> {
        xs.conv_transpose1d(&self.weight, 0, 0, self.stride, 1, self.groups)
    }

    fn plus_bias(&self, xs: Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => xs.broadcast_add(bias),
            None => Ok(xs),
        }
    }
}

impl Module for NormConvTranspose1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.plus_bias(self.without_bias(xs)?)?;
        normed(ys, self.norm.as_ref())
    }
}

/// The samples of a piece, if it has any.
fn samples(xs: &StreamTensor) -> Result<Option<&Tensor>> {
    Ok(match xs.as_option() {
        Some(xs) if xs.dims3()?.2 > 0 => Some(xs),
        _ => None,
    })
}

fn streams(causal: bool) -> Result<()> {
    if !causal {
        bail!("conv1d: only causal convolutions support streaming")
    }
    Ok(())
}

/// A convolution that gives a frame for each `stride` samples that have begun: a causal one sees padding before the sound, others on both
/// sides. Pieces give whole frames alone.
#[derive(Debug, Clone)]
pub struct StreamableConv1d {
    conv: NormConv1d,
    spec: ConvSpec,
    /// Samples before the first one.
    overlap: usize,
    /// The inputs before the next piece.
    state: StreamTensor,
    /// Whether the padding before the sound is there.
    begun: bool,
}

impl StreamableConv1d {
    /// As [`NormConv1d::new`], with the kernel moved by `stride` samples, and its values `dilation` samples apart.
    ///
    /// # Errors
    /// Those of [`NormConv1d::new`], and a stride larger than what the kernel spans.
    // Upstream's signature.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        in_c: usize,
        out_c: usize,
        k_size: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
        bias: bool,
        causal: bool,
        norm: Option<Norm>,
        pad_mode: PadMode,
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = ConvSpec {
            stride,
            dilation,
            groups,
            pad_mode,
            ..ConvSpec::new([in_c, out_c, k_size], bias, causal, norm)
        };
        Self::load(spec, vb)
    }

    pub(crate) fn load(spec: ConvSpec, vb: VarBuilder) -> Result<Self> {
        spec.check()?;
        let overlap = spec.overlap()?;
        let config = Conv1dConfig {
            stride: spec.stride,
            dilation: spec.dilation,
            groups: spec.groups,
            ..Default::default()
        };
        Ok(Self {
            conv: NormConv1d::load(&spec, config, vb)?,
            spec,
            overlap,
            state: StreamTensor::empty(),
            begun: false,
        })
    }
}

impl Module for StreamableConv1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (_, _, len) = xs.dims3()?;
        let missing = completion(len, self.spec.span(), self.spec.stride);
        let (left, right) = if self.spec.causal {
            (self.overlap, 0)
        } else {
            (self.overlap.div_ceil(2), self.overlap / 2)
        };
        let xs = self.spec.pad_mode.pad(xs, left, right + missing)?;
        self.conv.forward(&xs)
    }
}

impl StreamingModule for StreamableConv1d {
    fn reset_state(&mut self) {
        self.state.reset();
        self.begun = false;
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let Some(xs) = samples(xs)? else {
            return Ok(StreamTensor::empty());
        };
        streams(self.spec.causal)?;
        let mut xs = match self.state.as_option() {
            Some(before) => Tensor::cat(&[before, xs], 2)?,
            None => xs.clone(),
        };
        if !self.begun && xs.dim(2)? < self.spec.pad_mode.needs(self.overlap) {
            self.state = xs.into();
            return Ok(StreamTensor::empty());
        }
        if !self.begun {
            xs = self.spec.pad_mode.pad(&xs, self.overlap, 0)?;
        }
        let (len, stride) = (xs.dim(2)?, self.spec.stride);
        let frames = (len + stride).saturating_sub(self.spec.span()) / stride;
        let ys = match frames {
            0 => StreamTensor::empty(),
            _ => {
                let seen = (frames - 1) * stride + self.spec.span();
                self.conv.conv.forward(&xs.narrow(2, 0, seen)?)?.into()
            }
        };
        self.state = StreamTensor::from(xs).narrow(2, frames * stride, len)?;
        self.begun = true;
        Ok(ys)
    }
}

/// A transposed convolution that gives `stride` samples for each frame; what kernels reach beyond is trimmed: at the end of a causal one,
/// at both ends of others.
#[derive(Debug, Clone)]
pub struct StreamableConvTranspose1d {
    convtr: NormConvTranspose1d,
    causal: bool,
    /// Samples that are trimmed before and behind.
    trim: (usize, usize),
    /// The contributions of the inputs so far to the next samples, without the bias.
    state: StreamTensor,
}

impl StreamableConvTranspose1d {
    /// As [`NormConvTranspose1d::new`].
    ///
    /// # Errors
    /// Those of [`NormConvTranspose1d::new`], and a stride larger than the kernel.
    // Upstream's signature.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        in_c: usize,
        out_c: usize,
        k_size: usize,
        stride: usize,
        groups: usize,
        bias: bool,
        causal: bool,
        norm: Option<Norm>,
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = ConvSpec {
            stride,
            groups,
            ..ConvSpec::new([in_c, out_c, k_size], bias, causal, norm)
        };
        Self::load(spec, 1., vb)
    }

    /// `trim_right` is the share of what a causal one trims that is at the end.
    pub(crate) fn load(spec: ConvSpec, trim_right: f64, vb: VarBuilder) -> Result<Self> {
        spec.check()?;
        if !(0. ..=1.).contains(&trim_right) {
            bail!(
                "conv1d: the fraction trimmed on the right is {trim_right}; it must be from 0 to 1"
            )
        }
        let overlap = spec.overlap()?;
        let right = if spec.causal {
            (overlap as f64 * trim_right).ceil() as usize
        } else {
            overlap / 2
        };
        Ok(Self {
            convtr: NormConvTranspose1d::load(&spec, vb)?,
            causal: spec.causal,
            trim: (overlap - right, right),
            state: StreamTensor::empty(),
        })
    }
}

impl Module for StreamableConvTranspose1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.convtr.forward(xs)?;
        let (left, right) = self.trim;
        let kept = ys.dim(2)?.saturating_sub(left + right);
        ys.narrow(2, left, kept)
    }
}

impl StreamingModule for StreamableConvTranspose1d {
    fn reset_state(&mut self) {
        self.state.reset();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let Some(xs) = samples(xs)? else {
            return Ok(StreamTensor::empty());
        };
        streams(self.causal && self.trim.0 == 0)?;
        let mut ys = self.convtr.without_bias(xs)?;
        if let Some(before) = self.state.as_option() {
            let (len, reached) = (ys.dim(2)?, before.dim(2)?);
            let both = (ys.narrow(2, 0, reached)? + before)?;
            ys = match len - reached {
                0 => both,
                rest => Tensor::cat(&[both, ys.narrow(2, reached, rest)?], 2)?,
            };
        }
        let done = xs.dim(2)? * self.convtr.stride;
        let given = self.convtr.plus_bias(ys.narrow(2, 0, done)?)?;
        self.state = StreamTensor::from(ys).narrow(2, done, self.trim.1)?;
        Ok(given.into())
    }
}

/// A causal or centred convolution that takes `stride` frames to one.
#[derive(Debug, Clone)]
pub struct ConvDownsample1d {
    conv: StreamableConv1d,
}

impl ConvDownsample1d {
    /// Kernels (`dim`, `dim`, 2 * `stride`) in `conv.weight`.
    ///
    /// # Errors
    /// `learnt` is false, which is not supported; a size is 0; the tensor is missing or has another shape.
    pub fn new(
        stride: usize,
        dim: usize,
        causal: bool,
        learnt: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        only_learnt(learnt)?;
        let spec = ConvSpec {
            pad_mode: PadMode::Replicate,
            ..resampling(stride, dim, causal)
        };
        StreamableConv1d::load(spec, vb).map(|conv| Self { conv })
    }
}

impl Module for ConvDownsample1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.conv.forward(xs)
    }
}

impl StreamingModule for ConvDownsample1d {
    fn reset_state(&mut self) {
        self.conv.reset_state();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        self.conv.step(xs)
    }
}

/// A transposed convolution that takes a frame to `stride`, each channel by itself.
#[derive(Debug, Clone)]
pub struct ConvTrUpsample1d {
    convtr: StreamableConvTranspose1d,
}

impl ConvTrUpsample1d {
    /// Kernels (`dim`, 1, 2 * `stride`) in `conv.weight`.
    ///
    /// # Errors
    /// Those of [`ConvDownsample1d::new`].
    pub fn new(
        stride: usize,
        dim: usize,
        causal: bool,
        learnt: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        only_learnt(learnt)?;
        let spec = ConvSpec {
            groups: dim,
            ..resampling(stride, dim, causal)
        };
        StreamableConvTranspose1d::load(spec, 1., vb).map(|convtr| Self { convtr })
    }
}

impl Module for ConvTrUpsample1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.convtr.forward(xs)
    }
}

impl StreamingModule for ConvTrUpsample1d {
    fn reset_state(&mut self) {
        self.convtr.reset_state();
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        self.convtr.step(xs)
    }
}

fn only_learnt(learnt: bool) -> Result<()> {
    if !learnt {
        bail!("resampling: `learnt` must be true; fixed kernels are not supported")
    }
    Ok(())
}

fn resampling(stride: usize, dim: usize, causal: bool) -> ConvSpec {
    ConvSpec {
        stride,
        ..ConvSpec::new([dim, dim, 2 * stride], false, causal, None)
    }
}
