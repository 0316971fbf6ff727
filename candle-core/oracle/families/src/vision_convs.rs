//! Convolutional networks with small pictures. If a file's tensors determine the form of a network, the weights lack those of other forms.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, ModuleT, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::efficientnet::{EfficientNet, MBConvConfig};
use candle_transformers::models::openclip::text_model;
use candle_transformers::models::{
    convmixer, convnext, efficientvit, fastvit, mobileclip, mobilenetv4, mobileone, vgg,
};

pub const RUNS: &[Run] = &[
    ("convmixer", convmixer),
    ("convnext", convnext),
    ("efficientnet", efficientnet),
    ("efficientvit", efficientvit),
    ("fastvit", fastvit),
    ("mobileclip", mobileclip),
    ("mobilenetv4", mobilenetv4),
    ("mobileone", mobileone),
    ("vgg", vgg),
];

/// All weights that a model requests, except some.
struct Without<F> {
    lacks: F,
    /// Scale of the weights of convolutions: without a norm of the input, activations in deep networks vanish or explode.
    gain: f64,
}

impl<F: Fn(&str) -> bool + Send + Sync> SimpleBackend for Without<F> {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        // Upstream requests the weight of each convolution that a block may have, with a kernel of 0x0 if it is absent.
        if !self.contains_tensor(name) || s.elem_count() == 0 {
            bail!("there is no {name}")
        }
        let gain = if s.rank() > 1 { self.gain } else { 1. };
        (weight(name, &s)? * gain)?.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !(self.lacks)(name)
    }
}

fn without(
    place: &Place,
    model: &str,
    lacks: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> VarBuilder<'static> {
    with_gain(place, model, 1., lacks)
}

fn with_gain(
    place: &Place,
    model: &str,
    gain: f64,
    lacks: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> VarBuilder<'static> {
    let weights = Box::new(Without { lacks, gain });
    VarBuilder::from_backend(weights, DType::F32, place.device.clone()).pp(model)
}

fn convmixer(place: &Place) -> Result<Vec<Tensor>> {
    let model = convmixer::c1024_20(10, place.weights("convmixer"))?;
    Ok(vec![
        model.forward(&place.input("convmixer", (1, 3, 30, 42))?)?
    ])
}

fn convnext(place: &Place) -> Result<Vec<Tensor>> {
    let first = without(place, "convnext tiny", |name| name.contains("grn"));
    let first = convnext::convnext(&convnext::Config::tiny(), 10, first)?;
    let second = without(place, "convnext atto", |name| name.ends_with("gamma"));
    let second = convnext::convnext(&convnext::Config::atto(), 10, second)?;
    let both = place.weights("convnext femto");
    let both = convnext::convnext_no_final_layer(&convnext::Config::femto(), both)?;
    let picture = place.input("convnext", (2, 3, 67, 48))?;
    Ok(vec![
        first.forward(&picture)?,
        second.forward(&picture)?,
        both.forward(&picture)?,
    ])
}

fn efficientnet(place: &Place) -> Result<Vec<Tensor>> {
    let model = EfficientNet::new(
        with_gain(place, "efficientnet", 1.7, |_| false),
        MBConvConfig::b0(),
        10,
    )?;
    // Even and odd sides are padded in different ways.
    Ok(vec![
        model.forward(&place.input("efficientnet", (2, 3, 65, 48))?)?,
        model.forward(&place.input("efficientnet 1x1", (1, 3, 1, 1))?)?,
    ])
}

fn efficientvit(place: &Place) -> Result<Vec<Tensor>> {
    // Upstream does not read them.
    let biases = |name: &str| name.ends_with("attention_biases");
    let small = efficientvit::efficientvit(
        &efficientvit::Config::m0(),
        10,
        with_gain(place, "m0", 0.6, biases),
    )?;
    let wide = efficientvit::Config::m2();
    let wide =
        efficientvit::efficientvit_no_final_layer(&wide, with_gain(place, "m2", 0.6, biases))?;
    // Two windows, which upstream needs to be complete.
    let picture = place.input("efficientvit", (1, 3, 112, 224))?;
    Ok(vec![small.forward(&picture)?, wide.forward(&picture)?])
}

/// The tensors that upstream requests for a FastViT and timm's files lack.
fn fastvit_lacks(name: &str) -> bool {
    let ends = ["stem.0.identity", "stem.1.identity", "final_conv.identity"];
    let branches = ["stem.2.conv_scale", "proj.1.conv_scale"];
    let norm = ["token_mixer.norm.conv_kxk", "token_mixer.norm.conv_scale"];
    let others = ["stages.0.downsample", "stem.0.se", "mixer.se", "norm.se"];
    let lists = [&ends[..], &branches, &norm, &others];
    let lacking = lists
        .iter()
        .copied()
        .flatten()
        .any(|part| name.contains(part));
    let positions = name.contains("pos_emb") && !name.contains("stages.3");
    lacking || positions
}

/// The smallest with attention, with fewer layers.
fn fastvit_config() -> fastvit::Config {
    fastvit::Config {
        blocks: [1, 1, 2, 2],
        ..fastvit::Config::mci0()
    }
}

fn fastvit(place: &Place) -> Result<Vec<Tensor>> {
    let plain = without(place, "fastvit t8", move |name| {
        fastvit_lacks(name) || name.contains("pos_emb") || name.contains("proj.0.se")
    });
    let plain = fastvit::fastvit(&fastvit::Config::t8(), 10, plain)?;
    let attention = without(place, "fastvit mci0", fastvit_lacks);
    let attention = fastvit::fastvit_no_final_layer(&fastvit_config(), attention)?;
    let picture = place.input("fastvit", (1, 3, 64, 96))?;
    Ok(vec![plain.forward(&picture)?, attention.forward(&picture)?])
}

fn mobileclip(place: &Place) -> Result<Vec<Tensor>> {
    let config = mobileclip::MobileClipConfig {
        text_config: text_model::Config {
            vocab_size: 97,
            embed_dim: 64,
            intermediate_size: 96,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            ..text_model::Config::vit_base_patch32()
        },
        vision_config: fastvit_config(),
        image_size: 64,
    };
    let vb = without(place, "mobileclip", fastvit_lacks);
    let model = mobileclip::MobileClipModel::new(vb, &config)?;
    // One picture: of two, upstream's results differ from those of single ones.
    let pictures = place.input("mobileclip", (1, 3, 64, 96))?;
    let texts = place.tokens("mobileclip", 12, 97)?.reshape((2, 6))?;
    let (per_text, per_picture) = model.forward(&pictures, &texts)?;
    Ok(vec![
        model.get_image_features(&pictures)?,
        model.get_text_features(&texts)?,
        per_text,
        per_picture,
    ])
}

fn mobilenetv4(place: &Place) -> Result<Vec<Tensor>> {
    let conv = with_gain(place, "mobilenetv4", 1.6, |name| {
        name.contains("layer_scale")
    });
    let conv = mobilenetv4::mobilenetv4(&mobilenetv4::Config::small(), 10, conv)?;
    let hybrid = without(place, "mobilenetv4 hybrid", |name| {
        name.contains("blocks.3.")
            && (name.contains("down_conv") || name.contains(".attn.key.norm"))
    });
    let medium = mobilenetv4::Config::hybrid_medium();
    let hybrid = mobilenetv4::mobilenetv4_no_final_layer(&medium, hybrid)?;
    let picture = place.input("mobilenetv4", (1, 3, 64, 96))?;
    Ok(vec![conv.forward(&picture)?, hybrid.forward(&picture)?])
}

fn mobileone(place: &Place) -> Result<Vec<Tensor>> {
    let small = with_gain(place, "mobileone s2", 0.5, |name| name.contains("attn"));
    let small = mobileone::mobileone(&mobileone::Config::s2(), 10, small)?;
    let last = with_gain(place, "mobileone s1", 1.5, |_| false);
    let last = mobileone::mobileone_no_final_layer(&mobileone::Config::s1(), last)?;
    let picture = place.input("mobileone", (1, 3, 49, 64))?;
    Ok(vec![small.forward(&picture)?, last.forward(&picture)?])
}

fn vgg(place: &Place) -> Result<Vec<Tensor>> {
    let model = vgg::Vgg::new(place.weights("vgg"), vgg::Models::Vgg13)?;
    let picture = place.input("vgg", (3, 224, 224))?;
    Ok(vec![model.forward_t(&picture, false)?])
}
