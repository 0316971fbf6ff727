//! The thoughts of a model on standard output.

use crate::output::print_dim;
use crate::{print, Result};
use candle_engine::chat::Chat;
use candle_engine::thinking::{no_thoughts, Part};
use std::io::IsTerminal;

/// Whether a model's thoughts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Think {
    /// Print them: dimmed on a terminal, and between <think> and </think> elsewhere
    Show,
    /// Print only how many tokens they have
    Hide,
    /// The model answers without thoughts
    Off,
}

impl Think {
    /// A conversation in which the model thinks so.
    pub(super) fn apply(self, chat: Chat<'_>) -> Chat<'_> {
        match self {
            Self::Show | Self::Hide => chat,
            Self::Off => chat.with_thinking(no_thoughts(), Some(0)),
        }
    }
}

/// Prints one answer.
pub(super) struct Printer {
    think: Think,
    to_terminal: bool,
    in_thoughts: bool,
}

impl Printer {
    pub(super) fn new(think: Think) -> Self {
        Self {
            think,
            to_terminal: std::io::stdout().is_terminal(),
            in_thoughts: false,
        }
    }

    /// # Errors
    /// Standard output cannot be written.
    pub(super) fn part(&mut self, part: &Part) -> Result<()> {
        match part {
            Part::Thought(_) if self.think != Think::Show => Ok(()),
            Part::Thought(text) => {
                if !self.in_thoughts && !self.to_terminal {
                    print("<think>\n")?;
                }
                self.in_thoughts = true;
                print_dim(text)
            }
            Part::Answer(text) => {
                if std::mem::take(&mut self.in_thoughts) {
                    print(if self.to_terminal {
                        "\n\n"
                    } else {
                        "\n</think>\n\n"
                    })?;
                }
                print(text)
            }
        }
    }
}
