//! From the engine's thread to a client's socket.

use super::texts::TextModel;
use super::thinking::{Apart, Both};
use super::{ApiError, Served};
use axum::response::sse::{Event as Sent, KeepAlive};
use axum::response::{IntoResponse, Response};
use candle_engine::batch::{Heard, Likely, Order, Owner};
use candle_engine::model::TextTokenizer;
use candle_engine::thinking::Thinking;
use candle_engine::{Completion, CompletionRequest, Guesses, StopReason};
use candle_grammar::Grammar;
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{json, Value};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

/// The field of `usage` with counts of a part of the tokens.
const DETAILS: &str = "completion_tokens_details";

/// An event of a completion.
pub(super) enum Event {
    Token(Likely),
    Piece(String),
    Done(candle_engine::Result<Completion>),
}

/// The events of a completion.
pub(super) type Receiver = UnboundedReceiver<Event>;

/// Begins a completion. It ends when the receiver is dropped.
pub(super) fn begin(
    served: &Served,
    model: &TextModel,
    owner: Owner,
    tokens: Vec<u32>,
    request: CompletionRequest,
    logprobs: Option<usize>,
    grammar: Option<&Grammar>,
) -> Result<Receiver, ApiError> {
    let (sender, receiver) = unbounded_channel();
    let (metrics, prompt, begun) = (served.metrics.clone(), tokens.len(), Instant::now());
    let listener = move |heard: Heard<'_>| {
        if let Heard::Done(result) = &heard {
            metrics.completion(prompt, result.as_ref().ok(), begun.elapsed());
        }
        let event = match heard {
            Heard::Piece("") => None,
            Heard::Piece(piece) => Some(Event::Piece(piece.to_string())),
            Heard::Token(likely) => Some(Event::Token(likely)),
            Heard::Done(result) => Some(Event::Done(result)),
        };
        let sent = event.is_none_or(|event| sender.send(event).is_ok());
        if sent && !sender.is_closed() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let order = Order {
        tokens,
        request,
        logprobs,
        owner,
        mask: grammar.map(|grammar| Box::new(grammar.guide()) as _),
    };
    model.engine.begin(order, Box::new(listener))?;
    Ok(receiver)
}

/// A completion that has ended.
pub(super) struct Whole {
    pub(super) completion: Completion,
    /// The tokens of its answer, if the request wants probabilities.
    pub(super) likely: Vec<Likely>,
    pub(super) text: Both,
}

/// Waits until it is whole.
pub(super) async fn whole(
    mut receiver: UnboundedReceiver<Event>,
    thinking: Option<Thinking>,
) -> Result<Whole, ApiError> {
    let mut apart = Apart::new(thinking.as_ref());
    let (mut held, mut likely, mut text) = (Vec::new(), Vec::new(), Both::default());
    let mut add = |both: Both, held: &mut Vec<Likely>, likely: &mut Vec<Likely>| {
        text.thoughts.push_str(&both.thoughts);
        text.answer.push_str(&both.answer);
        if !both.answer.is_empty() {
            likely.append(held);
        }
    };
    while let Some(event) = receiver.recv().await {
        match event {
            Event::Token(token) => held.push(token),
            Event::Piece(piece) => {
                let both = apart.push(&piece, &mut held);
                add(both, &mut held, &mut likely);
            }
            Event::Done(result) => {
                let completion = result?;
                add(apart.end(), &mut held, &mut likely);
                likely.append(&mut held);
                return Ok(Whole {
                    completion,
                    likely,
                    text,
                });
            }
        }
    }
    Err(candle_engine::Error::Batch("the engine has stopped".to_string()).into())
}

pub(super) fn finish_reason(completion: &Completion) -> &'static str {
    match completion.stop_reason {
        StopReason::Length => "length",
        StopReason::EndOfText | StopReason::StopSequence | StopReason::Cancelled => "stop",
    }
}

pub(super) fn usage(prompt: usize, made: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made })
}

/// The usage of a request whose answer has no tokens.
pub(super) fn prompt_usage(prompt: usize) -> Value {
    json!({ "prompt_tokens": prompt, "total_tokens": prompt })
}

/// Tokens of completions, to be counted together.
#[derive(Default)]
pub(super) struct Count {
    made: AtomicUsize,
    thought: AtomicUsize,
    accepted: AtomicUsize,
    rejected: AtomicUsize,
    cached: AtomicUsize,
    /// Whether anything was proposed to any of them.
    has_proposals: AtomicBool,
}

impl Count {
    /// The usage of these completions.
    pub(super) fn of<'a>(completions: impl IntoIterator<Item = &'a Completion>) -> Self {
        let count = Self::default();
        for completion in completions {
            count.add(completion);
        }
        count
    }

    /// Adds a completion that has ended.
    pub(super) fn add(&self, completion: &Completion) {
        self.made.fetch_add(completion.token_ids.len(), Relaxed);
        self.thought.fetch_add(completion.thought_tokens, Relaxed);
        self.cached.fetch_add(completion.cached_tokens, Relaxed);
        if let Some(Guesses { made, right }) = completion.guesses {
            self.has_proposals.store(true, Relaxed);
            self.accepted.fetch_add(right, Relaxed);
            self.rejected.fetch_add(made - right, Relaxed);
        }
    }

    /// The interface's form, of a model that thinks or not.
    pub(super) fn usage(&self, prompt: usize, thinks: bool) -> Value {
        let mut usage = usage(prompt, self.made.load(Relaxed));
        // Choices of one prompt share it.
        let cached = self.cached.load(Relaxed).min(prompt);
        usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
        if thinks {
            usage[DETAILS]["reasoning_tokens"] = self.thought.load(Relaxed).into();
        }
        if self.has_proposals.load(Relaxed) {
            usage[DETAILS]["accepted_prediction_tokens"] = self.accepted.load(Relaxed).into();
            usage[DETAILS]["rejected_prediction_tokens"] = self.rejected.load(Relaxed).into();
        }
        usage
    }
}

/// An id that no other answer has.
pub(super) fn id(prefix: &str) -> String {
    format!("{prefix}-{:032x}", rand::random::<u128>())
}

/// The text of one token; bytes that do not form a character show as U+FFFD.
pub(super) fn token_text(tokenizer: &TextTokenizer, id: u32) -> String {
    tokenizer.decode(&[id]).unwrap_or_default()
}

/// The events of a completion, as `chunk` puts them, until its end. What `chunk` gives for the end comes last.
pub(super) fn chunks<F>(
    receiver: UnboundedReceiver<Event>,
    mut chunk: F,
) -> impl Stream<Item = Value>
where
    F: FnMut(Event) -> Vec<Value>,
{
    let events = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (event, receiver))
    });
    events.flat_map(move |event| stream::iter(chunk(event)))
}

/// The format of a stream's events.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Framing {
    /// Data alone, and `[DONE]` at the end.
    Done,
    /// Each event named by its type, and no end marker.
    Named,
}

/// A stream of events.
pub(super) fn stream(
    events: impl Stream<Item = Value> + Send + 'static,
    framing: Framing,
) -> Response {
    let events = events.map(move |event| {
        let sent = match event["type"].as_str() {
            Some(name) if framing == Framing::Named => Sent::default().event(name),
            _ => Sent::default(),
        };
        sent.data(event.to_string())
    });
    let done = (framing == Framing::Done).then(|| Sent::default().data("[DONE]"));
    let all = events.chain(stream::iter(done)).map(Ok::<_, Infallible>);
    axum::response::Sse::new(all)
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// The JSON of a failure in the middle of a stream.
pub(super) fn failure(error: candle_engine::Error) -> Value {
    ApiError::from(error).body()
}
