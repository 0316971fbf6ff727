//! How a conversation becomes a prompt: the Jinja template that comes with a model, as Hugging Face's Transformers renders it.

use crate::error::one_line;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::Content;
use minijinja::{context, Environment, ErrorKind, Value as Jinja};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The name that the template has while it is rendered.
const NAME: &str = "chat template";

/// Who says something in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// System prompt.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// A model's template, with the texts of its begin and end tokens, which it may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// What to call it in messages.
    origin: String,
    source: String,
    begin: String,
    end: String,
}

impl ChatTemplate {
    /// A template from its text; `origin` is what it is called in messages.
    pub fn new(origin: &str, source: String) -> Self {
        Self {
            origin: origin.to_string(),
            source,
            begin: String::new(),
            end: String::new(),
        }
    }

    /// The template, which may name the tokens that `other` may.
    pub fn with_tokens_of(self, other: &Self) -> Self {
        Self {
            begin: other.begin.clone(),
            end: other.end.clone(),
            ..self
        }
    }

    /// That of a folder: `chat_template.jinja`, or what `tokenizer_config.json` has, if either is there.
    pub(super) fn of_folder(
        tokenizer_config: Option<(&Path, &[u8])>,
        template: Option<(&Path, &[u8])>,
    ) -> Result<Option<Self>> {
        let config: Value = match tokenizer_config {
            Some((file, bytes)) => {
                serde_json::from_slice(bytes).map_err(|err| Error::file(file, err))?
            }
            None => Value::Null,
        };
        let found = match (template, tokenizer_config) {
            (Some((file, bytes)), _) => {
                let text = std::str::from_utf8(bytes).map_err(|err| Error::file(file, err))?;
                Some((file, text))
            }
            (None, Some((file, _))) => named(&config["chat_template"]).map(|text| (file, text)),
            (None, None) => None,
        };
        let token = |name: &str| match &config[name] {
            Value::Object(token) => token
                .get("content")
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_string(),
            token => token.as_str().unwrap_or("").to_string(),
        };
        Ok(found.map(|(file, source)| Self {
            begin: token("bos_token"),
            end: token("eos_token"),
            ..Self::new(&file.display().to_string(), source.to_string())
        }))
    }

    /// That of a GGUF file, if it has one.
    pub(super) fn of_gguf(file: &Path, content: &Content) -> Option<Self> {
        let key = "tokenizer.chat_template";
        let source = content.metadata.get(key)?.to_string().ok()?;
        let tokens = content.metadata.get("tokenizer.ggml.tokens");
        let tokens = tokens.and_then(|tokens| tokens.to_vec().ok());
        let token = |key: &str| {
            let id = content.metadata.get(key)?.to_u32().ok()?;
            tokens?.get(id as usize)?.to_string().ok().cloned()
        };
        Some(Self {
            begin: token("tokenizer.ggml.bos_token_id").unwrap_or_default(),
            end: token("tokenizer.ggml.eos_token_id").unwrap_or_default(),
            ..Self::new(&format!("{}: {key}", file.display()), source.clone())
        })
    }

    /// Checks that the text is a template; whether it takes a conversation, [`render`](Self::render) says.
    ///
    /// # Errors
    /// What is no Jinja, in one line.
    pub fn check(&self) -> Result<()> {
        let parsed = Environment::new().add_template(NAME, &self.source);
        parsed.map_err(|err| self.error(&err))
    }

    fn error(&self, err: &minijinja::Error) -> Error {
        Error::ChatTemplate {
            origin: self.origin.clone(),
            problem: one_line(&err.to_string()),
        }
    }

    /// The prompt of a conversation whose next message is the model's.
    ///
    /// # Errors
    /// A template that is no Jinja, that uses what is not there, or that refuses the conversation; in one line.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let mut jinja = Environment::new();
        // As Transformers sets it: the templates are written for that.
        jinja.set_trim_blocks(true);
        jinja.set_lstrip_blocks(true);
        jinja.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        jinja.add_function(
            "raise_exception",
            |text: String| -> std::result::Result<Jinja, _> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
            },
        );
        jinja.add_function("strftime_now", |format: String| now(&format));
        let rendered = jinja.add_template(NAME, &self.source).and_then(|()| {
            jinja.get_template(NAME)?.render(context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => self.begin,
                eos_token => self.end,
            })
        });
        rendered.map_err(|err| self.error(&err))
    }
}

/// One template, or that of the name `default` among several.
fn named(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Array(several) => several
            .iter()
            .find(|one| one["name"] == "default")?
            .get("template")?
            .as_str(),
        _ => None,
    }
}

/// The time in UTC, for templates that tell it to the model.
fn now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let failed = |err: String| minijinja::Error::new(ErrorKind::InvalidOperation, err);
    let elapsed = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    let seconds = elapsed.map_err(|err| failed(err.to_string()))?.as_secs();
    let time = i64::try_from(seconds).map_err(|err| failed(err.to_string()))?;
    let time = jiff::Timestamp::from_second(time).map_err(|err| failed(err.to_string()))?;
    jiff::fmt::strtime::format(format, time).map_err(|err| failed(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(source: &str) -> Result<String> {
        let template = ChatTemplate {
            begin: "<s>".into(),
            ..ChatTemplate::new("test", source.into())
        };
        template.render(&[
            Message::new(Role::System, " Be brief. "),
            Message::new(Role::User, "Hi"),
        ])
    }

    #[test]
    fn what_templates_use_is_there() {
        let source = "{{ bos_token }}{% for m in messages %}\n  {%- if m['role'] == 'system' %}[{{ m.content.strip() }}]\n  \
            {%- else %}{{ m.role | upper }}: {{ m.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
        assert_eq!(ask(source).unwrap(), "<s>[Be brief.]USER: HiA:");
        assert_eq!(ask("{{ strftime_now('%Y') | length }}").unwrap(), "4");
    }

    #[test]
    fn bad_templates_are_errors_of_one_line() {
        for (source, part) in [
            ("{% for m in messages %}", "test: "),
            (
                "{{ raise_exception('no system prompts') }}",
                "no system prompts",
            ),
            ("{{ messages | unknown }}", "unknown"),
        ] {
            let error = ask(source).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn folders_have_a_template_in_either_file() {
        let config = br#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>",
            "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let config = (Path::new("tokenizer_config.json"), config.as_slice());
        let found = ChatTemplate::of_folder(Some(config), None)
            .unwrap()
            .unwrap();
        assert_eq!(
            (
                found.source.as_str(),
                found.begin.as_str(),
                found.end.as_str()
            ),
            ("d", "<s>", "</s>")
        );
        let file = (Path::new("chat_template.jinja"), b"j".as_slice());
        let found = ChatTemplate::of_folder(Some(config), Some(file))
            .unwrap()
            .unwrap();
        assert_eq!((found.source.as_str(), found.end.as_str()), ("j", "</s>"));
        assert_eq!(ChatTemplate::of_folder(None, None).unwrap(), None);
    }
}
