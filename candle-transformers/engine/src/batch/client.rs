//! Who waits for a completion.

use super::places::Place;
use super::supervisor::caught;
use super::{Heard, Listener};
use crate::backend::Completion;
use crate::{Error, Result};
use std::ops::ControlFlow;

/// What is told to a text that is dropped before its end, such as by a panic in the middle of a step.
const DROPPED: &str = "the engine dropped the request";

/// A listener with its place among those that run and wait. It hears of one end, also if it is dropped.
pub(super) struct Client {
    listener: Listener,
    /// None after the end.
    place: Option<Place>,
}

impl Client {
    pub(super) fn new(place: Place, listener: Listener) -> Self {
        Self {
            listener,
            place: Some(place),
        }
    }

    /// Tells it something, after which it wants to go on or not. One that panics has had enough, and nobody else is hurt.
    pub(super) fn hear(&mut self, heard: Heard<'_>) -> ControlFlow<()> {
        caught(|| (self.listener)(heard)).unwrap_or(ControlFlow::Break(()))
    }

    /// Whether it wants no more.
    pub(super) fn is_gone(&mut self) -> bool {
        self.hear(Heard::Piece("")).is_break()
    }

    /// Tells it the end.
    pub(super) fn done(mut self, result: Result<Completion>) {
        self.end(result);
    }

    /// Gives the place back without a word, for one that was never taken on.
    pub(super) fn refuse(mut self) {
        self.leave();
    }

    /// Gives the place back; whether it was still taken.
    fn leave(&mut self) -> bool {
        self.place.take().is_some()
    }

    fn end(&mut self, result: Result<Completion>) {
        // Before it hears of it: what it asks for next finds a place.
        if self.leave() {
            let _ = self.hear(Heard::Done(result));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end(Err(Error::Batch(DROPPED.to_string())));
    }
}
