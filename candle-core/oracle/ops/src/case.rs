//! Requests to both sides, as data.

use crate::value::{Elements, Ty};

/// An op and its input tensors.
#[derive(Clone, Debug)]
pub struct Case {
    pub inputs: Vec<Input>,
    pub op: Op,
}

/// A tensor: its elements in memory order, and the view of them that is the op's input.
#[derive(Clone, Debug)]
pub struct Input {
    pub data: Elements,
    pub view: View,
}

impl Input {
    pub fn ty(&self) -> Ty {
        self.data.ty()
    }

    /// The shape of the op's input.
    pub fn dims(&self) -> &[usize] {
        &self.view.dims
    }
}

/// `base` permuted, then narrowed to `keep`, then broadcast to `dims`.
#[derive(Clone, Debug)]
pub struct View {
    /// The shape in memory.
    pub base: Vec<usize>,
    pub permute: Vec<usize>,
    /// Start and length of the kept part of each permuted dimension.
    pub keep: Vec<(usize, usize)>,
    pub dims: Vec<usize>,
}

impl View {
    /// Everything, in row-major order.
    pub fn whole(dims: &[usize]) -> Self {
        Self {
            base: dims.to_vec(),
            permute: (0..dims.len()).collect(),
            keep: dims.iter().map(|d| (0, *d)).collect(),
            dims: dims.to_vec(),
        }
    }
}

/// A dimension: counted from the front (0, 1, …) or, when negative, from the back.
pub type Axis = isize;

/// One entry of `t.i((…, …))`.
#[derive(Clone, Debug)]
pub enum Index {
    At(usize),
    All,
    Range(usize, usize),
    Inclusive(usize, usize),
    From(usize),
    To(usize),
    Ids(Vec<u32>),
}

/// Sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub padding: usize,
    pub output_padding: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
}

/// The method to call; the first input is `self`. Methods without parameters are identified by their name.
#[derive(Clone, Debug)]
pub enum Op {
    /// An op of the list of candle-conformance, of two matrices of the same shape.
    Listed(&'static str),
    /// `neg`, `exp`, …: those of the list.
    Unary(&'static str),
    /// Those of the list, `add`, `maximum`, `eq`, …; `pow`, `broadcast_add`, `broadcast_eq`, …
    Binary(&'static str),
    /// A comparison or `minimum`/`maximum` with a number of the tensor's dtype.
    WithScalar(&'static str, f64),
    /// `&t + 2.`, `2. / &t` and so on.
    Operator(&'static str, f64),
    Affine(f64, f64),
    Powf(f64),
    Elu(f64),
    Clamp(f64, f64),
    RoundTo(i32),
    /// Over several dimensions: `sum`, `sum_keepdim`, `mean`, `mean_keepdim`, `log_sum_exp`.
    Reduce(&'static str, Vec<usize>),
    /// Along one dimension: `max`, `argmin_keepdim`, `var`, `cumsum`, ….
    Along(&'static str, Axis),
    /// `sum_all`, `mean_all`, `max_all`, `min_all`, `norm`.
    Whole(&'static str),
    /// `matmul`, `broadcast_matmul`, `dot`, `mv`.
    Product(&'static str),
    Conv1d(Conv),
    Conv2d(Conv),
    ConvTranspose1d(Conv),
    ConvTranspose2d(Conv),
    /// `avg_pool2d`, `max_pool2d` with kernel and stride.
    Pool(&'static str, (usize, usize), (usize, usize)),
    /// `upsample_nearest1d`, `upsample_nearest2d`, `interpolate1d`, `interpolate2d`.
    Resize(&'static str, Vec<usize>),
    Bilinear(usize, usize, bool),
    BilinearScale(f64, f64, bool),
    /// `pad_with_zeros`, `pad_with_same`.
    Pad(&'static str, Axis, usize, usize),
    /// `index_select`, `gather`, `scatter`, `scatter_add`, `index_add`, `scatter_set`, `scatter_add_set`.
    ByIds(&'static str, Axis),
    Embedding,
    WhereCond,
    SliceAssign(Vec<(usize, usize)>),
    SliceSet(Axis, usize),
    SliceScatter(Axis, usize),
    SliceScatter0(usize),
    /// `zero_set`, `one_set`, or `const_set` with the number.
    Fill(&'static str, f64),
    /// `sort_last_dim`, `arg_sort_last_dim`.
    Sort(&'static str, bool),
    Cat(Axis),
    Stack(Axis),
    Chunk(usize, Axis),
    Meshgrid(bool),
    Flip(Vec<usize>),
    Roll(i32, Axis),
    Unfold(Axis, usize, usize),
    Repeat(Vec<usize>),
    Reshape(Vec<usize>),
    Transpose(Axis, Axis),
    Permute(Vec<usize>),
    Squeeze(Axis),
    Unsqueeze(Axis),
    Narrow(Axis, usize, usize),
    BroadcastAs(Vec<usize>),
    BroadcastLeft(Vec<usize>),
    Flatten(Axis, Axis),
    /// `t`, `flatten_all`, `contiguous`, `force_contiguous`, `copy`, `zeros_like`, `ones_like`, `detach`.
    Plain(&'static str),
    Get(usize),
    GetOnDim(Axis, usize),
    Index(Vec<Index>),
    ToDtype(Ty),
    /// `{}` and `{:?}`.
    Format,
    /// Constructors of tensors with only numbers as arguments: `arange`, `eye`, `tril2`, `triu2`, `full`.
    Make(&'static str, Ty, Vec<f64>),
    /// Several ops. The arguments are indices of inputs and, after them, of earlier results; the last result is the output.
    Chain(Vec<(Op, Vec<usize>)>),
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done(Vec<crate::value::Value>),
    Refused(String),
    Panicked(String),
}

/// A file format, and the function for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Npy,
    Npz,
    NpzByName,
    /// Only read: candle does not write it.
    Pickle,
    Safetensors,
    SafetensorsOne,
    SafetensorsMapped,
}

/// A format of quantised blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names that GGUF gives them")]
pub enum Block {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
}

impl Block {
    pub const ALL: [Block; 15] = [
        Block::F32,
        Block::F16,
        Block::BF16,
        Block::Q4_0,
        Block::Q4_1,
        Block::Q5_0,
        Block::Q5_1,
        Block::Q8_0,
        Block::Q8_1,
        Block::Q2K,
        Block::Q3K,
        Block::Q4K,
        Block::Q5K,
        Block::Q6K,
        Block::Q8K,
    ];
}
