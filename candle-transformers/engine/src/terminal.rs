//! Text of a model or of a stranger, made safe for a terminal.
//!
//! A terminal executes control characters: it sets the clipboard and the title, moves the cursor and overwrites earlier lines. Everything
//! that the commands print goes through [`shown`], so only the program's own code can send such characters.

use std::borrow::Cow;

/// `text` as it may be written to standard output or standard error; `to_terminal` is whether a terminal reads it. A terminal gets no control
/// character (U+0000 to U+001F, U+007F to U+009F) but `\n` and `\t`; a pipe or a file gets every byte.
pub fn shown(text: &str, to_terminal: bool) -> Cow<'_, str> {
    let moves = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if to_terminal && text.contains(moves) {
        Cow::Owned(text.chars().filter(|c| !moves(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        for (text, on_terminal) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\u{1b}]52;c;cm0gLXJmIH4=\u{7}x", "]52;c;cm0gLXJmIH4=x"),
            ("\u{1b}[2J\u{1b}[Hroot# ", "[2J[Hroot# "),
            ("\u{9b}31mred\u{9d}0;t\u{9c}", "31mred0;t"),
            ("over\rwritten\u{8}\u{7f}\u{0}", "overwritten"),
            ("é 漢 🦀 \u{a0}", "é 漢 🦀 \u{a0}"),
        ] {
            assert_eq!(shown(text, true), on_terminal);
            assert_eq!(shown(text, false), text);
        }
    }
}
