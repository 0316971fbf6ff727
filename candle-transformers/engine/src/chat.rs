//! A conversation with a model, message by message.

use crate::backend::{Completion, CompletionRequest};
use crate::engine::CandleBackend;
use crate::generation::{Mask, Seen, Wait};
use crate::model::{ChatTemplate, Message, Role};
use crate::pictures::{check_shape, Picture, MAX_PICTURES};
use crate::thinking::{split, Part, Splitter, Thinking, Variables};
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
    /// Images of the next message.
    attached: Vec<Arc<Picture>>,
    /// The first message after the system's that the model still reads.
    first: usize,
    /// Number of positions for the prompt and the answer.
    context: usize,
    seen: Option<Seen>,
    reused: usize,
    /// For the template.
    variables: Variables,
    /// The most tokens of thoughts in an answer.
    thought_limit: Option<usize>,
    /// The constraint of the next answer.
    mask: Option<Box<dyn Mask>>,
}

/// The receiver of an answer.
enum Listener<'a> {
    /// The text as it is, with thoughts and their marks.
    Pieces(&'a mut dyn FnMut(&str) -> ControlFlow<()>),
    /// Thoughts and answer apart.
    Parts(&'a mut dyn FnMut(&Part) -> ControlFlow<()>),
}

/// The next prompt.
struct Prompt {
    /// The first message after the system's that is in it.
    first: usize,
    tokens: Vec<u32>,
    pictures: Vec<Arc<Picture>>,
    thinking: Option<Thinking>,
}

/// A value that a conversation borrows or owns.
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
    /// An empty conversation that keeps its model alive, so that both can be stored together.
    pub fn shared(backend: Arc<CandleBackend>, template: Arc<ChatTemplate>) -> Self {
        let context = backend.max_positions();
        Self {
            backend: Held::Shared(backend),
            template: Held::Shared(template),
            messages: Vec::new(),
            attached: Vec::new(),
            first: 0,
            context,
            seen: None,
            reused: 0,
            variables: Variables::new(),
            thought_limit: None,
            mask: None,
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

    /// A conversation that starts with `messages`, none of which the model has read yet.
    pub fn resume(
        backend: &'a CandleBackend,
        template: &'a ChatTemplate,
        messages: Vec<Message>,
    ) -> Self {
        Self {
            backend: Held::Borrowed(backend),
            template: Held::Borrowed(template),
            messages,
            attached: Vec::new(),
            first: 0,
            context: backend.max_positions(),
            seen: None,
            reused: 0,
            variables: Variables::new(),
            thought_limit: None,
            mask: None,
        }
    }

    /// With values for names that the template reads, such as `enable_thinking`, and at most `tokens` tokens of thoughts in an answer.
    pub fn with_thinking(mut self, variables: Variables, tokens: Option<usize>) -> Self {
        self.set_thinking(variables, tokens);
        self
    }

    /// As [`with_thinking`](Self::with_thinking), from the next answer on.
    pub fn set_thinking(&mut self, variables: Variables, tokens: Option<usize>) {
        self.variables = variables;
        self.thought_limit = tokens;
    }

    /// Keeps the next answer to a constraint; its thoughts have none.
    pub fn constrain_next(&mut self, mask: Box<dyn Mask>) {
        self.mask = Some(mask);
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

    /// Adds an image to the next message; how many tokens of the model it is.
    ///
    /// # Errors
    /// A model that takes no images, or none of this shape; more of them than a prompt may have.
    pub fn attach(&mut self, picture: Picture) -> Result<usize> {
        let spec = self.backend.picture_spec()?;
        check_shape(spec, &picture)?;
        let tokens = spec.tokens(picture.width(), picture.height());
        if self.attached.len() == MAX_PICTURES {
            return Err(Error::Pictures(format!("the maximum is {MAX_PICTURES}")));
        }
        self.attached.push(Arc::new(picture));
        Ok(tokens)
    }

    /// Replaces the messages by `messages`. The model does not read again what it has read, if the next prompt begins with it.
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

    /// Number of the last prompt's tokens that were not read, because the model had read them before.
    pub fn reused_tokens(&self) -> usize {
        self.reused
    }

    /// Forgets what has been said, but for the system's message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.attached.clear();
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

    /// Adds the user's `text` and generates the answer. Pieces of the answer go to `on_piece`, which can stop it; they include thoughts and
    /// their marks if the model thinks. [`messages`](Self::messages) has the answer without them. The prompt and `thinking` of `request`
    /// are not used. If the context is full, the model no longer reads the oldest turns, see [`Chat::dropped`].
    ///
    /// # Errors
    /// A template that cannot be rendered, a message that is longer than the context, failures of the device. The messages are then
    /// unchanged.
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
        self.answer_to(text, request, wait, Listener::Pieces(on_piece))
            .await
    }

    /// As [`say`](Self::say), with the thoughts and the answer apart.
    ///
    /// # Errors
    /// As [`say`](Self::say).
    pub fn say_parts(
        &mut self,
        text: &str,
        request: &CompletionRequest,
        on_part: &mut dyn FnMut(&Part) -> ControlFlow<()>,
    ) -> Result<Completion> {
        at_once(self.say_parts_steps(text, request, Wait::Blocking, on_part))
    }

    /// As [`say_parts`](Self::say_parts), waiting as `wait` says: see [`CandleBackend::complete_steps`].
    ///
    /// # Errors
    /// As [`say`](Self::say).
    pub async fn say_parts_steps(
        &mut self,
        text: &str,
        request: &CompletionRequest,
        wait: Wait,
        on_part: &mut dyn FnMut(&Part) -> ControlFlow<()>,
    ) -> Result<Completion> {
        self.answer_to(text, request, wait, Listener::Parts(on_part))
            .await
    }

    async fn answer_to(
        &mut self,
        text: &str,
        request: &CompletionRequest,
        wait: Wait,
        listener: Listener<'_>,
    ) -> Result<Completion> {
        let mut message = Message::new(Role::User, text);
        message.pictures = std::mem::take(&mut self.attached);
        self.messages.push(message);
        let answer = self.answer(request, wait, listener).await;
        if answer.is_err() {
            let unsaid = self.messages.pop();
            self.attached = unsaid.map_or_else(Vec::new, |unsaid| unsaid.pictures);
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
        self.answer_again(request, Listener::Pieces(on_piece))
    }

    /// As [`regenerate`](Self::regenerate), with the thoughts and the answer apart.
    ///
    /// # Errors
    /// As [`Chat::say`]. The earlier answer stays then.
    pub fn regenerate_parts(
        &mut self,
        request: &CompletionRequest,
        on_part: &mut dyn FnMut(&Part) -> ControlFlow<()>,
    ) -> Result<Option<Completion>> {
        self.answer_again(request, Listener::Parts(on_part))
    }

    fn answer_again(
        &mut self,
        request: &CompletionRequest,
        listener: Listener<'_>,
    ) -> Result<Option<Completion>> {
        let Some(earlier) = self.messages.pop_if(|last| last.role == Role::Assistant) else {
            return Ok(None);
        };
        let answer = at_once(self.answer(request, Wait::Blocking, listener));
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
        listener: Listener<'_>,
    ) -> Result<Completion> {
        // After an error, nothing is known of what the model has read.
        let (seen, mask) = (self.seen.take(), self.mask.take());
        let Prompt {
            first,
            tokens,
            pictures,
            thinking,
        } = self.prompt(request.max_tokens)?;
        let request = CompletionRequest {
            // The last token of the answer needs no position.
            max_tokens: request.max_tokens.min(self.context - tokens.len() + 1),
            thinking,
            pictures,
            ..request.clone()
        };
        let thinking = request.thinking.as_ref();
        let generation = self.backend.go_on(seen, tokens, &request)?;
        let mut generation = generation.with_mask(mask);
        let reused = generation.fed();
        match listener {
            Listener::Pieces(on_piece) => generation.run(wait, on_piece).await?,
            Listener::Parts(on_part) => {
                let mut splitter = Splitter::new(thinking);
                let mut hear = |parts: Vec<Part>| parts.iter().try_for_each(&mut *on_part);
                let mut on_piece = |piece: &str| hear(splitter.push(piece));
                generation.run(wait, &mut on_piece).await?;
                // The answer has ended, so there is nothing to stop.
                let _ = hear(splitter.finish());
            }
        }
        let (completion, seen) = generation.finish_with_session();
        (self.first, self.reused, self.seen) = (first, reused, seen);
        let (_, answer) = split(thinking, &completion.text);
        let message = Message::new(Role::Assistant, answer);
        self.messages.push(message);
        Ok(completion)
    }

    /// The next prompt, of messages without earlier thoughts.
    fn prompt(&self, max_tokens: usize) -> Result<Prompt> {
        let system = self.messages.iter();
        let system = system.take_while(|message| message.role == Role::System);
        let system = system.count();
        let render = |first: usize| {
            let (before, after) = (&self.messages[..system], &self.messages[first..]);
            let pictures = after.iter().flat_map(|message| &message.pictures);
            let pictures: Vec<Arc<Picture>> = pictures.cloned().collect();
            let said = before
                .iter()
                .chain(after)
                .map(|message| match message.role {
                    Role::Assistant => {
                        let (_, answer) = self.template.without_thoughts(&message.content);
                        Message::new(Role::Assistant, answer).json()
                    }
                    Role::System | Role::User => message.json(),
                });
            let said: Vec<Value> = said.collect();
            let variables = &self.variables;
            let prompt = self
                .backend
                .chat_prompt(&self.template, &said, &[], variables)?;
            let thinking = Thinking::of(&self.template, &prompt);
            let prompt = self
                .backend
                .prompt_with_pictures(&prompt, &pictures, true)?;
            Ok::<_, Error>(Prompt {
                first,
                tokens: self.backend.tokenizer().encode_chat(&prompt)?,
                pictures,
                thinking: thinking.map(|thinking| thinking.limited(self.thought_limit)),
            })
        };
        let mut prompt = render(self.first.max(system))?;
        let answer = max_tokens.min(self.context / 4);
        if prompt.tokens.len() + answer <= self.context {
            return Ok(prompt);
        }
        // Each drop makes the model read the rest again, so it frees room for the next messages too.
        let wanted = self.context - self.context / 4 - answer;
        for next in prompt.first + 1..self.messages.len() {
            if prompt.tokens.len() <= wanted {
                break;
            }
            if self.messages[next].role == Role::User {
                prompt = render(next)?;
            }
        }
        match prompt.tokens.len() {
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
    if (1..=limit).contains(&tokens) {
        Ok(())
    } else {
        Err(Error::Setting {
            name: "context",
            value: tokens.to_string(),
            expected: format!("a number from 1 to the model's limit, {limit}"),
        })
    }
}
