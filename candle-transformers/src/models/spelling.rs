//! Other spellings of a `config.json` than those of a configuration's fields: those that Transformers 5 writes.

use candle_nn::VarBuilder;
use serde_json::{Map, Value};

/// Reads a configuration whose derived reader is the inherent one (`#[serde(remote = "Self")]`), after `change` has brought other
/// spellings to the names of its fields.
macro_rules! spelled {
    ($config:ty, $change:expr) => {
        impl<'de> serde::Deserialize<'de> for $config {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                use serde::de::Error;
                let mut fields = serde_json::Map::deserialize(deserializer)?;
                let change: fn(
                    &mut crate::models::spelling::Fields,
                ) -> crate::models::spelling::Changed = $change;
                change(&mut fields).map_err(D::Error::custom)?;
                <$config>::deserialize(serde_json::Value::Object(fields)).map_err(D::Error::custom)
            }
        }
    };
}
pub(crate) use spelled;

/// Nothing, or what is wrong with the fields.
pub(crate) type Changed = Result<(), String>;

/// The fields of a file.
pub(crate) type Fields = Map<String, Value>;

/// Gives a field the value of another one, if it has none.
pub(crate) fn rename(fields: &mut Fields, names: &[(&str, &str)]) {
    for (found, read) in names {
        let missing = fields.get(*read).is_none_or(Value::is_null);
        if let Some(value) = fields.get(*found).filter(|value| !value.is_null()) {
            if missing {
                let value = value.clone();
                fields.insert((*read).to_string(), value);
            }
        }
    }
}

/// `rope_theta` from the object `rope_parameters`, of a model that does not scale its rotation.
pub(crate) fn flat_rope(fields: &mut Fields, name: &str) -> Result<(), String> {
    // `auto` has read the object already, and scales what the family does not.
    if fields.get(name).is_some_and(|theta| !theta.is_null()) {
        return Ok(());
    }
    let Some(rope) = fields.get("rope_parameters").and_then(Value::as_object) else {
        return Ok(());
    };
    let kind = rope.get("rope_type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| !["axial", "default", "mrope"].contains(kind)) {
        return Err(format!(
            "rope_parameters: rope_type {kind:?} is not supported by this model, default is"
        ));
    }
    if let Some(theta) = rope.get("rope_theta").cloned() {
        fields.insert(name.to_string(), theta);
    }
    Ok(())
}

/// The weights of an image's tower, below `vision_model`. Transformers 5 leaves that level out where the tower is part of a larger model.
pub(crate) fn vision_model<'a>(tower: VarBuilder<'a>) -> VarBuilder<'a> {
    let (table, below) = (
        "embeddings.patch_embedding.weight",
        tower.pp("vision_model"),
    );
    if tower.contains_tensor(table) && !below.contains_tensor(table) {
        tower
    } else {
        below
    }
}

/// The number of experts, which Transformers 5 calls `num_local_experts` in all families.
pub(crate) fn experts(fields: &mut Fields) -> Result<(), String> {
    rename(fields, &[("num_local_experts", "num_experts")]);
    Ok(())
}
