//! A conversation with a model, message by message.

use crate::backend::{Completion, CompletionRequest};
use crate::engine::CandleBackend;
use crate::generation::{Seen, Wait};
use crate::model::{ChatTemplate, Message, Role};
use crate::turn::at_once;
use crate::Result;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

/// A conversation. What the model has read and said is not read again with the next message.
pub struct Chat<'a> {
    backend: Held<'a, CandleBackend>,
    template: Held<'a, ChatTemplate>,
    messages: Vec<Message>,
    seen: Option<Seen>,
    reused: usize,
}

/// A borrowed or shared value.
enum Held<'a, T> {
    Borrowed(&'a T),
    Shared(Arc<T>),
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(held) => held,
            Self::Shared(held) => held,
        }
    }
}

impl Chat<'static> {
    /// An empty conversation that shares ownership of its model, so that both can be stored in one value.
    pub fn shared(backend: Arc<CandleBackend>, template: Arc<ChatTemplate>) -> Self {
        Self {
            backend: Held::Shared(backend),
            template: Held::Shared(template),
            messages: Vec::new(),
            seen: None,
            reused: 0,
        }
    }
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
            backend: Held::Borrowed(backend),
            template: Held::Borrowed(template),
            messages,
            seen: None,
            reused: 0,
        }
    }

    /// What has been said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces all messages. The cached tokens are reused if the next prompt begins with them.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
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
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        // Blocking steps are ready on the first poll.
        at_once(self.say_steps(text, request, Wait::Blocking, on_piece))
    }

    /// As [`say`](Self::say), waiting as `wait` says: see [`CandleBackend::complete_steps`].
    ///
    /// # Errors
    /// As [`say`](Self::say).
    pub async fn say_steps(
        &mut self,
        text: &str,
        request: &CompletionRequest,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.messages.push(Message::new(Role::User, text));
        let answer = self.answer(request, wait, on_piece).await;
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

    async fn answer(
        &mut self,
        request: &CompletionRequest,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let prompt = self.template.render(&self.messages)?;
        let tokens = self.backend.chat_tokens(&prompt)?;
        let seen = self.seen.take();
        let mut generation = self.backend.go_on(seen, tokens, request)?;
        self.reused = generation.fed();
        generation.run(wait, on_piece).await?;
        let (completion, seen) = generation.finish_with_session();
        self.seen = seen;
        Ok(completion)
    }
}
