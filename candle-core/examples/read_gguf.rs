//! Contents of a GGUF file: its metadata, its tensors with shape and format, and a product with one of them.
//!
//! ```sh
//! cargo run -p candle-core --features webgpu --example read_gguf -- [cpu|webgpu] [FILE]
//! ```
//!
//! Without FILE it reads a small file of the tests, with a tensor in each format.

use candle_core::quantized::{gguf_file::Content, QMatMul, QTensor};
use candle_core::{bail, DType, Device, Error, Module, Result, Tensor};

const SMALL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/gguf/formats.gguf"
);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let path = args.next().unwrap_or(SMALL.into());
    let mut file = std::fs::File::open(&path).map_err(|err| {
        let usage = "usage: read_gguf [cpu|webgpu] [FILE]";
        Error::msg(format!("cannot open `{path}`: {err}; {usage}"))
    })?;
    // Only the header is read here; a tensor is read on request.
    let content = Content::read(&mut file).map_err(|err| err.with_path(&path))?;

    println!("{path}, {:?}\nMetadata:", content.magic);
    let mut metadata: Vec<_> = content.metadata.iter().collect();
    metadata.sort_by_key(|(key, _)| *key);
    for (key, value) in metadata {
        let text: String = format!("{value:?}").chars().take(80).collect();
        println!("  {key:<32} {text}");
    }

    println!("{} tensors:", content.tensor_infos.len());
    let mut tensors: Vec<_> = content.tensor_infos.iter().collect();
    tensors.sort_by_key(|(_, info)| info.offset);
    for (name, info) in &tensors {
        let (format, dims) = (format!("{:?}", info.ggml_dtype), info.shape.dims());
        println!("  {name:<32} {format:<6} {dims:?}");
    }

    // The first quantised matrix: a row of it holds blocks of numbers that share a scale.
    let quantised = tensors
        .iter()
        .find(|(_, info)| info.shape.rank() == 2 && info.ggml_dtype.block_size() > 1);
    let Some((name, _)) = quantised else {
        bail!("`{path}` has no quantised matrix to multiply by")
    };
    let weight = content.tensor(&mut file, name, &device)?;
    multiply(name, weight, &device)
}

/// x Wᵀ from the blocks directly, and from the dequantised numbers.
fn multiply(name: &str, weight: QTensor, device: &Device) -> Result<()> {
    let (bytes, decoded) = (weight.storage_size_in_bytes(), weight.dequantize(device)?);
    let (n, k) = decoded.dims2()?;
    println!("\n{name} on {device:?}: {n} x {k} numbers in {bytes} bytes");
    let first = decoded.get(0)?.narrow(0, 0, k.min(6))?.to_vec1::<f32>()?;
    println!("It begins with {first:.4?}");
    let x = Tensor::arange(0f32, k as f32, device)?.affine(1. / k as f64, -0.5)?;
    let x = x.reshape((1, k))?.to_dtype(DType::F32)?;
    let product = QMatMul::from_qtensor(weight)?.forward(&x)?;
    let exact = x.matmul(&decoded.t()?)?;
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>();
    let error = norm(&(&product - &exact)?)? / norm(&exact)?;
    println!("A row times its transpose has {n} numbers, {error:.1e} from the decoded weight's.");
    if error.is_nan() || error > 0.02 {
        bail!("the product with the blocks differs too much from the one with the decoded weight")
    }
    Ok(())
}
