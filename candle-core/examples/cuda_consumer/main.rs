//! A program that works below candle's tensors on CUDA, like inference engines: pointers for its kernels, streams, graphs.
//!
//! ```sh
//! cargo run -p candle-core --features cuda,nccl --example cuda_consumer -- [if-present]
//! ```
//!
//! It is written against upstream's names, and also compiles against upstream's feature `cuda`, except `kernels.rs`: there NVRTC compiles
//! what nvcc compiles elsewhere. With `if-present` a machine without a CUDA device is not an error.

mod graphs;
mod info;
mod kernels;
mod modules;
mod ops;
mod slices;

use candle_core::{Device, Result, Tensor};

fn main() -> Result<()> {
    let device = match Device::new_cuda(0) {
        Ok(device) => device,
        Err(reason) if std::env::args().any(|arg| arg == "if-present") => {
            println!("No CUDA device: {reason}");
            return Ok(());
        }
        Err(reason) => return Err(reason),
    };
    type Part = fn(&Device) -> Result<()>;
    let parts: [(&str, Part); 6] = [
        ("the card", info::check),
        ("slices and pointers", slices::check),
        ("custom ops", ops::check),
        ("modules", modules::check),
        ("graphs", graphs::check),
        ("a second stream", slices::second_stream),
    ];
    for (name, part) in parts {
        part(&device)?;
        println!("{name}: as expected");
    }
    Ok(())
}

/// Compares a tensor's elements with what they should be.
pub fn expect(tensor: &Tensor, want: &[f32]) -> Result<()> {
    let got = tensor.flatten_all()?.to_vec1::<f32>()?;
    if got != want {
        candle_core::bail!("got {got:?} instead of {want:?}")
    }
    Ok(())
}
