//! Networks of convolutions, with the checks of all models of images.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::efficientnet::{EfficientNet, EfficientNetLite, MBConvConfig};
use candle_transformers::models::{
    convmixer, convnext, efficientvit, fastvit, mobilenetv4, mobileone, vgg,
};

use super::support::assert_close;
use super::vision::{check, check_of, module, pictures, weights, weights_without, Forward, Made};

/// Weights from their names, times `gain`, for networks that let an image die or grow otherwise; as variables, if they are trained.
fn with_gain(
    gain: f32,
    without: &'static str,
    vars: bool,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'static> {
    let made = Made {
        vars,
        without,
        gain,
    };
    VarBuilder::from_backend(Box::new(made), dtype, device.clone())
}

/// An image of `dims` is an error that says `wanted`.
fn refuses(model: &impl Module, dims: &[usize], wanted: &str, device: &Device) -> Result<()> {
    let picture = Tensor::zeros(dims, DType::F32, device)?;
    let err = model.forward(&picture).map(|ys| ys.dims().to_vec());
    let err = err.expect_err("the picture is accepted").to_string();
    assert!(
        err.contains(wanted) && err.contains(&format!("{dims:?}")),
        "{err}"
    );
    Ok(())
}

/// The smaller network runs on whole patches, what is beyond the last one does not matter, and one patch is the least.
fn convmixer_1024(device: &Device) -> Result<()> {
    let model = convmixer::c1024_20(7, weights(DType::F32, device))?;
    let pictures = pictures([2, 3, 28, 17], device)?;
    let logits = model.forward(&pictures)?;
    assert_eq!(logits.dims(), &[2, 7]);
    let cut = pictures.narrow(3, 0, 14)?.narrow(0, 1, 1)?;
    assert_close(&model.forward(&cut)?, &logits.narrow(0, 1, 1)?, 2e-5);
    refuses(&model, &[1, 3, 14, 13], "at least 14", device)?;
    refuses(&model, &[1, 1, 28, 28], "must be", device)
}
test_device!(convmixer_1024);

fn mobileone_s0(device: &Device) -> Result<()> {
    let load = |dtype| -> Result<Forward> {
        let vb = with_gain(0.5, "attn", false, dtype, device);
        Ok(module(mobileone::mobileone(
            &mobileone::Config::s0(),
            10,
            vb,
        )?))
    };
    check_of(device, load, [3, 49, 33], &[])
}
test_device!(mobileone_s0);

/// Attention is there where its weights are, and weights that do not fit are an error, not none.
fn mobileone_attention(device: &Device) -> Result<()> {
    let config = mobileone::Config::s0();
    let features = |without| {
        let vb = weights_without(without, DType::F32, device);
        mobileone::mobileone_no_final_layer(&config, vb)?
            .forward(&pictures([1, 3, 32, 32], device)?)
    };
    let (plain, with) = (features("attn")?, features("stages.0.0.attn")?);
    assert_eq!(plain.dims(), &[1, 1024]);
    let difference = (&plain - &with)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference > 1e-3, "attention changes {difference}");
    let partial = weights_without("attn.fc2", DType::F32, device);
    let err = mobileone::mobileone(&config, 10, partial).err();
    let err = err.expect("half of the attention is missing").to_string();
    assert!(err.contains("attn.fc2"), "{err}");
    Ok(())
}
test_device!(mobileone_attention);

fn convnext_atto(without: &'static str, device: &Device) -> Result<()> {
    let load = |dtype| -> Result<Forward> {
        let vb = weights_without(without, dtype, device);
        Ok(module(convnext::convnext(
            &convnext::Config::atto(),
            10,
            vb,
        )?))
    };
    check_of(device, load, [3, 35, 64], &[&[1, 3, 31, 64]])
}

/// The first version's blocks.
fn convnext_v1(device: &Device) -> Result<()> {
    convnext_atto("grn", device)
}
test_device!(convnext_v1);

/// The second version's blocks.
fn convnext_v2(device: &Device) -> Result<()> {
    convnext_atto("gamma", device)
}
test_device!(convnext_v2);

fn efficientnet(vb: VarBuilder<'static>) -> Result<Forward> {
    Ok(module(EfficientNet::new(vb, MBConvConfig::b0(), 10)?))
}

fn efficientnet_b0(device: &Device) -> Result<()> {
    let load = |dtype| efficientnet(with_gain(1.7, "", false, dtype, device));
    check_of(device, load, [3, 48, 33], &[])?;
    // The smallest image there is.
    let pixel = efficientnet(weights(DType::F32, device))?(&pictures([1, 3, 1, 1], device)?)?;
    assert_eq!(pixel.dims(), &[1, 10]);
    assert!(EfficientNet::new(weights(DType::F32, device), vec![], 10).is_err());
    Ok(())
}
test_device!(efficientnet_b0);

/// By the names of either kind of file, and what is another model says so.
fn efficientnet_lite0(device: &Device) -> Result<()> {
    for without in ["never", "_conv_stem"] {
        let load = |dtype| -> Result<Forward> {
            let vb = with_gain(1.7, without, false, dtype, device);
            Ok(module(EfficientNetLite::lite0(vb, 10)?))
        };
        check_of(device, load, [3, 48, 33], &[])?;
    }
    let err = EfficientNetLite::lite0(weights_without("conv_stem", DType::F32, device), 10);
    let err = err.expect_err("there is no first layer").to_string();
    assert!(err.contains("_conv_stem.weight"), "{err}");
    Ok(())
}
test_device!(efficientnet_lite0);

/// timm's names, which a map of variables gets, as the first ports have them.
fn as_first_ports(name: &str) -> String {
    const BLOCKS: [usize; 7] = [1, 2, 2, 3, 3, 4, 1];
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["classifier", end] => format!("_fc.{end}"),
        ["bn1", end] => format!("_bn0.{end}"),
        ["bn2", end] => format!("_bn1.{end}"),
        ["blocks", stage, i, layer, end] => {
            let [stage, i] = [stage, i].map(|number| number.parse::<usize>().unwrap());
            let all = BLOCKS[..stage].iter().sum::<usize>() + i;
            let layer = match (*layer, stage) {
                ("conv_pw", 0) | ("conv_pwl", _) => "_project_conv",
                ("conv_pw", _) => "_expand_conv",
                ("conv_dw", _) => "_depthwise_conv",
                ("bn1", 0) | ("bn2", 1..) => "_bn1",
                ("bn1", _) => "_bn0",
                ("bn2", _) | ("bn3", _) => "_bn2",
                other => panic!("{other:?}"),
            };
            format!("_blocks.{all}.{layer}.{end}")
        }
        _ => format!("_{name}"),
    }
}

/// Both kinds of names are those of one network: the same weights give the same logits.
#[test]
fn efficientnet_lite0_names() -> Result<()> {
    let device = Device::Cpu;
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &device);
    let pictures = pictures([2, 3, 32, 40], &device)?;
    let expected = EfficientNetLite::lite0(vb, 10)?.forward(&pictures)?;
    let tensors = map.data().lock().unwrap().clone().into_iter();
    let tensors: HashMap<_, _> = tensors
        .map(|(name, var)| (as_first_ports(&name), var.as_tensor().detach()))
        .collect();
    assert!(tensors.contains_key("_blocks.15._project_conv.weight"));
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);
    let found = EfficientNetLite::lite0(vb, 10)?.forward(&pictures)?;
    assert_close(&found, &expected, 1e-4);
    Ok(())
}

/// A stage is as deep and wide as the paper's numbers say.
#[test]
fn efficientnet_sizes() {
    for (stages, expected) in [(MBConvConfig::b0(), 16), (MBConvConfig::b7(), 55)] {
        let depths = format!("{stages:?}");
        let depth = |text: &str| -> usize {
            let digits = text.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        let total: usize = depths.split("depth: ").skip(1).map(depth).sum();
        assert_eq!(total, expected);
    }
}

/// Batch norms that stay apart, as the weights are variables, give what folded ones give.
fn norms_of_variables(device: &Device) -> Result<()> {
    type Load = fn(VarBuilder<'static>) -> Result<Forward>;
    let loads: [Load; 2] = [efficientnet, |vb| {
        Ok(module(mobilenetv4::mobilenetv4(
            &mobilenetv4::Config::small(),
            10,
            vb,
        )?))
    }];
    let picture = pictures([1, 3, 32, 32], device)?;
    for load in loads {
        let trained = load(with_gain(1.7, "", true, DType::F32, device))?(&picture)?;
        assert!(trained.track_op(), "the graph ends before the weights");
        let folded = load(with_gain(1.7, "", false, DType::F32, device))?(&picture)?;
        assert!(!folded.track_op());
        assert_close(&folded, &trained, 1e-4);
    }
    Ok(())
}
test_device!(norms_of_variables);

fn mobilenetv4_small(device: &Device) -> Result<()> {
    let load = |dtype| -> Result<Forward> {
        let vb = weights_without("layer_scale", dtype, device);
        Ok(module(mobilenetv4::mobilenetv4(
            &mobilenetv4::Config::small(),
            10,
            vb,
        )?))
    };
    check_of(device, load, [3, 64, 47], &[])
}
test_device!(mobilenetv4_small);

/// Two stages have attention; features stay images of one pixel.
fn mobilenetv4_hybrid(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        let config = mobilenetv4::Config::hybrid_medium();
        Ok(module(mobilenetv4::mobilenetv4_no_final_layer(
            &config, vb,
        )?))
    };
    check(device, load, [3, 64, 80], &[])?;
    let features = load(weights(DType::F32, device))?(&pictures([1, 3, 32, 32], device)?)?;
    assert_eq!(features.dims(), &[1, 960, 1, 1]);
    Ok(())
}
test_device!(mobilenetv4_hybrid);

/// Windows at the border may be partly outside of the image.
fn efficientvit_m0(device: &Device) -> Result<()> {
    let load = |dtype| -> Result<Forward> {
        let vb = with_gain(0.6, "attention_biases", false, dtype, device);
        let config = efficientvit::Config::m0();
        Ok(module(efficientvit::efficientvit(&config, 10, vb)?))
    };
    check_of(device, load, [3, 128, 145], &[])
}
test_device!(efficientvit_m0);

/// The features stay an image, and the last stage has attention. Weights whose branches are merged are refused by name.
fn fastvit_features(device: &Device) -> Result<()> {
    let config = fastvit::Config {
        in_channels: 16,
        blocks: [1, 1, 1, 2],
        ..fastvit::Config::mci0()
    };
    let load =
        |vb| -> Result<Forward> { Ok(module(fastvit::fastvit_no_final_layer(&config, vb)?)) };
    check(device, load, [3, 64, 95], &[])?;
    let features = load(weights(DType::F32, device))?(&pictures([1, 3, 64, 96], device)?)?;
    assert_eq!(features.dims(), &[1, 256, 2, 3]);
    let classes = fastvit::fastvit(&config, 7, weights(DType::F32, device))?;
    let logits = classes.forward(&pictures([2, 3, 32, 32], device)?)?;
    assert_eq!(logits.dims(), &[2, 7]);
    let merged = weights_without("stem.1.conv", DType::F32, device);
    let err = fastvit::fastvit(&config, 7, merged).err();
    let err = err.expect("a block without branches").to_string();
    assert!(err.contains("stem.1 has none of the branches"), "{err}");
    let narrow = fastvit::Config {
        in_channels: 10,
        ..config
    };
    assert!(fastvit::fastvit(&narrow, 7, weights(DType::F32, device)).is_err());
    Ok(())
}
test_device!(fastvit_features);

/// Sizes that the linear layers do not fit are errors. The oracle checks the numbers: the first linear layer alone has 100 million weights,
/// which are all equal here.
#[test]
fn vgg_shapes() -> Result<()> {
    let device = Device::Cpu;
    let one = Tensor::full(1e-3f32, (1, 1), &device)?;
    struct Same(Tensor);
    impl candle_nn::var_builder::SimpleBackend for Same {
        fn get(
            &self,
            s: candle_core::Shape,
            _: &str,
            _: candle_nn::Init,
            _: DType,
            _: &Device,
        ) -> Result<Tensor> {
            self.0.flatten_all()?.broadcast_as(s)
        }

        fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
            candle_core::bail!("{name} is requested without a shape")
        }

        fn contains_tensor(&self, _: &str) -> bool {
            true
        }
    }
    let vb = VarBuilder::from_backend(Box::new(Same(one)), DType::F32, device.clone());
    let model = vgg::Vgg::new(vb, vgg::Models::Vgg13)?;
    for dims in [
        &[3, 224, 223][..],
        &[1, 3, 112, 112],
        &[224, 224],
        &[1, 1, 224, 224],
    ] {
        let picture = Tensor::zeros(dims, DType::F32, &device)?;
        let err = model
            .forward_t(&picture, false)
            .map(|ys| ys.dims().to_vec());
        let err = err.expect_err("the picture is accepted").to_string();
        assert!(err.contains("(batch, 3, 224, 224)"), "{err}");
    }
    Ok(())
}
