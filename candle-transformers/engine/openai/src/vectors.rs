//! The model of vectors and its thread.

use super::turns::{Item, Names, Turns};
use candle_engine::batch::Owner;
use candle_engine::embed::{EncoderFiles, TextTokens};
use candle_engine::Result;
use candle_transformers::embed::{Options, TextEncoder};
use std::sync::Arc;

const NAMES: Names = Names {
    thread: "candle-embed",
    model: "embedding model",
    field: "input",
};

/// A model of vectors.
pub struct Encoder {
    /// Its name for clients.
    pub name: String,
    /// Its tokenizer and its vectors' options.
    pub files: EncoderFiles,
    /// The model.
    pub model: TextEncoder,
}

/// An encoder that works on one request after the other.
pub(super) struct Vectors {
    pub(super) encoder: Arc<Encoder>,
    turns: Turns<TextTokens, Options, Vec<f32>>,
}

impl Item for TextTokens {
    fn tokens(&self) -> usize {
        self.ids.len()
    }
}

impl Vectors {
    /// Starts the thread, which ends with this.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn new(encoder: Encoder) -> crate::Result<Self> {
        let encoder = Arc::new(encoder);
        let model = encoder.clone();
        let turns = Turns::start(NAMES, move |texts: &[TextTokens], options: &Options| {
            model.model.embed(texts, options)?.to_vec2::<f32>()
        })?;
        Ok(Self { encoder, turns })
    }

    /// Requests that wait or are worked on.
    pub(super) fn open(&self) -> usize {
        self.turns.open()
    }

    /// A vector for each text. Dropping the future cancels the request.
    ///
    /// # Errors
    /// The queue is full, or the model fails on the texts.
    pub(super) async fn of(
        &self,
        owner: Owner,
        tokens: Vec<TextTokens>,
        options: Options,
    ) -> Result<Vec<Vec<f32>>> {
        self.turns.of(owner, tokens, options).await
    }
}
