//! OpenAI's HTTP interface over a model of this machine: `/v1/models`, `/v1/completions`, `/v1/chat/completions` and `/v1/embeddings`.
//!
//! What is not supported is an error that names the field, never passed over: a client must not believe that it was done.

#![deny(missing_docs)]
// Whether a device may be shared between threads is asked through all of wgpu's types.
#![recursion_limit = "256"]

mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod reply;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use candle_engine::batch::BatchEngine;
use candle_engine::embed::EncoderFiles;
use candle_engine::model::ChatTemplate;
use candle_engine::Error as EngineError;
use candle_transformers::embed::TextEncoder;
use serde_json::{json, Value};
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use error::ApiError;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed.
    #[error("the server's socket: {0}")]
    Socket(#[from] std::io::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The result of serving.
pub type Result<T> = std::result::Result<T, Error>;

/// The most bytes of a request.
const BODY_BYTES: usize = 4 << 20;

/// How often the engine is asked whether it has failed, and how long answers may take to leave after that.
const WATCH: Duration = Duration::from_millis(500);
const LAST_ANSWERS: Duration = Duration::from_secs(5);

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

/// The routes over a model. `/health` is 503 after a failure of the engine, see [`BatchEngine::failure`]: it does not come back.
pub fn router(served: Served) -> Router {
    routes(Arc::new(served))
}

fn routes(served: Arc<Served>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/health", get(health))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(served)
}

/// Answers until `stop` is ready, and then until what runs has ended.
///
/// # Errors
/// The socket fails, or the engine does, see [`BatchEngine::failure`]: then everybody is told, and whoever called starts anew.
pub async fn serve(
    listener: tokio::net::TcpListener,
    served: Served,
    stop: impl std::future::Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let served = Arc::new(served);
    let watched = served.clone();
    let stop = async move {
        tokio::select! {
            () = stop => {}
            () = watched.failed() => {}
        }
    };
    let serving = axum::serve(listener, routes(served.clone())).with_graceful_shutdown(stop);
    // A client that does not read must not keep a dead server up.
    let cut_off = async {
        served.failed().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        done = serving.into_future() => done?,
        () = cut_off => {}
    }
    match served.engine.failure() {
        None => Ok(()),
        Some(why) => Err(EngineError::Batch(why).into()),
    }
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

    /// Waits until the engine fails.
    async fn failed(&self) {
        while self.engine.failure().is_none() {
            tokio::time::sleep(WATCH).await;
        }
    }
}

async fn health(State(served): State<Arc<Served>>) -> (StatusCode, String) {
    match served.engine.failure() {
        None => (StatusCode::OK, "ok\n".to_string()),
        Some(why) => {
            let why = EngineError::Batch(why).one_line();
            (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
        }
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

#[cfg(test)]
mod tests {
    use super::{serve, Served};
    use candle_engine::batch::testing::{breaking, small_model};
    use candle_engine::Error as EngineError;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    /// The answer to a request, its head before it.
    fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn it_ends_with_an_error_when_its_engine_has_failed() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let served = Served {
            name: "tiny".to_string(),
            engine: breaking(small_model()),
            template: None,
            encoder: None,
        };
        let serving = runtime.spawn(serve(listener, served, std::future::pending()));
        let health = "GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
        assert!(ask(address, health).starts_with("HTTP/1.1 200"));
        // One connection stays open and says nothing more.
        let idle = TcpStream::connect(address).unwrap();
        let body = r#"{"model": "tiny", "prompt": "fn", "max_tokens": 4, "temperature": 0}"#;
        let completion = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        for _ in 0..3 {
            let answer = ask(address, &completion);
            assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
            assert!(answer.contains("panicked"), "{answer}");
        }
        let end = runtime.block_on(async {
            let limit = std::time::Duration::from_secs(60);
            tokio::time::timeout(limit, serving).await
        });
        let end = end.expect("it goes on with a dead engine").unwrap();
        assert!(
            matches!(&end, Err(super::Error::Engine(EngineError::Batch(why))) if why.contains("3 consecutive steps")),
            "{end:?}"
        );
        drop(idle);
    }
}
