//! Pages of texts that break off.

use super::super::testing::{small_model, ONE_SLOT};
use super::super::{BatchEngine, BatchSettings, Places};
use super::{request, Asked, Scheduler, Text, WAIT};
use crate::backend::InferenceBackend;
use crate::batch::memory::Memory;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

const IN_PAGES: BatchSettings = BatchSettings {
    slots: 2,
    cache_memory: Some(1 << 22),
    ..ONE_SLOT
};

#[test]
fn a_panic_leaves_no_pages_behind() {
    let model = small_model();
    let alone = model.complete(&request(12)).unwrap();
    let trip = Arc::new(AtomicBool::new(false));
    let tripped = trip.clone();
    let engine = BatchEngine::with_step(model, IN_PAGES, move |scheduler| {
        scheduler.step()?;
        assert!(!tripped.swap(false, SeqCst), "as the test asks");
        Ok(())
    });
    let engine = engine.unwrap();
    for _ in 0..2 {
        let running = [(), ()].map(|()| Text::begin(&engine, 400));
        let waiting = Text::begin(&engine, 12);
        // The second may have come after the step that gave the first one's first piece.
        for text in &running {
            text.pieces.recv_timeout(WAIT).unwrap();
        }
        trip.store(true, SeqCst);
        for text in &running {
            let why = text.problem();
            assert!(why.contains("panicked"), "{why}");
        }
        assert_eq!(waiting.end().unwrap().token_ids, alone.token_ids);
        let memory = engine.cache_memory().unwrap();
        assert_eq!((memory.held, memory.preempted), (0, 0), "{memory:?}");
    }
    assert_eq!((engine.open(), engine.failure()), (0, None));
}

/// The older text has the pages, and a text that waits for them can be cancelled.
#[test]
fn the_youngest_text_waits_and_can_be_cancelled() {
    let model = small_model();
    let page = 16 * model.decoder().bytes_per_position() as u64;
    let settings = BatchSettings {
        cache_memory: Some(5 * page),
        ..IN_PAGES
    };
    let memory = Memory::new(&model, settings, 5 * page).unwrap();
    let (state, counts) = (memory.new_state(&model).unwrap(), memory.counts.clone());
    let mut scheduler = Scheduler::new(&model, state, settings).with_memory(Some(memory));
    let places = Places::new(8);
    let (old, young) = (Asked::default(), Asked::default());
    let old_end = old.begin(&mut scheduler, &places, 50);
    let young_end = young.begin(&mut scheduler, &places, 50);
    let mut steps = 0;
    while counts.read().preempted == 0 {
        scheduler.step().unwrap();
        steps += 1;
        assert!(steps < 100, "{:?}", counts.read());
    }
    let numbers: Vec<_> = scheduler
        .slots
        .iter()
        .filter(|slot| slot.is_parked())
        .filter_map(|slot| slot.text.as_ref().map(|text| text.number))
        .collect();
    assert_eq!(numbers, [2], "the second one waits");
    assert!(old_end.try_recv().is_err() && young_end.try_recv().is_err());
    young.is_gone.store(true, SeqCst);
    scheduler.step().unwrap();
    assert!(young_end.try_recv().unwrap().is_ok());
    while old_end.try_recv().is_err() {
        scheduler.step().unwrap();
    }
    assert!(scheduler.is_idle());
    let found = counts.read();
    assert_eq!((found.held, found.preempted, found.preemptions), (0, 0, 1));
}
