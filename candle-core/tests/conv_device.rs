//! Compares convolutions of every kernel on every device with the CPU: sizes large enough for tiles, few channels per group, and the edges
//! of both. Elements are small integers, so that sums are exact in every order.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::{assert_close, assert_same, has_f64, runs_fewer, Tolerance};

/// A convolution. Channel counts are per group.
#[derive(Debug, Clone, Copy)]
struct Case {
    transposed: bool,
    /// One dimension: the height is 1.
    flat: bool,
    b: usize,
    groups: usize,
    c_in: usize,
    c_out: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    padding: usize,
    stride: usize,
    dilation: usize,
}

const PLAIN: Case = Case {
    transposed: false,
    flat: false,
    b: 1,
    groups: 1,
    c_in: 33,
    c_out: 65,
    input: [19, 17],
    kernel: [3, 3],
    padding: 1,
    stride: 1,
    dilation: 1,
};

const CASES: [Case; 8] = [
    PLAIN,
    // Few output channels, and a sum too short to split.
    Case {
        b: 2,
        c_in: 16,
        c_out: 5,
        input: [40, 30],
        ..PLAIN
    },
    // Groups; strides for which neighbouring outputs do not read neighbouring inputs.
    Case {
        b: 3,
        groups: 2,
        c_in: 24,
        c_out: 20,
        input: [21, 22],
        kernel: [3, 2],
        padding: 2,
        dilation: 2,
        ..PLAIN
    },
    Case {
        c_in: 10,
        c_out: 70,
        input: [65, 47],
        stride: 2,
        ..PLAIN
    },
    // Long sums for few outputs, which are split.
    Case {
        c_in: 300,
        c_out: 24,
        input: [6, 6],
        ..PLAIN
    },
    // Wide tiles.
    Case {
        c_in: 8,
        c_out: 130,
        input: [64, 62],
        ..PLAIN
    },
    // Transposed: the same number of taps for each remainder, fewer for some, and none.
    Case {
        transposed: true,
        c_in: 40,
        c_out: 30,
        input: [12, 13],
        kernel: [4, 4],
        stride: 2,
        ..PLAIN
    },
    Case {
        transposed: true,
        b: 2,
        c_in: 40,
        c_out: 34,
        input: [13, 12],
        stride: 3,
        dilation: 3,
        ..PLAIN
    },
];

/// One channel per group.
const DEPTHWISE: Case = Case {
    groups: 5,
    c_in: 1,
    c_out: 1,
    input: [11, 13],
    ..PLAIN
};

const fn depthwise(size: usize, padding: usize, stride: usize, dilation: usize) -> Case {
    Case {
        kernel: [size, size],
        padding,
        stride,
        dilation,
        ..DEPTHWISE
    }
}

const fn flat(groups: usize, c_in: usize, c_out: usize, len: usize, size: usize) -> Case {
    Case {
        flat: true,
        groups,
        c_in,
        c_out,
        input: [1, len],
        kernel: [1, size],
        ..PLAIN
    }
}

/// Returns a case with a number of output channels around a tile's rows.
const fn rows(c_out: usize) -> Case {
    Case {
        c_in: 7,
        c_out,
        input: [9, 8],
        ..PLAIN
    }
}

const EDGES: [Case; 40] = [
    depthwise(1, 0, 1, 1),
    depthwise(1, 2, 2, 1),
    depthwise(3, 1, 1, 1),
    depthwise(3, 1, 2, 1),
    depthwise(3, 2, 1, 2),
    depthwise(3, 2, 2, 2),
    // Padding larger than the kernel: whole windows of padding.
    depthwise(3, 4, 1, 1),
    depthwise(3, 5, 3, 2),
    depthwise(7, 3, 1, 1),
    depthwise(9, 4, 1, 1),
    depthwise(9, 8, 2, 1),
    Case {
        input: [9, 1],
        ..depthwise(3, 1, 1, 1)
    },
    Case {
        input: [1, 9],
        ..depthwise(3, 1, 1, 1)
    },
    // Rows of one, two and three outputs.
    Case {
        input: [6, 3],
        kernel: [2, 3],
        ..depthwise(3, 0, 1, 1)
    },
    Case {
        input: [6, 4],
        kernel: [1, 3],
        ..depthwise(3, 0, 1, 1)
    },
    Case {
        b: 3,
        input: [7, 7],
        ..depthwise(3, 0, 2, 1)
    },
    // Planes larger than a workgroup's outputs.
    Case {
        groups: 3,
        input: [31, 70],
        ..depthwise(3, 1, 1, 1)
    },
    Case {
        groups: 2,
        input: [40, 37],
        ..depthwise(5, 2, 1, 1)
    },
    // Several input or output channels per group.
    Case {
        b: 3,
        c_in: 2,
        c_out: 2,
        ..DEPTHWISE
    },
    Case {
        c_in: 2,
        ..DEPTHWISE
    },
    Case {
        c_out: 3,
        stride: 2,
        ..DEPTHWISE
    },
    Case {
        c_in: 4,
        c_out: 4,
        dilation: 2,
        ..DEPTHWISE
    },
    Case {
        c_in: 8,
        c_out: 8,
        ..DEPTHWISE
    },
    // A kernel whose sizes are not shader constants, and one too large for workgroup memory.
    Case {
        groups: 2,
        input: [8, 30],
        kernel: [2, 17],
        ..DEPTHWISE
    },
    Case {
        groups: 70,
        input: [6, 6],
        kernel: [6, 6],
        padding: 0,
        ..DEPTHWISE
    },
    // A sum too long for one invocation.
    Case {
        c_in: 60,
        c_out: 1,
        input: [10, 9],
        kernel: [9, 8],
        padding: 0,
        ..PLAIN
    },
    // Windows of one element, at every element and at every third: a product over channels.
    Case {
        c_in: 20,
        c_out: 18,
        kernel: [1, 1],
        padding: 1,
        ..PLAIN
    },
    Case {
        c_in: 20,
        c_out: 18,
        kernel: [1, 1],
        padding: 0,
        stride: 3,
        ..PLAIN
    },
    rows(15),
    rows(16),
    rows(17),
    rows(33),
    rows(63),
    rows(64),
    flat(6, 1, 1, 21, 4),
    Case {
        b: 3,
        padding: 3,
        dilation: 3,
        stride: 2,
        ..flat(3, 2, 2, 30, 3)
    },
    flat(1, 20, 30, 50, 3),
    // Transposed, with stride 1 and larger strides.
    Case {
        transposed: true,
        c_in: 2,
        c_out: 3,
        input: [7, 6],
        dilation: 2,
        groups: 1,
        ..PLAIN
    },
    Case {
        transposed: true,
        padding: 2,
        ..flat(5, 1, 1, 12, 4)
    },
    Case {
        transposed: true,
        b: 2,
        stride: 3,
        ..flat(4, 2, 3, 9, 5)
    },
];

/// Returns integers from -1 to 1; 0 and 1 in unsigned dtypes.
fn integers(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let unsigned = matches!(dtype, DType::U8 | DType::U32);
    let number = |i: usize| match (i * 7919 + i / 5) % 11 {
        n if unsigned => (n % 2) as i64,
        n => n as i64 % 3 - 1,
    };
    let data: Vec<i64> = (0..dims.iter().product()).map(number).collect();
    Tensor::from_vec(data, dims, &Device::Cpu)?.to_dtype(dtype)
}

impl Case {
    fn run(&self, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let Self {
            padding,
            stride,
            dilation,
            groups,
            ..
        } = *self;
        let rest = stride - 1;
        match (self.flat, self.transposed) {
            (false, false) => x.conv2d(kernel, padding, stride, dilation, groups),
            (false, true) => x.conv_transpose2d(kernel, padding, rest, stride, dilation),
            (true, false) => {
                let (x, kernel) = (x.squeeze(2)?, kernel.squeeze(2)?);
                x.conv1d(&kernel, padding, stride, dilation, groups)
            }
            (true, true) => {
                let (x, kernel) = (x.squeeze(2)?, kernel.squeeze(2)?);
                x.conv_transpose1d(&kernel, padding, rest, stride, dilation, groups)
            }
        }
    }

    /// Compares the result with the CPU's, with contiguous operands and with views.
    fn check(&self, dtype: DType, device: &Device) -> Result<()> {
        let Self {
            b,
            groups,
            c_in,
            c_out,
            input: [h, w],
            kernel: [k_h, k_w],
            ..
        } = *self;
        let x = integers(&[b, groups * c_in, h, w], dtype)?;
        let kernel = if self.transposed {
            integers(&[groups * c_in, c_out, k_h, k_w], dtype)?
        } else {
            integers(&[groups * c_out, c_in, k_h, k_w], dtype)?
        };
        let want = self.run(&x, &kernel)?;
        let what = format!("{dtype:?} {self:?}");
        let kernel_there = kernel.to_device(device)?;
        // cuBLASLt writes the product of a single term as it is, -0 included; a sum that begins with +0 is never -0.
        let same = |got: &Tensor, what: &str| {
            if device.is_cuda() {
                assert_close(got, &want, Tolerance::EXACT, what)
            } else {
                assert_same(got, &want, what)
            }
        };
        let got = self.run(&x.to_device(device)?, &kernel_there)?;
        same(&got, &what)?;
        // Channels last already.
        let last = x.permute((0, 2, 3, 1))?.contiguous()?.to_device(device)?;
        let got = self.run(&last.permute((0, 3, 1, 2))?, &kernel_there)?;
        same(&got, &format!("channels last {what}"))?;
        let (x, kernel) = (within(&x, device)?, within(&kernel, device)?);
        let got = self.run(&x, &kernel)?;
        same(&got, &format!("views {what}"))
    }
}

/// Returns the tensor on `device`, as a view of the middle of a larger one.
fn within(t: &Tensor, device: &Device) -> Result<Tensor> {
    let mut all = t.clone();
    for dim in 0..t.rank() {
        let edge = all.narrow(dim, 0, 1)?.ones_like()?;
        all = Tensor::cat(&[&edge, &all, &edge], dim)?;
    }
    let all = all.contiguous()?.to_device(device)?;
    let mut dims = t.dims().iter().enumerate();
    dims.try_fold(all, |t, (dim, len)| t.narrow(dim, 1, *len))
}

const OTHERS: [DType; 5] = [DType::F64, DType::I16, DType::U8, DType::I64, DType::F8E4M3];

fn check_all(cases: &[Case], dtypes: impl Fn(usize) -> Vec<DType>, device: &Device) -> Result<()> {
    for (i, case) in cases.iter().enumerate() {
        for dtype in dtypes(i) {
            if dtype == DType::F64 && !has_f64(device)? {
                continue;
            }
            case.check(dtype, device)?;
        }
    }
    Ok(())
}

fn tiles(device: &Device) -> Result<()> {
    // The common dtypes always, and two others in rotation; on a slow device one of each.
    let fewer = runs_fewer(device);
    let dtypes = |i: usize| {
        let usual = [DType::F32, DType::F16, DType::BF16];
        if fewer {
            return vec![usual[i % 3], OTHERS[i % 5]];
        }
        [&usual[..], &[OTHERS[i % 5], OTHERS[(i + 2) % 5]]].concat()
    };
    check_all(&CASES, dtypes, device)
}
test_device!(tiles);

fn edges(device: &Device) -> Result<()> {
    let dtypes = |i: usize| vec![DType::F32, [DType::F16, DType::BF16][i % 2], OTHERS[i % 5]];
    check_all(&EDGES, dtypes, device)
}
test_device!(edges);
