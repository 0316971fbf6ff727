//! Positions on three axes, M-RoPE: [arXiv 2409.12191](https://arxiv.org/abs/2409.12191).

use candle_core::{bail, DType, Device, Result, Tensor};

/// Time, row and column.
pub type Position = [u32; 3];

/// The axis that each pair of a head rotates with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axes(Vec<u8>);

impl Axes {
    /// The pairs of time first, then those of rows, then those of columns (Qwen2-VL).
    ///
    /// # Errors
    /// If they are not `pairs` in all.
    pub fn sections(family: &str, sections: &[usize], pairs: usize) -> Result<Self> {
        let sections = three(family, sections, pairs)?;
        let axis = |(axis, count): (u8, usize)| vec![axis; count];
        Ok(Self((0..).zip(sections).flat_map(axis).collect()))
    }

    /// Every third pair rotates with the row and every third with the column, until these have their numbers; all others with time
    /// (Qwen3-VL).
    ///
    /// # Errors
    /// As [`sections`](Self::sections).
    pub fn interleaved(family: &str, sections: &[usize], pairs: usize) -> Result<Self> {
        let sections = three(family, sections, pairs)?;
        let axis = |i: usize| match i % 3 {
            axis @ 1..=2 if i < 3 * sections[axis] => axis as u8,
            _ => 0,
        };
        Ok(Self((0..pairs).map(axis).collect()))
    }

    /// Cosines and sines, (rows, t, pairs) each, of the positions of `rows` texts, which are one after another; `frequencies` are the angles per
    /// position.
    ///
    /// # Errors
    /// If the device has no memory.
    pub fn angles(
        &self,
        positions: &[Position],
        rows: usize,
        frequencies: &[f32],
        dtype: DType,
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let angle = |position: &Position, (axis, frequency): (&u8, &f32)| {
            position[usize::from(*axis)] as f32 * frequency
        };
        let pairs = || self.0.iter().zip(frequencies);
        let angles = positions
            .iter()
            .flat_map(|position| pairs().map(move |pair| angle(position, pair)));
        let shape = [rows, positions.len() / rows.max(1), pairs().count()];
        cos_sin(angles, &shape, dtype, device)
    }
}

/// Three numbers whose sum is `pairs`.
fn three(family: &str, sections: &[usize], pairs: usize) -> Result<[usize; 3]> {
    match <[usize; 3]>::try_from(sections) {
        Ok(three) if three.iter().try_fold(0usize, |sum, it| sum.checked_add(*it)) == Some(pairs) => {
            Ok(three)
        }
        _ => bail!(
            "{family} config: mrope_section {sections:?} must be three numbers whose sum is half of head_dim, {pairs}"
        ),
    }
}

/// Cosines and sines of angles, in f32 on the host, as the large ones of late positions need.
pub fn cos_sin(
    angles: impl Iterator<Item = f32>,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
    let table = |values| Tensor::from_vec(values, shape, device)?.to_dtype(dtype);
    Ok((table(cos)?, table(sin)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3-VL's `mrope_section` [24, 20, 20] of 64 pairs.
    #[test]
    fn pairs_of_the_axes() -> Result<()> {
        let Axes(axes) = Axes::interleaved("test", &[24, 20, 20], 64)?;
        let count = |axis: u8| axes.iter().filter(|a| **a == axis).count();
        assert_eq!([count(0), count(1), count(2)], [24, 20, 20]);
        assert_eq!(axes[..7], [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(axes[57..], [0, 1, 2, 0, 0, 0, 0]);
        assert_eq!(Axes::sections("test", &[1, 2, 1], 4)?.0, [0, 1, 1, 2]);
        assert!(Axes::sections("test", &[1, 2, 1], 5).is_err());
        assert!(Axes::interleaved("test", &[usize::MAX, 1, 4], 4).is_err());
        Ok(())
    }
}
