//! The program on a pseudo terminal: what reaches the screen.

use crate::cli::{program, stdout};
use crate::support::{golden, ModelFolder};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any of these programs needs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program whose standard streams are one terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The bytes that the terminal received, read by a thread so that the program never waits for a reader.
    screen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
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
        // The command has copies of the terminal, which would stay open with it.
        *command = Command::new("true");
        let keyboard = ours.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let bytes = screen.clone();
        let reader = std::thread::spawn(move || {
            let (mut ours, mut some) = (ours, [0; 4096]);
            // Linux reports the end as an error.
            while let Ok(count @ 1..) = ours.read(&mut some) {
                bytes.lock().unwrap().extend(&some[..count]);
            }
        });
        Self {
            child,
            keyboard,
            screen,
            reader,
        }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until the screen has received `part` that often.
    #[track_caller]
    pub fn wait_for(&self, part: &str, count: usize) {
        let start = Instant::now();
        while self.shown().matches(part).count() < count {
            let shown = self.shown();
            assert!(
                start.elapsed() < PATIENCE,
                "not {count} times {part:?} in {shown:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types `text`.
    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the end, and returns the screen's text with `\n` for the terminal's `\r\n`.
    pub fn end(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("it does not end: {:?}", self.shown());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reader.join().unwrap();
        let bytes = std::mem::take(&mut *self.screen.lock().unwrap());
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

/// A name copied from a page.
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
