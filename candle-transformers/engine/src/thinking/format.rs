//! The marks of a model's thoughts, by its chat template.

use super::splitter::split_marked;
use crate::model::ChatTemplate;
use serde_json::{Map, Value};

/// Values for the names that a chat template reads, in addition to messages and tools, such as `enable_thinking`.
pub type Variables = Map<String, Value>;

/// The values with which templates have a model answer without thoughts, if they have such a switch. A limit of 0 tokens holds the
/// others to it.
pub fn no_thoughts() -> Variables {
    let mut variables = Variables::new();
    variables.insert("enable_thinking".to_string(), false.into());
    variables.insert("reasoning_effort".to_string(), "none".into());
    variables
}

/// The marks of thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Between two marks, at the beginning of the text.
    Tags {
        open: &'static str,
        close: &'static str,
    },
    /// Messages with a channel each, as gpt-oss writes them: thoughts are in `analysis`.
    Channels,
}

/// The marks of Qwen3, DeepSeek-R1, GLM-4.5 and most others; of Magistral; of Seed-OSS; of Command A.
const TAGS: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// The marks of channels.
pub(super) const START: &str = "<|start|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
/// The channel of thoughts.
pub(super) const ANALYSIS: &str = "analysis";
/// From thoughts to the answer.
const TO_FINAL: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// The state at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Before thoughts, which may come or not.
    Start,
    /// In thoughts: the prompt has opened them.
    Thoughts,
    /// In the answer: the prompt has opened thoughts and closed them.
    Answer,
}

/// A model's way of thinking, and the constraints on its next text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    pub(super) format: Format,
    pub(super) at: At,
    pub(super) limit: Option<usize>,
    pub(super) answer_begins: String,
}

impl Format {
    fn of(template: &str) -> Option<Self> {
        if template.contains(CHANNEL) && template.contains(ANALYSIS) {
            return Some(Self::Channels);
        }
        let tags = TAGS.into_iter();
        let mut tags = tags.filter(|(open, close)| {
            // A template may only cut thoughts off by their end.
            template.contains(open) || template.contains(close)
        });
        tags.next().map(|(open, close)| Self::Tags { open, close })
    }

    /// The texts that are marks even where the tokenizer hides special tokens.
    pub(super) fn marks(self) -> &'static [&'static str] {
        const ALL: [&[&str]; 4] = [
            &[TAGS[0].0, TAGS[0].1],
            &[TAGS[1].0, TAGS[1].1],
            &[TAGS[2].0, TAGS[2].1],
            &[TAGS[3].0, TAGS[3].1],
        ];
        match self {
            Self::Tags { open, .. } => {
                let at = TAGS.iter().position(|tags| tags.0 == open);
                at.map_or(&[], |at| ALL[at])
            }
            Self::Channels => &[START, CHANNEL, MESSAGE, END],
        }
    }

    /// The mark that begins a text with thoughts.
    pub(super) fn opens(self) -> &'static str {
        match self {
            Self::Tags { open, .. } => open,
            Self::Channels => CHANNEL,
        }
    }

    /// The mark between thoughts and the answer.
    pub(super) fn closes(self) -> String {
        match self {
            Self::Tags { close, .. } => format!("\n{close}\n\n"),
            Self::Channels => TO_FINAL.to_string(),
        }
    }
}

impl Thinking {
    /// The state of thinking of a model with this template after a prompt that the template has made; `None` if the template marks no
    /// thoughts.
    pub fn of(template: &ChatTemplate, prompt: &str) -> Option<Self> {
        let format = Format::of(template.source())?;
        let prompt = prompt.trim_end();
        let at = match format {
            Format::Tags { open, .. } if prompt.ends_with(open) => At::Thoughts,
            Format::Tags { close, .. } if prompt.ends_with(close) => At::Answer,
            Format::Tags { .. } | Format::Channels => At::Start,
        };
        Some(Self {
            format,
            at,
            limit: None,
            answer_begins: String::new(),
        })
    }

    /// Limits thoughts to `tokens` tokens, after which the mark of their end is inserted into the text; `None` for no limit.
    pub fn limited(self, tokens: Option<usize>) -> Self {
        Self {
            // Without a limit, the device alone can choose tokens.
            limit: tokens.filter(|_| self.is_on()),
            ..self
        }
    }

    /// Adds a text that begins an answer after thoughts.
    pub fn answer_beginning(self, text: &str) -> Self {
        Self {
            answer_begins: text.to_string(),
            ..self
        }
    }

    /// The texts of the marks.
    pub(crate) fn marks(&self) -> &'static [&'static str] {
        self.format.marks()
    }

    /// Whether the next text may have thoughts: the prompt has not closed them.
    pub fn is_on(&self) -> bool {
        self.at != At::Answer
    }

    /// Whether the prompt has begun thoughts, so that the next text has them.
    pub fn has_begun(&self) -> bool {
        self.at == At::Thoughts
    }

    /// Whether tokens may be put into the text: then the device alone cannot choose them.
    pub(crate) fn puts_tokens(&self) -> bool {
        self.limit.is_some() || !self.answer_begins.is_empty()
    }
}

impl ChatTemplate {
    /// Whether the template marks thoughts.
    pub fn thinks(&self) -> bool {
        Format::of(self.source()).is_some()
    }

    /// Whether the template has this word in it, such as the name of a variable.
    pub fn mentions(&self, name: &str) -> bool {
        self.source().contains(name)
    }

    /// An earlier text of the model without its thoughts, and these. A text that does not begin with thoughts is unchanged, as is any text of a
    /// template that marks none.
    pub fn without_thoughts(&self, text: &str) -> (Option<String>, String) {
        match Format::of(self.source()) {
            Some(format) if text.trim_start().starts_with(format.opens()) => {
                let (thoughts, answer) = split_marked(format, text);
                (Some(thoughts), answer)
            }
            _ => (None, text.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new("test", source.to_string())
    }

    #[test]
    fn formats_are_recognised_by_the_template_and_the_prompt() {
        let at = |source: &str, prompt: &str| {
            Thinking::of(&template(source), prompt).map(|it| (it.format.opens(), it.at))
        };
        assert_eq!(at("{{ messages }}", "user<think>"), None);
        let qwen = "{% if '</think>' in content %}{% endif %}<think>\n\n</think>";
        assert_eq!(
            at(qwen, "<|im_start|>assistant\n"),
            Some(("<think>", At::Start))
        );
        assert_eq!(
            at(qwen, "assistant\n<think>\n\n</think>\n\n"),
            Some(("<think>", At::Answer))
        );
        let r1 = "{{ content.split('</think>')[-1] }}";
        assert_eq!(at(r1, "Assistant"), Some(("<think>", At::Start)));
        assert_eq!(
            at(r1, "Assistant<think>\n"),
            Some(("<think>", At::Thoughts))
        );
        assert_eq!(
            at("[THINK]{{ x }}[/THINK]", "[/INST]"),
            Some(("[THINK]", At::Start))
        );
        let channels = "<|channel|>analysis<|message|>";
        assert_eq!(
            at(channels, "<|start|>assistant"),
            Some(("<|channel|>", At::Start))
        );
    }

    #[test]
    fn thoughts_of_earlier_answers_are_cut_off() {
        let think = template("<think>");
        for (text, thoughts, answer) in [
            ("<think>\na\n</think>\n\nb", Some("a"), "b"),
            ("\n<think>a</think>b </think>", Some("a"), "b </think>"),
            ("<think>a", Some("a"), ""),
            ("write <think>a</think>", None, "write <think>a</think>"),
            (" b\n", None, " b\n"),
            ("", None, ""),
        ] {
            let found = think.without_thoughts(text);
            assert_eq!(
                (found.0.as_deref(), found.1.as_str()),
                (thoughts, answer),
                "{text:?}"
            );
        }
        let channels = template("<|channel|>analysis");
        let text =
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b";
        assert_eq!(
            channels.without_thoughts(text),
            (Some("a".to_string()), "b".to_string())
        );
        let plain = template("{{ messages }}");
        let text = "<think>a</think>b";
        assert_eq!(plain.without_thoughts(text), (None, text.to_string()));
    }
}
