//! YOLOv8 by [Ultralytics](https://docs.ultralytics.com/models/yolov8/): a network that predicts for each position of an image, at three
//! scales, the distances to the edges of a box and its class, without anchors. The distances are expectations over 16 steps, as in
//! Generalized Focal Loss, [arXiv 2006.04388](https://arxiv.org/abs/2006.04388). Weight names are those of lmz/candle-yolo-v8.

use candle_core::{Module, Result, Tensor};
use candle_nn::{conv2d, ops, Activation, Conv2d, VarBuilder};

use super::conv::{Conv, Spec};
use super::{check, MULTIPLE};

/// Pixels between the positions of each scale.
const STRIDES: [usize; 3] = [8, 16, 32];
/// Steps that a distance is an expectation over.
const STEPS: usize = 16;
/// Classes of COCO, of the networks that detect.
pub const CLASSES: usize = 80;
/// Points of a body, of the networks that see poses; people are their one class.
pub const POINTS: usize = 17;

/// The longer side of what the network sees, in pixels.
const SIDE: u32 = 640;

/// The size, width and height, in which the network sees an image: the longer side is 640, the shorter one in proportion, but for what a
/// multiple of 32 takes.
pub fn input_size((w, h): (u32, u32)) -> (u32, u32) {
    let multiple = MULTIPLE as u32;
    let shorter = |side: u32, longer: u32| {
        let side = u64::from(side) * u64::from(SIDE) / u64::from(longer.max(1));
        // At most 640.
        (side as u32 / multiple * multiple).max(multiple)
    };
    if w < h {
        (shorter(w, h), SIDE)
    } else {
        (SIDE, shorter(h, w))
    }
}

/// The size of a network.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Channels of the first convolution. The next layers have twice, four and eight times as many.
    channels: usize,
    /// Channels of the deepest layers.
    deepest: usize,
    /// Pairs of convolutions in most blocks.
    pairs: usize,
}

impl Size {
    const fn new(channels: usize, deepest: usize, pairs: usize) -> Self {
        Self {
            channels,
            deepest,
            pairs,
        }
    }

    /// YOLOv8n.
    pub const N: Self = Self::new(16, 256, 1);
    /// YOLOv8s.
    pub const S: Self = Self::new(32, 512, 1);
    /// YOLOv8m.
    pub const M: Self = Self::new(48, 576, 2);
    /// YOLOv8l.
    pub const L: Self = Self::new(64, 512, 3);
    /// YOLOv8x.
    pub const X: Self = Self::new(80, 640, 3);

    /// Channels of what the head sees at each scale.
    fn scales(&self) -> [usize; 3] {
        [4 * self.channels, 8 * self.channels, self.deepest]
    }
}

fn conv(
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    vb: VarBuilder,
) -> Result<Conv> {
    let spec = Spec {
        inputs,
        outputs,
        kernel,
        stride,
        eps: 1e-3,
        activation: Activation::Silu,
    };
    spec.load(vb.pp("conv"), vb.pp("bn"))
}

/// Half the channels go through pairs of convolutions, and what each pair gives is kept.
#[derive(Debug)]
struct Block {
    first: Conv,
    pairs: Vec<[Conv; 2]>,
    /// Whether what goes into a pair is added to what comes out.
    residual: bool,
    last: Conv,
    half: usize,
}

impl Block {
    /// Loads `cv1`, `bottleneck.N.{cv1,cv2}` and `cv2`.
    fn load(
        inputs: usize,
        outputs: usize,
        pairs: usize,
        residual: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let half = outputs / 2;
        let pair = |i| -> Result<_> {
            let vb = vb.pp("bottleneck").pp(i);
            let part = |name| conv(half, half, 3, 1, vb.pp(name));
            Ok([part("cv1")?, part("cv2")?])
        };
        Ok(Self {
            first: conv(inputs, outputs, 1, 1, vb.pp("cv1"))?,
            pairs: (0..pairs).map(pair).collect::<Result<_>>()?,
            residual,
            last: conv((2 + pairs) * half, outputs, 1, 1, vb.pp("cv2"))?,
            half,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let both = self.first.forward(xs)?;
        let mut xs = both.narrow(1, self.half, self.half)?;
        let mut kept = vec![both];
        for [first, second] in &self.pairs {
            let ys = second.forward(&first.forward(&xs)?)?;
            xs = if self.residual { (xs + ys)? } else { ys };
            kept.push(xs.clone());
        }
        self.last.forward(&Tensor::cat(&kept, 1)?)
    }
}

/// The maximum around each position, in three neighbourhoods.
#[derive(Debug)]
struct Pools {
    first: Conv,
    last: Conv,
}

impl Pools {
    const SIDE: usize = 5;

    /// Loads `cv1` and `cv2`.
    fn load(channels: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            first: conv(channels, channels / 2, 1, 1, vb.pp("cv1"))?,
            last: conv(2 * channels, channels, 1, 1, vb.pp("cv2"))?,
        })
    }
}

impl Module for Pools {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut kept = vec![self.first.forward(xs)?];
        for i in 0..3 {
            // Edges that are repeated are in the neighbourhood anyway. Zeros would be larger than negative numbers at the edges.
            let around = Self::SIDE / 2;
            let padded = kept[i].pad_with_same(2, around, around)?;
            let padded = padded.pad_with_same(3, around, around)?;
            kept.push(padded.max_pool2d_with_stride(Self::SIDE, 1)?);
        }
        self.last.forward(&Tensor::cat(&kept, 1)?)
    }
}

/// From an image to its features at three scales.
#[derive(Debug)]
struct Backbone {
    /// Each begins with a convolution that halves the image.
    stages: [(Conv, Block); 4],
    stem: Conv,
    pools: Pools,
}

impl Backbone {
    /// Loads `b1` to `b5`.
    fn load(size: Size, vb: VarBuilder) -> Result<Self> {
        let Size {
            channels: c,
            deepest,
            pairs,
        } = size;
        let stage = |inputs, outputs, pairs, [down, block]: [&str; 2]| -> Result<_> {
            let down = conv(inputs, outputs, 3, 2, vb.pp(down))?;
            let block = Block::load(outputs, outputs, pairs, true, vb.pp(block))?;
            Ok((down, block))
        };
        Ok(Self {
            stem: conv(3, c, 3, 2, vb.pp("b1.0"))?,
            stages: [
                stage(c, 2 * c, pairs, ["b1.1", "b2.0"])?,
                stage(2 * c, 4 * c, 2 * pairs, ["b2.1", "b2.2"])?,
                stage(4 * c, 8 * c, 2 * pairs, ["b3.0", "b3.1"])?,
                stage(8 * c, deepest, pairs, ["b4.0", "b4.1"])?,
            ],
            pools: Pools::load(deepest, vb.pp("b5.0"))?,
        })
    }

    /// An eighth, a sixteenth and a thirty-second of the image's size.
    fn forward(&self, xs: &Tensor) -> Result<[Tensor; 3]> {
        let stage = |xs: &Tensor, i: usize| {
            let (down, block) = &self.stages[i];
            block.forward(&down.forward(xs)?)
        };
        let eighth = stage(&stage(&self.stem.forward(xs)?, 0)?, 1)?;
        let sixteenth = stage(&eighth, 2)?;
        let last = self.pools.forward(&stage(&sixteenth, 3)?)?;
        Ok([eighth, sixteenth, last])
    }
}

/// Fuses the features of the scales: first from the smallest to the largest, then back.
#[derive(Debug)]
struct Neck {
    up: [Block; 2],
    down: [(Conv, Block); 2],
}

impl Neck {
    /// Loads `n1` to `n6`.
    fn load(size: Size, vb: VarBuilder) -> Result<Self> {
        let [small, middle, deep] = size.scales();
        let block =
            |inputs, outputs, name| Block::load(inputs, outputs, size.pairs, false, vb.pp(name));
        let down = |channels, name| conv(channels, channels, 3, 2, vb.pp(name));
        Ok(Self {
            up: [
                block(deep + middle, middle, "n1")?,
                block(middle + small, small, "n2")?,
            ],
            down: [
                (down(small, "n3")?, block(small + middle, middle, "n4")?),
                (down(middle, "n5")?, block(middle + deep, deep, "n6")?),
            ],
        })
    }

    fn forward(&self, [large, middle, small]: &[Tensor; 3]) -> Result<[Tensor; 3]> {
        let up = |block: &Block, xs: &Tensor, to: &Tensor| {
            let (_, _, h, w) = to.dims4()?;
            block.forward(&Tensor::cat(&[&xs.upsample_nearest2d(h, w)?, to], 1)?)
        };
        let down = |(conv, block): &(Conv, Block), xs: &Tensor, to: &Tensor| {
            block.forward(&Tensor::cat(&[&conv.forward(xs)?, to], 1)?)
        };
        let middle = up(&self.up[0], small, middle)?;
        let large = up(&self.up[1], &middle, large)?;
        let middle = down(&self.down[0], &large, &middle)?;
        let small = down(&self.down[1], &middle, small)?;
        Ok([large, middle, small])
    }
}

/// The head of one quantity, at each scale.
#[derive(Debug)]
struct Branches([(Conv, Conv, Conv2d); 3]);

impl Branches {
    /// Loads `0.{0,1,2}` to `2.{0,1,2}`.
    fn load(scales: [usize; 3], inner: usize, outputs: usize, vb: VarBuilder) -> Result<Self> {
        let branch = |i: usize| -> Result<_> {
            let vb = vb.pp(i);
            Ok((
                conv(scales[i], inner, 3, 1, vb.pp(0))?,
                conv(inner, inner, 3, 1, vb.pp(1))?,
                conv2d(inner, outputs, 1, Default::default(), vb.pp(2))?,
            ))
        };
        Ok(Self([branch(0)?, branch(1)?, branch(2)?]))
    }

    /// (batch, outputs, positions): the rows of all scales, concatenated.
    fn forward(&self, scales: &[Tensor; 3]) -> Result<Tensor> {
        let branch = |((first, second, last), xs): (&(Conv, Conv, Conv2d), &Tensor)| {
            let ys = last.forward(&second.forward(&first.forward(xs)?)?)?;
            ys.flatten_from(2)
        };
        let branches = self.0.iter().zip(scales).map(branch);
        Tensor::cat(&branches.collect::<Result<Vec<_>>>()?, 2)
    }
}

/// The positions of all scales.
struct Places {
    /// Their centres, (1, 2, places), in steps of their scale.
    centres: Tensor,
    /// Pixels in a step, (1, 1, places).
    strides: Tensor,
}

impl Places {
    fn of(scales: &[Tensor; 3]) -> Result<Self> {
        let (mut xs, mut ys, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        for (scale, stride) in scales.iter().zip(STRIDES) {
            let (_, _, h, w) = scale.dims4()?;
            for i in 0..h * w {
                xs.push((i % w) as f32 + 0.5);
                ys.push((i / w) as f32 + 0.5);
                strides.push(stride as f32);
            }
        }
        let (device, count) = (scales[0].device(), xs.len());
        xs.extend(ys);
        Ok(Self {
            centres: Tensor::from_vec(xs, (1, 2, count), device)?,
            strides: Tensor::from_vec(strides, (1, 1, count), device)?,
        })
    }
}

/// The network.
#[derive(Debug)]
pub struct YoloV8 {
    backbone: Backbone,
    neck: Neck,
    /// The probability of each step of each of a box's four distances.
    distances: Branches,
    classes: Branches,
    points: Option<Branches>,
    /// The values of the steps, (1, 1, 16, 1).
    steps: Tensor,
}

impl YoloV8 {
    /// The network that detects objects of COCO's 80 classes.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn detect(size: Size, vb: VarBuilder) -> Result<Self> {
        Self::load(size, CLASSES, 0, vb)
    }

    /// The network that sees people and the 17 points of their bodies.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn pose(size: Size, vb: VarBuilder) -> Result<Self> {
        Self::load(size, 1, POINTS, vb)
    }

    /// Loads `net`, `fpn` and `head`.
    fn load(size: Size, classes: usize, points: usize, vb: VarBuilder) -> Result<Self> {
        let (scales, head) = (size.scales(), vb.pp("head"));
        let branches =
            |least: usize, outputs, name| Branches::load(scales, least, outputs, head.pp(name));
        let (quarter, of_points) = (scales[0] / 4, 3 * points);
        let branch_of_points = || branches(quarter.max(of_points), of_points, "cv4");
        let steps = head.get((1, STEPS, 1, 1), "dfl.conv.weight")?;
        Ok(Self {
            backbone: Backbone::load(size, vb.pp("net"))?,
            neck: Neck::load(size, vb.pp("fpn"))?,
            distances: branches(quarter.max(4 * STEPS), 4 * STEPS, "cv2")?,
            classes: branches(scales[0].max(classes), classes, "cv3")?,
            points: (points > 0).then(branch_of_points).transpose()?,
            steps: steps.reshape((1, 1, STEPS, 1))?,
        })
    }

    /// Centre, width and height in pixels, (batch, 4, positions).
    fn boxes(&self, scales: &[Tensor; 3], places: &Places) -> Result<Tensor> {
        let distances = self.distances.forward(scales)?;
        let (b, _, count) = distances.dims3()?;
        let likely = ops::softmax(&distances.reshape((b, 4, STEPS, count))?, 2)?;
        let distances = likely.broadcast_mul(&self.steps)?.sum(2)?;
        // To the left and up, to the right and down.
        let (before, behind) = (distances.narrow(1, 0, 2)?, distances.narrow(1, 2, 2)?);
        let centres = ((&behind - &before)? * 0.5)?.broadcast_add(&places.centres)?;
        Tensor::cat(&[centres, (before + behind)?], 1)?.broadcast_mul(&places.strides)
    }
}

/// From images (batch, 3, height, width) with numbers from 0 to 1 and sides that are multiples of 32 to candidates `(batch, 4 +
/// classes + 3 * points, positions)`: the centre, width and height of a box in pixels, the probability of each class, and for
/// each point its position and the probability that it is visible.
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for YoloV8 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        check(xs)?;
        let scales = self.neck.forward(&self.backbone.forward(xs)?)?;
        let places = Places::of(&scales)?;
        let classes = ops::sigmoid(&self.classes.forward(&scales)?)?;
        let mut parts = vec![self.boxes(&scales, &places)?, classes];
        if let Some(points) = &self.points {
            let points = points.forward(&scales)?;
            let (b, rows, count) = points.dims3()?;
            let points = points.reshape((b, rows / 3, 3, count))?;
            let corners = (&places.centres - 0.5)?.unsqueeze(0)?;
            let at = (points.narrow(2, 0, 2)? * 2.)?.broadcast_add(&corners)?;
            let at = at.broadcast_mul(&places.strides.unsqueeze(0)?)?;
            let seen = ops::sigmoid(&points.narrow(2, 2, 1)?)?;
            parts.push(Tensor::cat(&[at, seen], 2)?.flatten(1, 2)?);
        }
        Tensor::cat(&parts, 1)
    }
}
