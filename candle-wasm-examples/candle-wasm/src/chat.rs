//! Messages from JavaScript. Each call passes the whole conversation.

use candle_engine::{Message, Role};
use js_sys::{Array, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// A list of the interface `ChatMessage` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ChatMessage[]")]
    pub type JsMessages;
}

/// The earlier messages, and the text of the last one, which must be the user's.
pub fn read(messages: &JsMessages) -> Result<(Vec<Message>, String), JsError> {
    let messages: &JsValue = messages;
    let Some(list) = messages.dyn_ref::<Array>() else {
        return Err(JsError::new(
            "messages: expected an array of objects with `role` and `content`",
        ));
    };
    let read = list.iter().enumerate().map(|(i, value)| message(i, &value));
    let mut said = read.collect::<Result<Vec<Message>, JsError>>()?;
    match said.pop() {
        Some(last) if last.role == Role::User => Ok((said, last.content)),
        Some(_) => Err(JsError::new(
            "messages: the last one does not have `role: \"user\"`; expected a message to answer",
        )),
        None => Err(JsError::new(
            "messages: the list is empty; expected at least one message of the user",
        )),
    }
}

fn message(index: usize, value: &JsValue) -> Result<Message, JsError> {
    let text = |name: &str| {
        let field = Reflect::get(value, &name.into()).ok();
        field.and_then(|field| field.as_string())
    };
    let role = match text("role").as_deref() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        found => {
            return Err(JsError::new(&format!(
                "messages[{index}]: `role` is {found:?}; expected \"system\", \"user\" or \"assistant\""
            )))
        }
    };
    let content = text("content")
        .ok_or_else(|| JsError::new(&format!("messages[{index}]: `content` is not a string")))?;
    Ok(Message::new(role, content))
}
