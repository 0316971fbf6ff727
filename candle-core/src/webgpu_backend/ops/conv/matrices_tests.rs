use super::super::Operands;
use super::*;
use crate::backend::BackendDevice;
use crate::webgpu_backend::{Options, WebGpuDevice};
use crate::{CpuStorage, Device, Shape, Tensor};
use half::{bf16, f16};

#[derive(Debug, Clone, Copy)]
struct Case {
    b: usize,
    c_in: usize,
    c_out: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
}

const CASE: Case = Case {
    b: 1,
    c_in: 5,
    c_out: 20,
    input: [14, 14],
    kernel: [3, 3],
    padding: 1,
    stride: 1,
    dilation: 1,
};

const CASES: [Case; 9] = [
    // Windows of 45 elements in rows of 64; 588 positions in parts of 256, which end within an image.
    Case { b: 3, ..CASE },
    // Planes of an odd size.
    Case {
        b: 3,
        input: [7, 7],
        ..CASE
    },
    Case {
        c_in: 3,
        input: [31, 30],
        kernel: [7, 7],
        padding: 3,
        stride: 2,
        ..CASE
    },
    // Kernels that are rows already.
    Case {
        b: 2,
        c_in: 64,
        kernel: [1, 1],
        padding: 0,
        ..CASE
    },
    Case {
        b: 2,
        c_in: 32,
        kernel: [1, 1],
        padding: 0,
        stride: 2,
        ..CASE
    },
    Case {
        c_out: 33,
        input: [13, 20],
        kernel: [3, 2],
        padding: 2,
        dilation: 2,
        ..CASE
    },
    // One dimension.
    Case {
        b: 2,
        input: [1, 301],
        kernel: [1, 5],
        padding: 0,
        ..CASE
    },
    // A kernel that is not compiled in.
    Case {
        c_in: 2,
        input: [51, 36],
        kernel: [17, 18],
        padding: 0,
        stride: 17,
        ..CASE
    },
    // A sum that is split.
    Case {
        b: 2,
        c_in: 304,
        c_out: 24,
        input: [6, 6],
        ..CASE
    },
];

/// From -1 to 1, those of `each[i]` times a power of two: the sums are exact.
fn integers(dims: [usize; 4], step: usize, each: impl Fn(usize) -> i32) -> Result<Tensor> {
    let len: usize = dims[1..].iter().product();
    let number = |i: usize| {
        let integer = ((i * step + i / 5) % 11 % 3) as f32 - 1.;
        integer * 2f32.powi(each(i / len))
    };
    let data = (0..dims[0] * len).map(number).collect();
    Tensor::from_vec(data, dims.to_vec(), &Device::Cpu)
}

/// The elements in the order of `dims`, with others before them; the layout restores the order of `t`.
fn stored(
    device: &WebGpuDevice,
    t: &Tensor,
    dtype: DType,
    dims: [usize; 4],
    before: usize,
) -> Result<(WebGpuStorage, Layout)> {
    let ordered = t.permute(dims)?.contiguous()?;
    let values = ordered.flatten_all()?.to_vec1::<f32>()?;
    let all = std::iter::repeat_n(f32::NAN, before).chain(values);
    let storage = match dtype {
        DType::F16 => device.storage_from_slice(&all.map(f16::from_f32).collect::<Vec<_>>()),
        DType::BF16 => device.storage_from_slice(&all.map(bf16::from_f32).collect::<Vec<_>>()),
        _ => device.storage_from_slice(&all.collect::<Vec<_>>()),
    };
    let mut stride = vec![0; 4];
    for (dim, step) in dims.iter().zip(ordered.stride()) {
        stride[*dim] = *step;
    }
    let layout = Layout::new(Shape::from(t.dims()), stride, before);
    Ok((storage?, layout))
}

impl Case {
    fn geometry(&self, output: [usize; 2]) -> Geometry {
        let step = |size: usize| Steps {
            padding: if size == 1 { 0 } else { self.padding },
            stride: self.stride,
            dilation: self.dilation,
        };
        Geometry {
            op: "conv2d",
            transposed: false,
            b: self.b,
            groups: 1,
            c_in: self.c_in,
            c_out: self.c_out,
            input: self.input,
            kernel: self.kernel,
            output,
            steps: self.input.map(step),
        }
    }

    fn check(&self, device: &WebGpuDevice) -> Result<()> {
        let Self {
            b,
            c_in,
            c_out,
            input: [h, w],
            kernel: [k_h, k_w],
            padding,
            stride,
            dilation,
        } = *self;
        let in_groups = (c_in * k_h * k_w) % 8 == 0 && (c_in * h * w) % 8 == 0;
        let others: &[DType] = match in_groups {
            true => &[DType::BF16, DType::F32],
            false => &[],
        };
        // Contiguous; channels last and a kernel that starts within a group of eight.
        let orders = [([0, 1, 2, 3], [0, 0]), ([0, 2, 3, 1], [3, 5])];
        for dtype in [&[DType::F16], others].concat() {
            // Far beyond f16.
            let large = |i: usize| {
                if dtype == DType::F16 {
                    0
                } else {
                    30 * i as i32
                }
            };
            let small = |i: usize| {
                if dtype == DType::F16 {
                    0
                } else {
                    -40 * (i as i32 % 2)
                }
            };
            let x = integers([b, c_in, h, w], 7919, large)?;
            let kernel = integers([c_out, c_in, k_h, k_w], 104_729, small)?;
            let want = x.conv2d(&kernel, padding, stride, dilation, 1)?;
            let g = self.geometry([want.dim(2)?, want.dim(3)?]);
            let want = want.flatten_all()?.to_vec1::<f32>()?;
            for (order, before) in orders {
                let (src, src_l) = stored(device, &x, dtype, order, before[0])?;
                let (kernel, kernel_l) = stored(device, &kernel, dtype, [0, 1, 2, 3], before[1])?;
                let conv = Operands::new(&src, &src_l, &kernel, &kernel_l).whole(g)?;
                // bf16 would round the sums.
                let to = if before == [0, 0] && dtype == DType::F16 {
                    DType::F16
                } else {
                    DType::F32
                };
                let got = match run(&conv, Extras::default(), to, 0)?.to_cpu_storage()? {
                    CpuStorage::F16(halves) => halves.iter().map(|x| x.to_f32()).collect(),
                    CpuStorage::F32(floats) => floats,
                    other => crate::bail!("{:?} instead of {to:?}", other.dtype()),
                };
                assert_eq!(got, want, "{self:?} {dtype:?} {order:?}");
            }
        }
        Ok(())
    }
}

/// Software adapters have no cooperative matrices: here the tile kernel multiplies the rows instead.
#[test]
fn rows_of_windows_on_any_adapter() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    for case in CASES {
        case.check(&device)?;
    }
    Ok(())
}

#[test]
fn small_grouped_and_exact_convolutions_stay() {
    let small = CASE.geometry([14, 14]);
    let large = Geometry {
        b: 32,
        c_in: 256,
        c_out: 256,
        ..small
    };
    // Its rows cannot be read in groups.
    let odd = Geometry { c_in: 255, ..large };
    let groups = Geometry { groups: 2, ..large };
    let few = Geometry {
        b: 1 << 20,
        c_out: 3,
        ..large
    };
    let one = Geometry {
        b: 1,
        c_in: 1 << 10,
        c_out: 1 << 20,
        output: [1, 1],
        ..large
    };
    let caps = Caps {
        cooperative: true,
        ..Caps::default()
    };
    for (g, dtype, reduced, expected) in [
        (large, DType::F16, false, true),
        (odd, DType::F16, false, true),
        (small, DType::F16, false, false),
        (groups, DType::F16, false, false),
        (few, DType::F16, false, false),
        (one, DType::F16, false, false),
        (large, DType::BF16, false, true),
        (small, DType::BF16, true, false),
        (odd, DType::BF16, false, false),
        (large, DType::F32, false, false),
        (large, DType::F32, true, true),
        (large, DType::F64, true, false),
    ] {
        let taken = takes(&g, dtype, reduced, &caps);
        assert_eq!(taken, expected, "{dtype:?} {g:?}");
        assert!(!takes(&g, dtype, reduced, &Caps::default()));
    }
}
