//! Attention to keys and values in pages, and their writing: bit for bit what it is for keys and values without pages.

use super::common::{assert_fails, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{sdpa_with, sdpa_with_slow, SdpaOptions, SdpaPages};
use candle_nn::rotary_emb::{
    rope_append_with, rope_append_with_slow, CachePosition, HeadNorms, Pairs, Rotation,
};

const BATCH: usize = 3;
const KV_HEADS: usize = 2;

/// Sequences with pages in no order, the pools, and the same keys and values without pages.
struct Paged {
    table: Tensor,
    page: usize,
    keys: usize,
    whole: [Tensor; 2],
    pools: [Tensor; 2],
}

impl Paged {
    /// The first two pages of all rows are the same.
    fn new(page: usize, keys: usize, dim: usize, dtype: DType, dev: &Device) -> Result<Self> {
        let columns = keys.div_ceil(page);
        let pages = (BATCH * columns).next_power_of_two();
        let table: Vec<u32> = (0..BATCH)
            .flat_map(|row| (0..columns).map(move |column| of_in(row, column, columns, pages)))
            .collect();
        let mut both = Vec::new();
        for seed in [0, 1] {
            let pool = data(&[1, KV_HEADS, pages * page, dim + 8 * seed], dtype, dev)?;
            let rows = (0..BATCH).map(|row| {
                let pages = &table[row * columns..][..columns];
                let parts = pages
                    .iter()
                    .map(|number| pool.narrow(2, *number as usize * page, page));
                Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 2)?.narrow(2, 0, keys)
            });
            let whole = Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?;
            both.push((whole, pool));
        }
        let (v, v_pool) = both.remove(1);
        let (k, k_pool) = both.remove(0);
        Ok(Self {
            table: Tensor::from_vec(table, (BATCH, columns), dev)?,
            page,
            keys,
            whole: [k, v],
            pools: [k_pool, v_pool],
        })
    }

    fn pages(&self) -> SdpaPages<'_> {
        SdpaPages {
            table: &self.table,
            page: self.page,
            keys: self.keys,
        }
    }
}

/// The page of a column of a row.
fn of_in(row: usize, column: usize, columns: usize, pages: usize) -> u32 {
    let number = match column {
        0 | 1 => column,
        _ => 2 + row * (columns - 2) + column - 2,
    };
    // An odd factor permutes powers of two.
    ((number * 7 + 3) % pages) as u32
}

fn bits(t: &Tensor) -> Result<Vec<u32>> {
    let values = t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

fn attention(dev: &Device) -> Result<()> {
    let dtypes = [
        (DType::F32, DType::F32),
        (DType::F16, DType::F16),
        (DType::F32, DType::F16),
        (DType::BF16, DType::BF16),
    ];
    for (i, (dtype, kv)) in dtypes.into_iter().enumerate() {
        for (queries, keys, dim, page) in [
            (1, 100, 64, 16),
            (3, 70, 20, 32),
            (1, 300, 32, 64),
            (40, 90, 64, 32),
        ] {
            let case = format!("{dtype:?} {kv:?}, {queries} queries, {keys} keys of {dim}, {page}");
            let paged = Paged::new(page, keys, dim, kv, dev)?;
            let q = data(&[BATCH, 2 * KV_HEADS, queries, dim], dtype, dev)?;
            let by_head = data(&[4 * KV_HEADS], DType::F32, dev)?.abs()?;
            let (slopes, sinks) = (by_head.narrow(0, 0, 4)?, by_head.narrow(0, 4, 4)?);
            let end = (keys - queries) as u32;
            let starts = Tensor::new(&[end, end / 2, 0], dev)?;
            let plain = SdpaOptions {
                scale: 0.3,
                causal: true,
                starts: Some(&starts),
                ..SdpaOptions::default()
            };
            let options = match i % 2 {
                0 => plain,
                _ => SdpaOptions {
                    softcap: Some(20.),
                    window: Some(37),
                    slopes: Some(&slopes),
                    sinks: Some(&sinks),
                    ..plain
                },
            };
            let [k, v] = &paged.whole;
            let expected = sdpa_with(&q, k, v, &options)?;
            let options = SdpaOptions {
                pages: Some(paged.pages()),
                ..options
            };
            let [k, v] = &paged.pools;
            let found = sdpa_with(&q, k, v, &options)?;
            assert_eq!(bits(&found)?, bits(&expected)?, "{case}");
            let slow = sdpa_with_slow(&q, k, v, &options)?;
            // With keys in 16 bits a GPU may round queries and weights to them.
            let tolerance = if kv == DType::F32 { 1e-3 } else { 3e-2 };
            super::common::assert_close(&case, &found, &slow, tolerance);
        }
    }
    Ok(())
}
test_device!(attention);

fn errors(dev: &Device) -> Result<()> {
    let paged = Paged::new(16, 40, 16, DType::F32, dev)?;
    let q = data(&[BATCH, KV_HEADS, 1, 16], DType::F32, dev)?;
    let [k, v] = &paged.pools;
    let attend = |pages: SdpaPages<'_>| {
        let pages = Some(pages);
        let options = SdpaOptions {
            pages,
            ..SdpaOptions::default()
        };
        sdpa_with(&q, k, v, &options)
    };
    let pages = paged.pages();
    assert_fails(
        attend(SdpaPages { page: 24, ..pages }),
        &["24", "power of two"],
    );
    assert_fails(
        attend(SdpaPages { keys: 49, ..pages }),
        &["49 keys in 3 pages"],
    );
    let rows = paged.table.narrow(0, 0, 2)?;
    assert_fails(
        attend(SdpaPages {
            table: &rows,
            ..pages
        }),
        &["[2, 3]", "batch of 3"],
    );
    let wrong = paged.table.to_dtype(DType::I64)?;
    assert_fails(
        attend(SdpaPages {
            table: &wrong,
            ..pages
        }),
        &["i64"],
    );
    if dev.is_cpu() {
        let beyond = Tensor::full(1000u32, (BATCH, 3), dev)?;
        assert_fails(
            attend(SdpaPages {
                table: &beyond,
                ..pages
            }),
            &["1000"],
        );
    }
    Ok(())
}
test_device!(errors);

/// Each position of a batch goes to a separate place, and nothing else changes.
fn append(dev: &Device) -> Result<()> {
    let (heads, kv_heads, seq, dim) = (3, 4, 5, 16);
    for (dtype, cache_dtype) in [
        (DType::F32, DType::F32),
        (DType::F16, DType::F16),
        (DType::F32, DType::F16),
    ] {
        for norms in [false, true] {
            let xs = data(&[BATCH, seq, heads + kv_heads, dim], dtype, dev)?.transpose(1, 2)?;
            let cos = data(&[BATCH, seq, dim / 2], dtype, dev)?;
            let sin = (&cos * 0.5)?;
            let weight = data(&[dim], dtype, dev)?;
            let norms = match norms {
                true => Some(HeadNorms::new(&weight, &weight, 1e-5)?),
                false => None,
            };
            let mut rotation = Rotation::new(&cos, &sin, Pairs::Halves);
            rotation.norms = norms.as_ref();
            let capacity = 40;
            // Neighbours within a page, and jumps.
            let places: Vec<u32> = (0..BATCH * seq)
                .map(|i| (i / 3 * 11 % 13 * 3 + i % 3) as u32)
                .collect();
            let each = Tensor::from_vec(places.clone(), (BATCH, seq), dev)?;
            let before = data(&[1, kv_heads, capacity, dim], cache_dtype, dev)?;
            let into = |slow: bool| -> Result<[Tensor; 2]> {
                let cache = before.copy()?;
                let at = CachePosition::Each(&each);
                let q = match slow {
                    true => rope_append_with_slow(&xs, &rotation, &cache, at)?,
                    false => rope_append_with(&xs, &rotation, &cache, at)?,
                };
                Ok([q, cache])
            };
            let [q, cache] = into(false)?;
            // As of rows with a cache each.
            let apart = Tensor::zeros((BATCH, kv_heads, seq, dim), cache_dtype, dev)?;
            let expected_q = rope_append_with(&xs, &rotation, &apart, 0)?;
            assert_eq!(bits(&q)?, bits(&expected_q)?);
            let mut rows: Vec<Tensor> = (0..capacity)
                .map(|at| before.narrow(2, at, 1))
                .collect::<Result<_>>()?;
            for (i, place) in places.iter().enumerate() {
                rows[*place as usize] = apart.narrow(0, i / seq, 1)?.narrow(2, i % seq, 1)?;
            }
            let expected = Tensor::cat(&rows, 2)?;
            assert_eq!(bits(&cache)?, bits(&expected)?, "{dtype:?} {cache_dtype:?}");
            let [slow_q, slow] = into(true)?;
            super::common::assert_close("queries", &q, &slow_q, 5e-3);
            super::common::assert_close("cache", &cache, &slow, 5e-3);
            // A place past the end is reported.
            let beyond = Tensor::full(capacity as u32, (BATCH, seq), dev)?;
            let cache = before.copy()?;
            let at = CachePosition::Each(&beyond);
            let late = rope_append_with(&xs, &rotation, &cache, at).and_then(|q| bits(&q));
            assert_fails(late, &["40"]);
            assert_eq!(bits(&cache)?, bits(&before)?);
        }
    }
    let cache = Tensor::zeros((2, 4, 8, 16), DType::F32, dev)?;
    let xs = data(&[2, 7, 1, 16], DType::F32, dev)?;
    let cos = data(&[1, 8], DType::F32, dev)?;
    let rotation = Rotation::new(&cos, &cos, Pairs::Halves);
    let places = Tensor::zeros((2, 1), DType::U32, dev)?;
    let at = CachePosition::Each(&places);
    assert_fails(
        rope_append_with(&xs, &rotation, &cache, at),
        &["do not fit"],
    );
    Ok(())
}
test_device!(append);
