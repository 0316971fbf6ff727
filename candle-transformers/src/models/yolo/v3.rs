//! YOLOv3, [arXiv 1804.02767](https://arxiv.org/abs/1804.02767): Darknet-53 and three scales that change the sizes of anchors. Weight names
//! are those of lmz/candle-yolo-v3: the numbers of the layers in Darknet's configuration.

use candle_core::{Module, Result, Tensor};
use candle_nn::{conv2d, ops, Activation, Conv2d, VarBuilder};

use super::check;
use super::conv::{Conv, Spec};

/// Residual blocks between halvings of the image.
const STAGES: [usize; 5] = [1, 2, 8, 8, 4];
/// Pixels between the positions of each scale, and widths and heights in pixels that scale its boxes.
const SCALES: [(usize, [[f32; 2]; ANCHORS]); 3] = [
    (32, [[116., 90.], [156., 198.], [373., 326.]]),
    (16, [[30., 61.], [62., 45.], [59., 119.]]),
    (8, [[10., 13.], [16., 30.], [33., 23.]]),
];
const ANCHORS: usize = 3;
/// Numbers of a box before its classes: position, size, and whether there is an object.
const BOX: usize = 5;

/// The differences between networks.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Channels of the first convolution.
    pub channels: usize,
    /// Number of classes of objects.
    pub classes: usize,
}

impl Config {
    /// The published network.
    pub const COCO: Self = Self {
        channels: 32,
        classes: 80,
    };
}

/// Loads one layer after another. Layers without weights count as well.
struct Layers<'a> {
    vb: VarBuilder<'a>,
    next: usize,
}

impl Layers<'_> {
    fn conv(
        &mut self,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<Conv> {
        let spec = Spec {
            inputs,
            outputs,
            kernel,
            stride,
            eps: 1e-5,
            activation: Activation::LeakyRelu(0.1),
        };
        let (i, vb) = (self.next, self.vb.pp(self.next));
        self.next += 1;
        let (conv, norm) = (format!("conv_{i}"), format!("batch_norm_{i}"));
        spec.load(vb.pp(conv), vb.pp(norm))
    }

    /// The last one of a scale, without a norm.
    fn last(&mut self, inputs: usize, outputs: usize) -> Result<Conv2d> {
        let (i, vb) = (self.next, self.vb.pp(self.next));
        self.next += 1;
        let vb = vb.pp(format!("conv_{i}"));
        conv2d(inputs, outputs, 1, Default::default(), vb)
    }

    /// A layer without weights.
    fn skip(&mut self) {
        self.next += 1;
    }
}

/// Halves an image, and adds to it what pairs of convolutions find.
#[derive(Debug)]
struct Stage {
    down: Conv,
    pairs: Vec<[Conv; 2]>,
}

impl Stage {
    fn load(inputs: usize, pairs: usize, layers: &mut Layers) -> Result<Self> {
        let down = layers.conv(inputs, 2 * inputs, 3, 2)?;
        let pair = |_| -> Result<_> {
            let first = layers.conv(2 * inputs, inputs, 1, 1)?;
            let second = layers.conv(inputs, 2 * inputs, 3, 1)?;
            layers.skip();
            Ok([first, second])
        };
        Ok(Self {
            down,
            pairs: (0..pairs).map(pair).collect::<Result<_>>()?,
        })
    }
}

impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = self.down.forward(xs)?;
        for [first, second] in &self.pairs {
            let ys = second.forward(&first.forward(&xs)?)?;
            xs = (xs + ys)?;
        }
        Ok(xs)
    }
}

/// The detection layers of one scale.
#[derive(Debug)]
struct Scale {
    /// Makes the features of the scale before fit; the first one has none before it.
    narrowed: Option<Conv>,
    /// The convolutions whose output the next scale also reads.
    convs: Vec<Conv>,
    wide: Conv,
    last: Conv2d,
    /// Sizes of the anchor boxes, in pixels, (1, 3, 2, 1).
    anchors: Tensor,
    stride: usize,
}

impl Scale {
    /// `inner` channels; the scale before has twice as many.
    fn load(number: usize, inner: usize, classes: usize, layers: &mut Layers) -> Result<Self> {
        let mut narrowed = None;
        if number > 0 {
            // Back to the features before the last convolutions, narrowed, enlarged, and joined with those of the image.
            layers.skip();
            narrowed = Some(layers.conv(2 * inner, inner, 1, 1)?);
            layers.skip();
            layers.skip();
        }
        let wide = 2 * inner;
        let inputs = wide + narrowed.as_ref().map_or(0, |_| inner);
        let mut convs = Vec::new();
        for (inputs, outputs, kernel) in [
            (inputs, inner, 1),
            (inner, wide, 3),
            (wide, inner, 1),
            (inner, wide, 3),
            (wide, inner, 1),
        ] {
            convs.push(layers.conv(inputs, outputs, kernel, 1)?);
        }
        let (stride, anchors) = SCALES[number];
        let scale = Self {
            narrowed,
            convs,
            wide: layers.conv(inner, wide, 3, 1)?,
            last: layers.last(wide, ANCHORS * (BOX + classes))?,
            anchors: Tensor::new(&anchors, layers.vb.device())?.reshape((1, ANCHORS, 2, 1))?,
            stride,
        };
        layers.skip();
        Ok(scale)
    }

    /// From features of the image and those of the scale before to those for the next one, and (batch, 3 * (5 + classes), rows, columns).
    fn forward(&self, xs: &Tensor, before: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let mut xs = xs.clone();
        if let (Some(narrowed), Some(before)) = (&self.narrowed, before) {
            let (_, _, h, w) = xs.dims4()?;
            let before = narrowed.forward(before)?.upsample_nearest2d(h, w)?;
            xs = Tensor::cat(&[before, xs], 1)?;
        }
        for conv in &self.convs {
            xs = conv.forward(&xs)?;
        }
        let ys = self.last.forward(&self.wide.forward(&xs)?)?;
        Ok((xs, ys))
    }

    /// Candidates, (batch, 4 + classes, 3 * rows * columns), of what the last convolution gives.
    fn candidates(&self, ys: &Tensor) -> Result<Tensor> {
        let (b, channels, h, w) = ys.dims4()?;
        let (numbers, places) = (channels / ANCHORS, h * w);
        let ys = ys.reshape((b, ANCHORS, numbers, places))?;
        let columns = (0..places).map(|i| (i % w) as f32);
        let rows = (0..places).map(|i| (i / w) as f32);
        let corners: Vec<f32> = columns.chain(rows).collect();
        let corners = Tensor::from_vec(corners, (1, 1, 2, places), ys.device())?;
        let centres = ops::sigmoid(&ys.narrow(2, 0, 2)?)?.broadcast_add(&corners)?;
        let sizes = ys.narrow(2, 2, 2)?.exp()?.broadcast_mul(&self.anchors)?;
        let likely = ops::sigmoid(&ys.narrow(2, BOX - 1, numbers - BOX + 1)?)?;
        let classes = likely.narrow(2, 1, numbers - BOX)?;
        let classes = classes.broadcast_mul(&likely.narrow(2, 0, 1)?)?;
        let all = Tensor::cat(&[(centres * self.stride as f64)?, sizes, classes], 2)?;
        all.transpose(1, 2)?.flatten_from(2)
    }
}

/// The network.
#[derive(Debug)]
pub struct YoloV3 {
    stem: Conv,
    stages: Vec<Stage>,
    scales: [Scale; 3],
}

impl YoloV3 {
    /// Loads layers `0` to `105`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn load(config: &Config, vb: VarBuilder) -> Result<Self> {
        let (c, layers) = (config.channels, &mut Layers { vb, next: 0 });
        let stem = layers.conv(3, c, 3, 1)?;
        let mut stages = Vec::new();
        for (i, pairs) in STAGES.into_iter().enumerate() {
            stages.push(Stage::load(c << i, pairs, layers)?);
        }
        let mut scale =
            |number: usize| Scale::load(number, (16 * c) >> number, config.classes, layers);
        Ok(Self {
            stem,
            stages,
            scales: [scale(0)?, scale(1)?, scale(2)?],
        })
    }
}

/// From images (batch, 3, height, width) with numbers from 0 to 1 and sides that are multiples of 32 to candidates (batch, 4 + classes,
/// boxes): the centre, width and height of a box in pixels, and how likely it is of each class, which is how likely there is an object times
/// how likely an object is of the class.
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for YoloV3 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        check(xs)?;
        let mut features = vec![self.stem.forward(xs)?];
        for stage in &self.stages {
            features.push(stage.forward(&features[features.len() - 1])?);
        }
        let (mut before, mut all) = (None, Vec::new());
        for (scale, features) in self.scales.iter().zip(features.iter().rev()) {
            let (next, ys) = scale.forward(features, before.as_ref())?;
            all.push(scale.candidates(&ys)?);
            before = Some(next);
        }
        Tensor::cat(&all, 2)
    }
}
