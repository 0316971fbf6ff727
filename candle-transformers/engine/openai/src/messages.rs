//! The messages of a conversation, from OpenAI's form to that of chat templates.

use super::error::short;
use super::fields::Fields;
use super::grammar::{Format, Grammar};
use super::texts::TextModel;
use super::tools::{self, Tools};
use super::ApiError;
use serde::Deserialize;
use serde_json::{json, Map, Value};

/// The text of a message, whole or in parts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

/// A conversation that is to be answered.
pub(super) struct Conversation<'a> {
    /// The field that has it.
    pub(super) place: &'static str,
    /// In OpenAI's form.
    pub(super) messages: Vec<Map<String, Value>>,
    pub(super) tools: &'a Tools,
    /// The form that the answer has to have.
    pub(super) format: Option<Format>,
}

impl Conversation<'_> {
    /// The tokens of the prompt, and what the answer has to keep to.
    ///
    /// # Errors
    /// A model without a template; a message that is wrong; too many of them; a schema that is not supported.
    pub(super) fn prepare(
        self,
        model: &TextModel,
    ) -> Result<(Vec<u32>, Option<Grammar>), ApiError> {
        let place = self.place;
        let Some(template) = &model.template else {
            let error = candle_engine::Error::NoChatTemplate {
                model: model.name.clone(),
            };
            return Err(ApiError::field(place, error.one_line()));
        };
        let said = read(place, self.messages)?;
        let backend = model.engine.backend();
        let length = |message: &Value| message["content"].as_str().map_or(0, str::len);
        backend.check_bytes(said.iter().map(length).sum())?;
        // A call that has to be is no answer, which would have a form.
        let grammar = match (self.tools.schema(), self.format) {
            (Some(call), _) => Some(model.grammars.of("tools", call, model)?),
            (None, Some(format)) => Some(format.grammar(model)?),
            (None, None) => None,
        };
        let begins = self.tools.begins(template.source());
        let tokens = backend.chat_tokens(template, &said, &self.tools.all, begins)?;
        Ok((tokens, grammar))
    }
}

/// The messages as templates see them.
///
/// # Errors
/// None, or the first field that is wrong or unknown, by its place.
fn read(place: &str, messages: Vec<Map<String, Value>>) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field(
            place,
            "is empty; expected at least one message",
        ));
    }
    let all = messages.into_iter().enumerate();
    all.map(|(at, message)| one(format!("{place}[{at}]."), message))
        .collect()
}

fn one(place: String, message: Map<String, Value>) -> Result<Value, ApiError> {
    let mut fields = Fields::of(place, message);
    let role: String = fields.need("role", "a text")?;
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        other => {
            let problem = format!(
                "unsupported role {:?}; expected system, user, assistant or tool",
                short(other)
            );
            return Err(fields.wrong("role", problem));
        }
    };
    let calls: Option<Vec<Value>> = fields.take("tool_calls", "a list of calls")?;
    let calls = tools::said(&fields, calls.unwrap_or_default())?;
    let content = fields.take::<Content>("content", "a text or a list of parts")?;
    let content = match content {
        None if role == "assistant" => String::new(),
        None => return Err(fields.wrong("content", "is missing; expected a text")),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(&fields, parts)?,
    };
    let mut said = json!({ "role": role, "content": content });
    if role == "tool" {
        for name in ["name", "tool_call_id"] {
            if let Some(value) = fields.take::<String>(name, "a text")? {
                said[name] = value.into();
            }
        }
    }
    // Of an answer that is sent back; and who speaks, which no template shows.
    for name in ["name", "refusal", "annotations"] {
        fields.take::<Value>(name, "any value")?;
    }
    fields.end()?;
    // Templates ask whether there are any.
    if !calls.is_empty() {
        said["tool_calls"] = calls.into();
    }
    Ok(said)
}

/// The text of parts.
fn joined(fields: &Fields, parts: Vec<Map<String, Value>>) -> Result<String, ApiError> {
    let mut all = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text").and_then(Value::as_str)) {
            ("text" | "input_text" | "output_text", Some(text)) => all.push_str(text),
            (kind, _) => {
                let kind = short(kind);
                let problem = format!("unsupported content part of type {kind:?}; expected text");
                return Err(fields.wrong("content", problem));
            }
        }
    }
    Ok(all)
}
