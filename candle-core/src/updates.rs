//! The argument of ops that write by index, for every GPU.

use crate::Layout;

/// The elements that are written along `dim`, and their indexes: `ids_l` and `src_l` have the same shape.
pub(crate) struct Updates<'a, S> {
    pub(crate) ids: &'a S,
    pub(crate) ids_l: &'a Layout,
    pub(crate) src: &'a S,
    pub(crate) src_l: &'a Layout,
    pub(crate) dim: usize,
}
