//! Convolution, pooling and resizing.

use super::apply::call;
use super::candle::{self, Result, Tensor};
use crate::case::Op;

pub fn output(op: &Op, ts: &[Tensor]) -> Result<Tensor> {
    let t = &ts[0];
    match op {
        Op::Conv1d(c) => t.conv1d(&ts[1], c.padding, c.stride, c.dilation, c.groups),
        Op::Conv2d(c) => t.conv2d(&ts[1], c.padding, c.stride, c.dilation, c.groups),
        Op::ConvTranspose1d(c) => t.conv_transpose1d(
            &ts[1],
            c.padding,
            c.output_padding,
            c.stride,
            c.dilation,
            c.groups,
        ),
        Op::ConvTranspose2d(c) => {
            t.conv_transpose2d(&ts[1], c.padding, c.output_padding, c.stride, c.dilation)
        }
        Op::Pool(name, kernel, stride) if kernel == stride => {
            call!(name, t, (*kernel), avg_pool2d max_pool2d)
        }
        Op::Pool("avg_pool2d", kernel, stride) => t.avg_pool2d_with_stride(*kernel, *stride),
        Op::Pool(_, kernel, stride) => t.max_pool2d_with_stride(*kernel, *stride),
        Op::Resize(name, to) if to.len() == 1 => {
            call!(name, t, (to[0]), upsample_nearest1d interpolate1d)
        }
        Op::Resize(name, to) => call!(name, t, (to[0], to[1]), upsample_nearest2d interpolate2d),
        Op::Bilinear(h, w, corners) => t.upsample_bilinear2d(*h, *w, *corners),
        Op::BilinearScale(h, w, corners) => t.upsample_bilinear2d_with_scale(*h, *w, *corners),
        other => candle::bail!("{other:?} is in another file"),
    }
}
