//! Encodings of integers.

use candle_core::{DType, Error, Result, Tensor, WithDType};

/// For each index a vector of `depth` elements, `on_value` at the index and `off_value` elsewhere. The index -1 (of an i64
/// tensor) gives a vector of `off_value` alone.
///
/// The result has the shape of `indices` with `depth` appended, and is on the same device; the indices are read back.
///
/// # Errors
/// An index is below -1 or not below `depth`, or `indices` is not of dtype u8, u32 or i64.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let indices = Tensor::new(&[0i64, 2, -1], &Device::Cpu)?;
/// let encoded = candle_nn::encoding::one_hot(indices, 3, 1u8, 0u8)?;
/// assert_eq!(encoded.to_vec2::<u8>()?, &[[1, 0, 0], [0, 0, 1], [0, 0, 0]]);
/// # Ok(())
/// # }
/// ```
pub fn one_hot<D: WithDType>(
    indices: Tensor,
    depth: usize,
    on_value: D,
    off_value: D,
) -> Result<Tensor> {
    let mut dims = indices.dims().to_vec();
    dims.push(depth);
    let flat = indices.flatten_all()?;
    let positions: Vec<i64> = match indices.dtype() {
        DType::U8 => flat.to_vec1::<u8>()?.into_iter().map(i64::from).collect(),
        DType::U32 => flat.to_vec1::<u32>()?.into_iter().map(i64::from).collect(),
        DType::I64 => flat.to_vec1()?,
        dtype => return Err(Error::UnsupportedDTypeForOp(dtype, "one-hot").bt()),
    };
    let mut encoded = vec![off_value; positions.len() * depth];
    for (row, &position) in positions.iter().enumerate() {
        match usize::try_from(position) {
            Ok(position) if position < depth => encoded[row * depth + position] = on_value,
            _ if position == -1 => {}
            _ => candle_core::bail!(
                "one-hot: index {position} at {row}; it must be at least -1 and below the depth {depth}"
            ),
        }
    }
    Tensor::from_vec(encoded, dims, indices.device())
}
