//! Qwen3-VL, a language model that sees images and videos: [arXiv 2511.21631](https://arxiv.org/abs/2511.21631). Weight names are those of
//! [Qwen/Qwen3-VL-2B-Instruct](https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct) and its larger relatives without experts.
//!
//! A vision transformer makes a token of each 2 x 2 patches. It replaces a placeholder in the text, and features from the encoder's middle
//! are added to the stream after the decoder's first layers. Positions have three axes; images use rows and columns.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::qwen3_vl::{Config, Qwen3VLModel};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = serde_json::from_str(
//!     r#"{"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93,
//!         "text_config": {"head_dim": 8, "vocab_size": 96, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
//!             "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "max_position_embeddings": 64,
//!             "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 5000000.0},
//!         "vision_config": {"depth": 1, "hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 32, "num_heads": 2,
//!             "patch_size": 4, "num_position_embeddings": 16}}"#,
//! )?;
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = Qwen3VLModel::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! // An image of 4 x 8 patches is 8 tokens, here those from 2 on.
//! let ids = Tensor::new(&[[7u32, 92, 90, 90, 90, 90, 90, 90, 90, 90, 93, 8]], &device)?;
//! let patches = Tensor::zeros((32, 3 * 2 * 4 * 4), DType::F32, &device)?;
//! let grid = Tensor::new(&[[1u32, 4, 8]], &device)?;
//! let spans = vec![vec![(2, 10)]];
//! let logits = model.forward(&ids, Some(patches), None, Some(grid), None, vec![12], spans, vec![], &[0])?;
//! assert_eq!(logits.dims(), &[1, 96]);
//! # Ok(())
//! # }
//! ```

pub mod config;
mod text;
mod vision;

use std::sync::{Mutex, PoisonError};

use candle_core::{bail, Result, Tensor};
use candle_nn::VarBuilder;

pub use config::Config;
pub(crate) use config::VisionConfig;
pub(crate) use vision::VisionModel;

use self::text::{Deep, Places, TextModel};
use self::vision::Features;
use crate::blocks::vision::patch_grids::PatchGrid;
use crate::blocks::vision::three_axes::{positions, spliced, Frames, Position, Span};
use crate::blocks::{LayerState, Row, Rows};

const FAMILY: &str = "qwen3_vl";

/// The language model with its encoder of images and videos, and the sequences that it has seen.
#[derive(Debug)]
pub struct Qwen3VLModel {
    text: TextModel,
    vision: VisionModel,
    merge: usize,
    state: Mutex<State>,
}

/// The per-sequence state between steps.
#[derive(Debug)]
struct State {
    layers: Vec<LayerState>,
    /// The state of each row of the batch.
    rows: Vec<Seen>,
}

/// The progress of a row.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    tokens: usize,
    /// The position of the next token: an image has fewer positions than tokens.
    position: usize,
}

/// Placeholders of images, or of videos, in a batch.
#[derive(Debug, Default)]
struct Visual {
    /// The tokens that they are, counted row by row, in the order of the features.
    at: Vec<u32>,
    /// The spans of each row.
    spans: Vec<Vec<Span>>,
}

impl Visual {
    /// The spans of tokens of each row of a batch (b, t); `grids` has their patches.
    fn new(
        spans: &[Vec<(usize, usize)>],
        grids: &[PatchGrid],
        merge: usize,
        [b, t]: [usize; 2],
    ) -> Result<Self> {
        let merged = merge * merge;
        let features = grids.iter().map(PatchGrid::patches).sum::<usize>() / merged.max(1);
        let tokens = spans.iter().flatten().map(|(s, e)| e.saturating_sub(*s));
        let tokens: usize = tokens.sum();
        if features != tokens || spans.len() > b {
            bail!(
                "{FAMILY}: {tokens} placeholder tokens in {} rows, but the grids have {features} for a batch of {b}; the numbers must match",
                spans.len()
            )
        }
        let mut frames = Frames::new(FAMILY, grids, merge);
        let mut visual = Self::default();
        for (row, spans) in spans.iter().enumerate() {
            let mut of_row = Vec::with_capacity(spans.len());
            for (start, end) in spans {
                if start > end || *end > t {
                    bail!("{FAMILY}: placeholders {start}..{end} are outside {t} tokens")
                }
                visual
                    .at
                    .extend((*start..*end).map(|i| (row * t + i) as u32));
                of_row.push(Span {
                    start: *start,
                    end: *end,
                    grids: frames.take(end - start)?,
                });
            }
            visual.spans.push(of_row);
        }
        Ok(visual)
    }
}

impl Qwen3VLModel {
    /// Loads `model.visual.*`, `model.language_model.*`, and `lm_head` unless it is tied; with a bias if there is one.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (stream, given) = (
            cfg.text_config.hidden_size,
            cfg.vision_config.out_hidden_size,
        );
        if stream != given {
            bail!("{FAMILY} config: out_hidden_size {given} of vision_config differs from hidden_size {stream} of text_config")
        }
        let vision = VisionModel::new(&cfg.vision_config, vb.pp("model").pp("visual"))?;
        let text = TextModel::new(&cfg.text_config, vb)?;
        let layers = text.new_state();
        Ok(Self {
            text,
            vision,
            merge: cfg.vision_config.spatial_merge_size,
            state: Mutex::new(State {
                layers,
                rows: Vec::new(),
            }),
        })
    }

    /// The logits, (b, vocab) in the model's dtype, after the tokens `input_ids`, (b, t), each of which sees the earlier ones.
    ///
    /// - `pixel_values`, `pixel_values_videos`: patches, (patches, in_chans * temporal_patch_size * patch_size * patch_size), of all images
    ///   and of all videos, concatenated, in blocks of `spatial_merge_size` rows and columns.
    /// - `image_grid_thw`, `video_grid_thw`: integers (images, 3), the frames, rows and columns of patches of each.
    /// - `seqlens`: how many tokens of each row count; those behind them fill the row up. In a step that follows others it may be the
    ///   length of the whole sequence.
    /// - `continuous_img_pad`, `continuous_vid_pad`: for each row, where the placeholder tokens of images and of videos begin and end. A
    ///   span holds whole frames.
    /// - `seqlen_offsets`: for each row, how many of its tokens earlier calls have had. With 0 for all, new sequences begin.
    ///
    /// # Errors
    /// If there are no tokens, or more than `max_position_embeddings`; if grids, patches, spans and rows do not fit each other; if
    /// `seqlen_offsets` is not how far the sequences are.
    #[allow(clippy::too_many_arguments)]
    pub fn forward(
        &self,
        input_ids: &Tensor,
        pixel_values: Option<Tensor>,
        pixel_values_videos: Option<Tensor>,
        image_grid_thw: Option<Tensor>,
        video_grid_thw: Option<Tensor>,
        seqlens: Vec<usize>,
        continuous_img_pad: Vec<Vec<(usize, usize)>>,
        continuous_vid_pad: Vec<Vec<(usize, usize)>>,
        seqlen_offsets: &[usize],
    ) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        // After a panic, as after an error, new sequences have to begin.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.begin([b, t], &seqlens, seqlen_offsets, &mut state)?;
        let mut rows = state.rows.clone();

        let visuals = [
            (
                "pixel_values",
                pixel_values,
                image_grid_thw,
                continuous_img_pad,
            ),
            (
                "pixel_values_videos",
                pixel_values_videos,
                video_grid_thw,
                continuous_vid_pad,
            ),
        ];
        let (mut features, mut at) = (Vec::new(), Vec::new());
        let mut spans = vec![Vec::new(); b];
        for (name, pixels, grids, pads) in visuals {
            let Some(pixels) = pixels else { continue };
            let Some(grids) = grids else {
                bail!("{FAMILY}: {name} were passed without their grids")
            };
            let grids = PatchGrid::read(FAMILY, &grids, self.merge)?;
            let visual = Visual::new(&pads, &grids, self.merge, [b, t])?;
            features.push(self.vision.forward(&pixels, &grids)?);
            at.extend(visual.at);
            for (all, new) in spans.iter_mut().zip(visual.spans) {
                all.extend(new);
            }
        }

        let mut embeds = self.text.embed(input_ids)?;
        let starts: Vec<_> = rows.iter().map(|row| row.tokens).collect();
        let firsts: Vec<_> = rows.iter().map(|row| row.position).collect();
        let mut places = Vec::new();
        for ((row, spans), count) in rows.iter_mut().zip(&mut spans).zip(&counts) {
            let next = places_of_row(row.position, [t, *count], spans, &mut places)?;
            *row = Seen {
                tokens: row.tokens + count,
                position: next,
            };
        }
        let features = if features.is_empty() {
            None
        } else {
            Some(Features::joined(&features)?)
        };
        let deep = match &features {
            Some(features) => {
                embeds = spliced(&embeds, &features.tokens, &at)?;
                let at = Tensor::from_slice(&at, at.len(), embeds.device())?;
                let levels = &features.deep;
                Some(Deep { at, levels })
            }
            None => None,
        };
        let places = match deep {
            Some(_) => Places::At(&places),
            None => Places::From(&firsts),
        };
        let apart = starts.iter().any(|start| *start != starts[0]);
        let apart = if apart {
            Some(Rows {
                starts: Tensor::from_iter(starts.iter().map(|i| *i as u32), input_ids.device())?,
                longest: starts.iter().copied().max().unwrap_or(0),
                part: None,
                pages: None,
                each: Row::each(&starts, &counts),
            })
        } else {
            None
        };
        let last = if counts.iter().all(|count| *count == t) {
            None
        } else {
            let last = counts.iter().enumerate();
            let last = last.map(|(row, count)| (row * t + count - 1) as u32);
            Some(Tensor::from_iter(last, input_ids.device())?)
        };
        let (deep, last) = (deep.as_ref(), last.as_ref());
        // If this fails, layers may have different lengths: new sequences have to begin.
        state.rows.clear();
        let layers = &mut state.layers;
        let logits = self
            .text
            .forward(embeds, &places, apart.as_ref(), deep, last, layers)?;
        state.rows = rows;
        Ok(logits)
    }

    /// Forgets the sequences. So does a call of [`forward`](Self::forward) at position 0.
    pub fn clear_kv_cache(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.layers.iter_mut().for_each(LayerState::reset);
        state.rows.clear();
    }

    /// Checks a call, and makes room for new sequences if they begin: how many tokens of each row count.
    fn begin(
        &self,
        [b, t]: [usize; 2],
        seqlens: &[usize],
        offsets: &[usize],
        state: &mut State,
    ) -> Result<Vec<usize>> {
        if b == 0 || t == 0 {
            bail!("{FAMILY}: input_ids are [{b}, {t}]; at least one token is required")
        }
        if seqlens.len() != b || offsets.len() != b || seqlens.contains(&0) {
            bail!(
                "{FAMILY}: seqlens {seqlens:?} and seqlen_offsets {offsets:?} for {b} rows; each row needs one of each, and \
                 seqlens must be at least 1"
            )
        }
        let limit = self.text.spec().positions;
        let end = offsets
            .iter()
            .max()
            .map_or(t, |offset| offset.saturating_add(t));
        if end > limit {
            bail!(
                "{FAMILY}: {end} tokens ({t} of them new) exceed the model's max_position_embeddings of {limit}; shorten the \
                 prompt or generate less"
            )
        }
        if offsets.iter().all(|offset| *offset == 0) {
            state.layers.iter_mut().for_each(LayerState::reset);
            state.rows = vec![Seen::default(); b];
        }
        let seen: Vec<_> = state.rows.iter().map(|row| row.tokens).collect();
        if seen != offsets {
            bail!("{FAMILY}: seqlen_offsets are {offsets:?}, but the sequences so far have {seen:?} tokens; start with 0 for all")
        }
        Ok(seqlens.iter().map(|len| (*len).min(t)).collect())
    }
}

/// Adds the positions of a row of `t` tokens, the first `count` of which are not padding; returns the next position.
fn places_of_row(
    first: usize,
    [t, count]: [usize; 2],
    spans: &mut [Span],
    places: &mut Vec<Position>,
) -> Result<usize> {
    spans.sort_by_key(|span| span.start);
    let overlap = spans.windows(2).find(|two| two[0].end > two[1].start);
    if let Some([one, two]) = overlap {
        bail!(
            "{FAMILY}: placeholders {}..{} and {}..{} of a row overlap",
            one.start,
            one.end,
            two.start,
            two.end
        )
    }
    if let Some(span) = spans.last().filter(|span| span.end > count) {
        bail!(
            "{FAMILY}: placeholders {}..{} overlap the {count} masked tokens",
            span.start,
            span.end
        )
    }
    let (mut of_row, next) = positions(first as u32, count, spans);
    // What fills the row up is seen by nothing.
    of_row.resize(t, [next; 3]);
    places.append(&mut of_row);
    Ok(next as usize)
}
