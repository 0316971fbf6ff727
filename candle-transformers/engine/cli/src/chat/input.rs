//! Lines of a person or a pipe.

use crate::{Error, Result};
use candle_engine::progress::note;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Editor, Helper};
use std::io::{IsTerminal, StdinLock};

/// Opens and closes a text of several lines, as in ollama.
const QUOTE: &str = "\"\"\"";

/// Continues a text that begins with [`QUOTE`] over lines until the next one.
pub(super) struct Quoted;

impl Helper for Quoted {}
impl Highlighter for Quoted {}
impl Completer for Quoted {
    type Candidate = String;
}
impl Hinter for Quoted {
    type Hint = String;
}
impl Validator for Quoted {
    fn validate(&self, line: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let open = line.input().trim_start().strip_prefix(QUOTE);
        Ok(if open.is_some_and(|text| !text.contains(QUOTE)) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

/// The text between two [`QUOTE`]s, or all of it if there are none.
fn unquoted(text: String) -> String {
    let inner = text.trim().strip_prefix(QUOTE);
    match inner.and_then(|inner| inner.strip_suffix(QUOTE)) {
        Some(inner) => inner.trim().to_string(),
        None => text,
    }
}

/// The source of messages.
pub(super) enum Input {
    /// A terminal, with line editing and a history of this conversation. A pasted text is one message, whatever line breaks it has.
    Editor(Box<Editor<Quoted, DefaultHistory>>),
    /// A pipe or a file, one message per line.
    Lines(std::io::Lines<StdinLock<'static>>),
}

impl Input {
    pub(super) fn open() -> Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines(std::io::stdin().lines()));
        }
        // Standard output has the answers: if it is a file, the editor draws on the terminal itself.
        let behavior = if std::io::stdout().is_terminal() {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .behavior(behavior)
            .auto_add_history(true)
            .build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Quoted));
        Ok(Self::Editor(Box::new(editor)))
    }

    /// The next line, or several if they were pasted or typed as one; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        let editor = match self {
            Self::Lines(lines) => return lines.next().transpose().map_err(Error::Stdin),
            Self::Editor(editor) => editor,
        };
        let mut interrupted = false;
        loop {
            match editor.readline("> ") {
                Ok(text) => return Ok(Some(unquoted(text))),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) if interrupted => std::process::exit(130),
                Err(ReadlineError::Interrupted) => {
                    interrupted = true;
                    note("press Ctrl-C again or Ctrl-D to quit");
                }
                // The window has another size.
                Err(ReadlineError::Signal(_)) => {}
                Err(err) => return Err(failed(err)),
            }
        }
    }
}

fn failed(err: ReadlineError) -> Error {
    Error::Stdin(match err {
        ReadlineError::Io(err) => err,
        err => std::io::Error::other(err),
    })
}
