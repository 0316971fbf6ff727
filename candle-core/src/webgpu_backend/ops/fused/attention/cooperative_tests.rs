use super::*;
use crate::backend::BackendDevice;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::ops::fused::attention::SdpaParams;
use crate::webgpu_backend::{Options, WebGpuDevice};
use crate::{CpuStorage, Layout, Shape};

fn sizes(queries: usize, head_dim: usize) -> Sizes {
    Sizes {
        batch: 1,
        heads: 8,
        kv_heads: 2,
        queries,
        keys: 512,
        head_dim,
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
    assert_eq!(chosen(512, 64, LARGE), Some(CoopTile::of(4, 64)));
    assert_eq!(chosen(512, 64, SMALL), Some(CoopTile::of(4, 32)));
    assert_eq!(chosen(512, 128, LARGE), Some(CoopTile::of(4, 32)));
    assert_eq!(chosen(512, 128, SMALL), Some(CoopTile::of(2, 32)));
    // Four heads of three queries: twelve rows.
    assert_eq!(chosen(3, 64, LARGE), Some(CoopTile::of(2, 32)));
    assert_eq!(chosen(512, 72, LARGE), None);
    assert_eq!(chosen(512, 144, LARGE), None);
    assert_eq!(chosen(512, 64, 4 << 10), None);
    assert_eq!(CoopTile::choose(&sizes(512, 64), &caps(LARGE, false)), None);
}

/// No adapter here may have cooperative matrices, so at least the compiler sees each form of what they run.
#[test]
fn every_cooperative_kernel_is_valid_wgsl() {
    for tile in CoopTile::ALL {
        for head_dim in [16, 64, 80, 128] {
            for choices in 0..8 {
                let [causal, softcap, joins] = [1, 2, 4].map(|choice| choices & choice != 0);
                let form = Form {
                    tile,
                    matrices: Matrices::Cooperative,
                    head_dim,
                    causal,
                    softcap,
                };
                let destination = |shader: Shader| match joins {
                    true => shader.output_words("parts_out", "f32"),
                    false => shader.output("dst", Elem::F16),
                };
                form.shader(destination, joins).assert_valid();
            }
        }
    }
}

/// A case of the kernel with loops in place of matrices.
#[derive(Debug, Clone, Copy)]
struct Case {
    tile: CoopTile,
    batch: usize,
    kv_heads: usize,
    group: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    causal: bool,
    softcap: f32,
    /// How much larger each key is than the one before it, so that maxima move.
    growth: f32,
    /// Into how many parts the keys are cut.
    splits: usize,
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
    fn run(self, device: &WebGpuDevice) -> Result<()> {
        let Self {
            batch,
            kv_heads,
            group,
            queries,
            keys,
            head_dim,
            ..
        } = self;
        let heads = kv_heads * group;
        // Queries as a projection gives them, heads side by side; keys and values as a cache with spare capacity has them.
        let (before, room) = (8, keys + 3);
        let q = data(batch * queries * heads * head_dim, 1);
        let q_l = Layout::contiguous((batch, queries, heads, head_dim)).transpose(1, 2)?;
        let cache = |seed, growth: f32| {
            let mut cache = data(before + batch * kv_heads * room * head_dim, seed);
            for (i, x) in cache.iter_mut().enumerate().skip(before) {
                let key = (i - before) / head_dim % room;
                *x *= 1. + key as f32 * growth;
                // What is past the end must not be looked at.
                if key >= keys {
                    *x = f32::NAN;
                }
            }
            cache
        };
        let kv_l = Layout::new(
            Shape::from((batch, kv_heads, keys, head_dim)),
            vec![kv_heads * room * head_dim, room * head_dim, head_dim, 1],
            before,
        );
        let (k, v) = (cache(2, self.growth), cache(3, 0.));
        let storages = [&q, &k, &v].map(|values| device.storage_from_slice(values));
        let [q_s, k_s, v_s] = storages;
        let (q_s, k_s, v_s) = (q_s?, k_s?, v_s?);
        let params = SdpaParams {
            scale: 1. / (head_dim as f32).sqrt(),
            causal: self.causal,
            softcap: self.softcap,
        };
        let call = Call {
            inputs: [(&q_s, &q_l), (&k_s, &kv_l), (&v_s, &kv_l)],
            sizes: Sizes {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                head_dim,
            },
            params,
            elem: Elem::F32,
        };
        let parts = Parts::new(keys, self.splits, self.tile.keys as usize);
        let got = call.with_matrices(self.tile, parts, Matrices::Plain)?;
        let CpuStorage::F32(got) = got.to_cpu_storage()? else {
            unreachable!("f32 in, f32 out")
        };
        for row in 0..batch * heads * queries {
            let (query, head, b) = (row % queries, row / queries % heads, row / queries / heads);
            let q = &q[((b * queries + query) * heads + head) * head_dim..][..head_dim];
            let kv = |key| before + ((b * kv_heads + head / group) * room + key) * head_dim;
            let seen = match self.causal {
                true => keys - queries + query + 1,
                false => keys,
            };
            let score = |key| {
                let products = q.iter().zip(&k[kv(key)..]);
                let sum: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let sum = sum * f64::from(params.scale);
                match self.softcap {
                    1. => sum,
                    cap => f64::from(cap) * (sum / f64::from(cap)).tanh(),
                }
            };
            let scores: Vec<f64> = (0..seen).map(score).collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let values = weights.iter().enumerate();
                let expected: f64 = values.map(|(key, w)| w * f64::from(v[kv(key) + d])).sum();
                let (got, expected) = (f64::from(got[row * head_dim + d]), expected / sum);
                assert!(
                    (got - expected).abs() <= 1e-4,
                    "{self:?}: query {query} of head {head}, {d}: {got}, expected {expected}"
                );
            }
        }
        Ok(())
    }
}

/// Masks, moving maxima, ragged ends, parts and strides, with loops in place of the matrices that few adapters have. The tiles are
/// small, because f32 takes twice the memory.
#[test]
fn all_but_the_matrices() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let low = Case {
        tile: CoopTile::of(2, 16),
        batch: 1,
        kv_heads: 1,
        group: 1,
        queries: 32,
        keys: 32,
        head_dim: 16,
        causal: false,
        softcap: 1.,
        growth: 0.,
        splits: 1,
    };
    let wide = Case {
        tile: CoopTile::of(1, 32),
        head_dim: 32,
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
            softcap: 5.,
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
    // Sums that take two rounds through the scores' memory, the second of them half empty.
    let ragged = Case {
        head_dim: 48,
        growth: 0.3,
        causal: true,
        queries: 20,
        keys: 90,
        ..wide
    };
    let memory = 2 * ragged.tile.shared_bytes(ragged.head_dim) + 256;
    if memory
        <= device
            .kernels()
            .caps
            .limits
            .max_compute_workgroup_storage_size as usize
    {
        cases.push(ragged);
    }
    cases.into_iter().try_for_each(|case| case.run(&device))
}
