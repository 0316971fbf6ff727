//! The image encoder: a SigLIP whose heads rotate by rows and columns, and a projector that makes a token of each block of patches.

use std::collections::HashMap;

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{conv2d, layer_norm, linear, Conv2d, Conv2dConfig, LayerNorm, Linear, VarBuilder};

use super::config::VisionConfig;
use super::FAMILY;
use crate::blocks::encoder::{EncoderLayer, EncoderNames, Seen};
use crate::blocks::vision::patch_grids::{rotation, Ends, LinearGrid, PatchGrid};
use crate::blocks::vision::Picture;
use crate::blocks::Norm;

/// The base of the angles of rows and columns.
const THETA: f64 = 10_000.;
/// The epsilon of the projector's norm.
const PROJECTOR_EPS: f64 = 1e-5;
/// The layers whose results are exported, in addition to the first.
const EXPORTED: [usize; 2] = [13, 26];

/// Results on the way, by name.
pub(super) type Exports = HashMap<String, Tensor>;

/// From blocks of patches to tokens of the decoder.
#[derive(Debug, Clone)]
struct Projector {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    merge: usize,
}

impl Projector {
    fn load(cfg: &VisionConfig, text_size: usize, vb: VarBuilder) -> Result<Self> {
        let block = cfg.hidden_size * cfg.spatial_merge_size * cfg.spatial_merge_size;
        Ok(Self {
            norm: layer_norm(cfg.hidden_size, PROJECTOR_EPS, vb.pp("pre_norm"))?,
            up: linear(block, block, vb.pp("linear_1"))?,
            down: linear(block, text_size, vb.pp("linear_2"))?,
            merge: cfg.spatial_merge_size,
        })
    }

    /// From (frames, rows * columns, hidden_size) to (tokens, text_size).
    fn forward(&self, xs: &Tensor, [rows, columns]: [usize; 2]) -> Result<Tensor> {
        let (frames, _, size) = xs.dims3()?;
        let m = self.merge;
        let blocks = self
            .norm
            .forward(xs)?
            .reshape((frames, rows / m, m, columns / m, m, size))?
            .permute((0, 1, 3, 2, 4, 5))?
            .reshape((frames * rows / m * (columns / m), m * m * size))?;
        self.down.forward(&self.up.forward(&blocks)?.gelu_erf()?)
    }
}

/// The encoder and its projector.
#[derive(Debug, Clone)]
pub(super) struct VisionModel {
    patches: Conv2d,
    positions: LinearGrid,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    projector: Projector,
    cfg: VisionConfig,
}

impl VisionModel {
    /// Loads `embeddings.{patch,position}_embedding`, `encoder.layers.N`, `post_layernorm`, and the projector from elsewhere.
    pub fn new(
        cfg: &VisionConfig,
        text_size: usize,
        vb: VarBuilder,
        projector: VarBuilder,
    ) -> Result<Self> {
        cfg.check()?;
        let (size, patch, embeddings) = (cfg.hidden_size, cfg.patch_size, vb.pp("embeddings"));
        let config = Conv2dConfig {
            stride: patch,
            ..Default::default()
        };
        let side = cfg.image_size / patch;
        let table = embeddings.pp("position_embedding");
        let table = table.get((side * side, size), "weight")?;
        let layers = cfg
            .spec()
            .encoder(FAMILY, cfg.hidden_act, EncoderNames::CLIP)?;
        let count = cfg.num_hidden_layers;
        let vb_patches = embeddings.pp("patch_embedding");
        Ok(Self {
            patches: conv2d(cfg.num_channels, size, patch, config, vb_patches)?,
            positions: LinearGrid::new(table, side, Ends::Areas),
            layers: layers.load_dense(count, vb.clone(), "encoder.layers")?,
            norm: layer_norm(size, cfg.layer_norm_eps, vb.pp("post_layernorm"))?,
            projector: Projector::load(cfg, text_size, projector)?,
            cfg: cfg.clone(),
        })
    }

    /// The grids of `grid_thw`.
    pub fn grids(&self, grid_thw: &Tensor) -> Result<Vec<PatchGrid>> {
        PatchGrid::read(FAMILY, grid_thw, self.cfg.spatial_merge_size)
    }

    /// The tokens of `pixels`, (frames, num_channels, height, width), all frames of `grids` in order: (tokens, text_size) in the dtype of
    /// the pixels.
    pub fn forward(&self, pixels: &Tensor, grids: &[PatchGrid]) -> Result<Tensor> {
        self.run(pixels, grids, None)
    }

    /// As [`forward`](Self::forward), with results on the way: `pixel_values`, `patch_embedding_output`, `embeddings_output`,
    /// `rope_pos_emb_raw`, those of the first layer, `layer_N_output` of some, `post_layernorm_output` and `projector_output`.
    pub fn forward_with_export(
        &self,
        pixels: &Tensor,
        grids: &[PatchGrid],
    ) -> Result<(Tensor, Exports)> {
        let mut exports = Exports::new();
        let tokens = self.run(pixels, grids, Some(&mut exports))?;
        Ok((tokens, exports))
    }

    fn run(
        &self,
        pixels: &Tensor,
        grids: &[PatchGrid],
        mut exports: Option<&mut Exports>,
    ) -> Result<Tensor> {
        let patch = self.cfg.patch_size;
        let picture = Picture {
            channels: self.cfg.num_channels,
            multiple: patch,
            ..Picture::any(FAMILY)
        };
        let (frames, h, w) = picture.check(pixels)?;
        let sides = [h / patch, w / patch];
        let of_grids: usize = grids.iter().map(|grid| grid.frames).sum();
        let other = grids.iter().find(|grid| [grid.rows, grid.columns] != sides);
        if of_grids != frames || other.is_some() {
            bail!(
                "{FAMILY}: {frames} pictures of {} x {} patches, but the grids are {grids:?}; they must match",
                sides[0],
                sides[1]
            )
        }
        let grid = PatchGrid {
            frames,
            rows: sides[0],
            columns: sides[1],
        };
        let embedded = self
            .patches
            .forward(&pixels.to_dtype(self.positions.dtype())?)?
            .flatten_from(2)?
            .transpose(1, 2)?;
        let places = grid.places(1);
        let positions = self.positions.at(&places, sides)?;
        let mut xs = embedded.broadcast_add(&positions)?;
        let (head_dim, device) = (self.cfg.head_dim(), xs.device().clone());
        let angles = rotation(&places, head_dim, THETA, xs.dtype(), &device)?;
        let seen = Seen {
            rotation: Some((&angles, Pairs::Halves)),
            ..Seen::default()
        };
        if let Some(exports) = &mut exports {
            let mut add = |name: &str, value: Tensor| -> Result<()> {
                exports.insert(name.to_string(), value.to_dtype(DType::F32)?);
                Ok(())
            };
            let [rows, columns] = sides;
            let channels = self.cfg.num_channels;
            let patches = pixels
                .reshape((frames, channels, rows, patch, columns, patch))?
                .permute((0, 2, 4, 1, 3, 5))?
                .reshape((frames * grid.area(), channels, patch, patch))?;
            add("pixel_values", patches)?;
            add("patch_embedding_output", embedded)?;
            add("embeddings_output", xs.flatten_to(1)?)?;
            add(
                "rope_pos_emb_raw",
                self.raw_angles(&places, frames, &device)?,
            )?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            match &mut exports {
                Some(exports) if i == 0 => xs = explained(layer, xs, &seen, exports)?,
                _ => xs = layer.forward(xs, &seen)?,
            }
            let exported = i == 0 || EXPORTED.contains(&i);
            if let Some(exports) = exports.as_deref_mut().filter(|_| exported) {
                let value = xs.flatten_to(1)?.to_dtype(DType::F32)?;
                exports.insert(format!("layer_{i}_output"), value);
            }
        }
        let xs = self.norm.forward(&xs)?;
        let tokens = self.projector.forward(&xs, sides)?;
        if let Some(exports) = exports {
            let normed = xs.flatten_to(1)?.to_dtype(DType::F32)?;
            exports.insert("post_layernorm_output".to_string(), normed);
            let tokens = tokens.to_dtype(DType::F32)?;
            exports.insert("projector_output".to_string(), tokens);
        }
        tokens.to_dtype(pixels.dtype())
    }

    /// The angles themselves, (frames * patches, head_dim / 2).
    fn raw_angles(
        &self,
        places: &[[usize; 2]],
        frames: usize,
        device: &candle_core::Device,
    ) -> Result<Tensor> {
        let frequencies = crate::blocks::inverse_frequencies(THETA, self.cfg.head_dim() / 2);
        let angles = places.iter().flatten().flat_map(|side| {
            let side = *side as f32;
            frequencies.iter().map(move |frequency| side * frequency)
        });
        let angles: Vec<f32> = angles.collect();
        let shape = (places.len(), 2 * frequencies.len());
        Tensor::from_vec(angles, shape, device)?.repeat((frames, 1))
    }
}

/// A layer step by step, with the results of all steps: (patches, ..) in f32.
fn explained(
    layer: &EncoderLayer,
    xs: Tensor,
    seen: &Seen,
    exports: &mut Exports,
) -> Result<Tensor> {
    let mut add = |name: &str, value: &Tensor| -> Result<()> {
        let value = value.flatten_to(1)?.to_dtype(DType::F32)?;
        exports.insert(name.to_string(), value);
        Ok(())
    };
    let normed = |norm: &Option<Norm>, xs: &Tensor| match norm {
        Some(norm) => norm.forward(xs),
        None => Ok(xs.clone()),
    };
    // From (frames, heads, patches, head_dim) to (frames, patches, heads, head_dim).
    let by_patch = |xs: &Tensor| xs.transpose(1, 2)?.contiguous();
    let first = normed(&layer.norms[0], &xs)?;
    add("layer0_after_norm1", &first)?;
    let plain = layer.heads.by_head(&first, &Seen::default())?;
    for (name, part) in ["attn_q_proj", "attn_k_proj", "attn_v_proj"]
        .into_iter()
        .zip(&plain)
    {
        add(name, &by_patch(part)?.flatten_from(2)?)?;
    }
    let [q, k, v] = layer.heads.by_head(&first, seen)?;
    if let Some(((cos, sin), _)) = seen.rotation {
        let frames = xs.dim(0)?;
        for (name, table) in [("rope_cos", cos), ("rope_sin", sin)] {
            let whole = Tensor::cat(&[table, table], 1)?;
            let (patches, size) = whole.dims2()?;
            add(
                name,
                &whole
                    .unsqueeze(0)?
                    .expand((frames, patches, size))?
                    .contiguous()?,
            )?;
        }
    }
    for (name, part) in [
        ("q_before_rope", &plain[0]),
        ("k_before_rope", &plain[1]),
        ("q_after_rope", &q),
        ("k_after_rope", &k),
    ] {
        add(name, &by_patch(part)?)?;
    }
    let ys = layer.heads.attend(&q, &k, &v, seen)?;
    add("attn_output_before_proj", &ys)?;
    let ys = layer.joined.forward(&ys)?;
    add("layer0_attn_output", &ys)?;
    let xs = (xs + ys)?;
    add("layer0_after_attn_residual", &xs)?;
    let second = normed(&layer.norms[1], &xs)?;
    add("layer0_after_norm2", &second)?;
    let ys = layer.mlp.forward_times(&second, 1.)?;
    add("layer0_mlp_output", &ys)?;
    xs + ys
}
