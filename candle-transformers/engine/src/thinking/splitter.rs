//! Splits a stream of text into thoughts and answer, independently of how the stream is cut into pieces.

use super::format::{At, Format, Thinking, ANALYSIS, CHANNEL, END, MESSAGE};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A part of the thoughts.
    Thought(String),
    /// A part of the answer.
    Answer(String),
}

/// Splits a text as its pieces arrive. Neither part contains the marks or the white space between them and the text. Text is held back only
/// while it may be the beginning of a mark, with the white space before one.
///
/// Without [`Thinking`], each piece is a part of the answer, unchanged.
#[derive(Clone, Debug)]
pub struct Splitter {
    format: Option<Format>,
    state: State,
    /// Text that is not decided yet.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    /// In the name of a channel.
    Header,
    /// In thoughts; `begun` if they have text.
    Thoughts { begun: bool },
    /// Between two messages of channels.
    Between,
    /// In an answer after thoughts; `begun` if it has text.
    Answer { begun: bool },
    /// In a text in which no mark follows.
    Plain,
}

impl Splitter {
    /// For the text that follows a prompt.
    pub fn new(thinking: Option<&Thinking>) -> Self {
        let state = match thinking.map(|thinking| thinking.at) {
            None | Some(At::Answer) => State::Plain,
            Some(At::Start) => State::Start,
            Some(At::Thoughts) => State::Thoughts { begun: false },
        };
        Self {
            format: thinking.map(|thinking| thinking.format),
            state,
            held: String::new(),
        }
    }

    /// Whether what comes next is thoughts or marks.
    pub fn is_thinking(&self) -> bool {
        matches!(
            self.state,
            State::Header | State::Thoughts { .. } | State::Between
        )
    }

    /// Whether no text of an answer has come, and none is held back.
    pub fn is_before_answer(&self) -> bool {
        self.is_thinking() || self.state == State::Answer { begun: false }
    }

    /// Whether nothing has decided yet if the text has thoughts.
    pub(super) fn is_undecided(&self) -> bool {
        self.state == State::Start
    }

    /// Whether what comes next is a thought.
    pub(super) fn is_in_thoughts(&self) -> bool {
        matches!(self.state, State::Thoughts { .. })
    }

    /// Decides that the text has no thoughts.
    pub(super) fn answer_now(&mut self) {
        if self.state == State::Start {
            self.state = State::Plain;
        }
    }

    /// Adds the next piece, and returns the parts that are certain now.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// The text that was held back, once there are no more pieces.
    pub fn finish(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        let part = match self.state {
            State::Thoughts { begun: true } => Part::Thought(rest.trim_end().to_string()),
            State::Thoughts { begun: false } => Part::Thought(rest.trim().to_string()),
            State::Answer { .. } | State::Start | State::Plain => Part::Answer(rest),
            // The beginning of a channel's name, or what is between messages.
            State::Header | State::Between => return Vec::new(),
        };
        let is_empty = match &part {
            Part::Thought(text) | Part::Answer(text) => text.is_empty(),
        };
        if is_empty {
            Vec::new()
        } else {
            vec![part]
        }
    }

    /// Takes what is certain from the held text; whether there may be more.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(format) = self.format else {
            return self.give_all(parts);
        };
        match self.state {
            State::Plain => self.give_all(parts),
            State::Start => {
                let text = self.held.trim_start();
                let open = format.opens();
                if text.starts_with(open) {
                    let mark = self.held.len() - text.len() + open.len();
                    self.held.drain(..mark);
                    self.state = match format {
                        Format::Tags { .. } => State::Thoughts { begun: false },
                        Format::Channels => State::Header,
                    };
                    return true;
                }
                if open.starts_with(text) {
                    return false;
                }
                self.state = State::Plain;
                true
            }
            State::Header => {
                let Some((name, rest)) = self.held.split_once(MESSAGE) else {
                    return false;
                };
                self.state = if name.split_whitespace().next() == Some(ANALYSIS) {
                    State::Thoughts { begun: false }
                } else {
                    State::Answer { begun: false }
                };
                self.held = rest.to_string();
                true
            }
            State::Between => {
                let Some((_, rest)) = self.held.split_once(CHANNEL) else {
                    return false;
                };
                self.held = rest.to_string();
                self.state = State::Header;
                true
            }
            State::Thoughts { begun } => {
                let (mark, next) = match format {
                    Format::Tags { close, .. } => (close, State::Answer { begun: false }),
                    Format::Channels => (END, State::Between),
                };
                self.give_until(mark, begun, next, parts)
            }
            State::Answer { begun } => match format {
                Format::Tags { .. } => {
                    if !begun {
                        self.held
                            .drain(..self.held.len() - self.held.trim_start().len());
                    }
                    if !self.held.is_empty() {
                        self.state = State::Plain;
                    }
                    !self.held.is_empty()
                }
                Format::Channels => self.give_until(END, begun, State::Between, parts),
            },
        }
    }

    fn give_all(&mut self, parts: &mut Vec<Part>) -> bool {
        if !self.held.is_empty() {
            parts.push(Part::Answer(std::mem::take(&mut self.held)));
        }
        false
    }

    /// Gives the text before `mark`, without white space around it, and what is certain to be before one.
    fn give_until(&mut self, mark: &str, begun: bool, next: State, parts: &mut Vec<Part>) -> bool {
        let is_thought = self.is_in_thoughts();
        if !begun {
            self.held
                .drain(..self.held.len() - self.held.trim_start().len());
        }
        let (given, found) = match self.held.find(mark) {
            Some(at) => (self.held[..at].trim_end().len(), Some(at + mark.len())),
            None => {
                let text = &self.held[..self.held.len() - overlap(&self.held, mark)];
                (text.trim_end().len(), None)
            }
        };
        let text = self.held[..given].to_string();
        self.held.drain(..found.unwrap_or(given));
        if !text.is_empty() {
            self.state = if is_thought {
                State::Thoughts { begun: true }
            } else {
                State::Answer { begun: true }
            };
            parts.push(if is_thought {
                Part::Thought(text)
            } else {
                Part::Answer(text)
            });
        }
        if found.is_some() {
            self.state = next;
        }
        found.is_some()
    }
}

/// The thoughts and the answer of a whole text.
pub fn split(thinking: Option<&Thinking>, text: &str) -> (String, String) {
    whole(Splitter::new(thinking), text)
}

/// As [`split`], of a text that has all its marks.
pub(super) fn split_marked(format: Format, text: &str) -> (String, String) {
    let splitter = Splitter {
        format: Some(format),
        state: State::Start,
        held: String::new(),
    };
    whole(splitter, text)
}

fn whole(mut splitter: Splitter, text: &str) -> (String, String) {
    let mut parts = splitter.push(text);
    parts.extend(splitter.finish());
    let (mut thoughts, mut answer) = (String::new(), String::new());
    for part in parts {
        match part {
            Part::Thought(text) => thoughts.push_str(&text),
            Part::Answer(text) => answer.push_str(&text),
        }
    }
    (thoughts, answer)
}

/// Number of bytes at the end of `text` that are a proper prefix of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let ends = mark.char_indices().map(|(at, _)| at);
    ends.rev()
        .find(|end| text.ends_with(&mark[..*end]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ChatTemplate;

    fn thinking(source: &str, prompt: &str) -> Thinking {
        Thinking::of(&ChatTemplate::new("test", source.to_string()), prompt).unwrap()
    }

    /// All parts of the text in these pieces, neighbours of one kind joined.
    fn parts(thinking: Option<&Thinking>, pieces: &[&str]) -> (String, String) {
        let mut splitter = Splitter::new(thinking);
        let (mut thoughts, mut answer) = (String::new(), String::new());
        let mut all: Vec<Part> = pieces.iter().flat_map(|it| splitter.push(it)).collect();
        all.extend(splitter.finish());
        for part in all {
            match part {
                Part::Thought(text) => thoughts.push_str(&text),
                Part::Answer(text) => answer.push_str(&text),
            }
        }
        (thoughts, answer)
    }

    const THINK: &str = "<think></think>";
    const CHANNELS: &str = "<|channel|>analysis";

    /// Template, end of the prompt, text, thoughts, answer.
    const CASES: [[&str; 5]; 15] = [
        [THINK, "", "<think>\né a\n</think>\n\nb ü\n", "é a", "b ü\n"],
        [THINK, "", "\n<think>a</think>b", "a", "b"],
        [THINK, "", "<think></think>b", "", "b"],
        [THINK, "", "<think>a </thin> < b</think>c</think>", "a </thin> < b", "c</think>"],
        // Without thoughts the text is what it is.
        [THINK, "", " \nb <think> c ", "", " \nb <think> c "],
        [THINK, "", "<thin", "", "<thin"],
        [THINK, "", " ", "", " "],
        // Begun by the prompt, and never ended.
        [THINK, "<think>\n", "é a\n</think>\n\nb", "é a", "b"],
        [THINK, "<think>\n", "a\n\nc </th", "a\n\nc </th", ""],
        [THINK, "<think>\n\n</think>\n\n", "\nb</think>", "", "\nb</think>"],
        ["[THINK]", "", "[THINK]a[/THINK]b", "a", "b"],
        [
            CHANNELS,
            "",
            "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>final<|message|>c",
            "a < b",
            "c",
        ],
        [CHANNELS, "", "<|channel|>final<|message|>c", "", "c"],
        [CHANNELS, "", "<|channel|>analysis<|message|>a", "a", ""],
        [CHANNELS, "", "c <|channel|>", "", "c <|channel|>"],
    ];

    #[test]
    fn marks_may_be_cut_anywhere() {
        for [source, prompt, text, thoughts, answer] in CASES {
            let thinking = thinking(source, prompt);
            let expected = (thoughts.to_string(), answer.to_string());
            assert_eq!(split(Some(&thinking), text), expected, "{text:?}");
            let borders: Vec<usize> = text.char_indices().map(|it| it.0).collect();
            for (at, first) in borders.iter().enumerate() {
                for second in &borders[at..] {
                    let pieces = [&text[..*first], &text[*first..*second], &text[*second..]];
                    assert_eq!(parts(Some(&thinking), &pieces), expected, "{pieces:?}");
                }
            }
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(parts(Some(&thinking), &letters), expected, "{text:?}");
        }
    }

    #[test]
    fn models_without_thoughts_say_what_they_say() {
        let mut splitter = Splitter::new(None);
        for piece in [" ", "<think>", "a\n", "</think>", "<|channel|>"] {
            assert_eq!(splitter.push(piece), [Part::Answer(piece.to_string())]);
        }
        assert_eq!(splitter.finish(), []);
    }

    #[test]
    fn no_more_is_held_back_than_may_be_a_mark() {
        let thinking = thinking(THINK, "<think>\n");
        let mut splitter = Splitter::new(Some(&thinking));
        let thought = |text: &str| vec![Part::Thought(text.to_string())];
        assert_eq!(splitter.push("a <"), thought("a"));
        assert_eq!(splitter.push(" b"), thought(" < b"));
        assert_eq!(splitter.push("\n</think"), []);
        assert!(splitter.is_thinking());
        assert_eq!(splitter.push(">"), []);
        assert!(!splitter.is_thinking());
        assert_eq!(splitter.push("\n\n"), []);
        assert_eq!(splitter.push("c <"), [Part::Answer("c <".to_string())]);
    }
}
