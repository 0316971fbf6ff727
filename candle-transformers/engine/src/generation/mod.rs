//! The generation loop, one token per step, so that a browser can do other work in between.

mod choices;
mod chosen;
#[cfg(feature = "grammar")]
mod grammar;
mod mask;
mod speculation;
mod writer;

pub(crate) use choices::{Choice, Choices, Queued};
pub(crate) use chosen::Chosen;
pub use mask::Mask;
pub(crate) use speculation::{DraftModel, Drafter, ParkedDrafter, Round, Speculation, MOST};
pub(crate) use writer::Writer;

use crate::backend::{Completion, CompletionRequest};
use crate::engine::{CandleBackend, Parked, Session};
use crate::error::Doing;
use crate::pictures::Picture;
use crate::turn::{at_once, give_way};
use crate::{Error, Result};
use candle_core::Tensor;
use candle_nn::sampling::changed;
use candle_transformers::generation::{Draw, NextToken};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The way in which a step gets a token's id from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// By blocking the thread: the step is ready when it is polled first. It is an error in a browser with a GPU.
    Blocking,
    /// By yielding to the executor.
    Async,
}

impl Wait {
    /// The way to wait on this platform: a browser's thread must not be blocked, and natively a model has a separate thread.
    pub const HERE: Self = if cfg!(target_arch = "wasm32") {
        Self::Async
    } else {
        Self::Blocking
    };
}

/// Number of steps queued beyond the awaited one, if the wait is a browser's promise: an answer takes the time of a step to pass through
/// the browser's processes, so that a GPU with one queued step would idle.
const AHEAD: usize = 3;

/// A session and the tokens that it has seen.
pub(crate) struct Seen {
    session: Parked,
    tokens: Vec<u32>,
    /// The draft model's cache.
    draft: Option<ParkedDrafter>,
}

/// A completion in progress; [`CandleBackend::generation`] begins one.
pub struct Generation<'a> {
    backend: &'a CandleBackend,
    session: Session<'a>,
    writer: Writer<'a>,
    /// Number of the writer's tokens that the model has read.
    fed: usize,
    /// The next steps, queued before the host knows the current token, if the choice needs nothing from the host.
    queued: VecDeque<NextToken>,
    /// The logits after the current token, queued before the host knows it, if the choice from them needs to know it.
    following: Option<Tensor>,
    /// With proposals, and the model's answer to the last ones.
    speculation: Option<Speculation>,
    drafter: Option<Drafter<'a>>,
    guessed: Option<Guessed>,
}

/// Tokens that the model has seen before they were chosen.
struct Guessed {
    tokens: Vec<u32>,
    /// The choices after the token before them, and after each of them.
    choices: Choices,
    /// Number of correct ones.
    right: usize,
    round: Round,
}

impl CandleBackend {
    /// Begins a completion; nothing runs before its first step.
    ///
    /// # Errors
    /// A parameter out of range, a prompt without tokens or past the model's positions.
    pub fn generation(&self, request: &CompletionRequest) -> Result<Generation<'_>> {
        let tokens = self.tokens_of(request)?;
        self.go_on(None, tokens, request)
    }

    /// As [`generation`](Self::generation), from the prompt's tokens. What a session has seen of them is not fed to the model again.
    pub(crate) fn go_on<'a>(
        &'a self,
        seen: Option<Seen>,
        tokens: Vec<u32>,
        request: &CompletionRequest,
    ) -> Result<Generation<'a>> {
        request.validate()?;
        let speculation = Speculation::of(self, request)?;
        let mut seen = seen;
        let draft = seen.as_mut().and_then(|seen| seen.draft.take());
        let drafts = speculation.as_ref().is_some_and(Speculation::drafts);
        let model = self.draft().filter(|_| drafts);
        let drafter = model.map(|model| match draft {
            Some(parked) => Ok(Drafter::unpark(model, parked)),
            None => Drafter::new(model),
        });
        let seen = seen.filter(|seen| seen.session.forgets() == speculation.is_some());
        // Thoughts of the last answer are not in the next prompt, and have to be forgotten.
        let forgets = request.thinking.is_some();
        let kept = seen.map(|seen| self.keep(seen, &tokens, &request.pictures, forgets));
        let kept = kept.transpose()?.flatten();
        let fed = kept.as_ref().map_or(0, Session::position);
        let mut session = match (kept, &speculation) {
            (Some(session), _) => session,
            (None, Some(_)) => {
                let session = self.session_that_forgets();
                session.ok_or_else(|| cannot_forget(request))?
            }
            (None, None) => self.session(),
        };
        session.look_at(&request.pictures, &tokens)?;
        Ok(Generation {
            backend: self,
            writer: Writer::new(self, tokens, request, self.max_positions())?,
            session,
            fed,
            queued: VecDeque::new(),
            following: None,
            speculation,
            drafter: drafter.transpose()?,
            guessed: None,
        })
    }

    /// A session that has seen the beginning of `tokens`, if that is all of it, or if it `forgets` the rest and the model can.
    fn keep(
        &self,
        seen: Seen,
        tokens: &[u32],
        pictures: &[Arc<Picture>],
        forgets: bool,
    ) -> Result<Option<Session<'_>>> {
        let pairs = seen.tokens.iter().zip(tokens);
        let same = pairs.take_while(|(seen, token)| seen == token).count();
        // At least one token has to be fed to get logits.
        let same = same.min(tokens.len().saturating_sub(1));
        let same = seen.session.common(self, tokens, same, pictures)?;
        let mut session = self.unpark(seen.session);
        let kept = if same == seen.tokens.len() {
            true
        } else {
            forgets && same > 0 && session.truncate(same)?
        };
        Ok(kept.then_some(session))
    }
}

impl<'a> Generation<'a> {
    /// With a constraint on the tokens of the answer.
    pub fn with_mask(self, mask: Option<Box<dyn Mask>>) -> Self {
        Self {
            writer: self.writer.with_mask(mask),
            ..self
        }
    }

    /// Generates all tokens, blocking; the pieces of text go to `on_piece`, which can stop it.
    ///
    /// # Errors
    /// Failures of the device; a constraint that no token satisfies.
    pub fn complete(
        mut self,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        // Blocking steps are ready on the first poll.
        at_once(self.run(Wait::Blocking, on_piece))?;
        Ok(self.finish())
    }

    /// Generates all tokens; the pieces of text go to `on_piece`, which can stop it. If a wait yields to the executor, so does each token
    /// on the CPU, where nothing else would wait.
    pub(crate) async fn run(
        &mut self,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<()> {
        while let Some(piece) = self.step(wait).await? {
            let goes_on = if piece.is_empty() {
                ControlFlow::Continue(())
            } else {
                on_piece(&piece)
            };
            if wait == Wait::Async && self.backend.device().is_cpu() {
                give_way().await;
            }
            if goes_on.is_break() {
                self.cancel();
            }
        }
        Ok(())
    }

    /// Makes the next token, and gives the text that is certain now, which may be none; `None` after the end.
    ///
    /// # Errors
    /// Failures of the device.
    pub async fn step(&mut self, wait: Wait) -> Result<Option<String>> {
        if !self.writer.goes_on() {
            self.queued.clear();
            return self.writer.rest();
        }
        let next = self.next_token(wait).await?;
        let piece = self.writer.push(next)?;
        if !self.writer.goes_on() {
            self.queued.clear();
        }
        Ok(piece)
    }

    /// Number of tokens that the model has read, of the prompt and of its output.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// Ends the completion: no step follows.
    pub fn cancel(&mut self) {
        self.writer.cancel();
        self.queued.clear();
    }

    /// The completion so far, and the session with the tokens that it has read, unless one of them is unknown.
    pub(crate) fn finish_with_session(mut self) -> (Completion, Option<Seen>) {
        if self.guessed.take().is_some() {
            // Only correct guesses are known. If the others cannot be dropped, the position shows it.
            let _ = self.session.truncate(self.writer.tokens().len());
        }
        let mut tokens = self.writer.tokens().to_vec();
        // A step that was queued may have fed the token that ended the text; those after it are forgotten, where the model can.
        tokens.extend(self.writer.stop_token());
        if self.session.position() > tokens.len() {
            let _ = self.session.truncate(tokens.len());
        }
        let position = self.session.position();
        let known = position <= tokens.len();
        tokens.truncate(position);
        let seen = known.then(|| Seen {
            session: self.session.park(),
            tokens,
            draft: self.drafter.map(Drafter::park),
        });
        (finish(self.writer, self.speculation), seen)
    }

    /// The completion so far.
    pub fn finish(self) -> Completion {
        finish(self.writer, self.speculation)
    }

    async fn next_token(&mut self, wait: Wait) -> Result<u32> {
        if self.speculation.is_some() {
            return self.next_of_guessed(wait).await;
        }
        let Some(with) = self.writer.draw_after(0) else {
            let on_device = !self.backend.device().is_cpu() && self.backend.ranks() == 1;
            return if on_device {
                self.drawn_when_known(wait).await
            } else {
                self.sampled(wait).await
            };
        };
        let token = match self.queued.pop_front() {
            Some(token) => token,
            None => NextToken::draw(&self.feed()?, &with).doing("choosing the next token")?,
        };
        // The choice needs nothing from the host, and a GPU need not wait for it: the next steps are queued before the id of this one is known.
        let ahead = match (self.backend.device().is_cpu(), wait) {
            (true, _) => 0,
            (false, Wait::Blocking) => 1,
            (false, Wait::Async) => AHEAD,
        };
        while self.queued.len() < ahead && self.writer.has_steps_after(self.queued.len()) {
            let last = self.queued.back().unwrap_or(&token);
            let next = self.session.next_token(last.ids(), &with)?;
            self.queued.push_back(next);
        }
        let id = match wait {
            Wait::Blocking => token.wait(),
            Wait::Async => token.finish().await,
        };
        id.doing("choosing the next token")
    }

    /// The next token, drawn on the device from logits that the host has changed, for which it has to know the tokens before. The layers of
    /// the step after it do not need that, and are queued.
    async fn drawn_when_known(&mut self, wait: Wait) -> Result<u32> {
        let doing = "choosing the next token";
        let logits = match self.following.take() {
            Some(logits) => logits,
            None => self.feed()?,
        };
        let vocab = logits.elem_count();
        let (with, changes) = self.writer.draw_next(vocab)?;
        let drawn = logits.unsqueeze(0).and_then(|logits| {
            let logits = changed(&logits, &[changes])?.squeeze(0)?;
            NextToken::draw(&logits, &with)
        });
        let token = drawn.doing(doing)?;
        if self.writer.has_steps_after(0) {
            self.following = Some(self.session.forward_ids(token.ids())?);
        }
        let id = match wait {
            Wait::Blocking => token.wait(),
            Wait::Async => token.finish().await,
        };
        id.doing(doing)
    }

    async fn sampled(&mut self, wait: Wait) -> Result<u32> {
        let doing = "choosing the next token";
        let logits = self.feed()?;
        let on_host = wait == Wait::Blocking || logits.device().is_cpu();
        let read = if on_host {
            logits.to_vec1()
        } else {
            logits.to_vec1_async().await
        };
        self.writer.choose(read.doing(doing)?)
    }

    /// The next token, of those that the model has chosen after the last one and after guesses; new guesses where there are none.
    async fn next_of_guessed(&mut self, wait: Wait) -> Result<u32> {
        let mut guessed = match self.guessed.take() {
            Some(guessed) => guessed,
            None => self.guess(wait).await?,
        };
        let token = match guessed.choices.of(guessed.right)? {
            Choice::Id(id) => id,
            Choice::Logits(row) => self.writer.choose(row)?,
        };
        if guessed.tokens.get(guessed.right) == Some(&token) {
            guessed.right += 1;
            if let Some(speculation) = &mut self.speculation {
                speculation.right();
            }
            self.guessed = Some(guessed);
        } else {
            if let Some(speculation) = &mut self.speculation {
                speculation.saw(&guessed.round, guessed.right);
            }
            // The token itself is yet to be seen.
            self.fed = self.writer.tokens().len();
            self.session.truncate(self.fed)?;
        }
        Ok(token)
    }

    /// Feeds the tokens that the model has not seen, with proposals of what comes next.
    async fn guess(&mut self, wait: Wait) -> Result<Guessed> {
        let Some(speculation) = &mut self.speculation else {
            return Err(Error::Alone("nothing is proposed".to_string()));
        };
        let unseen = &self.writer.tokens()[self.fed..];
        let proposal = speculation.propose(&self.writer, unseen.len(), self.drafter.as_mut())?;
        let rows = proposal.len() + 1;
        let ids = proposal.after(unseen, self.backend.device())?;
        let logits = self.session.forward_each(&ids, rows)?;
        let choices = Queued::begin(logits, &self.writer, false)?;
        let (tokens, mut round) = proposal.known(wait, self.drafter.as_mut()).await?;
        let choices = choices.read(wait).await?;
        round.ends();
        speculation.made(&round);
        Ok(Guessed {
            tokens,
            choices,
            right: 0,
            round,
        })
    }

    /// Feeds the tokens that the model has not seen, and gives the logits after the last of them.
    fn feed(&mut self) -> Result<Tensor> {
        let tokens = self.writer.tokens();
        let logits = self.session.forward(&tokens[self.fed..])?;
        self.fed = tokens.len();
        Ok(logits)
    }
}

fn finish(writer: Writer<'_>, speculation: Option<Speculation>) -> Completion {
    Completion {
        guesses: speculation.map(|speculation| speculation.guesses()),
        ..writer.finish()
    }
}

/// The error for proposals to a model that cannot drop them. A draft model is never loaded for such a model.
pub(crate) fn cannot_forget(request: &CompletionRequest) -> Error {
    Error::Parameter {
        name: "prompt_lookup",
        value: request.prompt_lookup.to_string(),
        expected: "0 for a model with layers other than attention, or with a rotation that depends on the length",
    }
}
