//! Conversations with models that think. The embedded model does not: the templates open thoughts in the prompt.

use super::{chat, FIRST, SECOND};
use crate::cli::stdout;
use crate::support::{embedded, ModelFolder};
#[cfg(unix)]
use crate::terminal::Terminal;
use candle_engine::thinking::{Part, Variables};
use candle_engine::{Chat, ChatTemplate, CompletionRequest, DeviceKind, Message, Role};
use std::ops::ControlFlow;

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}<think>\n";

fn request() -> CompletionRequest {
    CompletionRequest {
        max_tokens: 40,
        logit_bias: vec![(1, -100.0)],
        ..CompletionRequest::default()
    }
}

/// Thoughts are heard and then forgotten; what is read again is the answer.
#[test]
fn messages_do_not_contain_thoughts() {
    let backend = embedded(DeviceKind::Cpu);
    let template = ChatTemplate::new("test", TEMPLATE.to_string());
    let mut talk = Chat::new(backend, &template, None).with_thinking(Variables::new(), Some(6));
    let (mut thoughts, mut answer) = (String::new(), String::new());
    let said = talk.say_parts(FIRST, &request(), &mut |part| {
        match part {
            Part::Thought(text) => thoughts.push_str(text),
            Part::Answer(text) => answer.push_str(text),
        }
        ControlFlow::Continue(())
    });
    let said = said.unwrap();
    assert!(
        said.thought_tokens > 6 && said.thought_tokens < 20,
        "{said:?}"
    );
    assert!(!thoughts.is_empty() && !answer.is_empty(), "{said:?}");
    assert!(
        said.text.contains(&thoughts) && said.text.contains("</think>"),
        "{said:?}"
    );
    let kept = vec![
        Message::new(Role::User, FIRST),
        Message::new(Role::Assistant, &answer),
    ];
    assert_eq!(talk.messages(), kept);
    // A conversation that was kept with its thoughts is read as one without.
    let marked = Message::new(Role::Assistant, format!("<think>\nx\n</think>\n\n{answer}"));
    let whole = vec![kept[0].clone(), marked];
    let next = |messages: Vec<Message>| {
        let resumed = Chat::resume(backend, &template, messages);
        let mut resumed = resumed.with_thinking(Variables::new(), Some(6));
        let said = resumed.say(SECOND, &request(), &mut |_| ControlFlow::Continue(()));
        said.unwrap()
    };
    let (plain, marked) = (next(kept), next(whole));
    assert_eq!(
        (plain.prompt_tokens, &plain.text),
        (marked.prompt_tokens, &marked.text)
    );
    let again = talk.say(SECOND, &request(), &mut |_| ControlFlow::Continue(()));
    assert_eq!(again.unwrap().text, plain.text);
    // What was before the thoughts is not read again.
    assert!(talk.reused_tokens() > 3, "{}", talk.reused_tokens());
}

#[test]
fn thoughts_are_shown_hidden_or_off() {
    let folder = ModelFolder::new();
    folder.write("chat_template.jinja", TEMPLATE);
    // Nothing ends the text before the limit.
    for file in ["config.json", "generation_config.json"] {
        folder.edit(file, |config| config["eos_token_id"] = 4095.into());
    }
    let path = folder.path().to_str().unwrap();
    let with = |think: &[&str]| {
        let args = [&["--model", path, "--max-tokens", "24"], think].concat();
        let output = chat(&args, &format!("{FIRST}\n"));
        let notes = String::from_utf8(output.stderr.clone()).unwrap();
        (stdout(&output), notes)
    };
    let (shown, notes) = with(&[]);
    assert!(
        shown.starts_with("<think>\n") && shown.len() > 20,
        "{shown:?}"
    );
    assert!(!notes.contains("thought for"), "{notes}");
    let (hidden, notes) = with(&["--think", "hide"]);
    assert_eq!(hidden, "\n");
    assert!(notes.contains("the model thought for 24 tokens"), "{notes}");
    let (off, notes) = with(&["--think", "off"]);
    assert!(off.len() > 20 && !off.contains("think>"), "{off:?}");
    assert!(!notes.contains("thought for"), "{notes}");
}

#[cfg(unix)]
#[test]
fn thoughts_are_dimmed_on_a_terminal() {
    let folder = ModelFolder::new();
    folder.write("chat_template.jinja", TEMPLATE);
    let path = folder.path().to_str().unwrap();
    let args = [
        "chat",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "6",
        "--model",
        path,
    ];
    let mut terminal = Terminal::start(crate::cli::program(&args).env("TERM", "xterm"));
    let ready = "\u{1b}[?2004h";
    terminal.wait_for(ready, 1);
    terminal.types("fn main() {\r");
    terminal.wait_for(ready, 2);
    terminal.types("/exit\r");
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown:?}");
    assert!(
        shown.contains("\u{1b}[2m") && shown.contains("\u{1b}[0m"),
        "{shown:?}"
    );
    assert!(!shown.contains("<think>"), "{shown:?}");
}
