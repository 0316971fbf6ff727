//! Convolutions large enough to be made of tiles, on every device against the CPU. Elements are small integers, so that sums are exact
//! in every order.

use candle_core::{test_device, DType, Device, Result, Tensor};

use crate::agree::{assert_same, has_f64};

/// A convolution: channels are those of a group.
#[derive(Debug, Clone, Copy)]
struct Case {
    transposed: bool,
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
    // Few channels of the result, and a sum too short to be parted.
    Case {
        b: 2,
        c_in: 16,
        c_out: 5,
        input: [40, 30],
        ..PLAIN
    },
    // Groups; steps along which elements of the result are not neighbours of the input.
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
    // Long sums for few elements, which are made in parts.
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
    // Transposed: as many taps for each remainder, fewer for some, and none.
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

/// Integers from -1 to 1, or 0 and 1 where there are no others.
fn integers(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let unsigned = matches!(dtype, DType::U8 | DType::U32);
    let number = |i: usize| match (i * 7919 + i / 5) % 11 {
        n if unsigned => (n % 2) as i64,
        n => n as i64 % 3 - 1,
    };
    let data: Vec<i64> = (0..dims.iter().product()).map(number).collect();
    Tensor::from_vec(data, dims, &Device::Cpu)?.to_dtype(dtype)
}

fn tiles(device: &Device) -> Result<()> {
    for (i, case) in CASES.into_iter().enumerate() {
        let others = [DType::F64, DType::I16, DType::U8, DType::I64, DType::F8E4M3];
        // The usual ones always, and two others in turn.
        let dtypes = [
            DType::F32,
            DType::F16,
            DType::BF16,
            others[i % 5],
            others[(i + 2) % 5],
        ];
        for dtype in dtypes {
            if dtype == DType::F64 && !has_f64(device)? {
                continue;
            }
            let Case {
                b,
                groups,
                c_in,
                c_out,
                input: [h, w],
                kernel: [k_h, k_w],
                ..
            } = case;
            let x = integers(&[b, groups * c_in, h, w], dtype)?;
            let kernel = match case.transposed {
                true => integers(&[groups * c_in, c_out, k_h, k_w], dtype)?,
                false => integers(&[groups * c_out, c_in, k_h, k_w], dtype)?,
            };
            let run = |x: &Tensor, kernel: &Tensor| match case.transposed {
                true => x.conv_transpose2d(
                    kernel,
                    case.padding,
                    case.stride - 1,
                    case.stride,
                    case.dilation,
                ),
                false => x.conv2d(kernel, case.padding, case.stride, case.dilation, groups),
            };
            let want = run(&x, &kernel)?;
            let kernel = kernel.to_device(device)?;
            let what = format!("{dtype:?} {case:?}");
            assert_same(&run(&x.to_device(device)?, &kernel)?, &want, &what)?;
            // The channels of a place side by side already.
            let last = x.permute((0, 2, 3, 1))?.contiguous()?.to_device(device)?;
            let last = last.permute((0, 3, 1, 2))?;
            assert_same(
                &run(&last, &kernel)?,
                &want,
                &format!("channels last {what}"),
            )?;
        }
    }
    Ok(())
}

test_device!(tiles);
