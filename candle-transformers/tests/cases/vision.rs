//! What every model of images has to do, whatever its numbers are: one body of checks over the smallest forms, on every device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{bail, test_device, DType, Device, Module, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{convnext, dinov2, dinov2reg4, repvgg, resnet, vit};

use super::support::{assert_close, Numbers};

/// Any weight that a model asks for, from its name; norms and factors are near 1, and sums of products stay near the size of what comes in.
pub(super) struct Made {
    /// Whether the weights are variables, as in training.
    pub(super) vars: bool,
    /// Tensors that files lack because they have weights other than those the model tries first.
    pub(super) without: &'static str,
    /// Times the weights of products: deep models without a norm of what came in let it die or grow.
    pub(super) gain: f32,
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut numbers = Numbers::new(seed);
        let (centre, spread) = match s.dims() {
            [] | [_] if name.ends_with("bias") || name.ends_with("mean") => (0., 0.1),
            [] | [_] => (1., 0.1),
            [_, inputs @ ..] => {
                let inputs: usize = inputs.iter().product();
                (0., self.gain * (3. / inputs.max(1) as f32).sqrt())
            }
        };
        let values = (0..s.elem_count()).map(|_| centre + numbers.next(spread));
        let weight = Tensor::from_vec(values.collect::<Vec<f32>>(), s, &Device::Cpu)?;
        let weight = weight.to_dtype(dtype)?.to_device(dev)?;
        if self.vars {
            Ok(Var::from_tensor(&weight)?.as_tensor().clone())
        } else {
            Ok(weight)
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.without.is_empty() || !name.contains(self.without)
    }
}

pub(super) fn weights_without(
    without: &'static str,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'static> {
    let made = Made {
        vars: false,
        without,
        gain: 1.,
    };
    VarBuilder::from_backend(Box::new(made), dtype, device.clone())
}

pub(super) fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    weights_without("", dtype, device)
}

/// Images of numbers from -1 to 1, different ones.
pub(super) fn pictures(dims: [usize; 4], device: &Device) -> Result<Tensor> {
    Numbers::new(5).tensor(&dims, 1., device)
}

pub(super) type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

pub(super) fn module<M: Module + 'static>(module: M) -> Forward {
    Box::new(move |xs| module.forward(xs))
}

/// - Two images in a batch give what each gives alone.
/// - f16 gives about the same, and no NaN.
/// - An image with another number of channels, and each of `wrong`, is an error that names the shape that came and says what is wanted.
pub(super) fn check(
    device: &Device,
    load: impl Fn(VarBuilder<'static>) -> Result<Forward>,
    [channels, h, w]: [usize; 3],
    wrong: &[&[usize]],
) -> Result<()> {
    check_of(
        device,
        |dtype| load(weights(dtype, device)),
        [channels, h, w],
        wrong,
    )
}

pub(super) fn check_of(
    device: &Device,
    load: impl Fn(DType) -> Result<Forward>,
    [channels, h, w]: [usize; 3],
    wrong: &[&[usize]],
) -> Result<()> {
    let forward = load(DType::F32)?;
    let both = pictures([2, channels, h, w], device)?;
    let results = forward(&both)?;
    let spread = results.narrow(0, 0, 1)?.sub(&results.narrow(0, 1, 1)?)?;
    let spread = spread.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(spread > 1e-4, "two pictures give the same, within {spread}");
    for i in 0..2 {
        let alone = forward(&both.narrow(0, i, 1)?)?;
        assert_close(&alone, &results.narrow(0, i, 1)?, 2e-5);
    }
    let other_channels = [1, channels + 1, h, w];
    for dims in wrong
        .iter()
        .copied()
        .chain([&other_channels[..], &[channels, h, w]])
    {
        let picture = Tensor::zeros(dims, DType::F32, device)?;
        let Err(err) = forward(&picture) else {
            panic!("pictures of {dims:?} are accepted")
        };
        let text = err.to_string();
        let named = text.contains(&format!("{dims:?}")) && text.contains("must be");
        assert!(named, "the error for {dims:?} is {text}");
    }
    drop(forward);
    let half = load(DType::F16)?(&both.to_dtype(DType::F16)?)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &results, 0.05);
    Ok(())
}

fn resnet_18(device: &Device) -> Result<()> {
    check(
        device,
        |vb| Ok(module(resnet::resnet18(10, vb)?)),
        [3, 48, 40],
        &[],
    )
}
test_device!(resnet_18);

fn resnet_50_features(device: &Device) -> Result<()> {
    let model = resnet::resnet50_no_final_layer(weights(DType::F32, device))?;
    let features = model.forward(&pictures([1, 3, 32, 32], device)?)?;
    assert_eq!(features.dims(), &[1, 2048]);
    Ok(())
}
test_device!(resnet_50_features);

/// Batch norms that are folded into convolutions give what they give apart, and are apart where weights are variables, so that training
/// reaches them.
fn folded_batch_norms(device: &Device) -> Result<()> {
    type Load = fn(VarBuilder<'static>) -> Result<Forward>;
    let loads: [Load; 1] = [|vb| Ok(module(resnet::resnet18(10, vb)?))];
    let picture = pictures([1, 3, 32, 32], device)?;
    for load in loads {
        let made = Made {
            vars: true,
            without: "",
            gain: 1.,
        };
        let vars = VarBuilder::from_backend(Box::new(made), DType::F32, device.clone());
        let trained = load(vars)?(&picture)?;
        assert!(trained.track_op(), "the graph ends before the weights");
        let folded = load(weights(DType::F32, device))?(&picture)?;
        assert!(!folded.track_op());
        assert_close(&folded, &trained, 1e-4);
    }
    Ok(())
}
test_device!(folded_batch_norms);

fn repvgg_a0(device: &Device) -> Result<()> {
    let load =
        |vb| -> Result<Forward> { Ok(module(repvgg::repvgg(&repvgg::Config::a0(), 10, vb)?)) };
    check(device, load, [3, 64, 48], &[])
}
test_device!(repvgg_a0);

fn vit_config() -> vit::Config {
    vit::Config {
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        image_size: 32,
        patch_size: 8,
        ..vit::Config::vit_base_patch16_224()
    }
}

fn vit_tiny(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        let model = vit::Model::new(&vit_config(), 10, vb)?;
        Ok(Box::new(move |xs| model.forward(xs)))
    };
    check(
        device,
        load,
        [3, 32, 32],
        &[&[1, 3, 40, 32], &[1, 3, 30, 32]],
    )?;
    let heads = vit::Config {
        num_attention_heads: 5,
        ..vit_config()
    };
    assert!(vit::Model::new(&heads, 10, weights(DType::F32, device)).is_err());
    Ok(())
}
test_device!(vit_tiny);

/// Masked patches do not matter, and positions between those learned are there for other sizes.
fn vit_embeddings(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let embeddings = vit::Embeddings::new(&vit_config(), true, vb.clone())?;
    let picture = pictures([1, 3, 32, 32], device)?;
    let mask = Tensor::ones((1, 16), DType::U8, device)?;
    let hidden = embeddings.forward(&picture, Some(&mask), false)?;
    let of_nothing = embeddings.forward(&picture.zeros_like()?, Some(&mask), false)?;
    assert_close(&hidden, &of_nothing, 1e-6);
    let same = embeddings.forward(&picture, None, true)?;
    assert_close(&same, &embeddings.forward(&picture, None, false)?, 1e-6);
    let larger = embeddings.forward(&pictures([2, 3, 40, 48], device)?, None, true)?;
    assert_eq!(larger.dims(), &[2, 1 + 5 * 6, 32]);
    let without = vit::Embeddings::new(&vit_config(), false, vb)?;
    assert!(without.forward(&picture, Some(&mask), false).is_err());
    Ok(())
}
test_device!(vit_embeddings);

/// The outputs of blocks: `layers` gets images, blocks, and whether results are images, have the class token, and are normed.
pub(super) fn check_layers(
    picture: &Tensor,
    [rows, columns]: [usize; 2],
    size: usize,
    layers: impl Fn(&Tensor, &[usize], [bool; 3]) -> Result<Tensor>,
) -> Result<()> {
    let (b, n) = (picture.dim(0)?, rows * columns);
    let plain = layers(picture, &[0, 1], [false; 3])?;
    assert_eq!(plain.dims(), &[2, b, n, size]);
    let as_pictures = layers(picture, &[0, 1], [true, false, false])?;
    assert_eq!(as_pictures.dims(), &[2, b, size, rows, columns]);
    let flat = as_pictures.flatten_from(3)?.transpose(2, 3)?;
    assert_close(&flat, &plain, 0.);
    // One token for all patches, behind each.
    let with_class = layers(picture, &[1], [false, true, false])?;
    assert_eq!(with_class.dims(), &[1, b, n, 2 * size]);
    assert_close(
        &with_class.narrow(3, 0, size)?,
        &plain.narrow(0, 1, 1)?,
        1e-6,
    );
    let class = with_class.narrow(3, size, size)?;
    assert_close(
        &class,
        &class.narrow(2, 0, 1)?.broadcast_as(class.shape())?,
        0.,
    );
    let normed = layers(picture, &[1], [false, false, true])?;
    assert_ne!(
        normed.flatten_all()?.to_vec1::<f32>()?,
        plain.get(1)?.flatten_all()?.to_vec1::<f32>()?
    );
    for (blocks, how) in [
        (&[2][..], [false; 3]),
        (&[], [false; 3]),
        (&[0], [true, true, false]),
    ] {
        assert!(layers(picture, blocks, how).is_err(), "{blocks:?}, {how:?}");
    }
    Ok(())
}

fn dinov2_layers(device: &Device) -> Result<()> {
    let load = |vb| dinov2::DinoVisionTransformer::new(vb, 2, 32, 2);
    check(
        device,
        |vb| Ok(module(load(vb)?)),
        [3, 28, 56],
        &[&[1, 3, 28, 55]],
    )?;
    let model = load(weights(DType::F32, device))?;
    let picture = pictures([2, 3, 28, 42], device)?;
    check_layers(&picture, [2, 3], 32, |xs, blocks, [a, b, c]| {
        model.get_intermediate_layers(xs, blocks, a, b, c)
    })?;
    assert!(dinov2::DinoVisionTransformer::new(weights(DType::F32, device), 1, 32, 3).is_err());
    Ok(())
}
test_device!(dinov2_layers);

fn dinov2_registers(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        Ok(module(dinov2reg4::DinoVisionTransformer::new(
            vb, 2, 32, 2,
        )?))
    };
    check(device, load, [3, 28, 56], &[&[1, 3, 28, 55]])
}
test_device!(dinov2_registers);

/// Gives what [`Made`] gives, and keeps it.
struct Kept(Arc<Mutex<HashMap<String, Tensor>>>);

impl SimpleBackend for Kept {
    fn get(&self, s: Shape, name: &str, init: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let made = Made {
            vars: false,
            without: "",
            gain: 1.,
        };
        let tensor = made.get(s, name, init, dtype, dev)?;
        self.0.lock().unwrap().insert(name.into(), tensor.clone());
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} was read without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        // The first of the two versions of ConvNeXt.
        !name.contains("grn")
    }
}

/// Transformers' names for timm's, with what is in front of all but the head.
fn as_transformers(name: &str) -> Vec<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let one = |name: String| vec![name];
    match parts.as_slice() {
        // microsoft/resnet-50
        ["fc", end] => one(format!("classifier.1.{end}")),
        ["conv1", end] => one(format!("resnet.embedder.embedder.convolution.{end}")),
        ["bn1", end] => one(format!("resnet.embedder.embedder.normalization.{end}")),
        [stage, layer, rest @ ..] if stage.starts_with("layer") => {
            let stage = stage[5..].parse::<usize>().unwrap() - 1;
            let inner = match rest {
                ["downsample", "0", end] => format!("shortcut.convolution.{end}"),
                ["downsample", "1", end] => format!("shortcut.normalization.{end}"),
                ["conv1", end] => format!("layer.0.convolution.{end}"),
                ["bn1", end] => format!("layer.0.normalization.{end}"),
                ["conv2", end] => format!("layer.1.convolution.{end}"),
                ["bn2", end] => format!("layer.1.normalization.{end}"),
                other => panic!("{other:?}"),
            };
            one(format!(
                "resnet.encoder.stages.{stage}.layers.{layer}.{inner}"
            ))
        }
        // facebook/dinov2-small
        ["cls_token"] => one("embeddings.cls_token".into()),
        ["pos_embed"] => one("embeddings.position_embeddings".into()),
        ["patch_embed", "proj", end] => {
            one(format!("embeddings.patch_embeddings.projection.{end}"))
        }
        ["norm", end] => one(format!("layernorm.{end}")),
        ["head", end] => one(format!("classifier.{end}")),
        ["blocks", i, "attn", "qkv", end] => ["query", "key", "value"]
            .map(|part| format!("encoder.layer.{i}.attention.attention.{part}.{end}"))
            .into(),
        ["blocks", i, "attn", "proj", end] => {
            one(format!("encoder.layer.{i}.attention.output.dense.{end}"))
        }
        ["blocks", i, "ls1", "gamma"] => one(format!("encoder.layer.{i}.layer_scale1.lambda1")),
        ["blocks", i, "ls2", "gamma"] => one(format!("encoder.layer.{i}.layer_scale2.lambda1")),
        ["blocks", i, rest @ ..] => one(format!("encoder.layer.{i}.{}", rest.join("."))),
        // facebook/convnext-tiny-224
        ["stem", "0", end] => one(format!("convnext.embeddings.patch_embeddings.{end}")),
        ["stem", "1", end] => one(format!("convnext.embeddings.layernorm.{end}")),
        ["head", "norm", end] => one(format!("convnext.layernorm.{end}")),
        ["head", "fc", end] => one(format!("classifier.{end}")),
        ["stages", s, "downsample", i, end] => one(format!(
            "convnext.encoder.stages.{s}.downsampling_layer.{i}.{end}"
        )),
        ["stages", s, "blocks", l, rest @ ..] => {
            let inner = match rest {
                ["gamma"] => "layer_scale_parameter".to_string(),
                ["conv_dw", end] => format!("dwconv.{end}"),
                ["norm", end] => format!("layernorm.{end}"),
                ["mlp", "fc1", end] => format!("pwconv1.{end}"),
                ["mlp", "fc2", end] => format!("pwconv2.{end}"),
                ["mlp", "grn", end] => format!("grn.{end}"),
                other => panic!("{other:?}"),
            };
            one(format!("convnext.encoder.stages.{s}.layers.{l}.{inner}"))
        }
        other => panic!("{other:?}"),
    }
}

/// The same weights under the names of timm and of Transformers.
fn names_of_transformers(device: &Device) -> Result<()> {
    type Load = fn(VarBuilder<'static>) -> Result<Forward>;
    let loads: [(Load, [usize; 4], &str); 3] = [
        (
            |vb| Ok(module(resnet::resnet18(10, vb)?)),
            [1, 3, 32, 32],
            "resnet.encoder.stages.3",
        ),
        (
            |vb| Ok(module(dinov2::DinoVisionTransformer::new(vb, 2, 32, 2)?)),
            [1, 3, 28, 42],
            "encoder.layer.1",
        ),
        (
            |vb| {
                // As small as `Config` allows.
                let config = convnext::Config::atto();
                Ok(module(convnext::convnext(&config, 10, vb)?))
            },
            [1, 3, 32, 32],
            "convnext.encoder.stages.3",
        ),
    ];
    for (load, shape, part) in loads {
        let kept = Arc::default();
        let backend = Box::new(Kept(Arc::clone(&kept)));
        let vb = VarBuilder::from_backend(backend, DType::F32, device.clone());
        let picture = pictures(shape, device)?;
        let wanted = load(vb)?(&picture)?;
        let mut renamed = HashMap::new();
        for (name, tensor) in kept.lock().unwrap().iter() {
            let names = as_transformers(name);
            for (name, part) in names.iter().zip(tensor.chunk(names.len(), 0)?) {
                // Convolutions of single pixels are linear layers there.
                let linear = name.contains("pwconv") && name.ends_with("weight");
                let part = if linear { part.flatten_from(1)? } else { part };
                renamed.insert(name.clone(), part);
            }
        }
        let found = load(VarBuilder::from_tensors(
            renamed.clone(),
            DType::F32,
            device,
        ))?(&picture)?;
        assert_close(&found, &wanted, 0.);
        // A weight that is not there has the name of the file. Those of ConvNeXt that say which version a file is may be missing.
        let required = |name: &&String| {
            name.starts_with(part)
                && !name.contains("grn.weight")
                && !name.contains("layer_scale_parameter")
        };
        for lacking in renamed.keys().filter(required) {
            let mut others = renamed.clone();
            others.remove(lacking);
            let vb = VarBuilder::from_tensors(others, DType::F32, device);
            let Err(err) = load(vb) else {
                panic!("{lacking} was not missed")
            };
            assert!(err.to_string().contains(lacking), "{err}: {lacking}");
        }
    }
    // facebook/dinov2-small has no head: the features are the result.
    let kept = Arc::default();
    let backend = Box::new(Kept(Arc::clone(&kept)));
    let vb = VarBuilder::from_backend(backend, DType::F32, device.clone());
    dinov2::DinoVisionTransformer::new(vb, 1, 32, 2)?;
    let kept = kept.lock().unwrap();
    let parts = kept.iter().filter(|(name, _)| !name.starts_with("head"));
    let mut renamed = HashMap::new();
    for (name, tensor) in parts {
        let names = as_transformers(name);
        renamed.extend(names.iter().cloned().zip(tensor.chunk(names.len(), 0)?));
    }
    let vb = VarBuilder::from_tensors(renamed, DType::F32, device);
    let model = dinov2::DinoVisionTransformer::new(vb, 1, 32, 2)?;
    let features = model.forward(&pictures([1, 3, 28, 42], device)?)?;
    assert_eq!(features.dims(), [1, 64]);
    Ok(())
}
test_device!(names_of_transformers);
