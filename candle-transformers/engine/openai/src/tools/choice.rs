//! `tool_choice`: whether a function has to be called, and which.

use super::super::error::short;
use super::super::fields::Fields;
use super::super::ApiError;
use super::{Layout, Tools, OPEN};
use serde_json::{json, Map, Value};

const EXPECTED: &str = "expected none, auto, required or a function";

/// The function to call.
#[derive(Clone, Default)]
pub(super) enum Choice {
    /// None: the model does not hear of them.
    None,
    /// As the model likes.
    #[default]
    Auto,
    /// Any.
    Required,
    /// This one.
    One(String),
}

impl Choice {
    /// # Errors
    /// Another choice, or one of a function that there is not.
    pub(super) fn read(
        fields: &Fields,
        choice: Option<Value>,
        names: &[String],
        layout: Layout,
    ) -> Result<Self, ApiError> {
        let wrong = |problem: String| fields.wrong("tool_choice", problem);
        let Some(choice) = choice else {
            return Ok(Self::default());
        };
        let one = match layout {
            Layout::Nested => &choice["function"]["name"],
            Layout::Flat => &choice["name"],
        };
        let choice = match (choice.as_str(), choice["type"].as_str(), one.as_str()) {
            (Some("none"), ..) => return Ok(Self::None),
            (Some("auto"), ..) => return Ok(Self::Auto),
            (Some("required"), ..) => Self::Required,
            (None, Some("function"), Some(name)) if names.iter().any(|known| known == name) => {
                Self::One(name.to_string())
            }
            (None, Some("function"), Some(name)) => {
                let problem = format!("{:?} is not one of the tools", short(name));
                return Err(wrong(problem));
            }
            _ => {
                let choice = short(&choice.to_string());
                return Err(wrong(format!("{choice} is not supported; {EXPECTED}")));
            }
        };
        if names.is_empty() {
            Err(wrong("found no tools to choose from".to_string()))
        } else {
            Ok(choice)
        }
    }
}

impl Tools {
    /// The schema of a text that has to be a call; none where it does not have to.
    pub(in super::super) fn schema(&self) -> Option<Value> {
        let chosen = |name: &str| match &self.choice {
            Choice::Required => true,
            Choice::One(one) => one == name,
            Choice::None | Choice::Auto => false,
        };
        let functions = self.all.iter().map(|tool| &tool["function"]);
        let functions = functions.filter(|it| it["name"].as_str().is_some_and(chosen));
        let (mut calls, mut definitions) = (Vec::new(), Map::new());
        for (at, function) in functions.enumerate() {
            let key = format!("arguments{at}");
            let root = format!("#/$defs/{key}");
            let mut arguments = function["parameters"].clone();
            if arguments.is_null() {
                arguments =
                    json!({ "type": "object", "properties": {}, "additionalProperties": false });
            }
            move_root(&mut arguments, &root);
            definitions.insert(key, arguments);
            calls.push(json!({
                "type": "object", "additionalProperties": false, "required": ["name", "arguments"],
                "properties": { "name": { "const": function["name"] }, "arguments": { "$ref": root } },
            }));
        }
        match calls.len() {
            0 => None,
            1 => {
                let mut one = calls.remove(0);
                one["$defs"] = definitions.into();
                Some(one)
            }
            _ => Some(json!({ "anyOf": calls, "$defs": definitions })),
        }
    }

    /// The beginning of a call where `template` teaches the form of Hermes.
    pub(in super::super) fn begins(&self, template: &str) -> &'static str {
        const BEGIN: &str = "<tool_call>\n";
        let has_to = matches!(self.choice, Choice::Required | Choice::One(_));
        if has_to && template.contains(OPEN) {
            BEGIN
        } else {
            ""
        }
    }
}

/// References of a schema that is no longer the root of its document.
fn move_root(schema: &mut Value, root: &str) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(|it| move_root(it, root)),
        Value::Object(map) => {
            for (name, value) in map {
                match value {
                    Value::String(target) if name == "$ref" && target.starts_with('#') => {
                        *target = format!("{root}{}", &target[1..]);
                    }
                    value => move_root(value, root),
                }
            }
        }
        _ => {}
    }
}
