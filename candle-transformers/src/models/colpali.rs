//! ColPali, which retrieves pages for a question: [arXiv 2407.01449](https://arxiv.org/abs/2407.01449). [`super::paligemma`] with a vector
//! of size 128 for each patch and token instead of logits. The score of a page is the sum, over the question's vectors, of the largest
//! product with a vector of the page. Weight names are those of
//! [vidore/colpali-v1.2-merged](https://huggingface.co/vidore/colpali-v1.2-merged).

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear, Linear, VarBuilder};

use super::paligemma;
use crate::blocks::vision::unit_length;

/// The size of a vector.
const SIZE: usize = 128;

/// PaliGemma and the layer that makes vectors.
#[derive(Debug, Clone)]
pub struct Model {
    /// The vision-language model.
    pub model: paligemma::Model,
    /// Projection of its stream to vectors.
    pub custom_text_projection: Linear,
}

impl Model {
    /// Loads what [`paligemma::Model::new`] does below `model`, and `custom_text_proj`.
    ///
    /// # Errors
    /// As that.
    pub fn new(config: &paligemma::Config, vb: VarBuilder) -> Result<Self> {
        let hidden = config.text_config.hidden_size;
        Ok(Self {
            model: paligemma::Model::new(config, vb.pp("model"))?,
            custom_text_projection: linear(hidden, SIZE, vb.pp("custom_text_proj"))?,
        })
    }

    /// The vectors, of length 1, of the patches of images, `(b, 3, height, width)`, and of the token ids behind them, `(b, t)`:
    /// `(b, patches + t, 128)`.
    ///
    /// # Errors
    /// As [`paligemma::Model::setup`].
    pub fn forward_images(&mut self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<Tensor> {
        let hidden = self.model.hidden_of_picture(pixel_values, input_ids)?;
        let normed = hidden.normed()?;
        self.vectors(&normed)
    }

    /// The vectors, of length 1, of token ids `(b, t)`: `(b, t, 128)`.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward_text(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        let normed = self.model.hidden_of_text(input_ids)?.normed()?;
        self.vectors(&normed)
    }

    fn vectors(&self, normed: &Tensor) -> Result<Tensor> {
        unit_length(&self.custom_text_projection.forward(normed)?)
    }
}
