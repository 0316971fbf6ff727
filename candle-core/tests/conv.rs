//! Convolutions on the CPU compared with exact integer loops, over sizes, strides, groups, layouts and dtypes.

use candle_core::{DType, Device, Error, Result, Tensor, Var};

use crate::agree::assert_same;

/// Dtypes with arithmetic.
const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// A reproducible pseudo-random sequence.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// Returns a number in `from..=to`.
    fn within(&mut self, from: usize, to: usize) -> usize {
        from + self.next() as usize % (to - from + 1)
    }
}

/// The parameters of a convolution; pairs are `[height, width]`.
#[derive(Debug, Clone, Copy)]
struct Case {
    transposed: bool,
    /// One dimension: the height is 1, and stride, padding and dilation apply to the width only.
    flat: bool,
    b: usize,
    groups: usize,
    /// Input channels per group; `c_out` is per group too.
    c_in: usize,
    c_out: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
}

/// A plain case with small sizes.
const SMALL: Case = Case {
    transposed: false,
    flat: false,
    b: 1,
    groups: 1,
    c_in: 2,
    c_out: 3,
    input: [5, 6],
    kernel: [3, 3],
    padding: 0,
    output_padding: 0,
    stride: 1,
    dilation: 1,
};

impl Case {
    fn input_dims(&self) -> [usize; 4] {
        [
            self.b,
            self.groups * self.c_in,
            self.input[0],
            self.input[1],
        ]
    }

    fn kernel_dims(&self) -> [usize; 4] {
        let Self {
            groups,
            c_in,
            c_out,
            kernel: [h, w],
            ..
        } = *self;
        if self.transposed {
            [groups * c_in, c_out, h, w]
        } else {
            [groups * c_out, c_in, h, w]
        }
    }

    /// Returns padding, stride, dilation and output padding of dimension `d`.
    fn steps(&self, d: usize) -> [usize; 4] {
        if self.flat && d == 0 {
            return [0, 1, 1, 0];
        }
        [
            self.padding,
            self.stride,
            self.dilation,
            self.output_padding,
        ]
    }

    /// Returns the output sizes by the formulas in PyTorch's documentation of `Conv2d` and `ConvTranspose2d`; `None` if one is negative.
    fn output(&self) -> Option<[usize; 2]> {
        let size = |d: usize| {
            let (input, k) = (self.input[d] as i64, self.kernel[d] as i64);
            let [p, s, dil, output_padding] = self.steps(d).map(|v| v as i64);
            let size = if self.transposed {
                (input - 1) * s - 2 * p + dil * (k - 1) + output_padding + 1
            } else {
                let room = input + 2 * p - dil * (k - 1) - 1;
                if room < 0 {
                    -1
                } else {
                    room / s + 1
                }
            };
            usize::try_from(size).ok()
        };
        Some([size(0)?, size(1)?])
    }

    /// Returns the result by the definition: each pair of an input element and a kernel element is added to the output element that it
    /// contributes to.
    fn expected(&self, input: &[i64], kernel: &[i64]) -> Vec<i64> {
        let [h, w] = self.output().unwrap();
        let Self {
            groups,
            c_in,
            c_out,
            ..
        } = *self;
        let mut result = vec![0i64; self.b * groups * c_out * h * w];
        let meet = |d: usize, near: usize, tap: usize, limit: usize| {
            let [padding, stride, dilation, _] = self.steps(d);
            (near * stride + tap * dilation)
                .checked_sub(padding)
                .filter(|&at| at < limit)
        };
        // `near` and `far` are the output and the input of a plain convolution, and the input and the output of a transposed one.
        let (near, far) = if self.transposed {
            (self.input, [h, w])
        } else {
            ([h, w], self.input)
        };
        let at = |dims: [usize; 2], y: usize, x: usize| y * dims[1] + x;
        for b in 0..self.b {
            for out in 0..groups * c_out {
                let group = out / c_out;
                for c in 0..c_in {
                    let channel = group * c_in + c;
                    let filter = if self.transposed {
                        channel * c_out + out % c_out
                    } else {
                        out * c_in + c
                    };
                    for y in 0..near[0] {
                        for x in 0..near[1] {
                            for k_y in 0..self.kernel[0] {
                                for k_x in 0..self.kernel[1] {
                                    let (Some(far_y), Some(far_x)) =
                                        (meet(0, y, k_y, far[0]), meet(1, x, k_x, far[1]))
                                    else {
                                        continue;
                                    };
                                    let (near_at, far_at) = (at(near, y, x), at(far, far_y, far_x));
                                    let (i, o) = if self.transposed {
                                        (near_at, far_at)
                                    } else {
                                        (far_at, near_at)
                                    };
                                    let v = input[(b * groups * c_in + channel)
                                        * self.input[0]
                                        * self.input[1]
                                        + i];
                                    let k = kernel
                                        [(filter * self.kernel[0] + k_y) * self.kernel[1] + k_x];
                                    result[(b * groups * c_out + out) * h * w + o] += v * k;
                                }
                            }
                        }
                    }
                }
            }
        }
        result
    }

    /// Runs the case through the methods of `Tensor`.
    fn run(&self, input: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let Self {
            padding: p,
            output_padding: op,
            stride: s,
            dilation: d,
            groups,
            ..
        } = *self;
        match (self.transposed, self.flat) {
            (false, false) => input.conv2d(kernel, p, s, d, groups),
            (true, false) => input.conv_transpose2d(kernel, p, op, s, d),
            (false, true) => input
                .squeeze(2)?
                .conv1d(&kernel.squeeze(2)?, p, s, d, groups)?
                .unsqueeze(2),
            (true, true) => {
                let flat = input.squeeze(2)?;
                flat.conv_transpose1d(&kernel.squeeze(2)?, p, op, s, d, groups)?
                    .unsqueeze(2)
            }
        }
    }
}

/// Returns a tensor of shape `dims` in one of several layouts, and its elements in order. Values are 0 to 4 if `unsigned`, else -4 to 4.
fn operand(
    numbers: &mut Numbers,
    dims: [usize; 4],
    dtype: DType,
    view: usize,
) -> Result<(Vec<i64>, Tensor)> {
    let unsigned = matches!(dtype, DType::U8 | DType::U32);
    let mut elements = |dims: &[usize]| -> Result<Tensor> {
        let count = dims.iter().product::<usize>();
        let data = (0..count).map(|_| match numbers.next() % 9 {
            v if unsigned => v as i64 / 2,
            v => v as i64 - 4,
        });
        Tensor::from_vec(data.collect::<Vec<_>>(), dims, &Device::Cpu)?.to_dtype(dtype)
    };
    let [a, b, c, d] = dims;
    let t = match view {
        0 => elements(&dims)?,
        1 => elements(&[d, a, c, b])?.permute((1, 3, 2, 0))?,
        2 => {
            let mut t = elements(&[a + 2, b + 1, c + 3, d + 1])?;
            for (dim, size) in dims.into_iter().enumerate() {
                t = t.narrow(dim, 1, size)?;
            }
            t
        }
        3 => elements(&[1, b, c, d])?.broadcast_as(&dims)?,
        _ => elements(&[a, b, 1, d])?.broadcast_as(&dims)?,
    };
    let data = t.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?;
    Ok((data, t))
}

const VIEWS: usize = 5;

/// Runs a case with the operand layouts `views`, and compares every element.
fn check(case: Case, dtype: DType, views: [usize; 2], numbers: &mut Numbers) -> Result<()> {
    let what = format!("{case:?} {dtype:?} views {views:?}");
    let (input, input_t) = operand(numbers, case.input_dims(), dtype, views[0])?;
    let (kernel, kernel_t) = operand(numbers, case.kernel_dims(), dtype, views[1])?;
    let [h, w] = case.output().unwrap();
    let dims = [case.b, case.groups * case.c_out, h, w];
    let want = Tensor::from_vec(case.expected(&input, &kernel), &dims, &Device::Cpu)?;
    assert_same(
        &case.run(&input_t, &kernel_t)?,
        &want.to_dtype(dtype)?,
        &what,
    )
}

/// Returns a case with random sizes up to small limits and a valid output size.
fn any_case(n: &mut Numbers) -> Case {
    loop {
        let flat = n.next().is_multiple_of(2);
        let transposed = n.next().is_multiple_of(2);
        let height = |n: &mut Numbers, to| if flat { 1 } else { n.within(1, to) };
        let stride = n.within(1, 4);
        let case = Case {
            transposed,
            flat,
            b: n.within(1, 3),
            groups: if transposed && !flat {
                1
            } else {
                n.within(1, 3)
            },
            c_in: n.within(1, 5),
            c_out: n.within(1, 19),
            input: [height(n, 12), n.within(1, 40)],
            kernel: [height(n, 4), n.within(1, 5)],
            padding: n.within(0, 4),
            output_padding: if transposed {
                n.within(0, stride - 1)
            } else {
                0
            },
            stride,
            dilation: n.within(1, 3),
        };
        if case.output().is_some_and(|size| !size.contains(&0)) {
            return case;
        }
    }
}

#[test]
fn any_sizes_steps_and_groups() -> Result<()> {
    let mut numbers = Numbers(1);
    for _ in 0..400 {
        let case = any_case(&mut numbers);
        check(case, DType::F32, [0, 0], &mut numbers)?;
    }
    Ok(())
}

#[test]
fn any_layout() -> Result<()> {
    let mut numbers = Numbers(2);
    for i in 0..10 * VIEWS * VIEWS {
        let case = any_case(&mut numbers);
        check(
            case,
            DType::F32,
            [i % VIEWS, i / VIEWS % VIEWS],
            &mut numbers,
        )?;
    }
    Ok(())
}

#[test]
fn any_dtype() -> Result<()> {
    let mut numbers = Numbers(3);
    for dtype in DTYPES {
        for i in 0..3 * VIEWS {
            let case = any_case(&mut numbers);
            check(case, dtype, [i % VIEWS, i / VIEWS], &mut numbers)?;
        }
    }
    Ok(())
}

/// Sizes at which the kernels change: rows and columns of their tiles, taps of a block, too few rows for a gather.
#[test]
fn sizes_around_tiles() -> Result<()> {
    let mut numbers = Numbers(4);
    for c_out in [1, 4, 5, 8, 9, 16, 17, 33] {
        for width in [1, 8, 15, 16, 17, 31, 32, 33, 65] {
            let case = Case {
                c_out,
                input: [3, width],
                kernel: [3, 1],
                ..SMALL
            };
            check(
                Case { padding: 0, ..case },
                DType::F32,
                [0, 0],
                &mut numbers,
            )?;
            let flat = Case {
                flat: true,
                c_out,
                input: [1, width + 2],
                kernel: [1, 3],
                ..SMALL
            };
            check(flat, DType::F32, [0, 0], &mut numbers)?;
            check(
                Case {
                    transposed: true,
                    stride: 2,
                    ..flat
                },
                DType::F32,
                [0, 0],
                &mut numbers,
            )?;
        }
    }
    for c_in in [28, 29, 57, 85] {
        for c_out in [3, 8, 20] {
            let case = Case {
                b: 2,
                c_in,
                c_out,
                padding: 1,
                ..SMALL
            };
            check(case, DType::F32, [0, 0], &mut numbers)?;
            check(
                Case {
                    transposed: true,
                    stride: 2,
                    ..case
                },
                DType::F32,
                [0, 0],
                &mut numbers,
            )?;
            check(case, DType::F16, [0, 0], &mut numbers)?;
        }
    }
    Ok(())
}

/// Enough work for several threads, with sums long enough for blocks of taps.
#[test]
fn many_threads() -> Result<()> {
    let mut numbers = Numbers(5);
    let case = Case {
        b: 2,
        c_in: 40,
        c_out: 50,
        input: [14, 15],
        padding: 1,
        ..SMALL
    };
    check(case, DType::F32, [0, 0], &mut numbers)?;
    check(
        Case {
            stride: 2,
            transposed: true,
            ..case
        },
        DType::F32,
        [1, 1],
        &mut numbers,
    )?;
    check(
        Case {
            groups: 8,
            c_in: 3,
            c_out: 5,
            input: [40, 40],
            ..case
        },
        DType::F32,
        [0, 0],
        &mut numbers,
    )?;
    let depthwise = Case {
        groups: 64,
        c_in: 1,
        c_out: 1,
        input: [50, 50],
        ..case
    };
    check(depthwise, DType::F32, [0, 0], &mut numbers)?;
    check(
        Case {
            stride: 2,
            ..depthwise
        },
        DType::F32,
        [1, 0],
        &mut numbers,
    )?;
    let signal = Case {
        flat: true,
        c_in: 20,
        c_out: 30,
        input: [1, 3001],
        kernel: [1, 7],
        ..case
    };
    check(signal, DType::F32, [0, 0], &mut numbers)?;
    check(
        Case {
            stride: 3,
            ..signal
        },
        DType::F32,
        [0, 0],
        &mut numbers,
    )
}

/// Strides far larger than the input, for which nothing is copied.
#[test]
fn far_steps() -> Result<()> {
    let mut numbers = Numbers(6);
    let flat = Case {
        flat: true,
        b: 2,
        groups: 2,
        input: [1, 7],
        kernel: [1, 3],
        ..SMALL
    };
    for (padding, stride, dilation) in [
        (1_000_000, 999_999, 1),
        (1_000_000, 1_000_000, 1),
        (500_000, 400_000, 500_000),
        (999_999, 333_333, 2),
    ] {
        let case = Case {
            padding,
            stride,
            dilation,
            ..flat
        };
        check(case, DType::F32, [0, 1], &mut numbers)?;
        check(case, DType::I64, [1, 0], &mut numbers)?;
    }
    // The outermost input elements contribute to no output, on both sides.
    let case = Case {
        transposed: true,
        padding: 299_990,
        stride: 100_000,
        ..flat
    };
    check(case, DType::F32, [0, 0], &mut numbers)?;
    let case = Case {
        padding: 3000,
        stride: 2999,
        dilation: 1,
        ..SMALL
    };
    check(case, DType::F32, [2, 2], &mut numbers)
}

#[test]
fn nothing_to_sum() -> Result<()> {
    let device = &Device::Cpu;
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device);
    // No batch, no input channels, no output channels, and an empty image inside padding.
    assert_eq!(
        zeros(&[0, 2, 5])?
            .conv1d(&zeros(&[3, 2, 3])?, 0, 1, 1, 1)?
            .dims(),
        [0, 3, 3]
    );
    let no_channels = zeros(&[2, 0, 5])?.conv1d(&zeros(&[3, 0, 3])?, 1, 1, 1, 1)?;
    assert_eq!(
        no_channels.to_vec3::<f32>()?,
        vec![vec![vec![0f32; 5]; 3]; 2]
    );
    assert_eq!(
        zeros(&[1, 2, 5])?
            .conv1d(&zeros(&[0, 2, 3])?, 0, 1, 1, 1)?
            .dims(),
        [1, 0, 3]
    );
    let kernel = Tensor::ones((1, 1, 2, 2), DType::F32, device)?;
    let padding_only = zeros(&[1, 1, 0, 3])?.conv2d(&kernel, 1, 1, 1, 1)?;
    assert_eq!(padding_only.dims(), [1, 1, 1, 4]);
    assert_eq!(padding_only.sum_all()?.to_scalar::<f32>()?, 0.);
    // A stride larger than the kernel leaves outputs without a contribution.
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, device);
    let sparse = ones(&[1, 1, 2])?.conv_transpose1d(&ones(&[1, 1, 1])?, 0, 1, 3, 1, 1)?;
    assert_eq!(sparse.to_vec3::<f32>()?, [[[1., 0., 0., 1., 0.]]]);
    // Padding as wide as the result leaves no output.
    assert_eq!(
        ones(&[1, 1, 2])?
            .conv_transpose1d(&ones(&[1, 1, 1])?, 1, 0, 1, 1, 1)?
            .dims(),
        [1, 1, 0]
    );
    Ok(())
}

/// A convolution over two channels in one dimension. NumPy's `correlate` computed the expected values:
/// `sum(np.correlate(x[c], k[0, c], "valid") for c in range(2))` with `x = np.arange(10.).reshape(2, 5)`,
/// `k = np.array([[[1., 2., 3.], [-1., 0., .5]]])`.
#[test]
fn values_of_numpy() -> Result<()> {
    let x = Tensor::arange(0f32, 10., &Device::Cpu)?.reshape((1, 2, 5))?;
    let k = Tensor::new(&[[[1f32, 2., 3.], [-1., 0., 0.5]]], &Device::Cpu)?;
    assert_eq!(
        x.conv1d(&k, 0, 1, 1, 1)?.to_vec3::<f32>()?,
        [[[6.5, 12.0, 17.5]]]
    );
    Ok(())
}

#[test]
fn nan_and_infinity_stay_in_their_windows() -> Result<()> {
    let x = Tensor::new(
        &[[[1f32, f32::NAN, 1., 1., f32::INFINITY, 1., 1.]]],
        &Device::Cpu,
    )?;
    let k = Tensor::new(&[[[1f32, 1.]]], &Device::Cpu)?;
    let ys = x.conv1d(&k, 1, 1, 1, 1)?.flatten_all()?.to_vec1::<f32>()?;
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let want = [1., nan, nan, 2., inf, inf, 2., 1.];
    assert!(
        ys.iter()
            .zip(want)
            .all(|(y, want)| *y == want || y.is_nan() && want.is_nan()),
        "{ys:?}"
    );
    Ok(())
}

/// If gradients are required, each group is a separate op; the values are the same.
#[test]
fn groups_of_variables() -> Result<()> {
    let mut numbers = Numbers(7);
    for case in [
        Case { groups: 3, ..SMALL },
        Case {
            groups: 2,
            flat: true,
            input: [1, 9],
            kernel: [1, 3],
            ..SMALL
        },
        Case {
            groups: 2,
            flat: true,
            transposed: true,
            input: [1, 9],
            kernel: [1, 3],
            ..SMALL
        },
    ] {
        let (_, input) = operand(&mut numbers, case.input_dims(), DType::F32, 0)?;
        let (_, kernel) = operand(&mut numbers, case.kernel_dims(), DType::F32, 0)?;
        let tracked = case.run(&input, Var::from_tensor(&kernel)?.as_tensor())?;
        assert!(tracked.track_op());
        assert_same(&tracked, &case.run(&input, &kernel)?, &format!("{case:?}"))?;
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit() -> Result<()> {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu);
    let (signal, filter) = (ones(&[1, 4, 8])?, ones(&[6, 4, 3])?);
    let (image, kernel) = (ones(&[1, 4, 8, 8])?, ones(&[6, 4, 3, 3])?);
    let back = ones(&[4, 6, 3])?;
    let back2d = ones(&[4, 6, 3, 3])?;
    const MAX: usize = usize::MAX;

    // padding, stride, dilation, groups; expected parts of the error.
    for (args, says) in [
        ([0, 0, 1, 1], "stride"),
        ([0, 1, 0, 1], "dilation"),
        ([0, 1, 1, 0], "groups"),
        ([0, 1, 1, 3], "channels"),
        ([0, 1, 4, 1], "larger than the padded input"),
        ([MAX, 1, 1, 1], "too large"),
        ([MAX / 2, 1, 1, 1], "too large"),
        ([0, 1, MAX, 1], "too large"),
        ([1 << (usize::BITS - 4), 1, 1, 1], "too large"),
    ] {
        let [p, s, d, g] = args;
        let err = signal.conv1d(&filter, p, s, d, g).unwrap_err();
        assert!(err.to_string().contains(says), "{args:?}: {err}");
        let err = image.conv2d(&kernel, p, s, d, g).unwrap_err();
        assert!(err.to_string().contains(says), "{args:?}: {err}");
    }
    let groups = ones(&[7, 2, 3])?;
    let err = signal.conv1d(&groups, 0, 1, 1, 2).unwrap_err();
    assert!(err.to_string().contains("must divide"), "{err}");

    // padding, output padding, stride, dilation, groups; expected parts of the error.
    for (args, says) in [
        ([0, 0, 0, 1, 1], "stride"),
        ([0, 0, 1, 0, 1], "dilation"),
        ([6, 0, 1, 1, 1], "padding is larger"),
        ([MAX, 0, 1, 1, 1], "padding is larger"),
        ([0, MAX, 1, 1, 1], "too large"),
        ([0, 0, MAX, 1, 1], "too large"),
        ([0, 0, 1 << (usize::BITS - 4), 1, 1], "too large"),
    ] {
        let [p, op, s, d, g] = args;
        let err = signal.conv_transpose1d(&back, p, op, s, d, g).unwrap_err();
        assert!(err.to_string().contains(says), "{args:?}: {err}");
        let err = image.conv_transpose2d(&back2d, p, op, s, d).unwrap_err();
        assert!(err.to_string().contains(says), "{args:?}: {err}");
    }
    for groups in [0, 3] {
        assert!(signal.conv_transpose1d(&back, 0, 0, 1, 1, groups).is_err());
    }
    assert!(signal.conv_transpose1d(&filter, 0, 0, 1, 1, 1).is_err());
    assert!(ones(&[1, 4, 0])?
        .conv_transpose1d(&back, 0, 0, 1, 1, 1)
        .is_err());

    // Ranks, dtypes, empty kernels.
    assert!(image.conv1d(&filter, 0, 1, 1, 1).is_err());
    assert!(signal.conv2d(&kernel, 0, 1, 1, 1).is_err());
    assert!(signal.conv1d(&ones(&[6, 4, 0])?, 0, 1, 1, 1).is_err());
    let halves = filter.to_dtype(DType::F16)?;
    let err = signal.conv1d(&halves, 0, 1, 1, 1).unwrap_err();
    assert!(
        matches!(
            inner(&err),
            Error::DTypeMismatchBinaryOp { op: "conv1d", .. }
        ),
        "{err}"
    );
    let err = signal.conv1d(&ones(&[6, 5, 3])?, 2, 1, 1, 1).unwrap_err();
    assert!(
        matches!(inner(&err), Error::Conv1dInvalidArgs { padding: 2, .. }),
        "{err}"
    );
    Ok(())
}

/// Returns the error without its backtrace.
fn inner(err: &Error) -> &Error {
    match err {
        Error::WithBacktrace { inner, .. } => inner,
        err => err,
    }
}
