//! A conversation with a model, message by message.

use crate::backend::{Completion, CompletionRequest};
use crate::engine::CandleBackend;
use crate::generation::{Seen, Wait};
use crate::model::{ChatTemplate, Message, Role};
use crate::turn::at_once;
use crate::{Error, Result};
use serde_json::Value;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

/// A conversation. What the model has read and said is not read again with the next message.
pub struct Chat<'a> {
    backend: Held<'a, CandleBackend>,
    template: Held<'a, ChatTemplate>,
    messages: Vec<Message>,
    /// The first message after the system's that the model still reads.
    first: usize,
    /// Number of positions for the prompt and the answer.
    context: usize,
    seen: Option<Seen>,
    reused: usize,
}

/// What a conversation needs, of somebody else or its own.
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
    /// A conversation in which nothing has been said, which keeps its model alive: for one that is stored beside it.
    pub fn shared(backend: Arc<CandleBackend>, template: Arc<ChatTemplate>) -> Self {
        let context = backend.max_positions();
        Self {
            backend: Held::Shared(backend),
            template: Held::Shared(template),
            messages: Vec::new(),
            first: 0,
            context,
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
            first: 0,
            context: backend.max_positions(),
            seen: None,
            reused: 0,
        }
    }

    /// Limits a prompt and its answer to `tokens` together, instead of the model's limit.
    ///
    /// # Errors
    /// 0, or more than the model's positions.
    pub fn with_context(mut self, tokens: usize) -> Result<Self> {
        check_context(tokens, self.backend.max_positions())?;
        self.context = tokens;
        Ok(self)
    }

    /// Number of tokens that a prompt and its answer may have together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// All messages, with those that the model no longer reads.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Puts `messages` in the place of what has been said. What the model has read is not read again if the next prompt begins with it.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.first = 0;
    }

    /// Number of messages at the start of the conversation that the model no longer reads, because the context is full.
    pub fn dropped(&self) -> usize {
        let system = self.messages.iter();
        let system = system.take_while(|message| message.role == Role::System);
        self.first.saturating_sub(system.count())
    }

    /// How many tokens of the last prompt were not read, because the model had seen them.
    pub fn reused_tokens(&self) -> usize {
        self.reused
    }

    /// Forgets what has been said, but for the system's message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.first = 0;
        self.seen = None;
    }

    /// Replaces the system's message, or removes it.
    ///
    /// # Errors
    /// A template that refuses it. The conversation is unchanged then.
    pub fn set_system(&mut self, text: Option<String>) -> Result<()> {
        self.template.try_conversation(text.as_deref())?;
        let before = self.messages.len();
        self.messages.retain(|message| message.role != Role::System);
        let removed = before - self.messages.len();
        if let Some(text) = text {
            self.messages.insert(0, Message::new(Role::System, text));
            // Beyond the system's messages, it counts the same messages as before.
            self.first += usize::from(self.first > 0);
        }
        self.first = self.first.saturating_sub(removed);
        self.seen = None;
        Ok(())
    }

    /// Says `text`, and lets the model answer; the answer's pieces go to `on_piece`, which can stop it. The prompt of `request` is not
    /// used. If the context is full, the model no longer reads the oldest turns, see [`Chat::dropped`].
    ///
    /// # Errors
    /// A template that cannot be rendered, a message that is longer than the context, failures of the device. Then nothing has been said.
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
        if answer.is_err() {
            self.messages.pop();
        }
        answer
    }

    /// Lets the model answer the last message again; `None` if it has not answered any.
    ///
    /// # Errors
    /// As [`Chat::say`]. The earlier answer stays then.
    pub fn regenerate(
        &mut self,
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<Completion>> {
        let Some(earlier) = self.messages.pop_if(|last| last.role == Role::Assistant) else {
            return Ok(None);
        };
        let answer = at_once(self.answer(request, Wait::Blocking, on_piece));
        if answer.is_err() {
            self.messages.push(earlier);
        }
        answer.map(Some)
    }

    /// Lets the model answer the last message.
    async fn answer(
        &mut self,
        request: &CompletionRequest,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        // After an error, nothing is known of what the model has read.
        let seen = self.seen.take();
        let (first, tokens) = self.prompt(request.max_tokens)?;
        let request = CompletionRequest {
            // The last token of the answer needs no position.
            max_tokens: request.max_tokens.min(self.context - tokens.len() + 1),
            ..request.clone()
        };
        let mut generation = self.backend.go_on(seen, tokens, &request)?;
        let reused = generation.fed();
        generation.run(wait, on_piece).await?;
        let (completion, seen) = generation.finish_with_session();
        (self.first, self.reused, self.seen) = (first, reused, seen);
        let message = Message::new(Role::Assistant, completion.text.clone());
        self.messages.push(message);
        Ok(completion)
    }

    /// The prompt's tokens, and the first message after the system's that is in it.
    fn prompt(&self, max_tokens: usize) -> Result<(usize, Vec<u32>)> {
        let system = self.messages.iter();
        let system = system.take_while(|message| message.role == Role::System);
        let system = system.count();
        let render = |first: usize| {
            let (before, after) = (&self.messages[..system], &self.messages[first..]);
            let messages: Vec<Value> = before.iter().chain(after).map(Message::json).collect();
            self.backend.all_chat_tokens(&self.template, &messages)
        };
        let first = self.first.max(system);
        let mut prompt = (first, render(first)?);
        let answer = max_tokens.min(self.context / 4);
        if prompt.1.len() + answer <= self.context {
            return Ok(prompt);
        }
        // Each drop makes the model read the rest again, so it frees room for the next messages too.
        let wanted = self.context - self.context / 4 - answer;
        for next in first + 1..self.messages.len() {
            if prompt.1.len() <= wanted {
                break;
            }
            if self.messages[next].role == Role::User {
                prompt = (next, render(next)?);
            }
        }
        match prompt.1.len() {
            tokens if tokens > self.context => Err(Error::PromptTooLong {
                tokens,
                limit: self.context,
            }),
            _ => Ok(prompt),
        }
    }
}

/// Refuses a context of 0 tokens, and one beyond the model's `limit`.
pub fn check_context(tokens: usize, limit: usize) -> Result<()> {
    match (1..=limit).contains(&tokens) {
        true => Ok(()),
        false => Err(Error::Setting {
            name: "context",
            value: tokens.to_string(),
            expected: format!("a number from 1 to the model's limit, {limit}"),
        }),
    }
}
