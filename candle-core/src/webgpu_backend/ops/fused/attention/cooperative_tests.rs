use super::*;
use crate::backend::{BackendDevice, BackendStorage};
use crate::webgpu_backend::ops::fused::attention::{
    tests::{by_day, forms},
    SdpaParams,
};
use crate::webgpu_backend::{Options, WebGpuDevice};
use crate::{CpuStorage, DType, Layout, Shape};
use half::{bf16, f16};

fn sizes(queries: usize, head_dim: usize) -> Sizes {
    Sizes {
        batch: 1,
        heads: 8,
        kv_heads: 2,
        queries,
        keys: 512,
        head_dim,
        v_dim: head_dim,
    }
}

fn caps(memory: u32, cooperative: bool) -> Caps {
    Caps {
        limits: wgpu::Limits {
            max_compute_workgroup_storage_size: memory,
            ..Default::default()
        },
        subgroup: Some(32),
        cooperative,
        cooperative_attention: cooperative,
        ..Caps::default()
    }
}

#[test]
fn tiles_fit_the_workgroup_memory() {
    let chosen = |queries, head_dim, memory| {
        CoopTile::choose(&sizes(queries, head_dim), &caps(memory, true))
    };
    const LARGE: u32 = 48 << 10;
    const SMALL: u32 = 32 << 10;
    assert_eq!(chosen(512, 64, LARGE), Some(CoopTile::of(8, 32, 2, 2)));
    // Values that are not two columns of matrices.
    assert_eq!(chosen(512, 80, LARGE), Some(CoopTile::of(4, 32, 2, 1)));
    assert_eq!(chosen(16, 64, LARGE), Some(CoopTile::of(4, 64, 1, 1)));
    assert_eq!(chosen(512, 64, SMALL), Some(CoopTile::of(4, 32, 1, 1)));
    assert_eq!(chosen(512, 128, LARGE), Some(CoopTile::of(8, 32, 2, 2)));
    assert_eq!(chosen(16, 128, LARGE), Some(CoopTile::of(4, 32, 1, 1)));
    assert_eq!(chosen(512, 128, SMALL), Some(CoopTile::of(2, 32, 1, 1)));
    // Four heads of three queries: twelve rows.
    assert_eq!(chosen(3, 64, LARGE), Some(CoopTile::of(2, 32, 1, 1)));
    assert_eq!(chosen(512, 72, LARGE), None);
    assert_eq!(chosen(512, 144, LARGE), None);
    assert_eq!(chosen(512, 64, 4 << 10), None);
    assert_eq!(CoopTile::choose(&sizes(512, 64), &caps(LARGE, false)), None);
}

/// Possibly no adapter here has cooperative matrices, so at least the compiler checks each form of the kernel.
#[test]
fn every_cooperative_kernel_is_valid_wgsl() {
    let step = if std::env::var_os("CANDLE_EVERY_CASE").is_some() {
        1
    } else {
        5
    };
    for tile in CoopTile::ALL {
        for dims in [[16, 16], [128, 128], [96, 32]] {
            if !dims.iter().all(|dim| tile.divides(*dim as usize)) {
                continue;
            }
            for heads in forms(dims).step_by(step) {
                let kernel = SdpaCooperative { tile, heads };
                kernel.shader(&Caps::default()).assert_valid();
            }
        }
    }
}

/// The kernel with f32 loops instead of matrices: adapters without cooperative matrices could not run the surrounding code otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Plain(SdpaCooperative);

impl Kernel for Plain {
    type Params = AttentionParams;

    fn shader(&self, _: &Caps) -> Shader {
        let mut text = include_str!("../../../shaders/sdpa_cooperative.wgsl").to_string();
        for (cooperative, plain) in [
            ("coopLoadT<coop_mat16x16<f16, A>>(&tile[", "left_of_tile("),
            (
                "coopLoadT<coop_mat16x16<f16, A>>(&weights[",
                "left_of_weights(",
            ),
            ("coopLoad<coop_mat16x16<f16, B>>(&tile[", "right_of_keys("),
            (
                "coopLoadT<coop_mat16x16<f16, B>>(&tile[",
                "right_of_values(",
            ),
            (
                "coopLoadT<coop_mat16x16<f32, C>>(&scores[",
                "sums_of_scores(",
            ),
            ("], PITCH)", ", lane)"),
            ("], KEY_PITCH)", ", lane)"),
            ("], V_PITCH)", ", lane)"),
            ("], SCORE_PITCH)", ", lane)"),
            ("coop_mat16x16<f16, A>", "PlainLeft"),
            ("coop_mat16x16<f32, C>", "PlainSums"),
            ("coopMultiplyAdd(", "multiply_add("),
            ("let slot = &scores[place];", ""),
            (
                "coopStoreT(whole, slot, pitch)",
                "put_scores(whole, place, lane)",
            ),
            // Browsers, which have no cooperative matrices, need a load that costs barriers to prove that the value is uniform.
            (
                "if (turns[1].x == turns[0].x) {",
                "let marks = workgroupUniformLoad(&turns);\nif (marks[1].x == marks[0].x) {",
            ),
            ("  @builtin(subgroup_id) subgroup: u32,\n", ""),
            ("  @builtin(subgroup_invocation_id) lane: u32,\n", ""),
            (
                "  let all_rows",
                "  let subgroup = local / 32u;\n  let lane = local % 32u;\n  let all_rows",
            ),
        ] {
            assert!(text.contains(cooperative), "{cooperative} in {text}");
            text = text.replace(cooperative, plain);
        }
        let shader = self.0.heads.by_quads();
        let plain = include_str!("../../../shaders/sdpa_matrices_plain.wgsl");
        self.0.body(shader.text(plain), &text)
    }
}

/// A case of a kernel: sizes, rules, and the contents of tensors.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Case {
    /// The tile of the kernel with matrices.
    pub(in super::super) tile: CoopTile,
    /// Dtypes of the queries, and of keys and values.
    pub(in super::super) dtypes: [DType; 2],
    pub(in super::super) batch: usize,
    pub(in super::super) kv_heads: usize,
    pub(in super::super) group: usize,
    pub(in super::super) queries: usize,
    pub(in super::super) keys: usize,
    pub(in super::super) head_dim: usize,
    pub(in super::super) v_dim: usize,
    pub(in super::super) causal: bool,
    pub(in super::super) softcap: Option<f32>,
    /// Maximum distance back that a query sees.
    pub(in super::super) left: Option<usize>,
    /// The position of the first query; one more for each row of the batch.
    pub(in super::super) start: Option<u32>,
    /// The number of keys; one less for each row of the batch.
    pub(in super::super) len: Option<u32>,
    pub(in super::super) sinks: bool,
    pub(in super::super) slopes: bool,
    /// The difference between consecutive keys, so that maxima move.
    pub(in super::super) growth: f32,
    /// The number of parts into which the keys are split.
    pub(in super::super) splits: usize,
}

/// `values` rounded to `dtype`, and the same on the device.
fn rounded(
    device: &WebGpuDevice,
    values: Vec<f32>,
    dtype: DType,
) -> Result<(Vec<f32>, WebGpuStorage)> {
    Ok(match dtype {
        DType::F16 => {
            let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            let storage = device.storage_from_slice(&values)?;
            (values.into_iter().map(f16::to_f32).collect(), storage)
        }
        DType::BF16 => {
            let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            let storage = device.storage_from_slice(&values)?;
            (values.into_iter().map(bf16::to_f32).collect(), storage)
        }
        _ => {
            let storage = device.storage_from_slice(&values)?;
            (values, storage)
        }
    })
}

fn data(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    (0..len).map(next).collect()
}

impl Case {
    /// Few queries without rules.
    pub(in super::super) const PLAIN: Self = Self {
        tile: CoopTile::of(2, 16, 1, 1),
        dtypes: [DType::F32; 2],
        batch: 1,
        kv_heads: 1,
        group: 1,
        queries: 1,
        keys: 1,
        head_dim: 16,
        v_dim: 16,
        causal: false,
        softcap: None,
        left: None,
        start: None,
        len: None,
        sinks: false,
        slopes: false,
        growth: 0.,
        splits: 1,
    };

    /// Runs the kernel with loops instead of matrices.
    fn run(self, device: &WebGpuDevice) -> Result<()> {
        self.check(device, 1e-4, |call| {
            let parts = Parts::new(self.keys, self.splits, self.tile.keys as usize);
            call.in_parts(self.tile, parts, Plain)
        })
    }

    /// Compares the result of `run` for the case with sums in f64.
    pub(in super::super) fn check(
        self,
        device: &WebGpuDevice,
        tolerance: f64,
        run: impl FnOnce(&Call<'_>) -> Result<WebGpuStorage>,
    ) -> Result<()> {
        let Self {
            batch,
            kv_heads,
            group,
            queries,
            keys,
            head_dim,
            v_dim,
            ..
        } = self;
        let heads = kv_heads * group;
        // Queries in the layout of a projection, heads adjacent; keys and values in the layout of a cache with spare capacity.
        let (before, room) = (8, keys + 3);
        let q = data(batch * queries * heads * head_dim, 1);
        let q_l = Layout::contiguous((batch, queries, heads, head_dim)).transpose(1, 2)?;
        let cache = |seed, growth: f32, dim: usize| {
            let mut cache = data(before + batch * kv_heads * room * dim, seed);
            for (i, x) in cache.iter_mut().enumerate().skip(before) {
                let key = (i - before) / dim % room;
                *x *= 1. + key as f32 * growth;
                // Elements past the end must not be read.
                if key >= keys {
                    *x = f32::NAN;
                }
            }
            cache
        };
        let cache_l = |dim: usize| {
            Layout::new(
                Shape::from((batch, kv_heads, keys, dim)),
                vec![kv_heads * room * dim, room * dim, dim, 1],
                before,
            )
        };
        let (k_l, v_l) = (cache_l(head_dim), cache_l(v_dim));
        let (k, v) = (cache(2, self.growth, head_dim), cache(3, 0., v_dim));
        let [q_dtype, kv_dtype] = self.dtypes;
        let (q, q_s) = rounded(device, q, q_dtype)?;
        let (k, k_s) = rounded(device, k, kv_dtype)?;
        let (v, v_s) = rounded(device, v, kv_dtype)?;
        // Slopes, then sinks.
        let by_head: Vec<f32> = data(2 * heads, 4).iter().map(|x| x.abs()).collect();
        let by_head_s = device.storage_from_slice(&by_head)?;
        let half = |first| Layout::contiguous(2 * heads).narrow(0, first, heads);
        let (slopes_l, sinks_l) = (half(0)?, half(heads)?);
        let rows = 0..batch as u32;
        let starts = self
            .start
            .map(|start| rows.clone().map(|b| start + b).collect());
        let lens = self.len.map(|len| rows.map(|b| len - b).collect());
        let upload = |values: &Option<Vec<u32>>| {
            let upload = |values: &Vec<u32>| device.storage_from_slice(values);
            values.as_ref().map(upload).transpose()
        };
        let (starts_s, lens_s) = (upload(&starts)?, upload(&lens)?);
        let rows_l = Layout::contiguous(batch);
        let params = SdpaParams {
            scale: 1. / (head_dim as f32).sqrt(),
            softcap: self.softcap,
            left: self.left,
            right: self.causal.then_some(0),
            bias: None,
            slopes: self.slopes.then_some((&by_head_s, &slopes_l)),
            sinks: self.sinks.then_some((&by_head_s, &sinks_l)),
            starts: starts_s.as_ref().map(|starts| (starts, &rows_l)),
            lens: lens_s.as_ref().map(|lens| (lens, &rows_l)),
            pages: None,
        };
        let call = super::super::call([(&q_s, &q_l), (&k_s, &k_l), (&v_s, &v_l)], params)?;
        let got = match run(&call)?.to_cpu_storage()? {
            CpuStorage::F32(got) => got,
            CpuStorage::F16(got) => got.into_iter().map(f16::to_f32).collect(),
            CpuStorage::BF16(got) => got.into_iter().map(bf16::to_f32).collect(),
            other => crate::bail!(
                "a result of {:?}",
                crate::backend::BackendStorage::dtype(&other)
            ),
        };
        for row in 0..batch * heads * queries {
            let (query, head, b) = (row % queries, row / queries % heads, row / queries / heads);
            let q = &q[((b * queries + query) * heads + head) * head_dim..][..head_dim];
            let kv = |key, dim| before + ((b * kv_heads + head / group) * room + key) * dim;
            let start = match &starts {
                Some(starts) => i64::from(starts[b]),
                None => keys as i64 - queries as i64,
            };
            let position = start + query as i64;
            let ahead = |key: usize| key as i64 - position;
            let sees = |key: &usize| {
                let len = lens.as_ref().map_or(keys, |lens| lens[b] as usize);
                let near = self.left.is_none_or(|left| -ahead(*key) <= left as i64);
                *key < len && near && !(self.causal && ahead(*key) > 0)
            };
            let seen: Vec<usize> = (0..keys).filter(sees).collect();
            let score = |&key: &usize| {
                let products = q.iter().zip(&k[kv(key, head_dim)..]);
                let sum: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let mut score = sum * f64::from(params.scale);
                if let Some(cap) = self.softcap {
                    score = f64::from(cap) * (score / f64::from(cap)).tanh();
                }
                if self.slopes {
                    score -= f64::from(by_head[head]) * ahead(key).abs() as f64;
                }
                score
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sink = self.sinks.then_some(f64::from(by_head[heads + head]));
            let most = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum = weights.iter().sum::<f64>() + sink.map_or(0., |sink| (sink - most).exp());
            for d in 0..v_dim {
                let values = seen.iter().zip(&weights);
                let expected: f64 = values
                    .map(|(&key, w)| w * f64::from(v[kv(key, v_dim) + d]))
                    .sum();
                let expected = if sum > 0. { expected / sum } else { 0. };
                let got = f64::from(got[row * v_dim + d]);
                assert!(
                    (got - expected).abs() <= tolerance,
                    "{self:?}: query {query} of head {head}, {d}: {got}, expected {expected}"
                );
            }
        }
        Ok(())
    }
}

/// Masks, moving maxima, ragged ends, parts and strides, with loops instead of the matrices that few adapters have. The tiles are small,
/// because f32 takes twice the memory.
#[test]
fn all_but_the_matrices() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let low = Case {
        queries: 32,
        keys: 32,
        ..Case::PLAIN
    };
    let wide = Case {
        tile: CoopTile::of(1, 32, 1, 1),
        head_dim: 32,
        v_dim: 32,
        ..low
    };
    let mut cases = vec![
        low,
        Case {
            keys: 1,
            queries: 1,
            ..low
        },
        Case {
            keys: 17,
            queries: 33,
            ..low
        },
        Case {
            growth: 0.5,
            keys: 80,
            queries: 20,
            ..low
        },
        Case {
            causal: true,
            queries: 31,
            keys: 50,
            group: 3,
            batch: 2,
            kv_heads: 2,
            ..low
        },
        Case {
            softcap: Some(5.),
            growth: 0.5,
            keys: 70,
            causal: true,
            ..low
        },
        Case {
            growth: 0.5,
            keys: 90,
            queries: 45,
            head_dim: 32,
            v_dim: 32,
            causal: true,
            group: 2,
            ..low
        },
        Case {
            growth: 0.3,
            keys: 100,
            queries: 9,
            kv_heads: 2,
            ..wide
        },
        // Windows that begin within a tile, between tiles and before the keys; in parts.
        Case {
            keys: 90,
            queries: 40,
            causal: true,
            left: Some(20),
            group: 2,
            ..low
        },
        Case {
            keys: 150,
            queries: 20,
            causal: true,
            left: Some(37),
            splits: 3,
            growth: 0.5,
            sinks: true,
            ..low
        },
        Case {
            keys: 60,
            queries: 20,
            left: Some(0),
            slopes: true,
            ..low
        },
        // Rows with separate positions and lengths, one of which sees no key.
        Case {
            batch: 2,
            kv_heads: 2,
            keys: 60,
            queries: 20,
            causal: true,
            start: Some(7),
            slopes: true,
            sinks: true,
            growth: 0.5,
            ..low
        },
        Case {
            batch: 2,
            keys: 60,
            queries: 20,
            len: Some(1),
            splits: 2,
            ..low
        },
        Case {
            batch: 2,
            keys: 60,
            queries: 20,
            causal: true,
            left: Some(9),
            start: Some(50),
            len: Some(41),
            ..low
        },
        // Values longer and shorter than keys.
        Case {
            v_dim: 48,
            keys: 40,
            queries: 20,
            causal: true,
            growth: 0.5,
            ..low
        },
        Case {
            head_dim: 48,
            keys: 40,
            queries: 20,
            sinks: true,
            softcap: Some(2.),
            ..low
        },
        // Two parts, the second of which some queries do not see.
        Case {
            keys: 45,
            queries: 40,
            causal: true,
            splits: 2,
            growth: 0.5,
            ..low
        },
    ];
    // Sums that take two rounds through the scores' memory, the second half empty.
    let ragged = Case {
        head_dim: 48,
        v_dim: 48,
        growth: 0.3,
        causal: true,
        queries: 20,
        keys: 90,
        ..wide
    };
    let memory = 2 * ragged.tile.shared_bytes(ragged.head_dim, ragged.v_dim) + 256;
    if memory
        <= device
            .kernels()
            .caps
            .limits
            .max_compute_workgroup_storage_size as usize
    {
        cases.push(ragged);
    }
    // Some of them with two fragments of rows per subgroup, if they fit: plain, with moving maxima, causal, with larger heads, and in
    // parts.
    let largest = device
        .kernels()
        .caps
        .limits
        .max_compute_workgroup_storage_size as usize;
    for (i, case) in cases.into_iter().enumerate().step_by(by_day(&device, 3)) {
        case.run(&device)?;
        if ![0, 3, 4, 6, 9].contains(&i) {
            continue;
        }
        let tile = CoopTile {
            fragments: 2,
            ..case.tile
        };
        let memory = 2 * tile.shared_bytes(case.head_dim, case.v_dim) + 512;
        if memory <= largest {
            Case { tile, ..case }.run(&device)?;
        }
    }
    Ok(())
}

/// Two subgroups of a team share rows, each with half of the keys and half of the values.
#[test]
fn two_columns_of_subgroups() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let low = Case {
        tile: CoopTile::of(2, 32, 2, 2),
        queries: 33,
        keys: 90,
        head_dim: 32,
        v_dim: 32,
        ..Case::PLAIN
    };
    let cases = [
        low,
        // Maxima that move, so that sums pass through memory, in two rounds.
        Case {
            v_dim: 96,
            growth: 0.5,
            causal: true,
            ..low
        },
        Case {
            keys: 150,
            queries: 20,
            kv_heads: 2,
            group: 2,
            causal: true,
            left: Some(37),
            splits: 2,
            growth: 0.5,
            sinks: true,
            ..low
        },
        Case {
            batch: 2,
            keys: 60,
            queries: 20,
            causal: true,
            start: Some(7),
            slopes: true,
            softcap: Some(5.),
            ..low
        },
    ];
    let memory = device
        .kernels()
        .caps
        .limits
        .max_compute_workgroup_storage_size as usize;
    let fits = |case: &Case| 2 * case.tile.shared_bytes(case.head_dim, case.v_dim) + 512 <= memory;
    let mut run = 0;
    for case in cases.into_iter().filter(fits) {
        case.run(&device)?;
        run += 1;
    }
    assert!(run > 2, "{run} cases fit {memory} bytes");
    Ok(())
}

/// The kernel itself, with queries of all dtypes, on adapters that have the matrices; it cannot run on others.
#[test]
fn with_the_matrices_of_an_adapter() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let caps = &device.kernels().caps;
    if !caps.cooperative_attention {
        return Ok(());
    }
    let memory = caps.limits.max_compute_workgroup_storage_size as usize;
    for tile in CoopTile::ALL {
        for [head_dim, v_dim] in [[64, 64], [80, 80], [128, 128], [64, 128], [96, 32]] {
            let whole = tile.divides(head_dim) && tile.divides(v_dim);
            if !whole || tile.shared_bytes(head_dim, v_dim) > memory {
                continue;
            }
            let long = Case {
                tile,
                kv_heads: 2,
                group: 4,
                queries: 70,
                keys: 300,
                head_dim,
                v_dim,
                causal: true,
                dtypes: [DType::F32, DType::F16],
                ..Case::PLAIN
            };
            let cases = [
                long,
                Case {
                    keys: 1,
                    queries: 1,
                    ..long
                },
                Case {
                    keys: 33,
                    queries: 33,
                    group: 1,
                    ..long
                },
                Case {
                    growth: 0.05,
                    splits: 3,
                    sinks: true,
                    ..long
                },
                Case {
                    left: Some(37),
                    slopes: true,
                    softcap: Some(5.),
                    ..long
                },
                Case {
                    batch: 2,
                    start: Some(9),
                    len: Some(290),
                    ..long
                },
                Case {
                    dtypes: [DType::F16; 2],
                    group: 8,
                    ..long
                },
                Case {
                    dtypes: [DType::BF16, DType::F16],
                    causal: false,
                    ..long
                },
            ];
            for case in cases {
                // Queries and weights are rounded to f16; a result in bf16 is rounded once more.
                let tolerance = match case.dtypes[0] {
                    DType::BF16 => 1e-2,
                    _ => 4e-3,
                };
                case.check(&device, tolerance, |call| {
                    let parts = Parts::new(case.keys, case.splits, tile.keys as usize);
                    call.in_parts(tile, parts, |kernel| kernel)
                })?;
            }
        }
    }
    Ok(())
}
