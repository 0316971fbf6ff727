use super::common::{assert_close, assert_fails, assert_values, data, layouts};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{pixel_shuffle, pixel_unshuffle, replication_pad2d};

fn pixels_of_channels(dev: &Device) -> Result<()> {
    // Channel 2 i + j is pixel (i, j) of each block.
    let xs = Tensor::arange(0f32, 8., dev)?.reshape((1, 4, 1, 2))?;
    let got = pixel_shuffle(&xs, 2)?;
    assert_eq!(got.dims(), &[1, 1, 2, 4]);
    assert_values("shuffled", &got, &[0., 2., 1., 3., 4., 6., 5., 7.], 0.);
    for (layout, xs) in layouts(&[2, 18, 2, 3], DType::F32, dev)? {
        let there = pixel_shuffle(&xs, 3)?;
        assert_eq!(there.dims(), &[2, 2, 6, 9]);
        assert_close(layout, &pixel_unshuffle(&there, 3)?, &xs, 0.);
    }
    let xs = data(&[1, 6, 4, 3], DType::F32, dev)?;
    assert_fails(pixel_shuffle(&xs, 2), &["6 channels", "2 by 2"]);
    assert_fails(pixel_unshuffle(&xs, 2), &["4 by 3", "2 by 2"]);
    assert_fails(pixel_shuffle(&xs, 0), &["0 by 0"]);
    Ok(())
}

fn repeated_borders(dev: &Device) -> Result<()> {
    let xs = Tensor::new(&[[[[1f32, 2.], [3., 4.]]]], dev)?;
    let expected = [
        1., 1., 2., 2., 1., 1., 2., 2., 3., 3., 4., 4., 3., 3., 4., 4.,
    ];
    assert_values("1", &replication_pad2d(&xs, 1)?, &expected, 0.);
    assert_close("0", &replication_pad2d(&xs, 0)?, &xs, 0.);
    let wide = replication_pad2d(&xs, 3)?;
    assert_eq!(wide.dims(), &[1, 1, 8, 8]);
    assert_close(
        "3",
        &wide.narrow(2, 2, 4)?.narrow(3, 2, 4)?,
        &replication_pad2d(&xs, 1)?,
        0.,
    );
    let none = data(&[1, 1, 0, 2], DType::F32, dev)?;
    assert_fails(replication_pad2d(&none, 1), &["[1, 1, 0, 2]"]);
    Ok(())
}

test_device!(pixels_of_channels);
test_device!(repeated_borders);
