//! Who waits for a completion.

use super::supervisor::caught;
use super::{Heard, Listener};
use crate::backend::Completion;
use crate::{Error, Result};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// What is told to a text that is dropped before its end, such as by a panic in the middle of a step.
const DROPPED: &str = "the engine dropped the request";

/// A listener with its place among those that run and wait. It hears of one end, also if it is dropped.
pub(super) struct Client {
    listener: Listener,
    open: Arc<AtomicUsize>,
    has_ended: bool,
}

impl Client {
    /// Takes one of `limit` places, of which `open` counts those that are taken.
    ///
    /// # Errors
    /// None is free.
    pub(super) fn new(open: &Arc<AtomicUsize>, limit: usize, listener: Listener) -> Result<Self> {
        if open.fetch_add(1, Ordering::Relaxed) >= limit {
            open.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Busy(limit));
        }
        Ok(Self {
            listener,
            open: open.clone(),
            has_ended: false,
        })
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
        let leaves = !std::mem::replace(&mut self.has_ended, true);
        if leaves {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        leaves
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
