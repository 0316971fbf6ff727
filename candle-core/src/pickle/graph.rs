//! The values of a pickle while it is read: shared, as in Python, and converted to trees on request.
//!
//! A pickle can refer to one value many times, and a value can contain itself. Values are therefore stored in one vector and refer to each
//! other by index: memory is proportional to the pickle, and freeing the values needs no recursion. Only [`Graph::tree`] repeats shared
//! values, within bounds.

use super::Object;
use crate::Result;

/// Maximum nesting depth of a tree; checkpoints stay below ten. Each level takes a few kilobytes of stack in a build without optimisation.
const MAX_DEPTH: usize = 64;

/// Maximum size of a tree, in bytes per byte of the pickle. A tensor's entry takes about five.
const TREE_BYTES_PER_BYTE: usize = 64;

/// Size in bytes that a tree may have however short the pickle is.
const TREE_BYTES_ALWAYS: usize = 1 << 16;

/// The index of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u32);

/// A value that refers to its parts by index.
pub(super) enum Node {
    None,
    Bool(bool),
    Mark,
    Int(i32),
    Long(i64),
    Float(f64),
    Text(Box<str>),
    /// Module and name.
    Class(Box<(Box<str>, Box<str>)>),
    Tuple(Box<[Id]>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    PersistentLoad(Id),
    Reduce {
        callable: Id,
        args: Id,
    },
    Build {
        callable: Id,
        args: Id,
    },
}

impl Node {
    /// A name for its kind, short enough for an error.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a boolean",
            Self::Mark => "a mark",
            Self::Int(_) | Self::Long(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Class(_) => "a class",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dictionary",
            Self::PersistentLoad(_) => "a storage",
            Self::Reduce { .. } => "the result of a call",
            Self::Build { .. } => "an object with a state",
        }
    }
}

/// All values of a pickle.
pub(super) struct Graph(Vec<Node>);

impl Graph {
    pub(super) const NONE: Id = Id(0);
    pub(super) const FALSE: Id = Id(1);
    pub(super) const TRUE: Id = Id(2);
    pub(super) const MARK: Id = Id(3);
    pub(super) const EMPTY_TUPLE: Id = Id(4);

    /// A graph with the values that single-byte instructions push, each once.
    pub(super) fn new() -> Self {
        Self(vec![
            Node::None,
            Node::Bool(false),
            Node::Bool(true),
            Node::Mark,
            Node::Tuple(Box::default()),
        ])
    }

    pub(super) fn add(&mut self, node: Node) -> Result<Id> {
        let id = u32::try_from(self.0.len())?;
        self.0.push(node);
        Ok(Id(id))
    }

    pub(super) fn get(&self, id: Id) -> &Node {
        &self.0[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut Node {
        &mut self.0[id.0 as usize]
    }

    /// The persistent id of each load.
    pub(super) fn persistent_loads(&self) -> Vec<Id> {
        let ids = self.0.iter().filter_map(|node| match node {
            Node::PersistentLoad(id) => Some(*id),
            _ => None,
        });
        ids.collect()
    }

    /// The value with all its parts, for a pickle of `pickle_len` bytes.
    ///
    /// # Errors
    /// If it is nested too deep, as a value that contains itself always is, or if sharing makes it many times as large as the pickle.
    pub(super) fn tree(&self, id: Id, pickle_len: u64) -> Result<Object> {
        TreeBuilder::new(self, pickle_len).build(id, 0)
    }

    /// The values with all their parts, together within the bounds of a single tree; values that exceed them are `None`.
    pub(super) fn trees(&self, ids: &[Id], pickle_len: u64) -> Vec<Object> {
        let mut builder = TreeBuilder::new(self, pickle_len);
        let tree = |&id| builder.build(id, 0).unwrap_or(Object::None);
        ids.iter().map(tree).collect()
    }
}

/// Builds trees and counts their bytes.
struct TreeBuilder<'a> {
    graph: &'a Graph,
    limit: usize,
    left: usize,
}

impl<'a> TreeBuilder<'a> {
    fn new(graph: &'a Graph, pickle_len: u64) -> Self {
        let len = usize::try_from(pickle_len).unwrap_or(usize::MAX);
        let limit = len
            .saturating_mul(TREE_BYTES_PER_BYTE)
            .saturating_add(TREE_BYTES_ALWAYS);
        Self {
            graph,
            limit,
            left: limit,
        }
    }
}

impl TreeBuilder<'_> {
    fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => crate::bail!("shared values exceed {} bytes when expanded", self.limit),
        }
    }

    fn text(&mut self, text: &str) -> Result<String> {
        self.charge(text.len())?;
        Ok(text.to_string())
    }

    fn items(&mut self, ids: &[Id], depth: usize) -> Result<Vec<Object>> {
        // Checked before memory is reserved.
        self.charge(size_of_val(ids))?;
        ids.iter().map(|&id| self.build(id, depth)).collect()
    }

    fn boxed(&mut self, id: Id, depth: usize) -> Result<Box<Object>> {
        self.build(id, depth).map(Box::new)
    }

    fn build(&mut self, id: Id, depth: usize) -> Result<Object> {
        if depth > MAX_DEPTH {
            crate::bail!("values are nested more than {MAX_DEPTH} levels deep")
        }
        self.charge(size_of::<Object>())?;
        let depth = depth + 1;
        let graph = self.graph;
        Ok(match graph.get(id) {
            Node::None => Object::None,
            Node::Bool(value) => Object::Bool(*value),
            Node::Mark => Object::Mark,
            Node::Int(value) => Object::Int(*value),
            Node::Long(value) => Object::Long(*value),
            Node::Float(value) => Object::Float(*value),
            Node::Text(text) => Object::Unicode(self.text(text)?),
            Node::Class(names) => Object::Class {
                module_name: self.text(&names.0)?,
                class_name: self.text(&names.1)?,
            },
            Node::Tuple(ids) => Object::Tuple(self.items(ids, depth)?),
            Node::List(ids) => Object::List(self.items(ids, depth)?),
            Node::Dict(items) => {
                self.charge(size_of_val(items.as_slice()))?;
                let pair = |&(key, value)| Ok((self.build(key, depth)?, self.build(value, depth)?));
                Object::Dict(items.iter().map(pair).collect::<Result<_>>()?)
            }
            Node::PersistentLoad(id) => Object::PersistentLoad(self.boxed(*id, depth)?),
            Node::Reduce { callable, args } => Object::Reduce {
                callable: self.boxed(*callable, depth)?,
                args: self.boxed(*args, depth)?,
            },
            Node::Build { callable, args } => Object::Build {
                callable: self.boxed(*callable, depth)?,
                args: self.boxed(*args, depth)?,
            },
        })
    }
}
