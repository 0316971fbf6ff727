use super::common::{assert_close, assert_values, data, dtypes, layouts, reference, Cases};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{sdpa, sdpa_slow};

// (batch, heads, kv heads, queries, keys, head dim): a decode step, a prompt, a prompt after others, groups of heads, lengths around powers
// of two, enough queries for the CPU's blocks (256) and one more.
const SHAPES: [[usize; 6]; 8] = [
    [1, 1, 1, 1, 1, 1],
    [1, 4, 2, 1, 33, 64],
    [2, 4, 4, 5, 5, 8],
    [2, 6, 2, 3, 7, 34],
    [1, 2, 1, 17, 65, 16],
    [1, 8, 1, 1, 129, 32],
    [1, 3, 3, 2, 31, 128],
    [1, 2, 1, 257, 300, 8],
];

fn fused_sdpa(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        for [b, h, kv_heads, t, s, d] in SHAPES {
            let scale = 1. / (d as f32).sqrt();
            let qs = layouts(&[b, h, t, d], dtype, dev)?;
            let ks = layouts(&[b, kv_heads, s, d], dtype, dev)?;
            let vs = layouts(&[b, kv_heads, s, d], dtype, dev)?;
            for i in 0..qs.len() {
                let (name, q) = &qs[i];
                let (k, v) = (&ks[(i + 1) % ks.len()].1, &vs[(i + 2) % vs.len()].1);
                for (causal, cap) in [(false, 1.), (true, 1.), (true, 2.)] {
                    if !taken.takes_next() {
                        continue;
                    }
                    let case = format!(
                        "{dtype:?} {:?} {name} {causal} {cap}",
                        [b, h, kv_heads, t, s, d]
                    );
                    let got = sdpa(q, k, v, None, causal, scale, cap)?;
                    let [rq, rk, rv] = [reference(q)?, reference(k)?, reference(v)?];
                    let expected = sdpa_slow(&rq, &rk, &rv, None, causal, scale, cap)?;
                    assert_eq!(got.dtype(), dtype);
                    assert_close(&case, &got, &expected, 2. * tolerance);
                }
            }
        }
    }
    Ok(())
}

fn sdpa_values(dev: &Device) -> Result<()> {
    // softmax(cap(0.7 q k^T)) v, head by head, in Python's float64. The two query heads share one key head.
    let q = Tensor::new(
        &[[[[1f32, 0.], [0.5, -1.]], [[-1., 2.], [0.25, 0.75]]]],
        dev,
    )?;
    let k = Tensor::new(&[[[[1f32, 1.], [-1., 0.5], [0., 2.]]]], dev)?;
    let v = Tensor::new(&[[[[1f32, 2.], [3., 4.], [5., 6.]]]], dev)?;
    let cases: [(bool, f32, [f64; 4]); 4] = [
        (
            false,
            1.,
            [
                2.422418750434773,
                2.3672207965036964,
                4.281971290163225,
                3.283052219647681,
            ],
        ),
        (
            false,
            0.5,
            [
                2.651868891354783,
                2.8689307197922744,
                3.0378823933343027,
                3.0316836442778814,
            ],
        ),
        (
            true,
            1.,
            [
                1.3956322228828364,
                2.3672207965036964,
                2.3363755443363323,
                3.283052219647681,
            ],
        ),
        (
            true,
            0.5,
            [
                1.584140029352793,
                2.8689307197922744,
                2.0268135392195883,
                3.0316836442778814,
            ],
        ),
    ];
    for (causal, cap, first) in cases {
        // The second component of each value is the first plus one, and so is that of each result.
        let expected: Vec<f64> = first.iter().flat_map(|&x| [x, x + 1.]).collect();
        let case = format!("causal {causal}, softcapping {cap}");
        let got = sdpa(&q, &k, &v, None, causal, 0.7, cap)?;
        assert_values(&case, &got, &expected, 1e-5);
        let got = sdpa_slow(&q, &k, &v, None, causal, 0.7, cap)?;
        assert_values(&format!("plain, {case}"), &got, &expected, 1e-5);
    }
    Ok(())
}

fn sdpa_masks(dev: &Device) -> Result<()> {
    let dims = [2, 4, 3, 8];
    let q = data(&dims, DType::F32, dev)?;
    let k = data(&[2, 2, 5, 8], DType::F32, dev)?;
    let v = data(&[2, 2, 5, 6], DType::F32, dev)?;
    let inf = f32::INFINITY;
    let mask = [
        [0., 0., 0., -inf, -inf],
        [0., 0., 0., 0., -inf],
        [0., 0., 0., 0., 0.],
    ];
    let mask = Tensor::new(&mask, dev)?;
    // A causal mask as a tensor is the same as the flag, with values of another length than the keys too.
    let expected = sdpa(&q, &k, &v, None, true, 0.3, 1.)?;
    assert_eq!(expected.dims(), &[2, 4, 3, 6]);
    let got = sdpa(&q, &k, &v, Some(&mask), false, 0.3, 1.)?;
    assert_close("a mask for all heads", &got, &expected, 1e-6);
    let mask = mask.broadcast_as((2, 4, 3, 5))?;
    let got = sdpa(&q, &k, &v, Some(&mask), false, 0.3, 1.)?;
    assert_close("a mask for each head", &got, &expected, 1e-6);
    Ok(())
}

fn sdpa_in_steps(dev: &Device) -> Result<()> {
    // A prompt at once, and token by token against the keys so far.
    let q = data(&[1, 4, 20, 16], DType::F32, dev)?;
    let k = data(&[1, 2, 20, 16], DType::F32, dev)?;
    let v = (data(&[1, 2, 20, 16], DType::F32, dev)? * 0.5)?;
    let whole = sdpa(&q, &k, &v, None, true, 0.25, 1.)?;
    for i in 0..20 {
        let (k, v) = (k.narrow(2, 0, i + 1)?, v.narrow(2, 0, i + 1)?);
        let step = sdpa(&q.narrow(2, i, 1)?, &k, &v, None, true, 0.25, 1.)?;
        assert_close(&format!("token {i}"), &step, &whole.narrow(2, i, 1)?, 1e-5);
    }
    Ok(())
}

fn sdpa_of_nothing(dev: &Device) -> Result<()> {
    let k = data(&[1, 2, 4, 8], DType::F32, dev)?;
    let q = data(&[1, 2, 0, 8], DType::F32, dev)?;
    assert_eq!(sdpa(&q, &k, &k, None, true, 1., 1.)?.dims(), &[1, 2, 0, 8]);
    assert_eq!(
        sdpa_slow(&q, &k, &k, None, true, 1., 1.)?.dims(),
        &[1, 2, 0, 8]
    );
    Ok(())
}

test_device!(fused_sdpa);
test_device!(sdpa_values);
test_device!(sdpa_masks);
test_device!(sdpa_in_steps);
test_device!(sdpa_of_nothing);
