//! Compares the functions that the backend implements in inline PTX with plain arithmetic.
#![cfg(unix)]

mod common;
use common::Gpu;

/// A lane's fragments, loaded by the layouts of the PTX manual from row-major A (m x k) and column-major B (n x k).
const PRODUCTS: &str = r#"
#define G (threadIdx.x / 4)
#define T (threadIdx.x % 4)
__device__ unsigned pair(const unsigned short* m, int k, int row, int column) {
    return *(const unsigned*)(m + row * k + column);
}
__device__ void store(float* out, const float (&d)[4]) {
    for (int i = 0; i < 4; i++) out[(G + i / 2 * 8) * 8 + T * 2 + i % 2] = d[i];
}
extern "C" __global__ void f16(const unsigned short* a, const unsigned short* b, float* out) {
    float d[4] = {1, 1, 1, 1};
    unsigned fa[4] = {pair(a, 16, G, 2 * T), pair(a, 16, G + 8, 2 * T), pair(a, 16, G, 2 * T + 8), pair(a, 16, G + 8, 2 * T + 8)};
    unsigned fb[2] = {pair(b, 16, G, 2 * T), pair(b, 16, G, 2 * T + 8)};
    mma_m16n8k16_f16(d, fa, fb);
    store(out, d);
}
extern "C" __global__ void bf16(const unsigned short* a, const unsigned short* b, float* out) {
    float d[4] = {1, 1, 1, 1};
    unsigned fa[4] = {pair(a, 16, G, 2 * T), pair(a, 16, G + 8, 2 * T), pair(a, 16, G, 2 * T + 8), pair(a, 16, G + 8, 2 * T + 8)};
    unsigned fb[2] = {pair(b, 16, G, 2 * T), pair(b, 16, G, 2 * T + 8)};
    mma_m16n8k16_bf16(d, fa, fb);
    store(out, d);
}
extern "C" __global__ void f16_short(const unsigned short* a, const unsigned short* b, float* out) {
    float d[4] = {1, 1, 1, 1};
    for (int k = 0; k < 16; k += 8) {
        unsigned fa[2] = {pair(a, 16, G, 2 * T + k), pair(a, 16, G + 8, 2 * T + k)};
        mma_m16n8k8_f16(d, fa, pair(b, 16, G, 2 * T + k));
    }
    store(out, d);
}
extern "C" __global__ void tf32(const unsigned* a, const unsigned* b, float* out) {
    float d[4] = {1, 1, 1, 1};
    unsigned fa[4] = {a[G * 8 + T], a[(G + 8) * 8 + T], a[G * 8 + T + 4], a[(G + 8) * 8 + T + 4]};
    unsigned fb[2] = {b[G * 8 + T], b[G * 8 + T + 4]};
    mma_m16n8k8_tf32(d, fa, fb);
    store(out, d);
}
extern "C" __global__ void s8(const unsigned* a, const unsigned* b, int* out) {
    int d[4] = {1, 1, 1, 1}, e[2] = {1, 1};
    unsigned fa[4] = {a[G * 8 + T], a[(G + 8) * 8 + T], a[G * 8 + T + 4], a[(G + 8) * 8 + T + 4]};
    unsigned fb[2] = {b[G * 8 + T], b[G * 8 + T + 4]};
    mma_m16n8k32_s8(d, fa, fb);
    mma_m8n8k16_s8(e, fa[0], fb[0]);
    mma_m8n8k16_s8(e, fa[2], fb[1]);
    for (int i = 0; i < 4; i++) out[(G + i / 2 * 8) * 8 + T * 2 + i % 2] = d[i];
    for (int i = 0; i < 2; i++) out[128 + G * 8 + T * 2 + i] = e[i];
}
"#;

/// Small integers of both signs, exact in every format.
fn small(i: usize) -> i32 {
    (i * 7 % 23) as i32 - 11
}

fn expected(k: usize) -> Vec<i32> {
    let product = |i: usize| {
        (0..k)
            .map(|j| small(i / 8 * k + j) * small(i % 8 * k + j + 5))
            .sum::<i32>()
    };
    (0..128).map(|i| 1 + product(i)).collect()
}

fn operands<T>(k: usize, of: impl Fn(i32) -> T) -> (Vec<T>, Vec<T>) {
    (
        (0..16 * k).map(|i| of(small(i))).collect(),
        (0..8 * k).map(|i| of(small(i + 5))).collect(),
    )
}

fn bf16(v: i32) -> u16 {
    ((v as f32).to_bits() >> 16) as u16
}

fn f16(v: i32) -> u16 {
    let bits = (v as f32).to_bits();
    if v == 0 {
        0
    } else {
        ((bits >> 16) & 0x8000 | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13) as u16
    }
}

#[test]
fn products_of_floats() {
    let gpu = Gpu::new();
    let out = gpu.alloc(4 * 128);
    let found = |name: &str, a: usize, b: usize| {
        gpu.write(out, &[f32::NAN; 128]);
        let function = gpu.function(PRODUCTS, name);
        assert_eq!(
            gpu.launch(function, 1, 32, 0, &[a as u64, b as u64, out as u64]),
            0
        );
        gpu.read::<f32>(out, 128)
            .iter()
            .map(|v| *v as i32)
            .collect::<Vec<i32>>()
    };
    let (a, b) = operands(16, f16);
    let (a, b) = (gpu.upload(&a), gpu.upload(&b));
    assert_eq!(found("f16", a, b), expected(16));
    assert_eq!(found("f16_short", a, b), expected(16));
    let (a, b) = operands(16, bf16);
    assert_eq!(found("bf16", gpu.upload(&a), gpu.upload(&b)), expected(16));
    // The low bits are ignored.
    let (a, b) = operands(8, |v| (v as f32).to_bits() | 0x1fff);
    assert_eq!(found("tf32", gpu.upload(&a), gpu.upload(&b)), expected(8));
}

#[test]
fn products_of_bytes() {
    let gpu = Gpu::new();
    let (a, b) = operands(32, |v| v as i8);
    let (a, b, out) = (gpu.upload(&a), gpu.upload(&b), gpu.alloc(4 * 192));
    let function = gpu.function(PRODUCTS, "s8");
    assert_eq!(
        gpu.launch(function, 1, 32, 0, &[a as u64, b as u64, out as u64]),
        0
    );
    let found = gpu.read::<i32>(out, 192);
    assert_eq!(found[..128], expected(32));
    assert_eq!(found[128..], expected(32)[..64]);
}

#[test]
fn rows_of_shared_matrices() {
    let text = r#"
    extern "C" __global__ void rows(const uint4* x, unsigned* out) {
        __shared__ __align__(16) unsigned short s[32 * 8];
        unsigned t = threadIdx.x;
        copy_async_16(s + t * 8, x + t, t != 31);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        unsigned four[4], turned[4], two[2], two_turned[2];
        ldmatrix_x4(four, s + t * 8);
        ldmatrix_x4_trans(turned, s + t * 8);
        ldmatrix_x2(two, s + t % 16 * 8);
        ldmatrix_x2_trans(two_turned, s + t % 16 * 8);
        for (int i = 0; i < 4; i++) out[t * 12 + i] = four[i], out[t * 12 + 4 + i] = turned[i];
        for (int i = 0; i < 2; i++) out[t * 12 + 8 + i] = two[i], out[t * 12 + 10 + i] = two_turned[i];
    }"#;
    let gpu = Gpu::new();
    let mut x: Vec<u16> = (0..256).collect();
    let (device, out) = (gpu.upload(&x), gpu.alloc(4 * 12 * 32));
    let function = gpu.function(text, "rows");
    assert_eq!(
        gpu.launch(function, 1, 32, 0, &[device as u64, out as u64]),
        0
    );
    let found = gpu.read::<u32>(out, 12 * 32);
    x[248..].fill(0);
    let pair = |low: usize, high: usize| u32::from(x[low]) | u32::from(x[high]) << 16;
    for lane in 0..32 {
        let (outer, inner) = (lane / 4, lane % 4 * 2);
        let plain: Vec<u32> = (0..4)
            .map(|i| pair(i * 64 + outer * 8 + inner, i * 64 + outer * 8 + inner + 1))
            .collect();
        let turned: Vec<u32> = (0..4)
            .map(|i| pair(i * 64 + inner * 8 + outer, i * 64 + (inner + 1) * 8 + outer))
            .collect();
        let wanted = [&plain[..], &turned[..], &plain[..2], &turned[..2]].concat();
        assert_eq!(found[lane * 12..][..12], wanted, "lane {lane}");
    }
}

#[test]
fn a_copy_that_is_not_waited_for_is_not_there() {
    let text = r#"
    extern "C" __global__ void early(const uint4* x, unsigned* out) {
        __shared__ uint4 s[2];
        copy_async_16(s, x, true);
        copy_async_commit();
        copy_async_16(s + 1, x, true);
        copy_async_commit();
        copy_async_wait<1>();
        out[0] = s[0].x, out[1] = s[1].x;
    }"#;
    let gpu = Gpu::new();
    let (x, out) = (gpu.upload(&[7u32; 4]), gpu.alloc(8));
    assert_eq!(
        gpu.launch(
            gpu.function(text, "early"),
            1,
            1,
            0,
            &[x as u64, out as u64]
        ),
        0
    );
    assert_eq!(gpu.read::<u32>(out, 2), [7, u32::MAX]);
}

const CONVERT: &str = r#"
extern "C" __global__ void convert(const double* x, unsigned short* out, float* back) {
    double v = x[threadIdx.x];
    unsigned short* own = out + 4 * threadIdx.x;
    own[0] = float_to_f16((float)v), own[1] = float_to_bf16((float)v);
    own[2] = double_to_f16(v), own[3] = double_to_bf16(v);
    back[threadIdx.x * 2] = f16_to_float(own[0]), back[threadIdx.x * 2 + 1] = bf16_to_float(own[1]);
}
extern "C" __global__ void fma_pairs(unsigned* x) { x[0] = fma_f16x2(x[0], x[1], x[2]); }
"#;

#[test]
fn sixteen_bits_round_to_nearest_even() {
    let tiny = 2f64.powi(-24);
    // Value, f16 of the float, bf16 of the float, f16 and bf16 of the double.
    let cases: &[(f64, [u16; 4])] = &[
        (0.0, [0, 0, 0, 0]),
        (-0.0, [0x8000; 4]),
        (1.0, [0x3c00, 0x3f80, 0x3c00, 0x3f80]),
        (-2.5, [0xc100, 0xc020, 0xc100, 0xc020]),
        (65504.0, [0x7bff, 0x4780, 0x7bff, 0x4780]),
        (65519.999, [0x7c00, 0x4780, 0x7bff, 0x4780]),
        (65520.0, [0x7c00, 0x4780, 0x7c00, 0x4780]),
        (1e39, [0x7c00, 0x7f80, 0x7c00, 0x7f80]),
        (f64::NEG_INFINITY, [0xfc00, 0xff80, 0xfc00, 0xff80]),
        (f64::NAN, [0x7fff, 0x7fff, 0x7e00, 0x7fff]),
        (tiny, [1, 0x3380, 1, 0x3380]),
        (tiny / 2.0, [0, 0x3300, 0, 0x3300]),
        (tiny * 1.5, [2, 0x33c0, 2, 0x33c0]),
        (tiny * 1023.5, [0x400, 0x3880, 0x400, 0x3880]),
        // Ties, down and up to even, and just above one by less than a float shows.
        (1.0 + 2f64.powi(-11), [0x3c00, 0x3f80, 0x3c00, 0x3f80]),
        (1.0 + 3.0 * 2f64.powi(-11), [0x3c02, 0x3f80, 0x3c02, 0x3f80]),
        (
            1.0 + 2f64.powi(-11) + 2f64.powi(-40),
            [0x3c00, 0x3f80, 0x3c01, 0x3f80],
        ),
        (1.0 + 2f64.powi(-8), [0x3c04, 0x3f80, 0x3c04, 0x3f80]),
        (
            1.0 + 2f64.powi(-8) + 2f64.powi(-40),
            [0x3c04, 0x3f80, 0x3c04, 0x3f81],
        ),
        (
            1.0 + 3.0 * 2f64.powi(-8) - 2f64.powi(-40),
            [0x3c0c, 0x3f82, 0x3c0c, 0x3f81],
        ),
    ];
    let gpu = Gpu::new();
    let x: Vec<f64> = cases.iter().map(|case| case.0).collect();
    let n = x.len();
    let (x, out, back) = (gpu.upload(&x), gpu.alloc(8 * n), gpu.alloc(8 * n));
    let function = gpu.function(CONVERT, "convert");
    assert_eq!(
        gpu.launch(
            function,
            1,
            n as u32,
            0,
            &[x as u64, out as u64, back as u64]
        ),
        0
    );
    let (found, back) = (gpu.read::<u16>(out, 4 * n), gpu.read::<f32>(back, 2 * n));
    for (i, (value, wanted)) in cases.iter().enumerate() {
        assert_eq!(found[4 * i..][..4], *wanted, "{value:e}");
        if value.abs() == 2.5 || value.is_infinite() || *value == tiny {
            assert_eq!(back[2 * i..][..2], [*value as f32; 2]);
        }
        assert_eq!(back[2 * i].is_nan(), value.is_nan());
    }
    // 1.5 * 2 + 0.25 and -1 * 1 + inf.
    let x = gpu.upload(&[0xbc00_3e00u32, 0x3c00_4000, 0x7c00_3400]);
    assert_eq!(
        gpu.launch(gpu.function(CONVERT, "fma_pairs"), 1, 1, 0, &[x as u64]),
        0
    );
    assert_eq!(gpu.read::<u32>(x, 1), [0x7c00_4280]);
}
