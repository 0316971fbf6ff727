//! Products of experts, each pair of a token and an expert by a separate product.

use super::common::{assert_close, assert_fails, data};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::moe::{moe_gemm, moe_gemm_gguf};

const EXPERTS: usize = 5;
const N: usize = 6;
const K: usize = 32;

/// The experts of some tokens: neighbours, a popular one, and one without any token.
fn chosen(tokens: usize, topk: usize) -> Vec<u32> {
    let pairs = 0..(tokens * topk) as u32;
    pairs
        .map(|i| {
            if i % 7 == 3 {
                0
            } else {
                i * 3 % (EXPERTS as u32 - 1)
            }
        })
        .collect()
}

/// The products of all pairs, one by one, on the CPU.
fn one_by_one(rows: &Tensor, weights: &Tensor, chosen: &[u32], topk: usize) -> Result<Tensor> {
    let per_token = chosen.len() / rows.dim(0)? == topk;
    let product = |(pair, &expert): (usize, &u32)| {
        let row = rows.get(if per_token { pair / topk } else { pair })?;
        weights
            .get(expert as usize)?
            .matmul(&row.unsqueeze(1)?)?
            .flatten_all()
    };
    let products = chosen.iter().enumerate().map(product);
    Tensor::stack(&products.collect::<Result<Vec<_>>>()?, 0)
}

fn products_of_experts(dev: &Device) -> Result<()> {
    let cpu = &Device::Cpu;
    let weights = data(&[EXPERTS, N, K], DType::F32, cpu)?;
    for (tokens, topk) in [(1, 1), (1, 3), (9, 2), (4, 4)] {
        let ids = chosen(tokens, topk);
        let (experts, pairs) = Tensor::new(ids.as_slice(), dev)?.sort_last_dim(true)?;
        let xs = data(&[tokens, K], DType::F32, cpu)?;
        let per_pair = data(&[tokens * topk, K], DType::F32, cpu)?;
        let scales = data(&[tokens, topk], DType::F32, cpu)?;
        let expected = one_by_one(&xs, &weights, &ids, topk)?;
        let scaled = one_by_one(&per_pair, &weights, &ids, if topk == 1 { 2 } else { topk })?;
        let scaled = scaled.broadcast_mul(&scales.reshape((tokens * topk, 1))?)?;
        let on = |t: &Tensor| t.to_device(dev);
        for prefill in [false, true] {
            let case = format!("{tokens} tokens, {topk} experts each, prefill {prefill}");
            let got = moe_gemm(
                &on(&xs)?,
                &on(&weights)?,
                &None,
                &pairs,
                &experts,
                topk,
                prefill,
            )?;
            assert_close(&case, &got, &expected, 1e-5);
            let (rows, scales) = (on(&per_pair)?, Some(on(&scales)?));
            let got = moe_gemm(
                &rows,
                &on(&weights)?,
                &scales,
                &pairs,
                &experts,
                topk,
                prefill,
            )?;
            assert_close(&format!("weighted, {case}"), &got, &scaled, 1e-5);
        }
    }
    Ok(())
}

fn products_of_quantized_experts(dev: &Device) -> Result<()> {
    let weights = data(&[EXPERTS, N, K], DType::F32, &Device::Cpu)?;
    let weights = QTensor::quantize(&weights, GgmlDType::Q8_0)?;
    let blocks = QStorage::from_data(weights.data()?, dev, GgmlDType::Q8_0)?;
    let weights = QTensor::new(blocks, (EXPERTS, N, K))?;
    let ids = chosen(6, 2);
    let (experts, pairs) = Tensor::new(ids.as_slice(), dev)?.sort_last_dim(true)?;
    let xs = data(&[6, K], DType::F32, dev)?;
    let expected = one_by_one(&xs, &weights.dequantize(dev)?, &ids, 2)?;
    let got = moe_gemm_gguf(&xs, &weights, &None, &pairs, &experts, 2, true, DType::F16)?;
    // Rows are rounded to 8 bits for the products: 32 terms, each off by up to 1/127 of 2 times 2.
    assert_close("quantized", &got, &expected, 0.1);
    let half = xs.to_dtype(DType::F16)?;
    let got = moe_gemm_gguf(
        &half,
        &weights,
        &None,
        &pairs,
        &experts,
        2,
        false,
        DType::F16,
    )?;
    assert_eq!(got.dtype(), DType::F32);
    assert_close("of f16", &got, &expected, 0.1);
    Ok(())
}

fn experts_that_do_not_fit(dev: &Device) -> Result<()> {
    let weights = data(&[EXPERTS, N, K], DType::F32, dev)?;
    let ids = Tensor::new(&[0u32, 1, 2, 3], dev)?;
    let xs = data(&[2, K], DType::F32, dev)?;
    let call =
        |xs: &Tensor, ids: &Tensor, topk| moe_gemm(xs, &weights, &None, ids, ids, topk, true);
    assert_fails(call(&xs, &ids, 3), &["[4]", "6"]);
    assert_fails(call(&xs, &ids, 0), &["0 experts"]);
    assert_fails(call(&xs.narrow(1, 0, 8)?, &ids, 2), &["[2, 8]", "32"]);
    assert_fails(call(&xs, &ids.to_dtype(DType::F32)?, 2), &["f32", "u32"]);
    let scales = Some(data(&[3], DType::F32, dev)?);
    let rows = data(&[4, K], DType::F32, dev)?;
    let got = moe_gemm(&rows, &weights, &scales, &ids, &ids, 2, true);
    assert_fails(got, &["[3] weights", "4 pairs"]);
    let beyond = Tensor::new(&[0u32, 1, 2, 5], dev)?;
    let got = moe_gemm(&xs, &weights, &None, &ids, &beyond, 2, true);
    assert_fails(got, &["5"]);
    Ok(())
}

test_device!(products_of_experts);
test_device!(products_of_quantized_experts);
test_device!(experts_that_do_not_fit);
