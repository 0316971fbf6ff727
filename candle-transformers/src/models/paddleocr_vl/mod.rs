//! PaddleOCR-VL, which reads documents: [arXiv 2510.14528](https://arxiv.org/abs/2510.14528). Weight names are those of
//! [PaddlePaddle/PaddleOCR-VL](https://huggingface.co/PaddlePaddle/PaddleOCR-VL).
//!
//! A SigLIP for images of any size makes a token of each 2 x 2 patches. The tokens replace placeholders in the text of ERNIE-4.5, whose
//! positions have three axes; images use rows and columns.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::paddleocr_vl::{Config, PaddleOCRVLModel};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = serde_json::from_str(
//!     r#"{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
//!         "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64, "image_token_id": 60,
//!         "rope_scaling": {"mrope_section": [2, 1, 1]},
//!         "vision_config": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
//!             "image_size": 16, "patch_size": 4}}"#,
//! )?;
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = PaddleOCRVLModel::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! // 2 x 4 patches of 4 x 4 pixels are two tokens.
//! let picture = Tensor::zeros((1, 3, 8, 16), DType::F32, &device)?;
//! let grid = Tensor::new(&[[1u32, 2, 4]], &device)?;
//! let ids = Tensor::new(&[[1u32, 60, 60, 7]], &device)?;
//! let tokens = model.generate(&ids, &picture, &grid, 3, 63)?;
//! assert_eq!(tokens, [0, 0, 0]);
//! # Ok(())
//! # }
//! ```

pub mod config;
mod generate;
mod positions;
mod text;
mod text_export;
mod vision;

use std::collections::HashMap;

use candle_core::{bail, Device, Result, Tensor};
use candle_nn::VarBuilder;

pub use config::{Config, TextConfig, VisionConfig};
pub use positions::{
    compute_mrope_position_ids, compute_mrope_position_ids_multi, compute_mrope_position_ids_video,
    ImageGrid, VideoGrid,
};

use self::positions::{as_tensor, rows, runs};
use self::text::TextModel;
use self::vision::VisionModel;
use crate::blocks::vision::patch_grids::PatchGrid;
use crate::blocks::vision::three_axes::{positions as on_axes, spliced, Frames, Position, Span};

const FAMILY: &str = "paddleocr_vl";

/// Tokens, and for each of them results on the way, by name.
pub type GenerateDebugOutput = (Vec<u32>, Vec<HashMap<String, Tensor>>);

/// The language model with its encoder of images, and the sequence that it has seen.
#[derive(Debug, Clone)]
pub struct PaddleOCRVLModel {
    vision: VisionModel,
    text: TextModel,
    image_token_id: u32,
    video_token_id: u32,
    merge: usize,
    device: Device,
    /// The positions of what follows the rows of the sequence.
    next: Vec<u32>,
}

/// A prompt with the tokens of its images.
struct Prompt {
    /// (b, t, hidden_size).
    embeds: Tensor,
    /// The positions of all tokens, row by row.
    places: Vec<Position>,
    /// The next position of each row.
    next: Vec<u32>,
}

impl PaddleOCRVLModel {
    /// Loads `visual.vision_model`, `mlp_AR`, `model`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let tower = vb.pp("visual").pp("vision_model");
        let vision = &cfg.vision_config;
        Ok(Self {
            vision: VisionModel::new(vision, cfg.hidden_size, tower, vb.pp("mlp_AR"))?,
            text: TextModel::new(&cfg.into(), vb.clone())?,
            image_token_id: cfg.image_token_id,
            video_token_id: cfg.video_token_id,
            merge: vision.spatial_merge_size,
            device: vb.device().clone(),
            next: Vec::new(),
        })
    }

    /// The tokens, (tokens, hidden_size), of images of one size, (images, num_channels, height, width), whose grids are `grid_thw`,
    /// integers (images, 3): frames, rows and columns of patches.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or sides are not multiples of `patch_size * spatial_merge_size`.
    pub fn encode_image(&self, pixel_values: &Tensor, grid_thw: &Tensor) -> Result<Tensor> {
        self.vision
            .forward(pixel_values, &self.vision.grids(grid_thw)?)
    }

    /// As [`encode_image`](Self::encode_image); the shape and the mean of each result on the way go to `tracing` at the level `DEBUG`.
    ///
    /// # Errors
    /// As [`encode_image`](Self::encode_image).
    pub fn encode_image_debug(&self, pixel_values: &Tensor, grid_thw: &Tensor) -> Result<Tensor> {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return self.encode_image(pixel_values, grid_thw);
        }
        let (tokens, exports) = self.encode_image_with_export(pixel_values, grid_thw)?;
        let mut names: Vec<_> = exports.keys().collect();
        names.sort();
        for name in names {
            let mean = exports[name].mean_all()?.to_scalar::<f32>()?;
            tracing::debug!(name, shape = ?exports[name].dims(), mean);
        }
        Ok(tokens)
    }

    /// As [`encode_image`](Self::encode_image), with results on the way, by name in f32: `pixel_values`, `patch_embedding_output`,
    /// `embeddings_output`, `rope_pos_emb_raw`, the steps of the first layer, `layer_{0,13,26}_output`, `post_layernorm_output` and
    /// `projector_output`.
    ///
    /// # Errors
    /// As [`encode_image`](Self::encode_image).
    pub fn encode_image_with_export(
        &self,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
    ) -> Result<(Tensor, HashMap<String, Tensor>)> {
        self.vision
            .forward_with_export(pixel_values, &self.vision.grids(grid_thw)?)
    }

    /// As [`encode_image`](Self::encode_image), apart for each image.
    ///
    /// # Errors
    /// As [`encode_image`](Self::encode_image).
    pub fn encode_images_multi(
        &self,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let grids = self.vision.grids(grid_thw)?;
        let tokens = self.vision.forward(pixel_values, &grids)?;
        let mut start = 0;
        let parts = grids.iter().map(|grid| {
            let len = grid.merged(self.merge).patches();
            start += len;
            tokens.narrow(0, start - len, len)
        });
        parts.collect()
    }

    /// As [`encode_image`](Self::encode_image), of images of any sizes, (1, num_channels, height, width) and (1, 3) each.
    ///
    /// # Errors
    /// As [`encode_image`](Self::encode_image); if there are not as many grids.
    pub fn encode_images_separate(
        &self,
        pixel_values_list: &[Tensor],
        grid_thw_list: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let (pictures, grids) = (pixel_values_list.len(), grid_thw_list.len());
        if pictures != grids {
            bail!("{FAMILY}: {pictures} pictures but {grids} grids; each picture needs one")
        }
        let both = pixel_values_list.iter().zip(grid_thw_list);
        both.map(|(pixels, grid)| self.encode_image(pixels, grid))
            .collect()
    }

    /// The logits, (b, vocab) in the model's dtype, after the token ids, (b, t), at the positions from `seqlen_offset` on. At 0 a new
    /// sequence begins.
    ///
    /// With `pixel_values` and `grid_thw`, which are as [`encode_image`](Self::encode_image) takes them, the tokens of the images replace
    /// `image_token_id`, row by row.
    ///
    /// # Errors
    /// As [`encode_image`](Self::encode_image); if there are more or fewer placeholders than tokens; if `seqlen_offset` is not the length
    /// of the sequence so far; if there are no ids, or more than `max_position_embeddings`.
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        pixel_values: Option<&Tensor>,
        grid_thw: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        self.begin(input_ids, seqlen_offset)?;
        let prompt = match (pixel_values, grid_thw) {
            (Some(pixels), Some(grids)) => {
                let grids = self.vision.grids(grids)?;
                let tokens = self.vision.forward(pixels, &grids)?;
                self.prompt(input_ids, self.image_token_id, &tokens, &grids)?
            }
            (None, None) => self.text_prompt(input_ids)?,
            _ => bail!("{FAMILY}: pixel_values and grid_thw must be passed together"),
        };
        self.run(prompt)
    }

    /// As [`forward`](Self::forward), of a new sequence with several images of one size.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_multi_image(
        &mut self,
        input_ids: &Tensor,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
        _seqlen_offset: usize,
    ) -> Result<Tensor> {
        self.forward(input_ids, Some(pixel_values), Some(grid_thw), 0)
    }

    /// As [`forward`](Self::forward), of a new sequence with images of any sizes, which are as
    /// [`encode_images_separate`](Self::encode_images_separate) takes them.
    ///
    /// # Errors
    /// As [`forward`](Self::forward) and [`encode_images_separate`](Self::encode_images_separate).
    pub fn forward_multi_image_separate(
        &mut self,
        input_ids: &Tensor,
        pixel_values_list: &[Tensor],
        grid_thw_list: &[Tensor],
        _seqlen_offset: usize,
    ) -> Result<Tensor> {
        self.begin(input_ids, 0)?;
        let tokens = self.encode_images_separate(pixel_values_list, grid_thw_list)?;
        let mut grids = Vec::with_capacity(tokens.len());
        for grid in grid_thw_list {
            grids.extend(self.vision.grids(grid)?);
        }
        if tokens.is_empty() {
            bail!("{FAMILY}: no pictures; at least one is required")
        }
        let tokens = Tensor::cat(&tokens, 0)?;
        let prompt = self.prompt(input_ids, self.image_token_id, &tokens, &grids)?;
        self.run(prompt)
    }

    /// As [`forward`](Self::forward), of a new sequence with a video: frames, (frames, num_channels, height, width), whose tokens replace
    /// `video_token_id`. Each frame is one position after the one before, whatever `fps` is.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_video(
        &mut self,
        input_ids: &Tensor,
        pixel_values_video: &Tensor,
        video_grid_thw: &Tensor,
        fps: f32,
        _seqlen_offset: usize,
    ) -> Result<Tensor> {
        // Only the code that samples frames from a video needs it.
        let _ = fps;
        self.begin(input_ids, 0)?;
        let grids = self.vision.grids(video_grid_thw)?;
        let tokens = self.vision.forward(pixel_values_video, &grids)?;
        let prompt = self.prompt(input_ids, self.video_token_id, &tokens, &grids)?;
        self.run(prompt)
    }

    /// The logits of all tokens of a new sequence, (b, t, vocab), and results on the way, by name: `input_embeds_before_merge`,
    /// `vision_embeds`, `inputs_embeds_after_merge`, `position_ids` (3, b, t) and `rope_deltas` (b) of i64, `causal_mask`, `layer0_input`,
    /// `layer_N_output`, the steps of the second layer, `final_hidden_state`, `logits` and `last_token_logits`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with_decoder_export(
        &mut self,
        input_ids: &Tensor,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
    ) -> Result<(Tensor, HashMap<String, Tensor>)> {
        self.begin(input_ids, 0)?;
        let (b, t) = input_ids.dims2()?;
        let grids = self.vision.grids(grid_thw)?;
        let tokens = self.vision.forward(pixel_values, &grids)?;
        let before = self.text.embed(input_ids)?;
        let prompt = self.prompt(input_ids, self.image_token_id, &tokens, &grids)?;
        let (merged, next) = (prompt.embeds.clone(), prompt.next.clone());
        let ids = as_tensor(&prompt.places, [b, t], &self.device)?;
        let (logits, mut exports) = self.run_with_export(prompt)?;
        let deltas = next.iter().map(|next| i64::from(*next) - t as i64);
        let deltas: Vec<i64> = deltas.collect();
        let last = logits.narrow(1, t - 1, 1)?.squeeze(1)?;
        let tokens = tokens.to_dtype(before.dtype())?;
        for (name, value) in [
            ("input_embeds_before_merge", before),
            ("vision_embeds", tokens),
            ("inputs_embeds_after_merge", merged),
            ("position_ids", ids),
            ("rope_deltas", Tensor::from_vec(deltas, b, &self.device)?),
            ("last_token_logits", last),
        ] {
            exports.insert(name.to_string(), value);
        }
        Ok((logits, exports))
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.text.clear_kv_cache();
        self.next.clear();
    }

    /// Checks a call, and begins a new sequence at position 0.
    fn begin(&mut self, ids: &Tensor, offset: usize) -> Result<()> {
        let (b, t) = ids.dims2()?;
        if offset == 0 {
            self.clear_kv_cache();
            self.next.resize(b, 0);
        }
        let (seen, rows) = (self.text.seen(), self.next.len());
        if seen != offset || rows != b {
            bail!(
                "{FAMILY}: {b} rows from position {offset}, but the sequence has {rows} rows of {seen} tokens; begin with position 0"
            )
        }
        self.text.check(t)
    }

    fn text_prompt(&self, ids: &Tensor) -> Result<Prompt> {
        let t = ids.dims2()?.1 as u32;
        let row = |first: &u32| (*first..first + t).map(|i| [i; 3]);
        Ok(Prompt {
            embeds: self.text.embed(ids)?,
            places: self.next.iter().flat_map(row).collect(),
            next: self.next.iter().map(|first| first + t).collect(),
        })
    }

    /// The prompt of `ids`, in which runs of `token` are the frames of `grids` in order.
    fn prompt(
        &self,
        ids: &Tensor,
        token: u32,
        tokens: &Tensor,
        grids: &[PatchGrid],
    ) -> Result<Prompt> {
        let (b, t) = ids.dims2()?;
        let mut frames = Frames::new(FAMILY, grids, self.merge);
        let (mut at, mut places) = (Vec::new(), Vec::with_capacity(b * t));
        let mut next = Vec::with_capacity(b);
        let rows: Vec<_> = rows(ids)?.iter().map(|ids| runs(ids, token)).collect();
        let placeholders: usize = rows.iter().flatten().map(|(s, e)| e - s).sum();
        let found = tokens.dim(0)?;
        if placeholders != found {
            bail!(
                "{FAMILY}: {placeholders} placeholder tokens (id {token}) in the ids, but the pictures yield {found}; the numbers must \
                 match"
            )
        }
        for ((row, runs), first) in rows.into_iter().enumerate().zip(&self.next) {
            let mut spans = Vec::with_capacity(runs.len());
            for (start, end) in runs {
                at.extend((start..end).map(|i| (row * t + i) as u32));
                let grids = frames.take(end - start)?;
                spans.push(Span { start, end, grids });
            }
            let (of_row, after) = on_axes(*first, t, &spans);
            places.extend(of_row);
            next.push(after);
        }
        let embeds = self.text.embed(ids)?;
        let tokens = tokens.to_dtype(embeds.dtype())?;
        Ok(Prompt {
            embeds: spliced(&embeds, &tokens, &at)?,
            places,
            next,
        })
    }

    fn run(&mut self, prompt: Prompt) -> Result<Tensor> {
        // If this fails, layers may have different lengths: a new sequence has to begin.
        self.next.clear();
        let logits = self.text.forward(prompt.embeds, &prompt.places)?;
        self.next = prompt.next;
        Ok(logits)
    }

    fn run_with_export(&mut self, prompt: Prompt) -> Result<(Tensor, HashMap<String, Tensor>)> {
        self.next.clear();
        let results = self
            .text
            .forward_with_export(prompt.embeds, &prompt.places)?;
        self.next = prompt.next;
        Ok(results)
    }
}
