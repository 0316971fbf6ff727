//! Options as JavaScript gives them: what all modules read in the same way.

use candle_core::DType;
use js_sys::Reflect;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

/// TypeScript types that wasm-bindgen cannot generate.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
export interface LoadOptions {
    /** Element type of activations and dense weights; if not given, what suits the device. On the CPU that is f32. */
    dtype?: "f32" | "f16" | "bf16";
}
"#;

#[wasm_bindgen]
extern "C" {
    /// The interface `LoadOptions` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "LoadOptions")]
    pub type JsLoad;
}

/// The given value, or `undefined`.
pub fn or_undefined<T: Into<JsValue>>(options: Option<T>) -> JsValue {
    options.map_or(JsValue::UNDEFINED, T::into)
}

/// Checks that each name in an object of options is one of `names`: one that is not known is a mistake to be told of.
pub fn known_names(options: &JsValue, names: &[&str]) -> Result<(), JsError> {
    if !options.is_object() {
        return Ok(());
    }
    for name in js_sys::Object::keys(options.unchecked_ref::<js_sys::Object>()).iter() {
        let name = name.as_string().unwrap_or_default();
        if !names.contains(&name.as_str()) {
            return Err(JsError::new(&format!(
                "options: `{name}` is unknown; expected one of {}",
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// The requested element type.
pub fn dtype(options: &JsValue) -> Result<Option<DType>, JsError> {
    let Some(value) = field(options, "dtype") else {
        return Ok(None);
    };
    match value.as_string().as_deref() {
        Some("f32") => Ok(Some(DType::F32)),
        Some("f16") => Ok(Some(DType::F16)),
        Some("bf16") => Ok(Some(DType::BF16)),
        _ => Err(JsError::new(&format!(
            "options: `dtype` is {value:?}; expected \"f32\", \"f16\" or \"bf16\""
        ))),
    }
}

/// Whether the options have a signal that says to end.
pub fn aborted(options: &JsValue) -> bool {
    field(options, "signal")
        .and_then(|signal| field(&signal, "aborted"))
        .is_some_and(|aborted| aborted.is_truthy())
}

/// A field that is there.
pub fn field(of: &JsValue, name: &str) -> Option<JsValue> {
    let value = Reflect::get(of, &name.into()).ok()?;
    (!value.is_undefined() && !value.is_null()).then_some(value)
}
