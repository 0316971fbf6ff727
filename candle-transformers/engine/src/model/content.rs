//! The content of messages as templates want it: a text, or a list of parts, `{"type": "text", "text": …}` and `{"type": "image"}`.

use super::ChatTemplate;
use crate::thinking::Variables;
use serde_json::{json, Value};

/// A message to try a template with.
const PROBE: &str = "probe of content";

fn text_part(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The content of a message with images before its text.
pub(super) fn with_pictures(count: usize, text: &str) -> Value {
    let mut parts = vec![json!({ "type": "image" }); count];
    parts.push(text_part(text));
    parts.into()
}

/// The messages with texts as lists of one part.
pub(super) fn as_parts(messages: &[Value]) -> Vec<Value> {
    let change = |message: &Value| {
        let mut message = message.clone();
        if let Some(text) = message["content"].as_str() {
            message["content"] = json!([text_part(text)]);
        }
        message
    };
    messages.iter().map(change).collect()
}

impl ChatTemplate {
    /// Whether the template shows a text only as a list of parts, as those of some models that take images do.
    pub(super) fn wants_parts(&self) -> bool {
        // Others do not look for the type of a part, and are not tried.
        let types = ["'type'", "\"type\"", ".type"];
        if !types.iter().any(|name| self.source().contains(name)) {
            return false;
        }
        let text = [json!({ "role": "user", "content": PROBE })];
        let shows = |messages: &[Value]| {
            let rendered = self.render_as_is(messages, &[], &Variables::new());
            rendered.is_ok_and(|prompt| prompt.contains(PROBE))
        };
        !shows(&text) && shows(&as_parts(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Message, Role};

    #[test]
    fn texts_as_the_template_shows_them() {
        let said = [
            Message::new(Role::User, "Hi"),
            Message::new(Role::Assistant, "Yes"),
        ];
        for (source, prompt) in [
            // As of SmolVLM, which would show nothing of a text.
            (
                "{% for m in messages %}{{ m['role'] }}{% for p in m['content'] %}{% if p['type'] == 'text' %}:{{ p['text'] }}\
                 {% elif p['type'] == 'image' %}<image>{% endif %}{% endfor %};{% endfor %}",
                "user:Hi;assistant:Yes;",
            ),
            // As of Gemma 3, which takes both.
            (
                "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}\
                 {% if p['type'] == 'text' %}[{{ p['text'] }}]{% endif %}{% endfor %}{% endif %};{% endfor %}",
                "Hi;Yes;",
            ),
            ("{% for m in messages %}{{ m.content }}|{% endfor %}", "Hi|Yes|"),
        ] {
            let template = ChatTemplate::new("test", source.to_string());
            assert_eq!(template.render(&said).unwrap(), prompt);
        }
        assert_eq!(
            with_pictures(2, "a"),
            json!([{"type": "image"}, {"type": "image"}, {"type": "text", "text": "a"}])
        );
    }
}
