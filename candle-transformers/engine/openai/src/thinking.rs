//! What requests say of thinking, and answers with their thoughts apart.

use super::error::short;
use super::fields::Fields;
use super::ApiError;
use candle_engine::model::ChatTemplate;
use candle_engine::thinking::{Part, Splitter, Thinking, Variables};
use serde_json::{Map, Value};

/// Names that a template always gets.
const TAKEN: [&str; 5] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
];
/// The effort of thinking. `none` disables it.
const EFFORTS: [&str; 5] = ["none", "minimal", "low", "medium", "high"];
const SWITCH: &str = "enable_thinking";
const EFFORT: &str = "reasoning_effort";

/// The thinking settings of a request.
#[derive(Default)]
pub(super) struct Wanted {
    /// For the template.
    pub(super) variables: Variables,
    limit: Option<usize>,
    /// An effort that the model has to be able to make, with the field that has it.
    effort: Option<(&'static str, String)>,
}

impl Wanted {
    /// Takes `chat_template_kwargs`, `reasoning_effort`, and `thinking_budget` or `reasoning_budget`.
    ///
    /// # Errors
    /// A field of another type or out of range; a name of a variable that is taken.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut wanted = Self::without_effort(fields)?;
        let effort = fields.take::<String>(EFFORT, "a text")?;
        wanted.effort(effort, EFFORT)?;
        Ok(wanted)
    }

    /// As [`take`](Self::take), with the effort in the object `reasoning`, as responses have it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn take_reasoning(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut wanted = Self::without_effort(fields)?;
        let reasoning: Option<Map<String, Value>> = fields.take("reasoning", "an object")?;
        let mut reasoning = Fields::of("reasoning.".to_string(), reasoning.unwrap_or_default());
        let effort = reasoning.take::<String>("effort", "a text")?;
        // Thoughts are returned unchanged; there are no summaries.
        for name in ["summary", "generate_summary"] {
            reasoning.harmless(name, &["auto".into()])?;
        }
        reasoning.end()?;
        wanted.effort(effort, "reasoning.effort")?;
        Ok(wanted)
    }

    fn without_effort(fields: &mut Fields) -> Result<Self, ApiError> {
        let name = "chat_template_kwargs";
        let variables: Option<Variables> = fields.take(name, "an object")?;
        let mut variables = variables.unwrap_or_default();
        if let Some(taken) = TAKEN.iter().find(|taken| variables.contains_key(**taken)) {
            let problem = "the request sets it already; remove it from chat_template_kwargs";
            return Err(fields.wrong(&format!("{name}.{taken}"), problem));
        }
        let mut limit = None;
        for name in ["thinking_budget", "reasoning_budget"] {
            // -1 removes the limit, as in llama.cpp.
            let tokens = fields.take::<i64>(name, "a whole number of tokens")?;
            match tokens.map(usize::try_from) {
                None => {}
                Some(Ok(tokens)) => limit = Some(limit.map_or(tokens, |it: usize| it.min(tokens))),
                Some(Err(_)) if tokens == Some(-1) => {}
                Some(Err(_)) => {
                    let found = tokens.unwrap_or_default();
                    let problem = format!(
                        "{found} is out of range; expected 0 or more tokens, or -1 for no limit"
                    );
                    return Err(fields.wrong(name, problem));
                }
            }
        }
        if let Some(tokens) = limit {
            // The name that Seed-OSS's template reads.
            let budget = variables.entry("thinking_budget");
            budget.or_insert_with(|| tokens.into());
        }
        Ok(Self {
            variables,
            limit,
            effort: None,
        })
    }

    /// `chat_template_kwargs` of the request have precedence.
    fn effort(&mut self, effort: Option<String>, field: &'static str) -> Result<(), ApiError> {
        let Some(effort) = effort else {
            return Ok(());
        };
        if !EFFORTS.contains(&effort.as_str()) {
            let problem = format!(
                "{:?} is not supported; expected {}",
                short(&effort),
                EFFORTS.join(", ")
            );
            return Err(ApiError::field(field, problem));
        }
        let value = self.variables.entry(EFFORT);
        value.or_insert_with(|| effort.clone().into());
        match effort.as_str() {
            "none" => {
                self.variables.entry(SWITCH).or_insert(false.into());
            }
            _ => self.effort = Some((field, effort)),
        }
        Ok(())
    }

    /// The model's state of thinking after `prompt`, which the template has made with the variables.
    ///
    /// # Errors
    /// An effort of a model that does not think.
    pub(super) fn of(
        &self,
        template: &ChatTemplate,
        prompt: &str,
    ) -> Result<Option<Thinking>, ApiError> {
        if let Some((field, effort)) = &self.effort {
            if !template.thinks() && !template.mentions(EFFORT) {
                let problem = format!("{effort:?} is not supported: the model's chat template has no thinking; remove the field or say \"none\"");
                return Err(ApiError::field(field, problem));
            }
        }
        // A template that has no such switch is held to it all the same.
        let is_off = self.variables.get(SWITCH) == Some(&false.into());
        let limit = if is_off { Some(0) } else { self.limit };
        Ok(Thinking::of(template, prompt).map(|thinking| thinking.limited(limit)))
    }
}

/// A text that is being written, with its thoughts apart.
pub(super) struct Apart(Splitter);

/// The text so far of both.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Both {
    pub(super) thoughts: String,
    pub(super) answer: String,
}

impl From<Vec<Part>> for Both {
    fn from(parts: Vec<Part>) -> Self {
        let mut both = Self::default();
        for part in parts {
            match part {
                Part::Thought(text) => both.thoughts.push_str(&text),
                Part::Answer(text) => both.answer.push_str(&text),
            }
        }
        both
    }
}

impl Apart {
    pub(super) fn new(thinking: Option<&Thinking>) -> Self {
        Self(Splitter::new(thinking))
    }

    /// Adds a chunk, and returns the text that is certain now. Removes from `held`, the records of tokens whose text is still pending,
    /// those of thoughts.
    pub(super) fn push<T>(&mut self, piece: &str, held: &mut Vec<T>) -> Both {
        let both = Both::from(self.0.push(piece));
        if both.answer.is_empty() && self.0.is_before_answer() {
            held.clear();
        }
        both
    }

    /// The text that was held back, once nothing follows.
    pub(super) fn end(&mut self) -> Both {
        self.0.finish().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(body: &str) -> Result<Wanted, ApiError> {
        Wanted::take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn fields_become_variables_and_a_limit() {
        let found = wanted(r#"{"reasoning_effort": "none"}"#).unwrap();
        assert_eq!(found.variables["enable_thinking"], false);
        assert_eq!(found.variables["reasoning_effort"], "none");
        let found = wanted(
            r#"{"reasoning_effort": "low", "thinking_budget": 9, "reasoning_budget": -1,
                "chat_template_kwargs": {"reasoning_effort": "high", "x": [1]}}"#,
        );
        let found = found.unwrap();
        assert_eq!(found.variables["reasoning_effort"], "high");
        assert_eq!(found.variables["x"][0], 1);
        assert_eq!(found.limit, Some(9));
        let template = |source: &str| ChatTemplate::new("test", source.to_string());
        assert!(found.of(&template("<think>"), "").unwrap().is_some());
        assert!(found.of(&template("{{ x }}"), "").is_err());
        for (body, field) in [
            (
                r#"{"chat_template_kwargs": {"tools": []}}"#,
                "chat_template_kwargs.tools",
            ),
            (
                r#"{"chat_template_kwargs": {"add_generation_prompt": false}}"#,
                "chat_template_kwargs.add_generation_prompt",
            ),
            (r#"{"chat_template_kwargs": 1}"#, "chat_template_kwargs"),
            (r#"{"reasoning_effort": "much"}"#, "reasoning_effort"),
            (r#"{"thinking_budget": -2}"#, "thinking_budget"),
            (r#"{"thinking_budget": 1.5}"#, "thinking_budget"),
        ] {
            let problem = wanted(body).err().unwrap().body();
            assert_eq!(problem["error"]["param"], field, "{problem}");
        }
    }

    #[test]
    fn notes_on_thoughts_are_dropped() {
        let template = ChatTemplate::new("test", "<think>".to_string());
        let thinking = Thinking::of(&template, "").unwrap();
        let mut apart = Apart::new(Some(&thinking));
        let (mut held, mut kept, mut all) = (Vec::new(), Vec::new(), Both::default());
        let tokens = ["<think>", "a", "\n", "</think>", "\n\n", "b", " c"];
        for (at, token) in tokens.iter().enumerate() {
            held.push(at);
            let both = apart.push(token, &mut held);
            all.thoughts += &both.thoughts;
            all.answer += &both.answer;
            if !both.answer.is_empty() {
                kept.append(&mut held);
            }
        }
        assert_eq!((all.thoughts.as_str(), all.answer.as_str()), ("a", "b c"));
        assert_eq!(kept, [5, 6]);
    }
}
