//! Kernels with known results, and launches that are rejected.
#![cfg(unix)]

mod common;
use candle_cuda_emulator::module::cuFuncSetAttribute;
use common::{compile, Gpu};

const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
const ILLEGAL_ADDRESS: u32 = 700;

const ADD: &str = r#"
#define KERNEL(NAME, T, OP) \
    extern "C" __global__ void __launch_bounds__(256) NAME(const T* __restrict__ a, const T* b, T* out, unsigned n) { \
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x; \
        if (i < n) out[i] = a[i] OP b[i]; \
    }
KERNEL(add_f32, float, +)
KERNEL(mul_f64, double, *)
"#;

#[test]
fn vectors_by_a_macro() {
    let gpu = Gpu::new();
    for n in [1usize, 255, 256, 257, 100_003] {
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
        let (a, b, out) = (gpu.upload(&a), gpu.upload(&b), gpu.alloc(4 * n));
        let function = gpu.function(ADD, "add_f32");
        let parameters = [a as u64, b as u64, out as u64, n as u64];
        assert_eq!(
            gpu.launch(function, n.div_ceil(256) as u32, 256, 0, &parameters),
            0
        );
        let found: Vec<f32> = gpu.read(out, n);
        assert!(found.iter().enumerate().all(|(i, v)| *v == 1.5 * i as f32));
    }
    let (a, b, out) = (
        gpu.upload(&[3.0f64, 4.0]),
        gpu.upload(&[0.5f64, 8.0]),
        gpu.alloc(16),
    );
    let function = gpu.function(ADD, "mul_f64");
    assert_eq!(
        gpu.launch(function, 1, 2, 0, &[a as u64, b as u64, out as u64, 2]),
        0
    );
    assert_eq!(gpu.read::<f64>(out, 2), [1.5, 32.0]);
}

#[test]
fn reduction_by_shuffles_and_barriers() {
    let text = r#"
    extern "C" __global__ void sum(const float* x, float* out, int n) {
        __shared__ float part[32];
        float own = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) own += x[i];
        for (int d = 16; d; d /= 2) own += __shfl_xor_sync(0xffffffff, own, d);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = own;
        __syncthreads();
        if (threadIdx.x < 32) {
            own = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
            for (int d = 16; d; d /= 2) own += __shfl_down_sync(0xffffffff, own, d);
            if (threadIdx.x == 0) out[blockIdx.x] = own;
        }
    }"#;
    let gpu = Gpu::new();
    let function = gpu.function(text, "sum");
    let x: Vec<f32> = (0..5000).map(|i| (i % 7) as f32).collect();
    let (device, out) = (gpu.upload(&x), gpu.alloc(4 * 3));
    for threads in [32, 256, 1024] {
        assert_eq!(
            gpu.launch(function, 3, threads, 0, &[device as u64, out as u64, 5000]),
            0
        );
        assert_eq!(gpu.read::<f32>(out, 3), [x.iter().sum::<f32>(); 3]);
    }
}

#[test]
fn lanes_vote_and_exchange() {
    let text = r#"
    extern "C" __global__ void lanes(unsigned* out) {
        unsigned t = threadIdx.x;
        unsigned odd = __ballot_sync(0xffffffff, t & 1);
        unsigned from = __shfl_sync(0xffffffff, t, 5, 8);
        unsigned up = __shfl_up_sync(0xffffffff, t, 3);
        unsigned half = t < 16 ? __reduce_add_sync(0x0000ffff, t) : __reduce_add_sync(0xffff0000, t);
        unsigned long long wide = __shfl_sync(0xffffffff, (unsigned long long)t << 40, 31);
        int all = __all_sync(0xffffffff, t < 32), any = __any_sync(0xffffffff, t == 40);
        out[t * 5] = odd, out[t * 5 + 1] = from, out[t * 5 + 2] = up, out[t * 5 + 3] = half;
        out[t * 5 + 4] = (unsigned)(wide >> 40) + 100 * all + 1000 * any;
        int holding = __syncthreads_count(t % 3 == 0);
        if (t == 0) out[160] = holding + 100 * __popc(0xf0f) + (__dp4a(0x01ff0203, 0x02020202, 1) << 16);
    }"#;
    let gpu = Gpu::new();
    let (function, out) = (gpu.function(text, "lanes"), gpu.alloc(4 * 161));
    assert_eq!(gpu.launch(function, 1, 32, 0, &[out as u64]), 0);
    let found: Vec<u32> = gpu.read(out, 161);
    for t in 0..32u32 {
        let half = if t < 16 { 120 } else { 376 };
        let expected = [
            0xaaaa_aaaa,
            t / 8 * 8 + 5,
            if t < 3 { t } else { t - 3 },
            half,
            131,
        ];
        assert_eq!(found[t as usize * 5..][..5], expected, "lane {t}");
    }
    // 2 (1 - 1 + 2 + 3) + 1.
    assert_eq!(found[160], 11 + 800 + (11 << 16));
}

#[test]
fn atomics_of_many_blocks() {
    let text = r#"
    extern "C" __global__ void count(float* f, double* d, unsigned* u, unsigned long long* l, int* most, unsigned short* h) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(f, 1.0f); atomicAdd(d, 0.5); atomicAdd(u, 2u); atomicAdd(l, 1ull << 33); atomicMax(most, i);
        unsigned short seen = *h, before;
        do { before = seen; seen = atomicCAS(h, before, (unsigned short)(before + 1)); } while (seen != before);
    }"#;
    let gpu = Gpu::new();
    let function = gpu.function(text, "count");
    let n = 256 * 200u64;
    let (f, d, u) = (
        gpu.upload(&[0f32]),
        gpu.upload(&[0f64]),
        gpu.upload(&[0u32]),
    );
    let (l, most, h) = (
        gpu.upload(&[0u64]),
        gpu.upload(&[-1i32]),
        gpu.upload(&[0u16]),
    );
    let parameters = [f, d, u, l, most, h].map(|pointer| pointer as u64);
    assert_eq!(gpu.launch(function, 200, 256, 0, &parameters), 0);
    assert_eq!(gpu.read::<f32>(f, 1), [n as f32]);
    assert_eq!(gpu.read::<f64>(d, 1), [n as f64 / 2.0]);
    assert_eq!(gpu.read::<u32>(u, 1), [2 * n as u32]);
    assert_eq!(gpu.read::<u64>(l, 1), [n << 33]);
    assert_eq!(gpu.read::<i32>(most, 1), [n as i32 - 1]);
    assert_eq!(gpu.read::<u16>(h, 1), [n as u16]);
}

const REVERSE: &str = r#"
extern __shared__ __align__(16) unsigned char everywhere[];
extern "C" __global__ void reverse(int* x, int n) {
    extern __shared__ int part[];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[n - 1 - threadIdx.x];
}
extern "C" __global__ void untouched(float* x) { x[threadIdx.x] = ((float*)everywhere)[threadIdx.x]; }
extern "C" __global__ void large(float* x) {
    __shared__ float own[8192];
    own[threadIdx.x] = 1;
    x[threadIdx.x] = own[threadIdx.x + 1];
}
"#;

#[test]
fn dynamic_shared_memory_and_its_limits() {
    let gpu = Gpu::new();
    let function = gpu.function(REVERSE, "reverse");
    let x = gpu.upload(&(0..512).collect::<Vec<i32>>());
    assert_eq!(gpu.launch(function, 1, 512, 2048, &[x as u64, 512]), 0);
    assert_eq!(
        gpu.read::<i32>(x, 512),
        (0..512).rev().collect::<Vec<i32>>()
    );

    assert_eq!(
        gpu.launch(function, 1, 512, (48 << 10) + 4, &[x as u64, 512]),
        INVALID_VALUE
    );
    assert_eq!(cuFuncSetAttribute(function, 8, 163 << 10), 0);
    assert_eq!(gpu.launch(function, 1, 512, 163 << 10, &[x as u64, 512]), 0);
    assert_eq!(
        cuFuncSetAttribute(function, 8, (163 << 10) + 1),
        INVALID_VALUE
    );

    // It declares 32 KiB.
    let large = gpu.function(REVERSE, "large");
    assert_eq!(gpu.launch(large, 1, 1, 16 << 10, &[x as u64]), 0);
    assert_eq!(
        gpu.launch(large, 1, 1, (16 << 10) + 4, &[x as u64]),
        INVALID_VALUE
    );
}

#[test]
fn what_nobody_wrote_is_nan() {
    let gpu = Gpu::new();
    let x = gpu.alloc(4 * 32);
    assert!(gpu.read::<f32>(x, 32).iter().all(|v| v.is_nan()));
    for name in ["untouched", "large"] {
        let function = gpu.function(REVERSE, name);
        gpu.write(x, &[0f32; 32]);
        assert_eq!(gpu.launch(function, 1, 1, 128, &[x as u64]), 0);
        assert!(gpu.read::<f32>(x, 1)[0].is_nan(), "{name}");
    }
}

#[test]
fn refused_launches() {
    let gpu = Gpu::new();
    let function = gpu.function(REVERSE, "untouched");
    let x = gpu.alloc(4 * 2048) as u64;
    assert_eq!(gpu.launch(function, 1, 1025, 0, &[x]), INVALID_VALUE);
    assert_eq!(gpu.launch(function, 0, 32, 0, &[x]), INVALID_VALUE);
    assert_eq!(gpu.launch(0, 1, 32, 0, &[x]), INVALID_HANDLE);
    // Host memory.
    let host = [0f32; 32];
    assert_eq!(
        gpu.launch(function, 1, 32, 128, &[host.as_ptr() as u64]),
        ILLEGAL_ADDRESS
    );
    let bounded = gpu.function(ADD, "add_f32");
    assert_eq!(gpu.launch(bounded, 1, 257, 0, &[x, x, x, 1]), INVALID_VALUE);
}

#[test]
fn errors_are_in_the_log() {
    let log = compile(
        "extern \"C\" __global__ void k(float* x) { x[0] = missing; }",
        &["-arch=sm_80"],
    )
    .unwrap_err();
    assert!(
        log.contains("missing") && log.contains("kernel.cu:1"),
        "{log}"
    );
    let given = compile(
        "extern \"C\" __global__ void k(float* x) { x[0] = VALUE; }",
        &["-arch=sm_80", "-DVALUE=2.0f"],
    );
    assert!(given.is_ok());
}
