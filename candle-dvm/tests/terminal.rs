//! The program on a pseudo terminal: what reaches the screen.

use crate::cli::{program, stdout};
use crate::support::{golden, ModelFolder};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};

/// A program whose standard streams are one terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The bytes that the terminal received, read by a thread so that the program never waits for a reader.
    screen: std::thread::JoinHandle<Vec<u8>>,
}

impl Terminal {
    pub fn start(command: &mut Command) -> Self {
        let pair = nix::pty::openpty(None, None).unwrap();
        let (ours, theirs) = (File::from(pair.master), File::from(pair.slave));
        let child = command
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs)
            .spawn()
            .unwrap();
        // The command keeps copies of the terminal, which would keep it open.
        *command = Command::new("true");
        let keyboard = ours.try_clone().unwrap();
        let screen = std::thread::spawn(move || {
            let (mut ours, mut bytes, mut some) = (ours, Vec::new(), [0; 4096]);
            // Linux reports the end as an error.
            while let Ok(count @ 1..) = ours.read(&mut some) {
                bytes.extend(&some[..count]);
            }
            bytes
        });
        Self {
            child,
            keyboard,
            screen,
        }
    }

    /// Types `text`.
    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the end, and returns the screen's text with `\n` for the terminal's `\r\n`.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let bytes = self.screen.join().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        (status, text.replace("\r\n", "\n"))
    }
}

/// No control character but line breaks and tabs.
#[track_caller]
pub fn assert_no_control(shown: &str) {
    let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!shown.contains(control), "{shown:?}");
}

/// A model that writes an escape sequence for each space.
#[test]
fn a_model_does_not_control_the_terminal() {
    let prompt = &golden().prompts[0];
    assert!(prompt.greedy_text.contains(' '));
    let folder = ModelFolder::new();
    folder.edit("tokenizer.json", |tokenizer| {
        let replace = json!({
            "type": "Replace",
            "pattern": { "String": " " },
            "content": "\u{1b}]0;owned\u{7}\u{9b}2J",
        });
        let inner = tokenizer["decoder"].take();
        tokenizer["decoder"] = json!({ "type": "Sequence", "decoders": [inner, replace] });
    });
    folder.write("chat_template.jinja", "{{ messages[0].content }}");
    let args = |command| {
        let path = folder.path().to_str().unwrap();
        let args = [command, "--device", "cpu", "--max-tokens", "24", "--model"];
        [&args[..], &[path]]
            .concat()
            .into_iter()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    let generate = [
        args("generate"),
        vec!["--prompt".into(), prompt.text.clone()],
    ]
    .concat();
    let generate: Vec<&str> = generate.iter().map(String::as_str).collect();
    let raw = stdout(&program(&generate).output().unwrap());
    assert!(raw.contains("\u{1b}]0;owned\u{7}\u{9b}2J"), "{raw:?}");
    let (status, shown) = Terminal::start(&mut program(&generate)).end();
    assert!(status.success(), "{shown:?}");
    assert!(shown.contains("]0;owned2J"), "{shown:?}");
    // The progress bar moves the cursor, on standard error.
    let text: String = raw
        .chars()
        .filter(|c| !c.is_control() || *c == '\n')
        .collect();
    assert!(shown.contains(&text), "{text:?} is not in {shown:?}");
    assert!(!shown.contains("\u{1b}]0;owned"), "{shown:?}");
    assert!(
        !shown.contains('\u{7}') && !shown.contains('\u{9b}'),
        "{shown:?}"
    );
}

/// A name that somebody copied from a page.
#[test]
fn an_error_does_not_control_the_terminal() {
    let name = "\u{1b}]0;owned\u{7}\u{1b}[2J/x";
    for args in [
        ["generate", "--prompt", "a", "--model", name],
        ["embed", "a", "b", "--model", name],
    ] {
        let (status, shown) = Terminal::start(&mut program(&args)).end();
        assert_eq!(status.code(), Some(1), "{shown:?}");
        assert!(shown.contains("]0;owned[2J/x"), "{shown:?}");
        assert_no_control(&shown);
    }
}
