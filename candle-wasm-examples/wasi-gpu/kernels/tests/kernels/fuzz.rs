//! Any calls, on a device and on the CPU: the same answers, the same contents, and no panic.

use candle_core::{test_device, Device};
use candle_wasi_gpu::{
    backend, AverageParams, BatchPredictParams, BootstrapParams, BufferId, BufferUsage,
    ElementwiseOp, ElementwiseParams, FindSplitParams, GpuBackend, GpuError, Limits, MatmulParams,
    ReduceOp, ReduceParams, Result,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

const LIMITS: Limits = Limits {
    memory: 4000,
    buffers: 6,
};

/// A call's arguments. Buffers are small numbers, so that most exist.
#[derive(Clone, Debug)]
enum Call {
    Create(u64),
    Write(BufferId, u64, Vec<u8>),
    /// The operands of kernels: floats, or small integers.
    Fill(BufferId, Vec<f32>),
    FillIntegers(BufferId, Vec<u32>),
    Read(BufferId, u64, u32),
    Copy(BufferId, u64, BufferId, u64, u64),
    Destroy(BufferId),
    Sync,
    Bootstrap(BootstrapParams, BufferId),
    FindSplit(FindSplitParams, [BufferId; 5]),
    Average(AverageParams, [BufferId; 2]),
    Matmul(MatmulParams, [BufferId; 3]),
    Elementwise(ElementwiseParams, BufferId, Option<BufferId>, BufferId),
    Reduce(ReduceParams, [BufferId; 2]),
    BatchPredict(BatchPredictParams, [BufferId; 4]),
}

fn buffer() -> impl Strategy<Value = BufferId> {
    prop_oneof![20 => 1u32..7, 1 => select(vec![0, 7, 9, u32::MAX])]
}

fn buffers<const N: usize>() -> impl Strategy<Value = [BufferId; N]>
where
    [BufferId; N]: std::fmt::Debug,
{
    proptest::collection::vec(buffer(), N).prop_map(|ids| ids.try_into().expect("as many"))
}

/// A count or a size: mostly small, sometimes at the end of what can be said.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![
        30 => 0u32..12,
        5 => 0u32..300,
        1 => select(vec![u32::MAX, u32::MAX - 3, 1 << 31, 1 << 30])
    ]
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![
        30 => 0u64..40,
        3 => 0u64..1300,
        1 => select(vec![u64::MAX, u64::MAX - 3, 1 << 63, 1 << 32])
    ]
}

fn float() -> impl Strategy<Value = f32> {
    prop_oneof![
        20 => -4f32..4.,
        2 => (-2i8..3).prop_map(f32::from),
        1 => select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.])
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let floats = proptest::collection::vec(float(), 1..40);
    // Small ones, the mark of a leaf, and floats from 0.5 to 8.
    let integer = prop_oneof![6 => 0u32..5, 2 => Just(u32::MAX), 1 => 0x3f00_0000u32..0x4100_0000];
    let integers = proptest::collection::vec(integer, 1..40);
    let bytes = proptest::collection::vec(any::<u8>(), 0..30);
    let op = select(vec![
        ElementwiseOp::Relu,
        ElementwiseOp::Sigmoid,
        ElementwiseOp::Tanh,
        ElementwiseOp::Add,
        ElementwiseOp::Mul,
        ElementwiseOp::Sqrt,
        ElementwiseOp::Exp,
        ElementwiseOp::Log,
    ]);
    let reduce = select(vec![
        ReduceOp::Sum,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Mean,
        ReduceOp::Variance,
    ]);
    let memory = prop_oneof![
        4 => prop_oneof![100u64..1200, place()].prop_map(Call::Create),
        3 => (buffer(), place(), bytes).prop_map(|(id, at, data)| Call::Write(id, at, data)),
        6 => (buffer(), floats).prop_map(|(id, data)| Call::Fill(id, data)),
        6 => (buffer(), integers).prop_map(|(id, data)| Call::FillIntegers(id, data)),
        3 => (buffer(), place(), count()).prop_map(|(id, at, size)| Call::Read(id, at, size)),
        4 => (buffer(), place(), buffer(), place(), place())
            .prop_map(|(src, from, dst, to, size)| Call::Copy(src, from, dst, to, size)),
        1 => buffer().prop_map(Call::Destroy),
        1 => Just(Call::Sync),
    ];
    let kernels = prop_oneof![
        2 => (count(), any::<u32>(), count(), buffer()).prop_map(|(n_samples, seed, max_index, id)| {
            Call::Bootstrap(BootstrapParams { n_samples, seed, max_index }, id)
        }),
        4 => ((count(), count(), 0u32..4, count()), buffers()).prop_map(|(counts, ids)| {
            let (n_samples, n_features, feature_idx, n_thresholds) = counts;
            Call::FindSplit(FindSplitParams { n_samples, n_features, feature_idx, n_thresholds }, ids)
        }),
        2 => (count(), count(), buffers()).prop_map(|(n_trees, n_samples, ids)| {
            Call::Average(AverageParams { n_trees, n_samples }, ids)
        }),
        3 => ([count(), count(), count()], any::<[bool; 2]>(), float(), float(), buffers()).prop_map(
            |([m, k, n], [trans_a, trans_b], alpha, beta, ids)| {
                Call::Matmul(MatmulParams { m, k, n, trans_a, trans_b, alpha, beta }, ids)
            }
        ),
        3 => (count(), op, buffer(), proptest::option::of(buffer()), buffer()).prop_map(
            |(n_elements, op, a, b, output)| {
                Call::Elementwise(ElementwiseParams { n_elements, op }, a, b, output)
            }
        ),
        3 => (count(), reduce, buffers()).prop_map(|(n_elements, op, ids)| {
            Call::Reduce(ReduceParams { n_elements, op }, ids)
        }),
        4 => ([count(), count(), count(), count()], buffers()).prop_map(|(counts, ids)| {
            let [batch_size, n_features, n_trees, max_depth] = counts;
            Call::BatchPredict(BatchPredictParams { batch_size, n_features, n_trees, max_depth }, ids)
        }),
    ];
    prop_oneof![memory, kernels]
}

/// Makes a call; its answer as bytes.
fn make(gpu: &dyn GpuBackend, call: &Call) -> Result<Vec<u8>> {
    let done = |result: Result<()>| result.map(|()| Vec::new());
    match call.clone() {
        Call::Create(size) => {
            let id = gpu.buffer_create(size, BufferUsage::STORAGE)?;
            Ok(id.to_le_bytes().to_vec())
        }
        Call::Write(id, offset, data) => done(gpu.buffer_write(id, offset, &data)),
        Call::Fill(id, data) => {
            let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
            done(gpu.buffer_write(id, 0, &bytes))
        }
        Call::FillIntegers(id, data) => {
            let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
            done(gpu.buffer_write(id, 0, &bytes))
        }
        Call::Read(id, offset, size) => gpu.buffer_read(id, offset, size),
        Call::Copy(src, from, dst, to, size) => done(gpu.buffer_copy(src, from, dst, to, size)),
        Call::Destroy(id) => done(gpu.buffer_destroy(id)),
        Call::Sync => {
            gpu.sync();
            Ok(Vec::new())
        }
        Call::Bootstrap(params, id) => done(gpu.kernel_bootstrap_sample(params, id)),
        Call::FindSplit(params, [a, b, c, d, e]) => {
            done(gpu.kernel_find_split(params, a, b, c, d, e))
        }
        Call::Average(params, [a, b]) => done(gpu.kernel_average(params, a, b)),
        Call::Matmul(params, [a, b, c]) => done(gpu.kernel_matmul(params, a, b, c)),
        Call::Elementwise(params, a, b, c) => done(gpu.kernel_elementwise(params, a, b, c)),
        Call::Reduce(params, [a, b]) => done(gpu.kernel_reduce(params, a, b)),
        Call::BatchPredict(params, [a, b, c, d]) => {
            done(gpu.kernel_batch_predict(params, a, b, c, d))
        }
    }
}

impl Call {
    /// The buffer that a kernel writes floats to, which may be rounded in another way.
    fn rounded(&self) -> Option<BufferId> {
        Some(match self {
            Self::FindSplit(_, [.., output])
            | Self::Average(_, [.., output])
            | Self::Matmul(_, [.., output])
            | Self::Elementwise(_, _, _, output)
            | Self::Reduce(_, [.., output])
            | Self::BatchPredict(_, [.., output]) => *output,
            _ => return None,
        })
    }

    /// Maximum difference of the device's floats from the CPU's, for sums with numbers of this size.
    fn tolerance(&self, size: f32) -> f32 {
        match self {
            // Relative to the node's squared error: at most the sum of all squares.
            Self::FindSplit(..) => 1e-5 * size * size * 300. + 1e-30,
            Self::Matmul(..) => 1e-4 * size * size * 12. + 1e-30,
            Self::Reduce(..) => 1e-4 * size * size.max(1.) + 1e-30,
            _ => 1e-5 * size + 1e-6,
        }
    }
}

fn all(gpu: &dyn GpuBackend, id: BufferId, bytes: u32) -> Vec<u8> {
    gpu.buffer_read(id, 0, bytes)
        .expect("a buffer of that size")
}

/// Makes the calls on both; a text says what differs.
fn differs(gpu: &dyn GpuBackend, cpu: &dyn GpuBackend, calls: &[Call]) -> Option<String> {
    let mut sizes = std::collections::BTreeMap::new();
    for (number, call) in calls.iter().enumerate() {
        let (mut got, want) = (make(gpu, call), make(cpu, call));
        let is_fault = matches!(want, Err(GpuError::KernelError(_)));
        if is_fault && got.is_ok() {
            // A GPU says so later; which of several faults it is, it may choose.
            let (id, _) = sizes.first_key_value()?;
            got = gpu.buffer_read(*id, 0, 0);
        }
        let same = match (&got, &want) {
            (Err(GpuError::KernelError(_)), Err(GpuError::KernelError(_))) => true,
            _ => got == want,
        };
        if !same {
            return Some(format!("call {number}, {call:?}: {got:?}, not {want:?}"));
        }
        match (call, &want) {
            (Call::Create(size), Ok(id)) => {
                let id = BufferId::from_le_bytes(id[..].try_into().expect("4 bytes"));
                sizes.insert(id, *size as u32);
            }
            (Call::Destroy(id), Ok(_)) => {
                sizes.remove(id);
            }
            _ => {}
        }
        let Some(output) = call.rounded().filter(|_| want.is_ok() || is_fault) else {
            continue;
        };
        // After a fault, scores are anything; predictions are not.
        let is_open = is_fault && matches!(call, Call::FindSplit(..));
        let bytes = sizes[&output];
        let (got, want) = (all(gpu, output, bytes), all(cpu, output, bytes));
        let words = |bytes: &[u8]| -> Vec<f32> {
            let words = bytes.chunks_exact(4);
            words
                .map(|word| f32::from_le_bytes(word.try_into().expect("4 bytes")))
                .collect()
        };
        let values = sizes.iter();
        let values: Vec<f32> = values
            .flat_map(|(id, bytes)| words(&all(cpu, *id, *bytes)))
            .filter(|x| x.is_finite())
            .collect();
        let size = values.iter().fold(1f32, |most, x| most.max(x.abs()));
        let tolerance = call.tolerance(size);
        // Bytes written by chance can be huge floats. Where those are added up, f32 and f64 have little in common.
        let is_open = is_open || size > 1e6;
        for (i, (got, want)) in words(&got).into_iter().zip(words(&want)).enumerate() {
            // A GPU may take subnormal numbers for 0, and their logarithm for that of the least normal one.
            let is_of_subnormal = matches!(
                call,
                Call::Elementwise(params, ..) if params.op == ElementwiseOp::Log && want < -87.
            );
            let near = got.to_bits() == want.to_bits()
                || is_of_subnormal && got < -87.
                || got.is_nan() && want.is_nan()
                || (got - want).abs() <= tolerance;
            if !near && !is_open {
                return Some(format!(
                    "call {number}, {call:?}: word {i} is {got}, not {want} ± {tolerance}"
                ));
            }
        }
        // Both go on from the same bits.
        cpu.buffer_write(output, 0, &got)
            .expect("a buffer of that size");
    }
    for (id, bytes) in sizes {
        if all(gpu, id, bytes) != all(cpu, id, bytes) {
            return Some(format!("buffer {id} differs at the end"));
        }
    }
    None
}

fn as_on_the_cpu(device: &Device) -> Result<()> {
    let cases = if cfg!(debug_assertions) { 150 } else { 1000 };
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    // The first buffers, so that calls find some.
    let start = [900, 700, 400, 200].map(Call::Create);
    let calls = proptest::collection::vec(call(), 1..60);
    let run = TestRunner::new_with_rng(
        config.clone(),
        proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm),
    )
    .run(&calls, |calls| {
        let (gpu, cpu) = (backend(device, LIMITS), backend(&Device::Cpu, LIMITS));
        let (gpu, cpu) = (gpu.expect("a device"), cpu.expect("the CPU"));
        let calls = [&start[..], &calls[..]].concat();
        match differs(&*gpu, &*cpu, &calls) {
            Some(text) => Err(TestCaseError::fail(text)),
            None => Ok(()),
        }
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
    Ok(())
}
test_device!(as_on_the_cpu);
