//! Converts the items of `/v1/responses` to chat messages.

use super::super::error::short;
use super::super::fields::Fields;
use super::super::ApiError;
use serde::Deserialize;
use serde_json::{json, Map, Value};

type Item = Map<String, Value>;

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// Takes `instructions` and `input`.
///
/// # Errors
/// None of them, or the first item that is wrong or not supported.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Item>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = fields.take::<String>("instructions", "a text")? {
        messages.push(message("system", text));
    }
    match fields.need::<Input>("input", "a text or a list of items")? {
        Input::Text(text) => messages.push(message("user", text)),
        Input::Items(items) => {
            let mut thoughts = None;
            for (at, item) in items.into_iter().enumerate() {
                if item.get("type") == Some(&"reasoning".into()) {
                    thoughts = thoughts_of(&item);
                    continue;
                }
                add(&mut messages, at, item)?;
                let answer = messages
                    .last_mut()
                    .filter(|last| last.get("role") == Some(&"assistant".into()));
                if let (Some(answer), Some(text)) = (answer, thoughts.take()) {
                    answer.insert("reasoning_content".to_string(), text.into());
                }
            }
        }
    }
    Ok(messages)
}

/// The thoughts before an answer, which only some templates read.
fn thoughts_of(item: &Item) -> Option<String> {
    let parts = item.get("content")?.as_array()?;
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    Some(texts.collect())
}

fn message(role: &str, text: String) -> Item {
    let mut message = Item::new();
    message.insert("role".to_string(), role.into());
    message.insert("content".to_string(), text.into());
    message
}

fn add(messages: &mut Vec<Item>, at: usize, item: Item) -> Result<(), ApiError> {
    let mut fields = Fields::of(format!("input[{at}]."), item);
    let kind: Option<String> = fields.take("type", "a text")?;
    // Fields of an answer that is sent back.
    for name in ["id", "status", "phase"] {
        fields.take::<Value>(name, "any value")?;
    }
    match kind.as_deref() {
        None | Some("message") => messages.push(fields.into_map()),
        Some("function_call") => {
            let call = json!({
                "id": fields.need::<String>("call_id", "a text")?, "type": "function",
                "function": {
                    "name": fields.need::<String>("name", "a text")?,
                    "arguments": fields.need::<String>("arguments", "JSON as a text")?,
                },
            });
            fields.end()?;
            answer_of(messages, call);
        }
        Some("function_call_output") => {
            let mut said = message("tool", String::new());
            said.insert(
                "content".to_string(),
                fields.need("output", "a text or a list of parts")?,
            );
            let id: String = fields.need("call_id", "a text")?;
            said.insert("tool_call_id".to_string(), id.into());
            fields.end()?;
            messages.push(said);
        }
        Some(other) => {
            let problem = format!(
                "unsupported item {:?}; expected message, function_call or function_call_output",
                short(other)
            );
            return Err(fields.wrong("type", problem));
        }
    }
    Ok(())
}

/// Adds a call to the answer that it is part of.
fn answer_of(messages: &mut Vec<Item>, call: Value) {
    let is_answer = messages
        .last()
        .is_some_and(|last| last.get("role") == Some(&"assistant".into()));
    if !is_answer {
        messages.push(message("assistant", String::new()));
    }
    if let Some(last) = messages.last_mut() {
        let calls = last.entry("tool_calls").or_insert_with(|| json!([]));
        if let Some(calls) = calls.as_array_mut() {
            calls.push(call);
        }
    }
}
