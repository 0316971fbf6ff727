//! The storage formats of dtypes, and the WGSL that reads and writes them.

use crate::DType;

/// The storage format of a dtype, and the type of arithmetic in kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Elem {
    F32,
    F16,
    BF16,
    U32,
    U8,
    I32,
    I64,
    I16,
    F8E4M3,
    F64,
}

impl Elem {
    #[cfg(test)]
    pub(super) const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F8E4M3,
        Self::F64,
        Self::U32,
        Self::U8,
        Self::I16,
        Self::I32,
        Self::I64,
    ];

    /// The storage of `dtype`, for dtypes that have one on some adapter.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::F8E4M3 => Self::F8E4M3,
            DType::F64 => Self::F64,
            DType::U32 => Self::U32,
            DType::U8 => Self::U8,
            DType::I16 => Self::I16,
            DType::I32 => Self::I32,
            DType::I64 => Self::I64,
            DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => return None,
        })
    }

    /// Elements in one stored word.
    pub(super) fn lanes(self) -> u32 {
        match self {
            Self::F32 | Self::U32 | Self::I32 | Self::I64 | Self::F64 => 1,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::U8 | Self::F8E4M3 => 4,
        }
    }

    /// Bytes of one stored word.
    pub(super) fn word_bytes(self) -> u32 {
        match self {
            Self::I64 | Self::F64 => 8,
            _ => 4,
        }
    }

    /// An integer with the same storage format: kernels that move elements without computing use only their bits.
    pub(super) fn bits(self) -> Self {
        match self {
            Self::F32 | Self::U32 | Self::I32 => Self::U32,
            Self::F16 | Self::BF16 | Self::I16 => Self::I16,
            Self::U8 | Self::F8E4M3 => Self::U8,
            Self::I64 | Self::F64 => Self::I64,
        }
    }

    /// WGSL for the lanes `v` rounded as by a store and a load.
    pub(super) fn round(self) -> &'static str {
        match self {
            Self::F16 => "let w = unpack2x16float(pack_f16(v[0], v[1])); v[0] = w.x; v[1] = w.y;",
            Self::BF16 => {
                "let w = pack_bf16(v[0], v[1]); v[0] = bitcast<f32>(w << 16u); v[1] = bitcast<f32>(w & 0xffff0000u);"
            }
            Self::F8E4M3 => "for (var i = 0u; i < 4u; i++) { v[i] = f8_value(f8_bits(v[i])); }",
            _ => "",
        }
    }

    /// The type of one stored word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "vec2<u32>",
            Self::F16 | Self::BF16 | Self::U32 | Self::U8 | Self::I16 | Self::F8E4M3 => "u32",
        }
    }

    /// The type that kernels compute in.
    pub(super) fn arithmetic(self) -> &'static str {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F8E4M3 => "f32",
            Self::F64 => "f64",
            Self::U32 | Self::U8 => "u32",
            Self::I32 | Self::I16 => "i32",
            Self::I64 => "vec2<u32>",
        }
    }

    pub(super) fn is_float(self) -> bool {
        self.computes_in_f32() || self == Self::F64
    }

    /// Whether kernels compute in f32.
    pub(super) fn computes_in_f32(self) -> bool {
        self.arithmetic() == "f32"
    }

    /// Whether the kernels that load many elements at once (matrix products, fused ops) support this dtype.
    pub(super) fn in_wide_kernels(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// WGSL for element `i` of the binding `name`.
    pub(super) fn read(self, name: &str) -> String {
        match self {
            Self::F32 | Self::F64 | Self::U32 | Self::I32 | Self::I64 => {
                format!("return {name}[i];")
            }
            Self::F16 => format!(
                "let pair = unpack2x16float({name}[i >> 1u]); return select(pair.x, pair.y, (i & 1u) == 1u);"
            ),
            Self::BF16 => format!(
                "let pair = {name}[i >> 1u]; \
                 return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (i & 1u) == 1u));"
            ),
            Self::I16 => format!(
                "let pair = {name}[i >> 1u]; \
                 return bitcast<i32>(select(pair << 16u, pair, (i & 1u) == 1u)) >> 16u;"
            ),
            Self::U8 => format!("return ({name}[i >> 2u] >> ((i & 3u) * 8u)) & 0xffu;"),
            Self::F8E4M3 => format!("return f8_value({name}[i >> 2u] >> ((i & 3u) * 8u));"),
        }
    }

    /// WGSL for the word that holds the lanes `v`.
    pub(super) fn pack(self) -> &'static str {
        match self {
            Self::F32 | Self::F64 | Self::U32 | Self::I32 | Self::I64 => "v[0]",
            Self::F16 => "pack_f16(v[0], v[1])",
            Self::BF16 => "pack_bf16(v[0], v[1])",
            Self::I16 => "(bitcast<u32>(v[0]) & 0xffffu) | (bitcast<u32>(v[1]) << 16u)",
            Self::U8 => {
                "(v[0] & 0xffu) | ((v[1] & 0xffu) << 8u) | ((v[2] & 0xffu) << 16u) | (v[3] << 24u)"
            }
            Self::F8E4M3 => {
                "f8_bits(v[0]) | (f8_bits(v[1]) << 8u) | (f8_bits(v[2]) << 16u) | (f8_bits(v[3]) << 24u)"
            }
        }
    }
}
