//! `/v1/embeddings`.

use super::fields::{self, Texts};
use super::{access, reply, ApiError, Served};
use crate::embed::TextTokens;
use axum::extract::{self, State};
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

/// A request whose texts are tokens.
struct Prepared {
    tokens: Vec<TextTokens>,
    options: Options,
    in_base64: bool,
}

impl Prepared {
    fn new(served: &Served, bytes: &[u8]) -> Result<Self, ApiError> {
        let request: Request = fields::parse(bytes)?;
        let encoder = served.vectors.as_ref().map(|vectors| &vectors.encoder);
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
        Ok(Self {
            tokens: tokens.collect::<crate::Result<Vec<_>>>()?,
            options: Options {
                dim: request.dimensions,
                ..encoder.files.options()
            },
            in_base64,
        })
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Json<Value>, ApiError> {
    let owner = access::owner(&request);
    let state = served.clone();
    let prepare = move |bytes: &[u8]| Prepared::new(&state, bytes);
    let Prepared {
        tokens,
        options,
        in_base64,
    } = served.gate.read(request, prepare).await?;
    let count: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let stopped = || crate::Error::Batch("no embedding model is loaded".to_string());
    let vectors = served.vectors.as_ref().ok_or_else(stopped)?;
    let name = &vectors.encoder.name;
    let vectors = vectors.of(owner, tokens, options).await?;
    let data = vectors.into_iter().enumerate();
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
