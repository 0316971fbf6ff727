//! Norms and rotations of heads, also into a cache, against a loop in f64.

use super::common::{assert_close, assert_fails, assert_values, data, dtypes, layouts, Cases};
use super::gated::host;
use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::rotary_emb::{
    rope_append, rope_append_slow, rope_append_with, rope_append_with_slow, rope_heads_with,
    rope_heads_with_slow, rope_i_heads, CachePosition, HeadNorms, Pairs, Rotation,
};

const EPS: f64 = 1e-6;

/// The transformation of a case's heads.
struct Case {
    pairs: Pairs,
    /// Columns of cos and sin.
    columns: usize,
    /// Whether each sequence of the batch has angles apart.
    by_row: bool,
    norms: bool,
}

impl Case {
    fn all(half: usize) -> Vec<Self> {
        let mut cases = Vec::new();
        for pairs in [Pairs::Halves, Pairs::Neighbours] {
            for columns in [half, half - 1, 1, 0] {
                for (by_row, norms) in [(false, false), (true, false), (false, true), (true, true)]
                {
                    cases.push(Self {
                        pairs,
                        columns,
                        by_row,
                        norms,
                    });
                }
            }
        }
        cases
    }

    fn name(&self) -> String {
        format!(
            "{:?}, {} columns, by row: {}, norms: {}",
            self.pairs, self.columns, self.by_row, self.norms
        )
    }

    /// Longer than the sequence where they are one for each row.
    fn angles(&self, batch: usize, seq: usize, dtype: DType, dev: &Device) -> Result<[Tensor; 2]> {
        let dims = if self.by_row {
            vec![batch, seq + 2, self.columns]
        } else {
            vec![seq, self.columns]
        };
        let cos = data(&dims, dtype, dev)?;
        let sin = (data(&dims, dtype, dev)? * 0.5)?;
        Ok([cos, sin])
    }

    fn head_norms(&self, dim: usize, dtype: DType, dev: &Device) -> Result<Option<HeadNorms>> {
        if !self.norms {
            return Ok(None);
        }
        // A part of a longer vector, in steps of two.
        let query = data(&[dim + 1, 2], dtype, dev)?.narrow(0, 1, dim)?;
        let query = query.narrow(1, 1, 1)?.squeeze(1)?;
        let key = (data(&[dim], dtype, dev)? * 0.5)?;
        Ok(Some(HeadNorms::new(&query, &key, EPS)?))
    }

    /// The loop: all heads of `xs`, in order.
    fn expected(
        &self,
        xs: &Tensor,
        [cos, sin]: &[Tensor; 2],
        norms: Option<&HeadNorms>,
        (queries, keys): (usize, usize),
    ) -> Result<Vec<f64>> {
        let (_, heads, seq, dim) = xs.dims4()?;
        let longest = cos.dims()[cos.rank() - 2];
        let (mut ys, cos, sin) = (host(xs)?, host(cos)?, host(sin)?);
        let weights = match norms {
            Some(norms) => Some([host(norms.query())?, host(norms.key())?]),
            None => None,
        };
        for (row, y) in ys.chunks_mut(dim).enumerate() {
            let (b, h, t) = (row / (heads * seq), row / seq % heads, row % seq);
            if h >= queries + keys {
                continue;
            }
            if let Some(weights) = &weights {
                let mean = y.iter().map(|x| x * x).sum::<f64>() / dim as f64;
                let weight = &weights[usize::from(h >= queries)];
                for (y, w) in y.iter_mut().zip(weight) {
                    *y = *y / (mean + EPS).sqrt() * w;
                }
            }
            let at = if self.by_row { b * longest + t } else { t };
            for i in 0..self.columns {
                let (c, s) = (cos[at * self.columns + i], sin[at * self.columns + i]);
                let (first, second) = match self.pairs {
                    Pairs::Halves => (i, i + self.columns),
                    Pairs::Neighbours => (2 * i, 2 * i + 1),
                };
                let (x0, x1) = (y[first], y[second]);
                y[first] = x0 * c - x1 * s;
                y[second] = x0 * s + x1 * c;
            }
        }
        Ok(ys)
    }
}

pub(super) fn heads(dev: &Device) -> Result<()> {
    let (queries, keys) = (3, 2);
    for (dtype, tolerance) in dtypes(dev) {
        // A token, and a head around what a workgroup takes.
        for dims in [[2, 6, 1, 6], [1, 5, 3, 130], [2, 7, 2, 64]] {
            let [batch, _, seq, dim] = dims;
            for (i, case) in Case::all(dim / 2).into_iter().enumerate() {
                let angles = case.angles(batch, seq, dtype, dev)?;
                let norms = case.head_norms(dim, dtype, dev)?;
                let rotation = Rotation {
                    norms: norms.as_ref(),
                    ..Rotation::new(&angles[0], &angles[1], case.pairs)
                };
                // A third of the layouts for each.
                let inputs = layouts(&dims, dtype, dev)?.into_iter();
                for (layout, xs) in inputs.skip(i % 3).step_by(3) {
                    let name = format!("{dtype:?} {dims:?} {layout}, {}", case.name());
                    let expected = case.expected(&xs, &angles, norms.as_ref(), (queries, keys))?;
                    let got = rope_heads_with(&xs, &rotation, queries, keys)?;
                    assert_eq!((got.dtype(), got.dims()), (dtype, xs.dims()), "{name}");
                    assert_values(&name, &got, &expected, 4. * tolerance);
                    let got = rope_heads_with_slow(&xs, &rotation, queries, keys)?;
                    // It rounds after each step.
                    assert_values(&format!("plain {name}"), &got, &expected, 24. * tolerance);
                }
            }
        }
    }
    Ok(())
}

/// `cache`, a host copy of (batch, heads, capacity, dim), with the heads of `all` after `queries` from `positions` on, and the
/// queries themselves.
fn appended(
    all: &[f64],
    [batch, heads, seq, dim]: [usize; 4],
    queries: usize,
    (cache, capacity): (&mut [f64], usize),
    positions: &[usize],
) -> Vec<f64> {
    let mut first = Vec::new();
    for b in 0..batch {
        for h in 0..heads {
            for t in 0..seq {
                let row = &all[((b * heads + h) * seq + t) * dim..][..dim];
                if h < queries {
                    first.extend_from_slice(row);
                } else {
                    let at = (b * (heads - queries) + h - queries) * capacity + positions[b] + t;
                    cache[at * dim..][..dim].copy_from_slice(row);
                }
            }
        }
    }
    first
}

pub(super) fn into_a_cache(dev: &Device) -> Result<()> {
    // Three query heads over two pairs of keys and values.
    let (queries, kv_heads, capacity, dim) = (3, 2, 5, 6);
    let mut taken = Cases::new(dev, 2);
    for (dtype, tolerance) in dtypes(dev) {
        let caches = dtypes(dev).into_iter().filter(|(cache, _)| {
            // Each with f32, and each with itself.
            *cache == dtype || dtype == DType::F32 && *cache != DType::F64
        });
        for (cache_dtype, cache_tolerance) in caches {
            // A token, and several from the middle of the cache on.
            for (t, positions) in [
                (1, [0, 0]),
                (1, [4, 2]),
                (3, [1, 1]),
                (3, [0, 2]),
                (5, [0, 0]),
            ] {
                let dims = [2, queries + 2 * kv_heads, t, dim];
                for (i, case) in Case::all(dim / 2).into_iter().enumerate() {
                    if !taken.takes_next() {
                        continue;
                    }
                    let angles = case.angles(2, t, dtype, dev)?;
                    let norms = case.head_norms(dim, dtype, dev)?;
                    let rotation = Rotation {
                        norms: norms.as_ref(),
                        ..Rotation::new(&angles[0], &angles[1], case.pairs)
                    };
                    let on_device = Tensor::from_vec(positions.map(|p| p as u32).to_vec(), 2, dev)?;
                    let mut ways = vec![CachePosition::PerRow(&on_device)];
                    if positions[0] == positions[1] {
                        ways.push(CachePosition::Same(positions[0]));
                    }
                    // Some of the layouts for each.
                    let inputs = layouts(&dims, dtype, dev)?.into_iter();
                    for (layout, xs) in inputs.skip((i + t) % 5).step_by(5) {
                        let all =
                            case.expected(&xs, &angles, norms.as_ref(), (queries, kv_heads))?;
                        for way in &ways {
                            let name = format!(
                                "{dtype:?} {cache_dtype:?} {layout}, {t} from {way:?} on, {}",
                                case.name()
                            );
                            let cache_dims = [2, 2 * kv_heads, capacity, dim];
                            let cache = data(&cache_dims, cache_dtype, dev)?;
                            let plain_cache = cache.copy()?;
                            let mut held = host(&cache)?;
                            let into = (&mut held[..], capacity);
                            let first = appended(&all, dims, queries, into, &positions);
                            let got = rope_append_with(&xs, &rotation, &cache, *way)?;
                            assert_eq!(got.dims(), &[2, queries, t, dim], "{name}");
                            assert_eq!(got.dtype(), dtype, "{name}");
                            assert_values(&name, &got, &first, 4. * tolerance);
                            let of_cache = 4. * tolerance.max(cache_tolerance);
                            assert_values(&name, &cache, &held, of_cache);
                            let name = format!("plain {name}");
                            let got = rope_append_with_slow(&xs, &rotation, &plain_cache, *way)?;
                            assert_values(&name, &got, &first, 24. * tolerance);
                            assert_values(&name, &plain_cache, &held, 6. * of_cache);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn thin_calls(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, cos, sin) = (of(&[1, 4, 2, 6])?, of(&[2, 2])?, of(&[2, 2])?);
    let rotation = Rotation::new(&cos, &sin, Pairs::Neighbours);
    let caches = [0; 3].map(|_| of(&[1, 2, 3, 6]));
    let [a, b, c] = [caches[0].as_ref(), caches[1].as_ref(), caches[2].as_ref()]
        .map(|cache| cache.expect("a cache"));
    let expected = rope_append_with(&xs, &rotation, a, 1)?;
    let got = rope_append(&xs, &cos, &sin, Pairs::Neighbours, b, 1)?;
    assert_close("queries", &got, &expected, 0.);
    assert_close("cache", b, a, 0.);
    let got = rope_append_slow(&xs, &cos, &sin, Pairs::Neighbours, c, 1)?;
    assert_close("plain queries", &got, &expected, 1e-5);
    assert_close("plain cache", c, a, 1e-5);
    let expected = rope_heads_with(&xs, &rotation, 3, 0)?;
    let got = rope_i_heads(&xs, &cos, &sin, 3)?;
    assert_close("heads", &got, &expected, 0.);
    // No angles at all are angles without columns.
    let none = Rotation {
        angles: None,
        ..rotation
    };
    let got = rope_append_with(&xs, &none, a, 0)?;
    assert_close("no rotation", &got, &xs.narrow(1, 0, 2)?, 0.);
    assert_close("no rotation", &a.narrow(2, 0, 2)?, &xs.narrow(1, 2, 2)?, 0.);
    assert_close("heads", &rope_heads_with(&xs, &none, 4, 0)?, &xs, 0.);
    Ok(())
}

fn of_nothing(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (cos, sin) = (of(&[2, 3])?, of(&[2, 3])?);
    let rotation = Rotation::new(&cos, &sin, Pairs::Halves);
    for (dims, cache) in [([2, 4, 0, 6], [2, 2, 5, 6]), ([0, 4, 2, 6], [0, 2, 5, 6])] {
        let (xs, cache) = (of(&dims)?, of(&cache)?);
        let q = rope_append_with(&xs, &rotation, &cache, 1)?;
        assert_eq!(q.dims(), &[dims[0], 2, dims[2], 6]);
        let positions = Tensor::zeros(dims[0], DType::U32, dev)?;
        let q = rope_append_with(&xs, &rotation, &cache, &positions)?;
        assert_eq!(q.dims(), &[dims[0], 2, dims[2], 6]);
        assert_eq!(rope_heads_with(&xs, &rotation, 1, 1)?.dims(), &dims);
    }
    Ok(())
}

/// Heads of one kind alone, and a cache that is a part of the same tensor.
fn unusual_heads(dev: &Device) -> Result<()> {
    let all = data(&[2, 4, 6, 8], DType::F32, dev)?;
    let (cos, sin) = (
        data(&[6, 4], DType::F32, dev)?,
        data(&[6, 4], DType::F32, dev)?,
    );
    let case = Case {
        pairs: Pairs::Halves,
        columns: 4,
        by_row: false,
        norms: false,
    };
    let angles = [cos, sin];
    let rotation = Rotation::new(&angles[0], &angles[1], case.pairs);
    for (queries, kv_heads, apart) in [(0, 2, true), (4, 0, true), (2, 1, true), (2, 1, false)] {
        let source = all.copy()?;
        let xs = source.narrow(0, 0, 1)?;
        let cache_dims = (1, 2 * kv_heads, if kv_heads == 1 { 12 } else { 6 }, 8);
        let cache = if apart {
            data(&<[usize; 4]>::from(cache_dims), DType::F32, dev)?
        } else {
            source.narrow(0, 1, 1)?.reshape(cache_dims)?
        };
        let expected = case.expected(&xs, &angles, None, (queries, kv_heads))?;
        let mut held = host(&cache)?;
        let into = (&mut held[..], cache_dims.2);
        let first = appended(&expected, [1, 4, 6, 8], queries, into, &[0]);
        let name = format!("{queries} and {kv_heads}, apart: {apart}");
        let got = rope_append_with(&xs, &rotation, &cache, 0)?;
        assert_eq!(got.dims(), &[1, queries, 6, 8], "{name}");
        assert_values(&name, &got, &first, 1e-5);
        assert_values(&name, &cache, &held, 1e-5);
    }
    Ok(())
}

fn what_does_not_fit(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, angles) = (of(&[1, 4, 2, 6])?, of(&[2, 3])?);
    for (cache, position) in [
        (of(&[1, 2, 5, 6])?, 4),
        (of(&[1, 2, 5, 6])?, usize::MAX),
        (of(&[1, 2, 1, 6])?, 0),
        (of(&[1, 6, 5, 6])?, 0),
        (of(&[1, 3, 5, 6])?, 0),
        (of(&[2, 2, 5, 6])?, 0),
        (of(&[1, 2, 5, 4])?, 0),
        (of(&[1, 5, 2, 6])?.transpose(1, 2)?, 0),
    ] {
        let result = rope_append(&xs, &angles, &angles, Pairs::Halves, &cache, position);
        assert_fails(result, &["rope-append", "[1, 4, 2, 6]"]);
    }
    let cache = of(&[1, 2, 5, 6])?;
    let rotation = Rotation::new(&angles, &angles, Pairs::Halves);
    let two = Tensor::zeros(2, DType::U32, dev)?;
    let result = rope_append_with(&xs, &rotation, &cache, &two);
    assert_fails(result, &["rope-append", "batch of 1", "[2]"]);
    let ids = Tensor::zeros(1, DType::I64, dev)?;
    let result = rope_append_with(&xs, &rotation, &cache, &ids);
    assert_fails(result, &["rope-append", "I64", "U32"]);
    let ints = Tensor::zeros((1, 2, 5, 6), DType::U32, dev)?;
    let result = rope_append_with(&xs, &rotation, &ints, 0);
    assert_fails(result, &["rope-append", "U32"]);
    // More columns than half a head, too few positions, another shape of sin.
    let wide = of(&[2, 4])?;
    let result = rope_append(&xs, &wide, &wide, Pairs::Halves, &cache, 0);
    assert_fails(result, &["rope", "up to 3", "[2, 4]"]);
    let result = rope_append(&xs, &angles, &of(&[2, 2])?, Pairs::Halves, &cache, 0);
    assert_fails(result, &["rope", "[2, 3]", "[2, 2]"]);
    let result = rope_heads_with(&xs, &rotation, 3, 2);
    assert_fails(result, &["3 query heads", "2 key heads", "has 4"]);
    let six = of(&[6])?;
    assert_fails(
        HeadNorms::new(&six, &of(&[5])?, EPS),
        &["head norms", "[6]", "[5]"],
    );
    let norms = HeadNorms::new(&of(&[4])?, &of(&[4])?, EPS)?;
    let rotation = Rotation {
        norms: Some(&norms),
        ..rotation
    };
    assert_fails(
        rope_heads_with(&xs, &rotation, 2, 1),
        &["rope", "[4]", "(6)"],
    );
    Ok(())
}

/// A position past the end is an error, and leaves the cache of its sequence as it was.
fn position_on_the_device_past_the_end(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, angles, cache) = (of(&[2, 4, 2, 6])?, of(&[2, 3])?, of(&[2, 2, 5, 6])?);
    let before = cache.copy()?;
    let rotation = Rotation::new(&angles, &angles, Pairs::Halves);
    for bad in [4, u32::MAX] {
        let positions = Tensor::new(&[1u32, bad], dev)?;
        let error = rope_append_with(&xs, &rotation, &cache, &positions)
            .and_then(|q| q.to_device(&Device::Cpu))
            .map(|_| ());
        assert_fails(error, &["rope-append", &bad.to_string()]);
        let row = |t: &Tensor| t.get(1);
        assert_close("untouched", &row(&cache)?, &row(&before)?, 0.);
    }
    Ok(())
}

fn gradients(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| Var::from_tensor(&data(dims, DType::F32, dev)?);
    let (xs, query, key) = (of(&[2, 4, 2, 6])?, of(&[6])?, of(&[6])?);
    let angles = data(&[2, 2], DType::F32, dev)?;
    let norms = HeadNorms::new(&query, &key, EPS)?;
    let rotation = Rotation {
        norms: Some(&norms),
        ..Rotation::new(&angles, &angles, Pairs::Halves)
    };
    let ys = rope_heads_with(&xs.as_detached_tensor(), &rotation, 2, 1)?;
    let found = ys.sqr()?.sum_all()?.backward()?;
    assert!(found.get(&query).is_some() && found.get(&key).is_some());
    let ys = rope_heads_with(&xs, &rotation, 2, 1)?;
    assert!(ys.sqr()?.sum_all()?.backward()?.get(&xs).is_some());
    Ok(())
}

test_device!(heads);
test_device!(into_a_cache);
test_device!(thin_calls);
test_device!(of_nothing);
test_device!(unusual_heads);
test_device!(what_does_not_fit);
test_device!(position_on_the_device_past_the_end);
test_device!(gradients);

candle_core::with_webgpu! {
    /// Heads and a cache larger than a binding.
    #[test]
    fn beyond_a_binding_webgpu() -> Result<()> {
        let dev = super::common::small_bindings()?;
        let (queries, kv_heads, capacity, dim) = (4, 3, 40, 8);
        let dims = [2, queries + 2 * kv_heads, 17, dim];
        let positions = [3, 20];
        for case in Case::all(dim / 2) {
            for cache_dtype in [DType::F32, DType::F16] {
                let name = case.name();
                let angles = case.angles(2, 17, DType::F32, &dev)?;
                let norms = case.head_norms(dim, DType::F32, &dev)?;
                let rotation = Rotation {
                    norms: norms.as_ref(),
                    ..Rotation::new(&angles[0], &angles[1], case.pairs)
                };
                let xs = data(&dims, DType::F32, &dev)?;
                let all = case.expected(&xs, &angles, norms.as_ref(), (queries, kv_heads))?;
                let got = rope_heads_with(&xs, &rotation, queries, kv_heads)?;
                assert_values(&name, &got, &all, 4e-5);
                let cache = data(&[2, 2 * kv_heads, capacity, dim], cache_dtype, &dev)?;
                let mut held = host(&cache)?;
                let into = (&mut held[..], capacity);
                let first = appended(&all, dims, queries, into, &positions);
                let on_device = Tensor::new(&positions.map(|p| p as u32), &dev)?;
                let got = rope_append_with(&xs, &rotation, &cache, &on_device)?;
                assert_values(&name, &got, &first, 4e-5);
                assert_values(&name, &cache, &held, 2e-3);
                for p in [0, 23] {
                    let into = (&mut held[..], capacity);
                    appended(&all, dims, queries, into, &[p, p]);
                    rope_append_with(&xs, &rotation, &cache, p)?;
                    assert_values(&name, &cache, &held, 2e-3);
                }
            }
        }
        Ok(())
    }
}
