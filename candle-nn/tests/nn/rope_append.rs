//! Rotation into a cache, against its plain form in f32 on the CPU.

use super::common::{assert_close, assert_fails, data, dtypes, layouts, reference};
use candle_core::{test_device, DType, Device, Result};
use candle_nn::rotary_emb::{rope_append, rope_append_slow, Pairs};

fn queries_and_cache(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        // Three query heads over two pairs of keys and values; a token, and several from the middle of the cache on.
        for (t, position) in [(1, 0), (1, 4), (3, 1), (5, 0)] {
            let cos = data(&[t, 3], dtype, dev)?;
            let sin = (data(&[t, 3], dtype, dev)? * 0.5)?;
            for (layout, xs) in layouts(&[2, 7, t, 6], dtype, dev)? {
                for pairs in [Pairs::Halves, Pairs::Neighbours] {
                    let case = format!("{dtype:?} {pairs:?} {layout}, {t} from {position} on");
                    let cache = data(&[2, 4, 5, 6], dtype, dev)?;
                    // A separate copy: on the CPU the reference would be the cache itself.
                    let plain_cache = reference(&cache)?.copy()?;
                    let [rx, rc, rs] = [reference(&xs)?, reference(&cos)?, reference(&sin)?];
                    let expected = rope_append_slow(&rx, &rc, &rs, pairs, &plain_cache, position)?;
                    let got = rope_append(&xs, &cos, &sin, pairs, &cache, position)?;
                    assert_eq!(got.dims(), &[2, 3, t, 6], "{case}");
                    assert_close(&case, &got, &expected, 2. * tolerance);
                    assert_close(&case, &cache, &plain_cache, 2. * tolerance);
                }
            }
        }
    }
    Ok(())
}

fn what_does_not_fit(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, angles) = (of(&[1, 4, 2, 6])?, of(&[2, 3])?);
    for (cache, position) in [
        (of(&[1, 2, 5, 6])?, 4),
        (of(&[1, 6, 5, 6])?, 0),
        (of(&[1, 3, 5, 6])?, 0),
        (of(&[2, 2, 5, 6])?, 0),
        (of(&[1, 2, 5, 4])?, 0),
        (of(&[1, 5, 2, 6])?.transpose(1, 2)?, 0),
    ] {
        let result = rope_append(&xs, &angles, &angles, Pairs::Halves, &cache, position);
        assert_fails(result, &["rope-append", "[1, 4, 2, 6]"]);
    }
    Ok(())
}

test_device!(queries_and_cache);
test_device!(what_does_not_fit);
