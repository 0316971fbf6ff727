//! The encoder of images and videos: patches in blocks, layers in which the patches of a frame see each other, and one token for each
//! block; from some layers on the way too.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{layer_norm, linear, LayerNorm, Linear, VarBuilder};

use super::config::VisionConfig;
use super::FAMILY;
use crate::blocks::encoder::{EncoderLayer, EncoderNames, MlpNames, Seen};
use crate::blocks::vision::patch_grids::{alike, rotation, Ends, LinearGrid, PatchGrid};

/// The base of the angles of rows and columns.
const THETA: f64 = 10_000.;

const NAMES: EncoderNames = EncoderNames {
    mlp: MlpNames {
        gate: "",
        up: "mlp.linear_fc1",
        down: "mlp.linear_fc2",
    },
    ..EncoderNames::TIMM
};

/// From the patches of a block to a token of the decoder.
#[derive(Debug, Clone)]
struct Merger {
    norm: LayerNorm,
    /// Whether the norm is of the block, not of each patch.
    of_block: bool,
    block: usize,
    up: Linear,
    down: Linear,
}

impl Merger {
    fn load(cfg: &VisionConfig, of_block: bool, vb: VarBuilder) -> Result<Self> {
        let block = cfg.hidden_size * cfg.merged();
        let normed = if of_block { block } else { cfg.hidden_size };
        Ok(Self {
            norm: layer_norm(normed, 1e-6, vb.pp("norm"))?,
            of_block,
            block,
            up: linear(block, block, vb.pp("linear_fc1"))?,
            down: linear(block, cfg.out_hidden_size, vb.pp("linear_fc2"))?,
        })
    }
}

/// From (frames, patches, hidden_size) to (tokens, out_hidden_size).
impl Module for Merger {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let blocks = if self.of_block {
            self.norm.forward(&xs.reshape(((), self.block))?)?
        } else {
            self.norm.forward(xs)?.reshape(((), self.block))?
        };
        self.down.forward(&self.up.forward(&blocks)?.gelu_erf()?)
    }
}

/// The encoder of images and videos.
#[derive(Debug, Clone)]
pub(crate) struct VisionModel {
    patches: Linear,
    positions: LinearGrid,
    layers: Vec<EncoderLayer>,
    merger: Merger,
    /// With the layers that they come after.
    deep_mergers: Vec<(usize, Merger)>,
    cfg: VisionConfig,
}

/// The output of the encoder: a vector for each token, (tokens, out_hidden_size).
#[derive(Debug, Clone)]
pub(crate) struct Features {
    /// In place of the embeddings.
    pub tokens: Tensor,
    /// Added to the stream after the first layers, in order.
    pub deep: Vec<Tensor>,
}

impl Features {
    /// The tokens of all parts, concatenated.
    pub fn joined(parts: &[Self]) -> Result<Self> {
        if let [one] = parts {
            return Ok(one.clone());
        }
        let tokens = parts.iter().map(|part| &part.tokens).collect::<Vec<_>>();
        let levels = parts.first().map_or(0, |part| part.deep.len());
        let deep = (0..levels).map(|level| {
            let level = parts.iter().map(|part| &part.deep[level]);
            Tensor::cat(&level.collect::<Vec<_>>(), 0)
        });
        Ok(Self {
            tokens: Tensor::cat(&tokens, 0)?,
            deep: deep.collect::<Result<_>>()?,
        })
    }
}

impl VisionModel {
    /// Loads `patch_embed.proj`, `pos_embed`, `blocks.N`, `merger` and `deepstack_merger_list.N`.
    pub fn new(cfg: &VisionConfig, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let (size, patch, frames) = (cfg.hidden_size, cfg.patch_size, cfg.temporal_patch_size);
        let vb_patches = vb.pp("patch_embed").pp("proj");
        // A convolution whose kernel is the whole patch.
        let kernel = vb_patches.get((size, cfg.in_chans, frames, patch, patch), "weight")?;
        let kernel = kernel.reshape((size, cfg.patch()))?;
        let bias = vb_patches.get(size, "bias")?;
        let table = (cfg.num_position_embeddings, size);
        let table = vb.pp("pos_embed").get(table, "weight")?;
        let layers = cfg.spec().encoder(FAMILY, cfg.hidden_act, NAMES)?;
        let deep = cfg.deepstack_visual_indexes.iter().enumerate();
        let vb_deep = vb.pp("deepstack_merger_list");
        let deep = deep.map(|(i, after)| Ok((*after, Merger::load(cfg, true, vb_deep.pp(i))?)));
        Ok(Self {
            patches: Linear::new(kernel, Some(bias)),
            positions: LinearGrid::new(table, cfg.side(), Ends::Meet),
            layers: layers.load_dense(cfg.depth, vb.clone(), "blocks")?,
            merger: Merger::load(cfg, false, vb.pp("merger"))?,
            deep_mergers: deep.collect::<Result<_>>()?,
            cfg: cfg.clone(),
        })
    }

    /// The tokens of `pixels`, (patches, numbers of a patch) or the same with a batch dimension first; the patches of `grids` in order,
    /// block by block.
    pub fn forward(&self, pixels: &Tensor, grids: &[PatchGrid]) -> Result<Features> {
        let numbers = self.cfg.patch();
        let patches: usize = grids.iter().map(PatchGrid::patches).sum();
        let fits = matches!(pixels.rank(), 2 | 3) && pixels.dims().last() == Some(&numbers);
        if !fits || pixels.elem_count() != patches * numbers || patches == 0 {
            bail!(
                "{FAMILY}: the patches are {:?}; for these grids they must be ({patches}, {numbers})",
                pixels.dims()
            )
        }
        let pixels = pixels.reshape((patches, numbers))?;
        let pixels = pixels
            .to_device(self.positions.device())?
            .to_dtype(self.positions.dtype())?;
        let mut start = 0;
        let groups = alike(grids).into_iter().map(|group| {
            let pixels = pixels.narrow(0, start, group.patches())?;
            start += group.patches();
            self.frames(&pixels, &group)
        });
        Features::joined(&groups.collect::<Result<Vec<_>>>()?)
    }

    /// As [`forward`](Self::forward), of frames of one shape.
    fn frames(&self, pixels: &Tensor, grid: &PatchGrid) -> Result<Features> {
        let places = grid.places(self.cfg.spatial_merge_size);
        let xs = pixels.reshape((grid.frames, grid.area(), self.cfg.patch()))?;
        let positions = self.positions.at(&places, [grid.rows, grid.columns])?;
        let mut xs = self.patches.forward(&xs)?.broadcast_add(&positions)?;
        let head_dim = self.cfg.spec().head_dim(FAMILY)?;
        let angles = rotation(&places, head_dim, THETA, xs.dtype(), xs.device())?;
        let seen = Seen {
            rotation: Some((&angles, Pairs::Halves)),
            ..Seen::default()
        };
        let mut deep = Vec::with_capacity(self.deep_mergers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            xs = layer.forward(xs, &seen)?;
            // If a configuration names a layer twice, the last of its mergers counts.
            if let Some((_, merger)) = self.deep_mergers.iter().rfind(|(after, _)| *after == i) {
                deep.push(merger.forward(&xs)?);
            }
        }
        Ok(Features {
            tokens: self.merger.forward(&xs)?,
            deep,
        })
    }
}
