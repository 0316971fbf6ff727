//! An op that Candle does not have, for every device: softsign, x / (1 + |x|), with its gradient and a kernel in WGSL.
//!
//! ```sh
//! cargo run -p candle-core --features webgpu --example custom_op -- [cpu|webgpu]
//! ```

#[cfg(feature = "webgpu")]
use candle_core::{backend::BackendStorage, webgpu_backend::WgslKernel, DType, WebGpuStorage};
use candle_core::{bail, cpu_backend::unary_map, CpuStorage, CustomOp1, Device, Layout, Result};
use candle_core::{Shape, Tensor, Var};

struct Softsign;

impl CustomOp1 for Softsign {
    fn name(&self) -> &'static str {
        "softsign"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = unary_map(x.as_slice::<f32>()?, layout, |x| x / (1. + x.abs()));
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    // The trait has this method only with the feature.
    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(&self, x: &WebGpuStorage, layout: &Layout) -> Result<(WebGpuStorage, Shape)> {
        let DType::F32 = x.dtype() else {
            bail!("softsign takes f32, got {:?}", x.dtype())
        };
        let len = layout.shape().elem_count();
        let kernel = WgslKernel {
            name: self.name(),
            source: include_str!("softsign.wgsl"),
            params: &[len as u32],
            workgroups: [len.div_ceil(64).min(65_535) as u32, 1, 1],
        };
        let inputs = [(x, layout)];
        let y = x.device().run_wgsl(&kernel, &inputs, len, DType::F32)?;
        Ok((y, layout.shape().clone()))
    }

    // 1 / (1 + |x|)², times the gradient of the result: composed of ops that already have gradients on every device.
    fn bwd(&self, x: &Tensor, _y: &Tensor, grad_y: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((grad_y / (x.abs()? + 1.)?.sqr()?)?))
    }
}

/// y = softsign(x) for numbers around 0, and the gradient of y's sum.
fn run(device: &Device) -> Result<[Vec<f32>; 2]> {
    let x = Var::from_tensor(&Tensor::arange_step(-3f32, 3.5, 1.5, device)?)?;
    let y = x.apply_op1(Softsign)?;
    let gradients = y.sum_all()?.backward()?;
    let dx = gradients.get(&x).expect("y was made from x");
    Ok([y.to_vec1()?, dx.to_vec1()?])
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1).as_deref() {
        None => Device::best_available()?,
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(other) => bail!("unknown device `{other}`: give `cpu`, `webgpu` or nothing"),
    };
    let [y, dx] = run(&device)?;
    println!("On {device:?}\nsoftsign = {y:.4?}\ngradient = {dx:.4?}");
    let cpu = run(&Device::Cpu)?.concat();
    let near = |(got, want): (f32, &f32)| (got - want).abs() <= 1e-6;
    if ![y, dx].concat().into_iter().zip(&cpu).all(near) {
        bail!("the CPU has {cpu:?}")
    }
    println!("The CPU has the same.");
    Ok(())
}
