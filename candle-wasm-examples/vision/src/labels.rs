//! What classes are called.

use crate::kind::Kind;
use candle_core::{bail, Result};
use candle_transformers::models::yolo::coco;
use serde_json::{Map, Value};

/// The maximum size of a file of labels, in bytes.
pub const MOST: u64 = 10 << 20;

/// Without a file: those of COCO for a network that finds its objects, and none for others.
pub fn own(kind: Kind) -> Vec<String> {
    match kind {
        Kind::Detect { .. } => coco::CLASSES.map(str::to_string).to_vec(),
        _ => Vec::new(),
    }
}

/// The labels in a file, one for each class: lines, a JSON array, a JSON object with numbers as keys, or a `config.json` with `id2label`.
///
/// # Errors
/// A file of another form, or with another number of labels than the model has classes.
pub fn read(file: &str, bytes: &[u8], kind: Kind) -> Result<Vec<String>> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        bail!("{file}: not UTF-8; expected a label per line, or JSON")
    };
    let labels = if text.trim_start().starts_with(['{', '[']) {
        of_json(file, text)?
    } else {
        text.lines().map(|line| line.trim().to_string()).collect()
    };
    match kind.classes() {
        Some(classes) if labels.len() != classes && !labels.is_empty() => bail!(
            "{file}: it has {} labels, the model has {classes} classes; choose the labels of this model",
            labels.len()
        ),
        _ => Ok(labels),
    }
}

fn of_json(file: &str, text: &str) -> Result<Vec<String>> {
    let json: Value = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(err) => bail!("{file}: {err}"),
    };
    match json {
        Value::Array(labels) => labels.iter().map(|label| text_of(file, label)).collect(),
        Value::Object(mut fields) => match fields.remove("id2label") {
            Some(Value::Object(numbered)) => by_number(file, &numbered),
            Some(_) => {
                bail!("{file}: `id2label` is not an object; expected a label for each number")
            }
            // A configuration without labels, as timm's are.
            None if !fields.contains_key("0") => Ok(Vec::new()),
            None => by_number(file, &fields),
        },
        _ => bail!("{file}: expected an array or an object of labels"),
    }
}

fn by_number(file: &str, numbered: &Map<String, Value>) -> Result<Vec<String>> {
    let label = |number: usize| match numbered.get(&number.to_string()) {
        Some(label) => text_of(file, label),
        None => bail!(
            "{file}: there is no label of class {number} among {}",
            numbered.len()
        ),
    };
    (0..numbered.len()).map(label).collect()
}

fn text_of(file: &str, label: &Value) -> Result<String> {
    match label.as_str() {
        Some(text) => Ok(text.to_string()),
        None => bail!("{file}: the label {label} is not a string"),
    }
}

/// The name of a class, or its number.
pub fn name(labels: &[String], class: usize) -> String {
    match labels.get(class) {
        Some(label) => label.clone(),
        None => format!("class {class}"),
    }
}
