//! Attention with masks, windows and ALiBi, against loops in f64.

use super::common::{assert_close, assert_fails, assert_values, data, dtypes, layouts, Cases};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::attention::cpu_flash::{causal::run_causal_attn_cpu, standard::run_flash_attn_cpu};
use candle_nn::attention::{flash_attn, flash_attn_varlen_unfused, AttnMask};
use half::{bf16, f16};

const SCALE: f32 = 0.7;

fn numbers(t: &Tensor) -> Result<Vec<f64>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    t.flatten_all()?.to_vec1()
}

/// Attention of `q` (queries, heads, dim) over `k` and `v` (keys, kv_heads, dim), in the order (queries, heads, dim). `score` makes of a
/// scaled product what goes into the softmax, `None` being hidden: (head, query, key, product).
fn by_hand(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    score: &dyn Fn(usize, usize, usize, f64) -> Option<f64>,
) -> Result<Vec<f64>> {
    let ((queries, heads, dim), (keys, kv_heads, _)) = (q.dims3()?, k.dims3()?);
    let (q, k, v) = (numbers(q)?, numbers(k)?, numbers(v)?);
    let mut out = vec![0.; queries * heads * dim];
    for i in 0..queries {
        for h in 0..heads {
            let group = h / (heads / kv_heads);
            let of_key = |j: usize| (j * kv_heads + group) * dim;
            let query = &q[(i * heads + h) * dim..][..dim];
            let mut weights = vec![];
            for j in 0..keys {
                let key = &k[of_key(j)..][..dim];
                let product: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                if let Some(score) = score(h, i, j, product * f64::from(SCALE)) {
                    weights.push((j, score.exp()));
                }
            }
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            for (j, weight) in weights {
                for d in 0..dim {
                    out[(i * heads + h) * dim + d] += weight / sum * v[of_key(j) + d];
                }
            }
        }
    }
    Ok(out)
}

/// [`flash_attn`] for the dtype of `q`.
fn flash(
    [q, k, v]: [&Tensor; 3],
    mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let run = match q.dtype() {
        DType::F64 => flash_attn::<f64>,
        DType::F16 => flash_attn::<f16>,
        DType::BF16 => flash_attn::<bf16>,
        _ => flash_attn::<f32>,
    };
    run(q, k, v, SCALE, mask, max_bias, softcap)
}

fn flash_attention(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        // (batch, queries, keys, heads, kv heads, dim); the last has enough queries for the CPU's products.
        for [b, s, ks, h, hk, d] in [
            [1, 1, 1, 1, 1, 4],
            [1, 1, 9, 4, 2, 8],
            [2, 5, 9, 6, 3, 4],
            [1, 17, 20, 2, 1, 8],
        ] {
            let ks_in_layouts = layouts(&[b, ks, hk, d], dtype, dev)?;
            for (n, (layout, q)) in layouts(&[b, s, h, d], dtype, dev)?.iter().enumerate() {
                let k = &ks_in_layouts[(n + 1) % ks_in_layouts.len()].1;
                let v = (k * 0.5)?.sin()?;
                let mask = data(&[b, s, ks], dtype, dev)?;
                let masks = numbers(&mask)?;
                // The parameter is an f32, and so are the slopes.
                let slope =
                    |h_i: usize| 2f32.powf(-4. * (h_i + 1) as f32 / h.next_power_of_two() as f32);
                for b_i in 0..b {
                    let case = format!("{dtype:?} {:?} {layout}", [b, s, ks, h, hk, d]);
                    let [q1, k1, v1] = [q.get(b_i)?, k.get(b_i)?, v.get(b_i)?];
                    type Score<'a> = Box<dyn Fn(usize, usize, usize, f64) -> Option<f64> + 'a>;
                    let offset = ks - s;
                    let seen = |i: usize, j: usize, offset: usize| j <= i + offset;
                    #[allow(clippy::type_complexity)]
                    let cases: Vec<(
                        &str,
                        AttnMask,
                        Option<f32>,
                        Option<f32>,
                        Score,
                    )> = vec![
                        (
                            "all",
                            AttnMask::None,
                            None,
                            None,
                            Box::new(|_, _, _, x| Some(x)),
                        ),
                        (
                            "capped",
                            AttnMask::None,
                            None,
                            Some(0.5),
                            Box::new(|_, _, _, x| Some(0.5 * (x / 0.5).tanh())),
                        ),
                        (
                            "capped at 1",
                            AttnMask::None,
                            None,
                            Some(1.),
                            Box::new(|_, _, _, x| Some(x.tanh())),
                        ),
                        (
                            "not capped",
                            AttnMask::None,
                            None,
                            Some(0.),
                            Box::new(|_, _, _, x| Some(x)),
                        ),
                        (
                            "causal",
                            AttnMask::causal(),
                            None,
                            None,
                            Box::new(move |_, i, j, x| (s == 1 || seen(i, j, 0)).then_some(x)),
                        ),
                        (
                            "causal to the end",
                            AttnMask::causal_with_offset(offset),
                            None,
                            Some(2.),
                            Box::new(move |_, i, j, x| {
                                seen(i, j, offset).then_some(2. * (x / 2.).tanh())
                            }),
                        ),
                        (
                            "causal beyond",
                            AttnMask::causal_with_offset(offset + 2),
                            None,
                            None,
                            Box::new(move |_, i, j, x| seen(i, j, offset + 2).then_some(x)),
                        ),
                        (
                            "ALiBi",
                            AttnMask::causal_with_offset(offset),
                            Some(4.),
                            None,
                            Box::new(move |h_i, i, j, x| {
                                let distance = (i + offset) as f32 - j as f32;
                                let bias = f64::from(slope(h_i)) * f64::from(distance);
                                seen(i, j, offset).then_some(x - bias)
                            }),
                        ),
                        (
                            "mask",
                            AttnMask::Mask(mask.unsqueeze(1)?),
                            None,
                            None,
                            Box::new(|_, i, j, x| Some(x + masks[(b_i * s + i) * ks + j])),
                        ),
                    ];
                    for (name, mask, max_bias, softcap, score) in cases {
                        if !taken.takes_next() {
                            continue;
                        }
                        let got = flash([q, k, &v], mask, max_bias, softcap)?;
                        assert_eq!((got.dims(), got.dtype()), (&[b, h, s, d][..], dtype));
                        let expected = by_hand(&q1, &k1, &v1, &score)?;
                        let got = got.get(b_i)?.transpose(0, 1)?;
                        assert_values(&format!("{name}, {case}"), &got, &expected, 4. * tolerance);
                    }
                }
            }
        }
    }
    Ok(())
}

fn the_other_names(dev: &Device) -> Result<()> {
    let q = data(&[1, 3, 4, 8], DType::F32, dev)?;
    let k = data(&[1, 5, 2, 8], DType::F32, dev)?;
    let mask = data(&[1, 1, 3, 5], DType::F32, dev)?;
    let causal = flash(
        [&q, &k, &k],
        AttnMask::causal_with_offset(2),
        Some(2.),
        None,
    )?;
    let got = run_causal_attn_cpu::<f32>(&q, &k, &k, SCALE, 2, Some(2.), None)?;
    assert_close("causal", &got, &causal, 0.);
    let masked = flash([&q, &k, &k], AttnMask::Mask(mask.clone()), None, Some(3.))?;
    let got = run_flash_attn_cpu::<f32>(&q, &k, &k, Some(&mask), SCALE, None, Some(3.))?;
    assert_close("mask", &got, &masked, 0.);
    #[allow(deprecated)]
    let got = candle_nn::cpu_flash_attention::run_flash_attn_cpu::<f32>(
        &q,
        &k,
        &k,
        Some(&mask),
        SCALE,
        None,
        Some(3.),
    )?;
    assert_close("former place", &got, &masked, 0.);

    let mask = AttnMask::default();
    assert!(!mask.is_causal() && AttnMask::causal().is_causal());
    assert_eq!(
        (
            mask.kv_offset(),
            AttnMask::causal_with_offset(3).kv_offset()
        ),
        (0, 3)
    );
    let got = flash_attn::<f16>(&q, &k, &k, SCALE, mask, None, None);
    assert_fails(got, &["q is f32", "f16"]);
    let got = run_flash_attn_cpu::<u32>(&q, &k, &k, None, SCALE, None, None);
    assert_fails(got, &["u32 is not a float"]);
    Ok(())
}

fn packed_sequences(dev: &Device) -> Result<()> {
    let (heads, kv_heads, dim) = (4, 2, 8);
    // More keys than queries, as many, fewer, none of either.
    let lengths = [(3, 5), (4, 4), (4, 2), (0, 3), (2, 0)];
    let total = |f: fn(&(u32, u32)) -> u32| lengths.iter().map(f).sum::<u32>() as usize;
    let (total_q, total_k) = (total(|l| l.0), total(|l| l.1));
    let slopes = [0.5f32, 0.25, 0.125, 0.0625];
    let alibi = Tensor::new(&slopes, dev)?;
    let tensor = |f: fn(&(u32, u32)) -> u32| Tensor::from_iter(lengths.iter().map(f), dev);
    let (lens_q, lens_k) = (tensor(|l| l.0)?, tensor(|l| l.1)?);
    let mut taken = Cases::new(dev, 1);
    for (dtype, tolerance) in dtypes(dev) {
        let q = data(&[total_q, heads, dim], dtype, dev)?;
        let k = data(&[total_k, kv_heads, dim], dtype, dev)?;
        let v = (&k * 0.5)?.sin()?;
        for (left, right) in [
            (None, None),
            (Some(1), None),
            (None, Some(1)),
            (Some(2), Some(0)),
        ] {
            for causal in [false, true] {
                for slopes in [None, Some(slopes)] {
                    if !taken.takes_next() {
                        continue;
                    }
                    let case =
                        format!("{dtype:?} {left:?} {right:?} {causal} {}", slopes.is_some());
                    let got = flash_attn_varlen_unfused(
                        &q,
                        &k,
                        &v,
                        slopes.map(|_| &alibi),
                        &lens_q,
                        &lens_k,
                        4,
                        5,
                        SCALE,
                        causal,
                        left,
                        right,
                    )?;
                    assert_eq!((got.dims(), got.dtype()), (q.dims(), dtype));
                    let alone = left.is_some() && right.is_none();
                    let right = if causal || alone { Some(0) } else { right };
                    let (mut start_q, mut start_k, mut expected) = (0, 0, vec![]);
                    for (len_q, len_k) in lengths {
                        let (len_q, len_k) = (len_q as usize, len_k as usize);
                        let part = |t: &Tensor, start, len| t.narrow(0, start, len);
                        let (k, v) = (part(&k, start_k, len_k)?, part(&v, start_k, len_k)?);
                        let ahead =
                            |i: usize, j: usize| j as i64 + len_q as i64 - len_k as i64 - i as i64;
                        let score = |h: usize, i: usize, j: usize, x: f64| {
                            let ahead = ahead(i, j);
                            let hidden = left.is_some_and(|l| -ahead > l as i64)
                                || right.is_some_and(|r| ahead > r as i64);
                            let bias = slopes.map_or(0., |s| f64::from(s[h]) * ahead.abs() as f64);
                            (!hidden).then_some(x - bias)
                        };
                        expected.extend(by_hand(&part(&q, start_q, len_q)?, &k, &v, &score)?);
                        start_q += len_q;
                        start_k += len_k;
                    }
                    assert_values(&case, &got, &expected, 4. * tolerance);
                }
            }
        }
    }
    let q = data(&[3, 2, 4], DType::F32, dev)?;
    let len = |len: &[u32]| Tensor::new(len, dev);
    let call = |lens_q: &Tensor, lens_k: &Tensor, alibi| {
        flash_attn_varlen_unfused(
            &q, &q, &q, alibi, lens_q, lens_k, 3, 3, SCALE, true, None, None,
        )
    };
    assert_fails(
        call(&len(&[3])?, &len(&[1, 1])?, None),
        &["[1, 1] keys", "3 keys"],
    );
    assert_fails(
        call(&len(&[3])?, &len(&[1, 2])?, None),
        &["1 query sequences", "2 key sequences"],
    );
    assert_fails(
        call(&len(&[3])?, &len(&[3])?, Some(&alibi)),
        &["[4]", "2 heads"],
    );
    let none = q.narrow(0, 0, 0)?;
    let (a, b) = (len(&[])?, len(&[])?);
    let got = flash_attn_varlen_unfused(
        &none, &none, &none, None, &a, &b, 0, 0, SCALE, true, None, None,
    )?;
    assert_eq!(got.dims(), &[0, 2, 4]);
    Ok(())
}

test_device!(flash_attention);
test_device!(the_other_names);
test_device!(packed_sequences);
