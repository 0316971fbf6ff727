//! Training a small network to read handwritten digits, on 1,437 of them; 360 others show what it has learned.
//!
//! ```sh
//! cargo run -p candle-nn --features webgpu --example digits -- [cpu|webgpu]
//! ```
//!
//! `data/digits.py` says where the images come from: 8 by 8 pixels, from 0 to 16.

use candle_core::{bail, DType, Device, IndexOp, Module, Result, Tensor, D};
use candle_nn::{linear, loss, seq, Activation, AdamW, Optimizer, VarBuilder, VarMap};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits.npz");
const TRAINED_ON: usize = 1437;
const EPOCHS: usize = 20;
const BATCH: usize = 96;

fn main() -> Result<()> {
    let device = match std::env::args().nth(1).as_deref() {
        None => Device::best_available()?,
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(other) => bail!("unknown device `{other}`: give `cpu`, `webgpu` or nothing"),
    };
    device.set_seed(42)?;
    let [images, labels] = &Tensor::read_npz_by_name(FILE, &["images", "labels"])?[..] else {
        bail!("{FILE} must have two arrays")
    };
    println!("This is a {}:", labels.get(0)?.to_scalar::<u8>()?);
    for row in images.get(0)?.reshape((8, 8))?.to_vec2::<u8>()? {
        let shades = row.iter().map(|v| b" .:o#"[*v as usize / 4] as char);
        println!("    {}", shades.collect::<String>());
    }
    println!("Training on {device:?}");
    let images = (images.to_device(&device)?.to_dtype(DType::F32)? / 16.)?;
    let labels = labels.to_device(&device)?.to_dtype(DType::U32)?;
    let (new_images, new_labels) = (images.i(TRAINED_ON..)?, labels.i(TRAINED_ON..)?);

    // The layers make their variables in the map, and the optimiser changes them.
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let network = seq()
        .add(linear(64, 128, vb.pp("hidden"))?)
        .add(Activation::Relu)
        .add(linear(128, 10, vb.pp("digit"))?);
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 5e-3)?;

    for epoch in 1..=EPOCHS {
        // Another order in each epoch: the indices that would sort random numbers.
        let order = Tensor::rand(0f32, 1., TRAINED_ON, &device)?.arg_sort_last_dim(true)?;
        let mut sum = Tensor::zeros((), DType::F32, &device)?;
        for start in (0..TRAINED_ON).step_by(BATCH) {
            let batch = order.i(start..TRAINED_ON.min(start + BATCH))?;
            let logits = network.forward(&images.index_select(&batch, 0)?)?;
            let loss = loss::cross_entropy(&logits, &labels.index_select(&batch, 0)?)?;
            optimizer.backward_step(&loss)?;
            // Summed on the device, so that the program waits for it once an epoch only.
            sum = (sum + loss.detach())?;
        }
        let loss = sum.to_scalar::<f32>()? / TRAINED_ON.div_ceil(BATCH) as f32;
        let bar = "#".repeat((loss * 40.).min(80.) as usize);
        println!("epoch {epoch:>2}  loss {loss:.4}  {bar}");
    }

    let guesses = network.forward(&new_images)?.argmax(D::Minus1)?;
    let right = guesses.eq(&new_labels)?.to_dtype(DType::F32)?.mean_all()?;
    let accuracy = 100. * right.to_scalar::<f32>()?;
    println!("{accuracy:.1} % of the other digits are read correctly.");
    if accuracy <= 95. {
        bail!("it should be more than 95 %")
    }
    Ok(())
}
