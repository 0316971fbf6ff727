use super::common::{
    assert_close, assert_fails, assert_values, data, dtypes, reference, runs_fewer,
};
use candle_core::{test_device, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{
    batch_norm, conv1d, conv1d_no_bias, conv2d, conv2d_no_bias, conv_transpose1d,
    conv_transpose1d_no_bias, conv_transpose2d, conv_transpose2d_no_bias, Activation, BatchNorm,
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d, ConvTranspose1dConfig,
    ConvTranspose2d, ConvTranspose2dConfig, VarBuilder, VarMap,
};

/// Sums of products put down by hand: a kernel over a few numbers, with a bias.
fn convolution_values(dev: &Device) -> Result<()> {
    let signal = Tensor::new(&[[[1f32, 2., 3., 4.]]], dev)?;
    let kernel = Tensor::new(&[[[1f32, 10.]]], dev)?;
    let bias = Some(Tensor::new(&[0.5f32], dev)?);
    let config = Conv1dConfig {
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    let layer = Conv1d::new(kernel.clone(), bias.clone(), config);
    assert_values("conv1d", &layer.forward(&signal)?, &[10.5, 32.5, 4.5], 0.);

    let config = ConvTranspose1dConfig {
        stride: 2,
        output_padding: 1,
        ..Default::default()
    };
    let layer = ConvTranspose1d::new(kernel, bias.clone(), config);
    let got = layer.forward(&signal.narrow(2, 0, 2)?)?;
    assert_values("transposed", &got, &[1.5, 10.5, 2.5, 20.5, 0.5], 0.);

    let image = Tensor::new(&[[[[1f32, 2.], [3., 4.]]]], dev)?;
    let kernel = Tensor::new(&[[[[1f32, 10.], [100., 1000.]]]], dev)?;
    let layer = Conv2d::new(kernel.clone(), bias.clone(), Conv2dConfig::default());
    assert_values("conv2d", &layer.forward(&image)?, &[4321.5], 0.);
    let layer = ConvTranspose2d::new(kernel, bias, ConvTranspose2dConfig::default());
    let expected = [1., 12., 20., 103., 1234., 2040., 300., 3400., 4000.];
    let expected = expected.map(|x| x + 0.5);
    assert_values("transposed 2d", &layer.forward(&image)?, &expected, 0.);
    Ok(())
}

/// Layers of a `VarBuilder` do what the tensor ops do with its tensors.
fn convolutions_of_a_builder(dev: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, dev);
    let get = |name: &str| map.data().lock().unwrap()[name].as_detached_tensor();
    let with_bias = |ys: Tensor, name: &str| {
        let bias = get(&format!("{name}.bias"));
        let mut dims = vec![1; ys.rank()];
        dims[1] = bias.elem_count();
        ys.broadcast_add(&bias.reshape(dims)?)
    };
    let signal = data(&[2, 4, 9], DType::F32, dev)?;
    let image = data(&[2, 4, 5, 6], DType::F32, dev)?;

    let config = Conv1dConfig {
        padding: 2,
        stride: 2,
        dilation: 2,
        groups: 2,
        cudnn_fwd_algo: None,
    };
    let layer = conv1d(4, 6, 3, config, vb.pp("a"))?;
    assert_eq!(
        (layer.weight().dims(), layer.config()),
        (&[6, 2, 3][..], &config)
    );
    let expected = signal.conv1d(&get("a.weight"), 2, 2, 2, 2)?;
    assert_close(
        "conv1d",
        &layer.forward(&signal)?,
        &with_bias(expected.clone(), "a")?,
        0.,
    );
    let layer = conv1d_no_bias(4, 6, 3, config, vb.pp("a"))?;
    assert!(layer.bias().is_none());
    assert_close("conv1d", &layer.forward(&signal)?, &expected, 0.);

    let config = Conv2dConfig {
        padding: 1,
        stride: 2,
        groups: 4,
        ..Default::default()
    };
    let layer = conv2d(4, 8, 3, config, vb.pp("b"))?;
    assert_eq!(layer.weight().dims(), &[8, 1, 3, 3]);
    let expected = image.conv2d(&get("b.weight"), 1, 2, 1, 4)?;
    assert_close(
        "conv2d",
        &layer.forward(&image)?,
        &with_bias(expected.clone(), "b")?,
        0.,
    );
    let layer = conv2d_no_bias(4, 8, 3, config, vb.pp("b"))?;
    assert_close("conv2d", &layer.forward(&image)?, &expected, 0.);

    let config = ConvTranspose1dConfig {
        padding: 1,
        output_padding: 1,
        stride: 3,
        dilation: 2,
        groups: 2,
    };
    let layer = conv_transpose1d(4, 6, 3, config, vb.pp("c"))?;
    assert_eq!(layer.weight().dims(), &[4, 3, 3]);
    let expected = signal.conv_transpose1d(&get("c.weight"), 1, 1, 3, 2, 2)?;
    let got = layer.forward(&signal)?;
    assert_close(
        "conv_transpose1d",
        &got,
        &with_bias(expected.clone(), "c")?,
        0.,
    );
    let layer = conv_transpose1d_no_bias(4, 6, 3, config, vb.pp("c"))?;
    assert_close("conv_transpose1d", &layer.forward(&signal)?, &expected, 0.);

    let config = ConvTranspose2dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
    };
    let layer = conv_transpose2d(4, 3, 3, config, vb.pp("d"))?;
    assert_eq!(layer.weight().dims(), &[4, 3, 3, 3]);
    let expected = image.conv_transpose2d(&get("d.weight"), 1, 1, 2, 1)?;
    let got = layer.forward(&image)?;
    assert_close(
        "conv_transpose2d",
        &got,
        &with_bias(expected.clone(), "d")?,
        0.,
    );
    let layer = conv_transpose2d_no_bias(4, 3, 3, config, vb.pp("d"))?;
    assert_close("conv_transpose2d", &layer.forward(&image)?, &expected, 0.);
    Ok(())
}

fn batch_norm_within_a_convolution(dev: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, dev);
    let norm = batch_norm(5, 1e-3, vb.pp("norm"))?;
    let value = (data(&[5], DType::F32, dev)?.abs()? + 0.5)?;
    for (name, var) in map.data().lock().unwrap().iter() {
        var.set(&(&value * name.len() as f64)?)?;
    }
    let config = Conv2dConfig {
        padding: 1,
        ..Default::default()
    };
    let image = data(&[2, 3, 4, 5], DType::F32, dev)?;
    let layers = [
        conv2d(3, 5, 3, config, vb.pp("conv"))?,
        conv2d_no_bias(3, 5, 3, config, vb.pp("conv"))?,
    ];
    for layer in layers {
        let expected = norm.forward_t(&layer.forward(&image)?, false)?;
        let got = layer.absorb_bn(&norm)?.forward(&image)?;
        // Scales of some tens.
        assert_close("both", &got, &expected, 1e-4);
    }
    let [mean, variance] = [0, 1].map(|_| Tensor::ones(5, DType::F32, dev));
    let bare = BatchNorm::new_no_bias(5, mean?, variance?, 1e-5)?;
    let layer = conv2d(3, 5, 3, config, vb.pp("conv"))?;
    assert_fails(layer.absorb_bn(&bare), &["no weight"]);
    Ok(())
}

fn convolutions_that_do_not_fit(dev: &Device) -> Result<()> {
    let vb = VarBuilder::zeros(DType::F32, dev);
    let config = Conv2dConfig {
        groups: 3,
        ..Default::default()
    };
    assert_fails(
        conv2d(4, 6, 3, config, vb.clone()),
        &["4 channels", "3 groups"],
    );
    let config = Conv1dConfig {
        groups: 0,
        ..Default::default()
    };
    assert_fails(conv1d(4, 6, 3, config, vb.clone()), &["0 groups"]);
    let layer = conv2d(4, 6, 3, Default::default(), vb)?;
    let image = data(&[1, 3, 5, 5], DType::F32, dev)?;
    assert_fails(layer.forward(&image), &["conv2d", "[1, 3, 5, 5]"]);
    Ok(())
}

/// Bias, residual and activation, by the kernel of the convolution or after it, for each of its algorithms.
fn what_follows_a_convolution(dev: &Device) -> Result<()> {
    // Channels of the input, of the result, groups, size of the kernel, size of the image.
    let cases = [
        // A product; tiles; the same with planes of an odd size; groups; direct; sums that are split.
        (16, 24, 1, 1, [6, 8]),
        (5, 20, 1, 3, [6, 8]),
        (5, 20, 1, 3, [5, 7]),
        (24, 40, 2, 3, [6, 4]),
        (24, 40, 2, 1, [6, 4]),
        (6, 4, 1, 3, [6, 8]),
        (130, 20, 1, 3, [4, 4]),
    ];
    for (i, (c_in, c_out, groups, size, [h, w])) in cases.into_iter().enumerate() {
        for (dtype, rounded) in dtypes(dev) {
            if runs_fewer(dev) && dtype != [DType::F16, DType::F32, DType::BF16][i % 3] {
                continue;
            }
            let config = Conv2dConfig {
                padding: size / 2,
                groups,
                ..Default::default()
            };
            let weight = data(&[c_out, c_in / groups, size, size], dtype, dev)?;
            let bias = Some(data(&[c_out + 1], dtype, dev)?.narrow(0, 1, c_out)?);
            let image = data(&[2, c_in, h, w], dtype, dev)?;
            let residuals = [
                data(&[2, c_out, h, w], dtype, dev)?,
                data(&[2, h, w, c_out], dtype, dev)?.permute((0, 3, 1, 2))?,
            ];
            for (bias, residual, activation) in [
                (&bias, None, None),
                (&None, None, Some(Activation::Relu)),
                (&bias, Some(&residuals[0]), Some(Activation::Relu)),
                (&bias, Some(&residuals[1]), Some(Activation::Silu)),
                // One that no device's kernel has.
                (&None, Some(&residuals[0]), Some(Activation::Elu(0.5))),
            ] {
                let layer = Conv2d::new(weight.clone(), bias.clone(), config);
                let got = layer.forward_then(&image, residual, activation)?;
                let (image, weight) = (reference(&image)?, reference(&weight)?);
                let mut expected = image.conv2d(&weight, size / 2, 1, 1, groups)?;
                // Of the sum's size, which the others may cancel.
                let most = expected
                    .abs()?
                    .flatten_all()?
                    .max(0)?
                    .to_dtype(DType::F64)?;
                let most = most.to_scalar::<f64>()?;
                if let Some(bias) = bias {
                    let bias = reference(bias)?.reshape((1, c_out, 1, 1))?;
                    expected = expected.broadcast_add(&bias)?;
                }
                if let Some(residual) = residual {
                    expected = (expected + reference(residual)?)?;
                }
                if let Some(activation) = activation {
                    expected = activation.forward(&expected)?;
                }
                let case = format!("{i} {dtype:?} {} {activation:?}", residual.is_some());
                assert_close(&case, &got, &expected, 2. * rounded * (1. + most));
            }
        }
    }
    let layer = Conv2d::new(
        data(&[4, 3, 3, 3], DType::F32, dev)?,
        None,
        Conv2dConfig::default(),
    );
    let image = data(&[1, 3, 5, 5], DType::F32, dev)?;
    let residual = data(&[1, 4, 5, 5], DType::F32, dev)?;
    let got = layer.forward_then(&image, Some(&residual), None);
    assert_fails(got, &["[1, 4, 3, 3]", "[1, 4, 5, 5]"]);
    Ok(())
}

test_device!(what_follows_a_convolution);
test_device!(convolution_values);
test_device!(convolutions_of_a_builder);
test_device!(batch_norm_within_a_convolution);
test_device!(convolutions_that_do_not_fit);
