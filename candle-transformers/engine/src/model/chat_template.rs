//! The Jinja template that turns a conversation into a prompt, rendered as by Hugging Face's Transformers.

use super::plain_text::Specials;
use super::{content, TextTokenizer};
use crate::error::one_line;
use crate::pictures::Picture;
use crate::thinking::Variables;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::Content;
use minijinja::value::Kwargs;
use minijinja::{context, Environment, ErrorKind, Value as Jinja};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// The name that the template has while it is rendered.
const NAME: &str = "chat template";

/// The author of a message.
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
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
    /// Images before the text, which no file has.
    #[serde(skip)]
    pub pictures: Vec<Arc<Picture>>,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            pictures: Vec::new(),
        }
    }

    /// As templates see it.
    pub(crate) fn json(&self) -> Value {
        let mut json = serde_json::json!({ "role": self.role, "content": self.content });
        if !self.pictures.is_empty() {
            json["content"] = content::with_pictures(self.pictures.len(), &self.content);
        }
        json
    }
}

/// A model's template, with the texts of its begin and end tokens, which it may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The name of the template in messages.
    origin: String,
    source: String,
    begin: String,
    end: String,
    /// Special tokens that count as text inside messages.
    specials: Option<Arc<Specials>>,
}

impl ChatTemplate {
    /// A template from its text; `origin` is its name in messages.
    pub fn new(origin: &str, source: String) -> Self {
        Self {
            origin: origin.to_string(),
            source,
            begin: String::new(),
            end: String::new(),
            specials: None,
        }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template for prompts that [`CompletionRequest::from_template`](crate::CompletionRequest::from_template) hands to a model with this
    /// tokenizer: special tokens in messages are marked and so are text. [`CandleBackend::chat_tokens`] does so by itself.
    ///
    /// [`CandleBackend::chat_tokens`]: crate::CandleBackend::chat_tokens
    pub fn saying_text_to(self, tokenizer: &TextTokenizer) -> Self {
        Self {
            specials: Some(tokenizer.specials()),
            ..self
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

    /// Checks the template's syntax; [`render`](Self::render) checks that it takes a conversation.
    ///
    /// # Errors
    /// The syntax error, in one line.
    pub fn check(&self) -> Result<()> {
        let source = without_generation(&self.source);
        let parsed = Environment::new().add_template(NAME, &source);
        parsed.map_err(|err| self.error(&err))
    }

    /// Checks that the template takes a conversation of two turns, after a system message if `system` is one.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn try_conversation(&self, system: Option<&str>) -> Result<()> {
        let mut messages = Vec::new();
        messages.extend(system.map(|text| Message::new(Role::System, text)));
        for (role, asks) in [
            (Role::User, true),
            (Role::Assistant, false),
            (Role::User, true),
        ] {
            messages.push(Message::new(role, "Hello"));
            if asks {
                self.render(&messages)?;
            }
        }
        Ok(())
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
    /// A template that is not valid Jinja, uses an undefined name, or refuses the conversation; in one line.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let mut messages: Vec<Value> = messages.iter().map(Message::json).collect();
        if let Some(specials) = &self.specials {
            messages.iter_mut().for_each(|said| specials.mark(said));
        }
        self.render_json(&messages, &[])
    }

    /// As [`render`](Self::render), of messages as OpenAI has them, with tools that the model may call.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_json(&self, messages: &[Value], tools: &[Value]) -> Result<String> {
        self.render_with(messages, tools, &Variables::new())
    }

    /// As [`render_json`](Self::render_json), with values for other names that the template reads. What it always gets, such as the messages,
    /// they do not replace.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(
        &self,
        messages: &[Value],
        tools: &[Value],
        variables: &Variables,
    ) -> Result<String> {
        if self.wants_parts() {
            self.render_as_is(&content::as_parts(messages), tools, variables)
        } else {
            self.render_as_is(messages, tools, variables)
        }
    }

    /// As [`render_with`](Self::render_with), of messages with contents as the template takes them.
    pub(super) fn render_as_is(
        &self,
        messages: &[Value],
        tools: &[Value],
        variables: &Variables,
    ) -> Result<String> {
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
        jinja.add_filter("tojson", to_json);
        let source = without_generation(&self.source);
        let rendered = jinja.add_template(NAME, &source).and_then(|()| {
            jinja.get_template(NAME)?.render(context! {
                messages => messages,
                // Templates ask whether there are any.
                tools => (!tools.is_empty()).then_some(tools),
                add_generation_prompt => true,
                bos_token => self.begin,
                eos_token => self.end,
                ..Jinja::from_serialize(variables)
            })
        });
        rendered.map_err(|err| self.error(&err))
    }
}

/// The template without `{% generation %}` and `{% endgeneration %}`, which mark the model's words for training and print nothing. A
/// condition that is always true replaces them: it treats the white space around it in the same way.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[2..end];
        let sign = |c: Option<char>| c.filter(|c| matches!(c, '-' | '+'));
        let open = sign(inside.chars().next());
        let inside = &inside[open.map_or(0, char::len_utf8)..];
        let close = sign(inside.chars().next_back());
        let inside = &inside[..inside.len() - close.map_or(0, char::len_utf8)];
        let word = match inside.trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match word {
            Some(word) => {
                out.push_str("{%");
                out.extend(open);
                out.push_str(&format!(" {word} "));
                out.extend(close);
                out.push_str("%}");
                rest = &tag[end + 2..];
            }
            // Only the mark itself: what follows may be text that has another one.
            None => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// `tojson` as Transformers has it, which writes what Python's `json.dumps` does: `, ` and `: `, and no characters escaped for HTML.
fn to_json(value: &Jinja, options: Kwargs) -> std::result::Result<Jinja, minijinja::Error> {
    let failed =
        |err: String| minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {err}"));
    let indent = match options.get::<Option<Jinja>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(count)) if count <= MAX_INDENT => " ".repeat(count),
            _ => {
                return Err(failed(format!(
                    "indent is {indent}; expected a text, or a number up to {MAX_INDENT}"
                )))
            }
        }),
    };
    let separators = match options.get::<Option<Jinja>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let pair: Vec<Jinja> = pair.try_iter()?.collect();
            match pair.as_slice() {
                [items, keys] => [items.to_string(), keys.to_string()],
                other => return Err(failed(format!("{} separators; expected 2", other.len()))),
            }
        }
        // As Python does: a line break replaces the space.
        _ => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_string),
    };
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let layout = Layout {
        indent,
        separators,
        depth: 0,
        filled: false,
    };
    let mut bytes = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut bytes, layout);
    let written = if sort {
        serde_json::to_value(value).and_then(|value| sorted(value).serialize(&mut writer))
    } else {
        value.serialize(&mut writer)
    };
    written.map_err(|err| failed(err.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|err| failed(err.to_string()))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if ascii && !c.is_ascii() {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c)
        }
    }
    Ok(Jinja::from_safe_string(out))
}

/// More spaces than anybody indents with.
const MAX_INDENT: usize = 64;

/// The same value with the keys of its objects in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let entries = entries.into_iter();
            Value::Object(entries.map(|(key, value)| (key, sorted(value))).collect())
        }
        other => other,
    }
}

/// The separators and line breaks of Python's `json.dumps`.
struct Layout {
    indent: Option<String>,
    /// Between items, and after keys.
    separators: [String; 2],
    depth: usize,
    /// Whether the innermost list or object has an item.
    filled: bool,
}

impl Layout {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> std::io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, mark: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(mark)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, mark: &[u8]) -> std::io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        // What it closes is an item of what is around it.
        self.filled = true;
        writer.write_all(mark)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        self.filled = true;
        if !first {
            writer.write_all(self.separators[0].as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(self.separators[1].as_bytes())
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

    /// SmolLM3's and LFM2.5's templates mark the model's words.
    #[test]
    fn marks_of_generation_print_nothing() {
        let plain = "{% for m in messages %}\n  {%- if true -%}\n {{ m.content }} \n{%- endif %}\nx{% endfor %}";
        let marked = plain
            .replace("{%- if true -%}", "{%- generation -%}")
            .replace("{%- endif %}", "{%-endgeneration%}");
        assert!(marked.contains("endgeneration"));
        assert_eq!(ask(&marked).unwrap(), ask(plain).unwrap());
        ChatTemplate::new("test", marked).check().unwrap();
        assert_eq!(
            ask("a\n{% generation %}\nb\n{% endgeneration %}\nc").unwrap(),
            "a\nb\nc"
        );
        // Other tags stay, closed or not.
        assert_eq!(
            ask("{% if true %}{{ '{% generation' }}{% endif %}").unwrap(),
            "{% generation"
        );
        for source in [
            "{% generation %}",
            "{% generations %}",
            "{%",
            "{%-",
            "{%-%}",
        ] {
            let template = ChatTemplate::new("test", source.to_string());
            assert!(template.check().is_err(), "{source}");
        }
    }

    /// The texts are those of Python's `json.dumps(value, ensure_ascii=False, ..)`.
    #[test]
    fn json_as_transformers_writes_it() {
        let value = r#"{"name": "f<&>'", "ids": [1, 2.5, true, none], "none": {}, "text": "é\n"}"#;
        for (options, expected) in [
            (
                "",
                r#"{"name": "f<&>'", "ids": [1, 2.5, true, null], "none": {}, "text": "é\n"}"#,
            ),
            (
                "(ensure_ascii=true)",
                r#"{"name": "f<&>'", "ids": [1, 2.5, true, null], "none": {}, "text": "\u00e9\n"}"#,
            ),
            (
                "(separators=(',', ':'))",
                r#"{"name":"f<&>'","ids":[1,2.5,true,null],"none":{},"text":"é\n"}"#,
            ),
            (
                "(sort_keys=true)",
                r#"{"ids": [1, 2.5, true, null], "name": "f<&>'", "none": {}, "text": "é\n"}"#,
            ),
        ] {
            // In the order of the keys where minijinja keeps none.
            let found = ask(&format!("{{{{ {value} | tojson{options} }}}}")).unwrap();
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parsed(&found), parsed(expected));
            let mut letters = [
                found.chars().collect::<Vec<_>>(),
                expected.chars().collect(),
            ];
            letters
                .iter_mut()
                .for_each(|letters| letters.sort_unstable());
            assert_eq!(letters[0], letters[1], "{found}");
        }
        let found = ask("{{ {'a': [1, [], {'b': 2}]} | tojson(indent=2) }}").unwrap();
        assert_eq!(
            found,
            "{\n  \"a\": [\n    1,\n    [],\n    {\n      \"b\": 2\n    }\n  ]\n}"
        );
        for options in ["(indent=1000000)", "(separators=(1,))", "(other=1)"] {
            assert!(
                ask(&format!("{{{{ 1 | tojson{options} }}}}")).is_err(),
                "{options}"
            );
        }
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
