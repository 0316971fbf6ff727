//! What `wasi:gpu` promises, on every device of the build: one body each, by `test_device!`.

mod buffers;
mod fixtures;
mod forest;
mod fuzz;
mod math;
mod support;
