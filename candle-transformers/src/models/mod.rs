//! The model families.

pub mod llama;
