//! Requests of ranks to their group, and the arithmetic on the host.

use crate::{bail, DType, Device, Result, Tensor};

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    AllReduce,
    AllGather {
        dim: usize,
    },
    Broadcast {
        root: usize,
    },
    /// Several calls that a card has recorded and launches as one; `dims` holds their number and a digest.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    Recording,
}

/// One rank's call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather { .. } => "all_gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Recording => "a recording",
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.op.name())?;
        match self.op {
            Op::AllReduce | Op::Recording => {}
            Op::AllGather { dim } => write!(f, " along dimension {dim}")?,
            Op::Broadcast { root } => write!(f, " from rank {root}")?,
        }
        write!(f, " of {:?} {:?}", self.dims, self.dtype)
    }
}

impl Call {
    /// The call that a rank of `world` makes, checked for what a single rank can know.
    pub(crate) fn new(op: Op, xs: &Tensor, world: usize) -> Result<Self> {
        let name = op.name();
        if xs.track_op() {
            bail!(
                "{name}: gradients do not flow between ranks, but autograd tracks the tensor; detach it first"
            )
        }
        match op {
            Op::AllGather { dim } if dim >= xs.rank() => {
                bail!(
                    "{name}: dimension {dim} of a tensor of shape {:?}",
                    xs.dims()
                )
            }
            Op::Broadcast { root } if root >= world => {
                bail!("{name} from rank {root}, but there are {world} ranks, counted from 0")
            }
            Op::AllReduce if !has_sum(xs.dtype()) => {
                bail!("{name}: {:?} does not support sums", xs.dtype())
            }
            _ => Ok(Self {
                op,
                dtype: xs.dtype(),
                dims: xs.dims().to_vec(),
            }),
        }
    }

    /// The shape of the result.
    pub(crate) fn result_dims(&self, world: usize) -> Vec<usize> {
        let mut dims = self.dims.clone();
        if let Op::AllGather { dim } = self.op {
            dims[dim] *= world;
        }
        dims
    }

    /// The result for the tensors of all ranks, which are on the CPU.
    pub(crate) fn result(&self, parts: &[Tensor]) -> Result<Tensor> {
        match self.op {
            Op::AllReduce => sum(parts),
            Op::AllGather { dim } => Tensor::cat(parts, dim),
            Op::Broadcast { root } => match parts.get(root) {
                // Ranks that are threads must not see another rank's changes.
                Some(part) => part.copy(),
                None => bail!("broadcast from rank {root} of {}", parts.len()),
            },
            Op::Recording => bail!("a recording has no result"),
        }
    }
}

/// The first difference between calls that have to be equal: the calls of two ranks. `None` if all are equal.
pub(crate) fn difference<'a>(mut calls: impl Iterator<Item = (usize, &'a Call)>) -> Option<String> {
    let (first_rank, first) = calls.next()?;
    let (rank, other) = calls.find(|(_, call)| *call != first)?;
    Some(format!(
        "ranks disagree: rank {first_rank} calls {first}, rank {rank} calls {other}"
    ))
}

fn has_sum(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0
    )
}

/// The sum in the order of the ranks. Floats of 16 and 8 bits are added as f32 and rounded once.
fn sum(parts: &[Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        bail!("all_reduce: a group without ranks")
    };
    let dtype = first.dtype();
    let wide = match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        other => other,
    };
    let mut sum = first.to_dtype(wide)?;
    for part in &parts[1..] {
        sum = (sum + part.to_dtype(wide)?)?;
    }
    sum.to_dtype(dtype)
}

/// A rank's tensor for other ranks to read: on the CPU, contiguous, and independent of later changes to the rank's own.
pub(crate) fn to_host(xs: &Tensor) -> Result<Tensor> {
    if xs.device().is_cpu() {
        xs.copy()?.contiguous()
    } else {
        xs.to_device(&Device::Cpu)?.contiguous()
    }
}
