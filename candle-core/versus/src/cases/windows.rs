//! Convolution and pooling.

use super::{Table, F};
use crate::candle_core::DType;

const FLOATS: [DType; 4] = [F[0], F[1], F[2], DType::F64];

pub(super) fn conv(table: &mut Table) {
    for dtype in FLOATS {
        for (what, c_in, c_out, len, k, padding, stride) in [
            ("whisper 80>384 k3", 80, 384, 3000, 3, 1, 1),
            ("whisper 384>384 k3 s2", 384, 384, 1500, 3, 1, 2),
            ("pointwise 256>256", 256, 256, 1024, 1, 0, 1),
        ] {
            table.add(
                format!("conv1d/{what}"),
                dtype,
                [&[1, c_in, len], &[c_out, c_in, k]],
                move |[x, w]| x.conv1d(w, padding, stride, 1, 1),
            );
        }
        for (what, b, c_in, c_out, size, k, padding, stride) in [
            ("resnet 64>64 56 k3", 1, 64, 64, 56, 3, 1, 1),
            ("stem 3>64 224 k7 s2", 1, 3, 64, 224, 7, 3, 2),
            ("patches 3>384 224 k16 s16", 1, 3, 384, 224, 16, 0, 16),
            ("pointwise 256>64 56", 1, 256, 64, 56, 1, 0, 1),
            ("batch 4 of 32>32 28 k3", 4, 32, 32, 28, 3, 1, 1),
        ] {
            table.add(
                format!("conv2d/{what}"),
                dtype,
                [&[b, c_in, size, size], &[c_out, c_in, k, k]],
                move |[x, w]| x.conv2d(w, padding, stride, 1, 1),
            );
        }
    }
}

pub(super) fn pool(table: &mut Table) {
    for dtype in FLOATS {
        for (what, shape, kernel, stride) in [
            ("2x2 of 4x64x56x56", [4, 64, 56, 56], 2, 2),
            ("3x3 s2 of 1x64x112x112", [1, 64, 112, 112], 3, 2),
            ("7x7 of 8x512x7x7", [8, 512, 7, 7], 7, 7),
        ] {
            table.add(format!("pool/max {what}"), dtype, [&shape], move |[x]| {
                x.max_pool2d_with_stride(kernel, stride)
            });
            table.add(format!("pool/avg {what}"), dtype, [&shape], move |[x]| {
                x.avg_pool2d_with_stride(kernel, stride)
            });
        }
    }
}
