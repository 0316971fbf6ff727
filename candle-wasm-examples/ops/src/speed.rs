//! Times of single ops, for comparisons with other libraries in the same browser.

use candle_core::{Device, Result, Tensor};

/// An op with its arguments, ready to run.
pub type Op = Box<dyn Fn() -> Result<Tensor>>;

/// Makes an op's arguments on a device: f32, uniform in -1 to 1.
type Prepare = fn(&Device) -> Result<Op>;

/// The ops, by name.
pub const OPS: [(&str, Prepare); 4] = [
    ("matmul 512x512x512", |device| matmul(512, 512, 512, device)),
    ("matmul 1x2048x2048", |device| matmul(1, 2048, 2048, device)),
    ("softmax 512x1024", |device| {
        let xs = random(&[512, 1024], device)?;
        Ok(Box::new(move || candle_nn::ops::softmax_last_dim(&xs)))
    }),
    ("layer norm 512x1024", |device| {
        let xs = random(&[512, 1024], device)?;
        let alpha = random(&[1024], device)?;
        let beta = random(&[1024], device)?;
        Ok(Box::new(move || {
            candle_nn::ops::layer_norm(&xs, &alpha, &beta, 1e-5)
        }))
    }),
];

/// `(m, k)` by `(k, n)`.
fn matmul(m: usize, k: usize, n: usize, device: &Device) -> Result<Op> {
    let lhs = random(&[m, k], device)?;
    let rhs = random(&[k, n], device)?;
    Ok(Box::new(move || lhs.matmul(&rhs)))
}

fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::rand(-1f32, 1f32, shape, device)
}

/// Runs an op this many times, and waits for the last result: a GPU executes its commands in order.
pub async fn run(op: &Op, runs: usize) -> Result<()> {
    let mut last = None;
    for _ in 0..runs {
        last = Some(op()?);
    }
    if let Some(last) = last {
        let one = last.flatten_all()?.narrow(0, 0, 1)?;
        one.to_vec1_async::<f32>().await?;
    }
    Ok(())
}
