use super::common::{assert_close, assert_fails, assert_values, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::attention::cpu_flash::causal::causal_decode_f32_interleaved;
use candle_nn::kv_cache::{
    rope_i_inplace, Cache, ConcatKvCache, InterleavedKvCache, KvCache, RawInterleavedKvCache,
    RotatingCache, RotatingKvCache, ScatteredCacheBuilder,
};
use candle_nn::{ops, rotary_emb};

fn row(values: &[f32], dev: &Device) -> Result<Tensor> {
    Tensor::new(values, dev)
}

fn cache_appends(dev: &Device) -> Result<()> {
    let mut cache = Cache::new(0, 16);
    for _ in 0..2 {
        assert_eq!(cache.current_seq_len(), 0);
        assert!(cache.current_data()?.is_none());
        cache.append(&row(&[1., 2., 3.], dev)?)?;
        cache.append(&row(&[4.], dev)?)?;
        assert_values(
            "four",
            &cache.current_data()?.unwrap(),
            &[1., 2., 3., 4.],
            0.,
        );
        cache.append(&row(&[0., 5.], dev)?)?;
        let data = cache.current_data()?.unwrap();
        assert_values("six", &data, &[1., 2., 3., 4., 0., 5.], 0.);
        assert_eq!(cache.current_seq_len(), 6);
        assert_eq!(cache.all_data().as_ref().unwrap().dims(), &[16]);
        cache.reset();
    }
    Ok(())
}

fn cache_grows(dev: &Device) -> Result<()> {
    // Upstream grows by the first length rather than fail (huggingface/candle#2810).
    let mut cache = Cache::new(1, 3);
    let all = data(&[2, 11, 4], DType::F32, dev)?;
    let mut start = 0;
    for (len, room) in [(2, 3), (1, 3), (1, 6), (7, 12)] {
        cache.append(&all.narrow(1, start, len)?)?;
        start += len;
        assert_eq!(
            (cache.current_seq_len(), cache.max_seq_len()),
            (start, room)
        );
        let got = cache.current_data()?.unwrap();
        assert_close(&format!("{start}"), &got, &all.narrow(1, 0, start)?, 0.);
    }
    Ok(())
}

fn caches_agree(dev: &Device) -> Result<()> {
    // Keys as attention makes them: (batch, heads, seq, head_dim), a transposed view.
    let all = data(&[2, 9, 3, 4], DType::BF16, dev)?.transpose(1, 2)?;
    let mut caches = (KvCache::new(2, 16), ConcatKvCache::new(2));
    let mut window = RotatingKvCache::new(2, 16);
    let mut start = 0;
    for len in [4, 1, 1, 3] {
        let k = all.narrow(2, start, len)?;
        let v = k.neg()?;
        start += len;
        let expected = all.narrow(2, 0, start)?;
        for (k, v) in [
            caches.0.append(&k, &v)?,
            caches.1.append(&k, &v)?,
            window.append(&k, &v)?,
        ] {
            assert_close("keys", &k, &expected, 0.);
            assert_close("values", &v, &expected.neg()?, 0.);
        }
        assert_eq!(caches.0.current_seq_len(), start);
        assert_eq!(caches.1.current_seq_len(), start);
        assert_eq!(window.current_seq_len(), start);
    }
    caches.0.reset();
    caches.1.reset();
    assert!(caches.0.k()?.is_none() && caches.1.is_empty());
    Ok(())
}

fn rotating_cache(dev: &Device) -> Result<()> {
    let mut cache = RotatingCache::new(0, 6);
    for _ in 0..2 {
        assert_eq!((cache.offset(), cache.current_seq_len()), (0, 0));
        assert_eq!(cache.positions(2), &[0, 1]);
        let got = cache.append(&row(&[10., 11., 12.], dev)?)?;
        assert_values("three", &got, &[10., 11., 12.], 0.);
        assert_eq!(cache.positions(0), &[0, 1, 2]);
        assert_eq!(cache.positions(3), &[0, 1, 2, 3, 4, 5]);
        assert_eq!(cache.positions(4), &[6, 1, 2, 3, 4, 5]);
        assert!(cache.attn_mask(1, dev)?.is_none());
        let mask = cache.attn_mask(2, dev)?.unwrap().to_device(&Device::Cpu)?;
        let expected = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]];
        assert_eq!(mask.to_vec2::<u8>()?, expected);

        let got = cache.append(&row(&[13., 14., 15., 16.], dev)?)?;
        assert_values("round", &got, &[16., 11., 12., 13., 14., 15.], 0.);
        assert_eq!((cache.offset(), cache.current_seq_len()), (1, 7));
        // The ring after two more: positions 6, 7, 8, then 3, 4, 5. Token 7 must not see 8.
        assert_eq!(cache.positions(2), &[6, 7, 8, 3, 4, 5]);
        let mask = cache.attn_mask(2, dev)?.unwrap().to_device(&Device::Cpu)?;
        let expected = [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]];
        assert_eq!(mask.to_vec2::<u8>()?, expected);

        // As much as the ring holds or more comes back as it is, and its end is kept.
        let long: Vec<f32> = (17..25).map(|x| x as f32).collect();
        assert_eq!(cache.positions(8), (7..15).collect::<Vec<_>>());
        let mask = cache.attn_mask(8, dev)?.unwrap().to_device(&Device::Cpu)?;
        let mask = mask.to_vec2::<u8>()?;
        assert_eq!(mask[7], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mask[0], [0, 1, 1, 1, 1, 1, 1, 1]);
        let got = cache.append(&row(&long, dev)?)?;
        assert_eq!(got.dims(), &[8]);
        let kept = cache.current_data()?.unwrap();
        assert_values("kept", &kept, &[19., 20., 21., 22., 23., 24.], 0.);
        assert_eq!(cache.positions(1), &[15, 10, 11, 12, 13, 14]);
        let got = cache.append(&row(&[25.], dev)?)?;
        assert_values("next", &got, &[25., 20., 21., 22., 23., 24.], 0.);
        cache.reset();
    }
    Ok(())
}

fn caches_reject(dev: &Device) -> Result<()> {
    let one = row(&[1.], dev)?;
    assert_fails(Cache::new(0, 0).append(&one), &["kv-cache", "0"]);
    assert_fails(RotatingCache::new(0, 0).append(&one), &["kv-cache", "0"]);
    let mut cache = Cache::new(0, 4);
    assert_fails(cache.append(&Tensor::new(1f32, dev)?), &["dim"]);
    cache.append(&data(&[1, 2], DType::F32, dev)?)?;
    assert!(cache.append(&data(&[1, 3], DType::F32, dev)?).is_err());
    assert!(cache.append(&data(&[1, 2], DType::F16, dev)?).is_err());
    assert_eq!(cache.current_seq_len(), 1);
    Ok(())
}

/// Each sequence sees its own last tokens and no others, however far the others are.
fn scattered_cache(dev: &Device) -> Result<()> {
    let context = 5;
    let mut builder = ScatteredCacheBuilder::new(2, context, DType::F32, dev)?;
    let mut cache = builder.make_cache(1, 1)?;
    // What each sequence was given.
    let mut given = [vec![], vec![]];
    let mut next = 1f32;
    let steps = [
        (2, [true, true]),
        (1, [true, false]),
        (2, [false, true]),
        (4, [true, true]),
        (1, [true, true]),
        (7, [true, true]),
        (5, [false, true]),
        (3, [true, true]),
        (1, [true, true]),
    ];
    for (len, active) in steps {
        let values: Vec<f32> = (0..2 * len).map(|i| next + i as f32).collect();
        next += values.len() as f32;
        let k = Tensor::from_slice(&values, (2, 1, len, 1), dev)?;
        let places = builder.indices_and_mask(len, &active)?;
        let (k, v) = cache.append(&k, &k.neg()?, &places)?;
        assert_close("values", &v, &k.neg()?, 0.);
        let entries = k
            .to_device(&Device::Cpu)?
            .flatten_from(1)?
            .to_vec2::<f32>()?;
        let mask = if len < context {
            places.mask().squeeze(1)?
        } else {
            // One for all sequences.
            places.mask().broadcast_left(2)?
        };
        let mask = mask.to_device(&Device::Cpu)?.to_vec3::<f32>()?;
        for b in 0..2 {
            if !active[b] {
                continue;
            }
            given[b].extend_from_slice(&values[b * len..(b + 1) * len]);
            for (token, hidden) in mask[b].iter().enumerate() {
                let end = given[b].len() - len + token + 1;
                // As in Candle, a step that fills the ring sees one token further back.
                let window = if len < context {
                    context
                } else {
                    (context + 1).min(token + 1)
                };
                let mut expected = given[b][end.saturating_sub(window)..end].to_vec();
                let shown = entries[b].iter().zip(hidden);
                let mut seen: Vec<f32> = shown.filter(|(_, &m)| m == 0.).map(|(&x, _)| x).collect();
                seen.sort_by(f32::total_cmp);
                expected.sort_by(f32::total_cmp);
                // Before a step's later tokens came, their slots held older ones that are overwritten now.
                if len < context {
                    expected.retain(|x| entries[b].contains(x));
                }
                assert_eq!(seen, expected, "sequence {b}, token {token} of {len}");
            }
        }
        assert_eq!(builder.positions(), &[given[0].len(), given[1].len()]);
    }
    builder.reset_batch_index(0);
    assert_eq!(builder.positions(), &[0, given[1].len()]);
    builder.reset();
    assert_eq!(builder.positions(), &[0, 0]);
    assert_fails(builder.indices_and_mask(1, &[true]), &["1", "2 sequences"]);
    let mut none = ScatteredCacheBuilder::new(1, 0, DType::F32, dev)?;
    assert_fails(none.indices_and_mask(1, &[true]), &["size 0"]);
    Ok(())
}

fn interleaved_cache(dev: &Device) -> Result<()> {
    let mut cache = InterleavedKvCache::new(3);
    assert!(cache.is_empty() && cache.kv().is_none() && cache.head_dim() == 3);
    let all = data(&[1, 2, 6, 3], DType::F32, dev)?;
    for (start, len) in [(0, 4), (4, 1), (5, 1)] {
        let k = all.narrow(2, start, len)?;
        let kv = cache.append(&k, &k.neg()?)?;
        assert_eq!(kv.dims(), &[start + len, 2, 6]);
        let expected = all.narrow(2, 0, start + len)?.squeeze(0)?.transpose(0, 1)?;
        assert_close("keys", &kv.narrow(2, 0, 3)?, &expected, 0.);
        assert_close("values", &kv.narrow(2, 3, 3)?, &expected.neg()?, 0.);
        assert_eq!(cache.current_seq_len(), start + len);
    }
    assert_fails(
        cache.append(&all, &all.narrow(2, 0, 1)?),
        &["[1, 2, 6, 3]", "[1, 2, 1, 3]"],
    );
    cache.reset();
    assert_eq!(cache.current_seq_len(), 0);
    Ok(())
}

/// Slices on the host give what tensors do.
#[test]
fn raw_interleaved_cache() -> Result<()> {
    let cpu = &Device::Cpu;
    let (heads, kv_heads, dim, len) = (4, 2, 8, 7);
    let numbers = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
    let q = data(&[1, heads, 1, dim], DType::F32, cpu)?;
    let k = data(&[1, len, kv_heads, dim], DType::F32, cpu)?;
    let v = (&k * 0.5)?.sin()?;
    let mut cache = RawInterleavedKvCache::new(kv_heads, dim, 4);
    assert!(cache.is_empty());
    let (ks, vs) = (numbers(&k)?, numbers(&v)?);
    let (first, rest) = (kv_heads * dim, len - 1);
    cache.write_kv(&ks[..first], &vs[..first]);
    cache.write_kv_batch(&ks[first..], &vs[first..], rest);
    assert_eq!((cache.len(), cache.h_kv(), cache.d()), (len, kv_heads, dim));
    let got =
        causal_decode_f32_interleaved(&numbers(&q)?, cache.data(), heads, kv_heads, dim, len, 0.4)?;
    let (k, v) = (k.transpose(1, 2)?, v.transpose(1, 2)?);
    let expected = ops::sdpa_slow(&q, &k, &v, None, false, 0.4, 1.)?;
    assert_close(
        "attention",
        &got.flatten_all()?,
        &expected.flatten_all()?,
        1e-5,
    );
    let short = causal_decode_f32_interleaved(&[0.; 8], cache.data(), 4, 2, 8, len, 1.);
    assert_fails(short, &["8 query elements", "4 heads of 8"]);

    let angles = data(&[1, dim / 2], DType::F32, cpu)?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let mut turned = numbers(&q)?;
    rope_i_inplace(&mut turned, &numbers(&cos)?, &numbers(&sin)?, heads, dim);
    let expected = numbers(&rotary_emb::rope_i(&q, &cos, &sin)?)?;
    assert_eq!(turned, expected);
    cache.reset();
    assert!(cache.data().is_empty());
    Ok(())
}

test_device!(scattered_cache);
test_device!(interleaved_cache);
test_device!(cache_appends);
test_device!(cache_grows);
test_device!(caches_agree);
test_device!(rotating_cache);
test_device!(caches_reject);
