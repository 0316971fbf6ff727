//! `candle:timings/loops`: times calls of `wasi:gpu` from inside a guest.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Instant;

use bindings::exports::candle::timings::loops::{Call, Guest, Times};
use gpu::compute::{
    buffer_copy, buffer_create, buffer_destroy, buffer_read, buffer_write, sync, BufferId,
    BufferUsage, GpuError,
};
use gpu::ml_kernels::{
    kernel_elementwise, kernel_matmul, ElementwiseOp, ElementwiseParams, MatmulParams,
};

mod bindings {
    wit_bindgen::generate!({
        world: "timings",
        path: "../wit/timings.wit",
        pub_export_macro: true,
    });
}

mod gpu {
    mod bindings {
        wit_bindgen::generate!({
            world: "ml-compute",
            path: "../../wit/0.1",
        });
    }
    pub use bindings::wasi::gpu::{compute, ml_kernels};
}

/// Rows of a matrix that linear memory has room for.
const MOST: u32 = 8192;

struct Component;

bindings::export!(Component with_types_in bindings);

thread_local! {
    static MATRICES: Cell<Option<Matrices>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Matrices {
    size: u32,
    a: BufferId,
    b: BufferId,
    c: BufferId,
}

impl Guest for Component {
    fn calls(call: Call, count: u32) -> Result<Times, String> {
        let buffer = create(4)?;
        let other = create(4)?;
        let params = ElementwiseParams {
            n_elements: 1,
            op: ElementwiseOp::Relu,
        };
        // Buffer 0 does not exist.
        let times = timed(count, || match call {
            Call::Refused => refused(buffer_destroy(0)),
            Call::RefusedKernel => refused(kernel_elementwise(params, 0, None, 0)),
            Call::Write => buffer_write(buffer, 0, &[0; 4]).map_err(text),
            Call::Copy => buffer_copy(buffer, 0, other, 0, 4).map_err(text),
            Call::Kernel => kernel_elementwise(params, buffer, None, other).map_err(text),
            Call::Read => buffer_read(buffer, 0, 4).map(drop).map_err(text),
        })?;
        // Reports errors of the queued work.
        buffer_read(other, 0, 4).map_err(text)?;
        destroy([buffer, other])?;
        Ok(times)
    }

    fn prepare(size: u32) -> Result<(), String> {
        if !(1..=MOST).contains(&size) {
            return Err(format!("matrices have 1 to {MOST} rows, not {size}"));
        }
        if let Some(old) = MATRICES.take() {
            destroy([old.a, old.b, old.c])?;
        }
        let matrix = |seed| {
            let values: Vec<f32> = (0..size * size).map(|i| value(i, seed)).collect();
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            let buffer = create(bytes.len() as u64)?;
            buffer_write(buffer, 0, bytes).map_err(text)?;
            Ok::<_, String>(buffer)
        };
        let (a, b) = (matrix(1)?, matrix(2)?);
        let c = create(u64::from(size).pow(2) * 4)?;
        MATRICES.set(Some(Matrices { size, a, b, c }));
        Ok(())
    }

    fn products(count: u32) -> Result<Times, String> {
        let Matrices { size, a, b, c } = matrices()?;
        let params = MatmulParams {
            m: size,
            k: size,
            n: size,
            trans_a: false,
            trans_b: false,
            alpha: 1.,
            beta: 0.,
        };
        timed(count, || kernel_matmul(params, a, b, c).map_err(text))
    }

    fn last_row() -> Result<Vec<f32>, String> {
        let Matrices { size, c, .. } = matrices()?;
        let start = u64::from(size) * u64::from(size - 1) * 4;
        let bytes = buffer_read(c, start, size * 4).map_err(text)?;
        let words = bytes.chunks_exact(4);
        Ok(words.map(bytemuck::pod_read_unaligned).collect())
    }
}

/// Element `i` of a matrix, from −0.5 to 0.5; the host's example computes the same.
fn value(i: u32, seed: u32) -> f32 {
    (i.wrapping_mul(0x9e37_79b9).wrapping_mul(seed) >> 8) as f32 / (1 << 24) as f32 - 0.5
}

fn matrices() -> Result<Matrices, String> {
    MATRICES
        .get()
        .ok_or_else(|| "there are no matrices: call prepare first".to_string())
}

/// Times `count` calls on an idle device.
fn timed(count: u32, mut call: impl FnMut() -> Result<(), String>) -> Result<Times, String> {
    sync();
    let start = Instant::now();
    for _ in 0..count {
        call()?;
    }
    let queued = start.elapsed().as_nanos() as u64;
    sync();
    let done = start.elapsed().as_nanos() as u64;
    Ok(Times { queued, done })
}

/// Whether the host refused a buffer, as it should.
fn refused(result: Result<(), GpuError>) -> Result<(), String> {
    match result {
        Err(GpuError::InvalidBuffer) => Ok(()),
        other => Err(format!("buffer 0 was not refused: {other:?}")),
    }
}

fn create(size: u64) -> Result<BufferId, String> {
    buffer_create(size, BufferUsage::STORAGE).map_err(text)
}

fn destroy<const N: usize>(buffers: [BufferId; N]) -> Result<(), String> {
    buffers
        .into_iter()
        .try_for_each(|buffer| buffer_destroy(buffer).map_err(text))
}

fn text(error: GpuError) -> String {
    error.to_string()
}
