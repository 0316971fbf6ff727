//! Pixtral's encoder of images: a transformer whose layers are those of a Llama without a mask, and whose heads are rotated by the row
//! and the column of a patch ([arXiv 2410.07073](https://arxiv.org/abs/2410.07073), section 2.2).

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{conv2d_no_bias, rms_norm, Activation, Conv2dConfig, RmsNorm, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec, MlpActivation, MlpNames, NormPlace,
    Seen,
};
use crate::blocks::vision::{side, PatchEmbedding, Picture};
use crate::blocks::{inverse_frequencies, NormSpec};

/// Norm epsilon, added to the mean square.
const EPS: f64 = 1e-5;

fn default_hidden_size() -> usize {
    1024
}

fn default_num_channels() -> usize {
    3
}

fn default_intermediate_size() -> usize {
    4096
}

fn default_num_hidden_layers() -> usize {
    24
}

fn default_num_attention_heads() -> usize {
    16
}

fn default_hidden_act() -> Activation {
    Activation::Silu
}

/// The fields of a checkpoint's `config.json` below `vision_config`.
#[derive(Deserialize, Debug, Clone)]
#[serde(remote = "Self")]
pub struct Config {
    /// Size of a patch's vector; default: 1024.
    #[serde(default = "default_hidden_size")]
    pub hidden_size: usize,
    /// Channels of an image; default: 3.
    #[serde(default = "default_num_channels")]
    pub num_channels: usize,
    /// Maximum height and width of an image, in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Inner size of the MLP; default: 4096.
    #[serde(default = "default_intermediate_size")]
    pub intermediate_size: usize,
    /// Layers; default: 24.
    #[serde(default = "default_num_hidden_layers")]
    pub num_hidden_layers: usize,
    /// Head dimension; has to be `hidden_size / num_attention_heads`, which is the default.
    pub head_dim: Option<usize>,
    /// Heads; default: 16.
    #[serde(default = "default_num_attention_heads")]
    pub num_attention_heads: usize,
    /// Activation of the MLP's gate; default: SiLU.
    #[serde(default = "default_hidden_act")]
    pub hidden_act: Activation,
}

crate::models::spelling::spelled!(Config, |fields| crate::models::spelling::flat_rope(
    fields,
    "rope_theta"
));

impl Config {
    /// That of [mistralai/Pixtral-12B-2409](https://huggingface.co/mistralai/Pixtral-12B-2409).
    pub fn pixtral_12b_2409() -> Self {
        Self {
            hidden_size: default_hidden_size(),
            num_channels: default_num_channels(),
            image_size: 1024,
            patch_size: 16,
            rope_theta: 10_000.,
            intermediate_size: default_intermediate_size(),
            num_hidden_layers: default_num_hidden_layers(),
            head_dim: None,
            num_attention_heads: default_num_attention_heads(),
            hidden_act: default_hidden_act(),
        }
    }

    /// The size of a head, if heads of it are the whole vector and its elements can be rotated in pairs.
    fn head_dim(&self) -> Result<usize> {
        let (size, heads) = (self.hidden_size, self.num_attention_heads);
        let dim = self.head_dim.unwrap_or(size / heads.max(1));
        if dim < 4 || !dim.is_multiple_of(2) || heads.checked_mul(dim) != Some(size) {
            bail!(
                "pixtral config: {heads} heads (num_attention_heads) of size {dim} (head_dim) must be hidden_size {size}, and of \
                 an even size from 4 on"
            )
        }
        Ok(dim)
    }

    fn layer(&self) -> Result<EncoderSpec> {
        Ok(EncoderSpec {
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads: self.num_attention_heads,
            head_dim: self.head_dim()?,
            activation: MlpActivation::Gated(self.hidden_act.try_into()?),
            bias: EncoderBiases::all(false),
            norm: NormSpec::rms(EPS),
            place: NormPlace::Before,
            names: EncoderNames {
                qkv: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
                joined: "attention.o_proj",
                mlp: MlpNames {
                    gate: "feed_forward.gate_proj",
                    up: "feed_forward.up_proj",
                    down: "feed_forward.down_proj",
                },
                norms: ["attention_norm", "ffn_norm"],
            },
        })
    }
}

/// Cosines and sines of rows and of columns, (side, n) each. Rows have the even ones of a head's frequencies, columns the odd ones.
#[derive(Debug, Clone)]
struct Angles {
    rows: (Tensor, Tensor),
    columns: (Tensor, Tensor),
}

impl Angles {
    fn new(
        theta: f64,
        head_dim: usize,
        side: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let frequencies = inverse_frequencies(theta, head_dim);
        let table = |first| -> Result<(Tensor, Tensor)> {
            let frequencies: Vec<f32> =
                frequencies.iter().skip(first).step_by(2).copied().collect();
            let angles = (0..side).flat_map(|at| frequencies.iter().map(move |f| at as f32 * f));
            let (sin, cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
            let shape = (side, frequencies.len());
            let tensor = |values| Tensor::from_vec(values, shape, device)?.to_dtype(dtype);
            Ok((tensor(cos)?, tensor(sin)?))
        };
        Ok(Self {
            rows: table(0)?,
            columns: table(1)?,
        })
    }

    /// Those of the positions of a grid, row by row: (rows * columns, head_dim / 2) each.
    fn of_grid(&self, [rows, columns]: [usize; 2]) -> Result<(Tensor, Tensor)> {
        let both = |of_rows: &Tensor, of_columns: &Tensor| {
            let (down, across) = (of_rows.dim(1)?, of_columns.dim(1)?);
            let of_rows = of_rows.narrow(0, 0, rows)?.unsqueeze(1)?;
            let of_columns = of_columns.narrow(0, 0, columns)?.unsqueeze(0)?;
            let of_rows = of_rows.expand((rows, columns, down))?;
            let of_columns = of_columns.expand((rows, columns, across))?;
            Tensor::cat(&[of_rows, of_columns], 2)?.reshape((rows * columns, down + across))
        };
        Ok((
            both(&self.rows.0, &self.columns.0)?,
            both(&self.rows.1, &self.columns.1)?,
        ))
    }
}

/// The encoder of images.
#[derive(Debug, Clone)]
pub struct Model {
    picture: Picture,
    patches: PatchEmbedding,
    patch_size: usize,
    /// The most patches on a side.
    side: usize,
    norm: RmsNorm,
    angles: Angles,
    layers: Vec<EncoderLayer>,
}

impl Model {
    /// Loads `patch_conv`, `ln_pre` and `transformer.layers.N`.
    ///
    /// # Errors
    /// If heads are not the whole vector, the patch does not fit the image, the activation has no gated form, or a weight is missing or
    /// has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (size, patch) = (cfg.hidden_size, cfg.patch_size);
        let head_dim = cfg.head_dim()?;
        let side = side("pixtral", cfg.image_size, patch)?;
        let picture = Picture {
            channels: cfg.num_channels,
            ..Picture::any("pixtral")
        };
        let touching = Conv2dConfig {
            stride: patch,
            ..Default::default()
        };
        let conv = vb.pp("patch_conv");
        let conv = conv2d_no_bias(cfg.num_channels, size, patch, touching, conv)?;
        let layers = cfg.layer()?;
        let count = cfg.num_hidden_layers;
        Ok(Self {
            picture,
            patches: PatchEmbedding::of(conv, picture, patch),
            patch_size: patch,
            side,
            norm: rms_norm(size, EPS, vb.pp("ln_pre"))?,
            angles: Angles::new(cfg.rope_theta, head_dim, side, vb.dtype(), vb.device())?,
            layers: layers.load_dense(count, vb, "transformer.layers")?,
        })
    }

    /// The indices of the patches of an image in the largest image's grid, row by row: `(num_patches_h * num_patches_w)` in u32.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn position_ids_in_meshgrid(
        &self,
        num_patches_h: usize,
        num_patches_w: usize,
        device: &Device,
    ) -> Result<Tensor> {
        let row = |row: usize| (0..num_patches_w).map(move |column| (row, column));
        let places = (0..num_patches_h).flat_map(row);
        let numbers = places.map(|(row, column)| (row * self.side + column) as u32);
        Tensor::from_vec(
            numbers.collect::<Vec<_>>(),
            num_patches_h * num_patches_w,
            device,
        )
    }
}

/// From images (batch, num_channels, height, width) to their patches, row by row: (batch, patches, hidden_size). What is left of a
/// image behind its last whole patch is not seen.
///
/// # Errors
/// The images have another shape, are smaller than a patch or larger than `image_size`, or have another dtype or device than the weights.
impl Module for Model {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (_, h, w) = self.picture.check(xs)?;
        let (patch, side) = (self.patch_size, self.side);
        if [h / patch, w / patch].iter().any(|n| *n == 0 || *n > side) {
            bail!(
                "pixtral: the pictures are {:?}; their sides must be 1 to {side} patches of {patch} pixels; resize them",
                xs.dims()
            )
        }
        let (tokens, places) = self.patches.forward(xs)?;
        let angles = self.angles.of_grid(places)?;
        let seen = Seen {
            rotation: Some((&angles, Pairs::Halves)),
            ..Seen::default()
        };
        let xs = self.norm.forward(&tokens.contiguous()?)?;
        let mut layers = self.layers.iter();
        layers.try_fold(xs, |xs, layer| layer.forward(xs, &seen))
    }
}
