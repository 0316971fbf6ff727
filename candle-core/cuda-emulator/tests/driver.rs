//! Graphs, guards, several devices, and the library as an unmodified program opens it.
#![cfg(unix)]

mod common;
use candle_cuda_emulator::{copy::*, event::*, graph::*, stream::*};
use common::Gpu;
use std::process::Command;

const STEP: &str = r#"
extern "C" __global__ void step(float* x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}
extern "C" __global__ void past_end(float* x, int n) { x[n + threadIdx.x] = 0; }
extern "C" __global__ void half_wait(float* x) { if (threadIdx.x < 5) __syncwarp(); else __syncthreads(); }
"#;

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn a_graph_replays_what_was_captured() {
    let gpu = Gpu::new();
    let (function, x, y) = (
        gpu.function(STEP, "step"),
        gpu.upload(&[1f32; 8]),
        gpu.upload(&[0f32; 8]),
    );
    assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 1), 0);
    // The parameters are copied: later writes to them have no effect.
    let mut parameters = vec![x as u64, bits(2.0), 8];
    assert_eq!(gpu.launch(function, 1, 32, 0, &parameters), 0);
    parameters.fill(0);
    assert_eq!(cuMemcpyDtoDAsync_v2(y, x, 16, gpu.stream), 0);
    assert_eq!(cuMemsetD32Async(x, 5f32.to_bits(), 1, gpu.stream), 0);
    let mut capturing = 0;
    assert_eq!(cuStreamIsCapturing(gpu.stream, &mut capturing), 0);
    assert_eq!(capturing, 1);
    let (mut graph, mut instance) = (0, 0);
    assert_eq!(cuStreamEndCapture(gpu.stream, &mut graph), 0);
    assert_eq!(cuGraphInstantiateWithFlags(&mut instance, graph, 0), 0);
    assert_eq!(gpu.read::<f32>(x, 8), [1.0; 8]);
    for run in 1..4 {
        assert_eq!(cuGraphLaunch(instance, gpu.stream), 0);
        let first = if run == 1 { 3.0 } else { 7.0 };
        let other = 1.0 + 2.0 * run as f32;
        assert_eq!(gpu.read::<f32>(y, 5), [first, other, other, other, 0.0]);
        assert_eq!(gpu.read::<f32>(x, 2), [5.0, other]);
    }
    assert_eq!(cuGraphExecDestroy(instance), 0);
    assert_eq!(cuGraphDestroy(graph), 0);
    assert_ne!(cuGraphLaunch(instance, gpu.stream), 0);
}

#[test]
fn a_capture_does_not_bear_waiting() {
    let gpu = Gpu::new();
    assert_eq!(cuStreamBeginCapture_v2(gpu.stream, 1), 0);
    assert_eq!(cuStreamSynchronize(gpu.stream), 900);
    let mut graph = 1;
    assert_eq!(cuStreamEndCapture(gpu.stream, &mut graph), 901);
    assert_eq!(graph, 0);
    assert_eq!(cuStreamSynchronize(gpu.stream), 0);
}

#[test]
fn events_measure_and_streams_have_their_handles() {
    let gpu = Gpu::new();
    let (mut start, mut end, mut time) = (0, 0, 0f32);
    assert_eq!(cuEventCreate(&mut start, 0), 0);
    assert_eq!(cuEventCreate(&mut end, 0), 0);
    assert_eq!(cuEventRecord(start, gpu.stream), 0);
    assert_ne!(cuEventElapsedTime_v2(&mut time, start, end), 0);
    assert_eq!(cuEventRecord(end, gpu.stream), 0);
    assert_eq!(cuEventElapsedTime_v2(&mut time, start, end), 0);
    assert!(time >= 0.0);
    assert_eq!(cuEventDestroy_v2(start), 0);
    assert_eq!(cuEventDestroy_v2(start), 400);
    assert_eq!(cuStreamSynchronize(77), 400);
}

#[test]
fn copies_stay_in_their_allocations() {
    let gpu = Gpu::new();
    let (x, host) = (gpu.alloc(16), [0u8; 32]);
    assert_eq!(cuMemcpyHtoD_v2(x + 8, host.as_ptr() as usize, 8), 0);
    assert_eq!(cuMemcpyHtoD_v2(x + 8, host.as_ptr() as usize, 9), 1);
    assert_eq!(cuMemsetD8_v2(x, 0, 17), 1);
    assert_eq!(cuMemFreeAsync(x + 8, gpu.stream), 1);
    assert_eq!(cuMemFreeAsync(x, gpu.stream), 0);
    assert_eq!(cuMemFreeAsync(x, gpu.stream), 1);
    // Observed on an H100.
    let mut none = 1;
    assert_eq!(cuMemAllocAsync(&mut none, 0, gpu.stream), 0);
    assert_eq!(none, 0);
    assert_eq!(cuMemFreeAsync(none, gpu.stream), 0);
    assert_eq!(cuMemAlloc_v2(&mut none, 0), 1);
    assert_eq!(cuMemsetD8Async(0, 0, 0, gpu.stream), 0);
    assert_eq!(cuMemcpyDtoDAsync_v2(0, 0, 0, gpu.stream), 0);
}

/// Runs one of this file's ignored tests in a process that it may abort; returns the process's output.
fn ends(test: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--ignored", "--exact", "--nocapture", test])
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_write_past_the_end_ends_the_program() {
    let said = ends("child_past_end");
    assert!(
        said.contains("past_end") && said.contains("byte 40 of an allocation of 40 bytes"),
        "{said}"
    );
}

#[test]
#[ignore = "ends its process"]
fn child_past_end() {
    let gpu = Gpu::new();
    let x = gpu.alloc(40);
    gpu.launch(gpu.function(STEP, "past_end"), 1, 1, 0, &[x as u64, 10]);
}

#[test]
fn a_barrier_that_some_threads_miss_ends_the_program() {
    let said = ends("child_half_wait");
    assert!(
        said.contains("half_wait") && said.contains("no thread of the block can go on"),
        "{said}"
    );
}

#[test]
#[ignore = "ends its process"]
fn child_half_wait() {
    let gpu = Gpu::new();
    let x = gpu.alloc(40);
    gpu.launch(gpu.function(STEP, "half_wait"), 1, 64, 0, &[x as u64]);
}
