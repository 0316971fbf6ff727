//! Growing all trees at once.

use crate::gpu::ml_kernels::{self, BootstrapParams, FindSplitParams};
use crate::gpu::{named, Buffer};
use crate::random::{hash, Features};
use crate::ranks::Ranks;
use crate::{rows, Error, Model, Node, Result, LEAF};

/// Words that one read of a level may take, and one upload: 16 MiB. A wider level takes several.
const BATCH_WORDS: usize = 1 << 22;
/// With more classes, the labels are probably not classes.
const MAX_CLASSES: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Splits reduce the squared error.
    Regression,
    /// Splits reduce Gini's impurity: n times it is the squared error of the classes' one-hot columns.
    Classification,
}

/// See `wit/forest.wit`.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub task: Task,
    pub trees: u32,
    pub max_depth: u32,
    /// 0: ⌈√features⌉.
    pub max_features: u32,
    /// 0: every midpoint.
    pub max_thresholds: u32,
    pub bootstrap: bool,
    pub seed: u32,
}

/// A model, and what it took.
#[derive(Clone, Debug)]
pub struct Trained {
    pub model: Model,
    /// Number of waits for the device.
    pub reads: u32,
    /// Number of kernels.
    pub kernels: u32,
}

/// A forest of `data`, `(rows, features)` and row-major, and a label for each row.
///
/// The same data, parameters and scores of the device give the same bytes.
///
/// # Errors
///
/// If the data is not whole rows of finite values, a label is missing, not finite or not a class, a parameter is out of range, or the
/// host refuses.
pub fn train(params: &Params, features: u32, data: &[f32], labels: &[f32]) -> Result<Trained> {
    let rows = rows(data, features)?;
    let columns = columns(params.task, rows, labels)?;
    if params.trees == 0 {
        return Err(Error::Input("a forest has at least 1 tree".to_string()));
    }
    if params.max_features > features {
        return Err(Error::Input(format!(
            "max-features is {}, but there are {features}",
            params.max_features
        )));
    }
    let mut device = Device::new(features, data, &columns)?;
    let mut grower = Grower {
        params,
        features,
        tried: match params.max_features {
            0 => f64::from(features).sqrt().ceil() as u32,
            tried => tried,
        },
        data,
        ranks: Ranks::new(features, data),
        labels,
        columns: &columns,
        trees: vec![vec![Node::open()]; params.trees as usize],
        values: Vec::new(),
        next: Vec::new(),
    };
    let mut level = grower.roots(&mut device, rows)?;
    let mut depth = 0;
    loop {
        let mut waiting = level.into_iter().peekable();
        while waiting.peek().is_some() {
            let mut batch = Batch::default();
            while batch.words.len() + batch.scores < BATCH_WORDS {
                let Some(open) = waiting.next() else { break };
                batch.push(&grower, open, depth < params.max_depth);
            }
            let scores = device.scores(&batch)?;
            grower.apply(batch, &scores);
        }
        if grower.next.is_empty() {
            break;
        }
        level = std::mem::take(&mut grower.next);
        depth += 1;
    }
    Ok(Trained {
        model: grower.finish(depth),
        reads: device.reads,
        kernels: device.kernels,
    })
}

/// The columns whose squared errors a split reduces: the labels, or one for each class.
fn columns(task: Task, rows: usize, labels: &[f32]) -> Result<Vec<Vec<f32>>> {
    if rows == 0 || u32::try_from(rows).is_err() || labels.len() != rows {
        return Err(Error::Input(format!(
            "{rows} rows of data and {} labels",
            labels.len()
        )));
    }
    if let Some(at) = labels.iter().position(|label| !label.is_finite()) {
        return Err(Error::Input(format!("label {at} is {}", labels[at])));
    }
    if task == Task::Regression {
        return Ok(vec![labels.to_vec()]);
    }
    let class = |label: f32| label >= 0.0 && label < MAX_CLASSES as f32 && label.fract() == 0.0;
    if let Some(at) = labels.iter().position(|&label| !class(label)) {
        return Err(Error::Input(format!(
            "label {at} is {}, not a class from 0 to {}",
            labels[at],
            MAX_CLASSES - 1
        )));
    }
    let classes = labels.iter().fold(0, |most, &label| most.max(label as u32)) + 1;
    let column = |class: u32| {
        let one = |&label: &f32| f32::from(label as u32 == class);
        labels.iter().map(one).collect()
    };
    Ok((0..classes).map(column).collect())
}

/// A node whose fate is open.
struct Open {
    tree: u32,
    node: u32,
    /// In the order of the draw; rows drawn twice are there twice.
    rows: Vec<u32>,
}

/// A feature to split a node by.
struct Candidate {
    feature: u32,
    /// The offset of its thresholds in the batch's words.
    at: usize,
    count: usize,
}

/// Nodes whose scores are read together, in order.
#[derive(Default)]
struct Batch {
    /// Rows of the nodes, and bits of the thresholds.
    words: Vec<u32>,
    /// Number of their scores.
    scores: usize,
    nodes: Vec<(Open, usize, Vec<Candidate>)>,
}

impl Batch {
    /// Adds a node, with its candidates if it may be split.
    fn push(&mut self, grower: &Grower, open: Open, split: bool) {
        let at = self.words.len();
        let mut candidates = Vec::new();
        if split && grower.mixed(&open.rows) {
            self.words.extend(&open.rows);
            let shuffled = grower.tried < grower.features;
            let seed = grower.params.seed;
            let order = Features::new(grower.features, shuffled, seed, open.tree, open.node);
            for (tried, feature) in order.enumerate() {
                // Constant features count as tried, unless all are.
                if tried >= grower.tried as usize && !candidates.is_empty() {
                    break;
                }
                let thresholds = grower.thresholds(&open.rows, feature);
                if !thresholds.is_empty() {
                    candidates.push(Candidate {
                        feature,
                        at: self.words.len(),
                        count: thresholds.len(),
                    });
                    self.scores += thresholds.len() * grower.columns.len();
                    self.words.extend(thresholds.into_iter().map(f32::to_bits));
                }
            }
        }
        self.nodes.push((open, at, candidates));
    }
}

/// The buffers, reused by every kernel: calls take effect in order.
struct Device {
    features: u32,
    data: Buffer,
    columns: Vec<Buffer>,
    /// A batch's words.
    upload: Buffer,
    indices: Buffer,
    thresholds: Buffer,
    scores: Buffer,
    /// A batch's scores.
    gathered: Buffer,
    reads: u32,
    kernels: u32,
}

impl Device {
    fn new(features: u32, data: &[f32], columns: &[Vec<f32>]) -> Result<Self> {
        let rows = columns[0].len() as u64;
        Ok(Self {
            features,
            data: Buffer::of(data)?,
            columns: columns
                .iter()
                .map(|column| Buffer::of(column))
                .collect::<Result<_>>()?,
            upload: Buffer::new(1)?,
            indices: Buffer::new(rows)?,
            thresholds: Buffer::new(rows)?,
            scores: Buffer::new(rows)?,
            gathered: Buffer::new(1)?,
            reads: 0,
            kernels: 0,
        })
    }

    /// For each tree, `rows` draws with replacement.
    fn draws(&mut self, trees: u32, rows: usize, seed: u32) -> Result<Vec<Vec<u32>>> {
        let words = rows as u64;
        let total = u64::from(trees) * words;
        self.gathered.reserve(total)?;
        for tree in 0..trees {
            let params = BootstrapParams {
                n_samples: rows as u32,
                seed: hash(tree.wrapping_add(hash(seed))),
                max_index: rows as u32,
            };
            named(
                "kernel-bootstrap-sample",
                ml_kernels::kernel_bootstrap_sample(params, self.indices.id()),
            )?;
            self.kernels += 1;
            let at = u64::from(tree) * words;
            self.gathered.copy(at, &self.indices, 0, words)?;
        }
        self.reads += 1;
        let draws = self.gathered.read::<u32>(total)?;
        Ok(draws.chunks_exact(rows).map(<[u32]>::to_vec).collect())
    }

    /// The batch's scores: for each node and candidate, and each column, one for each threshold. Waits once.
    fn scores(&mut self, batch: &Batch) -> Result<Vec<f32>> {
        if batch.scores == 0 {
            return Ok(Vec::new());
        }
        self.upload.reserve(batch.words.len() as u64)?;
        self.gathered.reserve(batch.scores as u64)?;
        self.upload.write(&batch.words)?;
        let mut done = 0;
        for (open, at, candidates) in &batch.nodes {
            if candidates.is_empty() {
                continue;
            }
            let rows = open.rows.len() as u64;
            self.indices.copy(0, &self.upload, *at as u64, rows)?;
            for candidate in candidates {
                let count = candidate.count as u64;
                let at = candidate.at as u64;
                self.thresholds.copy(0, &self.upload, at, count)?;
                let params = FindSplitParams {
                    n_samples: rows as u32,
                    n_features: self.features,
                    feature_idx: candidate.feature,
                    n_thresholds: candidate.count as u32,
                };
                for column in &self.columns {
                    named(
                        "kernel-find-split",
                        ml_kernels::kernel_find_split(
                            params,
                            self.data.id(),
                            column.id(),
                            self.indices.id(),
                            self.thresholds.id(),
                            self.scores.id(),
                        ),
                    )?;
                    self.kernels += 1;
                    self.gathered.copy(done, &self.scores, 0, count)?;
                    done += count;
                }
            }
        }
        self.reads += 1;
        self.gathered.read(done)
    }
}

/// The trees so far.
struct Grower<'a> {
    params: &'a Params,
    features: u32,
    /// Features tried at a node.
    tried: u32,
    data: &'a [f32],
    ranks: Ranks,
    labels: &'a [f32],
    columns: &'a [Vec<f32>],
    trees: Vec<Vec<Node>>,
    values: Vec<f32>,
    /// The next level's nodes.
    next: Vec<Open>,
}

impl Grower<'_> {
    fn roots(&self, device: &mut Device, rows: usize) -> Result<Vec<Open>> {
        let trees = self.params.trees;
        let draws = if self.params.bootstrap {
            device.draws(trees, rows, self.params.seed)?
        } else {
            vec![(0..rows as u32).collect(); trees as usize]
        };
        let root = |(tree, rows)| Open {
            tree,
            node: 0,
            rows,
        };
        Ok((0..).zip(draws).map(root).collect())
    }

    fn value(&self, row: u32, feature: u32) -> f32 {
        self.data[row as usize * self.features as usize + feature as usize]
    }

    /// Whether the rows have more than one label.
    fn mixed(&self, rows: &[u32]) -> bool {
        let label = |row: u32| self.labels[row as usize];
        rows.iter().any(|&row| label(row) != label(rows[0]))
    }

    /// Midpoints of the values that a feature has in these rows.
    fn thresholds(&self, rows: &[u32], feature: u32) -> Vec<f32> {
        let values = self.ranks.distinct(rows, feature);
        let middle = |pair: &[f32]| {
            let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
            // Between neighbours of f32 there is none: rounding must not move the larger one to the left. Adding 0 drops the sign of −0.
            (if middle < pair[1] { middle } else { pair[0] }) + 0.0
        };
        let all = values.len().saturating_sub(1);
        let most = self.params.max_thresholds as usize;
        if most == 0 || all <= most {
            let values = values.at(0..values.len());
            return values.windows(2).map(middle).collect();
        }
        let spread = |i: usize| ((2 * i as u64 + 1) * all as u64 / (2 * most as u64)) as usize;
        let pairs = values.at((0..most).flat_map(|i| [spread(i), spread(i) + 1]));
        pairs.chunks_exact(2).map(middle).collect()
    }

    /// Splits each of the batch's nodes at its lowest score, or makes it a leaf.
    fn apply(&mut self, batch: Batch, scores: &[f32]) {
        let mut scores = scores;
        for (open, _, candidates) in batch.nodes {
            let mut best = (f64::INFINITY, 0, 0.0);
            for candidate in candidates {
                let size = candidate.count * self.columns.len();
                let (mine, rest) = scores.split_at(size);
                scores = rest;
                for i in 0..candidate.count {
                    let columns = mine.iter().skip(i).step_by(candidate.count);
                    let score = columns.map(|&score| f64::from(score)).sum::<f64>();
                    if score < best.0 {
                        let threshold = f32::from_bits(batch.words[candidate.at + i]);
                        best = (score, candidate.feature, threshold);
                    }
                }
            }
            let (score, feature, threshold) = best;
            if score.is_finite() {
                self.split(open, feature, threshold);
            } else {
                self.leaf(&open);
            }
        }
    }

    fn split(&mut self, open: Open, feature: u32, threshold: f32) {
        // In order, so that the leaves' sums do not depend on the adding thread.
        let (left, right) = open
            .rows
            .iter()
            .partition::<Vec<u32>, _>(|&&row| self.value(row, feature) <= threshold);
        if left.is_empty() || right.is_empty() {
            // A host whose scores are wrong must not make it endless.
            self.leaf(&open);
            return;
        }
        let tree = &mut self.trees[open.tree as usize];
        let child = tree.len() as u32;
        tree[open.node as usize] = Node {
            feature,
            threshold,
            left: child,
            right: child + 1,
        };
        for (node, rows) in [(child, left), (child + 1, right)] {
            tree.push(Node::open());
            self.next.push(Open {
                tree: open.tree,
                node,
                rows,
            });
        }
    }

    /// A leaf has the mean of each column.
    fn leaf(&mut self, open: &Open) {
        let leaf = (self.values.len() / self.columns.len()) as u32;
        for column in self.columns {
            let sum = open
                .rows
                .iter()
                .map(|&row| f64::from(column[row as usize]))
                .sum::<f64>();
            self.values.push((sum / open.rows.len() as f64) as f32);
        }
        self.trees[open.tree as usize][open.node as usize] = Node {
            left: leaf,
            ..Node::open()
        };
    }

    fn finish(self, depth: u32) -> Model {
        let mut offsets = Vec::with_capacity(self.trees.len());
        let mut nodes = Vec::new();
        for tree in self.trees {
            offsets.push(nodes.len() as u32);
            nodes.extend(tree);
        }
        Model {
            features: self.features,
            outputs: self.columns.len() as u32,
            depth,
            offsets,
            nodes,
            values: self.values,
        }
    }
}

impl Node {
    /// A node that is still to be split or made a leaf.
    fn open() -> Self {
        Self {
            feature: LEAF,
            threshold: 0.0,
            left: 0,
            right: 0,
        }
    }
}
