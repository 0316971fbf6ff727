//! gpt-oss's experts: a row of the gate and one of up in alternation, dense or as MXFP4, the OCP Microscaling format of 4 bits: 32 numbers
//! share a power of two, and a byte holds two of them, the first in its low half.

use candle_core::quantized::QMatMul;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{init, Init};

use super::super::weights::{place_dense, Stored, Weights};

/// Numbers that share a scale.
const BLOCK: usize = 32;

/// The magnitudes of the low three bits of a number; the fourth bit is its sign.
const MAGNITUDES: [f32; 8] = [0., 0.5, 1., 1.5, 2., 3., 4., 6.];

/// The weights `name` of experts, `(count, out_dim, in_dim)`, whatever form the source has. With `alternating` outputs, those with even
/// numbers come first.
pub(super) async fn experts(
    weights: &mut Weights<'_>,
    name: &str,
    [count, out_dim, in_dim]: [usize; 3],
    alternating: bool,
) -> Result<QMatMul> {
    let blocks = format!("{name}_blocks");
    let dense = if weights.has(&blocks) && in_dim.is_multiple_of(BLOCK) && !weights.has(name) {
        let zeros = Init::Const(0.);
        let shape = [count, out_dim, in_dim / BLOCK, BLOCK / 2];
        let blocks = weights.stored(&blocks, &shape, zeros).await?;
        let scales = format!("{name}_scales");
        let scales = weights.stored(&scales, &shape[..3], zeros).await?;
        if weights.is_check() {
            Tensor::zeros((), DType::F32, &Device::Cpu)?.broadcast_as((1, 2, 1))?
        } else {
            unpacked(blocks, scales, weights)?.reshape((count, out_dim, in_dim))?
        }
    } else {
        let shape = [count, in_dim, out_dim];
        let dense = weights
            .dense(name, &shape, init::DEFAULT_KAIMING_NORMAL)
            .await?;
        dense.transpose(1, 2)?
    };
    if weights.is_check() {
        return Ok(QMatMul::Tensor(dense));
    }
    let dense = if alternating {
        in_halves(&dense)?
    } else {
        dense.contiguous()?
    };
    Ok(QMatMul::Tensor(dense))
}

/// `(count, 2 * n, ..)` with the even rows first.
pub(super) fn in_halves(alternating: &Tensor) -> Result<Tensor> {
    let dims = alternating.dims();
    let mut pairs = dims.to_vec();
    pairs.splice(1..2, [dims[1] / 2, 2]);
    let halves = alternating.reshape(pairs)?.transpose(1, 2)?;
    halves.contiguous()?.reshape(dims)
}

/// The numbers of MXFP4 blocks, expert by expert, so that few of them are f32 at a time.
fn unpacked(blocks: Stored, scales: Stored, weights: &Weights<'_>) -> Result<Tensor> {
    // A builder of weights makes all tensors floats; bytes are whole numbers that each float dtype has.
    let bytes = |stored| place_dense(vec![stored], DType::U8, &Device::Cpu);
    let (blocks, scales) = (bytes(blocks)?, bytes(scales)?);
    let mut experts = Vec::with_capacity(scales.dim(0)?);
    for expert in 0..scales.dim(0)? {
        let bytes = blocks.get(expert)?.flatten_all()?.to_vec1::<u8>()?;
        let scales = scales.get(expert)?.flatten_all()?.to_vec1::<u8>()?;
        let mut numbers = Vec::with_capacity(2 * bytes.len());
        for (bytes, scale) in bytes.chunks_exact(BLOCK / 2).zip(scales) {
            let scale = power_of_two(scale);
            for byte in bytes {
                numbers.extend([number(byte & 15) * scale, number(byte >> 4) * scale]);
            }
        }
        let expert = Tensor::from_vec(numbers, (1, scales_len(&blocks)?), &Device::Cpu)?;
        experts.push(
            expert
                .to_dtype(weights.dtype())?
                .to_device(weights.device())?,
        );
    }
    Tensor::cat(&experts, 0)
}

/// The numbers of an expert.
fn scales_len(blocks: &Tensor) -> Result<usize> {
    Ok(2 * blocks.elem_count() / blocks.dim(0)?)
}

fn number(bits: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(bits & 7)];
    match bits & 8 {
        0 => magnitude,
        _ => -magnitude,
    }
}

/// E8M0: `2^(bits - 127)`, and one code for NaN.
fn power_of_two(bits: u8) -> f32 {
    match bits {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        bits => f32::from_bits(u32::from(bits) << 23),
    }
}
