//! Items that exist only so that programs written for upstream compile: names, and types that nothing here computes with.
//!
//! `lib.rs` re-exports it at upstream's paths. The devices and storages of absent backends are not here but in `absent.rs`: the dispatch
//! matches on them.

pub mod cuda;
pub mod dummy_dtype;
pub mod metal;
