//! The memory layout of GGML's blocks on the device: in planes, each a part of every block, in the order of the elements.
//!
//! The blocks of a file have odd lengths (18, 22, 34, 110 or 210 bytes) and mix codes with scales, and the k-quants store elements that are
//! 32 apart in one byte. WGSL reads words of 32 bits, and neighbouring invocations should read neighbouring words. So every format is
//! packed again when it is uploaded: codes of two, four or eight bits in one plane, further bits of the codes in another, scales of
//! sub-blocks as bytes, scales of blocks unchanged. The codes of eight consecutive elements are adjacent and share their scales, so a
//! product's kernel loads them together.
//!
//! This is useful for all formats: for those whose blocks are not whole words because they cannot be read otherwise, and for the k-quants
//! because one word of a file's block has elements of two sub-blocks and scales of 6 bits over several bytes, which would have to be
//! unpacked for every product. It only costs memory where 12 bytes of 6-bit scales become 16 (`Q3K`, `Q4K`, `Q5K`: 2 to 4 percent). F32,
//! F16 and BF16 are unchanged.
//!
//! No bit is lost: a plane is a list of bit positions in the block, and the host applies the list in reverse ([`Format::join`]).
//!
//! The formats with tables (IQ, TQ, MXFP4) find codes through grids and signs, each differently. The host converts them to one form before
//! they are packed ([`Format::arrange`]): an f32 and codes of four bits, and for 256 elements scales of every 16. That is 4.5 bits per
//! element, and kernels need no grids. The bytes of the file are kept in a separate plane, since the conversion is not invertible.

use crate::cpu::threads;
use crate::quantized::k_quants::TableFormat;
use crate::quantized::GgmlDType;

/// A part of a plane that holds no bits of the block.
pub(super) const NOTHING: u32 = u32::MAX;

/// The encoding of the scales of eight elements in a block. Elements are `scale * code + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scales {
    /// One f16 per block.
    Half,
    /// Two f16 per block: scale and offset.
    HalfOffset,
    /// Two f16 per block; the second is not needed.
    HalfSum,
    /// One f32 per block.
    Single,
    /// Two f16 per block, and a byte for 16 elements: their scale and minimum, 4 bits each.
    Nibbles,
    /// Two f16 per block, and two bytes for 32 elements: their scale and minimum.
    Bytes,
    /// One f16 per block, and a byte for 16 elements: their scale plus 32.
    Biased,
    /// One f16 per block, and a byte for 16 elements: their signed scale.
    Signed,
    /// Like `Signed`, with one f32 per block.
    SingleSigned,
}

/// A quantised format.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::webgpu_backend) struct Format {
    pub(super) dtype: GgmlDType,
    /// Bits of a code in the first plane.
    pub(super) low: u32,
    /// Further bits of a code in the second plane.
    pub(super) high: u32,
    /// The code of zero.
    pub(super) zero: u32,
    pub(super) scales: Scales,
    /// The values of the codes, unless a code equals its value.
    pub(super) table: Option<[i8; 16]>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.dtype.fmt(f)
    }
}

/// A part of every block. A unit of blocks is a whole number of words.
pub(super) struct Plane {
    /// Size in bits of the groups that are adjacent in the block as well.
    pub(super) piece: u32,
    /// For every group of a unit its first bit in the unit's blocks, or [`NOTHING`].
    pub(super) places: Vec<u32>,
}

impl Plane {
    /// Number of words of a unit.
    pub(super) fn words(&self) -> usize {
        self.places.len() * self.piece as usize / 32
    }
}

impl Format {
    /// The format, or `None` for floats.
    pub(in crate::webgpu_backend) fn of(dtype: GgmlDType) -> Option<Self> {
        use Scales::*;
        if let Some(TableFormat { values, .. }) = TableFormat::of(dtype) {
            return Some(Self {
                dtype,
                low: 4,
                high: 0,
                zero: 0,
                scales: match dtype.block_size() {
                    256 => SingleSigned,
                    _ => Single,
                },
                table: Some(values),
            });
        }
        let (low, high, zero, scales) = match dtype {
            GgmlDType::Q4_0 => (4, 0, 8, Half),
            GgmlDType::Q4_1 => (4, 0, 0, HalfOffset),
            GgmlDType::Q5_0 => (4, 1, 16, Half),
            GgmlDType::Q5_1 => (4, 1, 0, HalfOffset),
            GgmlDType::Q8_0 => (8, 0, 128, Half),
            GgmlDType::Q8_1 => (8, 0, 128, HalfSum),
            GgmlDType::Q2K => (2, 0, 0, Nibbles),
            GgmlDType::Q3K => (2, 1, 4, Biased),
            GgmlDType::Q4K => (4, 0, 0, Bytes),
            GgmlDType::Q5K => (4, 1, 0, Bytes),
            GgmlDType::Q6K => (4, 2, 32, Signed),
            GgmlDType::Q8K => (8, 0, 128, Single),
            // Floats.
            _ => return None,
        };
        Some(Self {
            dtype,
            low,
            high,
            zero,
            scales,
            table: None,
        })
    }

    /// Appends the blocks of a file in the form from which planes are packed.
    pub(super) fn arrange(self, data: &[u8], arranged: &mut Vec<u8>) {
        let Some(table) = TableFormat::of(self.dtype) else {
            arranged.extend_from_slice(data);
            return;
        };
        let block = self.bytes_of_block() as usize;
        for bytes in data.chunks_exact(self.dtype.type_size()) {
            let end = arranged.len() + block;
            (table.write)(bytes, arranged);
            arranged.extend(bytes);
            arranged.resize(end, 0);
        }
    }

    /// Whether [`arrange`](Self::arrange) changes the blocks.
    pub(super) fn is_rearranged(self) -> bool {
        TableFormat::of(self.dtype).is_some()
    }

    /// The offsets of the scales of sub-blocks, the codes, and the bytes of the file in an arranged block.
    fn table_places(self) -> (u32, u32, u32) {
        let codes = 4 + if self.block() == 256 { 16 } else { 0 };
        (4, codes, codes + self.block() / 2)
    }

    /// Elements of a block.
    pub(super) fn block(self) -> u32 {
        self.dtype.block_size() as u32
    }

    /// Whether there is a plane of scales of sub-blocks.
    pub(super) fn has_sub_scales(self) -> bool {
        self.block() == 256 && self.scales != Scales::Single
    }

    /// Blocks of a unit: the smallest number for which every plane is whole words.
    pub(super) fn unit(self) -> usize {
        match self.scales {
            Scales::Half | Scales::Biased | Scales::Signed => 2,
            _ => 1,
        }
    }

    /// The planes, in the order of a kernel's bindings: codes, further bits, scales of sub-blocks, scales of blocks; then a plane that no
    /// kernel reads.
    pub(super) fn planes(self) -> Vec<Plane> {
        let mut planes = vec![self.plane(self.low, |e| self.code_bit(e))];
        if self.high > 0 {
            planes.push(self.plane(self.high, |e| self.high_bit(e)));
        }
        if self.has_sub_scales() {
            planes.push(self.sub_scales());
        }
        let (at, bytes) = match self.dtype {
            GgmlDType::Q2K => (80, 4),
            GgmlDType::Q3K => (108, 2),
            GgmlDType::Q6K => (208, 2),
            GgmlDType::Q4_0 | GgmlDType::Q5_0 | GgmlDType::Q8_0 => (0, 2),
            _ => (0, 4),
        };
        planes.push(self.bytes(at, bytes));
        if self.table.is_some() {
            let (.., file) = self.table_places();
            planes.push(self.bytes(file, self.bytes_of_block() - file));
        }
        if self.dtype == GgmlDType::Q8K {
            planes.push(self.bytes(260, 32));
        }
        planes
    }

    /// Number of planes that kernels read.
    pub(in crate::webgpu_backend) fn bindings(self) -> usize {
        2 + usize::from(self.high > 0) + usize::from(self.has_sub_scales())
    }

    /// Elements of a unit.
    pub(in crate::webgpu_backend) fn unit_elements(self) -> usize {
        self.block() as usize * self.unit()
    }

    /// Words of a unit in each plane.
    pub(in crate::webgpu_backend) fn unit_words(self) -> Vec<usize> {
        self.planes().iter().map(Plane::words).collect()
    }

    /// Bytes of a block, [arranged](Self::arrange).
    pub(super) fn bytes_of_block(self) -> u32 {
        let in_file = self.dtype.type_size() as u32;
        match self.table {
            // Planes are whole words.
            Some(_) => self.table_places().2 + in_file.next_multiple_of(4),
            None => in_file,
        }
    }

    /// A plane of `bits` for each element. Codes of four and eight bits are consecutive. Smaller ones are spread so that the codes of eight
    /// elements, shifted to the lowest bit, are the first four in the lower half of a word and the other four in its upper half, as with
    /// codes of four bits.
    fn plane(self, bits: u32, place: impl Fn(u32) -> u32) -> Plane {
        let elements = self.block() * self.unit() as u32;
        // A unit of 32 elements with codes of one bit has one word, the minimum.
        let mut places = vec![NOTHING; elements as usize];
        for e in 0..elements {
            let word = 32 / bits;
            let in_word = e % word;
            let piece = match bits {
                4 | 8 => in_word,
                _ => {
                    let (eight, i) = (in_word / 8, in_word % 8);
                    (i / 4) * (word / 2) + eight * 4 + i % 4
                }
            };
            let (block, element) = (e / self.block(), e % self.block());
            places[(e - in_word + piece) as usize] =
                block * self.bytes_of_block() * 8 + place(element);
        }
        Plane {
            piece: bits,
            places,
        }
    }

    /// `count` bytes of each block from byte `first` on.
    fn bytes(self, first: u32, count: u32) -> Plane {
        let blocks = 0..self.unit() as u32;
        let places = blocks.flat_map(|block| {
            let start = block * self.bytes_of_block() + first;
            (start..start + count).map(|byte| byte * 8)
        });
        Plane {
            piece: 8,
            places: places.collect(),
        }
    }

    /// The first bit of an element's code in the block.
    fn code_bit(self, e: u32) -> u32 {
        if self.table.is_some() {
            return self.table_places().1 * 8 + 4 * e;
        }
        let (run, i) = (e / 32, e % 32);
        let two_bits = |start: u32| (start + 32 * (run / 4) + i) * 8 + 2 * (run % 4);
        let k_nibble = |start: u32| (start + 32 * (run / 2) + i) * 8 + 4 * (run % 2);
        let nibble = |start: u32| (start + i % 16) * 8 + 4 * (i / 16);
        match self.dtype {
            GgmlDType::Q4_0 => nibble(2),
            GgmlDType::Q4_1 => nibble(4),
            GgmlDType::Q5_0 => nibble(6),
            GgmlDType::Q5_1 => nibble(8),
            GgmlDType::Q8_0 => (2 + e) * 8,
            GgmlDType::Q2K => two_bits(16),
            GgmlDType::Q3K => two_bits(32),
            GgmlDType::Q4K => k_nibble(16),
            GgmlDType::Q5K => k_nibble(48),
            GgmlDType::Q6K => {
                let (half, part) = (run / 4, run % 4);
                (64 * half + 32 * (part % 2) + i) * 8 + 4 * (part / 2)
            }
            // Q8_1 and Q8K.
            _ => (4 + e) * 8,
        }
    }

    /// The first of an element's further bits.
    fn high_bit(self, e: u32) -> u32 {
        let (run, i) = (e / 32, e % 32);
        match self.dtype {
            GgmlDType::Q5_0 => 2 * 8 + e,
            GgmlDType::Q5_1 => 4 * 8 + e,
            GgmlDType::Q3K => i * 8 + run,
            GgmlDType::Q5K => (16 + i) * 8 + run,
            // Q6K.
            _ => (128 + 32 * (run / 4) + i) * 8 + 2 * (run % 4),
        }
    }

    /// The plane of scales of sub-blocks, 16 bytes per block.
    fn sub_scales(self) -> Plane {
        match self.scales {
            Scales::Bytes => self.pairs(|byte, pair| {
                // Scales are the even bytes, minima the odd ones.
                let (j, minimum) = (byte / 2, byte % 2);
                let packed = |byte: u32, bit: u32| (4 + byte) * 8 + bit;
                match (j < 4, pair) {
                    (_, 3) => NOTHING,
                    (true, pair) => packed(j + 4 * minimum, 2 * pair),
                    (false, 2) => packed(j - 4 + 4 * minimum, 6),
                    (false, pair) => packed(j + 4, 4 * minimum + 2 * pair),
                }
            }),
            Scales::Biased => self.pairs(|j, pair| match pair {
                3 => NOTHING,
                2 => (96 + 8 + j % 4) * 8 + 2 * (j / 4),
                pair => (96 + j % 8) * 8 + 4 * (j / 8) + 2 * pair,
            }),
            Scales::Nibbles => self.bytes(0, 16),
            Scales::SingleSigned => self.bytes(self.table_places().0, 16),
            _ => self.bytes(192, 16),
        }
    }

    /// A plane of 16 bytes per block in pairs of bits, by the index of the byte and of the pair in it.
    fn pairs(self, place: impl Fn(u32, u32) -> u32) -> Plane {
        let places = (0..self.unit() as u32 * 64).map(|i| {
            let block = i / 64;
            match place(i % 64 / 4, i % 4) {
                NOTHING => NOTHING,
                bit => block * self.bytes_of_block() * 8 + bit,
            }
        });
        Plane {
            piece: 2,
            places: places.collect(),
        }
    }

    /// Upper bound on the elements' magnitude in these [arranged](Self::arrange) blocks, from their scales alone; infinite if a scale is
    /// NaN.
    pub(super) fn reach(self, data: &[u8]) -> f32 {
        const BLOCKS_PER_TASK: usize = 1 << 13;
        let bytes = BLOCKS_PER_TASK * self.bytes_of_block() as usize;
        let mut reaches = vec![0f32; data.len().div_ceil(bytes)];
        threads::zip_chunks(data, bytes, &mut reaches, 1, |data, reach| {
            reach.fill(self.reach_of(data));
        });
        reaches.into_iter().fold(0., f32::max)
    }

    fn reach_of(self, data: &[u8]) -> f32 {
        let half = |block: &[u8], at: usize| {
            half::f16::from_le_bytes([block[at], block[at + 1]])
                .to_f32()
                .abs()
        };
        // The offset of the scale and its maximum factor, then the same for the additive term.
        let (at, most, offset) = match self.dtype {
            GgmlDType::Q4_0 => (0, 8., None),
            GgmlDType::Q4_1 => (0, 15., Some((2, 1.))),
            GgmlDType::Q5_0 => (0, 16., None),
            GgmlDType::Q5_1 => (0, 31., Some((2, 1.))),
            GgmlDType::Q2K => (80, 15. * 3., Some((82, 15.))),
            GgmlDType::Q3K => (108, 32. * 4., None),
            GgmlDType::Q4K => (0, 63. * 15., Some((2, 63.))),
            GgmlDType::Q5K => (0, 63. * 31., Some((2, 63.))),
            GgmlDType::Q6K => (208, 128. * 32., None),
            // Q8_0, Q8_1 and Q8K; with a table, values and scales of sub-blocks up to 127 and 32.
            _ => (
                0,
                if self.has_sub_scales() {
                    127. * 32.
                } else {
                    128.
                },
                None,
            ),
        };
        let mut reach = 0f32;
        for block in data.chunks_exact(self.bytes_of_block() as usize) {
            let scale = match self.scales {
                Scales::Single | Scales::SingleSigned => {
                    f32::from_le_bytes([block[0], block[1], block[2], block[3]]).abs()
                }
                _ => half(block, at),
            };
            let own = scale * most + offset.map_or(0., |(at, most)| half(block, at) * most);
            if own.is_nan() {
                return f32::INFINITY;
            }
            reach = reach.max(own);
        }
        reach
    }

    /// The blocks of these planes, in a file's format.
    pub(super) fn join(self, planes: &[Vec<u32>], blocks: usize) -> Vec<u8> {
        let unit_bytes = self.unit() * self.bytes_of_block() as usize;
        let mut bytes = vec![0u8; blocks.div_ceil(self.unit()) * unit_bytes];
        for (plane, words) in self.planes().iter().zip(planes) {
            let unit_words = plane.words();
            let pieces = 32 / plane.piece as usize;
            let units = bytes.chunks_exact_mut(unit_bytes);
            for (unit, words) in units.zip(words.chunks_exact(unit_words)) {
                for (i, &place) in plane.places.iter().enumerate() {
                    if place != NOTHING {
                        let shifted = words[i / pieces] >> (i % pieces * plane.piece as usize);
                        let piece = shifted & (u32::MAX >> (32 - plane.piece));
                        unit[place as usize / 8] |= (piece << (place % 8)) as u8;
                    }
                }
            }
        }
        bytes.truncate(blocks * self.bytes_of_block() as usize);
        if self.table.is_none() {
            return bytes;
        }
        let (first, len) = (self.table_places().2 as usize, self.dtype.type_size());
        let blocks = bytes.chunks_exact(self.bytes_of_block() as usize);
        blocks
            .flat_map(|block| &block[first..first + len])
            .copied()
            .collect()
    }
}

/// All formats.
#[cfg(test)]
pub(in crate::webgpu_backend) const FORMATS: &[GgmlDType] = &[
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q8_1,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ1S,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ1M,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ2XXS,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ2XS,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ2S,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ3XXS,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ3S,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ4NL,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::IQ4XS,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::TQ1_0,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::TQ2_0,
    #[cfg(feature = "all-ggml-types")]
    GgmlDType::MXFP4,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_block_is_in_one_plane() {
        for &dtype in FORMATS {
            let format = Format::of(dtype).unwrap();
            let mut found = vec![0; format.unit() * format.bytes_of_block() as usize * 8];
            for plane in format.planes() {
                assert_eq!(
                    plane.places.len() * plane.piece as usize % 32,
                    0,
                    "{dtype:?}"
                );
                for place in plane.places.iter().filter(|place| **place != NOTHING) {
                    assert_eq!(place / 8, (place + plane.piece - 1) / 8, "{dtype:?}");
                    for bit in *place..place + plane.piece {
                        found[bit as usize] += 1;
                    }
                }
            }
            assert!(found.iter().all(|count| *count == 1), "{dtype:?} {found:?}");
        }
    }
}
