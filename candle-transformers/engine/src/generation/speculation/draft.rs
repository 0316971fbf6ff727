//! A smaller model that proposes tokens.

use crate::engine::{CandleBackend, Parked, Session};
use crate::error::Doing;
use crate::generation::Draw;
use crate::model::check_draft;
use crate::{Error, Result};
use candle_core::Tensor;
use candle_transformers::generation::NextToken;

/// The most tokens that may be proposed at once.
pub(crate) const MOST: usize = 64;
/// Tokens that are read at once.
const PIECE: usize = 512;
const DRAFTING: &str = "drafting tokens";

/// A model that proposes tokens to another.
pub(crate) struct DraftModel {
    backend: CandleBackend,
    /// The most tokens at once, unless a request says another number.
    tokens: usize,
    /// Ids that both models have.
    common: usize,
}

impl DraftModel {
    /// # Errors
    /// See [`CandleBackend::with_draft`].
    pub(crate) fn new(model: &CandleBackend, draft: CandleBackend, tokens: usize) -> Result<Self> {
        Self::check_tokens(tokens)?;
        check_draft(&model.vocabulary(), &draft.vocabulary())?;
        let refuse = |problem: String| {
            Err(Error::Draft {
                draft: draft.name().to_string(),
                model: model.name().to_string(),
                problem,
            })
        };
        if !model.device().same_device(draft.device()) {
            let places = [&draft, model].map(|it| it.device().location());
            return refuse(format!(
                "it is on {:?}, the model on {:?}; load both on one device",
                places[0], places[1]
            ));
        }
        for it in [model, &draft] {
            if it.session_that_forgets().is_none() {
                return refuse(format!(
                    "{} cannot drop tokens from its cache: it has layers other than attention, or a rotation that \
                     depends on the length; run without a draft model",
                    it.name()
                ));
            }
        }
        Ok(Self {
            common: model.vocab().min(draft.vocab()),
            backend: draft,
            tokens,
        })
    }

    /// # Errors
    /// A number of tokens out of range.
    pub(crate) fn check_tokens(tokens: usize) -> Result<()> {
        if (1..=MOST).contains(&tokens) {
            Ok(())
        } else {
            Err(Error::Parameter {
                name: "draft_tokens",
                value: tokens.to_string(),
                expected: "a number from 1 to 64",
            })
        }
    }

    /// The most tokens at once, unless a request says another number.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The time of a step as a part of that of `model`, by the sizes of the weights.
    pub(crate) fn expected_cost(&self, model: &CandleBackend) -> f64 {
        self.backend.stored_bytes() as f64 / model.stored_bytes().max(1) as f64
    }
}

/// A draft model in one text, with its cache.
pub(crate) struct Drafter<'a> {
    model: &'a DraftModel,
    session: Session<'a>,
    /// The tokens that it has read, except the last one fed in an unfinished round.
    seen: Vec<u32>,
}

/// A drafter without the reference to its model.
pub(crate) struct ParkedDrafter {
    session: Parked,
    seen: Vec<u32>,
}

impl<'a> Drafter<'a> {
    /// One that has seen nothing.
    ///
    /// # Errors
    /// None, for a model that was checked when it was loaded.
    pub(crate) fn new(model: &'a DraftModel) -> Result<Self> {
        let session = model.backend.session_that_forgets();
        let session = session.ok_or_else(|| Error::Alone("it cannot drop tokens".to_string()))?;
        Ok(Self {
            model,
            session,
            seen: Vec::new(),
        })
    }

    /// Detaches it from its model, for the next text.
    pub(crate) fn park(self) -> ParkedDrafter {
        ParkedDrafter {
            session: self.session.park(),
            seen: self.seen,
        }
    }

    /// Goes on with what it had seen.
    pub(crate) fn unpark(model: &'a DraftModel, parked: ParkedDrafter) -> Self {
        Self {
            model,
            session: model.backend.unpark(parked.session),
            seen: parked.seen,
        }
    }

    /// Number of a text's tokens that it would have to read before it can propose one.
    pub(crate) fn unread(&self, known: &[u32]) -> usize {
        known.len() - self.same(known)
    }

    /// Number of the first tokens of `known` that it has read, at most all but one: one has to be fed to get logits.
    fn same(&self, known: &[u32]) -> usize {
        let most = self.seen.len().min(known.len().saturating_sub(1));
        let pairs = self.seen[..most].iter().zip(known);
        pairs.take_while(|(seen, token)| seen == token).count()
    }

    /// At most `most` tokens that may follow `known`, drawn as `draw` says of the first, the second and so on; none beyond its last position, or
    /// after a token that it does not have. They need not be on the host yet: [`knows`](Self::knows) tells what they were.
    ///
    /// # Errors
    /// Failures of the device.
    pub(crate) fn propose(
        &mut self,
        known: &[u32],
        most: usize,
        draw: impl Fn(usize) -> Draw,
    ) -> Result<Vec<NextToken>> {
        let same = self.same(known);
        // The last one drafted needs no position.
        let room = (self.model.backend.max_positions() + 1).saturating_sub(known.len());
        let most = most.min(room);
        let has = |token: &u32| (*token as usize) < self.model.common;
        if most == 0 || !known[same..].iter().all(has) {
            return Ok(Vec::new());
        }
        self.session.truncate(same)?;
        self.seen.truncate(same);
        let mut unread = &known[same..];
        while unread.len() > PIECE {
            self.session.read(&unread[..PIECE])?;
            self.seen.extend(&unread[..PIECE]);
            unread = &unread[PIECE..];
        }
        let mut ids = self.session.input(unread)?;
        self.seen.extend(unread);
        let mut drafted: Vec<NextToken> = Vec::with_capacity(most);
        while drafted.len() < most {
            let logits = self.session.forward_each(&ids, 1)?;
            let token = self.choose(&logits, &draw(drafted.len()))?;
            ids = token.ids().clone();
            drafted.push(token);
        }
        Ok(drafted)
    }

    /// Tells what the tokens were that it proposed: all but the last of them it has seen.
    pub(crate) fn knows(&mut self, drafted: &[u32]) {
        let fed = drafted.len().saturating_sub(1);
        self.seen.extend(&drafted[..fed]);
    }

    /// The token after a row of logits, `(1, vocab)`, of those that both models have.
    fn choose(&self, logits: &Tensor, with: &Draw) -> Result<NextToken> {
        let common = logits.narrow(1, 0, self.model.common);
        common
            .and_then(|logits| NextToken::draw(&logits.squeeze(0)?, with))
            .doing(DRAFTING)
    }
}
