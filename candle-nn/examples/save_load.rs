//! Saving a network's weights and loading them: into variables that are there, and into a new network.
//!
//! ```sh
//! cargo run -p candle-nn --features webgpu --example save_load -- [cpu|webgpu]
//! ```

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{linear, seq, Activation, Sequential, VarBuilder, VarMap};

/// Names come from `pp`, for "push prefix": `first.weight`, `first.bias`, `second.weight`, `second.bias`.
fn network(vb: VarBuilder) -> Result<Sequential> {
    Ok(seq()
        .add(linear(4, 8, vb.pp("first"))?)
        .add(Activation::Gelu)
        .add(linear(8, 2, vb.pp("second"))?))
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1).as_deref() {
        None => Device::best_available()?,
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(other) => bail!("unknown device `{other}`: give `cpu`, `webgpu` or nothing"),
    };
    println!("On {device:?}");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("network.safetensors");
    let x = Tensor::randn(0f32, 1., (3, 4), &device)?;

    // A network of random weights. `variables` keeps them by name, as training needs it.
    let variables = VarMap::new();
    let first = network(VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let want = first.forward(&x)?.to_vec2::<f32>()?;
    variables.save(&path)?;
    println!("Saved {} bytes:", std::fs::metadata(&path)?.len());
    let mut tensors = Vec::from_iter(candle_core::safetensors::load(&path, &device)?);
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, tensor) in tensors {
        println!("  {name:<14} {:?} {:?}", tensor.dtype(), tensor.dims());
    }

    // To train on: make the same network, then set its variables.
    let mut others = VarMap::new();
    let second = network(VarBuilder::from_varmap(&others, DType::F32, &device))?;
    let before = second.forward(&x)?.to_vec2::<f32>()?;
    others.load(&path)?;
    let after = second.forward(&x)?.to_vec2::<f32>()?;
    println!("Other random weights give {:.4?}", before[0]);
    println!("The loaded ones           {:.4?}", after[0]);

    // For inference only: the file is memory-mapped, and the network reads each weight from the mapping.
    // SAFETY: nothing changes the file while it is mapped.
    let file = unsafe { VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &device)? };
    let third = network(file.clone())?.forward(&x)?.to_vec2::<f32>()?;
    println!("A network from the file   {:.4?}", third[0]);
    if after != want || third != want || before == want {
        bail!("the saved network gives {want:?}")
    }

    // What does not fit the file is an error that says which tensor it is.
    let Err(shape) = linear(5, 8, file.pp("first")) else {
        bail!("a weight of another shape was taken")
    };
    println!("\nA wrong shape: {shape}");
    let Err(name) = linear(8, 2, file.pp("third")) else {
        bail!("a weight that is not in the file was found")
    };
    println!("A wrong name:  {name}");
    Ok(())
}
