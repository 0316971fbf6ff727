//! `/tokenize` and `/detokenize`, as llama.cpp's server has them.

use super::fields::Fields;
use super::{ApiError, Served};
use axum::extract::{Request, State};
use axum::Json;
use serde_json::{json, Value};
use std::sync::Arc;

/// Whose tokens are meant: the model's that writes texts unless another is named.
enum Which {
    Model,
    Encoder,
}

impl Which {
    fn take(fields: &mut Fields, served: &Served) -> Result<Self, ApiError> {
        let name: Option<String> = fields.take("model", "a text")?;
        match name {
            None => Ok(Self::Model),
            Some(name) if name == served.name => Ok(Self::Model),
            Some(name) if served.names().any(|known| known == name) => Ok(Self::Encoder),
            Some(name) => Err(ApiError::no_such_model(&name, served.names())),
        }
    }
}

fn tokens_of(served: &Served, bytes: &[u8]) -> Result<Vec<u32>, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let which = Which::take(&mut fields, served)?;
    let text: String = fields.need("content", "a text")?;
    let special = fields
        .take("add_special", "true or false")?
        .unwrap_or(false);
    fields.end()?;
    let backend = served.engine.backend();
    Ok(match (which, &served.vectors) {
        (Which::Encoder, Some(vectors)) => vectors.encoder.files.encode(&text, special)?,
        _ if special && !text.is_empty() => backend.tokenizer().encode_prompt(&text)?,
        _ => backend.tokenizer().encode(&text, false)?,
    })
}

fn text_of(served: &Served, bytes: &[u8]) -> Result<String, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let which = Which::take(&mut fields, served)?;
    let tokens: Vec<u32> = fields.need("tokens", "a list of tokens")?;
    fields.end()?;
    let backend = served.engine.backend();
    let encoder = served
        .vectors
        .as_ref()
        .map(|vectors| &vectors.encoder.files);
    let (vocab, encoder) = match (which, encoder) {
        (Which::Encoder, Some(files)) => (files.config().vocab, Some(files)),
        _ => (backend.vocab(), None),
    };
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        let problem = format!("token {id} is out of range; the vocabulary has {vocab} tokens");
        return Err(ApiError::field("tokens", problem));
    }
    Ok(match encoder {
        Some(files) => files.decode(&tokens)?,
        None => backend.tokenizer().decode(&tokens)?,
    })
}

pub(super) async fn tokenize(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let state = served.clone();
    let work = move |bytes: &[u8]| tokens_of(&state, bytes);
    let tokens = served.gate.read(request, work).await?;
    Ok(Json(json!({ "count": tokens.len(), "tokens": tokens })))
}

pub(super) async fn detokenize(
    State(served): State<Arc<Served>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let state = served.clone();
    let work = move |bytes: &[u8]| text_of(&state, bytes);
    let text = served.gate.read(request, work).await?;
    Ok(Json(json!({ "content": text })))
}
