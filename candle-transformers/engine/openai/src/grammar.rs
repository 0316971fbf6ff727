//! `response_format`, `text.format` and `tool_choice`: which tokens keep an answer within JSON or a schema.

use super::error::short;
use super::fields::Fields;
use super::texts::TextModel;
use super::ApiError;
use candle_engine::generation::Mask;
use candle_engine::{CandleBackend, Error, Result};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Map, Value};
use std::sync::{Arc, OnceLock};

/// White space between the parts of JSON: a blank, or a new line and its indent. Without a limit, a small model writes nothing else.
const SPACE: &str = r"( |\n[ \t]{0,20})?";
/// The most bytes of a schema.
const SCHEMA_BYTES: usize = 256 << 10;

/// The vocabulary as grammars need it, made when the first one comes.
#[derive(Default)]
pub(super) struct Grammars(OnceLock<std::result::Result<Parsers, String>>);

struct Parsers {
    factory: ParserFactory,
    stops: Arc<[u32]>,
}

/// The form of answers.
pub(super) struct Grammar {
    matcher: Matcher,
    stops: Arc<[u32]>,
}

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
        grammar.map_err(|problem| ApiError::field(place, problem))
    }

    fn of_schema(&self, schema: Value, model: &TextModel) -> std::result::Result<Grammar, String> {
        let mut schema = schema;
        close(&mut schema);
        let mut schema = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => Map::new(),
            _ => return Err("expected an object".to_string()),
        };
        let bytes = serde_json::to_string(&schema).map_or(0, |text| text.len());
        if bytes > SCHEMA_BYTES {
            return Err(format!("has {bytes} bytes; the maximum is {SCHEMA_BYTES}"));
        }
        schema.insert(
            "x-guidance".to_string(),
            json!({ "whitespace_pattern": SPACE }),
        );
        let parsers = self.0.get_or_init(|| Parsers::new(model.engine.backend()));
        let parsers = parsers.as_ref().map_err(Clone::clone)?;
        let grammar = TopLevelGrammar::from_json_schema(Value::Object(schema));
        let parser = parsers.factory.create_parser(grammar);
        let parser =
            parser.map_err(|error| candle_engine::error::one_line(&format!("{error:#}")))?;
        Ok(Grammar {
            matcher: Matcher::new(Ok(parser)),
            stops: parsers.stops.clone(),
        })
    }
}

/// Closes the objects in a schema, see [`close_object`].
fn close(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(close),
        Value::Object(map) => {
            let is_parts = map.contains_key("properties");
            for (name, value) in map.iter_mut() {
                match name.as_str() {
                    // Values, and parts that say together what an object has.
                    "const" | "enum" | "default" | "examples" | "allOf" | "not" | "if" => {}
                    "anyOf" | "oneOf" if is_parts => {}
                    // Names of properties, not words of a schema.
                    "properties" | "$defs" | "definitions" => {
                        if let Some(named) = value.as_object_mut() {
                            named.values_mut().for_each(close);
                        }
                    }
                    _ => close(value),
                }
            }
            close_object(map);
        }
        _ => {}
    }
}

/// An object whose schema names properties gets no others, unless the schema says so: a model that is free to make some up often does. What is
/// left keeps to the schema as well.
fn close_object(schema: &mut Map<String, Value>) {
    const OPEN: [&str; 8] = [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "minProperties",
    ];
    let is_named = schema.get("properties").is_some_and(Value::is_object);
    if is_named && !OPEN.iter().any(|word| schema.contains_key(*word)) {
        let named = |name: &Value| {
            let name = name.as_str().unwrap_or_default();
            schema["properties"].get(name).is_some()
        };
        let required = schema.get("required").and_then(Value::as_array);
        if required.is_none_or(|all| all.iter().all(named)) {
            schema.insert("additionalProperties".to_string(), false.into());
        }
    }
}

impl Parsers {
    fn new(backend: &CandleBackend) -> std::result::Result<Self, String> {
        let stops: Arc<[u32]> = backend.stop_tokens().into();
        let Some(end) = stops.first() else {
            return Err("the model has no end token".to_string());
        };
        let words = backend
            .tokenizer()
            .token_bytes(TokTrie::SPECIAL_TOKEN_MARKER);
        let words =
            words.ok_or("the model's tokens have no bytes: its tokenizer is not BPE over bytes")?;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, *end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| format!("{error:#}"))?;
        factory.quiet();
        // Messages would quote the text so far.
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, stops })
    }
}

impl Grammar {
    /// The constraint of one answer.
    pub(super) fn mask(&self) -> Box<dyn Mask> {
        Box::new(Guide {
            matcher: self.matcher.deep_clone(),
            stops: self.stops.clone(),
        })
    }
}

/// The constraint of an answer that is being written.
struct Guide {
    matcher: Matcher,
    stops: Arc<[u32]>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Constraint(candle_engine::error::one_line(&format!("{error:#}")))
}

impl Mask for Guide {
    fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(failed)?;
        let ends = self
            .stops
            .first()
            .is_some_and(|end| allowed.is_allowed(*end));
        for (id, logit) in logits.iter_mut().enumerate() {
            let is_allowed = if ends && self.stops.contains(&(id as u32)) {
                true
            } else {
                id < allowed.len() && allowed.is_allowed(id as u32)
            };
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn push(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::close;
    use serde_json::json;

    #[test]
    fn objects_are_closed_where_that_keeps_to_their_schema() {
        let object = |more: serde_json::Value| {
            let mut it =
                json!({ "type": "object", "properties": { "properties": { "type": "string" } } });
            for (name, value) in more.as_object().unwrap() {
                it[name] = value.clone();
            }
            it
        };
        let mut plain =
            json!({ "type": "array", "items": object(json!({ "required": ["properties"] })) });
        close(&mut plain);
        assert_eq!(plain["items"]["additionalProperties"], false);
        assert!(plain["items"]["properties"]
            .get("additionalProperties")
            .is_none());
        for open in [
            object(json!({ "additionalProperties": true })),
            object(json!({ "required": ["another"] })),
            object(json!({ "minProperties": 2 })),
            json!({ "allOf": [object(json!({}))] }),
            json!({ "const": object(json!({})) }),
            json!({ "type": "object" }),
        ] {
            let mut closed = open.clone();
            close(&mut closed);
            assert_eq!(closed, open);
        }
    }
}
