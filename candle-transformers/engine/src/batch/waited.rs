//! A completion of the engine for a thread that waits for it.

use super::{BatchEngine, Heard};
use crate::backend::{Completion, CompletionRequest, InferenceBackend};
use crate::Result;
use std::ops::ControlFlow;
use std::sync::mpsc::{channel, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// How often a thread that hears nothing asks whether the engine has failed.
const ASK: Duration = Duration::from_millis(500);

/// From the engine's thread to the one that waits.
enum Event {
    Piece(String),
    Done(Result<Completion>),
}

impl InferenceBackend for BatchEngine {
    fn id(&self) -> &str {
        self.backend().id()
    }

    fn complete_stream(
        &self,
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let tokens = self.backend().tokens_of(request)?;
        let (sender, events) = channel();
        let (wanted, want) = channel::<()>();
        let listener = move |heard: Heard<'_>| {
            let sent = match heard {
                Heard::Piece("") | Heard::Token(_) => Ok(()),
                Heard::Piece(piece) => sender.send(Event::Piece(piece.to_string())),
                Heard::Done(result) => sender.send(Event::Done(result)),
            };
            let is_wanted = want.try_recv() != Err(TryRecvError::Disconnected);
            match sent.is_ok() && is_wanted {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        self.submit(tokens, request.clone(), None, Box::new(listener))?;
        // Dropped, it tells the engine that nobody waits for more.
        let mut wanted = Some(wanted);
        loop {
            match events.recv_timeout(ASK) {
                Ok(Event::Done(result)) => return result,
                Ok(Event::Piece(_)) if wanted.is_none() => {}
                Ok(Event::Piece(piece)) => {
                    if on_piece(&piece).is_break() {
                        wanted = None;
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.failure().is_none() => {}
                Err(_) => return Err(self.ended()),
            }
        }
    }
}
