//! Bootstrap samples, splits, trees.

use candle_core::{test_device, Device};
use candle_wasi_gpu::{
    AverageParams, BatchPredictParams, BootstrapParams, FindSplitParams, GpuBackend, Result,
};

use crate::support::{assert_invalid, assert_kernel_error, fault, is_near, open, Calls, Random};

fn bootstrap_vectors(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let cases: [(u32, u32, &[u32]); 4] = [
        (42, 10_000, &[6485, 2549, 48, 8218, 3789, 6545, 7863, 8371]),
        (0, 1000, &[190, 368, 232, 939, 75, 889]),
        (u32::MAX, 1000, &[498, 24, 459, 220, 112, 372]),
        // Some of these are drawn again.
        (
            5,
            3 << 30,
            &[
                1_961_022_579,
                1_735_078_304,
                972_761_995,
                2_028_496_181,
                2_529_878_694,
                893_554_160,
            ],
        ),
    ];
    for (seed, max_index, want) in cases {
        let buffer = gpu.words(&[77; 10])?;
        let n_samples = want.len() as u32;
        let params = BootstrapParams {
            n_samples,
            seed,
            max_index,
        };
        gpu.kernel_bootstrap_sample(params, buffer)?;
        let got = gpu.read_words(buffer, 10)?;
        assert_eq!(got[..want.len()], *want, "seed {seed}");
        // The rest of the buffer stays.
        assert!(got[want.len()..].iter().all(|word| *word == 77));
    }
    Ok(())
}
test_device!(bootstrap_vectors);

/// The same indices on every device, at any offset.
fn bootstrap_as_on_the_cpu(device: &Device) -> Result<()> {
    let (gpu, cpu) = (open(device)?, open(&Device::Cpu)?);
    let n_samples = 100_000;
    for (seed, max_index) in [
        (1, 1),
        (2, 7),
        (3, u32::MAX),
        (4, (1 << 31) + 1),
        (5, 1 << 31),
    ] {
        let params = BootstrapParams {
            n_samples,
            seed,
            max_index,
        };
        let draw = |gpu: &dyn GpuBackend| {
            let buffer = gpu.empty(4 * u64::from(n_samples))?;
            gpu.kernel_bootstrap_sample(params, buffer)?;
            gpu.read_words(buffer, n_samples as usize)
        };
        let got = draw(&*gpu)?;
        assert!(got.iter().all(|index| *index < max_index));
        assert!(got == draw(&*cpu)?, "seed {seed}");
    }
    let small = gpu.empty(39)?;
    let params = BootstrapParams {
        n_samples: 10,
        seed: 0,
        max_index: 0,
    };
    assert_invalid(gpu.kernel_bootstrap_sample(params, small), &["max-index"]);
    let params = BootstrapParams {
        max_index: 5,
        ..params
    };
    let words = ["output-indices", "40 bytes", "39"];
    assert_invalid(gpu.kernel_bootstrap_sample(params, small), &words);
    let params = BootstrapParams {
        n_samples: 0,
        ..params
    };
    gpu.kernel_bootstrap_sample(params, small)
}
test_device!(bootstrap_as_on_the_cpu);

/// A node and the thresholds that it is split by.
struct Split {
    features: usize,
    feature: usize,
    data: Vec<f32>,
    labels: Vec<f32>,
    indices: Vec<u32>,
    thresholds: Vec<f32>,
}

impl Split {
    fn run(&self, gpu: &dyn GpuBackend) -> Result<Vec<f32>> {
        let scores = gpu.floats(&vec![-1.; self.thresholds.len() + 1])?;
        let buffers = [
            gpu.floats(&self.data)?,
            gpu.floats(&self.labels)?,
            gpu.words(&self.indices)?,
            gpu.floats(&self.thresholds)?,
        ];
        let [data, labels, indices, thresholds] = buffers;
        let params = FindSplitParams {
            n_samples: self.indices.len() as u32,
            n_features: self.features as u32,
            feature_idx: self.feature as u32,
            n_thresholds: self.thresholds.len() as u32,
        };
        let call = gpu.kernel_find_split(params, data, labels, indices, thresholds, scores);
        let got = call.and_then(|()| gpu.read_floats(scores, self.thresholds.len() + 1));
        for buffer in buffers.into_iter().chain([scores]) {
            gpu.buffer_destroy(buffer)?;
        }
        let mut got = got?;
        assert_eq!(got.pop(), Some(-1.), "what comes after the scores stays");
        Ok(got)
    }

    fn squared_error(labels: &[f64]) -> f64 {
        let mean = labels.iter().sum::<f64>() / labels.len() as f64;
        labels.iter().map(|y| (y - mean).powi(2)).sum()
    }

    /// Each threshold's score in f64, straight from the definition.
    fn want(&self) -> Vec<f64> {
        let row = |index: &u32| {
            let index = *index as usize;
            let x = self.data[index * self.features + self.feature];
            (x, f64::from(self.labels[index]))
        };
        let rows: Vec<(f32, f64)> = self.indices.iter().map(row).collect();
        let scores = self.thresholds.iter().map(|threshold| {
            let (left, right): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.0 <= *threshold);
            if left.is_empty() || right.is_empty() {
                return f64::INFINITY;
            }
            let side = |rows: Vec<&(f32, f64)>| {
                Self::squared_error(&rows.iter().map(|row| row.1).collect::<Vec<_>>())
            };
            side(left) + side(right)
        });
        scores.collect()
    }

    #[track_caller]
    fn check(&self, gpu: &dyn GpuBackend) -> Result<()> {
        let labels = self.indices.iter();
        let labels: Vec<f64> = labels
            .map(|i| f64::from(self.labels[*i as usize]))
            .collect();
        let tolerance = 1e-5 * Self::squared_error(&labels);
        let got = self.run(gpu)?;
        for (i, (got, want)) in got.iter().zip(self.want()).enumerate() {
            let threshold = self.thresholds[i];
            assert!(
                is_near(*got, want, tolerance),
                "threshold {i}, {threshold}: {got}, not {want} ± {tolerance}"
            );
        }
        // The same bits again.
        let bits = |scores: Vec<f32>| scores.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(self.run(gpu)?), bits(got));
        Ok(())
    }

    fn random(random: &mut Random, rows: u32, count: usize, thresholds: usize) -> Self {
        let features = 1 + random.below(5) as usize;
        Self {
            features,
            feature: random.below(features as u32) as usize,
            data: random.floats(rows as usize * features),
            labels: random.floats(rows as usize),
            indices: (0..count).map(|_| random.below(rows)).collect(),
            thresholds: random.floats(thresholds),
        }
    }
}

fn splits_as_defined(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(1);
    for (rows, count, thresholds) in [
        (1, 1, 1),
        (2, 2, 3),
        (10, 7, 4),
        (50, 31, 33),
        (300, 255, 256),
        (300, 256, 255),
        (400, 257, 511),
        (1000, 1000, 1),
        (90, 3000, 300),
        (90, 1023, 30),
        (1500, 1024, 300),
        (1500, 1025, 300),
    ] {
        Split::random(random, rows, count, thresholds).check(&*gpu)?;
    }
    Ok(())
}
test_device!(splits_as_defined);

fn splits_of_many_rows(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(2);
    // Past 65,535 rows, and more slices and dispatches than one.
    Split::random(random, 70_000, 140_000, 20).check(&*gpu)
}
test_device!(splits_of_many_rows);

fn splits_at_edges(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(3);
    let plain = |random: &mut Random| Split::random(random, 200, 300, 40);

    // Few values, so that thresholds meet them.
    let mut split = plain(random);
    let levels = |x: &mut f32| *x = (*x * 3.).round();
    split.data.iter_mut().for_each(levels);
    split.thresholds.iter_mut().for_each(levels);
    split.check(&*gpu)?;

    let mut split = plain(random);
    split.data.fill(0.25);
    split.thresholds[..3].copy_from_slice(&[0.25, 0.2, 0.3]);
    split.check(&*gpu)?;
    assert!(split
        .run(&*gpu)?
        .iter()
        .all(|score| *score == f32::INFINITY));

    // Equal labels score exactly 0, whatever they are.
    let mut split = plain(random);
    split.labels.fill(1e6 + 0.1);
    split.check(&*gpu)?;

    for (offset, scale) in [(1e6, 1.), (-1e6, 1.), (1e7, 10.), (0., 1e15), (0., 1e-15)] {
        let mut split = plain(random);
        split
            .labels
            .iter_mut()
            .for_each(|y| *y = *y * scale + offset);
        split.check(&*gpu)?;
        // A label that is far from the others comes first, or last.
        split.labels[split.indices[0] as usize] = -offset;
        split.check(&*gpu)?;
    }

    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.,
        -0.,
        f32::from_bits(1),
        -f32::from_bits(1),
        f32::MIN_POSITIVE,
    ];
    let mut split = plain(random);
    for x in &mut split.data {
        *x = special[random.below(9) as usize];
    }
    split.thresholds[..9].copy_from_slice(&special);
    split.check(&*gpu)?;

    let mut split = plain(random);
    split.labels[split.indices[7] as usize] = f32::NAN;
    split.check(&*gpu)?;

    // No rows: all sides are empty.
    let mut split = plain(random);
    split.indices.clear();
    split.check(&*gpu)?;
    assert!(split
        .run(&*gpu)?
        .iter()
        .all(|score| *score == f32::INFINITY));
    Ok(())
}
test_device!(splits_at_edges);

fn splits_refuse_wrong_indices(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let neighbour = open(device)?;
    let random = &mut Random::new(4);
    let good = Split::random(random, 50, 60, 10);
    let mut bad = Split::random(random, 50, 60, 10);
    bad.indices[33] = 50;
    for index in [50, u32::MAX] {
        bad.indices[33] = index;
        let index_text = index.to_string();
        let words: &[&str] = &["find-split", "index 33", &index_text, "50 rows"];
        assert_kernel_error(bad.run(&*gpu), words);
        // The fault was reported once; the backend continues, and others did not notice.
        good.check(&*gpu)?;
        good.check(&*neighbour)?;
    }
    // A read says so, of whichever buffer.
    let other = gpu.bytes(&[5])?;
    let buffers = [
        gpu.floats(&bad.data)?,
        gpu.floats(&bad.labels)?,
        gpu.words(&bad.indices)?,
        gpu.floats(&bad.thresholds)?,
    ];
    let scores = gpu.empty(40)?;
    let params = FindSplitParams {
        n_samples: 60,
        n_features: bad.features as u32,
        feature_idx: 0,
        n_thresholds: 10,
    };
    let split = |params| {
        let [data, labels, indices, thresholds] = buffers;
        gpu.kernel_find_split(params, data, labels, indices, thresholds, scores)
    };
    let read = fault(&*gpu, split(params), || {
        gpu.sync();
        pollster::block_on(gpu.begin_read(other, 0, 0)?)
    });
    assert_kernel_error(read, &["index 33"]);
    assert_eq!(gpu.buffer_read(other, 0, 1)?, [5]);

    let with = |change: fn(&mut FindSplitParams)| {
        let mut params = params;
        change(&mut params);
        split(params)
    };
    assert_invalid(with(|p| p.n_features = 0), &["n-features"]);
    assert_invalid(with(|p| p.feature_idx = p.n_features), &["feature-idx"]);
    assert_invalid(with(|p| p.n_samples = 61), &["indices", "244", "240"]);
    assert_invalid(with(|p| p.n_samples = u32::MAX), &["indices"]);
    assert_invalid(with(|p| p.n_thresholds = 11), &["thresholds", "44", "40"]);
    with(|p| p.n_thresholds = 0)?;
    let [data, labels, indices, thresholds] = buffers;
    let same = gpu.kernel_find_split(params, data, labels, indices, thresholds, indices);
    assert_invalid(same, &["output-scores", "indices"]);
    // More features make fewer rows.
    let few = with(|p| p.n_features *= 7);
    let read = fault(&*gpu, few, || gpu.buffer_read(other, 0, 1));
    assert_kernel_error(read, &["7 rows"]);
    Ok(())
}
test_device!(splits_refuse_wrong_indices);

fn averages(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(5);
    for (rows, trees) in [(1, 1), (3, 7), (100, 100), (70_000, 3), (2, 70_001)] {
        let values: Vec<f32> = random.floats(rows * trees);
        let (input, output) = (gpu.floats(&values)?, gpu.floats(&vec![9.; rows + 1])?);
        let params = AverageParams {
            n_trees: trees as u32,
            n_samples: rows as u32,
        };
        gpu.kernel_average(params, input, output)?;
        let got = gpu.read_floats(output, rows + 1)?;
        assert_eq!(got[rows], 9.);
        for (row, got) in values.chunks(trees).zip(&got) {
            let want = row.iter().map(|x| f64::from(*x)).sum::<f64>() / trees as f64;
            assert!(
                is_near(*got, want, 1e-6),
                "{rows}x{trees}: {got}, not {want}"
            );
        }
        gpu.buffer_destroy(input)?;
        gpu.buffer_destroy(output)?;
    }
    let buffer = gpu.empty(40)?;
    let output = gpu.empty(8)?;
    let average = |n_trees, n_samples, output| {
        let params = AverageParams { n_trees, n_samples };
        gpu.kernel_average(params, buffer, output)
    };
    assert_invalid(average(0, 1, output), &["n-trees"]);
    assert_invalid(average(11, 1, output), &["tree-predictions", "44"]);
    assert_invalid(average(u32::MAX, u32::MAX, output), &["tree-predictions"]);
    assert_invalid(average(3, 3, output), &["output", "12", "8"]);
    assert_invalid(average(1, 1, buffer), &["must differ"]);
    average(1, 0, output)
}
test_device!(averages);

const LEAF: u32 = u32::MAX;

/// A node's words.
type Node = [u32; 4];

fn leaf(value: f32) -> Node {
    [LEAF, value.to_bits(), 0, 0]
}

/// A tree of at most `depth`, its root first.
fn grow(random: &mut Random, features: u32, depth: u32) -> Vec<Node> {
    let mut nodes = vec![leaf(random.float())];
    if depth == 0 || random.below(8) == 0 {
        return nodes;
    }
    let threshold = random.float();
    let mut children = [0; 2];
    for child in &mut children {
        *child = nodes.len() as u32;
        let base = *child;
        let subtree = grow(random, features, depth - 1);
        nodes.extend(subtree.into_iter().map(|mut node| {
            if node[0] != LEAF {
                node[2] += base;
                node[3] += base;
            }
            node
        }));
    }
    nodes[0] = [
        random.below(features),
        threshold.to_bits(),
        children[0],
        children[1],
    ];
    nodes
}

struct Forest {
    features: u32,
    nodes: Vec<Node>,
    offsets: Vec<u32>,
    samples: Vec<f32>,
}

impl Forest {
    fn random(
        random: &mut Random,
        samples: usize,
        features: u32,
        trees: usize,
        depth: u32,
    ) -> Self {
        let (mut nodes, mut offsets) = (Vec::new(), Vec::new());
        for _ in 0..trees {
            offsets.push(nodes.len() as u32);
            nodes.extend(grow(random, features, depth));
        }
        Self {
            features,
            nodes,
            offsets,
            samples: random.floats(samples * features as usize),
        }
    }

    fn batch(&self) -> usize {
        self.samples.len() / self.features as usize
    }

    /// A walk as the interface has it; `None` if it finds a fault.
    fn walk(&self, root: u32, sample: usize, max_depth: u32) -> Option<f32> {
        let row = &self.samples[sample * self.features as usize..][..self.features as usize];
        let mut node = *self.nodes.get(root as usize)?;
        // A walk with more steps than there are nodes is a cycle.
        for _ in 0..=max_depth.min(self.nodes.len() as u32) {
            let [feature, value, left, right] = node;
            if feature == LEAF {
                return Some(f32::from_bits(value));
            }
            let x = *row.get(feature as usize)?;
            let child = if x <= f32::from_bits(value) {
                left
            } else {
                right
            };
            node = *self.nodes.get(root as usize + child as usize)?;
        }
        None
    }

    /// Runs the kernel; gives its answer, what the next read says, and the output.
    fn run(&self, gpu: &dyn GpuBackend, max_depth: u32) -> Result<(Result<()>, Vec<f32>)> {
        let batch = self.batch();
        let buffers = [
            gpu.floats(&self.samples)?,
            gpu.words(self.nodes.as_flattened())?,
            gpu.words(&self.offsets)?,
            gpu.floats(&vec![7.; batch + 1])?,
        ];
        let [samples, nodes, offsets, output] = buffers;
        let params = BatchPredictParams {
            batch_size: batch as u32,
            n_features: self.features,
            n_trees: self.offsets.len() as u32,
            max_depth,
        };
        let call = gpu.kernel_batch_predict(params, samples, nodes, offsets, output);
        let call = call.and_then(|()| gpu.buffer_read(output, 0, 0).map(|_| ()));
        let mut got = gpu.read_floats(output, batch + 1)?;
        for buffer in buffers {
            gpu.buffer_destroy(buffer)?;
        }
        assert_eq!(got.pop(), Some(7.), "what comes after the output stays");
        Ok((call, got))
    }

    /// Runs the kernel and compares each sample; gives its answer.
    #[track_caller]
    fn check(&self, gpu: &dyn GpuBackend, max_depth: u32) -> Result<Result<()>> {
        let (call, got) = self.run(gpu, max_depth)?;
        let mut faults = 0;
        for (sample, got) in got.iter().enumerate() {
            let leaves = self.offsets.iter();
            let leaves = leaves.map(|root| self.walk(*root, sample, max_depth).map(f64::from));
            let sum = leaves.sum::<Option<f64>>();
            let want = sum.map_or(f64::NAN, |sum| sum / self.offsets.len() as f64);
            faults += u32::from(sum.is_none());
            assert!(
                is_near(*got, want, 1e-6),
                "sample {sample}: {got}, not {want}"
            );
        }
        assert_eq!(call.is_err(), faults > 0, "{faults} faults, but {call:?}");
        Ok(call)
    }
}

fn predictions(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let random = &mut Random::new(6);
    for (samples, features, trees, depth) in [
        (1, 1, 1, 0),
        (1, 3, 1, 4),
        (257, 4, 10, 6),
        (33, 28, 200, 8),
        (3000, 5, 40, 5),
    ] {
        let forest = Forest::random(random, samples, features, trees, depth);
        for max_depth in [depth, depth + 1, u32::MAX] {
            forest.check(&*gpu, max_depth)??;
        }
    }
    // NaN goes right; a threshold is met by what equals it.
    let forest = Forest {
        features: 1,
        nodes: vec![[0, 0, 1, 2], leaf(1.), leaf(2.)],
        offsets: vec![0],
        samples: vec![f32::NAN, 0., -0., f32::from_bits(1), -1., f32::INFINITY],
    };
    forest.check(&*gpu, 1)??;
    let (_, got) = forest.run(&*gpu, 1)?;
    assert_eq!(got, [2., 1., 1., 2., 1., 2.]);
    Ok(())
}
test_device!(predictions);

/// More steps than an invocation takes in one dispatch.
fn deep_trees(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    for depth in [1000, 11_998, 12_000, 17_000, 130_000] {
        let mut nodes: Vec<Node> = (0..depth).map(|i| [0, 0, i + 1, depth + 1]).collect();
        nodes.extend([leaf(1.), leaf(2.)]);
        let forest = Forest {
            features: 1,
            nodes,
            offsets: vec![0, depth],
            samples: vec![-1., 1., -2.],
        };
        forest.check(&*gpu, depth)??;
        let call = forest.check(&*gpu, depth - 1)?;
        assert_kernel_error(call, &["tree 0", "max-depth"]);
    }
    Ok(())
}
test_device!(deep_trees);

fn bad_trees(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let neighbour = open(device)?;
    let good = [[0, 0, 1, 2], leaf(1.), leaf(2.)];
    let samples = vec![-1., 1., -1.];
    let with = |node: Node, offsets: &[u32]| Forest {
        features: 1,
        nodes: [&good[..], &[node, leaf(5.)]].concat(),
        offsets: offsets.to_vec(),
        samples: samples.clone(),
    };
    let zero = 0;
    let cases: [(Forest, &[&str]); 9] = [
        // Circles, of one node and of all.
        (with([0, zero, 0, 1], &[0, 3]), &["tree 1", "max-depth"]),
        (with([0, zero, 0, 0], &[0, 3]), &["tree 1", "max-depth"]),
        (with([0, zero, 2, 1], &[3]), &["tree 0", "child 2"]),
        (
            with([0, zero, 1, u32::MAX], &[3]),
            &["sample 1", "child 4294967295"],
        ),
        (with([0, zero, u32::MAX - 2, 1], &[3]), &["child"]),
        (with([1, zero, 1, 1], &[3]), &["feature 1", "n-features"]),
        (
            with([u32::MAX - 1, zero, 1, 1], &[0, 3]),
            &["feature 4294967294"],
        ),
        (
            with(leaf(0.), &[0, 5]),
            &["tree 1", "node 5", "tree-offsets"],
        ),
        (with(leaf(0.), &[u32::MAX]), &["node 4294967295"]),
    ];
    let fine = with(leaf(3.), &[0, 3, 4, 0]);
    for (forest, words) in cases {
        for max_depth in [3, 1000, u32::MAX] {
            assert_kernel_error(forest.check(&*gpu, max_depth)?, words);
        }
        fine.check(&*gpu, 1)??;
        fine.check(&*neighbour, 1)??;
    }
    // Only the samples that come there.
    let half = with([0, zero, 1, 0], &[3]);
    let (call, got) = half.run(&*gpu, 50)?;
    assert!(call.is_err());
    assert_eq!((got[0], got[1].is_nan(), got[2]), (5., true, 5.));
    assert_kernel_error(fine.check(&*gpu, 0)?, &["tree 0", "max-depth"]);
    Ok(())
}
test_device!(bad_trees);

fn predictions_check_sizes(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let samples = gpu.empty(40)?;
    let nodes = gpu.words(&leaf(4.))?;
    let (offsets, output) = (gpu.empty(8)?, gpu.empty(20)?);
    let predict = |batch_size, n_features, n_trees, max_depth, output| {
        let params = BatchPredictParams {
            batch_size,
            n_features,
            n_trees,
            max_depth,
        };
        gpu.kernel_batch_predict(params, samples, nodes, offsets, output)
    };
    let most = u32::MAX;
    assert_invalid(predict(1, 1, 0, 1, output), &["n-trees"]);
    assert_invalid(predict(5, 3, 1, 1, output), &["samples", "60", "40"]);
    assert_invalid(predict(most, most, 1, 1, output), &["samples"]);
    assert_invalid(predict(1, 1, 3, 1, output), &["tree-offsets", "12", "8"]);
    assert_invalid(predict(6, 1, 1, 1, output), &["output", "24", "20"]);
    assert_invalid(predict(1, 1, 1, 1, nodes), &["must differ"]);
    predict(0, most, 1, most, output)?;
    // Leaves look at no feature.
    predict(5, 0, 2, 0, output)?;
    assert_eq!(gpu.read_floats(output, 5)?, [4.; 5]);
    Ok(())
}
test_device!(predictions_check_sizes);
