//! Conversations in files, as the API takes them: `{"messages": [{"role": "user", "content": "…"}, …]}`.

use crate::{Error, Result};
use candle_engine::model::{Message, Role};
use serde_json::{json, Value};
use std::path::Path;

/// Writes a conversation. A file that is something else is not overwritten.
///
/// # Errors
/// The file, and why it could not be written.
pub(super) fn save(file: &Path, messages: &[Message]) -> Result<()> {
    if messages.iter().any(|message| !message.pictures.is_empty()) {
        let problem =
            "the conversation has images, which cannot be saved; /clear starts one without";
        return Err(Error::file(file, problem));
    }
    let text = serde_json::to_string_pretty(&json!({ "messages": messages }))
        .map_err(|err| Error::file(file, err))?;
    if file.exists() && load(file).is_err() {
        let problem = "it exists and is not a conversation; choose another name";
        return Err(Error::file(file, problem));
    }
    std::fs::write(file, text + "\n").map_err(|err| Error::file(file, err))
}

/// Reads a conversation: a system message or none, then messages of the user, each with its answer.
///
/// # Errors
/// The file, and the first message that does not fit.
pub(super) fn load(file: &Path) -> Result<Vec<Message>> {
    let failed = |problem: String| Error::file(file, problem);
    let text = std::fs::read_to_string(file).map_err(|err| Error::file(file, err))?;
    let value: Value = serde_json::from_str(&text).map_err(|err| failed(err.to_string()))?;
    let values = value["messages"]
        .as_array()
        .ok_or_else(|| failed("it has no list `messages`".to_string()))?;
    let system = values
        .first()
        .is_some_and(|first| first["role"] == "system");
    let mut messages = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let (role, name) = match index.checked_sub(usize::from(system)) {
            None => (Role::System, "system"),
            Some(index) if index % 2 == 0 => (Role::User, "user"),
            Some(_) => (Role::Assistant, "assistant"),
        };
        let number = index + 1;
        if value["role"] != name {
            let found = &value["role"];
            return Err(failed(format!(
                "message {number} has the role {found}, expected \"{name}\""
            )));
        }
        let content = value["content"]
            .as_str()
            .ok_or_else(|| failed(format!("message {number} has no text `content`")))?;
        messages.push(Message::new(role, content));
    }
    match messages.last() {
        Some(last) if last.role == Role::User => Err(failed(
            "the last message has no answer; remove it".to_string(),
        )),
        _ => Ok(messages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("talk.json");
        let mut messages = vec![Message::new(Role::System, "Be brief.")];
        for (role, text) in [(Role::User, "a\n\"b\""), (Role::Assistant, "\u{1b}ü")] {
            messages.push(Message::new(role, text));
        }
        for part in [&messages[..], &messages[1..], &[]] {
            save(&file, part).unwrap();
            assert_eq!(load(&file).unwrap(), part);
        }
        for (text, problem) in [
            ("x", "expected value"),
            ("[]", "no list `messages`"),
            (
                r#"{"messages": [{"role": "tool"}]}"#,
                "message 1 has the role \"tool\", expected \"user\"",
            ),
            (
                r#"{"messages": [{"role": "user", "content": []}]}"#,
                "message 1 has no text",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a"}]}"#,
                "has no answer",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}"#,
                "message 2",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = load(&file).unwrap_err().to_string();
            assert!(
                error.contains(problem) && error.contains("talk.json"),
                "{error}"
            );
            let refused = save(&file, &messages).unwrap_err().to_string();
            assert!(refused.contains("not a conversation"), "{refused}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
