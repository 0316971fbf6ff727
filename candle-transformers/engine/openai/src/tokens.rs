//! `/tokenize` and `/detokenize`, as llama.cpp's server has them.

use super::fields::Fields;
use super::texts::TextModel;
use super::{ApiError, Asked, Encoder, Served};
use axum::extract::{Request, State};
use axum::Json;
use serde_json::{json, Value};
use std::sync::Arc;

/// The model whose tokens are meant: the first text model unless another is named.
enum Which {
    Text(Arc<TextModel>),
    Encoder(Arc<Encoder>),
}

impl Which {
    fn take(fields: &mut Fields, served: &Asked) -> Result<Self, ApiError> {
        let name: Option<String> = fields.take("model", "a text")?;
        if let Some(model) = served.model(name.as_deref()) {
            return model.map(Self::Text);
        }
        let name = name.unwrap_or_default();
        let encoder = served.vectors.as_ref().map(|vectors| &vectors.encoder);
        match encoder.filter(|encoder| encoder.name == name) {
            Some(encoder) => Ok(Self::Encoder(encoder.clone())),
            None => Err(ApiError::no_such_model(&name, served.names())),
        }
    }
}

fn tokens_of(served: &Asked, bytes: &[u8]) -> Result<Vec<u32>, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let which = Which::take(&mut fields, served)?;
    let text: String = fields.need("content", "a text")?;
    let special = fields
        .take("add_special", "true or false")?
        .unwrap_or(false);
    fields.end()?;
    Ok(match which {
        Which::Encoder(encoder) => encoder.files.encode(&text, special)?,
        Which::Text(model) => {
            let tokenizer = model.engine.backend().tokenizer();
            if special && !text.is_empty() {
                tokenizer.encode_prompt(&text)?
            } else {
                tokenizer.encode(&text, false)?
            }
        }
    })
}

fn text_of(served: &Asked, bytes: &[u8]) -> Result<String, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let which = Which::take(&mut fields, served)?;
    let tokens: Vec<u32> = fields.need("tokens", "a list of tokens")?;
    fields.end()?;
    let vocab = match &which {
        Which::Encoder(encoder) => encoder.files.config().vocab,
        Which::Text(model) => model.engine.backend().vocab(),
    };
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        let problem = format!("token {id} is out of range; the vocabulary has {vocab} tokens");
        return Err(ApiError::field("tokens", problem));
    }
    Ok(match which {
        Which::Encoder(encoder) => encoder.files.decode(&tokens)?,
        Which::Text(model) => model.engine.backend().tokenizer().decode(&tokens)?,
    })
}

pub(super) async fn tokenize(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let tokens = served.read(request, tokens_of).await?;
    Ok(Json(json!({ "count": tokens.len(), "tokens": tokens })))
}

pub(super) async fn detokenize(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let text = served.read(request, text_of).await?;
    Ok(Json(json!({ "content": text })))
}
