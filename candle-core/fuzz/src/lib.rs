//! The fuzz targets, one for each of candle-core's file formats. `candle-core/tests/corpus.rs` runs the same targets over the valid files
//! and mutations of them.

mod bounded;
pub mod targets;
