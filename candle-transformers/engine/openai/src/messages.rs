//! The messages of a conversation, from OpenAI's form to that of chat templates.

use super::error::short;
use super::fields::{Common, Fields};
use super::grammar::Format;
use super::pictures::Pictures;
use super::thinking::Wanted;
use super::tools::{self, Tools};
use super::ApiError;
use candle_engine::model::ChatTemplate;
use candle_grammar::Grammar;
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
pub(super) struct Conversation {
    /// The field that has it.
    pub(super) place: &'static str,
    /// In OpenAI's form.
    pub(super) messages: Vec<Map<String, Value>>,
    pub(super) tools: Tools,
    /// The form that the answer has to have.
    pub(super) format: Option<Format>,
    pub(super) wanted: Wanted,
}

/// A request whose prompt is tokens.
pub(super) struct Prepared {
    pub(super) common: Common,
    pub(super) tokens: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) logprobs: Option<usize>,
    pub(super) grammar: Option<Grammar>,
    pub(super) tools: Tools,
}

impl Conversation {
    /// The request for an answer of at most `max_tokens`, or up to the model's limit.
    ///
    /// # Errors
    /// A model without a template, or one that cannot think as the request wants; a message that is wrong; too many of them; a schema that is not
    /// supported.
    pub(super) fn prepare(
        self,
        mut common: Common,
        max_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<Prepared, ApiError> {
        let model = &*common.model;
        let place = self.place;
        let Some(template) = &model.template else {
            let error = candle_engine::Error::NoChatTemplate {
                model: model.name.clone(),
            };
            return Err(ApiError::field(place, error.one_line()));
        };
        let backend = model.engine.backend();
        let mut pictures = Pictures::of(backend, &model.name);
        let said = read(place, self.messages, template, &mut pictures)?;
        let length = |message: &Value| match &message["content"] {
            Value::Array(parts) => parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .map(str::len)
                .sum(),
            content => content.as_str().map_or(0, str::len),
        };
        backend.check_bytes(said.iter().map(length).sum())?;
        // A required call is not an answer, so the answer's format does not apply.
        let grammar = match (self.tools.schema(), self.format) {
            (Some(call), _) => Some(model.grammars.of("tools", call, model)?),
            (None, Some(format)) => Some(format.grammar(model)?),
            (None, None) => None,
        };
        let begins = self.tools.begins(template.source());
        let variables = &self.wanted.variables;
        let mut prompt = backend.chat_prompt(template, &said, &self.tools.all, variables)?;
        let pictures = pictures.into_all();
        let thinking = self.wanted.of(template, &prompt)?;
        let thinking = match thinking {
            // Thoughts come first.
            Some(thinking) if thinking.is_on() => Some(thinking.answer_beginning(begins)),
            thinking => {
                prompt.push_str(begins);
                thinking
            }
        };
        let prompt = backend.prompt_with_pictures(&prompt, &pictures, true)?;
        let tokens = backend.rendered_tokens(&prompt)?;
        let max_tokens = max_tokens.unwrap_or(backend.max_positions());
        common.request.thinking = thinking;
        common.request.pictures = pictures;
        Ok(Prepared {
            common,
            tokens,
            max_tokens,
            logprobs,
            grammar,
            tools: self.tools,
        })
    }
}

/// The messages as templates see them.
///
/// # Errors
/// The first wrong or unknown field, named by its path.
fn read(
    place: &str,
    messages: Vec<Map<String, Value>>,
    template: &ChatTemplate,
    pictures: &mut Pictures<'_>,
) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field(
            place,
            "is empty; expected at least one message",
        ));
    }
    let all = messages.into_iter().enumerate();
    all.map(|(at, message)| one(format!("{place}[{at}]."), message, template, pictures))
        .collect()
}

fn one(
    place: String,
    message: Map<String, Value>,
    template: &ChatTemplate,
    pictures: &mut Pictures<'_>,
) -> Result<Value, ApiError> {
    let content_place = format!("{place}content");
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
    let mut seen = None;
    let content = match content {
        None if role == "assistant" => String::new(),
        None => return Err(fields.wrong("content", "is missing; expected a text")),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) if role == "user" && parts.iter().any(Pictures::is_image) => {
            seen = Some(with_pictures(&fields, &content_place, parts, pictures)?);
            String::new()
        }
        Some(Content::Parts(parts)) => joined(&fields, parts)?,
    };
    let mut thoughts = None;
    let mut content = content;
    if role == "assistant" {
        // Templates that show earlier thoughts get them separately from the content.
        (thoughts, content) = template.without_thoughts(&content);
        for name in ["reasoning_content", "reasoning"] {
            let given: Option<String> = fields.take(name, "a text")?;
            thoughts = given.or(thoughts);
        }
    }
    let mut said = json!({ "role": role, "content": content });
    if let Some(parts) = seen {
        said["content"] = parts;
    }
    if let Some(thoughts) = thoughts.filter(|_| template.mentions("reasoning_content")) {
        said["reasoning_content"] = thoughts.into();
    }
    if role == "tool" {
        for name in ["name", "tool_call_id"] {
            if let Some(value) = fields.take::<String>(name, "a text")? {
                said[name] = value.into();
            }
        }
    }
    // Fields of an answer that is sent back; and the speaker's name, which no template shows.
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

/// Parts of text and images, as templates see them.
fn with_pictures(
    fields: &Fields,
    place: &str,
    parts: Vec<Map<String, Value>>,
    pictures: &mut Pictures<'_>,
) -> Result<Value, ApiError> {
    let parts = parts.into_iter().enumerate().map(|(at, part)| {
        if Pictures::is_image(&part) {
            pictures.take(&format!("{place}[{at}]"), &part)
        } else {
            let text = joined(fields, vec![part])?;
            Ok(json!({ "type": "text", "text": text }))
        }
    });
    parts.collect()
}

/// The text of parts.
fn joined(fields: &Fields, parts: Vec<Map<String, Value>>) -> Result<String, ApiError> {
    let mut all = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text").and_then(Value::as_str)) {
            ("text" | "input_text" | "output_text", Some(text)) => all.push_str(text),
            (kind, _) => {
                let why = match kind.contains("video") {
                    true => ": videos are not supported",
                    false => "",
                };
                let kind = short(kind);
                let problem = format!("unsupported content part of type {kind:?}{why}; expected text, or of a user image_url");
                return Err(fields.wrong("content", problem));
            }
        }
    }
    Ok(all)
}
