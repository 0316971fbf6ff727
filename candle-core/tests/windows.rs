//! Convolution, pooling, resampling and sorting on every device, compared with the CPU.

use candle_core::{test_device, DType, Device, Result, Tensor};

#[cfg(feature = "webgpu")]
use crate::agree::assert_same;
use crate::agree::{assert_as_on_cpu, assert_close, numbers, Tolerance, DTYPES};

/// A convolution, with sizes as in `Tensor::conv2d`.
#[derive(Debug, Clone, Copy)]
struct Conv {
    input: [usize; 4],
    c_out: usize,
    kernel: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

const CONVS: [Conv; 9] = [
    conv([1, 1, 1, 1], 1, [1, 1], 0, 1, 1, 1),
    conv([2, 3, 7, 9], 4, [3, 3], 1, 1, 1, 1),
    conv([2, 4, 8, 8], 6, [1, 1], 0, 1, 1, 2),
    conv([1, 3, 17, 13], 8, [5, 3], 2, 2, 1, 1),
    conv([3, 2, 11, 10], 2, [3, 2], 0, 3, 2, 1),
    conv([2, 6, 9, 9], 12, [3, 3], 1, 1, 1, 6),
    conv([1, 6, 9, 5], 4, [2, 3], 3, 2, 2, 2),
    conv([0, 3, 5, 5], 2, [3, 3], 1, 1, 1, 1),
    conv([1, 33, 19, 17], 65, [3, 3], 1, 1, 1, 1),
];

const fn conv(
    input: [usize; 4],
    c_out: usize,
    kernel: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
) -> Conv {
    Conv {
        input,
        c_out,
        kernel,
        padding,
        stride,
        dilation,
        groups,
    }
}

impl Conv {
    /// Returns input and kernel, the input as a transposed and narrowed view.
    fn operands(&self, dtype: DType, kernel: [usize; 4], device: &Device) -> Result<[Tensor; 2]> {
        let [b, c, h, w] = self.input;
        let input = numbers(&[b, c, w + 1, h], dtype)?.to_device(device)?;
        let kernel = numbers(&kernel, dtype)?.to_device(device)?;
        Ok([input.narrow(2, 1, w)?.transpose(2, 3)?, kernel])
    }
}

fn close(got: &Tensor, want: &Tensor, dtype: DType, what: &str) -> Result<()> {
    // Sums of up to 300 products of numbers below 8; the transposed form rounds each window's part to the dtype.
    let room = match dtype {
        DType::F16 => 2.,
        DType::BF16 => 16.,
        _ => 1e-3,
    };
    assert_close(
        got,
        want,
        Tolerance::of(dtype, 1e-5).or_absolute(room),
        what,
    )
}

fn convolutions(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for c in CONVS {
            let Conv {
                padding,
                stride,
                dilation,
                groups,
                ..
            } = c;
            let [_, c_in, _, _] = c.input;
            let run = |device: &Device| -> Result<Tensor> {
                let shape = [c.c_out, c_in / groups, c.kernel[0], c.kernel[1]];
                let [input, kernel] = c.operands(dtype, shape, device)?;
                input.conv2d(&kernel, padding, stride, dilation, groups)
            };
            close(
                &run(device)?,
                &run(&Device::Cpu)?,
                dtype,
                &format!("conv2d {dtype:?} {c:?}"),
            )?;
            let run = |device: &Device| -> Result<Tensor> {
                let shape = [c.c_out, c_in / groups, c.kernel[0], c.kernel[1]];
                let [input, kernel] = c.operands(dtype, shape, device)?;
                let (input, kernel) = (input.narrow(2, 0, 1)?.squeeze(2)?, kernel.narrow(2, 0, 1)?);
                input.conv1d(&kernel.squeeze(2)?, padding + 1, stride, dilation, groups)
            };
            close(
                &run(device)?,
                &run(&Device::Cpu)?,
                dtype,
                &format!("conv1d {dtype:?} {c:?}"),
            )?;
        }
    }
    Ok(())
}

fn transposed_convolutions(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for c in CONVS {
            let Conv {
                stride,
                dilation,
                groups,
                ..
            } = c;
            let [_, c_in, _, _] = c.input;
            let padding = c.padding.min(1);
            let run = |device: &Device| -> Result<Tensor> {
                let shape = [c_in, c.c_out / groups, c.kernel[0], c.kernel[1]];
                let [input, kernel] = c.operands(dtype, shape, device)?;
                let (input, kernel) = (input.narrow(2, 0, 1)?.squeeze(2)?, kernel.narrow(2, 0, 1)?);
                input.conv_transpose1d(&kernel.squeeze(2)?, padding, 0, stride, dilation, groups)
            };
            close(
                &run(device)?,
                &run(&Device::Cpu)?,
                dtype,
                &format!("conv_transpose1d {dtype:?} {c:?}"),
            )?;
            let run = |device: &Device| -> Result<Tensor> {
                let shape = [c_in, c.c_out, c.kernel[0], c.kernel[1]];
                let [input, kernel] = c.operands(dtype, shape, device)?;
                input.conv_transpose2d(&kernel, padding, stride - 1, stride, dilation)
            };
            close(
                &run(device)?,
                &run(&Device::Cpu)?,
                dtype,
                &format!("conv_transpose2d {dtype:?} {c:?}"),
            )?;
        }
    }
    Ok(())
}

/// Columns of more than 64 MiB, so that the work is split: rows of an image, then whole images, then channels.
fn convolutions_in_pieces(device: &Device) -> Result<()> {
    for (input, c_out) in [([1, 16, 400, 310], 2), ([5, 16, 200, 210], 2)] {
        let run = |device: &Device| -> Result<Tensor> {
            let x = numbers(&input, DType::F32)?.to_device(device)?;
            let kernel = numbers(&[c_out, input[1], 3, 3], DType::F32)?.to_device(device)?;
            x.conv2d(&kernel, 1, 1, 1, 1)
        };
        close(
            &run(device)?,
            &run(&Device::Cpu)?,
            DType::F32,
            &format!("conv2d {input:?}"),
        )?;
    }
    for (input, c_out) in [([1, 2, 400, 310], 16), ([5, 2, 200, 210], 16)] {
        let run = |device: &Device| -> Result<Tensor> {
            let x = numbers(&input, DType::F32)?.to_device(device)?;
            let kernel = numbers(&[input[1], c_out, 3, 3], DType::F32)?.to_device(device)?;
            x.conv_transpose2d(&kernel, 1, 0, 1, 1)
        };
        close(
            &run(device)?,
            &run(&Device::Cpu)?,
            DType::F32,
            &format!("conv_transpose2d {input:?}"),
        )?;
    }
    Ok(())
}

fn pooling(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (shape, kernel, stride) in [
            ([1, 1, 1, 1], (1, 1), (1, 1)),
            ([2, 3, 8, 8], (2, 2), (2, 2)),
            ([2, 3, 9, 7], (3, 2), (2, 1)),
            ([1, 5, 4, 6], (4, 6), (3, 3)),
        ] {
            let input = |device: &Device| -> Result<Tensor> {
                let [b, c, h, w] = shape;
                numbers(&[b, c, w, h], dtype)?
                    .to_device(device)?
                    .transpose(2, 3)
            };
            let what = format!("max_pool2d {dtype:?} {shape:?}");
            assert_as_on_cpu(device, &what, |d| {
                input(d)?.max_pool2d_with_stride(kernel, stride)
            })?;
            let run = |d: &Device| input(d)?.avg_pool2d_with_stride(kernel, stride);
            let tolerance = match dtype {
                DType::F32 | DType::F16 | DType::BF16 => {
                    Tolerance::of(dtype, 1e-6).or_absolute(1e-6)
                }
                _ => Tolerance::EXACT,
            };
            let what = format!("avg_pool2d {dtype:?} {shape:?}");
            assert_close(&run(device)?, &run(&Device::Cpu)?, tolerance, &what)?;
        }
    }
    Ok(())
}

fn resampling(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (shape, target) in [
            ([1, 1, 1, 1], (3, 2)),
            ([2, 3, 5, 7], (10, 14)),
            ([2, 3, 8, 9], (3, 4)),
            ([1, 2, 7, 3], (7, 5)),
        ] {
            let input = |device: &Device| -> Result<Tensor> {
                let [b, c, h, w] = shape;
                numbers(&[b, c, w, h], dtype)?
                    .to_device(device)?
                    .transpose(2, 3)
            };
            let what = format!("{dtype:?} {shape:?} to {target:?}");
            assert_as_on_cpu(device, &format!("nearest2d {what}"), |d| {
                input(d)?.upsample_nearest2d(target.0, target.1)
            })?;
            assert_as_on_cpu(device, &format!("nearest1d {what}"), |d| {
                input(d)?
                    .narrow(2, 0, 1)?
                    .squeeze(2)?
                    .upsample_nearest1d(target.1)
            })?;
            if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
                continue;
            }
            for align in [false, true] {
                let run = |d: &Device| input(d)?.upsample_bilinear2d(target.0, target.1, align);
                let tolerance = Tolerance::of(dtype, 1e-5).or_absolute(1e-5);
                assert_close(
                    &run(device)?,
                    &run(&Device::Cpu)?,
                    tolerance,
                    &format!("bilinear {what}"),
                )?;
            }
            let run = |d: &Device| input(d)?.upsample_bilinear2d_with_scale(1.7, 0.6, false);
            if shape[3] > 1 {
                let tolerance = Tolerance::of(dtype, 1e-5).or_absolute(1e-5);
                assert_close(
                    &run(device)?,
                    &run(&Device::Cpu)?,
                    tolerance,
                    &format!("scaled {what}"),
                )?;
            }
        }
    }
    Ok(())
}

fn sorting(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for shape in [
            [1, 1],
            [3, 2],
            [5, 3],
            [2, 255],
            [2, 1024],
            [3, 1025],
            [1, 5000],
            [0, 4],
            [4, 0],
        ] {
            for asc in [true, false] {
                let what = format!("arg_sort {dtype:?} {shape:?} asc:{asc}");
                // 251 distinct numbers: long rows have many equal ones.
                assert_as_on_cpu(device, &what, |d| {
                    let t = numbers(&[shape[1], shape[0]], dtype)?.to_device(d)?.t()?;
                    t.arg_sort_last_dim(asc)
                })?;
            }
        }
    }
    let special = [
        f32::NAN,
        1.,
        -0.,
        0.,
        f32::INFINITY,
        -1.,
        f32::NEG_INFINITY,
        -f32::NAN,
        0.,
        -0.,
    ];
    for asc in [true, false] {
        assert_as_on_cpu(device, "special", |d| {
            Tensor::new(&special, d)?.arg_sort_last_dim(asc)
        })?;
    }
    Ok(())
}

/// Tables that resizing uploads are cached after the first use: another upload would submit all queued work.
#[cfg(feature = "webgpu")]
#[test]
fn resizing_again_uploads_nothing_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let webgpu = device.as_webgpu_device()?;
    let cpu = numbers(&[1, 2, 5, 7], DType::F32)?;
    let t = cpu.to_device(&device)?;
    let sizes = [(8, 9), (11, 6)];
    for (h, w) in sizes {
        t.upsample_nearest2d(h, w)?;
    }
    let before = webgpu.stats().submits;
    for (h, w) in sizes {
        t.upsample_nearest2d(h, w)?;
    }
    assert_eq!(webgpu.stats().submits, before);
    let want = cpu.upsample_bilinear2d(8, 9, false)?;
    let got = t.upsample_bilinear2d(8, 9, false)?;
    assert_eq!(webgpu.stats().submits, before + 1);
    close(&got, &want, DType::F32, "another table of the same sizes")?;
    // More sizes than the cache holds, and an empty result.
    for h in 1..40 {
        assert_same(
            &t.upsample_nearest2d(h, 3)?,
            &cpu.upsample_nearest2d(h, 3)?,
            "many",
        )?;
    }
    webgpu.trim()?;
    assert_same(
        &t.upsample_nearest2d(8, 9)?,
        &cpu.upsample_nearest2d(8, 9)?,
        "trimmed",
    )
}

test_device!(convolutions);
test_device!(transposed_convolutions);
test_device!(convolutions_in_pieces);
test_device!(pooling);
test_device!(resampling);
test_device!(sorting);
