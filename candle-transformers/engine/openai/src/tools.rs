//! `tools`: functions that the model may call, in the form that its chat template teaches it.
//!
//! Three forms are read: `<tool_call>{"name": …, "arguments": …}</tool_call>` of Hermes and Qwen, any number of them in a text; that of Llama 3,
//! where the whole text is `{"name": …, "parameters": …}`; and that of Mistral, where it is a list of `{"name": …, "arguments": …}`.

mod choice;
mod said;

use super::fields::Fields;
use super::{reply, ApiError};
use choice::Choice;
use serde_json::{json, Map, Value};

pub(super) use said::Said;

/// The most functions of a request.
const MAX_TOOLS: usize = 128;
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The special token before Mistral's calls, where it is text.
const LIST: &str = "[TOOL_CALLS]";

/// The functions of a request.
#[derive(Clone, Default)]
pub(super) struct Tools {
    /// As the template gets them.
    pub(super) all: Vec<Value>,
    names: Vec<String>,
    choice: Choice,
}

/// The layout of a function's fields.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Layout {
    /// In an object, `function`.
    Nested,
    /// Beside its type.
    Flat,
}

/// A text without the calls in it, and these.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
}

/// A call of a function.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    /// JSON, as a text.
    pub(super) arguments: String,
}

impl Tools {
    /// Takes `tools` and `tool_choice`.
    ///
    /// # Errors
    /// A tool that is not a function, or a choice that there is not.
    pub(super) fn take(fields: &mut Fields, layout: Layout) -> Result<Self, ApiError> {
        let given: Option<Vec<Map<String, Value>>> = fields.take("tools", "a list of tools")?;
        let given = given.unwrap_or_default();
        if given.len() > MAX_TOOLS {
            let problem = format!("found {}; the maximum is {MAX_TOOLS}", given.len());
            return Err(fields.wrong("tools", problem));
        }
        let (mut all, mut names) = (Vec::new(), Vec::new());
        for (at, mut tool) in given.into_iter().enumerate() {
            let kind = tool.remove("type");
            let function = match layout {
                Layout::Nested => tool.remove("function").unwrap_or_default(),
                Layout::Flat => Value::Object(tool),
            };
            match (
                kind.as_ref().and_then(Value::as_str),
                function["name"].as_str(),
            ) {
                (Some("function"), Some(name)) => names.push(name.to_string()),
                _ => {
                    let problem = "expected type function, and a function with a name";
                    return Err(fields.wrong(&format!("tools[{at}]"), problem));
                }
            }
            all.push(json!({ "type": "function", "function": function }));
        }
        let choice = fields.take("tool_choice", "a choice")?;
        let choice = Choice::read(fields, choice, &names, layout)?;
        match choice {
            Choice::None => Ok(Self::default()),
            choice => Ok(Self { all, names, choice }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of bytes of an unfinished text that are certainly not part of a call.
    pub(super) fn certain(&self, text: &str) -> usize {
        if self.is_empty() {
            return text.len();
        }
        let begins = text.trim_start();
        if begins.is_empty() || begins.starts_with(['{', '[']) {
            return 0;
        }
        if let Some(start) = text.find(OPEN) {
            return start;
        }
        let ends = text.char_indices().map(|it| it.0);
        let begins = |at: &usize| OPEN.starts_with(&text[*at..]);
        ends.filter(|at| text.len() - at < OPEN.len())
            .find(begins)
            .unwrap_or(text.len())
    }

    /// The calls in a text that is whole. One that is not JSON or of no known function is text.
    pub(super) fn read(&self, text: &str) -> Read {
        let none = || Read {
            text: text.to_string(),
            calls: Vec::new(),
        };
        if self.is_empty() {
            return none();
        }
        if let Some(call) = self.call(text, "parameters") {
            return Read {
                text: String::new(),
                calls: vec![call],
            };
        }
        if let Some(calls) = self.list(text) {
            return Read {
                text: String::new(),
                calls,
            };
        }
        let mut parts = text.split(OPEN);
        let mut said = parts.next().unwrap_or_default().to_string();
        let mut calls = Vec::new();
        for part in parts {
            let (inside, behind) = part.split_once(CLOSE).unwrap_or((part, ""));
            match self.call(inside, "arguments") {
                Some(call) => calls.push(call),
                None => return none(),
            }
            said.push_str(behind);
        }
        if calls.is_empty() {
            none()
        } else {
            Read {
                text: said.trim().to_string(),
                calls,
            }
        }
    }

    /// All calls of a list.
    fn list(&self, text: &str) -> Option<Vec<Call>> {
        let text = text.trim();
        let text = text.strip_prefix(LIST).unwrap_or(text);
        let all: Vec<Map<String, Value>> = serde_json::from_str(text.trim()).ok()?;
        let calls = all.iter().map(|call| self.known(call, "arguments"));
        let calls: Option<Vec<Call>> = calls.collect();
        calls.filter(|calls| !calls.is_empty())
    }

    fn call(&self, text: &str, arguments: &str) -> Option<Call> {
        let call: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
        self.known(&call, arguments)
    }

    fn known(&self, call: &Map<String, Value>, arguments: &str) -> Option<Call> {
        let name = call.get("name")?.as_str()?;
        let arguments = call.get(arguments).or_else(|| call.get("arguments"))?;
        self.names.iter().any(|known| known == name).then(|| Call {
            name: name.to_string(),
            arguments: match arguments.as_str() {
                Some(text) => text.to_string(),
                None => arguments.to_string(),
            },
        })
    }
}

/// The calls as OpenAI has them; in events each has its number.
pub(super) fn json(calls: &[Call], numbered: bool) -> Value {
    let calls = calls.iter().enumerate().map(|(at, call)| {
        let mut call = json!({
            "id": reply::id("call"), "type": "function",
            "function": { "name": call.name, "arguments": call.arguments },
        });
        if numbered {
            call["index"] = at.into();
        }
        call
    });
    calls.collect()
}

/// The calls of an assistant's message as templates see them: their arguments are values.
///
/// # Errors
/// A call without a name, or whose arguments are not JSON.
pub(super) fn said(fields: &Fields, calls: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let each = calls.into_iter().enumerate().map(|(at, mut call)| {
        let place = format!("tool_calls[{at}]");
        let function = &mut call["function"];
        if !function["name"].is_string() {
            return Err(fields.wrong(&place, "expected a function with a name"));
        }
        if let Some(text) = function["arguments"].as_str() {
            let value: Value = serde_json::from_str(text)
                .map_err(|_| fields.wrong(&place, "the arguments are not JSON"))?;
            function["arguments"] = value;
        }
        Ok(call)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        Tools {
            all: vec![Value::Null],
            names: vec!["weather".to_string()],
            choice: Choice::Auto,
        }
    }

    fn call(arguments: &str) -> Call {
        Call {
            name: "weather".to_string(),
            arguments: arguments.to_string(),
        }
    }

    #[test]
    fn calls_are_read_in_all_forms() {
        let hermes = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\"}}\n</tool_call>\n\
            <tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>";
        let found = tools().read(hermes);
        assert_eq!(found.text, "Let me see.");
        assert_eq!(found.calls, [call("{\"city\":\"Rome\"}"), call("{}")]);
        let llama = "{\"name\": \"weather\", \"parameters\": {\"days\":2}}";
        assert_eq!(tools().read(llama).calls, [call("{\"days\":2}")]);
        for list in ["", "[TOOL_CALLS] "] {
            let mistral = format!("{list}[{{\"name\": \"weather\", \"arguments\": {{\"days\":2}}}}, {{\"name\": \"weather\", \"arguments\": {{}}}}]");
            assert_eq!(
                tools().read(&mistral).calls,
                [call("{\"days\":2}"), call("{}")]
            );
        }
        for text in [
            "plain",
            "[]",
            "[{\"name\": \"other\", \"arguments\": {}}]",
            "{\"name\": \"other\", \"parameters\": {}}",
            "{\"name\": \"weather\"}",
            "<tool_call>{\"name\": \"weather\", </tool_call>",
            "<tool_call>",
        ] {
            let found = tools().read(text);
            assert_eq!((found.text.as_str(), found.calls.len()), (text, 0));
        }
        assert!(Tools::default().read(llama).calls.is_empty());
    }

    #[test]
    fn what_may_be_a_call_is_held_back() {
        for (text, certain) in [
            ("plain", 5),
            ("a <tool_call>{", 2),
            ("a <tool", 2),
            ("a < b", 5),
            ("é<", 2),
            ("{\"na", 0),
            ("[TOOL", 0),
            (" ", 0),
        ] {
            assert_eq!(tools().certain(text), certain, "{text:?}");
        }
        assert_eq!(Tools::default().certain("{"), 1);
    }
}
