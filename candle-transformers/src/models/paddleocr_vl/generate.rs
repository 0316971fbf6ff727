//! Greedy texts.

use candle_core::{bail, DType, Result, Tensor, D};

use super::positions::as_tensor;
use super::{GenerateDebugOutput, PaddleOCRVLModel, FAMILY};

/// Repetition penalty for texts about videos: divides the logits of tokens that occurred, or multiplies negative ones.
const VIDEO_PENALTY: f32 = 1.1;

/// The most probable token of logits (1, vocab).
fn best(logits: &Tensor) -> Result<u32> {
    let best = logits.argmax(D::Minus1)?.to_dtype(DType::U32)?;
    best.squeeze(0)?.to_scalar()
}

/// Logits (1, vocab) in f32 with `penalty` for each of `tokens`, as often as it is there.
fn penalised(logits: &Tensor, tokens: &[u32], penalty: f32) -> Result<Tensor> {
    let device = logits.device();
    let mut numbers = logits
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    for token in tokens {
        if let Some(logit) = numbers.get_mut(*token as usize) {
            if *logit > 0. {
                *logit /= penalty
            } else {
                *logit *= penalty
            }
        }
    }
    Tensor::from_vec(numbers, logits.shape(), device)
}

impl PaddleOCRVLModel {
    /// The tokens that follow a text, (1, t), with an image, up to and with `eos_token_id`, the most probable each: at least one, and no
    /// more than `max_new_tokens`.
    ///
    /// # Errors
    /// If there is more than one text; as [`forward`](Self::forward).
    pub fn generate(
        &mut self,
        input_ids: &Tensor,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
        max_new_tokens: usize,
        eos_token_id: u32,
    ) -> Result<Vec<u32>> {
        only_one(input_ids)?;
        let logits = self.forward(input_ids, Some(pixel_values), Some(grid_thw), 0)?;
        self.go_on(
            input_ids,
            logits,
            [max_new_tokens, eos_token_id as usize],
            1.,
        )
    }

    /// As [`generate`](Self::generate), with images as [`forward_multi_image`](Self::forward_multi_image) takes them.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_multi_image(
        &mut self,
        input_ids: &Tensor,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
        max_new_tokens: usize,
        eos_token_id: u32,
    ) -> Result<Vec<u32>> {
        self.generate(
            input_ids,
            pixel_values,
            grid_thw,
            max_new_tokens,
            eos_token_id,
        )
    }

    /// As [`generate`](Self::generate), with images as [`forward_multi_image_separate`](Self::forward_multi_image_separate) takes them.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_multi_image_separate(
        &mut self,
        input_ids: &Tensor,
        pixel_values_list: &[Tensor],
        grid_thw_list: &[Tensor],
        max_new_tokens: usize,
        eos_token_id: u32,
    ) -> Result<Vec<u32>> {
        only_one(input_ids)?;
        let logits =
            self.forward_multi_image_separate(input_ids, pixel_values_list, grid_thw_list, 0)?;
        self.go_on(
            input_ids,
            logits,
            [max_new_tokens, eos_token_id as usize],
            1.,
        )
    }

    /// As [`generate`](Self::generate), with a video as [`forward_video`](Self::forward_video) takes it. Logits of tokens that the new text
    /// has are divided by 1.1, or multiplied if they are negative, as often as it has them.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_video(
        &mut self,
        input_ids: &Tensor,
        pixel_values_video: &Tensor,
        video_grid_thw: &Tensor,
        fps: f32,
        max_new_tokens: usize,
        eos_token_id: u32,
    ) -> Result<Vec<u32>> {
        only_one(input_ids)?;
        let logits = self.forward_video(input_ids, pixel_values_video, video_grid_thw, fps, 0)?;
        let limits = [max_new_tokens, eos_token_id as usize];
        self.go_on(input_ids, logits, limits, VIDEO_PENALTY)
    }

    fn go_on(
        &mut self,
        ids: &Tensor,
        mut logits: Tensor,
        [most, end]: [usize; 2],
        penalty: f32,
    ) -> Result<Vec<u32>> {
        let (mut tokens, mut position) = (Vec::new(), ids.dim(1)?);
        loop {
            if penalty != 1. {
                logits = penalised(&logits, &tokens, penalty)?;
            }
            let next = best(&logits)?;
            tokens.push(next);
            if next as usize == end || tokens.len() >= most {
                return Ok(tokens);
            }
            let next = Tensor::new(&[[next]], &self.device)?;
            logits = self.forward(&next, None, None, position)?;
            position += 1;
        }
    }

    /// As [`generate`](Self::generate), with results on the way for each token: those of
    /// [`forward_with_decoder_export`](Self::forward_with_decoder_export) for the first, those of the decoder for the others, and of i64
    /// `step`, `predicted_token`, and `mrope_delta` for the first, `seqlen_offset`, `mrope_position` and `position_ids` for the others.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_debug(
        &mut self,
        input_ids: &Tensor,
        pixel_values: &Tensor,
        grid_thw: &Tensor,
        max_steps: usize,
        eos_token_id: u32,
    ) -> Result<GenerateDebugOutput> {
        only_one(input_ids)?;
        let device = self.device.clone();
        let number = |value: i64| Tensor::new(&[value], &device);
        let t = input_ids.dim(1)?;
        let (mut logits, mut exports) =
            self.forward_with_decoder_export(input_ids, pixel_values, grid_thw)?;
        let delta = self
            .next
            .first()
            .map_or(0, |next| i64::from(*next) - t as i64);
        exports.insert("mrope_delta".to_string(), number(delta)?);
        let (mut tokens, mut all) = (Vec::new(), Vec::new());
        loop {
            let last = logits.dim(1)? - 1;
            let next = best(&logits.narrow(1, last, 1)?.squeeze(1)?)?;
            let step = tokens.len();
            exports.insert("step".to_string(), number(step as i64)?);
            exports.insert("predicted_token".to_string(), number(next.into())?);
            all.push(exports);
            tokens.push(next);
            if next == eos_token_id || tokens.len() >= max_steps {
                return Ok((tokens, all));
            }
            let (next, offset) = (Tensor::new(&[[next]], &device)?, t + step);
            self.begin(&next, offset)?;
            let prompt = self.text_prompt(&next)?;
            let places = prompt.places.clone();
            (logits, exports) = self.run_with_export(prompt)?;
            exports.insert("seqlen_offset".to_string(), number(offset as i64)?);
            let position = places.first().map_or(0, |place| i64::from(place[0]));
            exports.insert("mrope_position".to_string(), number(position)?);
            exports.insert(
                "position_ids".to_string(),
                as_tensor(&places, [1, 1], &device)?,
            );
        }
    }
}

fn only_one(ids: &Tensor) -> Result<()> {
    match ids.dims() {
        [1, _] => Ok(()),
        dims => bail!("{FAMILY}: input_ids are {dims:?}; only one text can be continued, (1, t)"),
    }
}
