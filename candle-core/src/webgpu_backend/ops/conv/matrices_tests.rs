use super::super::Operands;
use super::*;
use crate::backend::BackendDevice;
use crate::webgpu_backend::{Options, WebGpuDevice};
use crate::{CpuStorage, Device, Shape, Tensor};
use half::f16;

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
        c_in: 300,
        c_out: 24,
        input: [6, 6],
        ..CASE
    },
];

/// From -1 to 1: the sums are exact in f16.
fn integers(dims: [usize; 4], step: usize) -> Result<Tensor> {
    let number = |i: usize| ((i * step + i / 5) % 11 % 3) as f32 - 1.;
    let data = (0..dims.iter().product()).map(number).collect();
    Tensor::from_vec(data, dims.to_vec(), &Device::Cpu)
}

/// The elements in the order of `dims`, with others before them; the layout restores the order of `t`.
fn stored(
    device: &WebGpuDevice,
    t: &Tensor,
    dims: [usize; 4],
    before: usize,
) -> Result<(WebGpuStorage, Layout)> {
    let ordered = t.permute(dims)?.contiguous()?;
    let values = ordered.flatten_all()?.to_vec1::<f32>()?;
    let halves: Vec<f16> = std::iter::repeat_n(f16::NAN, before)
        .chain(values.into_iter().map(f16::from_f32))
        .collect();
    let mut stride = vec![0; 4];
    for (dim, step) in dims.iter().zip(ordered.stride()) {
        stride[*dim] = *step;
    }
    let layout = Layout::new(Shape::from(t.dims()), stride, before);
    Ok((device.storage_from_slice(&halves)?, layout))
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
        let x = integers([b, c_in, h, w], 7919)?;
        let kernel = integers([c_out, c_in, k_h, k_w], 104_729)?;
        let want = x.conv2d(&kernel, padding, stride, dilation, 1)?;
        let (o_h, o_w) = (want.dim(2)?, want.dim(3)?);
        let g = self.geometry([o_h, o_w]);
        let want = want.flatten_all()?.to_vec1::<f32>()?;
        // Contiguous; channels last and a kernel that starts within a group of eight.
        for (order, before, to) in [
            ([0, 1, 2, 3], [0, 0], DType::F16),
            ([0, 2, 3, 1], [3, 5], DType::F32),
        ] {
            let (src, src_l) = stored(device, &x, order, before[0])?;
            let (kernel, kernel_l) = stored(device, &kernel, [0, 1, 2, 3], before[1])?;
            let conv = Operands::new(&src, &src_l, &kernel, &kernel_l).whole(g)?;
            let got = match run(&conv, Extras::default(), to, 0)?.to_cpu_storage()? {
                CpuStorage::F16(halves) => halves.iter().map(|x| x.to_f32()).collect(),
                CpuStorage::F32(floats) => floats,
                other => crate::bail!("{:?} instead of {to:?}", other.dtype()),
            };
            assert_eq!(got, want, "{self:?} {order:?}");
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
fn small_and_grouped_convolutions_stay() {
    let g = CASE.geometry([14, 14]);
    let caps = Caps {
        cooperative: true,
        ..Caps::default()
    };
    let takes = |g: Geometry, dtype: DType| takes(&g, dtype, &caps);
    assert!(takes(g, DType::F16));
    assert!(!takes(g, DType::F32));
    assert!(!takes(Geometry { c_out: 3, ..g }, DType::F16));
    assert!(!takes(Geometry { groups: 5, ..g }, DType::F16));
    let one = Geometry {
        output: [1, 1],
        ..g
    };
    assert!(!takes(one, DType::F16));
    assert!(!super::takes(&g, DType::F16, &Caps::default()));
}
