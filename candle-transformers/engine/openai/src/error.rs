//! Errors in the form that OpenAI's clients read.

use axum::extract::rejection::JsonRejection;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::Json;
use candle_engine::Error;
use serde_json::{json, Value};

/// What is wrong with a request, or with us.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// A field that has a value that is not supported, or out of range.
    pub(super) fn field(name: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: format!("{name}: {problem}"),
            param: Some(name.to_string()),
            code: None,
        }
    }

    pub(super) fn no_such_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        Self {
            status: StatusCode::NOT_FOUND,
            message: format!("model {name:?} not found; available: {}", known.join(", ")),
            param: Some("model".to_string()),
            code: Some("model_not_found"),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// What a client reads, in an answer or as the last event of a stream.
    pub(super) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        } })
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let (status, param, code) = match &error {
            Error::Parameter { name, .. } => (StatusCode::BAD_REQUEST, Some(*name), None),
            Error::EmptyPrompt => (StatusCode::BAD_REQUEST, Some("prompt"), None),
            Error::PromptTooLong { .. } => {
                let code = Some("context_length_exceeded");
                (StatusCode::BAD_REQUEST, None, code)
            }
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
        }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        Self {
            status: rejection.status(),
            message: candle_engine::error::one_line(&rejection.body_text()),
            param: None,
            code: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

pub(super) async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        message: format!(
            "unknown route {method} {}; expected /v1/models, /v1/completions, /v1/chat/completions or /v1/embeddings",
            uri.path()
        ),
        param: None,
        code: Some("unknown_url"),
    }
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        message: format!("{} does not support {method}", uri.path()),
        param: None,
        code: Some("method_not_allowed"),
    }
}
