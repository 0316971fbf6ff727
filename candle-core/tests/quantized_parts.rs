//! Blocks in several parts, which are joined in the device's memory; and memory that they leave to later ones.

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor, SpareMemory};
use candle_core::{test_device, DType, Device, Module, Result, Tensor};

const CPU: Device = Device::Cpu;

const FORMATS: [GgmlDType; 11] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q6K,
    GgmlDType::BF16,
];

/// Bytes of any value.
fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(747_796_405) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let words: Vec<u32> = std::iter::repeat_with(next).take(len.div_ceil(4)).collect();
    words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .take(len)
        .collect()
}

/// The blocks of parts of these numbers of blocks are those of the concatenation.
fn assert_joined(device: &Device, dtype: GgmlDType, counts: &[usize]) -> Result<()> {
    let parts: Vec<Vec<u8>> = counts
        .iter()
        .zip(1..)
        .map(|(count, seed)| noise(count * dtype.type_size(), seed))
        .collect();
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let elements = counts.iter().sum::<usize>() * dtype.block_size();
    let joined = QStorage::from_parts(&slices, device, dtype)?;
    let joined = QTensor::new(joined, elements)?;
    // No assert_eq: it would print megabytes.
    assert!(*joined.data()? == parts.concat(), "{dtype:?} {counts:?}");
    let whole = QStorage::from_data(parts.concat().into(), device, dtype)?;
    let whole = QTensor::new(whole, elements)?;
    if elements < 1 << 20 {
        let bits = |tensor: &QTensor| -> Result<Vec<u32>> {
            let numbers = tensor.dequantize(device)?.to_vec1::<f32>()?;
            Ok(numbers.into_iter().map(f32::to_bits).collect())
        };
        assert_eq!(bits(&joined)?, bits(&whole)?, "{dtype:?} {counts:?}");
    }
    Ok(())
}

/// Parts end within a device's words and within the units that it packs.
fn parts_of_any_length(device: &Device) -> Result<()> {
    for dtype in FORMATS {
        for counts in [&[1, 2, 0, 3, 5][..], &[7], &[4, 4], &[1, 1, 1]] {
            assert_joined(device, dtype, counts)?;
        }
    }
    Ok(())
}
test_device!(parts_of_any_length);

/// More than what is copied to a device at a time, with parts that end everywhere.
fn parts_longer_than_a_copy(device: &Device) -> Result<()> {
    let blocks = |bytes: usize| bytes / GgmlDType::Q8_0.type_size();
    let counts = [
        1,
        blocks(9 << 20),
        3,
        blocks(25 << 20) + 1,
        blocks(64 << 10),
    ];
    assert_joined(device, GgmlDType::Q8_0, &counts)?;
    // Exactly one copy of 8 MiB, one byte's worth of blocks more, and 1 MiB, the minimum for one.
    let whole = |bytes: usize| bytes / GgmlDType::F32.type_size();
    for counts in [
        [whole(8 << 20), 0],
        [whole(8 << 20), 1],
        [1, whole(1 << 20) - 1],
    ] {
        assert_joined(device, GgmlDType::F32, &counts)?;
    }
    Ok(())
}
test_device!(parts_longer_than_a_copy);

/// Copies from rayon's threads, which run each other's tasks while they wait: none waits for a copy that waits for it.
fn copies_of_many_threads(device: &Device) -> Result<()> {
    use rayon::prelude::*;
    let bytes: Vec<Vec<u8>> = (1..=24).map(|seed| noise(3 << 20, seed)).collect();
    let copied: Result<Vec<bool>> = bytes
        .par_iter()
        .map(|bytes| {
            let copy = Tensor::from_slice(bytes.as_slice(), bytes.len(), device)?;
            Ok(copy.to_vec1::<u8>()? == *bytes)
        })
        .collect();
    assert_eq!(copied?, [true; 24]);
    Ok(())
}
test_device!(copies_of_many_threads);

/// A part ends within a block, though the sum is whole blocks.
fn parts_of_blocks_are_refused(device: &Device) -> Result<()> {
    let bytes = noise(68, 1);
    let Err(err) = QStorage::from_parts(&[&bytes[..20], &bytes[20..]], device, GgmlDType::Q8_0)
    else {
        panic!("20 bytes are not blocks of 34")
    };
    assert!(err.to_string().contains("20 bytes"), "{err}");
    Ok(())
}
test_device!(parts_of_blocks_are_refused);

/// Weights that are used and dropped in turn have the results of weights that stay.
fn weights_in_turn(device: &Device) -> Result<()> {
    const ROWS: [usize; 3] = [4096, 1024, 2048];
    const COLUMNS: usize = 512;
    let xs = Tensor::arange(0f32, COLUMNS as f32, &CPU)?;
    let xs = (xs / COLUMNS as f64)?.sin()?.reshape((1, COLUMNS))?;
    let weight = |layer: usize, rows: usize| {
        let numbers = Tensor::arange(0f32, (rows * COLUMNS) as f32, &CPU)?;
        let numbers = ((numbers * (0.01 + layer as f64 / 7.))?.sin()? * (1. + layer as f64))?;
        QTensor::quantize(&numbers.reshape((rows, COLUMNS))?, GgmlDType::Q8_0)
    };
    let product = |weight: QTensor, xs: &Tensor| QMatMul::from_qtensor(weight)?.forward(xs);
    let xs_here = xs.to_device(device)?;
    let mut kept = Vec::new();
    for spares in [false, true] {
        let _memory = spares.then(|| SpareMemory::keep(device));
        let mut before: Vec<QTensor> = Vec::new();
        let mut results = Vec::new();
        for layer in 0..5 {
            let mut weights = Vec::new();
            for rows in ROWS {
                // A size that is no longer requested.
                let rows = if layer == 0 { rows / 2 } else { rows };
                let weight = weight(layer, rows)?;
                let data = weight.data()?;
                let here = QStorage::from_parts(&[&data], device, GgmlDType::Q8_0)?;
                weights.push(QTensor::new(here, (rows, COLUMNS))?);
            }
            for weight in &weights {
                results.push(xs_here.apply_op1_no_bwd(weight)?);
            }
            before = weights;
        }
        drop(before);
        let results = results
            .iter()
            .map(|result| result.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>());
        kept.push(results.collect::<Result<Vec<_>>>()?);
    }
    assert_eq!(kept[0], kept[1]);
    let wanted = product(weight(4, ROWS[2])?, &xs)?.flatten_all()?;
    let found = Tensor::new(kept[1].last().expect("a result").as_slice(), &CPU)?;
    let largest = (found - wanted)?.abs()?.max(0)?.to_scalar::<f32>()?;
    // Sums of 512 products of up to 5; activations of 8 bits round differently.
    assert!(largest < 0.5, "{largest}");
    Ok(())
}
test_device!(weights_in_turn);

/// A dropped weight's memory is for the next one of its size alone, and for nobody once the guard is gone.
#[cfg(feature = "cuda")]
mod spare_memory_is_reused {
    use super::*;

    #[test]
    fn cuda() -> Result<()> {
        let device = Device::new_cuda(0)?;
        let bytes = noise(34 << 12, 3);
        let upload = |bytes: &[u8]| QStorage::from_parts(&[bytes], &device, GgmlDType::Q8_0);
        let address = |weight: &QStorage| weight.device_ptr().map(|address| address as usize);
        let memory = SpareMemory::keep(&device);
        let (first, second) = (upload(&bytes)?, upload(&bytes)?);
        let wanted = address(&first)?;
        drop(first);
        // A tensor of that many bytes, with the padding of blocks, does not take it.
        let tensor = Tensor::zeros(bytes.len() + 16 * 34, DType::U8, &device)?;
        let third = upload(&bytes)?;
        assert_eq!(address(&third)?, wanted);
        drop(third);
        let other = upload(&bytes[..34 << 4])?;
        drop((second, tensor, other, memory));
        let same = QTensor::new(upload(&bytes)?, 32 << 12)?;
        assert!(*same.data()? == bytes);
        Ok(())
    }
}
