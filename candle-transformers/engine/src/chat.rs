//! A conversation with a model, message by message.

use crate::backend::{Completion, CompletionRequest};
use crate::engine::CandleBackend;
use crate::generation::{Seen, Wait};
use crate::model::{ChatTemplate, Message, Role};
use crate::turn::at_once;
use crate::Result;
use std::ops::ControlFlow;

/// A conversation. What the model has read and said is not read again with the next message.
pub struct Chat<'a> {
    backend: &'a CandleBackend,
    template: &'a ChatTemplate,
    messages: Vec<Message>,
    seen: Option<Seen<'a>>,
    reused: usize,
}

impl<'a> Chat<'a> {
    /// A conversation in which nothing has been said but `system`, if there is one.
    pub fn new(
        backend: &'a CandleBackend,
        template: &'a ChatTemplate,
        system: Option<String>,
    ) -> Self {
        let system = system.map(|text| Message::new(Role::System, text));
        Self::resume(backend, template, system.into_iter().collect())
    }

    /// A conversation in which `messages` have been said, none of which the model has read yet.
    pub fn resume(
        backend: &'a CandleBackend,
        template: &'a ChatTemplate,
        messages: Vec<Message>,
    ) -> Self {
        Self {
            backend,
            template,
            messages,
            seen: None,
            reused: 0,
        }
    }

    /// What has been said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// How many tokens of the last prompt were not read, because the model had seen them.
    pub fn reused_tokens(&self) -> usize {
        self.reused
    }

    /// Forgets what has been said, but for the system's message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.seen = None;
    }

    /// Says `text`, and lets the model answer; the answer's pieces go to `on_piece`, which can stop it. The prompt of `request` is not
    /// looked at.
    ///
    /// # Errors
    /// A template that cannot be rendered, a conversation that is longer than the model's positions, failures of the device. Then
    /// nothing has been said.
    pub fn say(
        &mut self,
        text: &str,
        request: &'a CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.messages.push(Message::new(Role::User, text));
        let answer = self.answer(request, on_piece);
        match &answer {
            Ok(answer) => {
                let message = Message::new(Role::Assistant, answer.text.clone());
                self.messages.push(message);
            }
            Err(_) => {
                self.messages.pop();
                self.seen = None;
            }
        }
        answer
    }

    fn answer(
        &mut self,
        request: &'a CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let messages: Vec<_> = self.messages.iter().map(Message::json).collect();
        let tokens = self.backend.chat_tokens(self.template, &messages, &[])?;
        let mut generation = self.backend.go_on(self.seen.take(), tokens, request)?;
        self.reused = generation.fed();
        while let Some(piece) = at_once(generation.step(Wait::Blocking))? {
            if !piece.is_empty() && on_piece(&piece).is_break() {
                generation.cancel();
            }
        }
        let (completion, seen) = generation.finish_with_session();
        self.seen = seen;
        Ok(completion)
    }
}
