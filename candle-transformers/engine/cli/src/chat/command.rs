//! Commands that can be typed instead of messages.

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Text for the model.
    Message(&'a str),
    Help,
    Clear,
    Regenerate,
    Exit,
    /// The new system prompt; none removes it.
    System(Option<&'a str>),
    /// An image for the next message.
    Image(&'a str),
    Save(&'a str),
    Load(&'a str),
    /// Name and value; without a name, the values are listed.
    Set(Option<(&'a str, &'a str)>),
    /// A command that was mistyped, and why.
    Mistake(String),
}

/// All commands, in one line.
pub(super) const HELP: &str = "/help, /regenerate, /image FILE, /system TEXT, /save FILE, /load FILE, /set NAME VALUE, /clear starts a new conversation, \
    /exit or Ctrl-D quits, Ctrl-C stops an answer";

/// The names that `/set` takes.
pub(super) const NAMES: &str =
    "temperature, top-k, top-p, min-p, repeat-penalty, seed and max-tokens";

impl<'a> Line<'a> {
    /// Reads a line, trimmed and not empty. Text that begins with a slash and a word that is not a command is a message if more words follow.
    pub(super) fn parse(text: &'a str) -> Self {
        let Some(command) = text.strip_prefix('/') else {
            return Self::Message(text);
        };
        let (word, rest) = match command.split_once(char::is_whitespace) {
            Some((word, rest)) => (word, Some(rest.trim()).filter(|rest| !rest.is_empty())),
            None => (command, None),
        };
        let file = |line: fn(&'a str) -> Self| match rest {
            Some(file) => line(file),
            None => Self::Mistake(format!("/{word} needs a file: /{word} FILE")),
        };
        let alone = |line: Self| match rest {
            None => line,
            Some(_) => Self::Mistake(format!("/{word} takes no argument")),
        };
        match word {
            "help" => alone(Self::Help),
            "clear" => alone(Self::Clear),
            "regenerate" => alone(Self::Regenerate),
            "exit" | "quit" => alone(Self::Exit),
            "system" => Self::System(rest),
            "image" => file(Self::Image),
            "save" => file(Self::Save),
            "load" => file(Self::Load),
            "set" => match rest.map(|rest| rest.split_once(char::is_whitespace)) {
                None => Self::Set(None),
                Some(Some((name, value))) => Self::Set(Some((name, value.trim()))),
                Some(None) => Self::Mistake(format!("/set NAME VALUE: the names are {NAMES}")),
            },
            _ if rest.is_none() => Self::Mistake(format!("/{word} is not a command. {HELP}")),
            _ => Self::Message(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines() {
        for (text, line) in [
            ("hello /clear", Line::Message("hello /clear")),
            ("/etc/hosts is what?", Line::Message("/etc/hosts is what?")),
            ("/clear", Line::Clear),
            ("/quit", Line::Exit),
            ("/system", Line::System(None)),
            (
                "/system  Be brief.\nAnd kind.",
                Line::System(Some("Be brief.\nAnd kind.")),
            ),
            ("/save a b.json", Line::Save("a b.json")),
            ("/image a b.png", Line::Image("a b.png")),
            ("/set", Line::Set(None)),
            ("/set top-p  0.9", Line::Set(Some(("top-p", "0.9")))),
        ] {
            assert_eq!(Line::parse(text), line, "{text}");
        }
        for text in [
            "/save",
            "/image",
            "/load ",
            "/set x",
            "/exit now",
            "/nope",
            "/",
        ] {
            assert!(matches!(Line::parse(text), Line::Mistake(_)), "{text}");
        }
    }
}
