//! Tests of the models, their blocks and the sampling, each on every device that the build has.

// What threads share holds devices: rustc looks through all types of wgpu, and with `metal` through one more level.
#![recursion_limit = "256"]

mod cases;
