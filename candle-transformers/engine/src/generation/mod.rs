//! The generation loop, one token per step, so that a browser can do other work in between.

mod lookup;
mod mask;
mod writer;

pub use mask::Mask;
pub(crate) use writer::Writer;

use crate::backend::{Completion, CompletionRequest, Guesses};
use crate::engine::{CandleBackend, Parked, Session};
use crate::error::Doing;
use crate::turn::give_way;
use crate::Result;
use candle_core::{Device, IndexOp, Tensor, D};
use candle_transformers::generation::GreedyToken;
use std::ops::ControlFlow;

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

/// How many tokens are guessed before it is known how often that is right.
const FIRST_GUESSES: usize = 2;

/// A session and the tokens that it has seen.
pub(crate) struct Seen {
    session: Parked,
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
    /// With prompt lookup: how many guesses were made, and what the model says to the last ones.
    guesses: Option<Guesses>,
    guessed: Option<Guessed>,
    /// How many are made next: twice as many after guesses that were all right, and as many as were right after others. A wrong guess is a row
    /// of a step for nothing.
    worth_guessing: usize,
}

/// Tokens that the model has seen before they were chosen.
struct Guessed {
    tokens: Vec<u32>,
    /// What is chosen after the token before them, and after each of them.
    choices: Choices,
    /// How many of them were right.
    right: usize,
}

enum Choices {
    /// The tokens themselves, where the choice needs no more.
    Ids(Vec<u32>),
    /// Logits on the host, a row for each.
    Logits(Tensor),
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
        let guesses = (request.prompt_lookup > 0).then(Guesses::default);
        // At least one token has to be fed, for logits to come out.
        let seen = seen
            .filter(|seen| seen.tokens.len() < tokens.len() && tokens.starts_with(&seen.tokens));
        let seen = seen.filter(|seen| seen.session.can_guess() == guesses.is_some());
        let fed = seen.as_ref().map_or(0, |seen| seen.tokens.len());
        Ok(Generation {
            backend: self,
            writer: Writer::new(self, tokens, request, self.max_positions())?,
            session: match (seen, guesses) {
                (Some(seen), _) => self.unpark(seen.session),
                (None, Some(_)) => self.session_with_guesses(request.prompt_lookup)?,
                (None, None) => self.session(),
            },
            fed,
            queued: None,
            guesses,
            guessed: None,
            worth_guessing: FIRST_GUESSES,
        })
    }
}

impl Generation<'_> {
    /// Makes all tokens; the pieces of text go to `on_piece`, which can end it. If a wait yields to the executor, so does each token on the
    /// CPU, where nothing else would wait.
    pub(crate) async fn run(
        &mut self,
        wait: Wait,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<()> {
        while let Some(piece) = self.step(wait).await? {
            let goes_on = match piece.is_empty() {
                true => ControlFlow::Continue(()),
                false => on_piece(&piece),
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
    pub(crate) fn finish_with_session(mut self) -> (Completion, Option<Seen>) {
        if self.guessed.take().is_some() {
            // Of guesses, those that were right are known. If they cannot be dropped, the position tells.
            let _ = self.session.cut(self.writer.tokens().len());
        }
        let mut tokens = self.writer.tokens().to_vec();
        // A step that was queued may have fed the token that ended the text.
        tokens.extend(self.writer.stop_token());
        let position = self.session.position();
        let known = position <= tokens.len();
        tokens.truncate(position);
        let session = self.session.park();
        let seen = known.then_some(Seen { session, tokens });
        (finish(self.writer, self.guesses), seen)
    }

    /// The completion as far as it got.
    pub fn finish(self) -> Completion {
        finish(self.writer, self.guesses)
    }

    async fn next_token(&mut self, wait: Wait) -> Result<u32> {
        if self.guesses.is_some() {
            return self.next_of_guessed(wait).await;
        }
        if !self.writer.is_plain_argmax() {
            return self.sampled(wait).await;
        }
        let token = match self.queued.take() {
            Some(token) => token,
            None => GreedyToken::choose(&self.feed()?).doing("choosing the next token")?,
        };
        // The choice needs nothing from the host, and a GPU need not wait for it: the next step is queued before the id of this one is known.
        if self.writer.has_two_steps() && !self.backend.device().is_cpu() {
            self.queued = Some(self.session.greedy_step(token.ids())?);
        }
        let id = match wait {
            Wait::Blocking => token.wait(),
            Wait::Async => token.finish().await,
        };
        id.doing("choosing the next token")
    }

    async fn sampled(&mut self, wait: Wait) -> Result<u32> {
        let doing = "choosing the next token";
        let logits = self.feed()?;
        let on_host = wait == Wait::Blocking || logits.device().is_cpu();
        let read = match on_host {
            true => logits.to_vec1(),
            false => logits.to_vec1_async().await,
        };
        self.writer.choose(read.doing(doing)?)
    }

    /// The next token, of those that the model has chosen after the last one and after guesses; new guesses where there are none.
    async fn next_of_guessed(&mut self, wait: Wait) -> Result<u32> {
        let mut guessed = match self.guessed.take() {
            Some(guessed) => guessed,
            None => self.guess(wait).await?,
        };
        let token = match &guessed.choices {
            Choices::Ids(ids) => ids[guessed.right],
            Choices::Logits(rows) => {
                let row = rows.i(guessed.right).and_then(|row| row.to_vec1());
                self.writer.choose(row.doing("choosing the next token")?)?
            }
        };
        if guessed.tokens.get(guessed.right) == Some(&token) {
            guessed.right += 1;
            if let Some(guesses) = &mut self.guesses {
                guesses.right += 1;
            }
            self.guessed = Some(guessed);
        } else {
            if let made @ 1.. = guessed.tokens.len() {
                self.worth_guessing = match guessed.right == made {
                    true => 2 * made,
                    false => guessed.right.max(1),
                };
            }
            // The token itself is yet to be seen.
            self.fed = self.writer.tokens().len();
            self.session.cut(self.fed)?;
        }
        Ok(token)
    }

    /// Feeds the tokens that the model has not seen, with guesses of what comes next.
    async fn guess(&mut self, wait: Wait) -> Result<Guessed> {
        let doing = "choosing the next token";
        let known = self.writer.tokens();
        let most = self.writer.most_guesses().min(self.worth_guessing);
        let tokens = lookup::proposal(known, most).to_vec();
        let fed = [&known[self.fed..], &tokens].concat();
        let logits = self.session.forward_each(&fed, tokens.len() + 1)?;
        if let Some(guesses) = &mut self.guesses {
            guesses.made += tokens.len();
        }
        let on_host = wait == Wait::Blocking || logits.device().is_cpu();
        let choices = match (self.writer.is_plain_argmax(), on_host) {
            (true, true) => {
                let ids = logits.argmax(D::Minus1).and_then(|ids| ids.to_vec1());
                Choices::Ids(ids.doing(doing)?)
            }
            (true, false) => {
                let ids = logits.argmax(D::Minus1).doing(doing)?;
                Choices::Ids(ids.to_vec1_async().await.doing(doing)?)
            }
            (false, true) => Choices::Logits(logits.to_device(&Device::Cpu).doing(doing)?),
            (false, false) => {
                let shape = logits.shape().clone();
                let flat = logits.flatten_all().doing(doing)?;
                let read = flat.to_vec1_async::<f32>().await.doing(doing)?;
                Choices::Logits(Tensor::from_vec(read, shape, &Device::Cpu).doing(doing)?)
            }
        };
        Ok(Guessed {
            tokens,
            choices,
            right: 0,
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

fn finish(writer: Writer<'_>, guesses: Option<Guesses>) -> Completion {
    Completion {
        guesses,
        ..writer.finish()
    }
}
