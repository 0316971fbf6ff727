//! OpenAI's HTTP interface over a model of this machine: `/v1/models`, `/v1/completions`, `/v1/chat/completions` and `/v1/embeddings`.
//!
//! What is not supported is an error that names the field, never passed over: a client must not believe that it was done.

mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod reply;

use crate::batch::BatchEngine;
use crate::embed::EncoderFiles;
use crate::model::ChatTemplate;
use crate::Result;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use candle_transformers::embed::TextEncoder;
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use error::ApiError;

/// The most bytes of a request.
const BODY_BYTES: usize = 4 << 20;

/// What is served.
pub struct Served {
    /// What clients call the model.
    pub name: String,
    /// The model.
    pub engine: BatchEngine,
    /// How a conversation becomes a prompt, if the model has a template.
    pub template: Option<ChatTemplate>,
    /// A model of vectors, and what clients call it.
    pub encoder: Option<Encoder>,
}

/// A model of vectors.
pub struct Encoder {
    /// What clients call it.
    pub name: String,
    /// Its tokenizer and how its vectors are meant to be made.
    pub files: EncoderFiles,
    /// The model.
    pub model: TextEncoder,
}

/// The routes over a model.
pub fn router(served: Served) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/health", get(|| async { "ok\n" }))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(Arc::new(served))
}

/// Answers until `stop` is ready, and then until what runs has ended.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    listener: tokio::net::TcpListener,
    served: Served,
    stop: impl std::future::Future<Output = ()> + Send + 'static,
) -> Result<()> {
    axum::serve(listener, router(served))
        .with_graceful_shutdown(stop)
        .await
        .map_err(crate::Error::service)
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn about(name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": 0, "owned_by": "candle-dvm" })
}

impl Served {
    fn names(&self) -> impl Iterator<Item = &str> {
        let encoder = self.encoder.as_ref().map(|encoder| encoder.name.as_str());
        std::iter::once(self.name.as_str()).chain(encoder)
    }
}

async fn models(State(served): State<Arc<Served>>) -> Json<Value> {
    let all: Vec<Value> = served.names().map(about).collect();
    Json(json!({ "object": "list", "data": all }))
}

async fn model(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
) -> std::result::Result<Json<Value>, ApiError> {
    match served.names().any(|known| known == name) {
        true => Ok(Json(about(&name))),
        false => Err(ApiError::no_such_model(&name, served.names())),
    }
}
