//! Depth Anything V2, which tells how near what an image shows is: [arXiv 2406.09414](https://arxiv.org/abs/2406.09414), a head
//! ([arXiv 2103.13413](https://arxiv.org/abs/2103.13413)) over four layers of DINOv2. Weight names are those of the authors' checkpoints.
//!
//! ```
//! use std::sync::Arc;
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::depth_anything_v2::{DepthAnythingV2, DepthAnythingV2Config};
//! use candle_transformers::models::dinov2::DinoVisionTransformer;
//! # fn main() -> candle_core::Result<()> {
//! let (device, dtype) = (Device::Cpu, DType::F32);
//! // A real model: VarBuilder::from_mmaped_safetensors, `dinov2::vit_small` and `DepthAnythingV2Config::vit_small`.
//! let features = DinoVisionTransformer::new(VarBuilder::zeros(dtype, &device), 4, 16, 1)?;
//! let config = DepthAnythingV2Config::new([4, 4, 4, 4], 16, 4, false, false, vec![0, 1, 2, 3], 28, 2);
//! let model = DepthAnythingV2::new(Arc::new(features), config, VarBuilder::zeros(dtype, &device))?;
//! let picture = Tensor::zeros((1, 3, 28, 28), dtype, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1, 30, 30]);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use candle_core::{bail, Module, ModuleT, Result, Tensor};
use candle_nn::{
    batch_norm, conv_transpose2d, linear, Activation, BatchNorm, Conv2d, ConvTranspose2d,
    ConvTranspose2dConfig, Linear, VarBuilder,
};

use crate::blocks::vision::ConvSpec;
use crate::models::dinov2::DinoVisionTransformer;

/// Layers of DINOv2 that the head takes.
const LAYERS: usize = 4;
/// The side of an image in pixels, and in patches.
const IMAGE: usize = 518;
const SIDE: usize = IMAGE / 14;
/// Channels before the last convolution.
const LAST: usize = 32;

/// The numbers of a model.
#[derive(Debug, Clone)]
pub struct DepthAnythingV2Config {
    out_channel_sizes: [usize; LAYERS],
    in_channel_size: usize,
    num_features: usize,
    use_batch_norm: bool,
    use_class_token: bool,
    layer_ids_vits: Vec<usize>,
    input_image_size: usize,
    target_patch_size: usize,
}

impl DepthAnythingV2Config {
    /// - `out_channel_sizes`: channels of each layer's features, `num_features`: of all behind that.
    /// - `in_channel_size`: the size of DINOv2's tokens, `layer_ids_vits`: the four blocks that are taken.
    /// - `use_batch_norm`: norms in the residual units. `use_class_token`: patches are joined with the class token.
    /// - `input_image_size`: height and width of an image in pixels, `target_patch_size`: in patches.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        out_channel_sizes: [usize; 4],
        in_channel_size: usize,
        num_features: usize,
        use_batch_norm: bool,
        use_class_token: bool,
        layer_ids_vits: Vec<usize>,
        input_image_size: usize,
        target_patch_size: usize,
    ) -> Self {
        Self {
            out_channel_sizes,
            in_channel_size,
            num_features,
            use_batch_norm,
            use_class_token,
            layer_ids_vits,
            input_image_size,
            target_patch_size,
        }
    }

    fn published(
        out_channel_sizes: [usize; LAYERS],
        in_channel_size: usize,
        num_features: usize,
        layers: [usize; LAYERS],
    ) -> Self {
        Self {
            out_channel_sizes,
            in_channel_size,
            num_features,
            use_batch_norm: false,
            use_class_token: false,
            layer_ids_vits: layers.to_vec(),
            input_image_size: IMAGE,
            target_patch_size: SIDE,
        }
    }

    /// Over ViT-S, of 12 blocks.
    pub fn vit_small() -> Self {
        Self::published([48, 96, 192, 384], 384, 64, [2, 5, 8, 11])
    }

    /// Over ViT-B, of 12 blocks.
    pub fn vit_base() -> Self {
        Self::published([96, 192, 384, 768], 768, 128, [2, 5, 8, 11])
    }

    /// Over ViT-L, of 24 blocks.
    pub fn vit_large() -> Self {
        Self::published([256, 512, 1024, 1024], 1024, 256, [4, 11, 17, 23])
    }

    /// Over ViT-g, of 40 blocks.
    pub fn vit_giant() -> Self {
        Self::published([1536; LAYERS], 1536, 384, [9, 19, 29, 39])
    }
}

/// Two convolutions with activations before them, and a residual.
#[derive(Debug, Clone)]
pub struct ResidualConvUnit {
    activation: Activation,
    convs: [(Conv2d, Option<BatchNorm>); 2],
}

impl ResidualConvUnit {
    /// Loads `conv1`, `conv2` and, if the configuration says so, `bn1` and `bn2`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(
        conf: &DepthAnythingV2Config,
        activation: Activation,
        vb: VarBuilder,
    ) -> Result<Self> {
        let size = conf.num_features;
        let part = |conv, norm| -> Result<_> {
            let norm = || batch_norm(size, 1e-5, vb.pp(norm));
            let conv = ConvSpec::new(size, size, 3).load(vb.pp(conv))?;
            Ok((conv, conf.use_batch_norm.then(norm).transpose()?))
        };
        Ok(Self {
            activation,
            convs: [part("conv1", "bn1")?, part("conv2", "bn2")?],
        })
    }
}

/// From (batch, num_features, height, width) to the same shape. Batch norms use the statistics of the checkpoint.
impl Module for ResidualConvUnit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.clone();
        for (conv, norm) in &self.convs {
            ys = conv.forward(&self.activation.forward(&ys)?)?;
            if let Some(norm) = norm {
                ys = norm.forward_t(&ys, false)?;
            }
        }
        ys + xs
    }
}

/// Features of one layer, enlarged to the size of the layer before.
#[derive(Debug, Clone)]
pub struct FeatureFusionBlock {
    /// Applied to the layer's features before those of deeper layers are added.
    alone: ResidualConvUnit,
    together: ResidualConvUnit,
    output: Conv2d,
    side: usize,
}

impl FeatureFusionBlock {
    /// Loads `resConfUnit1`, `resConfUnit2` and `out_conv`. The result has `target_patch_size` rows and columns.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(
        conf: &DepthAnythingV2Config,
        target_patch_size: usize,
        activation: Activation,
        vb: VarBuilder,
    ) -> Result<Self> {
        let size = conf.num_features;
        Ok(Self {
            alone: ResidualConvUnit::new(conf, activation, vb.pp("resConfUnit1"))?,
            together: ResidualConvUnit::new(conf, activation, vb.pp("resConfUnit2"))?,
            output: ConvSpec::new(size, size, 1).load(vb.pp("out_conv"))?,
            side: target_patch_size,
        })
    }
}

/// From (batch, num_features, height, width) to (batch, num_features, target_patch_size, target_patch_size), by the nearest.
impl Module for FeatureFusionBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.together.forward(xs)?;
        self.output.forward(&resized(&xs, self.side)?)
    }
}

/// `xs` resized to `side` rows and columns, by nearest neighbours.
fn resized(xs: &Tensor, side: usize) -> Result<Tensor> {
    match xs.dims4()? {
        (_, _, h, w) if h == side && w == side => Ok(xs.clone()),
        _ => xs.interpolate2d(side, side),
    }
}

/// The layers that fuse the features.
#[derive(Debug, Clone)]
pub struct Scratch {
    /// To one number of channels, for each layer.
    narrowed: [Conv2d; LAYERS],
    /// For each layer.
    fusions: [FeatureFusionBlock; LAYERS],
    output: Conv2d,
    /// The last convolutions, with an activation behind each.
    depths: [Conv2d; 2],
}

impl Scratch {
    /// Loads `layerN_rn`, `refinenetN`, N from 1 to 4, `output_conv1` and `output_conv2.{0,2}`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(conf: &DepthAnythingV2Config, vb: VarBuilder) -> Result<Self> {
        let (size, side) = (conf.num_features, conf.target_patch_size);
        let narrowed = |i: usize| {
            let vb = vb.pp(format!("layer{}_rn", i + 1));
            ConvSpec::new(conf.out_channel_sizes[i], size, 3).load_no_bias(vb)
        };
        let fusion = |i: usize| {
            let vb = vb.pp(format!("refinenet{}", i + 1));
            FeatureFusionBlock::new(conf, side << (LAYERS - 1 - i), Activation::Relu, vb)
        };
        let (vb_output, vb_depths) = (vb.pp("output_conv1"), vb.pp("output_conv2"));
        // The padding around a kernel of one pixel is upstream's: the result has a border that shows nothing.
        let last = ConvSpec::new(LAST, 1, 1).padding(1);
        Ok(Self {
            narrowed: [narrowed(0)?, narrowed(1)?, narrowed(2)?, narrowed(3)?],
            fusions: [fusion(0)?, fusion(1)?, fusion(2)?, fusion(3)?],
            output: ConvSpec::new(size, size / 2, 3).load(vb_output)?,
            depths: [
                ConvSpec::new(size / 2, LAST, 3).load(vb_depths.pp(0))?,
                last.load(vb_depths.pp(2))?,
            ],
        })
    }
}

/// Resizes a layer's features.
#[derive(Debug, Clone)]
enum Resize {
    Larger(ConvTranspose2d),
    Same,
    Smaller(Conv2d),
}

impl Module for Resize {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Larger(conv) => conv.forward(xs),
            Self::Same => Ok(xs.clone()),
            Self::Smaller(conv) => conv.forward(xs),
        }
    }
}

/// The head over DINOv2's layers.
#[derive(Debug, Clone)]
pub struct DPTHead {
    /// With the class token: what joins it with the patches, for each layer.
    readouts: Option<[Linear; LAYERS]>,
    projections: [Conv2d; LAYERS],
    resizes: [Resize; LAYERS],
    scratch: Scratch,
    image: usize,
    side: usize,
}

impl DPTHead {
    /// Loads `projects.N`, `resize_layers.{0,1,3}`, `scratch` and, if the configuration says so, `readout_projects.N`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(conf: &DepthAnythingV2Config, vb: VarBuilder) -> Result<Self> {
        let (inputs, sizes) = (conf.in_channel_size, conf.out_channel_sizes);
        let projection =
            |i: usize| ConvSpec::new(inputs, sizes[i], 1).load(vb.pp("projects").pp(i));
        let readout = |i: usize| linear(2 * inputs, inputs, vb.pp("readout_projects").pp(i));
        let readouts = || -> Result<_> { Ok([readout(0)?, readout(1)?, readout(2)?, readout(3)?]) };
        let vb_resize = vb.pp("resize_layers");
        let larger = |i: usize, times| -> Result<_> {
            let config = ConvTranspose2dConfig {
                stride: times,
                ..Default::default()
            };
            let conv = conv_transpose2d(sizes[i], sizes[i], times, config, vb_resize.pp(i))?;
            Ok(Resize::Larger(conv))
        };
        let smaller = ConvSpec::new(sizes[3], sizes[3], 3).stride(2);
        Ok(Self {
            readouts: conf.use_class_token.then(readouts).transpose()?,
            projections: [
                projection(0)?,
                projection(1)?,
                projection(2)?,
                projection(3)?,
            ],
            resizes: [
                larger(0, 4)?,
                larger(1, 2)?,
                Resize::Same,
                Resize::Smaller(smaller.load(vb_resize.pp(3))?),
            ],
            scratch: Scratch::new(conf, vb.pp("scratch"))?,
            image: conf.input_image_size,
            side: conf.target_patch_size,
        })
    }

    /// The features of layer `i` as an image of `num_features` channels.
    fn layer(&self, xs: &Tensor, i: usize) -> Result<Tensor> {
        let mut xs = xs.get(i)?;
        if let Some(readouts) = &self.readouts {
            xs = readouts[i].forward(&xs)?.gelu_erf()?;
        }
        let (b, _, size) = xs.dims3()?;
        let xs = xs
            .transpose(1, 2)?
            .reshape((b, size, self.side, self.side))?;
        let xs = self.resizes[i].forward(&self.projections[i].forward(&xs)?)?;
        self.scratch.narrowed[i].forward(&xs)
    }
}

/// From patches of four layers, (4, batch, target_patch_size^2, in_channel_size), to (batch, 1, side, side) with a side of
/// `input_image_size + 2`. With the class token the last dimension is `2 * in_channel_size`, the token behind each patch.
///
/// # Errors
/// The patches have another shape.
impl Module for DPTHead {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (side, fusions) = (self.side, &self.scratch.fusions);
        match *xs.dims() {
            [LAYERS, _, patches, _] if patches == side * side => {}
            _ => bail!(
                "depth_anything_v2: the patches are {:?}; they must be ({LAYERS}, batch, {side} * {side}, channels); resize the \
                 pictures to {image} x {image}",
                xs.dims(),
                image = self.image
            ),
        }
        let mut path = fusions[LAYERS - 1].forward(&self.layer(xs, LAYERS - 1)?)?;
        for i in (0..LAYERS - 1).rev() {
            let alone = fusions[i].alone.forward(&self.layer(xs, i)?)?;
            path = fusions[i].forward(&(path + alone)?)?;
        }
        let mut depths = resized(&self.scratch.output.forward(&path)?, self.image)?;
        for conv in &self.scratch.depths {
            depths = conv.forward(&depths)?.relu()?;
        }
        Ok(depths)
    }
}

/// DINOv2 and the head over it.
#[derive(Debug)]
pub struct DepthAnythingV2 {
    pretrained: Arc<DinoVisionTransformer>,
    head: DPTHead,
    conf: DepthAnythingV2Config,
}

impl DepthAnythingV2 {
    /// Loads `depth_head`. `pretrained` has the blocks that the configuration names.
    ///
    /// # Errors
    /// The configuration does not name four different blocks in order, or a weight is missing or has another shape.
    pub fn new(
        pretrained: Arc<DinoVisionTransformer>,
        conf: DepthAnythingV2Config,
        vb: VarBuilder,
    ) -> Result<Self> {
        let layers = &conf.layer_ids_vits;
        if layers.len() != LAYERS || !layers.is_sorted_by(|a, b| a < b) {
            bail!("depth_anything_v2 config: layer_ids_vits are {layers:?}; they must be {LAYERS} blocks in order")
        }
        Ok(Self {
            pretrained,
            head: DPTHead::new(&conf, vb.pp("depth_head"))?,
            conf,
        })
    }
}

/// From images (batch, 3, input_image_size, input_image_size) to how near each of their pixels is, 0 for the farthest, in no unit:
/// (batch, 1, side, side) with a side of `input_image_size + 2`, because there is a border of one pixel that shows nothing.
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for DepthAnythingV2 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (blocks, class_token) = (&self.conf.layer_ids_vits, self.conf.use_class_token);
        let features =
            self.pretrained
                .get_intermediate_layers(xs, blocks, false, class_token, true)?;
        self.head.forward(&features)
    }
}
