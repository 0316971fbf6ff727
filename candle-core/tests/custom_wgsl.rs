//! Kernels defined outside the crate.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::webgpu_backend::WgslKernel;
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, WebGpuStorage,
};

/// `2 x + 1` as a kernel, or a variant with the fault `broken`.
struct Double {
    broken: fn(WgslKernel<'static>) -> WgslKernel<'static>,
    inputs: usize,
}

const SOURCE: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: vec2<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.x { y[id.x] = 2.0 * x[id.x] + bitcast<f32>(p.y); }
}";

impl CustomOp1 for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("for WebGPU alone")
    }

    fn webgpu_fwd(&self, x: &WebGpuStorage, layout: &Layout) -> Result<(WebGpuStorage, Shape)> {
        let len = layout.shape().elem_count();
        let params = Vec::leak(vec![len as u32, 1f32.to_bits()]);
        let kernel = (self.broken)(WgslKernel {
            name: "double",
            source: SOURCE,
            params,
            workgroups: [len.div_ceil(64) as u32, 1, 1],
        });
        let inputs = vec![(x, layout); self.inputs];
        let y = x.device().run_wgsl(&kernel, &inputs, len, DType::F32)?;
        Ok((y, layout.shape().clone()))
    }
}

const DOUBLE: Double = Double {
    broken: |kernel| kernel,
    inputs: 1,
};

#[test]
fn kernels_see_elements_in_order_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let x = Tensor::arange(0f32, 600., &device)?.reshape((20, 30))?;
    let layouts = [
        x.clone(),
        x.t()?,
        x.narrow(0, 7, 5)?,
        x.narrow(1, 3, 4)?,
        x.narrow(0, 0, 1)?.broadcast_as((4, 30))?,
        x.narrow(0, 20, 0)?,
        x.flatten_all()?.narrow(0, 64, 3)?,
    ];
    for x in layouts {
        let got = x.apply_op1_no_bwd(&DOUBLE)?;
        assert_eq!(got.dims(), x.dims());
        let want = x.affine(2., 1.)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(
            got.flatten_all()?.to_vec1::<f32>()?,
            want,
            "{:?}",
            x.layout()
        );
    }
    Ok(())
}

#[test]
fn kernels_are_compiled_once_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let x = Tensor::ones(5, DType::F32, &device)?;
    let pipelines = || {
        device
            .as_webgpu_device()
            .map(|device| device.stats().pipelines)
    };
    x.apply_op1_no_bwd(&DOUBLE)?;
    let before = pipelines()?;
    x.apply_op1_no_bwd(&DOUBLE)?;
    assert_eq!(pipelines()?, before);
    Ok(())
}

#[test]
fn wrong_kernels_are_errors_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let x = Tensor::ones(5, DType::F32, &device)?;
    let cases: [(Double, &[&str]); 5] = [
        (
            Double {
                broken: |kernel| WgslKernel {
                    source: "fn main() { nonsense }",
                    ..kernel
                },
                ..DOUBLE
            },
            &["cannot compile", "double"],
        ),
        // The result may not be binding 0.
        (
            Double {
                broken: |kernel| WgslKernel {
                    source: "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
                        @compute @workgroup_size(1) fn main() { y[0] = 1.0; }",
                    ..kernel
                },
                ..DOUBLE
            },
            &["cannot compile", "double"],
        ),
        (
            Double {
                broken: |kernel| WgslKernel {
                    params: &[0; 65],
                    ..kernel
                },
                ..DOUBLE
            },
            &["double", "65 parameters", "64"],
        ),
        (
            Double {
                broken: |kernel| WgslKernel {
                    workgroups: [1, u32::MAX, 1],
                    ..kernel
                },
                ..DOUBLE
            },
            &["double", "4294967295", "workgroups"],
        ),
        (
            Double {
                inputs: 8,
                ..DOUBLE
            },
            &["double", "8 inputs", "7"],
        ),
    ];
    for (op, parts) in cases {
        let error = x.apply_op1_no_bwd(&op).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // The device remains usable.
    assert_eq!(x.apply_op1_no_bwd(&DOUBLE)?.to_vec1::<f32>()?, [3.; 5]);
    Ok(())
}

/// Adds the input to the first output, and counts in the second.
const ADD_TO: WgslKernel<'static> = WgslKernel {
    name: "add_to",
    source: "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @group(0) @binding(2) var<storage, read_write> count: array<atomic<u32>>;
        @group(0) @binding(3) var<uniform> len: u32;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < len { y[id.x] += x[id.x]; atomicAdd(&count[1], 1u); }
        }",
    params: &[70],
    workgroups: [2, 1, 1],
};

#[test]
fn kernels_write_in_place_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let device = device.as_webgpu_device()?;
    let upload = |data: &[f32]| device.storage_from_slice(data);
    let x: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let x = upload(&x)?;
    let (mut y, mut count) = (upload(&[0.5; 90])?, device.storage_from_slice(&[7u32; 3])?);
    let layout = Layout::contiguous_with_offset(70, 3);
    let inputs = [(&x, &layout)];
    for _ in 0..2 {
        device.run_wgsl_in_place(&ADD_TO, &inputs, &mut [&mut y, &mut count])?;
    }
    let want = (0..90).map(|i| {
        if i < 70 {
            2. * (i as f32 + 3.) + 0.5
        } else {
            0.5
        }
    });
    assert_eq!(
        y.to_cpu_storage()?.as_slice::<f32>()?,
        want.collect::<Vec<_>>()
    );
    assert_eq!(count.to_cpu_storage()?.as_slice::<u32>()?, [7, 147, 7]);

    let whole = Layout::contiguous(100);
    let mut same = x.bitcast(DType::U32)?;
    let cases = [
        device.run_wgsl_in_place(&ADD_TO, &[(&x, &whole)], &mut [&mut same, &mut count]),
        device.run_wgsl_in_place(&ADD_TO, &[(&x, &whole)], &mut []),
    ];
    let words = [
        ["add_to", "shares memory"],
        ["add_to", "at least one output"],
    ];
    for (case, words) in cases.into_iter().zip(words) {
        let error = case.unwrap_err().to_string();
        assert!(words.iter().all(|part| error.contains(part)), "{error}");
    }
    let mut outputs: Vec<_> = (0..8)
        .map(|_| device.storage_from_slice(&[0u32]))
        .collect::<Result<_>>()?;
    let mut outputs: Vec<_> = outputs.iter_mut().collect();
    let error = device.run_wgsl_in_place(&ADD_TO, &inputs, &mut outputs);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("1 inputs; the maximum is 0"), "{error}");
    device.check()
}

#[test]
fn bits_are_seen_under_another_dtype_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let device = device.as_webgpu_device()?;
    let words = device.storage_from_slice(&[0x3f80_0000u32, 0xc000_0000, 0x0403_0201])?;
    let floats = words.bitcast(DType::F32)?;
    assert_eq!((floats.len(), floats.dtype()), (3, DType::F32));
    let read = floats.to_cpu_storage()?;
    assert_eq!(read.as_slice::<f32>()?[..2], [1., -2.]);
    let bytes = words.bitcast(DType::U8)?;
    assert_eq!(bytes.to_cpu_storage()?.as_slice::<u8>()?[8..], [1, 2, 3, 4]);
    let back = bytes.bitcast(DType::I32)?.bitcast(DType::U32)?;
    let read = back.to_cpu_storage()?;
    assert_eq!(
        read.as_slice::<u32>()?,
        [0x3f80_0000, 0xc000_0000, 0x0403_0201]
    );

    // The same memory.
    let mut bytes = bytes;
    let one = device.storage_from_slice(&[9u8])?;
    one.copy_strided_src(&mut bytes, 9, &Layout::contiguous(1))?;
    let read = words.to_cpu_storage()?;
    assert_eq!(read.as_slice::<u32>()?[2], 0x0403_0901);

    for (storage, dtype, parts) in [
        (&words, DType::I64, ["12 bytes", "I64"]),
        (
            &device.storage_from_slice(&[1u8; 5])?,
            DType::U32,
            ["5 bytes", "U32"],
        ),
        (&words, DType::F4, ["F4", "webgpu"]),
    ] {
        let error = storage.bitcast(dtype).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    Ok(())
}
