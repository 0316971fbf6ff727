//! Tokens that are proposed before the model has chosen them. The model sees them in one step with the token before, and those that it would
//! have chosen as well come in the time of one.
//!
//! A position's token is drawn by (seed, position, token) from the model's own logits ([`Draw`]), whether a proposal was there or not. A proposal is
//! right if it is that token. So no text depends on proposals, with any temperature, top-k, top-p or min-p, and neither does a distribution over seeds. A draft
//! model draws with the same seed and positions, so that where both models think alike, they draw alike.
//!
//! That holds bit for bit on the CPU, where each row of a step is summed as if it were alone: up to 15 rows with weights in blocks, up to four
//! with weights of floats. So no more than 14 tokens are proposed, or three. A GPU may round a row of several otherwise, and then a
//! token can differ where two are equally likely but for rounding.
//!
//! Proposals come from repetitions in the text (`lookup.rs`) or from a draft model (`draft.rs`). How many there are follows from how often they
//! are right (`length.rs`) and what they cost (`costs.rs`).

mod costs;
mod draft;
mod length;
mod lookup;
#[cfg(test)]
mod tests;

pub(crate) use draft::{DraftModel, Drafter, ParkedDrafter, MOST};

use super::{Wait, Writer};
use crate::backend::{CompletionRequest, Guesses};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use candle_transformers::generation::NextToken;
use costs::{Cost, Costs};
use length::{Habits, Length};
use std::time::Duration;
use web_time::Instant;

/// The proposals of one text.
pub(crate) struct Speculation {
    /// The first that has a proposal makes it.
    sources: Vec<Source>,
    costs: Costs,
    guesses: Guesses,
}

struct Source {
    origin: Origin,
    length: Length,
    cost: Cost,
}

#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// Repetitions in the text.
    Lookup,
    Draft,
}

/// Proposed tokens, or none.
pub(crate) struct Proposal {
    tokens: Proposed,
    round: Round,
}

enum Proposed {
    Known(Vec<u32>),
    /// On the device, and being copied to the host.
    Queued(Vec<NextToken>),
}

/// A step and what was done for it.
pub(crate) struct Round {
    /// The number of the source, unless nothing was proposed.
    source: Option<usize>,
    made: usize,
    begun: Instant,
    took: Duration,
    /// Whether the round's time says what others will take: none of the models had to read a prompt.
    is_usual: bool,
}

impl Speculation {
    /// The proposals of a text, if its request wants any.
    ///
    /// # Errors
    /// A model that cannot drop what it has seen, a draft that is not there.
    pub(crate) fn of(backend: &CandleBackend, request: &CompletionRequest) -> Result<Option<Self>> {
        if !request.pictures.is_empty() {
            // Neither source sees images, and a session with them has no slot.
            return Ok(None);
        }
        let mut sources = Vec::new();
        let most = backend.most_proposals();
        if request.prompt_lookup > 0 {
            sources.push(Source {
                origin: Origin::Lookup,
                length: Length::new(request.prompt_lookup.min(most), Habits::OF_LOOKUP),
                cost: Cost::expected(0.),
            });
        }
        match (backend.draft(), request.draft_tokens) {
            (None, Some(1..)) => {
                return Err(Error::Parameter {
                    name: "draft_tokens",
                    value: request.draft_tokens.unwrap_or_default().to_string(),
                    expected: "0 without a draft model",
                })
            }
            (None, _) | (Some(_), Some(0)) => {}
            (Some(draft), tokens) => sources.push(Source {
                origin: Origin::Draft,
                length: Length::new(
                    tokens.unwrap_or(draft.tokens()).min(most),
                    Habits::OF_DRAFTS,
                ),
                cost: Cost::expected(draft.expected_cost(backend)),
            }),
        }
        Ok((!sources.is_empty()).then(|| Self {
            sources,
            costs: Costs::default(),
            guesses: Guesses::default(),
        }))
    }

    /// Whether a draft model proposes.
    pub(crate) fn drafts(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.origin == Origin::Draft)
    }

    /// Whether nothing will be proposed after the next token.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn is_resting(&self) -> bool {
        !self.costs.needs_alone() && self.sources.iter().all(|source| source.length.is_resting())
    }

    /// A token came without a proposal having been asked for.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn rested(&mut self) {
        let sources = self.sources.iter_mut();
        sources.for_each(|source| source.length.rested());
    }

    /// Numbers of proposals so far.
    pub(crate) fn guesses(&self) -> Guesses {
        self.guesses
    }

    /// Tokens that may follow those of the writer. The model has read all of the writer's tokens but `unseen`.
    ///
    /// # Errors
    /// Failures of the device.
    pub(crate) fn propose(
        &mut self,
        writer: &Writer<'_>,
        unseen: usize,
        mut drafter: Option<&mut Drafter<'_>>,
    ) -> Result<Proposal> {
        let known = writer.tokens();
        let mut round = Round {
            source: None,
            made: 0,
            begun: Instant::now(),
            took: Duration::ZERO,
            is_usual: unseen <= 2,
        };
        let none = Proposed::Known(Vec::new());
        if round.is_usual && self.costs.needs_alone() {
            return Ok(Proposal {
                tokens: none,
                round,
            });
        }
        for (number, source) in self.sources.iter_mut().enumerate() {
            let most = source.length.next(self.costs.of(&source.cost));
            let most = most.min(writer.steps_after_next());
            if most == 0 {
                source.length.rested();
                continue;
            }
            let tokens = match (source.origin, &mut drafter) {
                (Origin::Lookup, _) => Proposed::Known(lookup::proposal(known, most).to_vec()),
                (Origin::Draft, None) => continue,
                (Origin::Draft, Some(drafter)) => {
                    round.is_usual &= drafter.unread(known) <= 2;
                    let draw = |at| writer.draw_of_draft(at);
                    Proposed::Queued(drafter.propose(known, most, draw)?)
                }
            };
            round.made = tokens.len();
            if round.made > 0 {
                round.source = Some(number);
                return Ok(Proposal { tokens, round });
            }
        }
        Ok(Proposal {
            tokens: none,
            round,
        })
    }

    /// Notes that a proposed token is right.
    pub(crate) fn right(&mut self) {
        self.guesses.right += 1;
    }

    /// Notes how many tokens were proposed, as soon as the model has seen them.
    pub(crate) fn made(&mut self, round: &Round) {
        self.guesses.made += round.made;
    }

    /// Takes in a round of whose proposals `right` were right.
    pub(crate) fn saw(&mut self, round: &Round, right: usize) {
        let Some(source) = round.source.and_then(|number| self.sources.get_mut(number)) else {
            if round.is_usual {
                self.costs.alone(round.took);
            }
            return;
        };
        if round.is_usual {
            self.costs.with(round.made, round.took, &mut source.cost);
        }
        let cost = self.costs.of(&source.cost);
        source.length.saw(round.made, right, cost);
    }
}

impl Proposed {
    fn len(&self) -> usize {
        match self {
            Self::Known(tokens) => tokens.len(),
            Self::Queued(tokens) => tokens.len(),
        }
    }
}

impl Proposal {
    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens `unseen` and those proposed after them, as a model takes them: `(1, count)`.
    ///
    /// # Errors
    /// Failures of the device.
    pub(crate) fn after(&self, unseen: &[u32], device: &Device) -> Result<Tensor> {
        let ids = |tokens: &[u32]| Tensor::new(tokens, device)?.unsqueeze(0);
        let ids = match &self.tokens {
            Proposed::Known(tokens) => ids(&[unseen, tokens].concat()),
            Proposed::Queued(tokens) => ids(unseen).and_then(|unseen| {
                let mut all = vec![unseen];
                all.extend(tokens.iter().map(|token| token.ids().clone()));
                Tensor::cat(&all, 1)
            }),
        };
        ids.doing("running the model")
    }

    /// The tokens, once the step that verifies them is queued.
    ///
    /// # Errors
    /// Failures of the device, and logits of a draft model that do not define a distribution.
    pub(crate) async fn known(
        self,
        wait: Wait,
        drafter: Option<&mut Drafter<'_>>,
    ) -> Result<(Vec<u32>, Round)> {
        let tokens = match self.tokens {
            Proposed::Known(tokens) => tokens,
            Proposed::Queued(queued) => {
                let mut tokens = Vec::with_capacity(queued.len());
                for token in queued {
                    let id = match wait {
                        Wait::Blocking => token.wait(),
                        Wait::Async => token.finish().await,
                    };
                    tokens.push(id.doing("drafting tokens")?);
                }
                if let Some(drafter) = drafter {
                    drafter.knows(&tokens);
                }
                tokens
            }
        };
        Ok((tokens, self.round))
    }
}

impl Round {
    /// Its step has ended.
    pub(crate) fn ends(&mut self) {
        self.took = self.begun.elapsed();
    }
}
