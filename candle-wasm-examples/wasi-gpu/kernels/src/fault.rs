//! What kernels find wrong with the contents of buffers.

use crate::GpuError;

/// A kernel's complaint. On a GPU it is four words of the status buffer: the code, and the three fields in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("find-split: index {position} is {index}, but labels and data have {rows} rows: pass indices below that")]
    Index {
        position: u32,
        index: u32,
        rows: u32,
    },
    #[error("batch-predict: tree {tree} starts at node {node}, past the {nodes} nodes of tree-nodes: correct tree-offsets")]
    Root { tree: u32, node: u32, nodes: u32 },
    #[error("batch-predict: tree {tree}, sample {sample}: a node has the child {child}, past the end of tree-nodes: correct the node")]
    Child { tree: u32, sample: u32, child: u32 },
    #[error("batch-predict: tree {tree}, sample {sample}: a node looks at feature {feature}, past n-features: correct the node")]
    Feature {
        tree: u32,
        sample: u32,
        feature: u32,
    },
    #[error(
        "batch-predict: tree {tree}, sample {sample}: at node {node}, no leaf was reached in max-depth steps: the tree has a circle, \
         or max-depth must be larger"
    )]
    Depth { tree: u32, sample: u32, node: u32 },
}

impl Fault {
    /// Bytes of the status buffer.
    #[cfg(any(feature = "webgpu", feature = "cuda"))]
    pub(crate) const BYTES: usize = 16;

    /// The fault in the status buffer; `None` if its first word is 0.
    #[cfg(any(feature = "webgpu", feature = "cuda"))]
    pub(crate) fn from_words([code, a, b, c]: [u32; 4]) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Index {
                position: a,
                index: b,
                rows: c,
            },
            2 => Self::Root {
                tree: a,
                node: b,
                nodes: c,
            },
            3 => Self::Child {
                tree: a,
                sample: b,
                child: c,
            },
            4 => Self::Feature {
                tree: a,
                sample: b,
                feature: c,
            },
            _ => Self::Depth {
                tree: a,
                sample: b,
                node: c,
            },
        })
    }

    /// The fault in the bytes of a status buffer.
    #[cfg(any(feature = "webgpu", feature = "cuda"))]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Self::from_words(words)
    }
}

impl From<Fault> for GpuError {
    fn from(fault: Fault) -> Self {
        Self::KernelError(fault.to_string())
    }
}
