use candle_core::{Device, Tensor, DType, Result};
fn main() -> Result<()> {
    let d = Device::new_webgpu(0)?;
    println!("{d:?}");
    for dt in [DType::F32, DType::F16, DType::BF16] {
      for (m,k,n) in [(1,64,64),(1,256,768),(3,130,62),(8,64,10),(20,100,33),(65,64,66),(130,257,140)] {
        let a = Tensor::randn(0f32, 1., (m,k), &Device::Cpu)?.to_dtype(dt)?;
        let b = Tensor::randn(0f32, 1., (n,k), &Device::Cpu)?.to_dtype(dt)?;
        let want = a.matmul(&b.t()?)?.to_dtype(DType::F32)?;
        let got = a.to_device(&d)?.matmul(&b.to_device(&d)?.t()?)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let diff = (&want - &got)?.abs()?.max_all()?.to_scalar::<f32>()?;
        let b2 = b.t()?.contiguous()?;
        let got2 = a.to_device(&d)?.matmul(&b2.to_device(&d)?)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let diff2 = (&want - &got2)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!("{dt:?} {m}x{k}x{n}: {diff} {diff2}");
      }
    }
    Ok(())
}
