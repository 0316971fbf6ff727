use super::common::{assert_close, assert_fails, assert_values, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::kv_cache::{Cache, ConcatKvCache, KvCache, RotatingCache, RotatingKvCache};

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
        // The ring after two more: positions 6, 7, 8 at the front, 3, 4, 5 behind. Token 7 must not see 8.
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

test_device!(cache_appends);
test_device!(cache_grows);
test_device!(caches_agree);
test_device!(rotating_cache);
test_device!(caches_reject);
