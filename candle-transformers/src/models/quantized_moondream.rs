//! [`super::moondream`] with quantised weights, from GGUF files with the names of the dense ones, such as
//! [santiagomed/candle-moondream](https://huggingface.co/santiagomed/candle-moondream). Activations are f32.

use super::moondream;
use crate::blocks::Quantized;

pub use super::moondream::Encoder;

/// The part that sees: the transformer and the network behind it. Pictures are f32.
pub type VisionEncoder = moondream::Vision<Quantized>;

/// The part that sees and the part that writes.
pub type Model = moondream::Moondream<Quantized>;
