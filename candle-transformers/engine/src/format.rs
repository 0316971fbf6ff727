//! What weights are stored as: floats, or blocks of GGML.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};

/// The storage format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Floats.
    Dense(DType),
    /// Quantised blocks.
    Blocks(GgmlDType),
}

/// Formats that `--dtype` of a benchmark takes, with what they are.
const KNOWN: [(WeightFormat, &str, &str); 13] = [
    (WeightFormat::Dense(DType::F32), "f32", "32-bit floats"),
    (WeightFormat::Dense(DType::F16), "f16", "16-bit IEEE floats"),
    (
        WeightFormat::Dense(DType::BF16),
        "bf16",
        "16-bit brain floats",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q4_0),
        "q4_0",
        "blocks of 32, 4.5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q4_1),
        "q4_1",
        "blocks of 32, 5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q5_0),
        "q5_0",
        "blocks of 32, 5.5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q5_1),
        "q5_1",
        "blocks of 32, 6 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q8_0),
        "q8_0",
        "blocks of 32, 8.5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q2K),
        "q2_k",
        "blocks of 256, 2.6 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q3K),
        "q3_k",
        "blocks of 256, 3.4 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q4K),
        "q4_k",
        "blocks of 256, 4.5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q5K),
        "q5_k",
        "blocks of 256, 5.5 bits a weight",
    ),
    (
        WeightFormat::Blocks(GgmlDType::Q6K),
        "q6_k",
        "blocks of 256, 6.6 bits a weight",
    ),
];

impl From<GgmlDType> for WeightFormat {
    fn from(format: GgmlDType) -> Self {
        match format {
            GgmlDType::F32 => Self::Dense(DType::F32),
            GgmlDType::F16 => Self::Dense(DType::F16),
            GgmlDType::BF16 => Self::Dense(DType::BF16),
            blocks => Self::Blocks(blocks),
        }
    }
}

impl WeightFormat {
    /// The name, as `--dtype` takes it; formats that it does not take go by their name in the code.
    pub fn name(self) -> String {
        let known = KNOWN.iter().find(|(format, ..)| *format == self);
        match (known, self) {
            (Some((_, name, _)), _) => name.to_string(),
            (None, Self::Dense(dtype)) => dtype.as_str().to_string(),
            (None, Self::Blocks(blocks)) => format!("{blocks:?}").to_lowercase(),
        }
    }

    /// Bytes of a weight.
    pub fn bytes_per_weight(self) -> f64 {
        match self {
            Self::Dense(dtype) => dtype.size_in_bytes() as f64,
            Self::Blocks(blocks) => blocks.type_size() as f64 / blocks.block_size() as f64,
        }
    }

    /// The default dtype of activations for such weights: that of dense weights, and f32 for blocks, as in Candle.
    pub fn activations(self) -> DType {
        match self {
            Self::Dense(dtype) => dtype,
            Self::Blocks(_) => DType::F32,
        }
    }
}

/// The storage format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum KvType {
    /// f16 with quantised weights on a GPU, where f16 matrices are faster; otherwise the type of the activations
    #[default]
    Auto,
    /// 32-bit floats
    F32,
    /// 16-bit IEEE floats, for any activations
    F16,
    /// 16-bit brain floats, for activations of bf16 or f32
    Bf16,
}

impl KvType {
    /// The dtype, for weights of `format` and `activations` on `device`. That attention takes it is checked when the model is loaded
    /// ([`Decoder::with_kv_dtype`](candle_transformers::blocks::Decoder::with_kv_dtype)).
    pub fn dtype(self, format: WeightFormat, activations: DType, device: &Device) -> DType {
        match (self, format) {
            (Self::F32, _) => DType::F32,
            (Self::F16, _) => DType::F16,
            (Self::Bf16, _) => DType::BF16,
            (Self::Auto, WeightFormat::Blocks(_)) if device.is_wgpu() || device.is_cuda() => {
                DType::F16
            }
            (Self::Auto, _) => activations,
        }
    }
}

/// Formats as arguments of a program.
#[cfg(feature = "clap")]
mod argument {
    use super::{DType, WeightFormat, KNOWN};
    use clap::builder::PossibleValue;
    use clap::ValueEnum;

    const VARIANTS: [WeightFormat; KNOWN.len()] = {
        let mut variants = [WeightFormat::Dense(DType::F32); KNOWN.len()];
        let mut i = 0;
        while i < KNOWN.len() {
            variants[i] = KNOWN[i].0;
            i += 1;
        }
        variants
    };

    impl ValueEnum for WeightFormat {
        fn value_variants<'a>() -> &'a [Self] {
            &VARIANTS
        }

        fn to_possible_value(&self) -> Option<PossibleValue> {
            let (_, name, help) = KNOWN.iter().find(|(format, ..)| format == self)?;
            Some(PossibleValue::new(*name).help(*help))
        }
    }
}
