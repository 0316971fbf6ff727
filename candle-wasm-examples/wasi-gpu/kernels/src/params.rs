//! The parameters of the kernels, with the interface's names. Counts are in elements.

/// Parameters of `kernel-bootstrap-sample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapParams {
    /// Number of indices to draw.
    pub n_samples: u32,
    pub seed: u32,
    /// Indices are below it.
    pub max_index: u32,
}

/// Parameters of `kernel-find-split`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindSplitParams {
    /// Rows in the node: how many indices there are.
    pub n_samples: u32,
    /// Columns of the data.
    pub n_features: u32,
    /// The column that is split.
    pub feature_idx: u32,
    pub n_thresholds: u32,
}

/// Parameters of `kernel-average`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AverageParams {
    pub n_trees: u32,
    pub n_samples: u32,
}

/// Parameters of `kernel-matmul`: C = alpha · op(A) · op(B) + beta · C, all row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatmulParams {
    pub m: u32,
    pub k: u32,
    pub n: u32,
    /// A is stored `(k, m)`.
    pub trans_a: bool,
    /// B is stored `(n, k)`.
    pub trans_b: bool,
    pub alpha: f32,
    /// With 0, C is not read.
    pub beta: f32,
}

impl MatmulParams {
    /// Whether C becomes the product as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.alpha == 1. && self.beta == 0.
    }
}

/// The function of `kernel-elementwise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementwiseOp {
    Relu,
    Sigmoid,
    Tanh,
    Add,
    Mul,
    Sqrt,
    Exp,
    Log,
}

/// Parameters of `kernel-elementwise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementwiseParams {
    pub n_elements: u32,
    pub op: ElementwiseOp,
}

/// The function of `kernel-reduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Sum,
    Max,
    Min,
    Mean,
    /// The population variance: divided by the number of elements.
    Variance,
}

/// Parameters of `kernel-reduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceParams {
    pub n_elements: u32,
    pub op: ReduceOp,
}

/// Parameters of `kernel-batch-predict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPredictParams {
    pub batch_size: u32,
    pub n_features: u32,
    pub n_trees: u32,
    /// A sample takes at most this many steps down a tree.
    pub max_depth: u32,
}
