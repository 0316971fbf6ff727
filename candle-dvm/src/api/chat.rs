//! `/v1/chat/completions`.

use super::fields::{self, Common};
use super::reply::{self, Event};
use super::{access, now, ApiError, Served};
use crate::batch::Likely;
use crate::model::{Message, Role, TextTokenizer};
use crate::CompletionRequest;
use axum::extract::{self, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;

/// As at OpenAI.
const MAX_TOP: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct Request {
    messages: Vec<Said>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    #[serde(default)]
    logprobs: bool,
    top_logprobs: Option<usize>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Debug, Deserialize)]
struct Said {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    tool_calls: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl Said {
    fn message(self, at: usize) -> Result<Message, ApiError> {
        let field = |part: &str| format!("messages[{at}].{part}");
        let role = match self.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let problem =
                    format!("unsupported role {other:?}; expected system, user or assistant");
                return Err(ApiError::field(&field("role"), problem));
            }
        };
        if self.tool_calls.is_some_and(|calls| !calls.is_null()) {
            return Err(ApiError::field(
                &field("tool_calls"),
                "tools are not supported",
            ));
        }
        let text = match self.content {
            None if role == Role::Assistant => String::new(),
            None => return Err(ApiError::field(&field("content"), "is missing")),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let mut all = String::new();
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("text", Some(text)) => all.push_str(&text),
                        (kind, _) => {
                            let problem =
                                format!("unsupported content part of type {kind:?}; expected text");
                            return Err(ApiError::field(&field("content"), problem));
                        }
                    }
                }
                all
            }
        };
        Ok(Message::new(role, text))
    }
}

/// A request whose prompt is tokens.
struct Prepared {
    common: Common,
    tokens: Vec<u32>,
    completion: CompletionRequest,
    logprobs: Option<usize>,
}

impl Prepared {
    fn new(served: &Served, bytes: &[u8]) -> Result<Self, ApiError> {
        let request: Request = fields::parse(bytes)?;
        let common = request.common;
        common.check_model(served)?;
        let Some(template) = &served.template else {
            let error = crate::Error::NoChatTemplate {
                model: served.name.clone(),
            };
            return Err(ApiError::field("messages", error.one_line()));
        };
        let messages = request.messages.into_iter().enumerate();
        let messages = messages.map(|(at, said)| said.message(at));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        if messages.is_empty() {
            return Err(ApiError::field(
                "messages",
                "is empty; expected at least one message",
            ));
        }
        let backend = served.engine.backend();
        backend.check_bytes(messages.iter().map(|it| it.content.len()).sum())?;
        let tokens = backend.chat_tokens(&template.render(&messages)?)?;
        let max_tokens = request.max_completion_tokens.or(request.max_tokens);
        let completion = common.request(max_tokens.unwrap_or(backend.max_positions()))?;
        let logprobs = match (request.logprobs, request.top_logprobs) {
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::field("top_logprobs", "requires logprobs: true"))
            }
            (true, top) => Some(top.unwrap_or(0)),
        };
        if let Some(top) = logprobs.filter(|top| *top > MAX_TOP) {
            let problem = format!("{top}; the maximum is {MAX_TOP}");
            return Err(ApiError::field("top_logprobs", problem));
        }
        Ok(Self {
            common,
            tokens,
            completion,
            logprobs,
        })
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Response, ApiError> {
    let owner = access::owner(&request);
    let state = served.clone();
    let prepare = move |bytes: &[u8]| Prepared::new(&state, bytes);
    let prepared = served.gate.read(request, prepare).await?;
    let Prepared {
        common,
        tokens,
        completion,
        logprobs,
    } = prepared;
    let prompt = tokens.len();
    let receiver = reply::begin(&served, owner, tokens, completion, logprobs)?;
    let backend = served.engine.backend();
    let (id, created, model) = (reply::id("chatcmpl"), now(), served.name.clone());
    if !common.stream {
        let (completion, likely) = reply::whole(receiver).await?;
        let content = likely.iter().map(|it| described(backend.tokenizer(), it));
        let content: Vec<Value> = content.collect();
        let logprobs = logprobs.map(|_| json!({ "content": content, "refusal": null }));
        let answer = json!({
            "id": id, "object": "chat.completion", "created": created, "model": model,
            "choices": [{
                "index": 0,
                "message": { "role": "assistant", "content": completion.text, "refusal": null },
                "logprobs": logprobs,
                "finish_reason": reply::finish_reason(&completion),
            }],
            "usage": reply::usage(completion.prompt_tokens, completion.token_ids.len()),
        });
        return Ok(Json(answer).into_response());
    }
    let with_usage = common.stream_options.include_usage;
    let chunk = move |choices: Value, usage: Option<Value>| {
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": choices,
        });
        if with_usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        chunk
    };
    let delta = |delta: Value, logprobs: Value, reason: Value| json!([{ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason }]);
    let mut begun = false;
    // The logprobs of tokens whose text is not out yet.
    let mut held: Vec<Value> = Vec::new();
    let chunks = reply::chunks(receiver, move |event| {
        let mut out = Vec::new();
        if !begun {
            begun = true;
            let first = json!({ "role": "assistant", "content": "" });
            out.push(chunk(delta(first, Value::Null, Value::Null), None));
        }
        let taken = |held: &mut Vec<Value>| match held.is_empty() {
            true => Value::Null,
            false => json!({ "content": std::mem::take(held), "refusal": null }),
        };
        match event {
            Event::Token(likely) => {
                held.push(described(served.engine.backend().tokenizer(), &likely));
            }
            Event::Piece(piece) => {
                let logprobs = taken(&mut held);
                out.push(chunk(
                    delta(json!({ "content": piece }), logprobs, Value::Null),
                    None,
                ));
            }
            Event::Done(Ok(completion)) => {
                let reason = reply::finish_reason(&completion).into();
                let logprobs = taken(&mut held);
                out.push(chunk(delta(json!({}), logprobs, reason), None));
                if with_usage {
                    let usage = reply::usage(prompt, completion.token_ids.len());
                    out.push(chunk(json!([]), Some(usage)));
                }
            }
            Event::Done(Err(error)) => out.push(reply::failure(error)),
        }
        out
    });
    Ok(reply::stream(chunks))
}

/// A token with its logarithmic probability, and those of the likeliest.
fn described(tokenizer: &TextTokenizer, likely: &Likely) -> Value {
    let token = |id: u32, logprob: f32| {
        let text = reply::token_text(tokenizer, id);
        json!({ "token": text, "logprob": logprob, "bytes": text.as_bytes() })
    };
    let mut described = token(likely.id, likely.logprob);
    let top = likely.top.iter().map(|(id, logprob)| token(*id, *logprob));
    described["top_logprobs"] = top.collect();
    described
}
