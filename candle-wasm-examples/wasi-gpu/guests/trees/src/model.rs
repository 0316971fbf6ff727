//! A forest as bytes.
//!
//! All words are 32 bits, little-endian:
//!
//! | words | what |
//! | --- | --- |
//! | 1 | `WGF1` |
//! | 5 | features, outputs, depth (splits on the way to a leaf, at most), trees, nodes |
//! | trees | where each tree's root is, in nodes |
//! | 4 × nodes | feature, threshold, left, right; as `kernel-batch-predict` takes them, but a leaf's `left` numbers it |
//! | 1 | leaves |
//! | outputs × leaves | the leaves' values |

use crate::{Error, Result};

const MAGIC: u32 = u32::from_le_bytes(*b"WGF1");

/// A leaf's feature.
pub const LEAF: u32 = u32::MAX;

/// 16 bytes. A row goes left if its feature is at most the threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// [`LEAF`] if it is one.
    pub feature: u32,
    /// 0 in a leaf.
    pub threshold: f32,
    /// From the tree's root. A leaf has its own number here.
    pub left: u32,
    /// From the tree's root; 0 in a leaf.
    pub right: u32,
}

/// A trained forest.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub features: u32,
    /// 1, or the number of classes.
    pub outputs: u32,
    /// Splits on the way to a leaf, at most.
    pub depth: u32,
    /// Each tree's root, in `nodes`.
    pub offsets: Vec<u32>,
    pub nodes: Vec<Node>,
    /// `(leaves, outputs)`.
    pub values: Vec<f32>,
}

impl Model {
    /// The nodes as `kernel-batch-predict` takes them, for one of the outputs.
    pub(crate) fn words(&self, output: u32) -> Vec<u32> {
        let mut words = Vec::with_capacity(self.nodes.len() * 4);
        for node in &self.nodes {
            if node.feature == LEAF {
                let value = self.values[(node.left * self.outputs + output) as usize];
                words.extend([LEAF, value.to_bits(), 0, 0]);
            } else {
                words.extend([
                    node.feature,
                    node.threshold.to_bits(),
                    node.left,
                    node.right,
                ]);
            }
        }
        words
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![
            MAGIC,
            self.features,
            self.outputs,
            self.depth,
            self.offsets.len() as u32,
            self.nodes.len() as u32,
        ];
        words.extend(&self.offsets);
        for node in &self.nodes {
            words.extend([
                node.feature,
                node.threshold.to_bits(),
                node.left,
                node.right,
            ]);
        }
        words.push(self.values.len() as u32 / self.outputs);
        words.extend(self.values.iter().map(|value| value.to_bits()));
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are cut off or longer, or a node names a feature, child or leaf that does not exist, or a child that does not come
    /// after it (so that every walk ends).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { bytes };
        if reader.word()? != MAGIC {
            return Err(Error::Model("it does not begin with WGF1".to_string()));
        }
        let [features, outputs, depth, trees, count] = reader.array()?;
        if features == 0 || outputs == 0 || trees == 0 {
            return Err(Error::Model(format!(
                "{features} features, {outputs} outputs, {trees} trees: none of them can be 0"
            )));
        }
        let offsets = reader.words(trees, 1)?;
        let nodes = reader
            .words(count, 4)?
            .chunks_exact(4)
            .map(|word| Node {
                feature: word[0],
                threshold: f32::from_bits(word[1]),
                left: word[2],
                right: word[3],
            })
            .collect::<Vec<_>>();
        let leaves = reader.word()?;
        let values = reader
            .words(leaves, outputs)?
            .into_iter()
            .map(f32::from_bits)
            .collect();
        if !reader.bytes.is_empty() {
            return Err(Error::Model(format!(
                "{} bytes follow its end",
                reader.bytes.len()
            )));
        }
        for (tree, &start) in offsets.iter().enumerate() {
            let end = offsets.get(tree + 1).copied().unwrap_or(count);
            if start >= end || end > count || (tree == 0 && start != 0) {
                return Err(Error::Model(format!(
                    "tree {tree} has nodes {start} to {end} of {count}"
                )));
            }
            for at in start..end {
                let node = nodes[at as usize];
                let after = |child: u32| child > at - start && child < end - start;
                let good = if node.feature == LEAF {
                    node.left < leaves
                } else {
                    node.feature < features && after(node.left) && after(node.right)
                };
                if !good {
                    return Err(Error::Model(format!(
                        "node {} of tree {tree} is {node:?}, with {features} features, {} nodes in the tree and {leaves} leaves",
                        at - start,
                        end - start
                    )));
                }
            }
        }
        Ok(Self {
            features,
            outputs,
            depth,
            offsets,
            nodes,
            values,
        })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn word(&mut self) -> Result<u32> {
        let [word] = self.array()?;
        Ok(word)
    }

    fn array<const N: usize>(&mut self) -> Result<[u32; N]> {
        let words = self.words(N as u32, 1)?;
        Ok(std::array::from_fn(|i| words[i]))
    }

    /// `count` times `each` words.
    fn words(&mut self, count: u32, each: u32) -> Result<Vec<u32>> {
        let needed = u64::from(count) * u64::from(each) * 4;
        if needed > self.bytes.len() as u64 {
            return Err(Error::Model(format!(
                "{needed} bytes are missing, {} are left",
                self.bytes.len()
            )));
        }
        let (taken, rest) = self.bytes.split_at(needed as usize);
        self.bytes = rest;
        Ok(taken
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }
}
