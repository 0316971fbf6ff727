//! What becomes of the engine where a step or a listener breaks.

mod owners;
mod paged;

use super::client::Client;
use super::places::Places;
use super::scheduler::Scheduler;
use super::supervisor::MOST_FAILURES;
use super::testing::{small_model, ONE_SLOT};
use super::{BatchEngine, BatchSettings, Heard, Job, Listener, Owner};
use crate::backend::{Completion, CompletionRequest, InferenceBackend, StopReason};
use crate::{Error, Result};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(120);

pub(super) fn request(max_tokens: usize) -> CompletionRequest {
    CompletionRequest {
        prompt: "fn main() {".to_string(),
        max_tokens,
        ..CompletionRequest::default()
    }
}

/// Sends each piece, and then the end.
struct Text {
    pieces: Receiver<()>,
    end: Receiver<Result<Completion>>,
}

impl Text {
    fn begin(engine: &BatchEngine, max_tokens: usize) -> Self {
        let (piece, pieces) = channel();
        let (done, end) = channel();
        let listener = move |heard: Heard<'_>| {
            match heard {
                Heard::Piece("") | Heard::Token(_) => {}
                Heard::Piece(_) => drop(piece.send(())),
                Heard::Done(result) => drop(done.send(result)),
            }
            ControlFlow::Continue(())
        };
        submit(engine, max_tokens, Box::new(listener)).unwrap();
        Self { pieces, end }
    }

    fn end(&self) -> Result<Completion> {
        self.end.recv_timeout(WAIT).expect("it is told the end")
    }

    #[track_caller]
    fn problem(&self) -> String {
        match self.end() {
            Err(Error::Batch(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

fn submit(engine: &BatchEngine, max_tokens: usize, listener: Listener) -> Result<()> {
    let request = request(max_tokens);
    let tokens = engine.backend().prompt_tokens(&request.prompt).unwrap();
    engine.submit(tokens, request, None, listener)
}

#[test]
fn a_panic_ends_what_runs_and_nothing_else() {
    let model = small_model();
    let alone = model.complete(&request(12)).unwrap();
    let trip = Arc::new(AtomicBool::new(false));
    let tripped = trip.clone();
    let engine = BatchEngine::with_step(model, ONE_SLOT, move |scheduler| {
        scheduler.step()?;
        assert!(!tripped.swap(false, SeqCst), "as the test asks");
        Ok(())
    });
    let engine = engine.unwrap();
    // More often than would end it if no text were finished.
    for _ in 0..MOST_FAILURES + 1 {
        let running = Text::begin(&engine, 400);
        let waiting = Text::begin(&engine, 12);
        running.pieces.recv_timeout(WAIT).unwrap();
        trip.store(true, SeqCst);
        let why = running.problem();
        assert!(why.contains("panicked"), "{why}");
        let found = waiting.end().unwrap();
        assert_eq!(found.token_ids, alone.token_ids, "the cache is a fresh one");
        assert_eq!((engine.open(), engine.failure()), (0, None));
    }
}

#[test]
fn panics_in_a_row_end_the_engine_and_everybody_is_told() {
    let (go, wait) = channel::<()>();
    let engine = BatchEngine::with_step(small_model(), ONE_SLOT, move |scheduler| {
        // All have come by then.
        let _ = wait.recv_timeout(WAIT);
        scheduler.step()?;
        panic!("as the test asks")
    });
    let engine = engine.unwrap();
    let texts: Vec<_> = (0..6).map(|_| Text::begin(&engine, 400)).collect();
    drop(go);
    let told: Vec<String> = texts.iter().map(Text::problem).collect();
    let failure = engine.failure().expect("it has failed");
    for (i, why) in told.iter().enumerate() {
        // Those that ran hear of the panic, those that waited of the end.
        assert_eq!(why == &failure, i >= MOST_FAILURES, "{i}: {why}");
        assert!(why.contains("panicked"), "{i}: {why}");
    }
    assert_eq!(engine.open(), 0);
    // Nobody waits for what will never be.
    let called = Arc::new(AtomicUsize::new(0));
    let calls = called.clone();
    let listener = move |_: Heard<'_>| {
        calls.fetch_add(1, SeqCst);
        ControlFlow::Continue(())
    };
    let refused = submit(&engine, 4, Box::new(listener));
    assert!(refused.is_err());
    let waited = engine.complete(&request(4));
    assert!(matches!(waited, Err(Error::Batch(_))), "{waited:?}");
    assert_eq!((called.load(SeqCst), engine.open()), (0, 0));
}

/// Its thread is still there then: it tells one text after another.
#[test]
fn who_comes_while_it_ends_is_refused() {
    let (refused, found) = channel();
    let (go, wait) = channel::<()>();
    let engine = BatchEngine::with_step(small_model(), ONE_SLOT, move |_| {
        let _ = wait.recv_timeout(WAIT);
        panic!("as the test asks")
    });
    let engine = Arc::new(engine.unwrap());
    let _ran: Vec<_> = (0..MOST_FAILURES)
        .map(|_| Text::begin(&engine, 4))
        .collect();
    let (asked, once) = (engine.clone(), AtomicBool::new(false));
    let listener = move |heard: Heard<'_>| {
        if matches!(heard, Heard::Done(_)) && !once.swap(true, SeqCst) {
            let next = |_: Heard<'_>| ControlFlow::Continue(());
            let _ = refused.send(submit(&asked, 4, Box::new(next)));
        }
        ControlFlow::Continue(())
    };
    submit(&engine, 4, Box::new(listener)).unwrap();
    drop(go);
    let next = found.recv_timeout(WAIT).unwrap();
    assert!(matches!(next, Err(Error::Batch(_))), "{next:?}");
    // The listener may be the last that has the engine: its thread does not wait for itself.
}

/// Nobody waits for a device that hangs, not even who drops the engine.
#[test]
fn a_step_that_does_not_end_ends_the_engine() {
    let settings = BatchSettings {
        longest_step: Duration::from_millis(300),
        ..ONE_SLOT
    };
    let (release, hang) = channel::<()>();
    let engine = BatchEngine::with_step(small_model(), settings, move |_| {
        let _ = hang.recv_timeout(WAIT);
        Ok(())
    });
    let engine = engine.unwrap();
    assert_eq!(engine.failure(), None);
    let text = Text::begin(&engine, 4);
    let start = Instant::now();
    let waited = engine.complete(&request(4));
    let Err(Error::Batch(why)) = waited else {
        panic!("{waited:?}")
    };
    assert!(why.contains("a step did not finish"), "{why}");
    assert_eq!(engine.failure().as_ref(), Some(&why));
    drop(engine);
    assert!(start.elapsed() < WAIT / 2, "it was waited for");
    // Should it come back, those that it held are told.
    drop(release);
    assert_eq!(text.problem(), why);
}

/// Such as memory that is not there: the next text may need less.
#[test]
fn errors_of_steps_do_not_end_the_engine() {
    let (breaks, broken) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let (trip, count): (_, Arc<AtomicUsize>) = (breaks.clone(), Arc::clone(&broken));
    let engine = BatchEngine::with_step(small_model(), ONE_SLOT, move |scheduler| {
        scheduler.step()?;
        match trip.load(SeqCst) {
            true => {
                count.fetch_add(1, SeqCst);
                Err(Error::EmptyPrompt)
            }
            false => Ok(()),
        }
    });
    let engine = engine.unwrap();
    for _ in 0..MOST_FAILURES + 2 {
        let why = Text::begin(&engine, 400).problem();
        assert_eq!(why, Error::EmptyPrompt.one_line());
    }
    assert!(broken.load(SeqCst) >= MOST_FAILURES + 2);
    breaks.store(false, SeqCst);
    assert_eq!(Text::begin(&engine, 5).end().unwrap().token_ids.len(), 5);
    assert_eq!(engine.failure(), None);
}

#[test]
fn a_listener_that_panics_ends_its_text_alone() {
    let settings = BatchSettings {
        slots: 2,
        ..ONE_SLOT
    };
    let engine = BatchEngine::new(small_model(), settings).unwrap();
    for _ in 0..MOST_FAILURES + 1 {
        let other = Text::begin(&engine, 30);
        let listener = |heard: Heard<'_>| match heard {
            Heard::Piece("") => ControlFlow::Continue(()),
            _ => panic!("as the test asks"),
        };
        submit(&engine, 400, Box::new(listener)).unwrap();
        assert_eq!(other.end().unwrap().token_ids.len(), 30);
    }
    assert_eq!(Text::begin(&engine, 5).end().unwrap().token_ids.len(), 5);
    assert_eq!(engine.failure(), None);
}

#[test]
fn a_client_hears_of_one_end_and_gives_its_place_back() {
    let places = Places::new(1);
    let (sender, ends) = channel();
    let client = || {
        let sender = sender.clone();
        let listener = move |heard: Heard<'_>| {
            if let Heard::Done(result) = heard {
                sender.send(result.map(drop)).unwrap();
            }
            ControlFlow::Continue(())
        };
        Ok::<_, Error>(Client::new(places.take(Owner(0))?, Box::new(listener)))
    };
    drop(client().unwrap());
    assert!(matches!(ends.try_recv(), Ok(Err(Error::Batch(_)))));
    let one = client().unwrap();
    assert!(matches!(client().err(), Some(Error::Busy(1))));
    one.done(Err(Error::EmptyPrompt));
    assert!(matches!(ends.try_recv(), Ok(Err(Error::EmptyPrompt))));
    client().unwrap().refuse();
    assert!(ends.try_recv().is_err());
    assert_eq!(places.taken(), 0);
}

/// A client that counts how often it is asked whether to go on, goes when it is told to, and sends its end.
#[derive(Clone, Default)]
struct Asked {
    times: Arc<AtomicUsize>,
    is_gone: Arc<AtomicBool>,
}

impl Asked {
    fn listener(&self) -> (Listener, Receiver<Result<Completion>>) {
        let (asked, (done, end)) = (self.clone(), channel());
        let listener = move |heard: Heard<'_>| {
            match heard {
                Heard::Piece("") => drop(asked.times.fetch_add(1, SeqCst)),
                Heard::Piece(_) | Heard::Token(_) => {}
                Heard::Done(result) => drop(done.send(result)),
            }
            match asked.is_gone.load(SeqCst) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        (Box::new(listener), end)
    }

    /// Gives a scheduler a text of at most this many tokens; its end comes through what is returned.
    fn begin(
        &self,
        scheduler: &mut Scheduler<'_>,
        places: &Arc<Places>,
        max_tokens: usize,
    ) -> Receiver<Result<Completion>> {
        let (listener, end) = self.listener();
        let request = request(max_tokens);
        scheduler.wait(Job {
            tokens: scheduler.backend.prompt_tokens(&request.prompt).unwrap(),
            request,
            logprobs: None,
            owner: Owner(0),
            mask: None,
            client: Client::new(places.take(Owner(0)).unwrap(), listener),
        });
        end
    }

    /// How often since this was asked last.
    fn times(&self) -> usize {
        self.times.swap(0, SeqCst)
    }
}

#[test]
fn those_that_wait_are_asked_now_and_then_and_when_it_is_their_turn() {
    let model = small_model();
    let state = model.new_slots(1).unwrap();
    let mut scheduler = Scheduler::new(&model, state, ONE_SLOT);
    scheduler.ask_every = Duration::MAX;
    let places = Places::new(8);
    let (running, waiting) = (Asked::default(), Asked::default());
    let first = running.begin(&mut scheduler, &places, 400);
    let ends: Vec<_> = (0..4)
        .map(|_| waiting.begin(&mut scheduler, &places, 400))
        .collect();
    for _ in 0..5 {
        scheduler.step().unwrap();
    }
    // Before its first step, and at the four that follow.
    assert_eq!((running.times(), waiting.times()), (5, 0));

    waiting.is_gone.store(true, SeqCst);
    scheduler.step().unwrap();
    assert_eq!((waiting.times(), places.taken()), (0, 5));
    // The place is free: the next ones are asked before anything is read for them.
    running.is_gone.store(true, SeqCst);
    scheduler.step().unwrap();
    assert_eq!((waiting.times(), places.taken()), (4, 0));
    for end in [&first].into_iter().chain(&ends) {
        let completion = end.try_recv().unwrap().unwrap();
        assert_eq!(completion.stop_reason, StopReason::Cancelled);
    }
    assert!(scheduler.is_idle());

    // And when it is time, whoever runs.
    running.is_gone.store(false, SeqCst);
    let _first = running.begin(&mut scheduler, &places, 400);
    let ends: Vec<_> = (0..4)
        .map(|_| waiting.begin(&mut scheduler, &places, 400))
        .collect();
    scheduler.ask_every = Duration::ZERO;
    scheduler.step().unwrap();
    assert_eq!((waiting.times(), places.taken()), (4, 1));
    assert!(ends.iter().all(|end| end.try_recv().unwrap().is_ok()));
}

#[test]
fn those_that_went_away_while_they_waited_do_not_keep_others_out() {
    let settings = BatchSettings {
        waiting: 2,
        ..ONE_SLOT
    };
    let engine = BatchEngine::with_step(small_model(), settings, |scheduler| {
        // The text that runs is not to end before.
        std::thread::sleep(Duration::from_millis(5));
        scheduler.step()
    });
    let engine = engine.unwrap();
    let running = Text::begin(&engine, 450);
    running.pieces.recv_timeout(WAIT).unwrap();
    let gone = Asked::default();
    let ends = [(), ()].map(|()| {
        let (listener, end) = gone.listener();
        submit(&engine, 4, listener).unwrap();
        end
    });
    let (listener, _end) = gone.listener();
    assert!(matches!(submit(&engine, 4, listener), Err(Error::Busy(3))));
    gone.is_gone.store(true, SeqCst);
    let start = Instant::now();
    while engine.open() > 1 {
        assert!(start.elapsed() < WAIT, "their places are taken");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(running.end.try_recv().is_err(), "it still runs");
    assert!(ends.iter().all(|end| end.recv_timeout(WAIT).is_ok()));
    let _next = Text::begin(&engine, 4);
}
