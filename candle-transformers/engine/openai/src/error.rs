//! Errors in the form that OpenAI's clients read.

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::Json;
use candle_engine::Error;
use serde_json::{json, Value};

/// An error in a request, or a failure of the server.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    /// The model that has to be loaded first.
    absent: Option<usize>,
}

impl ApiError {
    /// The model `at` has to be loaded first.
    pub(super) fn not_loaded(at: usize, name: &str) -> Self {
        let problem = format!("model {:?} is not loaded", short(name));
        let code = Some("model_not_loaded");
        Self {
            absent: Some(at),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, problem)
        }
    }

    /// The model that has to be loaded first, if that is what is wrong.
    pub(super) fn absent(&self) -> Option<usize> {
        self.absent
    }

    /// A field that has a value that is not supported, or out of range.
    pub(super) fn field(name: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: short(&format!("{name}: {problem}")),
            param: Some(name.to_string()),
            code: None,
            absent: None,
        }
    }

    pub(super) fn no_such_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        Self {
            status: StatusCode::NOT_FOUND,
            message: format!(
                "model {:?} not found; available: {}",
                short(name),
                known.join(", ")
            ),
            param: Some("model".to_string()),
            code: Some("model_not_found"),
            absent: None,
        }
    }

    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
            absent: None,
        }
    }

    /// A missing or unknown API key.
    pub(super) fn key(problem: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), problem)
    }

    /// A name that the server does not go by.
    pub(super) fn host(name: &str) -> Self {
        let name = short(name);
        let problem = format!(
            "host {name} is not a name of this server; use its address, or start it with --host-name {name}"
        );
        Self::new(StatusCode::FORBIDDEN, Some("unknown_host"), problem)
    }

    /// A page of another site.
    pub(super) fn origin() -> Self {
        let problem =
            "pages of this origin may not use the server; start it with --allow-origin ORIGIN";
        Self::new(StatusCode::FORBIDDEN, Some("unknown_origin"), problem)
    }

    /// A body that is not JSON by its type.
    pub(super) fn content_type() -> Self {
        let problem = "expected a body of Content-Type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, problem)
    }

    /// The error for a body whose content type is not a form.
    pub(super) fn form() -> Self {
        let problem = "expected a form of Content-Type: multipart/form-data with a boundary";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, problem)
    }

    /// A body of more than `most` bytes.
    pub(super) fn too_large(most: usize) -> Self {
        let problem = format!("the request is too large; the maximum is {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, None, problem)
    }

    /// A body that does not come.
    pub(super) fn too_slow() -> Self {
        let problem = "the request's body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, None, problem)
    }

    /// A body whose end does not come.
    pub(super) fn cut_off() -> Self {
        let problem = "the request's body ended early";
        Self::new(StatusCode::BAD_REQUEST, None, problem)
    }

    /// A body that is not JSON, or whose fields have other types.
    pub(super) fn json(error: &serde_json::Error) -> Self {
        let problem = format!("invalid request: {}", short(&error.to_string()));
        Self::new(StatusCode::BAD_REQUEST, None, problem)
    }

    /// A failure of this program.
    pub(super) fn panicked() -> Self {
        let problem = "the server failed to prepare the request";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, None, problem)
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON that a client reads, in a response or as the last event of a stream.
    pub(super) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        } })
    }
}

/// A value as messages show it: one line, and not all of a long one.
pub(super) fn short(value: &str) -> String {
    const MOST: usize = 200;
    let line = candle_engine::error::one_line(value);
    let cut = line.char_indices().nth(MOST);
    match cut {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let (status, param, code) = match &error {
            Error::Parameter { name, .. } => (StatusCode::BAD_REQUEST, Some(*name), None),
            Error::EmptyPrompt => (StatusCode::BAD_REQUEST, Some("prompt"), None),
            Error::PromptTooLong { .. }
            | Error::CacheTooSmall { .. }
            | Error::PromptTooLarge { .. } => {
                let code = Some("context_length_exceeded");
                (StatusCode::BAD_REQUEST, None, code)
            }
            Error::File { .. } => (StatusCode::BAD_REQUEST, Some("file"), None),
            Error::Speech(_) => (StatusCode::BAD_REQUEST, None, None),
            Error::Text { .. } | Error::ChatTemplate { .. } | Error::Tokenizer(_) => {
                (StatusCode::BAD_REQUEST, None, None)
            }
            Error::Busy(_) => (StatusCode::TOO_MANY_REQUESTS, None, None),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, None, None),
        };
        Self {
            status,
            message: error.one_line(),
            param: param.map(str::to_string),
            code,
            absent: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

pub(super) async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        message: format!(
            "unknown route {method} {}; expected /v1/models, /v1/completions, /v1/chat/completions, /v1/responses, /v1/embeddings, /v1/rerank, /v1/audio/transcriptions, /v1/audio/translations, /tokenize, /detokenize, /health or /metrics",
            short(uri.path())
        ),
        param: None,
        code: Some("unknown_url"),
        absent: None,
    }
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        message: format!("{} does not support {method}", short(uri.path())),
        param: None,
        code: Some("method_not_allowed"),
        absent: None,
    }
}
