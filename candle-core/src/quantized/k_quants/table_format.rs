//! The GPU form of the formats whose elements are looked up in tables.

use super::*;

/// The conversion of a format to its GPU form, the same for all: a scale, the scales of every 16 elements, and codes of four bits.
pub(crate) struct TableFormat {
    /// The values of the codes.
    pub(crate) values: [i8; 16],
    /// Appends a block's scale (an f32), 16 scales (bytes) if there are 256 elements, and the codes (nibbles, in the order of the
    /// elements).
    pub(crate) write: fn(&[u8], &mut Vec<u8>),
}

impl TableFormat {
    /// The format, or `None` if it has no table.
    #[cfg(not(feature = "all-ggml-types"))]
    pub(crate) fn of(_dtype: GgmlDType) -> Option<Self> {
        None
    }

    /// The format, or `None` if it has no table.
    #[cfg(feature = "all-ggml-types")]
    pub(crate) fn of(dtype: GgmlDType) -> Option<Self> {
        use super::table_blocks::Table;

        fn format<T: Table<LEN> + bytemuck::Pod, const LEN: usize>() -> Option<TableFormat> {
            Some(TableFormat {
                values: T::VALUES,
                write: |block, to| {
                    let block: T = bytemuck::pod_read_unaligned(block);
                    to.extend(block.scale().to_le_bytes());
                    if LEN == QK_K {
                        to.extend(block.scales().map(|scale| scale as u8));
                    }
                    let codes = block.codes();
                    to.extend(codes.as_chunks::<2>().0.iter().map(|[a, b]| a | b << 4));
                },
            })
        }
        match dtype {
            GgmlDType::IQ4NL => format::<BlockIQ4NL, 32>(),
            GgmlDType::MXFP4 => format::<BlockMXFP4, 32>(),
            GgmlDType::IQ1S => format::<BlockIQ1S, QK_K>(),
            GgmlDType::IQ1M => format::<BlockIQ1M, QK_K>(),
            GgmlDType::IQ2XXS => format::<BlockIQ2XXS, QK_K>(),
            GgmlDType::IQ2XS => format::<BlockIQ2XS, QK_K>(),
            GgmlDType::IQ2S => format::<BlockIQ2S, QK_K>(),
            GgmlDType::IQ3XXS => format::<BlockIQ3XXS, QK_K>(),
            GgmlDType::IQ3S => format::<BlockIQ3S, QK_K>(),
            GgmlDType::IQ4XS => format::<BlockIQ4XS, QK_K>(),
            GgmlDType::TQ1_0 => format::<BlockTQ1_0, QK_K>(),
            GgmlDType::TQ2_0 => format::<BlockTQ2_0, QK_K>(),
            _ => None,
        }
    }
}
