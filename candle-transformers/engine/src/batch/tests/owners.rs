//! Texts of several owners.

use super::{request, small_model, ONE_SLOT, WAIT};
use crate::batch::{BatchEngine, BatchSettings, Heard, Order, Owner};
use std::ops::ControlFlow;
use std::sync::mpsc::{channel, Receiver, Sender};

/// Begins a text that sends `owner` at its end.
fn begin_for(
    engine: &BatchEngine,
    owner: u64,
    prompt: usize,
    max_tokens: usize,
    ends: &Sender<u64>,
) {
    let ends = ends.clone();
    let listener = move |heard: Heard<'_>| {
        if let Heard::Done(result) = heard {
            result.unwrap();
            let _ = ends.send(owner);
        }
        ControlFlow::Continue(())
    };
    // Each begins otherwise, so that nothing is shared.
    let mut tokens = vec![owner as u32 + 10; prompt];
    tokens[0] = max_tokens as u32;
    let order = Order {
        tokens,
        request: request(max_tokens),
        logprobs: None,
        owner: Owner(owner),
        mask: None,
    };
    engine.begin(order, Box::new(listener)).unwrap();
}

/// How many texts of owner 1 end before that of owner 2.
fn ended_before(ends: &Receiver<u64>) -> usize {
    let mut all = std::iter::from_fn(|| Some(ends.recv_timeout(WAIT).expect("all end")));
    all.position(|owner| owner == 2).unwrap()
}

fn four_slots(piece: usize) -> BatchEngine {
    let settings = BatchSettings {
        slots: 4,
        piece: Some(piece),
        waiting: 64,
        ..ONE_SLOT
    };
    BatchEngine::new(small_model(), settings).unwrap()
}

#[test]
fn many_texts_of_one_owner_do_not_hold_up_another() {
    let engine = four_slots(128);
    let (sender, ends) = channel();
    let begin = |owner, max_tokens| begin_for(&engine, owner, 4, max_tokens, &sender);
    (0..24).for_each(|i| begin(1, 24 + i));
    begin(2, 2);
    // At most those that ran when it came, and those that end with them.
    let before = ended_before(&ends);
    assert!(before <= 4, "{before} texts came first");
    // From then on a slot is kept for others.
    begin(2, 2);
    let before = ended_before(&ends);
    assert!(before <= 1, "{before} texts came first");
}

#[test]
fn a_short_prompt_is_read_beside_long_ones() {
    let engine = four_slots(16);
    let (sender, ends) = channel();
    (0..3).for_each(|i| begin_for(&engine, 1, 600, 1 + i, &sender));
    begin_for(&engine, 2, 20, 1, &sender);
    assert_eq!(ended_before(&ends), 0);
}
