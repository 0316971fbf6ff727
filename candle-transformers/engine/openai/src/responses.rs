//! `/v1/responses`: one answer to a conversation, as items. Nothing is stored, so each request brings its whole conversation.

mod events;
mod input;
mod thoughts;

use super::fields::{Common, Fields};
use super::grammar;
use super::messages::{Conversation, Prepared};
use super::reply::{self, Framing};
use super::thinking::Wanted;
use super::tools::{Layout, Tools};
use super::{access, chat, now, ApiError, Asked, Served};
use axum::extract::{self, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use events::Events;
use futures_util::stream::{self, StreamExt};
use serde_json::{json, Map, Value};
use std::sync::Arc;

/// Asks for the probabilities of tokens.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Takes the whole request; with it the answer without what is yet to come.
fn prepare(served: &Asked, bytes: &[u8]) -> Result<(Prepared, Map<String, Value>), ApiError> {
    let mut fields = Fields::parse(bytes)?;
    let mut head = head(&fields);
    let common = Common::take(&mut fields, served)?;
    head.insert("model".to_string(), common.model.name.clone().into());
    if common.answers != 1 {
        return Err(fields.wrong("n", "is not supported; ask several times"));
    }
    let messages = input::messages(&mut fields)?;
    let max_tokens = fields.take("max_output_tokens", "a whole number")?;
    let logprobs = logprobs(&mut fields)?;
    let tools = Tools::take(&mut fields, Layout::Flat)?;
    let format = grammar::text_format(&mut fields)?;
    let wanted = Wanted::take_reasoning(&mut fields)?;
    if !fields.value("previous_response_id").is_null() {
        let problem =
            "is not supported, as nothing is stored; send the whole conversation as input";
        return Err(fields.wrong("previous_response_id", problem));
    }
    fields.end()?;
    let said = Conversation {
        place: "input",
        messages,
        tools,
        format,
        wanted,
    };
    Ok((said.prepare(common, max_tokens, logprobs)?, head))
}

/// The fields of an answer that repeat its request.
fn head(fields: &Fields) -> Map<String, Value> {
    let or = |name: &str, standard: Value| match fields.value(name) {
        Value::Null => standard,
        value => value,
    };
    let head = json!({
        "id": reply::id("resp"), "object": "response", "created_at": now(), "status": "in_progress", "background": false,
        "error": null, "incomplete_details": null, "instructions": fields.value("instructions"),
        "max_output_tokens": fields.value("max_output_tokens"), "model": null, "output": [],
        "parallel_tool_calls": or("parallel_tool_calls", true.into()), "previous_response_id": null,
        "reasoning": or("reasoning", json!({ "effort": null, "summary": null })), "store": false, "temperature": or("temperature", 1.0.into()),
        "text": or("text", json!({ "format": { "type": "text" } })), "tool_choice": or("tool_choice", "auto".into()),
        "tools": or("tools", json!([])), "top_p": or("top_p", 1.0.into()), "truncation": "disabled", "usage": null,
        "user": fields.value("user"), "metadata": or("metadata", json!({})),
    });
    match head {
        Value::Object(head) => head,
        _ => Map::new(),
    }
}

/// Takes `include` and `top_logprobs`.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let include: Option<Vec<String>> = fields.take("include", "a list of texts")?;
    let include = include.unwrap_or_default();
    // Reasoning comes as it is, never encrypted.
    let known = [LOGPROBS, "reasoning.encrypted_content"];
    if let Some(other) = include.iter().find(|it| !known.contains(&it.as_str())) {
        let other = super::error::short(other);
        return Err(fields.wrong("include", format!("{other:?} is not supported")));
    }
    let has = include.iter().any(|it| it == LOGPROBS);
    let top: Option<usize> = fields.take("top_logprobs", "a whole number")?;
    match top {
        Some(top) if top > chat::MAX_TOP => {
            let problem = format!("{top}; the maximum is {}", chat::MAX_TOP);
            Err(fields.wrong("top_logprobs", problem))
        }
        Some(top) if top > 0 && !has => {
            Err(fields.wrong("top_logprobs", format!("requires include: [{LOGPROBS:?}]")))
        }
        top => Ok(has.then(|| top.unwrap_or(0))),
    }
}

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    request: extract::Request,
) -> Result<Response, ApiError> {
    let owner = access::owner(&request);
    let (prepared, head) = served.read(request, prepare).await?;
    let Prepared {
        common,
        tokens,
        max_tokens,
        logprobs,
        grammar,
        tools,
    } = prepared;
    let prompt = tokens.len();
    let completion = common.completion(0, max_tokens);
    let thinking = completion.thinking.clone();
    let receiver = reply::begin(
        &served,
        &common.model,
        owner,
        tokens,
        completion,
        logprobs,
        grammar.as_ref(),
    )?;
    let mut events = Events::new(
        common.model.clone(),
        head,
        tools,
        prompt,
        logprobs.is_some(),
        thinking.as_ref(),
    );
    if !common.stream {
        let whole = reply::whole(receiver, thinking).await?;
        return Ok(Json(events.whole(whole)).into_response());
    }
    let first = stream::iter(events.begin());
    let rest = reply::chunks(receiver, move |event| events.take(event));
    Ok(reply::stream(first.chain(rest), Framing::Named))
}
