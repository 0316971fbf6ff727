//! OpenAI's HTTP interface over local models: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/v1/responses`, `/v1/embeddings`,
//! `/v1/rerank`, `/v1/audio/transcriptions` and `/v1/audio/translations`; also `/tokenize`, `/detokenize`, `/health` and `/metrics`.
//!
//! An unsupported field is an error that names it. Fields are never ignored: a client must not believe that they took effect.

#![deny(missing_docs)]

mod access;
mod audio;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod gate;
mod grammar;
mod idle;
mod messages;
mod metrics;
mod pictures;
mod reply;
mod rerank;
mod responses;
mod server;
mod texts;
mod thinking;
mod tokens;
mod tools;
mod turns;
mod vectors;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Json, Router};
use candle_engine::Error as EngineError;
use gate::Gate;
use metrics::Metrics;
use rerank::Scores;
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use texts::TextModel;
use vectors::Vectors;

pub use access::Access;
pub use audio::Speech;
pub use error::ApiError;
pub use rerank::Reranker;
pub use server::Limits;
pub use texts::{TextSource, Texts};
pub use vectors::Encoder;

/// The reason why serving ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of API keys. What was found there is never part of the message.
    #[error("key: {place}: {problem}")]
    Key {
        /// The file.
        place: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// The system refuses a thread.
    #[error("a thread for a model: {0}")]
    Thread(std::io::Error),
    /// Models that cannot be served together.
    #[error("models: {0}")]
    Models(String),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The result of serving.
pub type Result<T> = std::result::Result<T, Error>;

/// Interval at which the server checks whether the engine has failed.
const WATCH: Duration = Duration::from_millis(500);

/// The models that a server offers.
pub struct Served {
    texts: Texts,
    vectors: Option<Vectors>,
    scores: Option<Scores>,
    speech: Option<Speech>,
    access: Access,
    gate: Gate,
    metrics: Arc<Metrics>,
}

impl Served {
    /// Models for everybody who can reach the address.
    pub fn new(texts: Texts) -> Self {
        Self {
            texts,
            vectors: None,
            scores: None,
            speech: None,
            access: Access::default(),
            gate: Gate::new(Limits::default().idle),
            metrics: Arc::default(),
        }
    }

    /// With a model of vectors.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn with_encoder(self, encoder: Option<Encoder>) -> Result<Self> {
        let vectors = encoder.map(Vectors::new).transpose()?;
        Ok(Self { vectors, ..self })
    }

    /// With a model that scores documents.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn with_reranker(self, reranker: Option<Reranker>) -> Result<Self> {
        let scores = reranker.map(Scores::new).transpose()?;
        Ok(Self { scores, ..self })
    }

    /// With a model of speech.
    pub fn with_speech(self, speech: Option<Speech>) -> Self {
        Self { speech, ..self }
    }

    /// For those whom `access` lets in.
    pub fn with_access(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// The routes over a model. `/health` is 503 after a failure of the engine, see [`BatchEngine::failure`](candle_engine::batch::BatchEngine::failure): it does not come back.
pub fn router(served: Served) -> Router {
    routes(Arc::new(served))
}

fn routes(served: Arc<Served>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/audio/transcriptions", post(audio::transcribe))
        .route("/v1/audio/translations", post(audio::translate))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/rerank", post(rerank::create))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(health))
        .route("/metrics", get(metrics::page))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(from_fn_with_state(served.clone(), access::check))
        .layer(from_fn_with_state(served.clone(), metrics::count))
        .with_state(served)
}

/// Serves requests until `stop` is ready; then waits until running requests have ended or [`Limits::drain`] is over.
///
/// # Errors
/// The engine fails, see [`BatchEngine::failure`](candle_engine::batch::BatchEngine::failure): all requests then end with an error, and the
/// caller has to restart.
pub async fn serve(
    listener: tokio::net::TcpListener,
    mut served: Served,
    limits: Limits,
    stop: impl std::future::Future<Output = ()> + Send + 'static,
) -> Result<()> {
    served.gate = Gate::new(limits.idle);
    let served = Arc::new(served);
    let watched = served.clone();
    let stop = async move {
        tokio::select! {
            () = stop => {}
            () = watched.failed() => {}
        }
    };
    server::run(listener, routes(served.clone()), limits, stop).await;
    match served.texts.failure() {
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
        let encoder = self.vectors.as_ref();
        let encoder = encoder.map(|vectors| vectors.encoder.name.as_str());
        let speech = self.speech.as_ref().map(|speech| speech.name.as_str());
        let reranker = self.scores.as_ref();
        let reranker = reranker.map(|scores| scores.reranker.name.as_str());
        let texts = self.texts.names();
        texts.chain(encoder).chain(reranker).chain(speech)
    }

    /// Reads a request of JSON and prepares its work, once the model that it is for is loaded.
    ///
    /// # Errors
    /// Those of [`Gate::read`] and of `prepare`; the model cannot be loaded.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        request: axum::extract::Request,
        prepare: fn(&Asked, &[u8]) -> std::result::Result<T, ApiError>,
    ) -> std::result::Result<T, ApiError> {
        let body = Arc::new(self.gate.read(request).await?);
        let mut loaded = None;
        loop {
            let asked = Asked {
                served: self.clone(),
                loaded: loaded.take(),
            };
            let work = move |bytes: &[u8]| prepare(&asked, bytes);
            match self.gate.work(body.clone(), work).await {
                Err(error) => match error.absent() {
                    Some(at) => loaded = Some(self.texts.load(at).await?),
                    None => return Err(error),
                },
                done => return done,
            }
        }
    }

    /// Waits until an engine fails.
    async fn failed(&self) {
        while self.texts.failure().is_none() {
            tokio::time::sleep(WATCH).await;
        }
    }
}

/// The server as one request sees it.
struct Asked {
    served: Arc<Served>,
    /// The model that was loaded for it. It is the request's also if it is to be unloaded for another by now.
    loaded: Option<Arc<TextModel>>,
}

impl std::ops::Deref for Asked {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Asked {
    /// See [`Texts::model`].
    fn model(&self, name: Option<&str>) -> Option<std::result::Result<Arc<TextModel>, ApiError>> {
        let loaded = self.loaded.as_ref();
        match loaded.filter(|model| name.is_none_or(|name| model.name == name)) {
            Some(model) => Some(Ok(model.clone())),
            None => self.texts.model(name),
        }
    }
}

async fn health(State(served): State<Arc<Served>>) -> (StatusCode, String) {
    match served.texts.failure() {
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
    name: std::result::Result<Path<String>, PathRejection>,
) -> std::result::Result<Json<Value>, ApiError> {
    // No model has a name that is not UTF-8.
    let name = name.map_or_else(|_| "\u{FFFD}".to_string(), |Path(name)| name);
    if served.names().any(|known| known == name) {
        Ok(Json(about(&name)))
    } else {
        Err(ApiError::no_such_model(&name, served.names()))
    }
}

#[cfg(test)]
mod tests {
    use super::{serve, Limits, Served, Texts};
    use candle_engine::batch::testing::{breaking, small_model};
    use candle_engine::batch::{BatchEngine, BatchSettings};
    use candle_engine::Error as EngineError;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::time::{Duration, Instant};

    const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    /// The answer to a request, its head before it.
    fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A server with the embedded model: its runtime and its address; dropping the runtime stops it.
    fn small(limits: Limits) -> (tokio::runtime::Runtime, SocketAddr) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let engine = BatchEngine::new(small_model(), BatchSettings::default()).unwrap();
        let served = Served::new(Texts::one("tiny", engine, None));
        runtime.spawn(serve(listener, served, limits, std::future::pending()));
        (runtime, address)
    }

    /// The bytes received until the server closes the connection, and the time until then.
    fn until_closed(mut socket: TcpStream) -> (String, Duration) {
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let start = Instant::now();
        let mut answer = Vec::new();
        // A reset is an end as well.
        let _ = socket.read_to_end(&mut answer);
        (String::from_utf8(answer).unwrap(), start.elapsed())
    }

    #[test]
    fn half_a_request_does_not_keep_a_connection() {
        let limits = Limits {
            idle: Duration::from_millis(400),
            connections: 3,
            ..Limits::default()
        };
        let (_runtime, address) = small(limits);
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let body = format!("{head}Content-Length: 9000\r\n\r\n{{\"model\"");
        // All connections are taken by clients that send nothing, or half a request.
        let sockets = ["", head, &body].map(|half| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(half.as_bytes()).unwrap();
            socket
        });
        let start = Instant::now();
        assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"));
        let waited = start.elapsed();
        assert!(
            waited > Duration::from_millis(100),
            "it had a place: {waited:?}"
        );
        assert!(waited < Duration::from_secs(30), "{waited:?}");
        let ends = sockets.map(until_closed);
        assert!(
            ends.iter().all(|end| end.1 < Duration::from_secs(30)),
            "{ends:?}"
        );
        assert!(ends[2].0.starts_with("HTTP/1.1 408"), "{ends:?}");
        assert!(ends[2].0.contains("did not arrive in time"), "{ends:?}");
    }

    #[test]
    fn it_ends_with_an_error_when_its_engine_has_failed() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let served = Served::new(Texts::one("tiny", breaking(small_model()), None));
        let serving = runtime.spawn(serve(
            listener,
            served,
            Limits::default(),
            std::future::pending(),
        ));
        assert!(ask(address, HEALTH).starts_with("HTTP/1.1 200"));
        // One connection stays open and says nothing more.
        let idle = TcpStream::connect(address).unwrap();
        let body = r#"{"model": "tiny", "prompt": "fn", "max_tokens": 4, "temperature": 0}"#;
        let completion = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
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
