//! What is tried on the kernels.

use crate::gpu::compute::{self, BufferId, GpuError};
use crate::gpu::ml_kernels as ml;
use crate::{create, filled, words, Log};

const MAX: u32 = u32::MAX;
const LEAF: u32 = u32::MAX;

fn bootstrap(n_samples: u32, seed: u32, max_index: u32, output: BufferId) -> Result<(), GpuError> {
    let params = ml::BootstrapParams {
        n_samples,
        seed,
        max_index,
    };
    ml::kernel_bootstrap_sample(params, output)
}

/// `[n_samples, n_features, feature_idx, n_thresholds]`; data, labels, indices, thresholds, scores.
fn find_split(params: [u32; 4], buffers: [BufferId; 5]) -> Result<(), GpuError> {
    let [n_samples, n_features, feature_idx, n_thresholds] = params;
    let [data, labels, indices, thresholds, scores] = buffers;
    let params = ml::FindSplitParams {
        n_samples,
        n_features,
        feature_idx,
        n_thresholds,
    };
    ml::kernel_find_split(params, data, labels, indices, thresholds, scores)
}

fn average(n_trees: u32, n_samples: u32, buffers: [BufferId; 2]) -> Result<(), GpuError> {
    let params = ml::AverageParams { n_trees, n_samples };
    ml::kernel_average(params, buffers[0], buffers[1])
}

/// `[m, k, n]`; `[alpha, beta]`; a, b, c.
fn matmul(sizes: [u32; 3], factors: [f32; 2], buffers: [BufferId; 3]) -> Result<(), GpuError> {
    let ([m, k, n], [alpha, beta]) = (sizes, factors);
    let params = ml::MatmulParams {
        m,
        k,
        n,
        trans_a: false,
        trans_b: true,
        alpha,
        beta,
    };
    ml::kernel_matmul(params, buffers[0], buffers[1], buffers[2])
}

fn elementwise(
    n_elements: u32,
    op: ml::ElementwiseOp,
    a: BufferId,
    b: Option<BufferId>,
    output: BufferId,
) -> Result<(), GpuError> {
    ml::kernel_elementwise(ml::ElementwiseParams { n_elements, op }, a, b, output)
}

fn reduce(n_elements: u32, op: ml::ReduceOp, buffers: [BufferId; 2]) -> Result<(), GpuError> {
    ml::kernel_reduce(ml::ReduceParams { n_elements, op }, buffers[0], buffers[1])
}

/// `[batch_size, n_features, n_trees, max_depth]`; samples, nodes, offsets, output.
fn batch_predict(params: [u32; 4], buffers: [BufferId; 4]) -> Result<(), GpuError> {
    let [batch_size, n_features, n_trees, max_depth] = params;
    let params = ml::BatchPredictParams {
        batch_size,
        n_features,
        n_trees,
        max_depth,
    };
    ml::kernel_batch_predict(params, buffers[0], buffers[1], buffers[2], buffers[3])
}

/// `good` with `name` at one index.
fn one_bad<const N: usize>(good: [BufferId; N], at: usize, name: BufferId) -> [BufferId; N] {
    let mut buffers = good;
    buffers[at] = name;
    buffers
}

/// Buffers of 64 zeros, all different.
fn several<const N: usize>() -> Result<[BufferId; N], GpuError> {
    let mut buffers = [0; N];
    for buffer in &mut buffers {
        *buffer = create(256)?;
    }
    Ok(buffers)
}

/// Each kernel with `name` for each of its buffers.
pub(crate) fn with_one_bad_buffer(
    log: &mut Log,
    who: &str,
    name: BufferId,
) -> Result<(), GpuError> {
    let good = several::<5>()?;
    let [a, b, c, d, _] = good;
    let add = ml::ElementwiseOp::Add;
    let sum = ml::ReduceOp::Sum;
    let mut call = |kernel: &str, at: usize, result: Result<(), GpuError>| {
        log.call(&format!("{kernel} with {who} as buffer {at}"), result);
    };
    call("kernel-bootstrap-sample", 0, bootstrap(4, 1, 4, name));
    for at in 0..5 {
        let result = find_split([4, 1, 0, 1], one_bad(good, at, name));
        call("kernel-find-split", at, result);
    }
    for at in 0..2 {
        let result = average(2, 4, one_bad([a, b], at, name));
        call("kernel-average", at, result);
    }
    for at in 0..3 {
        let result = matmul([2, 2, 2], [1.0, 0.0], one_bad([a, b, c], at, name));
        call("kernel-matmul", at, result);
    }
    for at in 0..3 {
        let [a, b, c] = one_bad([a, b, c], at, name);
        call("kernel-elementwise", at, elementwise(4, add, a, Some(b), c));
    }
    for at in 0..2 {
        let result = reduce(4, sum, one_bad([a, b], at, name));
        call("kernel-reduce", at, result);
    }
    for at in 0..4 {
        let result = batch_predict([2, 1, 1, 1], one_bad([a, b, c, d], at, name));
        call("kernel-batch-predict", at, result);
    }
    for buffer in good {
        compute::buffer_destroy(buffer)?;
    }
    Ok(())
}

/// Parameters that contradict buffers of 256 bytes, or themselves.
pub(crate) fn wild_parameters(log: &mut Log) -> Result<(), GpuError> {
    let good = several::<5>()?;
    let [a, b, c, d, _] = good;
    let tiny = create(1)?;

    for (n, max) in [(0, 4), (0, 0), (4, 0), (65, 4), (MAX, 4), (MAX, MAX)] {
        let result = bootstrap(n, MAX, max, a);
        log.call(&format!("bootstrap of {n} below {max}"), result);
    }
    log.call("bootstrap into 1 byte", bootstrap(1, 0, 1, tiny));

    for params in [
        [0, 1, 0, 1],
        [4, 0, 0, 1],
        [4, 1, 0, 0],
        [4, 1, 1, 1],
        [4, 1, MAX, 1],
        [4, MAX, 0, 1],
        [4, MAX, MAX - 1, 1],
        [MAX, 1, 0, 1],
        [4, 1, 0, MAX],
        [MAX, MAX, MAX, MAX],
    ] {
        log.call(
            &format!("find-split of {params:?}"),
            find_split(params, good),
        );
    }
    for at in 0..5 {
        let result = find_split([4, 1, 0, 1], one_bad(good, at, tiny));
        log.call(&format!("find-split with 1 byte as buffer {at}"), result);
    }
    for at in 0..4 {
        let result = find_split([4, 1, 0, 1], one_bad(good, 4, good[at]));
        log.call(&format!("find-split into its buffer {at}"), result);
    }

    for (trees, rows) in [
        (0, 4),
        (4, 0),
        (0, 0),
        (65, 1),
        (MAX, 1),
        (1, MAX),
        (MAX, MAX),
    ] {
        let result = average(trees, rows, [a, b]);
        log.call(&format!("average of {rows} rows of {trees}"), result);
    }
    log.call("average into its input", average(2, 2, [a, a]));

    for sizes in [
        [0, 2, 2],
        [2, 0, 2],
        [2, 2, 0],
        [9, 9, 9],
        [MAX, 1, 1],
        [1, MAX, 1],
        [1, 1, MAX],
        [MAX, MAX, MAX],
        [1 << 16, 1 << 16, 1 << 16],
    ] {
        let result = matmul(sizes, [1.0, 0.0], [a, b, c]);
        log.call(&format!("matmul of {sizes:?}"), result);
    }
    log.call("matmul into a", matmul([2, 2, 2], [1.0, 0.0], [a, b, a]));
    log.call("matmul into b", matmul([2, 2, 2], [1.0, 0.0], [a, b, b]));
    for (alpha, beta) in [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (1.0, f32::NAN)] {
        let result = matmul([2, 2, 2], [alpha, beta], [a, b, c]);
        log.call(&format!("matmul by {alpha} and {beta}"), result);
        log.value("its c", words(c, 1));
    }
    log.call("c is not read", matmul([2, 2, 2], [1.0, 0.0], [a, b, c]));
    log.value("its c", words(c, 4));

    use ml::ElementwiseOp::{Add, Exp, Log as Ln, Mul, Relu, Sigmoid, Sqrt, Tanh};
    for n in [0, 65, MAX] {
        log.call(&format!("add of {n}"), elementwise(n, Add, a, Some(b), c));
        log.call(&format!("exp of {n}"), elementwise(n, Exp, a, None, c));
    }
    log.call("add of one", elementwise(4, Add, a, None, c));
    log.call("mul of one", elementwise(4, Mul, a, None, c));
    log.call("mul in place", elementwise(4, Mul, a, Some(a), a));
    for op in [Relu, Sigmoid, Tanh, Sqrt, Exp, Ln] {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0].map(f32::to_bits);
        let input = filled(&odd)?;
        log.call(
            &format!("{op:?} of odd values"),
            elementwise(4, op, input, None, c),
        );
        let floats =
            words(c, 4).map(|words| words.into_iter().map(f32::from_bits).collect::<Vec<_>>());
        log.value("its results", floats);
        compute::buffer_destroy(input)?;
    }

    use ml::ReduceOp::{Max, Mean, Min, Sum, Variance};
    for op in [Sum, Max, Min, Mean, Variance] {
        for n in [0, 65, MAX] {
            log.call(&format!("{op:?} of {n}"), reduce(n, op, [a, b]));
        }
    }
    log.call("sum into its input", reduce(4, Sum, [a, a]));
    log.call("sum into 1 byte", reduce(4, Sum, [a, tiny]));

    for params in [
        [0, 1, 1, 1],
        [2, 0, 1, 1],
        [2, 1, 0, 1],
        [2, 1, 1, 0],
        [65, 1, 1, 1],
        [2, 65, 1, 1],
        [2, 1, 65, 1],
        [MAX, 1, 1, 1],
        [1, MAX, 1, 1],
        [1, 1, MAX, 1],
        [1, 1, 1, MAX],
        [MAX, MAX, MAX, MAX],
    ] {
        let result = batch_predict(params, [a, b, c, d]);
        log.call(&format!("batch-predict of {params:?}"), result);
    }
    for at in 0..4 {
        let result = batch_predict([2, 1, 1, 1], one_bad([a, b, c, d], at, tiny));
        log.call(&format!("batch-predict with 1 byte as buffer {at}"), result);
    }
    for at in 0..3 {
        let result = batch_predict([2, 1, 1, 1], one_bad([a, b, c, d], 3, [a, b, c][at]));
        log.call(&format!("batch-predict into its buffer {at}"), result);
    }
    // A fault that the device finds later is this read's.
    log.call("a read after all", compute::buffer_read(a, 0, 256));
    good_calls(log)
}

/// Indices out of range in the contents of buffers. Each is followed by a read, which has the fault at the latest, and by good calls.
pub(crate) fn wild_indices(log: &mut Log) -> Result<(), GpuError> {
    let data = filled(&[1.0, 2.0, 3.0, 4.0].map(f32::to_bits))?;
    let labels = filled(&[1.0, 1.0, 5.0, 5.0].map(f32::to_bits))?;
    let thresholds = filled(&[2.5, f32::NAN, f32::INFINITY].map(f32::to_bits))?;
    let scores = create(12)?;
    for bad in [4, 5, 1 << 20, 1 << 30, 1 << 31, MAX - 1, MAX] {
        for at in [0, 3] {
            let mut indices = [0, 1, 2, 3];
            indices[at] = bad;
            let indices = filled(&indices)?;
            let what = format!("find-split with index {bad} at {at}");
            let buffers = [data, labels, indices, thresholds, scores];
            if log.call(&what, find_split([4, 1, 0, 3], buffers)).is_some() {
                log.value("its scores", words(scores, 3));
            }
            compute::buffer_destroy(indices)?;
            good_calls(log)?;
        }
    }

    let samples = filled(&[1.0, 2.0, 3.0, 4.0].map(f32::to_bits))?;
    let output = create(16)?;
    let half = 0.5_f32.to_bits();
    let leaf = [LEAF, 1.0_f32.to_bits(), 0, 0];
    for (what, root, offset, depth) in [
        ("itself as a child", [0, half, 0, 0], 0, 8),
        ("child 3 of 3 nodes", [0, half, 3, 3], 0, 8),
        ("child 2^32 - 1", [0, half, MAX, MAX], 0, 8),
        (
            "child 2^28, which wraps in bytes",
            [0, half, 1 << 28, 1 << 28],
            0,
            8,
        ),
        ("feature 1 of 1", [1, half, 1, 2], 0, 8),
        ("feature 2^32 - 2", [MAX - 1, half, 1, 2], 0, 8),
        ("a root at 3 of 3 nodes", leaf, 3, 8),
        ("a root at 2^32 - 1", leaf, MAX, 8),
        (
            "itself as a child and 2^32 - 1 steps",
            [0, half, 0, 0],
            0,
            MAX,
        ),
    ] {
        let nodes = filled(&[root, leaf, leaf].concat())?;
        let offsets = filled(&[offset])?;
        let buffers = [samples, nodes, offsets, output];
        let what = format!("batch-predict with {what}");
        if log
            .call(&what, batch_predict([4, 1, 1, depth], buffers))
            .is_some()
        {
            log.value("its output", words(output, 4));
        }
        compute::buffer_destroy(nodes)?;
        compute::buffer_destroy(offsets)?;
        good_calls(log)?;
    }
    Ok(())
}

/// A split and a tree that are right, with what they give: 0 for the split between the labels, then 1, 2, 2, 2.
fn good_calls(log: &mut Log) -> Result<(), GpuError> {
    let data = filled(&[1.0, 2.0, 3.0, 4.0].map(f32::to_bits))?;
    let labels = filled(&[1.0, 1.0, 5.0, 5.0].map(f32::to_bits))?;
    let indices = filled(&[0, 1, 2, 3])?;
    let thresholds = filled(&[2.5_f32.to_bits()])?;
    let scores = create(4)?;
    let split = find_split([4, 1, 0, 1], [data, labels, indices, thresholds, scores]);
    if log.call("a good find-split", split).is_some() {
        log.value("its score", words(scores, 1));
    }
    let node = |feature, value: f32, left, right| [feature, value.to_bits(), left, right];
    let tree = [
        node(0, 1.5, 1, 2),
        node(LEAF, 1.0, 0, 0),
        node(LEAF, 2.0, 0, 0),
    ];
    let nodes = filled(&tree.concat())?;
    let offsets = filled(&[0])?;
    let output = create(16)?;
    let predict = batch_predict([4, 1, 1, 1], [data, nodes, offsets, output]);
    if log.call("a good batch-predict", predict).is_some() {
        let floats =
            words(output, 4).map(|words| words.into_iter().map(f32::from_bits).collect::<Vec<_>>());
        log.value("its output", floats);
    }
    for buffer in [
        data, labels, indices, thresholds, scores, nodes, offsets, output,
    ] {
        compute::buffer_destroy(buffer)?;
    }
    Ok(())
}

/// Products as large as 3 buffers of 64 MiB allow, without end and without a wait.
pub(crate) fn endless() -> Result<(), GpuError> {
    let [a, b, c] = [create(64 << 20)?, create(64 << 20)?, create(64 << 20)?];
    while std::hint::black_box(true) {
        matmul([4096, 4096, 4096], [1.0, 1.0], [a, b, c])?;
    }
    Ok(())
}
