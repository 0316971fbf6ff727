use super::super::plan::tiles;
use super::*;
use crate::backend::BackendDevice;
use crate::quantized::{GgmlDType, QTensor};
use crate::webgpu_backend::WebGpuDevice;
use crate::{CpuStorage, Device, Layout, Tensor};

/// The storage format of a weight.
#[derive(Debug, Clone, Copy)]
enum Stored {
    Blocks(GgmlDType),
    Floats(DType),
}

/// Rows of `k` numbers on a device with gaps, a group before the first and between two rows; and their values.
fn with_gaps(
    device: &WebGpuDevice,
    numbers: &[f32],
    k: usize,
    dtype: DType,
) -> Result<(WebGpuStorage, Vec<f32>)> {
    let mut padded = vec![f32::NAN; GROUP];
    for row in numbers.chunks(k) {
        padded.extend_from_slice(row);
        padded.extend([f32::NAN; GROUP]);
    }
    Ok(match dtype {
        DType::BF16 => {
            let halves: Vec<_> = padded.iter().map(|x| half::bf16::from_f32(*x)).collect();
            let rounded = |x: &f32| half::bf16::from_f32(*x).to_f32();
            (
                device.storage_from_slice(&halves)?,
                numbers.iter().map(rounded).collect(),
            )
        }
        _ => (device.storage_from_slice(&padded)?, numbers.to_vec()),
    })
}

/// Software adapters have no cooperative matrices: here the tile kernel multiplies the f16 operands instead.
#[test]
fn products_via_f16() -> Result<()> {
    let Device::WebGpu(device) = Device::new_webgpu(0)? else {
        unreachable!("`new_webgpu` opens a WebGPU device")
    };
    // Long enough to split the inner dimension.
    let (m, k, n) = (9, 512, 600);
    let rows = |rows: usize, step: usize| {
        let row = move |r: usize| (0..k).map(move |i| ((r * 31 + i * step) % 23) as f32 - 11.);
        (0..rows).flat_map(row).collect::<Vec<f32>>()
    };
    // Far beyond f16 on one side, far below on the other.
    for (lhs_size, rhs_size) in [(1f32, 1f32), (1e9, 1e-4), (1e-12, 1e3), (1e30, 1e-28)] {
        let mut x = rows(m, 7);
        // Rows of very different size.
        for (r, row) in x.chunks_mut(k).enumerate() {
            let size = lhs_size * 10f32.powi(r as i32 % 4);
            row.iter_mut().for_each(|x| *x *= size);
        }
        for stored in [
            Stored::Blocks(GgmlDType::Q8_0),
            Stored::Floats(DType::BF16),
            Stored::Floats(DType::F32),
        ] {
            let mut dense: Vec<_> = rows(n, 5).iter().map(|w| w * rhs_size).collect();
            let lhs_dtype = match stored {
                Stored::Floats(DType::BF16) => DType::BF16,
                _ => DType::F32,
            };
            let (lhs, x) = with_gaps(&device, &x, k, lhs_dtype)?;
            let lhs = Rows {
                floats: &lhs,
                offset: GROUP,
                row: k + GROUP,
            };
            let (blocks, floats);
            let (weight, values) = match stored {
                Stored::Blocks(dtype) => {
                    // A block's scale is an f16.
                    dense.iter_mut().for_each(|w| *w *= 1e-3 / rhs_size);
                    let dense = Tensor::from_vec(dense, (n, k), &Device::Cpu)?;
                    let quantized = QTensor::quantize(&dense, dtype)?;
                    blocks = QWebGpuStorage::from_parts(&device, dtype, &[&quantized.data()?])?;
                    let values = quantized.dequantize(&Device::Cpu)?.flatten_all()?;
                    let rows = WeightRows {
                        weight: &blocks,
                        format: Format::of(dtype).expect("a quantised format"),
                        first: 0,
                    };
                    (Weight::Blocks(rows), values.to_vec1()?)
                }
                Stored::Floats(dtype) => {
                    for (r, row) in dense.chunks_mut(k).enumerate() {
                        let size = 10f32.powi(r as i32 % 5);
                        row.iter_mut().for_each(|w| *w *= size);
                    }
                    let values;
                    (floats, values) = with_gaps(&device, &dense, k, dtype)?;
                    let rows = Rows {
                        floats: &floats,
                        offset: GROUP,
                        row: k + GROUP,
                    };
                    (Weight::Floats(rows), values)
                }
            };
            // Of the products' magnitude, from the second element of a storage on.
            let added =
                |i: usize| ((i * 7) % 13) as f32 * x[i % x.len()] * values[i % values.len()];
            let added = (0..m * n + 1).map(added).collect::<Vec<_>>();
            let residual = device.storage_from_slice(&added)?;
            let residual_l = Layout::contiguous_with_offset((m, n), 1);
            let dst = device.alloc(m * n, DType::F32, OP)?;
            let extras = Extras {
                residual: Some((&residual, &residual_l)),
                ..Extras::default()
            };
            // Three parts: 256, 256 and 88 columns.
            let piece = 256 * 2 * k;
            via_f16(lhs, weight, (m, k, n), extras, &dst, piece, |problem| {
                tiles(problem, Access::Inner, Access::Inner)
            })?;
            let CpuStorage::F32(got) = dst.to_cpu_storage()? else {
                unreachable!("dst is f32")
            };
            // Both sides are rounded to 11 bits, which bf16 does not need.
            let rounded = match lhs_dtype {
                DType::BF16 => 2f64.powi(-20),
                _ => 2f64.powi(-10),
            };
            for (i, x) in x.chunks(k).enumerate() {
                for (j, w) in values.chunks(k).enumerate() {
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let first = f64::from(added[i * n + j + 1]);
                    let (sum, size) =
                        products.fold((first, first.abs()), |(s, n), p| (s + p, n + p.abs()));
                    let off = (f64::from(got[i * n + j]) - sum).abs();
                    assert!(
                        off <= size * rounded,
                        "{stored:?} {lhs_size} {rhs_size} ({i}, {j}): {off} of {size}"
                    );
                }
            }
        }
    }
    Ok(())
}
