//! First tensors: the available devices, and a few ops on one of them.
//!
//! ```sh
//! cargo run -p candle-core --features webgpu --example first_tensor -- [cpu|webgpu]
//! ```
//!
//! Without an argument it uses the best available device.

use candle_core::{bail, DType, Device, DeviceProbe, Result, Tensor};

fn main() -> Result<()> {
    let device = device(std::env::args().nth(1).as_deref())?;
    println!("Devices:");
    for DeviceProbe { name, found } in Device::probe() {
        match found {
            Ok(device) if device.is_software_gpu() => println!("  {name:<6}  {device:?}, software"),
            Ok(device) => println!("  {name:<6}  {device:?}"),
            Err(reason) => println!("  {name:<6}  no: {reason}"),
        }
    }
    println!("Tensors are made on: {device:?}\n");

    // A tensor is a shape, a dtype and a device.
    let a = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &device)?;
    println!("a = {a}");
    let b = Tensor::arange(0f32, 12., &device)?.reshape((3, 4))?;
    println!("b = {b}");

    // (2, 3) times (3, 4) is (2, 4).
    let product = a.matmul(&b)?;
    println!("a b = {product}");

    // A row of 4 is added to both rows: the `broadcast_` methods repeat missing dimensions.
    let row = Tensor::new(&[100f32, 200., 300., 400.], &device)?;
    let sum = product.broadcast_add(&row)?;
    println!("a b + row = {sum}");

    // Operators with a number apply to each element. They return a `Result` too, hence the parentheses with `?`.
    let scaled = ((&sum - 100.)? / 10.)?;
    println!("its means by column = {}", scaled.mean(0)?);

    // Views share the memory: nothing is copied here.
    let corner = scaled.t()?.narrow(0, 2, 2)?;
    println!("the last two rows of its transpose = {corner}");

    // Reading a value waits for the device.
    let total = scaled.sum_all()?.to_scalar::<f32>()?;
    println!("its sum = {total}");
    if (total - 172.6).abs() > 1e-3 {
        bail!("the sum is {total}, it should be 172.6")
    }

    // A mismatch is an error with an explanation, not a panic.
    if let Err(error) = a.matmul(&row.to_dtype(DType::F64)?) {
        println!("\na row = Error: {error}");
    }
    Ok(())
}

fn device(name: Option<&str>) -> Result<Device> {
    match name {
        None => Device::best_available(),
        Some("cpu") => Ok(Device::Cpu),
        Some("webgpu") => Device::new_webgpu(0),
        Some(other) => bail!("unknown device `{other}`: give `cpu`, `webgpu` or nothing"),
    }
}
