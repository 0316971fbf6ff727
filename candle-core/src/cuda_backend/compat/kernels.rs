//! The names of upstream's kernel modules (its crate `candle-kernels`).
//!
//! Upstream compiles its kernels at build time, into eleven PTX modules. This backend compiles each kernel for the dtypes, the layout and
//! the card on first use, so these modules do not exist: [`Module::ptx`] is empty. A program that searches the PTX for kernels to load in
//! advance finds none, and needs none. [`CudaDevice::get_or_load_func`](super::super::CudaDevice::get_or_load_func) returns an error with
//! this explanation.

macro_rules! modules {
    ($($id:ident $name:ident,)+) => {
        /// One of upstream's modules.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the modules' names")]
        pub enum Id {
            $($id,)+
        }

        /// All modules, in the order of their indices.
        pub const ALL_IDS: [Id; [$(Id::$id),+].len()] = [$(Id::$id),+];

        $(
            #[doc = concat!("Upstream's module `", stringify!($name), "`.")]
            pub const $name: Module = Module { id: Id::$id };
        )+
    };
}

modules! {
    Affine AFFINE,
    Binary BINARY,
    Cast CAST,
    Conv CONV,
    Fill FILL,
    Indexing INDEXING,
    Quantized QUANTIZED,
    Reduce REDUCE,
    Sort SORT,
    Ternary TERNARY,
    Unary UNARY,
}

/// A module of kernels, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Module {
    id: Id,
}

impl Module {
    /// Its index in [`ALL_IDS`].
    pub fn index(&self) -> usize {
        self.id as usize
    }

    /// Empty: this backend has no PTX to compile.
    pub fn ptx(&self) -> &'static str {
        ""
    }

    /// The module's id.
    pub fn id(&self) -> Id {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::{Id, AFFINE, ALL_IDS, UNARY};

    #[test]
    fn modules_are_counted_as_upstream_counts_them() {
        assert_eq!(ALL_IDS.len(), 11);
        for (place, id) in ALL_IDS.into_iter().enumerate() {
            assert_eq!(super::Module { id }.index(), place);
        }
        assert_eq!((AFFINE.index(), AFFINE.id()), (0, Id::Affine));
        assert_eq!(UNARY.index(), 10);
    }

    /// mistral.rs loads every name that it finds in the PTX.
    #[test]
    fn a_search_for_kernels_to_load_ahead_finds_none() {
        let entries = AFFINE.ptx().lines().filter(|line| line.contains(".entry"));
        assert_eq!(entries.count(), 0);
    }
}
