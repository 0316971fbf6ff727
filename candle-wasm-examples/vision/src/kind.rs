//! The kind of network that weights are of.

use crate::weights::Weights;
use candle_core::{bail, Result};
use candle_transformers::models::yolo::v8::{Size, CLASSES};

/// A network that this module has.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// EfficientNet-Lite0.
    Classify { classes: usize },
    /// YOLOv8: its size, and that as a letter.
    Detect { size: Size, letter: char },
    /// MobileSAM.
    Segment,
}

/// Channels of the first convolution of each YOLOv8.
const YOLOS: [(usize, Size, char); 5] = [
    (16, Size::N, 'n'),
    (32, Size::S, 's'),
    (48, Size::M, 'm'),
    (64, Size::L, 'l'),
    (80, Size::X, 'x'),
];

const EXPECTED: &str = "expected EfficientNet-Lite0 (timm's names or those of the first ports), YOLOv8 (as in lmz/candle-yolo-v8) or MobileSAM";

impl Kind {
    /// By the names and shapes of the weights.
    ///
    /// # Errors
    /// Weights of something else, which the error names the file of.
    pub fn of(weights: &Weights) -> Result<Self> {
        let file = weights.name();
        let first = |name: &str| weights.shape(name).and_then(|dims| dims.first().copied());
        let has = |part: &str| weights.names().any(|name| name.contains(part));
        if let (true, Some(classes)) = (
            has("conv_stem.weight"),
            first("classifier.weight").or_else(|| first("_fc.weight")),
        ) {
            if has(".se.") || has("._se_") {
                bail!("{file}: an EfficientNet with squeeze and excitation; {EXPECTED}")
            }
            return Ok(Self::Classify { classes });
        }
        if let Some(channels) = first("net.b1.0.conv.weight") {
            if has("head.cv4.") {
                bail!("{file}: a YOLOv8 of poses; {EXPECTED}")
            }
            let found = YOLOS.iter().find(|(first, ..)| *first == channels);
            let Some(&(_, size, letter)) = found else {
                bail!("{file}: a YOLOv8 whose first layer has {channels} channels; expected 16, 32, 48, 64 or 80")
            };
            return Ok(Self::Detect { size, letter });
        }
        if has("image_encoder.patch_embed.seq.") {
            return Ok(Self::Segment);
        }
        if has("image_encoder.patch_embed.proj.") {
            bail!("{file}: a Segment Anything with a vision transformer; {EXPECTED}")
        }
        let mut some: Vec<&str> = weights.names().collect();
        some.sort_unstable();
        some.truncate(3);
        if some.is_empty() {
            bail!("{file}: it has no tensors; {EXPECTED}")
        } else {
            bail!(
                "{file}: an unknown network, with tensors such as {}; {EXPECTED}",
                some.join(", ")
            )
        }
    }

    pub fn task(self) -> &'static str {
        match self {
            Self::Classify { .. } => "classify",
            Self::Detect { .. } => "detect",
            Self::Segment => "segment",
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Classify { .. } => "EfficientNet-Lite0".to_string(),
            Self::Detect { letter, .. } => format!("YOLOv8{letter}"),
            Self::Segment => "MobileSAM".to_string(),
        }
    }

    /// Number of classes; `None` for a network without classes.
    pub fn classes(self) -> Option<usize> {
        match self {
            Self::Classify { classes } => Some(classes),
            Self::Detect { .. } => Some(CLASSES),
            Self::Segment => None,
        }
    }
}
