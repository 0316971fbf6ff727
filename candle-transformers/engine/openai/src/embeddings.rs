//! `/v1/embeddings`.

use super::error::short;
use super::fields::{Fields, Input};
use super::{access, reply, ApiError, Asked, Served};
use axum::extract::{self, State};
use axum::Json;
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use candle_engine::embed::TextTokens;
use candle_transformers::embed::Options;
use serde_json::{json, Value};
use std::sync::Arc;

/// As at OpenAI.
const MAX_TEXTS: usize = 2048;

/// A request whose texts are tokens.
struct Prepared {
    tokens: Vec<TextTokens>,
    options: Options,
    in_base64: bool,
}

impl Prepared {
    fn new(served: &Asked, bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(bytes)?;
        let model: String = fields.need("model", "a text")?;
        let encoder = served.vectors.as_ref().map(|vectors| &vectors.encoder);
        let Some(encoder) = encoder.filter(|encoder| encoder.name == model) else {
            let known = encoder.map(|encoder| encoder.name.as_str());
            return match known {
                None => Err(fields.wrong(
                    "model",
                    "no embedding model is loaded; start the server with --embedding-model",
                )),
                known => Err(ApiError::no_such_model(&model, known.into_iter())),
            };
        };
        let format: Option<String> = fields.take("encoding_format", "a text")?;
        let in_base64 = match format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let problem = format!(
                    "unsupported format {:?}; expected float or base64",
                    short(other)
                );
                return Err(fields.wrong("encoding_format", problem));
            }
        };
        let dim = fields.take("dimensions", "a whole number")?;
        let input: Input = fields.need("input", Input::EXPECTED)?;
        fields.end()?;
        let of =
            |(at, text): (usize, String)| encoder.files.tokens(&format!("input[{at}]"), "", &text);
        let whole =
            |(at, ids): (usize, Vec<u32>)| encoder.files.given(&format!("input[{at}]"), ids);
        let tokens = match input {
            Input::Text(text) => vec![of((0, text))?],
            Input::Tokens(ids) => vec![whole((0, ids))?],
            Input::Texts(all) => {
                check(all.len())?;
                let all = all.into_iter().enumerate().map(of);
                all.collect::<candle_engine::Result<_>>()?
            }
            Input::TokenLists(all) => {
                check(all.len())?;
                let all = all.into_iter().enumerate().map(whole);
                all.collect::<candle_engine::Result<_>>()?
            }
        };
        Ok(Self {
            tokens,
            options: Options {
                dim,
                ..encoder.files.options()
            },
            in_base64,
        })
    }
}

fn check(texts: usize) -> Result<(), ApiError> {
    if (1..=MAX_TEXTS).contains(&texts) {
        Ok(())
    } else {
        let problem = format!("found {texts} texts; expected 1 to {MAX_TEXTS}");
        Err(ApiError::field("input", problem))
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Json<Value>, ApiError> {
    let owner = access::owner(&request);
    let Prepared {
        tokens,
        options,
        in_base64,
    } = served.read(request, Prepared::new).await?;
    let count: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let stopped = || candle_engine::Error::Batch("no embedding model is loaded".to_string());
    let vectors = served.vectors.as_ref().ok_or_else(stopped)?;
    let name = &vectors.encoder.name;
    let vectors = vectors.of(owner, tokens, options).await?;
    let data = vectors.into_iter().enumerate();
    let data = data.map(|(index, vector)| {
        let embedding = if in_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            json!(STANDARD.encode(bytes))
        } else {
            json!(vector)
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let data: Vec<Value> = data.collect();
    let usage = reply::prompt_usage(count);
    Ok(Json(
        json!({ "object": "list", "model": name, "data": data, "usage": usage }),
    ))
}
