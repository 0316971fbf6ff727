//! What attention does besides its three tensors, against loops over f64 on the host.

use super::common::{assert_close, dtypes, Cases};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{sdpa_with, sdpa_with_slow, SdpaOptions};

/// Numbers that look random and are the same each time.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1664525).wrapping_add(1013904223);
        self.0 >> 8
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Between -2 and 2.
    fn tensor(&mut self, dims: &[usize], dtype: DType, dev: &Device) -> Result<Tensor> {
        let count = dims.iter().product::<usize>();
        let values: Vec<f32> = (0..count)
            .map(|_| self.next() as f32 / (1 << 22) as f32 - 2.)
            .collect();
        Tensor::from_vec(values, dims, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(dev)
    }

    /// (batch, heads, seq, dim) in one of the layouts that models have.
    fn heads(&mut self, dims: [usize; 4], dtype: DType, dev: &Device) -> Result<Tensor> {
        let [b, h, t, d] = dims;
        match self.below(4) {
            0 => self.tensor(&dims, dtype, dev),
            // As a projection gives it.
            1 => self.tensor(&[b, t, h, d], dtype, dev)?.transpose(1, 2),
            // As a cache with spare capacity has it.
            2 => self.tensor(&[b, h, t + 3, d], dtype, dev)?.narrow(2, 0, t),
            // Rows that do not start at a word of four elements.
            _ => self.tensor(&[b, h, t, d + 3], dtype, dev)?.narrow(3, 1, d),
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    kv_heads: usize,
    group: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    v_dim: usize,
    dtype: DType,
    kv_dtype: DType,
    causal: bool,
    softcap: Option<f32>,
    window: Option<usize>,
    /// Its shape, and whether it hides some keys.
    bias: Option<([usize; 4], bool)>,
    slopes: bool,
    sinks: bool,
    starts: Option<Vec<u32>>,
    lens: Option<Vec<u32>>,
}

impl Case {
    fn new(dtype: DType, queries: usize, keys: usize) -> Self {
        Self {
            batch: 2,
            kv_heads: 2,
            group: 2,
            queries,
            keys,
            head_dim: 32,
            v_dim: 32,
            dtype,
            kv_dtype: dtype,
            causal: false,
            softcap: None,
            window: None,
            bias: None,
            slopes: false,
            sinks: false,
            starts: None,
            lens: None,
        }
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn run(&self, seed: u32, tolerance: f64, dev: &Device) -> Result<()> {
        let mut random = Random(seed);
        let heads = self.heads();
        let kv = [self.batch, self.kv_heads, self.keys];
        let q_dims = [self.batch, heads, self.queries, self.head_dim];
        let q = random.heads(q_dims, self.dtype, dev)?;
        let k = random.heads([kv[0], kv[1], kv[2], self.head_dim], self.kv_dtype, dev)?;
        let v = random.heads([kv[0], kv[1], kv[2], self.v_dim], self.kv_dtype, dev)?;
        let bias = match self.bias {
            None => None,
            Some((dims, hides)) => {
                let dtype = random.one_of(&[DType::F32, self.dtype]);
                let bias = random.tensor(&dims, DType::F32, &Device::Cpu)?;
                let bias = if hides {
                    let values = bias.flatten_all()?.to_vec1::<f32>()?;
                    let hide = |x| {
                        if random.once_in(5) {
                            f32::NEG_INFINITY
                        } else {
                            x
                        }
                    };
                    let values: Vec<f32> = values.into_iter().map(hide).collect();
                    Tensor::from_vec(values, dims.as_slice(), &Device::Cpu)?
                } else {
                    bias
                };
                Some(bias.to_dtype(dtype)?.to_device(dev)?)
            }
        };
        let vector = |random: &mut Random, wanted: bool, by: f64| {
            let make = || (random.tensor(&[heads], DType::F32, dev)? * by)?.abs();
            wanted.then(make).transpose()
        };
        let slopes = vector(&mut random, self.slopes, 0.25)?;
        let sinks = vector(&mut random, self.sinks, 1.)?;
        let positions = |values: &Option<Vec<u32>>| {
            let make = |values: &Vec<u32>| Tensor::new(values.as_slice(), dev);
            values.as_ref().map(make).transpose()
        };
        let (starts, lens) = (positions(&self.starts)?, positions(&self.lens)?);
        let options = SdpaOptions {
            scale: 1.3 / (self.head_dim as f32).sqrt(),
            causal: self.causal,
            softcap: self.softcap,
            window: self.window,
            bias: bias.as_ref(),
            slopes: slopes.as_ref(),
            sinks: sinks.as_ref(),
            starts: starts.as_ref(),
            lens: lens.as_ref(),
            pages: None,
        };
        let expected = self.expected(&q, &k, &v, &options)?;
        for (form, got) in [
            ("fused", sdpa_with(&q, &k, &v, &options)?),
            ("plain", sdpa_with_slow(&q, &k, &v, &options)?),
        ] {
            assert_eq!(got.dtype(), self.dtype);
            assert_close(&format!("{form}, {self:?}"), &got, &expected, tolerance);
        }
        Ok(())
    }

    /// One query after the other, one key after the other, in f64.
    fn expected(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        options: &SdpaOptions<'_>,
    ) -> Result<Tensor> {
        let host = |t: &Tensor| {
            let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
            t.flatten_all()?.to_vec1::<f64>()
        };
        let maybe = |t: Option<&Tensor>| t.map(host).transpose();
        let (q, k, v) = (host(q)?, host(k)?, host(v)?);
        let heads = self.heads();
        let scores = (self.batch, heads, self.queries, self.keys);
        let bias = match options.bias {
            Some(bias) => Some(host(&bias.to_device(&Device::Cpu)?.broadcast_as(scores)?)?),
            None => None,
        };
        let (slopes, sinks) = (maybe(options.slopes)?, maybe(options.sinks)?);
        let (d, vd) = (self.head_dim, self.v_dim);
        let mut out = Vec::new();
        for row in 0..self.batch * heads * self.queries {
            let query = row % self.queries;
            let head = row / self.queries % heads;
            let b = row / self.queries / heads;
            let start = match &self.starts {
                Some(starts) => i64::from(starts[b]),
                None => self.keys as i64 - self.queries as i64,
            };
            let position = start + query as i64;
            let len = match &self.lens {
                Some(lens) => i64::from(lens[b]),
                None => self.keys as i64,
            };
            let mut logits = Vec::new();
            for key in 0..self.keys {
                let ahead = key as i64 - position;
                let within = self.window.is_none_or(|window| ahead.abs() < window as i64);
                if key as i64 >= len || self.causal && ahead > 0 || !within {
                    continue;
                }
                let key_row = ((b * self.kv_heads + head / self.group) * self.keys + key) * d;
                let mut score = (0..d).map(|i| q[row * d + i] * k[key_row + i]).sum::<f64>();
                score *= f64::from(options.scale);
                if let Some(cap) = self.softcap {
                    score = f64::from(cap) * (score / f64::from(cap)).tanh();
                }
                if let Some(bias) = &bias {
                    score += bias[row * self.keys + key];
                }
                if let Some(slopes) = &slopes {
                    score -= slopes[head] * ahead.abs() as f64;
                }
                logits.push((key, score));
            }
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            let most = logits.iter().map(|&(_, score)| score).chain(sink);
            let most = most.fold(f64::NEG_INFINITY, f64::max);
            let mut sum = sink.map_or(0., |sink| (sink - most).exp());
            let mut value = vec![0.; vd];
            for (key, score) in logits {
                if score == f64::NEG_INFINITY {
                    continue;
                }
                let weight = (score - most).exp();
                sum += weight;
                let v_row = ((b * self.kv_heads + head / self.group) * self.keys + key) * vd;
                for (value, x) in value.iter_mut().zip(&v[v_row..]) {
                    *value += weight * x;
                }
            }
            if sum > 0. {
                value.iter_mut().for_each(|value| *value /= sum);
            }
            out.extend(value);
        }
        let dims = (self.batch, heads, self.queries, vd);
        Tensor::from_vec(out, dims, &Device::Cpu)
    }
}

/// One query, a few, more than the kernel for few queries takes, one less and one more than a tile of 32 keys, and around the CPU's block
/// of 256 queries.
const SIZES: [[usize; 2]; 8] = [
    [1, 1],
    [1, 33],
    [1, 300],
    [5, 129],
    [17, 31],
    [33, 65],
    [70, 200],
    [257, 300],
];

fn each_option_alone(dev: &Device) -> Result<()> {
    let mut seed = 0;
    let mut taken = Cases::new(dev, 9);
    for (dtype, tolerance) in dtypes(dev) {
        for [queries, keys] in SIZES {
            let plain = Case::new(dtype, queries, keys);
            let causal = || Case {
                causal: queries <= keys,
                ..plain.clone()
            };
            let last = (keys as u32).saturating_sub(queries as u32);
            let heads = plain.heads();
            let biases = [
                [1, 1, 1, keys],
                [2, 1, queries, keys],
                [1, heads, queries, keys],
                [2, heads, queries, keys],
                [2, 1, 1, keys],
                [1, heads, queries, 1],
            ];
            let mut cases = vec![
                plain.clone(),
                causal(),
                Case {
                    softcap: Some(1.),
                    ..plain.clone()
                },
                Case {
                    slopes: true,
                    ..plain.clone()
                },
                Case {
                    slopes: true,
                    ..causal()
                },
                Case {
                    sinks: true,
                    ..plain.clone()
                },
                Case {
                    sinks: true,
                    ..causal()
                },
                Case {
                    causal: true,
                    starts: Some(vec![0, last + 2]),
                    ..plain.clone()
                },
                Case {
                    lens: Some(vec![keys as u32 / 2, keys as u32 + 1]),
                    ..plain.clone()
                },
                Case {
                    lens: Some(vec![0, 1]),
                    ..plain.clone()
                },
                Case {
                    v_dim: 48,
                    ..causal()
                },
                Case {
                    v_dim: 16,
                    ..plain.clone()
                },
            ];
            for window in [1, 3, 32, keys + 9] {
                let window = Some(window);
                cases.push(Case { window, ..causal() });
                cases.push(Case {
                    window,
                    ..plain.clone()
                });
            }
            for (i, dims) in biases.into_iter().enumerate() {
                cases.push(Case {
                    bias: Some((dims, i % 2 == 0)),
                    ..plain.clone()
                });
            }
            let narrower = match dtype {
                DType::F32 => &[DType::F16, DType::BF16][..],
                DType::BF16 => &[DType::F16],
                _ => &[],
            };
            for kv_dtype in narrower {
                cases.push(Case {
                    kv_dtype: *kv_dtype,
                    ..causal()
                });
            }
            for case in cases {
                seed += 1;
                // On the CPU, whose kernels are generic over the dtype, every third case covers each other dtype.
                if taken.takes_next() && !(dev.is_cpu() && dtype != DType::F32 && seed % 3 != 0) {
                    case.run(seed, 2. * tolerance, dev)?;
                }
            }
        }
    }
    Ok(())
}

fn random_case(random: &mut Random, dtype: DType) -> Case {
    let keys = random.one_of(&[1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 200, 513]);
    let queries = random.one_of(&[1, 1, 2, 7, 8, 9, 16, 17, 33, 65, 130]);
    let (batch, kv_heads) = (1 + random.below(3), 1 + random.below(2));
    let group = random.one_of(&[1, 2, 3, 8]);
    let head_dim = random.one_of(&[8, 16, 20, 32, 33, 64, 80, 128]);
    let kv_dtype = match dtype {
        DType::F32 if random.once_in(3) => random.one_of(&[DType::F16, DType::BF16]),
        DType::BF16 if random.once_in(3) => DType::F16,
        dtype => dtype,
    };
    let mut positions = |most: usize| -> Vec<u32> {
        let one = |_| random.below(most + 1) as u32;
        (0..batch).map(one).collect()
    };
    let (starts, lens) = (positions(keys + 2), positions(keys + 2));
    let starts = random.once_in(3).then_some(starts);
    let can_be_causal = starts.is_some() || keys >= queries;
    let broadcast = |random: &mut Random, n: usize| if random.once_in(2) { 1 } else { n };
    let bias = [
        broadcast(random, batch),
        broadcast(random, kv_heads * group),
        broadcast(random, queries),
        keys,
    ];
    let hides = random.once_in(2);
    Case {
        batch,
        kv_heads,
        group,
        queries,
        keys,
        head_dim,
        v_dim: random.one_of(&[head_dim, head_dim, 8, 34, 64, 128]),
        dtype,
        kv_dtype,
        causal: can_be_causal && random.once_in(2),
        softcap: random.once_in(4).then_some(1.5),
        window: random.once_in(3).then_some(1 + random.below(keys + 5)),
        bias: random.once_in(4).then_some((bias, hides)),
        slopes: random.once_in(4),
        sinks: random.once_in(3),
        starts,
        lens: random.once_in(3).then_some(lens),
    }
}

fn options_together(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 3);
    for (dtype, tolerance) in dtypes(dev) {
        let mut random = Random(7);
        for seed in 0..61 {
            let case = random_case(&mut random, dtype);
            if taken.takes_next() {
                case.run(seed, 2. * tolerance, dev)?;
            }
        }
    }
    Ok(())
}

/// A bias of the smallest finite number hides a key if other keys have none, but not if all keys have it; -infinity always hides.
fn biases_without_bounds(dev: &Device) -> Result<()> {
    let v = Tensor::new(&[[[[1f32], [2.], [6.]]]], dev)?;
    let k = v.zeros_like()?;
    for (bias, expected) in [
        ([f32::MIN; 3], 3.),
        ([f32::MIN, 0., 0.], 4.),
        ([f32::NEG_INFINITY, f32::MIN, f32::NEG_INFINITY], 2.),
        ([f32::NEG_INFINITY; 3], 0.),
    ] {
        let bias = Tensor::new(&bias, dev)?;
        for queries in [1, 9, 20] {
            let q = Tensor::ones((1, 1, queries, 1), DType::F32, dev)?;
            let options = SdpaOptions {
                bias: Some(&bias),
                ..Default::default()
            };
            let got = sdpa_with(&q, &k, &v, &options)?;
            let case = format!("{bias}, {queries} queries");
            super::common::assert_values(&case, &got, &vec![expected; queries], 1e-6);
        }
    }
    Ok(())
}

candle_core::with_webgpu! {
    /// Every option is in the kernels: one for a call, and one that joins what is cut over the keys.
    #[test]
    fn one_kernel_or_two_webgpu() -> Result<()> {
        let device = super::common::webgpu_without("-coop")?;
        let dev = Device::WebGpu(device.clone());
        let vector = |n: usize| Random(3).tensor(&[n], DType::F32, &dev);
        let (slopes, bias) = (vector(4)?, vector(600)?);
        let lens = Tensor::new(&[9u32, 600], &dev)?;
        for queries in [1, 40] {
            let q = Random(1).tensor(&[2, 4, queries, 32], DType::F32, &dev)?;
            let kv = Random(2).tensor(&[2, 2, 600, 64], DType::F16, &dev)?;
            let k = kv.narrow(3, 0, 32)?;
            let options = SdpaOptions {
                causal: true,
                softcap: Some(3.),
                window: Some(50),
                bias: Some(&bias),
                slopes: Some(&slopes),
                starts: Some(&lens),
                lens: Some(&lens),
                ..Default::default()
            };
            let before = device.stats();
            sdpa_with(&q, &k, &kv, &options)?;
            let after = device.stats();
            let kernels = after.dispatches - before.dispatches;
            assert!((1..=2).contains(&kernels), "{kernels} kernels for {queries} queries");
            // The result has 80 KB for 40 queries, and its parts some times as much; the scores would have 768.
            let grown = after.peak_bytes - before.live_bytes;
            assert!(grown < 700 << 10, "{grown} bytes");
        }
        Ok(())
    }

    /// Operands beyond a binding are composed of tensor ops.
    #[test]
    fn options_past_a_binding_webgpu() -> Result<()> {
        let dev = super::common::small_bindings()?;
        let case = Case {
            window: Some(20),
            causal: true,
            sinks: true,
            lens: Some(vec![60, 70]),
            ..Case::new(DType::F32, 9, 70)
        };
        case.run(1, 2e-5, &dev)
    }
}

test_device!(biases_without_bounds);
test_device!(each_option_alone);
test_device!(options_together);
