//! `response_format`, `text.format` and `tool_choice`: which tokens keep an answer within JSON or a schema.

use super::error::short;
use super::fields::Fields;
use super::texts::TextModel;
use super::ApiError;
use candle_grammar::{Grammar, Vocabulary};
use serde_json::{json, Map, Value};
use std::sync::OnceLock;

/// The vocabulary as grammars need it, made when the first one comes.
#[derive(Default)]
pub(super) struct Grammars(OnceLock<candle_grammar::Result<Vocabulary>>);

/// A form that an answer has to have.
pub(super) struct Format {
    /// The field that has it.
    place: &'static str,
    schema: Value,
}

/// Takes `response_format`; none where any text will do.
///
/// # Errors
/// Another type, or fields that do not fit it.
pub(super) fn response_format(
    fields: &mut Fields,
) -> std::result::Result<Option<Format>, ApiError> {
    let name = "response_format";
    let Some(format) = fields.take::<Map<String, Value>>(name, "an object")? else {
        return Ok(None);
    };
    let mut format = Fields::of(format!("{name}."), format);
    let kind: String = format.need("type", "a text")?;
    let schema = match kind.as_str() {
        "json_schema" => {
            let wrapped = format.need("json_schema", "an object")?;
            let mut wrapped = Fields::of(format!("{name}.json_schema."), wrapped);
            let schema = schema_of(&mut wrapped)?;
            wrapped.end()?;
            Some(schema)
        }
        kind => plain(&format, kind)?,
    };
    format.end()?;
    let place = "response_format.json_schema.schema";
    Ok(schema.map(|schema| Format { place, schema }))
}

/// Takes `text`, as responses have it; none where any text will do.
///
/// # Errors
/// Those of [`response_format`].
pub(super) fn text_format(fields: &mut Fields) -> std::result::Result<Option<Format>, ApiError> {
    let text: Option<Map<String, Value>> = fields.take("text", "an object")?;
    let mut text = Fields::of("text.".to_string(), text.unwrap_or_default());
    let format: Option<Map<String, Value>> = text.take("format", "an object")?;
    text.harmless("verbosity", &[json!("medium")])?;
    text.end()?;
    let Some(format) = format else {
        return Ok(None);
    };
    let mut format = Fields::of("text.format.".to_string(), format);
    let kind: String = format.need("type", "a text")?;
    let schema = match kind.as_str() {
        "json_schema" => Some(schema_of(&mut format)?),
        kind => plain(&format, kind)?,
    };
    format.end()?;
    let place = "text.format.schema";
    Ok(schema.map(|schema| Format { place, schema }))
}

/// The schema of a type that brings none.
fn plain(format: &Fields, kind: &str) -> std::result::Result<Option<Value>, ApiError> {
    match kind {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({ "type": "object" }))),
        other => {
            let problem = format!(
                "unsupported type {:?}; expected text, json_object or json_schema",
                short(other)
            );
            Err(format.wrong("type", problem))
        }
    }
}

fn schema_of(fields: &mut Fields) -> std::result::Result<Value, ApiError> {
    let schema: Value = fields.need("schema", "a JSON schema")?;
    // A name for logs; and a schema is always kept to.
    for note in ["name", "description", "strict"] {
        fields.take::<Value>(note, "any value")?;
    }
    Ok(schema)
}

impl Format {
    /// # Errors
    /// A schema that is none, or that is not supported.
    pub(super) fn grammar(self, model: &TextModel) -> std::result::Result<Grammar, ApiError> {
        model.grammars.of(self.place, self.schema, model)
    }
}

impl Grammars {
    /// The constraint of a text to a schema; `place` is the path of the schema's field.
    ///
    /// # Errors
    /// A schema that is malformed or not supported.
    pub(super) fn of(
        &self,
        place: &str,
        schema: Value,
        model: &TextModel,
    ) -> std::result::Result<Grammar, ApiError> {
        let grammar = self.of_schema(schema, model);
        grammar.map_err(|problem| ApiError::field(place, problem.to_string()))
    }

    fn of_schema(&self, schema: Value, model: &TextModel) -> candle_grammar::Result<Grammar> {
        let backend = model.engine.backend();
        let vocabulary = || {
            backend
                .tokenizer()
                .grammar_vocabulary(backend.stop_tokens())
        };
        let vocabulary = self.0.get_or_init(vocabulary);
        vocabulary.as_ref().map_err(Clone::clone)?.grammar(schema)
    }
}
