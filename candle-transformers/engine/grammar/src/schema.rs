//! Schemas as grammars take them.

use serde_json::{Map, Value};

/// The words of a schema, with its objects closed, see [`close_object`]. `true` allows any value.
///
/// # Errors
/// Something other than an object or `true`.
pub(super) fn closed(schema: Value) -> Result<Map<String, Value>, String> {
    let mut schema = schema;
    close(&mut schema);
    match schema {
        Value::Object(map) => Ok(map),
        Value::Bool(true) => Ok(Map::new()),
        _ => Err("expected an object".to_string()),
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
