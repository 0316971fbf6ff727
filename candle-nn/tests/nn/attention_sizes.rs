//! Attention over head sizes, lengths of keys and queries, groups and dtypes around a kernel's tile sizes; compared with the plain form in
//! f32 on the CPU.

use super::common::{assert_close, data, dtypes, every, reference};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{sdpa, sdpa_slow};

const HEAD_DIMS: [usize; 10] = [32, 64, 80, 96, 112, 128, 192, 256, 33, 66];
const KEYS: [usize; 5] = [1, 31, 32, 33, 1000];
/// Query heads to a head of keys and values.
const GROUPS: [usize; 3] = [1, 4, 8];
/// One; more than the kernel for few takes; more than a tile of few rows, and of many.
const QUERIES: [usize; 4] = [1, 9, 17, 70];

fn check(
    dtype: DType,
    tolerance: f64,
    [head_dim, keys, group, queries]: [usize; 4],
    causal: bool,
    dev: &Device,
) -> Result<()> {
    let kv_heads = if group == 1 { 3 } else { 1 };
    let q = data(&[1, group * kv_heads, queries, head_dim], dtype, dev)?;
    // Keys and values as a cache has them: views of a longer buffer that holds the heads of both.
    let cache = data(&[1, 2 * kv_heads, keys + 3, head_dim], dtype, dev)?.narrow(2, 0, keys)?;
    let (k, v) = (
        cache.narrow(1, 0, kv_heads)?,
        cache.narrow(1, kv_heads, kv_heads)?,
    );
    let scale = 1. / (head_dim as f32).sqrt();
    let got = sdpa(&q, &k, &v, None, causal, scale, 1.)?;
    let [rq, rk, rv] = [reference(&q)?, reference(&k)?, reference(&v)?];
    let expected = sdpa_slow(&rq, &rk, &rv, None, causal, scale, 1.)?;
    let case = format!(
        "{dtype:?} head {head_dim}, {queries} queries, {keys} keys, group {group}, causal {causal}"
    );
    assert_eq!(got.dtype(), dtype);
    assert_close(&case, &got, &expected, 2. * tolerance);
    Ok(())
}

/// Each size meets each other one, but not all at once: every thirteenth of all cases, which is prime to the lists' lengths, and every 29th where
/// a kernel takes long to compile.
pub(super) fn sizes(dev: &Device) -> Result<()> {
    let mut case = 0;
    let every = every(dev, 29, 13);
    for (dtype, tolerance) in dtypes(dev) {
        for head_dim in HEAD_DIMS {
            for keys in KEYS {
                for group in GROUPS {
                    for queries in QUERIES {
                        for causal in [false, true] {
                            case += 1;
                            let fits = !(causal && queries > keys);
                            if case % every == 0 && fits {
                                let sizes = [head_dim, keys, group, queries];
                                check(dtype, tolerance, sizes, causal, dev)?;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Few queries far into a long sequence, which are cut over the keys.
pub(super) fn few_queries_of_many_keys(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for queries in [1, 3, 12] {
            check(dtype, tolerance, [64, 2049, 4, queries], true, dev)?;
        }
    }
    Ok(())
}

/// Scores that would overflow without the maximum, and rows whose first keys say nothing.
pub(super) fn large_scores(dev: &Device) -> Result<()> {
    let of = |dims: &[usize], by: f64| data(dims, DType::F32, dev)? * by;
    let q = of(&[1, 2, 12, 32], 100.)?;
    let (k, v) = (of(&[1, 2, 40, 32], 100.)?, of(&[1, 2, 40, 32], 1.)?);
    let got = sdpa(&q, &k, &v, None, true, 1., 1.)?;
    let [rq, rk, rv] = [reference(&q)?, reference(&k)?, reference(&v)?];
    let expected = sdpa_slow(&rq, &rk, &rv, None, true, 1., 1.)?;
    // Scores of some 100,000 are exact to 0.01, and weights are their exponentials.
    assert_close("large scores", &got, &expected, 0.05);
    Ok(())
}

/// Scores that grow along the keys, so that what was summed has to be corrected again and again.
pub(super) fn moving_maxima(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for (head_dim, queries, keys) in [(64, 40, 300), (128, 20, 300), (96, 130, 1100)] {
            let q = data(&[1, 4, queries, head_dim], dtype, dev)?;
            let growth = Tensor::arange(0f32, keys as f32, &Device::Cpu)?.reshape((keys, 1))?;
            let growth = ((growth / 16.)? + 1.)?.to_device(dev)?;
            let k = data(&[1, 2, keys, head_dim], DType::F32, dev)?;
            let k = k.broadcast_mul(&growth)?.to_dtype(dtype)?;
            let v = data(&[1, 2, keys, head_dim], dtype, dev)?;
            for causal in [false, true] {
                let scale = 1. / (head_dim as f32).sqrt();
                let got = sdpa(&q, &k, &v, None, causal, scale, 1.)?;
                let [rq, rk, rv] = [reference(&q)?, reference(&k)?, reference(&v)?];
                let expected = sdpa_slow(&rq, &rk, &rv, None, causal, scale, 1.)?;
                let case = format!("{dtype:?} {head_dim} {queries} {keys} causal {causal}");
                // Scores of some hundreds are exact to 1e-4, and weights are their exponentials.
                assert_close(&case, &got, &expected, 2. * tolerance.max(5e-4));
            }
        }
    }
    Ok(())
}

candle_core::with_webgpu! {
    #[test]
    fn memory_does_not_grow_with_queries_times_keys_webgpu() -> Result<()> {
        // A separate device, whose counters no other test changes. Without cooperative matrices: with them, scores are bounded by 256 MB.
        let device = super::common::webgpu_without("-coop")?;
        let dev = Device::WebGpu(device.clone());
        let q = data(&[1, 8, 512, 32], DType::F32, &dev)?;
        let k = data(&[1, 2, 512, 32], DType::F32, &dev)?;
        let before = device.stats().peak_bytes;
        sdpa(&q, &k, &k, None, true, 0.2, 1.)?;
        let grown = device.stats().peak_bytes - before;
        // The result has 0.5 MB, in parts over the keys some times as much; the scores would have 8.
        assert!(grown < 4 << 20, "{grown} bytes");
        Ok(())
    }
}

test_device!(sizes);
test_device!(few_queries_of_many_keys);
test_device!(large_scores);
test_device!(moving_maxima);
