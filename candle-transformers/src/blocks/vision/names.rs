//! Checkpoints that Transformers wrote, for models whose weights have timm's names here: which of the two a file has is found by what it
//! holds, and tensors are then read under Transformers' names.

use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// Transformers' names of a family.
pub(crate) struct Spelling {
    /// Prefix of names outside of the head in checkpoints with a head.
    prefix: &'static str,
    /// A tensor by which a checkpoint is recognised, without the prefix.
    known: &'static str,
    /// timm's name of the same.
    own: &'static str,
    /// From timm's name to Transformers', without the prefix. Several are parts of one tensor, in order. `None` if there is none.
    rename: fn(&str) -> Option<Vec<String>>,
}

/// The names of a head, which has no prefix.
const HEAD: &str = "classifier.";

pub(crate) const RESNET: Spelling = Spelling {
    prefix: "resnet.",
    known: "embedder.embedder.convolution.weight",
    own: "conv1.weight",
    rename: resnet,
};

pub(crate) const DINOV2: Spelling = Spelling {
    prefix: "dinov2.",
    known: "embeddings.patch_embeddings.projection.weight",
    own: "patch_embed.proj.weight",
    rename: dinov2,
};

pub(crate) const CONVNEXT: Spelling = Spelling {
    prefix: "convnext.",
    known: "embeddings.patch_embeddings.weight",
    own: "stem.0.weight",
    rename: convnext,
};

pub(crate) const CONVNEXT_V2: Spelling = Spelling {
    prefix: "convnextv2.",
    ..CONVNEXT
};

fn resnet(name: &str) -> Option<Vec<String>> {
    let (stem, ending) = name.rsplit_once('.')?;
    let part = |kind: &str| match kind {
        "conv" => Some("convolution"),
        "bn" => Some("normalization"),
        _ => None,
    };
    let renamed = match stem {
        "fc" => format!("{HEAD}1"),
        "conv1" => "embedder.embedder.convolution".into(),
        "bn1" => "embedder.embedder.normalization".into(),
        _ => {
            let (stage, rest) = stem.strip_prefix("layer")?.split_once('.')?;
            let (layer, rest) = rest.split_once('.')?;
            let stage = stage.parse::<usize>().ok()?.checked_sub(1)?;
            let inner = match rest {
                "downsample.0" => "shortcut.convolution".to_string(),
                "downsample.1" => "shortcut.normalization".to_string(),
                rest => {
                    let (kind, number) = rest.split_at(rest.len().checked_sub(1)?);
                    let number = number.parse::<usize>().ok()?.checked_sub(1)?;
                    format!("layer.{number}.{}", part(kind)?)
                }
            };
            format!("encoder.stages.{stage}.layers.{layer}.{inner}")
        }
    };
    Some(vec![format!("{renamed}.{ending}")])
}

fn dinov2(name: &str) -> Option<Vec<String>> {
    let one = |name: String| Some(vec![name]);
    let Some(rest) = name.strip_prefix("blocks.") else {
        return match name {
            "cls_token" => one("embeddings.cls_token".into()),
            "pos_embed" => one("embeddings.position_embeddings".into()),
            _ => {
                let (stem, ending) = name.rsplit_once('.')?;
                let stem = match stem {
                    "patch_embed.proj" => "embeddings.patch_embeddings.projection",
                    "norm" => "layernorm",
                    "head" => "classifier",
                    _ => return None,
                };
                one(format!("{stem}.{ending}"))
            }
        };
    };
    let (layer, part) = rest.split_once('.')?;
    let inside = |part: &str| format!("encoder.layer.{layer}.{part}");
    let (stem, ending) = part.rsplit_once('.')?;
    match (stem, ending) {
        ("ls1", "gamma") => one(inside("layer_scale1.lambda1")),
        ("ls2", "gamma") => one(inside("layer_scale2.lambda1")),
        ("attn.qkv", _) => {
            let parts = ["query", "key", "value"];
            let parts = parts.map(|part| inside(&format!("attention.attention.{part}.{ending}")));
            Some(parts.into())
        }
        ("attn.proj", _) => one(inside(&format!("attention.output.dense.{ending}"))),
        ("norm1" | "norm2" | "mlp.fc1" | "mlp.fc2", _) => one(inside(part)),
        _ => None,
    }
}

fn convnext(name: &str) -> Option<Vec<String>> {
    let (stem, ending) = name.rsplit_once('.')?;
    let renamed = match stem {
        "stem.0" => "embeddings.patch_embeddings".to_string(),
        "stem.1" => "embeddings.layernorm".to_string(),
        "head.norm" => "layernorm".to_string(),
        "head.fc" => "classifier".to_string(),
        _ => {
            let (stage, rest) = stem.strip_prefix("stages.")?.split_once('.')?;
            let stage = format!("encoder.stages.{stage}");
            match rest.strip_prefix("blocks.") {
                None => {
                    let number = rest.strip_prefix("downsample.")?;
                    format!("{stage}.downsampling_layer.{number}")
                }
                Some(rest) => {
                    let (layer, part) = rest.split_once('.').unwrap_or((rest, ""));
                    let layer = format!("{stage}.layers.{layer}");
                    let part = match (part, ending) {
                        ("", "gamma") => {
                            return Some(vec![format!("{layer}.layer_scale_parameter")])
                        }
                        ("conv_dw", _) => "dwconv",
                        ("norm", _) => "layernorm",
                        ("mlp.fc1", _) => "pwconv1",
                        ("mlp.fc2", _) => "pwconv2",
                        ("mlp.grn", _) => "grn",
                        _ => return None,
                    };
                    format!("{layer}.{part}")
                }
            }
        }
    };
    Some(vec![format!("{renamed}.{ending}")])
}

/// The checkpoint under timm's names. One that has none of the spellings, or makes its tensors, stays as it is.
pub(crate) fn as_timm<'a>(vb: VarBuilder<'a>, spellings: &'static [Spelling]) -> VarBuilder<'a> {
    for spelling in spellings {
        if vb.makes_tensors() || vb.contains_tensor(spelling.own) {
            return vb;
        }
        for prefix in [spelling.prefix, ""] {
            if vb.contains_tensor(&format!("{prefix}{}", spelling.known)) {
                let (dtype, device) = (vb.dtype(), vb.device().clone());
                let rename = spelling.rename;
                let backend = Renamed { vb, prefix, rename };
                return VarBuilder::from_backend(Box::new(backend), dtype, device);
            }
        }
    }
    vb
}

struct Renamed<'a> {
    vb: VarBuilder<'a>,
    prefix: &'static str,
    rename: fn(&str) -> Option<Vec<String>>,
}

impl Renamed<'_> {
    fn names(&self, name: &str) -> Option<Vec<String>> {
        let names = (self.rename)(name)?.into_iter();
        let prefixed = |name: String| {
            if name.starts_with(HEAD) {
                name
            } else {
                format!("{}{name}", self.prefix)
            }
        };
        Some(names.map(prefixed).collect())
    }
}

impl SimpleBackend for Renamed<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        // A convolution of single pixels is a linear layer there, and some vectors have the shape of images.
        let squeezed = |dims: &[usize]| {
            dims.iter()
                .copied()
                .filter(|dim| *dim != 1)
                .collect::<Vec<_>>()
        };
        if squeezed(tensor.dims()) != squeezed(shape.dims()) {
            bail!(
                "tensor {:?} has shape {:?}, but the model expects {:?}",
                self.names(name).unwrap_or_default().join(", "),
                tensor.dims(),
                shape.dims()
            )
        }
        tensor.reshape(shape)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let Some(names) = self.names(name) else {
            bail!("tensor {name:?} has no name in checkpoints that Transformers wrote")
        };
        let parts = names
            .iter()
            .map(|name| self.vb.get_unchecked_dtype(name, dtype)?.to_device(device));
        match parts.collect::<Result<Vec<_>>>()?.as_slice() {
            [one] => Ok(one.clone()),
            parts => Tensor::cat(parts, 0),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let names = self.names(name);
        names.is_some_and(|names| names.iter().all(|name| self.vb.contains_tensor(name)))
    }
}
