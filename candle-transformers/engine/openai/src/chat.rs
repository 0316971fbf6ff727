//! `/v1/chat/completions`.

use super::fields::{Common, Fields};
use super::grammar;
use super::messages::{Conversation, Prepared};
use super::reply::{self, Count, Event, Framing};
use super::thinking::{Apart, Both, Wanted};
use super::tools::{self, Layout, Said, Tools};
use super::{access, now, ApiError, Asked, Served};
use axum::extract::{self, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use candle_engine::batch::Likely;
use candle_engine::model::TextTokenizer;
use futures_util::future::try_join_all;
use futures_util::stream::select_all;
use futures_util::StreamExt;
use serde_json::{json, Value};
use std::sync::Arc;

/// As at OpenAI.
pub(super) const MAX_TOP: usize = 20;
/// The end of a text that calls functions.
const CALLS: &str = "tool_calls";

/// Takes the whole request.
fn prepare(served: &Asked, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let common = Common::take(&mut fields, served)?;
    let messages = fields.need("messages", "a list of messages")?;
    let count = "a whole number";
    let max_tokens: Option<usize> = fields.take("max_tokens", count)?;
    let max_tokens = fields.take("max_completion_tokens", count)?.or(max_tokens);
    let has_logprobs = fields.take("logprobs", "true or false")?.unwrap_or(false);
    let top = fields.take("top_logprobs", count)?;
    let logprobs = match (has_logprobs, top) {
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(fields.wrong("top_logprobs", "requires logprobs: true")),
        (true, top) => Some(top.unwrap_or(0)),
    };
    if let Some(top) = logprobs.filter(|top| *top > MAX_TOP) {
        let problem = format!("{top}; the maximum is {MAX_TOP}");
        return Err(fields.wrong("top_logprobs", problem));
    }
    let tools = Tools::take(&mut fields, Layout::Nested)?;
    let format = grammar::response_format(&mut fields)?;
    let wanted = Wanted::take(&mut fields)?;
    fields.end()?;
    let said = Conversation {
        place: "messages",
        messages,
        tools,
        format,
        wanted,
    };
    said.prepare(common, max_tokens, logprobs)
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Response, ApiError> {
    let owner = access::owner(&request);
    let Prepared {
        common,
        tokens,
        max_tokens,
        logprobs,
        grammar,
        tools,
    } = served.read(request, prepare).await?;
    let prompt = tokens.len();
    let receivers = (0..common.answers).map(|at| {
        let completion = common.completion(at, max_tokens);
        reply::begin(
            &served,
            &common.model,
            owner,
            tokens.clone(),
            completion,
            logprobs,
            grammar.as_ref(),
        )
    });
    let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
    let head = json!({ "id": reply::id("chatcmpl"), "created": now(), "model": common.model.name });
    if common.stream {
        return Ok(streamed(&common, receivers, head, prompt, tools));
    }
    let thinking = &common.request.thinking;
    let receivers = receivers.into_iter();
    let whole = try_join_all(receivers.map(|it| reply::whole(it, thinking.clone()))).await?;
    let count = Count::of(whole.iter().map(|it| &it.completion));
    let tokenizer = common.model.engine.backend().tokenizer();
    let choices = whole.iter().enumerate().map(|(index, whole)| {
        let likely = whole.likely.iter();
        let content: Vec<Value> = likely.map(|it| described(tokenizer, it)).collect();
        let read = tools.read(&whole.text.answer);
        let mut message = json!({ "role": "assistant", "content": read.text, "refusal": null });
        if !whole.text.thoughts.is_empty() {
            message["reasoning_content"] = whole.text.thoughts.clone().into();
        }
        let mut reason = reply::finish_reason(&whole.completion);
        if !read.calls.is_empty() {
            reason = CALLS;
            message["tool_calls"] = tools::json(&read.calls, false);
            if read.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs.map(|_| json!({ "content": content, "refusal": null })),
            "finish_reason": reason,
        })
    });
    let mut answer = head;
    answer["object"] = "chat.completion".into();
    answer["choices"] = choices.collect();
    answer["usage"] = count.usage(prompt, thinking.is_some());
    Ok(Json(answer).into_response())
}

/// The answers as events.
fn streamed(
    common: &Common,
    receivers: Vec<reply::Receiver>,
    mut head: Value,
    prompt: usize,
    tools: Tools,
) -> Response {
    let (model, with_usage) = (&common.model, common.with_usage);
    let thinking = common.request.thinking.clone();
    head["object"] = "chat.completion.chunk".into();
    let chunk = move |choices: Value, usage: Value| {
        let mut chunk = head.clone();
        chunk["choices"] = choices;
        if with_usage {
            chunk["usage"] = usage;
        }
        chunk
    };
    let count = Arc::new(Count::default());
    let thinks = thinking.is_some();
    let each = receivers.into_iter().enumerate().map(|(index, receiver)| {
        let (chunk, model, count) = (chunk.clone(), model.clone(), count.clone());
        let mut said = Said::new(tools.clone());
        let mut apart = Apart::new(thinking.as_ref());
        let mut begun = false;
        // The logprobs of tokens whose text is not out yet.
        let mut held: Vec<Value> = Vec::new();
        let events = reply::chunks(receiver, move |event| {
            let delta = |delta: Value, held: &mut Vec<Value>, reason: Value| {
                let logprobs = if held.is_empty() {
                    Value::Null
                } else {
                    json!({ "content": std::mem::take(held), "refusal": null })
                };
                let choice = json!({
                    "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason
                });
                chunk(json!([choice]), Value::Null)
            };
            let mut out = Vec::new();
            if !begun {
                begun = true;
                let first = json!({ "role": "assistant", "content": "" });
                out.push(delta(first, &mut Vec::new(), Value::Null));
            }
            match event {
                Event::Token(likely) => {
                    held.push(described(model.engine.backend().tokenizer(), &likely));
                }
                Event::Piece(piece) => {
                    let Both { thoughts, answer } = apart.push(&piece, &mut held);
                    if !thoughts.is_empty() {
                        let thoughts = json!({ "reasoning_content": thoughts });
                        out.push(delta(thoughts, &mut Vec::new(), Value::Null));
                    }
                    let piece = said.push(&answer);
                    if !piece.is_empty() {
                        out.push(delta(json!({ "content": piece }), &mut held, Value::Null));
                    }
                }
                Event::Done(Ok(completion)) => {
                    count.add(&completion);
                    let Both { thoughts, answer } = apart.end();
                    if !thoughts.is_empty() {
                        let thoughts = json!({ "reasoning_content": thoughts });
                        out.push(delta(thoughts, &mut Vec::new(), Value::Null));
                    }
                    let last = said.push(&answer);
                    if !last.is_empty() {
                        out.push(delta(json!({ "content": last }), &mut held, Value::Null));
                    }
                    let (rest, calls) = said.end();
                    let mut reason = reply::finish_reason(&completion);
                    if !calls.is_empty() {
                        reason = CALLS;
                        let calls = json!({ "tool_calls": tools::json(&calls, true) });
                        out.push(delta(calls, &mut held, Value::Null));
                    } else if !rest.is_empty() {
                        out.push(delta(json!({ "content": rest }), &mut held, Value::Null));
                    }
                    out.push(delta(json!({}), &mut held, reason.into()));
                }
                Event::Done(Err(error)) => out.push(reply::failure(error)),
            }
            out
        });
        events.boxed()
    });
    let all = select_all(each);
    let last = futures_util::stream::once(async move {
        with_usage.then(|| chunk(json!([]), count.usage(prompt, thinks)))
    });
    let all = all.chain(last.filter_map(std::future::ready));
    reply::stream(all, Framing::Done)
}

/// A token with its logarithmic probability, and those of the likeliest.
pub(super) fn described(tokenizer: &TextTokenizer, likely: &Likely) -> Value {
    let token = |id: u32, logprob: f32| {
        let text = reply::token_text(tokenizer, id);
        json!({ "token": text, "logprob": logprob, "bytes": text.as_bytes() })
    };
    let mut described = token(likely.id, likely.logprob);
    let top = likely.top.iter().map(|(id, logprob)| token(*id, *logprob));
    described["top_logprobs"] = top.collect();
    described
}
