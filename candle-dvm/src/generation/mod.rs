//! The generation loop, one token per step, so that a browser can do other work in between.

mod writer;

pub(crate) use writer::Writer;

use crate::backend::{Completion, CompletionRequest};
use crate::engine::{CandleBackend, Session};
use crate::error::Doing;
use crate::Result;
use candle_core::{Device, Tensor};
use candle_transformers::generation::GreedyToken;

/// How a step gets a token's id from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// By blocking the thread: the step is ready when it is polled first. It is an error in a browser with a GPU.
    Blocking,
    /// By yielding to the executor.
    Async,
}

impl Wait {
    /// What fits the platform: a browser's thread must not be blocked, and natively a model has a separate thread.
    pub const HERE: Self = match cfg!(target_arch = "wasm32") {
        true => Self::Async,
        false => Self::Blocking,
    };
}

/// A session and the tokens that it has seen.
pub(crate) struct Seen<'a> {
    session: Session<'a>,
    tokens: Vec<u32>,
}

/// A completion in progress; [`CandleBackend::generation`] begins one.
pub struct Generation<'a> {
    backend: &'a CandleBackend,
    session: Session<'a>,
    writer: Writer<'a>,
    /// How many of the writer's tokens the model has seen.
    fed: usize,
    /// The next step, queued before the host knows the current token, if the choice needs nothing from the host.
    queued: Option<GreedyToken>,
}

impl CandleBackend {
    /// Begins a completion; nothing runs before its first step.
    ///
    /// # Errors
    /// A parameter out of range, a prompt without tokens or past the model's positions.
    pub fn generation(&self, request: &CompletionRequest) -> Result<Generation<'_>> {
        let tokens = self.prompt_tokens(&request.prompt)?;
        self.go_on(None, tokens, request)
    }

    /// As [`generation`](Self::generation), from the prompt's tokens. What a session has seen of them is not fed to the model again.
    pub(crate) fn go_on<'a>(
        &'a self,
        seen: Option<Seen<'a>>,
        tokens: Vec<u32>,
        request: &CompletionRequest,
    ) -> Result<Generation<'a>> {
        // At least one token has to be fed, for logits to come out.
        let seen = seen
            .filter(|seen| seen.tokens.len() < tokens.len() && tokens.starts_with(&seen.tokens));
        let fed = seen.as_ref().map_or(0, |seen| seen.tokens.len());
        Ok(Generation {
            backend: self,
            writer: Writer::new(self, tokens, request)?,
            session: seen.map_or_else(|| self.session(), |seen| seen.session),
            fed,
            queued: None,
        })
    }
}

impl<'a> Generation<'a> {
    /// Makes the next token, and gives the text that is certain now, which may be none; `None` after the end.
    ///
    /// # Errors
    /// Failures of the device.
    pub async fn step(&mut self, wait: Wait) -> Result<Option<String>> {
        if !self.writer.goes_on() {
            self.queued = None;
            return self.writer.rest();
        }
        let next = self.next_token(wait).await?;
        let piece = self.writer.push(next)?;
        if !self.writer.goes_on() {
            self.queued = None;
        }
        Ok(piece)
    }

    /// How many tokens the model has read, of the prompt and of what it made.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// Ends the completion: no step follows.
    pub fn cancel(&mut self) {
        self.writer.cancel();
        self.queued = None;
    }

    /// The completion as far as it got, and the session with the tokens that it has seen, unless it has seen one that is not known.
    pub(crate) fn finish_with_session(self) -> (Completion, Option<Seen<'a>>) {
        let mut tokens = self.writer.tokens().to_vec();
        // A step that was queued may have fed the token that ended the text.
        tokens.extend(self.writer.stop_token());
        let position = self.session.position();
        let known = position <= tokens.len();
        tokens.truncate(position);
        let session = self.session;
        let seen = known.then_some(Seen { session, tokens });
        (self.writer.finish(), seen)
    }

    /// The completion as far as it got.
    pub fn finish(self) -> Completion {
        self.writer.finish()
    }

    async fn next_token(&mut self, wait: Wait) -> Result<u32> {
        // Where the choice needs nothing from the host, the GPU need not wait for it: the next step is queued before the id of
        // this one is known.
        if !self.writer.is_plain_argmax() || self.backend.device().is_cpu() {
            return self.sampled(wait).await;
        }
        let token = match self.queued.take() {
            Some(token) => token,
            None => GreedyToken::choose(&self.feed()?).doing("choosing the next token")?,
        };
        if self.writer.has_two_steps() {
            self.queued = Some(self.session.greedy_step(token.ids())?);
        }
        let id = match wait {
            Wait::Blocking => token.wait(),
            Wait::Async => token.finish().await,
        };
        id.doing("choosing the next token")
    }

    async fn sampled(&mut self, wait: Wait) -> Result<u32> {
        let mut logits = self.feed()?;
        if wait == Wait::Async && !logits.device().is_cpu() {
            let read = logits.to_vec1_async::<f32>().await;
            logits = read
                .and_then(|read| Tensor::new(read, &Device::Cpu))
                .doing("choosing the next token")?;
        }
        self.writer.choose(&logits)
    }

    /// Feeds the tokens that the model has not seen, and gives the logits after the last of them.
    fn feed(&mut self) -> Result<Tensor> {
        let tokens = self.writer.tokens();
        let logits = self.session.forward(&tokens[self.fed..])?;
        self.fed = tokens.len();
        Ok(logits)
    }
}
