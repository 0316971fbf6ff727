//! Layers and fused ops. Each test body runs on every device of the build; the CPU in f32 (f64 for f64) is the judge.

mod nn;
