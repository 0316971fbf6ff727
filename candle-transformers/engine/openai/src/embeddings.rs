//! `/v1/embeddings`.

use super::fields::Texts;
use super::{reply, ApiError, Served};
use axum::extract::rejection::JsonRejection;
use axum::extract::State;
use axum::Json;
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use candle_transformers::embed::Options;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;

/// As at OpenAI.
const MAX_TEXTS: usize = 2048;

#[derive(Debug, Deserialize)]
pub(super) struct Request {
    model: String,
    input: Texts,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    body: Result<Json<Request>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let Json(request) = body?;
    let encoder = served.encoder.as_ref();
    let Some(encoder) = encoder.filter(|encoder| encoder.name == request.model) else {
        let known = encoder.map(|encoder| encoder.name.as_str());
        return match known {
            None => Err(ApiError::field(
                "model",
                "no embedding model is loaded; start the server with --embedding-model",
            )),
            known => Err(ApiError::no_such_model(&request.model, known.into_iter())),
        };
    };
    let in_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let problem = format!("unsupported format {other:?}; expected float or base64");
            return Err(ApiError::field("encoding_format", problem));
        }
    };
    let texts = request.input.into_vec();
    if !(1..=MAX_TEXTS).contains(&texts.len()) {
        let problem = format!("found {} texts; expected 1 to {MAX_TEXTS}", texts.len());
        return Err(ApiError::field("input", problem));
    }
    let tokens = texts.iter().enumerate().map(|(at, text)| {
        let origin = format!("input[{at}]");
        encoder.files.tokens(&origin, "", text)
    });
    let tokens = tokens.collect::<candle_engine::Result<Vec<_>>>()?;
    let count: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let options = Options {
        dim: request.dimensions,
        ..encoder.files.options()
    };
    let name = encoder.name.clone();
    let state = served.clone();
    let work = move || {
        let encoder = state.encoder.as_ref();
        let model = encoder.map(|encoder| &encoder.model);
        let vectors = model.map(|model| model.embed(&tokens, &options)?.to_vec2::<f32>());
        vectors.transpose()
    };
    let vectors = tokio::task::spawn_blocking(work).await;
    let vectors = vectors.map_err(|err| candle_engine::Error::Batch(err.to_string()))?;
    let vectors =
        vectors.map_err(|err| ApiError::field("input", candle_engine::error::brief(&err)))?;
    let data = vectors.unwrap_or_default().into_iter().enumerate();
    let data = data.map(|(index, vector)| {
        let embedding = match in_base64 {
            false => json!(vector),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                json!(STANDARD.encode(bytes))
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let data: Vec<Value> = data.collect();
    let mut usage = reply::usage(count, 0);
    if let Some(usage) = usage.as_object_mut() {
        usage.remove("completion_tokens");
    }
    Ok(Json(
        json!({ "object": "list", "model": name, "data": data, "usage": usage }),
    ))
}
